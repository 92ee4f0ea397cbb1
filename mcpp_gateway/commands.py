"""The commands `mcpp gateway` and `mcpp up`."""

import argparse
import asyncio
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from mcpp.client import local_pod
from mcpp.errors import McppError
from mcpp_gateway import config as configuration
from mcpp_gateway import demo, links, log_format, report
from mcpp_gateway.cluster.local_cluster import LocalCluster, check_ports
from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.config.warnings import of_signing_keys
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.handover import report_failure
from mcpp_gateway.health import UnhealthyError, check_health
from mcpp_gateway.private_files import kept_secret
from mcpp_gateway.process import read_files, serve

_EXIT_USAGE: Final = 2
_SESSION_KEY_BYTES: Final = 32
# The log of a local pod, unless its configuration has a section [log]: durable, in `.mcpp/log`.
_LOCAL_LOG: Final = {"kind": "file", "path": "log"}


def gateway(argv: list[str]) -> int:
    """Run the gateway with a configuration file."""
    parser = argparse.ArgumentParser(
        prog="mcpp gateway",
        description="Run a gateway with a configuration file. SIGHUP reloads participants, tokens, "
        "limits and certificates; SIGUSR2 hands over to a new process; SIGTERM closes all "
        "connections and stops.",
    )
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="configuration file (TOML)"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--check", action="store_true", help="check the file, print what it means, and exit"
    )
    instead.add_argument(
        "--health",
        action="store_true",
        help="ask the gateway that runs with the file whether it admits participants, and exit",
    )
    parser.add_argument("--host", help="address to listen on, instead of the file's")
    parser.add_argument(
        "--port", type=partial(_port, lowest=0), help="port to listen on, instead of the file's"
    )
    arguments = parser.parse_args(argv)
    environment = dict(os.environ)
    if arguments.host is not None:
        environment["MCPP_GATEWAY__HOST"] = arguments.host
    if arguments.port is not None:
        environment["MCPP_GATEWAY__PORT"] = str(arguments.port)
    if arguments.check:
        return _check(arguments.config, environment)
    if arguments.health:
        return _health(arguments.config, environment)
    return _run("gateway", arguments.config, environment)


def _check(path: Path, environment: Mapping[str, str]) -> int:
    try:
        config = _with_pods(configuration.load(path, environment), path)
        read_files(config)
        report.check_folders(config)
    except McppError as error:
        return _fail("gateway", error)
    print("\n".join(map(log_format.escape, report.describe(config))))
    return 0


def _health(path: Path, environment: Mapping[str, str]) -> int:
    try:
        check_health(configuration.load(path, environment))
    except UnhealthyError as error:
        print(f"mcpp gateway: {log_format.escape(error)}", file=sys.stderr)
        return 1
    except McppError as error:
        return _fail("gateway", error)
    print("ok")
    return 0


def up(argv: list[str]) -> int:
    """Run a local pod in this folder: gateway, tokens and inspector."""
    parser = argparse.ArgumentParser(
        prog="mcpp up",
        description="Run a local pod in this folder. Tokens and settings are created on first use "
        "in .mcpp/, where agents and the other commands find them.",
    )
    parser.add_argument("--demo", action="store_true", help="also start the demo agents")
    parser.add_argument(
        "--port",
        type=_port,
        default=os.environ.get("MCPP_GATEWAY__PORT"),
        help="port to listen on; it is saved (default: the saved port, 8787 for a new pod)",
    )
    parser.add_argument(
        "--cluster",
        type=int,
        metavar="N",
        help="run N gateways (1, 3 or 5) with as many NATS servers that keep the log",
    )
    arguments = parser.parse_args(argv)
    try:
        pod = local_pod.create()
        person = local_pod.person()
        # The agents of the demo report all day, whether or not a person says something.
        pod.add(person, multiple=True, is_person=not arguments.demo)
        with pod.running() as loading:
            if arguments.port is not None:
                if arguments.cluster is not None:  # before it is saved
                    check_ports(arguments.port, arguments.cluster)
                pod.set_port(arguments.port)
            agents = demo.agents(pod) if arguments.demo else nullcontext(_stop_nothing)
            cluster: LocalCluster | None = None

            async def announce(gateway: Gateway) -> None:
                address = links.link(pod, await gateway.invite(pod.name, person))
                print(f"Pod {pod.name!r} is running. You are {person!r}.")
                print(f"  inspector  {address}  (works once, for two minutes)")
                print(f"             new link: mcpp token {person} --link")
                print(f"  agents     {pod.url}")
                if cluster is not None:
                    print(
                        f"             or, to outlive one gateway: MCPP_URL={cluster.urls(pod.url)}"
                    )
                print("Stop with Ctrl-C.", flush=True)

            key = _session_key(pod.folder)
            if arguments.cluster is None:
                with agents as stop:
                    return _run(
                        "up", pod.path, os.environ, announce, key, loading, _LOCAL_LOG, stop
                    )
            port = configuration.load(pod.path).gateway.port
            cluster = local = LocalCluster(pod.path, port, arguments.cluster, os.environ)

            @contextmanager
            def loading_everywhere() -> Iterator[None]:
                with loading():
                    yield
                local.reload()

            with local.running(), agents as stop:
                environment = local.environment
                return _run(
                    "up", pod.path, environment, announce, key, loading_everywhere, stopping=stop
                )
    except McppError as error:
        return _fail("up", error)


def local_gateway(path: str, port: int) -> int:
    """Run one more gateway of a local pod, as a process of its own."""
    environment = {**os.environ, "MCPP_GATEWAY__PORT": str(port)}
    return _run("up", Path(path), environment)


def _port(text: str, lowest: int = 1) -> int:
    """Return a port number; 0 is any that is free, which agents could not know."""
    if not text.isdecimal() or not lowest <= int(text) < 65_536:
        raise argparse.ArgumentTypeError(f"must be {lowest} to 65535, not {text!r}")
    return int(text)


async def _say_nothing(gateway: Gateway) -> None:
    """Print nothing: the log says that the gateway listens."""


def _stop_nothing() -> None:
    """Do nothing: no agents run."""


def _run(
    command: str,
    path: Path,
    environment: Mapping[str, str],
    announce: Callable[[Gateway], Awaitable[None]] = _say_nothing,
    session_key: bytes | None = None,
    loading: local_pod.Loading = nullcontext,
    log: Mapping[str, Any] | None = None,
    stopping: Callable[[], None] = _stop_nothing,
) -> int:
    def load() -> Config:
        # The gateway applies what this returns before it reads from a connection again.
        with loading():
            # Checked on reload too: a file that is being written must not revoke all tokens.
            config = configuration.load(path, environment, log)
            if command == "up" and config.token_folder is None:
                config = local_tokens(config, path.parent)
            return _with_pods(config, path)

    try:
        config = load()
        log_format.configure(config.gateway.log_format)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(config, load, announce, session_key, stopping=stopping))
    except McppError as error:
        return _fail(command, error)
    return 0


def _with_pods(config: Config, path: Path) -> Config:
    if not config.pods:
        raise ConfigError(f"{path}: no pods; add [pods.NAME.participants.NAME]")
    return config


def local_tokens(config: Config, folder: Path) -> Config:
    """Return a local pod's configuration with its folder of signed tokens, if there is one."""
    tokens = folder / "tokens"
    if not tokens.exists():
        return config
    warnings = (*config.warnings, *of_signing_keys(tokens))
    return msgspec.structs.replace(config, token_folder=str(tokens), warnings=warnings)


def _fail(command: str, error: McppError) -> int:
    if not report_failure(str(error)):  # otherwise the old process logs the reason
        print(f"mcpp {command}: {log_format.escape(error)}", file=sys.stderr)
    return _EXIT_USAGE


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _session_key(folder: Path) -> bytes:
    """Return the key that signs session tokens, stored so that sessions survive a restart."""
    return kept_secret(folder / "sessions.key", secrets.token_bytes(_SESSION_KEY_BYTES))
