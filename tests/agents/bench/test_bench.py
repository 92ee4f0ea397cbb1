"""`mcpp bench` as a command, and the load generator's checks of what a server delivers."""

import asyncio
import re
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from mcpp_agents.bench.load import Load, LoadError
from tests.agents.processes import BOUND, MCPP
from tests.gateway.sockets import config_text, running, token

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def bench(port: int, *arguments: str, name: str = "alice") -> tuple[int, str]:
    """Run the command; return its exit code and its output on both streams."""
    where = ("--url", f"ws://127.0.0.1:{port}/ws?pod=demo", "--token", token(name))
    process = await asyncio.create_subprocess_exec(
        *(MCPP, "bench", "--seconds", "0.3", *where, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    async with asyncio.timeout(BOUND):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_it_measures_latency_within_the_allowed_rate() -> None:
    text = config_text({"alice": "multiple = true"}, messages_per_second=100, burst=40)
    async with running(text) as gateway:
        code, output = await bench(gateway.port, "--receivers", "5")
        assert code == 0, output
        assert re.search(r"at 90 envelopes a second: p50 [\d.]+ ms, p99 [\d.]+ ms", output)
        assert "not measured, since 100 envelopes a second are allowed" in output
        assert not gateway.pods["demo"].refused


async def test_it_measures_throughput_where_nothing_limits_it() -> None:
    text = config_text({"alice": "multiple = true"}, messages_per_second=0)
    async with running(text) as gateway:
        code, output = await bench(gateway.port, "--receivers", "5", "--rate", "50")
        assert code == 0, output
        found = re.search(r"throughput: ([\d,]+) deliveries a second, ([\d,]+) envelopes", output)
        assert found, output
        deliveries, envelopes = (int(each.replace(",", "")) for each in found.groups())
        assert deliveries == pytest.approx(5 * envelopes, abs=5)


@pytest.mark.parametrize(
    ("more", "arguments", "reason"),
    [
        ("", (), "several connections"),
        ("multiple = true", ("--size", "20"), "needs at least"),
        ("multiple = true", ("--size", "2000000"), "1048576 bytes"),
        ("multiple = true\ncapabilities = [{ kind = 'chat' }]", (), "none of your capabilities"),
    ],
)
async def test_a_failure_is_reported_in_one_line(
    more: str, arguments: tuple[str, ...], reason: str
) -> None:
    text = config_text({"alice": more}, messages_per_second=0)
    async with running(text) as gateway:
        code, output = await bench(gateway.port, *arguments)
        assert code == 1, output
        assert reason in output.splitlines()[-1]
        assert "Traceback" not in output


class ByteWire:
    """A minimal wire protocol: each message is one byte."""

    message_bytes = 1
    keepalive = b""
    mark: bytes | None = None
    separate_senders = False

    def greeting(self, index: int) -> bytes:
        return b"?"

    def is_greeted(self, answer: bytes) -> bool:
        return answer == b"!"

    def messages(self, sender: int, first: int, count: int) -> bytes:
        return b"x" * count


@contextmanager
def broadcast_server(relay: Callable[[bytes], bytes]) -> Iterator[tuple[str, int]]:
    """Run a server that broadcasts the result of `relay` for the bytes that a client sends."""
    clients: list[socket.socket] = []
    broadcasting = threading.Lock()

    class BroadcastHandler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            assert self.request.recv(1) == b"?"
            self.request.sendall(b"!")
            clients.append(self.request)
            with suppress(OSError):  # at the end, other clients may be closed already
                while data := self.request.recv(1 << 16):
                    with broadcasting:
                        for each in clients:
                            each.sendall(relay(data))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), BroadcastHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield ("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join(BOUND)


def test_every_delivery_is_counted_once() -> None:
    with (
        broadcast_server(bytes) as address,
        Load(address, ByteWire(), clients=3, senders=2) as load,
    ):
        found = load.measure_throughput(window=8, warm_up=0, seconds=0.1)
        assert found.deliveries > 0
        assert found.deliveries <= 3 * load.sent
        assert len(load.measure_latency(rate=200, seconds=0.1)) == 20


def test_a_server_that_sends_more_than_it_received_is_an_error() -> None:
    with (
        broadcast_server(lambda data: data + b"y") as address,
        Load(address, ByteWire(), clients=2, senders=1) as load,
        pytest.raises(LoadError, match="more messages arrived than were sent"),
    ):
        load.measure_throughput(window=4, warm_up=0, seconds=0.1)
