"""Servers that the gateway is compared with, started here and pinned to one core.

A server that is not installed is reported as absent.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from time import monotonic, sleep

from mcpp_agents.bench.load import WireProtocol

SERVER_CORE = 0
CLIENT_CORE = 1
FOLDER = Path(__file__).parent.parent / ".bench-peers"  # what npm installs

_WEBSOCKETS = """
import asyncio, sys
from websockets.asyncio.server import broadcast, serve

async def handle(connection):
    async for message in connection:
        broadcast(server.connections, message)

async def main():
    global server
    async with serve(handle, "127.0.0.1", int(sys.argv[1]), ping_interval=None) as server:
        await server.serve_forever()

asyncio.run(main())
"""

_NODE_WS = """
const { WebSocketServer } = require("ws");
const server = new WebSocketServer({ host: "127.0.0.1", port: Number(process.argv[1]) });
server.on("connection", (socket) => {
  socket.on("message", (data) => {
    for (const client of server.clients) client.send(data, { binary: false });
  });
});
"""


@dataclass(frozen=True)
class PeerServer:
    """A running server."""

    version: str
    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of the server, over all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class PeerUnavailableError(Exception):
    """A server is not installed; the message says how to install it."""


@contextmanager
def websockets_broadcast() -> Iterator[PeerServer]:
    """Run a server with the `websockets` library, as in its documentation."""
    command = [sys.executable, "-c", _WEBSOCKETS, "{port}"]
    with _run(metadata.version("websockets"), command) as server:
        yield server


@contextmanager
def node_ws() -> Iterator[PeerServer]:
    """Run a server with Node's `ws`."""
    node = _find("node", "Node.js")
    modules = FOLDER / "node_modules"
    if not (modules / "ws").is_dir():
        raise PeerUnavailableError("Node's ws is not installed: make setup-bench")
    version = json.loads((modules / "ws" / "package.json").read_text())["version"]
    environ = os.environ | {"NODE_PATH": str(modules)}
    command = [node, "-e", _NODE_WS, "{port}"]
    with _run(f"{version} on Node {_version(node)}", command, environ) as server:
        yield server


@contextmanager
def nats() -> Iterator[PeerServer]:
    """Run nats-server."""
    beside = Path(sys.executable).parent / "nats-server"
    program = str(beside) if beside.exists() else _find("nats-server", "make setup-bench")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        # The clients do not answer pings.
        file.write('ping_interval: "1h"\nmax_payload: 2MB\n')
        file.flush()
        command = [program, "-a", "127.0.0.1", "-p", "{port}", "-c", file.name]
        with _run(_version(program), command) as server:
            yield server


@contextmanager
def redis() -> Iterator[PeerServer]:
    """Run Redis."""
    program = _find("redis-server", "make setup-bench")
    options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with _run(_version(program), [program, "--port", "{port}", *options]) as server:
        yield server


class WebSocketWire:
    """Clients of a WebSocket server that relays every message."""

    mark: bytes | None = None
    keepalive = b""
    separate_senders = False

    def __init__(self, port: int, gateway: WireProtocol) -> None:
        self.message_bytes = gateway.message_bytes
        self.messages = gateway.messages
        self._request = (
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n"
        ).encode()

    def greeting(self, index: int) -> bytes:
        return self._request

    def is_greeted(self, answer: bytes) -> bool:
        return b"\r\n\r\n" in answer


class _BrokerWire:
    """Clients of a broker to which a sender publishes the same bytes each time."""

    mark: bytes | None = None
    keepalive = b""
    _message: bytes

    def messages(self, sender: int, first: int, count: int) -> bytes:
        return self._message * count


class NatsWire(_BrokerWire):
    """Clients of nats-server, which subscribe and publish on the same connection."""

    separate_senders = False

    def __init__(self, size: int) -> None:
        payload = b"x" * size
        self._message = b"PUB bench %d\r\n%b\r\n" % (size, payload)
        self.message_bytes = len(b"MSG bench 1 %d\r\n%b\r\n" % (size, payload))

    def greeting(self, index: int) -> bytes:
        return b'CONNECT {"verbose":false,"pedantic":false,"echo":true}\r\nSUB bench 1\r\nPING\r\n'

    def is_greeted(self, answer: bytes) -> bool:
        return answer.endswith(b"PONG\r\n")


class RedisWire(_BrokerWire):
    """Clients of Redis; senders use a second connection, since a subscriber cannot publish."""

    separate_senders = True

    def __init__(self, size: int) -> None:
        bulk = b"$%d\r\n%b\r\n" % (size, b"x" * size)
        self._message = b"*3\r\n$7\r\nPUBLISH\r\n$5\r\nbench\r\n" + bulk
        self.message_bytes = len(b"*3\r\n$7\r\nmessage\r\n$5\r\nbench\r\n" + bulk)

    def greeting(self, index: int) -> bytes:
        return b"SUBSCRIBE bench\r\n"

    def is_greeted(self, answer: bytes) -> bool:
        return answer.endswith(b":1\r\n")


def pin(pid: int, core: int) -> None:
    """Pin a process to one core, if there are several."""
    if (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(pid, {core})


@contextmanager
def _run(
    version: str, command: list[str], environ: dict[str, str] | None = None
) -> Iterator[PeerServer]:
    port = free_port()
    process = subprocess.Popen(
        [part.replace("{port}", str(port)) for part in command],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Before the program starts: Go chooses its number of threads by it.
        preexec_fn=lambda: pin(0, SERVER_CORE),
    )
    try:
        _wait_for(port, process)
        yield PeerServer(version, port, process.pid)
    finally:
        process.terminate()
        process.wait()


def _find(program: str, how: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise PeerUnavailableError(f"{program} is not installed: {how}")
    return found


def _version(program: str) -> str:
    command = [program, "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+(\.\d+)+", output)
    return found[0] if found else output.strip()


def free_port() -> int:
    """Return a port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if process.poll() is not None or monotonic() > until:
                raise PeerUnavailableError(f"{process.args!r} did not start") from None
            sleep(0.02)
        else:
            return
