"""`mcpp a2a`: bring a remote A2A agent into a pod, or serve participants to A2A clients."""

import argparse
import os
import sys
from contextlib import suppress
from typing import Final

import anyio

from mcpp import McppError
from mcpp.cli.extras import importing
from mcpp.client.tasks import until_signal
from mcpp_agents.cli import options
from mcpp_agents.cli.joining import announce_join
from mcpp_agents.cli.listening import address_of, listen
from mcpp_agents.cli.log_format import log_to_terminal

TOKEN: Final = "MCPP_A2A_TOKEN"
_LOCAL: Final = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORT: Final = 8790
_MIN_TOKEN_CHARACTERS: Final = 16


def main(argv: list[str]) -> int:
    """Join or serve until Ctrl-C."""
    arguments = _parser().parse_args(argv)
    log_to_terminal("a2a")
    return _join(arguments) if arguments.command == "join" else _serve(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp a2a", description="Connect a pod with agents that speak A2A (Agent2Agent)."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="join|serve")
    join = commands.add_parser(
        "join",
        help="bring a remote agent into the pod",
        description="Bring a remote A2A agent into the pod. Chats addressed to it are messages to "
        f"the agent, and its skills are tools. {TOKEN} is sent as a bearer token.",
    )
    join.add_argument(
        "agent", type=options.web_address, metavar="URL", help="the agent, or its card"
    )
    options.add_name(join)
    join.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="NAME: VALUE",
        help="send this header with every request; other users can see it in the process list",
    )
    join.add_argument(
        "--allow-origin",
        action="append",
        default=[],
        type=options.web_address,
        metavar="URL",
        help="the card may say that the agent is there; by default, only where the card is",
    )
    options.add_arguments(join)
    serve = commands.add_parser(
        "serve",
        help="serve participants to A2A clients",
        description="Serve participants of the pod as A2A agents over HTTP. A client's message is "
        f"a task in the pod. With {TOKEN}, clients have to send it as a bearer token.",
    )
    serve.add_argument("participants", nargs="+", metavar="NAME", help="whom to serve")
    serve.add_argument(
        "--http",
        default=str(_DEFAULT_PORT),
        metavar="[HOST:]PORT",
        help="where to listen (default: 127.0.0.1:%(default)s)",
    )
    serve.add_argument(
        "--public-url",
        type=options.web_address,
        metavar="URL",
        help="the address that cards name, if clients reach this server by another one",
    )
    options.add_name(serve, "a2a")
    options.add_arguments(serve)
    return parser


def _join(arguments: argparse.Namespace) -> int:
    headers = _headers(arguments.header)
    with importing("a2a"):
        from mcpp_agents.a2a.joining.joined_agent import JoinedAgent, name_of
        from mcpp_agents.a2a.joining.remote_agent import RemoteAgent

    async def work() -> None:
        opening = RemoteAgent.open(arguments.agent, headers=headers, origins=arguments.allow_origin)
        async with opening as agent:
            name = arguments.name or name_of(agent.card.name)
            joined = JoinedAgent(name, agent).participant
            announce_join(joined, "a2a")
            await joined.run(options.address_of(arguments, name))

    anyio.run(until_signal, work)
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    host, _, port = arguments.http.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdecimal():
        raise McppError(f"--http {arguments.http}: write it as [HOST:]PORT")
    token = os.environ.get(TOKEN) or None
    if token is None and host not in _LOCAL:
        raise McppError(f"{host} is not this machine: set {TOKEN}, which clients have to send")
    if token is not None and len(token) < _MIN_TOKEN_CHARACTERS:
        raise McppError(f"{TOKEN} needs at least {_MIN_TOKEN_CHARACTERS} characters")
    with importing("a2a"):
        from mcpp_agents.a2a.serving.server import serve

    address = options.address_of(arguments, arguments.name)
    with listen(host, int(port)) as listener, suppress(KeyboardInterrupt):
        url = (arguments.public_url or f"http://{address_of(listener)}").rstrip("/")
        for name in arguments.participants:
            sys.stderr.write(f"mcpp a2a: {name} is served at {url}/{name}\n")

        async def work() -> None:
            await serve(
                address,
                arguments.participants,
                listener,
                name=arguments.name,
                url=url,
                token=token,
            )

        anyio.run(work)
    return 0


def _headers(lines: list[str]) -> dict[str, str]:
    headers = {}
    token = os.environ.get(TOKEN)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise McppError(f"{line!r} is not a header: write 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
