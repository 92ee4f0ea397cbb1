"""`mcpp mcp`: serve a pod to an MCP client over standard input and output."""

import argparse
from typing import Final

import anyio

from mcpp.cli.extras import importing
from mcpp.client.tasks import until_signal
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal

_DEFAULT_NAME: Final = "assistant"


def main(argv: list[str]) -> int:
    """Serve until the client closes standard input, or until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp mcp",
        description="Serve a pod to an MCP client over standard input and output. Configure "
        "`mcpp mcp` as the server's command in the client.",
    )
    options.add_name(parser)
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    log_to_terminal("mcp")
    with importing("mcp"):
        from mcpp_agents.mcp_server.stdio import serve

    # A client may start several servers: they must be able to join at the same time.
    address = options.address_of_person(arguments, arguments.name or _DEFAULT_NAME)
    anyio.run(until_signal, lambda: serve(address, arguments.name))
    return 0
