"""Serving a pod over standard input and output."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, cast

import anyio
from mcp.server.stdio import stdio_server

import mcpp
from mcpp.client import local_pod
from mcpp.client.tasks import background, until_signal
from mcpp_agents.lines import Lines, find_id
from mcpp_agents.mcp_server.server import PodServer
from mcpp_agents.mcp_server.shared_pod import SharedPod
from mcpp_agents.mcp_server.tool_handlers import KEPT_ENVELOPES

# The name of a method that is not served, in place of a line that is longer than is read.
_TOO_LONG: Final = "mcpp/line_too_long"


async def serve(
    address: local_pod.Address,
    name: str | None = None,
    participant: str | None = None,
    *,
    agent: str | None = None,
) -> None:
    """Join the pod and serve it until standard input ends or a signal arrives.

    With `participant` serve only what that one offers, under its own names. With `agent`, calls
    belong to the reasoning context that this participant has open.

    Raises ConnectionLostError when the gateway closes the connection for good.
    """
    lost: mcpp.ConnectionLostError | None = None
    connecting = mcpp.connect(address, name=name, last=KEPT_ENVELOPES, own=True)
    async with connecting as pod, background() as tasks:
        link = SharedPod(pod, agent)
        pod_server = PodServer(link, participant)

        async def listen(serving: anyio.CancelScope) -> None:
            nonlocal lost
            try:
                await link.listen()
            except mcpp.ConnectionLostError as error:
                lost = error
                serving.cancel()

        async def work() -> None:
            # By default the SDK reads in a thread, which cannot be cancelled while it waits.
            lines = cast("anyio.AsyncFile[str]", _lines(sys.stdin.fileno()))
            with anyio.CancelScope() as serving:
                async with stdio_server(stdin=lines) as (reading, writing):
                    tasks.start_soon(listen, serving)
                    tasks.start_soon(pod_server.announce_changes)
                    server = pod_server.server
                    await server.run(reading, writing, server.create_initialization_options())

        # While connected, a signal ends only the server, so that `close` can withdraw proposals.
        await until_signal(work)
        await link.close()
    if lost is not None:
        raise lost


async def _lines(descriptor: int) -> AsyncIterator[str]:
    """Yield the lines of a descriptor; of a line that is too long, a request that fails."""
    lines = Lines()
    while True:
        with suppress(PermissionError):  # epoll does not support files and /dev/null
            await anyio.wait_readable(descriptor)
        chunk = os.read(descriptor, 65536)
        for line, size in lines.split(chunk or b"\n"):
            if size == len(line):
                yield line.decode(errors="replace")
            elif (id := find_id(line)) is not None:
                yield json.dumps({"jsonrpc": "2.0", "id": id, "method": _TOO_LONG})
        if not chunk:
            return
