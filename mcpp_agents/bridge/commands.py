"""`mcpp bridge`: add an MCP server to a pod as a participant."""

import argparse
import sys

import anyio

from mcpp import McppError
from mcpp.cli.extras import importing
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal
from mcpp_agents.cli.tracing import trace_by_environment


def main(argv: list[str]) -> int:
    """Run a bridge until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp bridge",
        usage="mcpp bridge [--url URL --token TOKEN] NAME "
        "([--env NAME] -- COMMAND ... | --http URL)",
        description="Add an MCP server to a pod. Other participants call its tools, read its "
        "resources and get its prompts under NAME. A server that ends is started again.",
    )
    parser.add_argument("name", metavar="NAME", help="the participant's name")
    parser.add_argument(
        "--http",
        type=options.web_address,
        metavar="URL",
        help="use a server on streamable HTTP, or on the older transport with SSE",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME: VALUE",
        help="send this header with every HTTP request; other users can see it in the process list",
    )
    parser.add_argument(
        "--oauth",
        action="store_true",
        help="sign in to the HTTP server with a browser; the tokens are kept for the next start",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="pass this environment variable to the server, which gets only a few by default",
    )
    parser.add_argument(
        "--ask",
        action="append",
        metavar="NAME",
        help="put the server's questions to this participant if the caller cannot answer them; "
        "by default, to those present",
    )
    options.add_arguments(parser)
    ours, command = _split(argv)
    arguments = parser.parse_args(ours)
    if bool(command) == bool(arguments.http):
        parser.error("give either `-- COMMAND ...` or `--http URL`")
    if arguments.oauth and not arguments.http:
        parser.error("--oauth is for `--http URL`")
    if arguments.env and arguments.http:
        parser.error("--env is for `-- COMMAND ...`")
    log_to_terminal("bridge")
    trace_by_environment(arguments.name)
    headers = _headers(arguments.header)
    with importing("bridge"):
        from mcpp_agents.bridge.agent import run
        from mcpp_agents.bridge.oauth import oauth
        from mcpp_agents.bridge.openers import over_http, over_stdio

    if arguments.http:
        auth = oauth(arguments.http, _show_address) if arguments.oauth else None
        opener = over_http(arguments.http, headers, auth)
    else:
        opener = over_stdio(command, arguments.env)
    address = options.address_of(arguments, arguments.name)
    anyio.run(run, arguments.name, opener, address, arguments.ask)
    return 0


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _show_address(url: str) -> None:
    sys.stderr.write(f"mcpp bridge: to sign in, open this address in a browser:\n{url}\n")
    sys.stderr.flush()


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise McppError(f"{line!r} is not a header: write 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
