"""`mcpp bridge`: bring an MCP server into a pod."""

import argparse
import sys

import anyio

import mcpp
from mcpp import McppError, Pod
from mcpp.client.tasks import background, until_signal
from mcpp_agents.bridge.agent import bridge
from mcpp_agents.bridge.upstream import Open, Upstream, over_http, over_stdio
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal


def main(argv: list[str]) -> int:
    """Run a bridge until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp bridge",
        usage="mcpp bridge [--url URL --token TOKEN] NAME (-- COMMAND ... | --http URL)",
        description="Bring an MCP server into a pod: others call its tools, read its resources and "
        "get its prompts as NAME's. A server that ends is started again.",
    )
    parser.add_argument("name", metavar="NAME", help="the participant's name")
    parser.add_argument(
        "--http", type=options.web_address, metavar="URL", help="a server over streamable HTTP"
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME: VALUE",
        help="sent with every HTTP request; others see it in the process list",
    )
    options.add_arguments(parser)
    ours, command = _split(argv)
    arguments = parser.parse_args(ours)
    if bool(command) == bool(arguments.http):
        parser.error("give either `-- COMMAND ...` or `--http URL`")
    log_to_terminal("bridge")
    opening = over_http(arguments.http, _headers(arguments.header)) if arguments.http else None
    address = options.address_of(arguments, arguments.name)
    anyio.run(run, arguments.name, opening or over_stdio(command), address)
    return 0


async def run(name: str, open: Open, address: mcpp.client.local_pod.Address) -> None:
    """Keep the server and the participant running until a signal."""
    upstream = Upstream(open, name=f"the MCP server of {name}")
    agent = bridge(name, upstream)

    @agent.task
    async def announce(pod: Pod) -> None:
        sys.stderr.write(f"mcpp bridge: {pod.me} is in the pod\n")

    async def work() -> None:
        async with background() as tasks:
            await tasks.start(upstream.keep)
            await agent.run(address)

    # A server that does not end is killed with its children after a few seconds. A second Ctrl-C
    # would leave them running.
    await until_signal(work, ends_by_itself=True)


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
            raise McppError(f"{line!r} is no header: write 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
