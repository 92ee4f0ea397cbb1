"""`mcpp mcp`: serve a pod to an MCP client over standard input and output."""

import argparse
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
from mcpp.errors import ConnectionLostError
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal
from mcpp_agents.mcp_server.server import PodServer
from mcpp_agents.mcp_server.tool_handlers import KEPT_ENVELOPES

_USUAL_NAME: Final = "assistant"


def main(argv: list[str]) -> int:
    """Serve until the client closes our standard input, or Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp mcp",
        description="Serve a pod to an MCP client over standard input and output. Put "
        "`mcpp mcp` where the client asks for a server's command.",
    )
    parser.add_argument("--as", dest="name", metavar="NAME", help="join as this participant")
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    log_to_terminal("mcp")
    # A client may start several of us: none of them should push out another.
    address = options.address_of_person(arguments, arguments.name or _USUAL_NAME)

    anyio.run(until_signal, lambda: serve(address, arguments.name))
    return 0


async def serve(address: local_pod.Address, name: str | None = None) -> None:
    """Join the pod, and serve it until standard input ends or a signal comes.

    Raises ConnectionLostError when the gateway ends it for good.
    """
    lost: ConnectionLostError | None = None
    connecting = mcpp.connect(address, name=name, last=KEPT_ENVELOPES, own=True)
    async with connecting as pod, background() as tasks:
        pod_server = PodServer(pod)

        async def listen(serving: anyio.CancelScope) -> None:
            nonlocal lost
            try:
                await pod_server.listen()
            except ConnectionLostError as error:
                lost = error
                serving.cancel()

        async def work() -> None:
            # By itself the SDK reads in a thread, which nothing can stop while it waits for a line.
            lines = cast("anyio.AsyncFile[str]", _lines(sys.stdin.fileno()))
            with anyio.CancelScope() as serving:
                async with stdio_server(stdin=lines) as (reading, writing):
                    tasks.start_soon(listen, serving)
                    await pod_server.server.run(reading, writing, pod_server.options)

        # Once there is a pod, a signal does not end the connection with it: something may be left
        # to be said.
        await until_signal(work)
        await pod_server.close()
    if lost is not None:
        raise lost


async def _lines(descriptor: int) -> AsyncIterator[str]:
    rest = b""
    while True:
        with suppress(PermissionError):  # a file or /dev/null: never waited for, always ready
            await anyio.wait_readable(descriptor)
        chunk = os.read(descriptor, 65536)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
        if not chunk:
            return
