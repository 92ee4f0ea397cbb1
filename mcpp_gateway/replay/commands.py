"""The command `mcpp replay`."""

import argparse
import asyncio
import json
import secrets
import sys
from pathlib import Path
from typing import Final

from mcpp.errors import McppError
from mcpp_gateway import config as configuration
from mcpp_gateway.config import Config
from mcpp_gateway.core.replay.pod import MAX_SPEED, MIN_SPEED
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.log_format import configure, escape
from mcpp_gateway.process import serve
from mcpp_gateway.replay.recording import LogRecording, open_recording
from mcpp_gateway.replay.server import ReplayGateway

VIEWER: Final = "viewer"
_EXIT_FAILURE: Final = 1
_MAX_PORT: Final = 65_535


def main(argv: list[str]) -> int:
    """Serve a recorded stretch of a log as a read-only pod."""
    arguments = _parser().parse_args(argv)
    try:
        bounds = (arguments.first, arguments.last)
        with open_recording(arguments.source, arguments.pod, *bounds) as recording:
            token = arguments.token or secrets.token_urlsafe(24)
            config = replay_config(recording.name, arguments.port, token)
            _serve(recording, config, arguments.speed, token)
    except McppError as error:
        return _fail(error)
    except OSError as error:
        named = "" if error.filename is None else f"{error.filename}: "
        return _fail(f"{named}{error.strerror or error}")
    return 0


def replay_config(pod: str, port: int, token: str) -> Config:
    """Return the configuration of a gateway with one pod, which the viewer may join."""
    participant = f'[pods."{pod}".participants.{VIEWER}]'
    lines = ["[gateway]", f"port = {port}", participant, f"token = {json.dumps(token)}"]
    lines += ["multiple = true", "capabilities = []"]
    return configuration.parse("\n".join(lines), {})


def _serve(recording: LogRecording, config: Config, speed: float, token: str) -> None:
    (name,) = config.pods

    def create(config: Config, loop: asyncio.AbstractEventLoop, key: bytes | None) -> Gateway:
        return ReplayGateway(config, loop, recording, speed)

    async def announce(gateway: Gateway) -> None:
        entries = recording.end - recording.start
        address = f"localhost:{gateway.port}"
        print(f"Replaying {name!r}: {entries} entries at {speed:g} times the recorded pace.")
        code = await gateway.invite(name, VIEWER)
        print(f"  inspector  http://{address}/#{code}  (works once, for two minutes)")
        print(f"  agents     ws://{address}/ws?pod={name}, token {token}")
        print("It begins when the first participant joins. Stop with Ctrl-C.", flush=True)

    configure(config.gateway.log_format)
    with asyncio.Runner() as runner:
        runner.run(serve(config, lambda: config, announce, create=create))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp replay",
        description="Serve a recorded stretch of a log as a read-only pod: those who join it see "
        "the entries arrive again. The log is copied first, and a gateway may be running on it.",
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="FILE|POD",
        help="a file of `mcpp log export`, the folder of a pod's log, or the gateway's log path",
    )
    parser.add_argument("--pod", help="the pod, if the log path holds several")
    parser.add_argument("--from", dest="first", metavar="ID", help="the first envelope")
    parser.add_argument("--to", dest="last", metavar="ID", help="the last envelope")
    parser.add_argument(
        "--speed", type=_speed, default=1.0, help="1 is the recorded pace (default: 1)"
    )
    parser.add_argument("--port", type=_port, default=0, help="port to listen on (default: any)")
    parser.add_argument("--token", help=f"token of the participant {VIEWER!r} (default: random)")
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to {_MAX_PORT}, not {text!r}")
    return int(text)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not MIN_SPEED <= speed <= MAX_SPEED:
        reason = f"must be a number from {MIN_SPEED} to {MAX_SPEED:g}, not {text!r}"
        raise argparse.ArgumentTypeError(reason)
    return speed


def _fail(error: object) -> int:
    print(f"mcpp replay: {escape(error)}", file=sys.stderr)
    return _EXIT_FAILURE
