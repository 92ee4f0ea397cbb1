"""`mcpp bridge`: add an MCP server to a pod as a participant."""

import argparse

import anyio

from mcpp import McppError
from mcpp.cli.extras import importing
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal


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
        "--http", type=options.web_address, metavar="URL", help="use a server on streamable HTTP"
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME: VALUE",
        help="send this header with every HTTP request; other users can see it in the process list",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME",
        help="pass this environment variable to the server, which gets only a few by default",
    )
    options.add_arguments(parser)
    ours, command = _split(argv)
    arguments = parser.parse_args(ours)
    if bool(command) == bool(arguments.http):
        parser.error("give either `-- COMMAND ...` or `--http URL`")
    if arguments.env and arguments.http:
        parser.error("--env is for `-- COMMAND ...`")
    log_to_terminal("bridge")
    headers = _headers(arguments.header)
    with importing("bridge"):
        from mcpp_agents.bridge.agent import run
        from mcpp_agents.bridge.upstream import over_http, over_stdio

    opener = (
        over_http(arguments.http, headers) if arguments.http else over_stdio(command, arguments.env)
    )
    anyio.run(run, arguments.name, opener, options.address_of(arguments, arguments.name))
    return 0


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in argv:
        return argv, []
    place = argv.index("--")
    return argv[:place], argv[place + 1 :]


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise McppError(f"{line!r} is not a header: write 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
