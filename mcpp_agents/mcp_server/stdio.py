"""Serving a pod over standard input and output."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import cast

import anyio
from mcp.server.stdio import stdio_server

import mcpp
from mcpp.client import local_pod
from mcpp.client.tasks import background, until_signal
from mcpp_agents.mcp_server.server import PodServer
from mcpp_agents.mcp_server.tool_handlers import KEPT_ENVELOPES


async def serve(address: local_pod.Address, name: str | None = None) -> None:
    """Join the pod and serve it until standard input ends or a signal arrives.

    Raises ConnectionLostError when the gateway closes the connection for good.
    """
    lost: mcpp.ConnectionLostError | None = None
    connecting = mcpp.connect(address, name=name, last=KEPT_ENVELOPES, own=True)
    async with connecting as pod, background() as tasks:
        pod_server = PodServer(pod)

        async def listen(serving: anyio.CancelScope) -> None:
            nonlocal lost
            try:
                await pod_server.listen()
            except mcpp.ConnectionLostError as error:
                lost = error
                serving.cancel()

        async def work() -> None:
            # By default the SDK reads in a thread, which cannot be cancelled while it waits.
            lines = cast("anyio.AsyncFile[str]", _lines(sys.stdin.fileno()))
            with anyio.CancelScope() as serving:
                async with stdio_server(stdin=lines) as (reading, writing):
                    tasks.start_soon(listen, serving)
                    await pod_server.server.run(reading, writing, pod_server.options)

        # While connected, a signal ends only the server, so that `close` can withdraw proposals.
        await until_signal(work)
        await pod_server.close()
    if lost is not None:
        raise lost


async def _lines(descriptor: int) -> AsyncIterator[str]:
    rest = b""
    while True:
        with suppress(PermissionError):  # epoll does not support files and /dev/null
            await anyio.wait_readable(descriptor)
        chunk = os.read(descriptor, 65536)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        if not chunk:
            return
