"""The gateway's commands: `mcpp gateway`, `mcpp up` and `mcpp token`."""

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

from mcpp.client import local_pod
from mcpp.errors import McppError
from mcpp_gateway import config as configuration
from mcpp_gateway import demo, links, log_format
from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.process import serve

_EXIT_USAGE: Final = 2


def gateway(argv: list[str]) -> int:
    """Run the gateway with a configuration file."""
    parser = argparse.ArgumentParser(
        prog="mcpp gateway",
        description="Run the gateway with a configuration file. SIGHUP reloads participants and "
        "tokens, SIGTERM drains and stops.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="a TOML file")
    parser.add_argument("--host", help="listen on this address instead of the file's")
    parser.add_argument("--port", type=int, help="listen on this port instead of the file's")
    arguments = parser.parse_args(argv)
    environment = dict(os.environ)
    if arguments.host is not None:
        environment["MCPP_GATEWAY__HOST"] = arguments.host
    if arguments.port is not None:
        environment["MCPP_GATEWAY__PORT"] = str(arguments.port)
    return _run("gateway", arguments.config, environment)


def up(argv: list[str]) -> int:
    """Start a pod here: gateway, tokens and inspector."""
    parser = argparse.ArgumentParser(
        prog="mcpp up",
        description="Start a pod in this folder. Its tokens and settings are made on first use and "
        "kept in .mcpp/, where agents and the other commands find them.",
    )
    parser.add_argument("--demo", action="store_true", help="start the demo's agents too")
    parser.add_argument(
        "--port",
        type=_port,
        default=os.environ.get("MCPP_GATEWAY__PORT"),
        help="listen on this port from now on (default: where it was, and 8787 for a new pod)",
    )
    arguments = parser.parse_args(argv)
    try:
        pod = local_pod.create()
        person = local_pod.person()
        pod.add(person, multiple=True)
        with pod.running():
            if arguments.port is not None:
                pod.set_port(arguments.port)
            agents = demo.agents(pod) if arguments.demo else nullcontext()

            def announce(gateway: Gateway) -> None:
                address = links.link(pod, gateway.invite(pod.name, person))
                print(f"Pod {pod.name!r} is up, and you are {person!r} in it.")
                print(f"  inspector  {address}  (once, within two minutes)")
                print(f"             another link: mcpp token {person} --link")
                print(f"  agents     {pod.url}")
                print("Stop with Ctrl-C.", flush=True)

            with agents:
                return _run("up", pod.path, os.environ, announce, _session_key(pod.folder))
    except McppError as error:
        return _fail("up", error)


def _port(text: str) -> int:
    """Return a port that agents can be told of: unlike a gateway's own, it cannot be any."""
    if not text.isdecimal() or not 0 < int(text) < 65_536:
        raise argparse.ArgumentTypeError(f"must be 1 to 65535, not {text!r}")
    return int(text)


def token(argv: list[str]) -> int:
    """Add a participant to the pod here, or remove one."""
    parser = argparse.ArgumentParser(
        prog="mcpp token",
        description="Print the token of a participant of the pod in this folder, adding the "
        "participant if it is new. A running gateway takes notice at once.",
    )
    parser.add_argument("name", help="the participant's id")
    parser.add_argument("--multiple", action="store_true", help="allow it several connections")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--revoke", action="store_true", help="remove it and close its connections"
    )
    instead.add_argument(
        "--link",
        action="store_true",
        help="print a link instead, which signs a browser in as it: once, within two minutes",
    )
    arguments = parser.parse_args(argv)
    try:
        pod = local_pod.find()
        if pod is None:
            raise ConfigError("there is no pod here; start one with `mcpp up`")
        if not arguments.revoke:
            token = pod.add(arguments.name, multiple=arguments.multiple)
            print(links.ask(pod, token) if arguments.link else token)
        elif not pod.remove(arguments.name):
            raise ConfigError(f"there is no participant {arguments.name!r} here")
    except McppError as error:
        return _fail("token", error)
    return 0


def _run(
    command: str,
    path: Path,
    environment: Mapping[str, str],
    announce: Callable[[Gateway], None] = lambda gateway: None,
    session_key: bytes | None = None,
) -> int:
    def load() -> Config:
        # At a reload, too: a file that is just being written must not revoke everybody.
        config = configuration.load(path, environment)
        if not config.pods:
            raise ConfigError(f"{path}: has no pod; add [pods.NAME.participants.NAME]")
        return config

    try:
        config = load()
        log_format.configure(config.gateway.log_format)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(config, load, announce, session_key))
    except McppError as error:
        return _fail(command, error)
    return 0


def _fail(command: str, error: McppError) -> int:
    print(f"mcpp {command}: {log_format.escaped(error)}", file=sys.stderr)
    return _EXIT_USAGE


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _session_key(folder: Path) -> bytes:
    """Return the key that signs sessions, kept so that a restart signs nobody out."""
    path = folder / "sessions.key"
    with suppress(FileExistsError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
    return path.read_bytes()
