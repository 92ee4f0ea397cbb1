"""`mcpp mcp`: serve a pod to an MCP client over standard input and output."""

import argparse
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio

from mcpp import McppError
from mcpp.cli.extras import importing
from mcpp.client.tasks import until_signal
from mcpp_agents.cli import options
from mcpp_agents.cli.listening import address_of, listen
from mcpp_agents.cli.log_format import log_to_terminal
from mcpp_agents.cli.tracing import trace_by_environment

_DEFAULT_NAME: Final = "assistant"
_LOCAL: Final = ("", "127.0.0.1", "localhost", "::1", "[::1]")


def main(argv: list[str]) -> int:
    """Serve until the client closes standard input, or until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp mcp",
        description="Serve a pod to an MCP client over standard input and output. Configure "
        "`mcpp mcp` as the server's command in the client.",
    )
    parser.add_argument(
        "--participant",
        metavar="NAME",
        help="serve only what this participant offers, under its own names",
    )
    parser.add_argument(
        "--http",
        metavar="[HOST:]PORT|PATH",
        help="serve many clients over streamable HTTP at /mcp instead, on a port of this machine "
        "or on a Unix socket; each client sends its participant's token",
    )
    parser.add_argument(
        "--agent",
        metavar="NAME",
        help="the calls are those of this participant, an agent: they belong to the reasoning "
        "context that it has open, if it has exactly one",
    )
    options.add_name(parser)
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    log_to_terminal("mcp")
    trace_by_environment(arguments.name or _DEFAULT_NAME)
    if arguments.http:
        return _serve_http(arguments)
    with importing("mcp"):
        from mcpp_agents.mcp_server.stdio import serve

    # A client may start several servers: they must be able to join at the same time.
    address = options.address_of_person(arguments, arguments.name or _DEFAULT_NAME)
    anyio.run(
        until_signal,
        lambda: serve(address, arguments.name, arguments.participant, agent=arguments.agent),
    )
    return 0


def _serve_http(arguments: argparse.Namespace) -> int:
    with importing("mcp"):
        from mcpp_agents.mcp_server.http_server import PodHttpServer, serve

    url, is_public = options.gateway_url(arguments), _is_public(arguments.http)
    app = PodHttpServer(url, ca=arguments.ca, checks_host=not is_public)
    with _listen(arguments.http) as listener, suppress(KeyboardInterrupt):
        if listener.family != socket.AF_UNIX:
            sys.stderr.write(f"mcpp mcp: http://{address_of(listener)}/mcp\n")
        anyio.run(serve, app, listener)
    return 0


def _listen(place: str) -> socket.socket:
    """Return a socket at `[HOST:]PORT` or at the path of a Unix socket. Raises McppError."""
    if "/" in place:
        listener = socket.socket(socket.AF_UNIX)
        try:
            Path(place).unlink(missing_ok=True)
            listener.bind(place)
        except OSError as error:
            raise McppError(f"cannot listen on {place}: {error}") from None
        listener.listen()
        return listener
    host, _, port = place.rpartition(":")
    if not port.isdecimal():
        raise McppError(f"--http {place}: write it as [HOST:]PORT, or as the path of a socket")
    return listen(host.strip("[]") or "127.0.0.1", int(port))


def _is_public(place: str) -> bool:
    """Return whether requests may name other hosts: behind a gateway, or by choice of a host."""
    return "/" in place or place.rpartition(":")[0] not in _LOCAL
