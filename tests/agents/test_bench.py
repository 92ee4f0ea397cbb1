"""`mcpp bench` as people run it, and clients that notice when a server does not keep its word."""

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
    """Run the command; return its exit code and what it writes, on either stream."""
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
        code, said = await bench(gateway.port, "--receivers", "5")
        assert code == 0, said
        assert re.search(r"at 90 envelopes a second: p50 [\d.]+ ms, p99 [\d.]+ ms", said)
        assert "not measured, since 100 envelopes a second are allowed" in said
        assert not gateway.pods["demo"].refused


async def test_it_measures_throughput_where_nothing_limits_it() -> None:
    text = config_text({"alice": "multiple = true"}, messages_per_second=0)
    async with running(text) as gateway:
        code, said = await bench(gateway.port, "--receivers", "5", "--rate", "50")
        assert code == 0, said
        found = re.search(r"throughput: ([\d,]+) deliveries a second, ([\d,]+) envelopes", said)
        assert found, said
        deliveries, envelopes = (int(each.replace(",", "")) for each in found.groups())
        assert deliveries == pytest.approx(5 * envelopes, abs=5)


@pytest.mark.parametrize(
    ("more", "arguments", "reason"),
    [
        ("", (), "several connections"),
        ("multiple = true", ("--size", "20"), "takes at least"),
        ("multiple = true", ("--size", "2000000"), "1048576 bytes"),
        ("multiple = true\ncapabilities = [{ kind = 'chat' }]", (), "none of your capabilities"),
    ],
)
async def test_what_cannot_be_measured_is_told_in_one_line(
    more: str, arguments: tuple[str, ...], reason: str
) -> None:
    text = config_text({"alice": more}, messages_per_second=0)
    async with running(text) as gateway:
        code, said = await bench(gateway.port, *arguments)
        assert code == 1, said
        assert reason in said.splitlines()[-1]
        assert "Traceback" not in said


class Bytes:
    """The plainest of wires: single bytes, and no greeting."""

    message_bytes = 1
    pulse = b""
    mark: bytes | None = None
    senders_apart = False

    def greeting(self, index: int) -> bytes:
        return b"?"

    def is_greeted(self, answer: bytes) -> bool:
        return answer == b"!"

    def messages(self, sender: int, first: int, count: int) -> bytes:
        return b"x" * count


@contextmanager
def server(relay: Callable[[bytes], bytes]) -> Iterator[tuple[str, int]]:
    """Run a server that greets, and sends everybody what `relay` makes of what somebody says."""
    everyone: list[socket.socket] = []
    one_at_a_time = threading.Lock()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            assert self.request.recv(1) == b"?"
            self.request.sendall(b"!")
            everyone.append(self.request)
            with suppress(OSError):  # at the end, the others may be gone already
                while data := self.request.recv(1 << 16):
                    with one_at_a_time:
                        for each in everyone:
                            each.sendall(relay(data))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        try:
            yield ("127.0.0.1", found.server_address[1])
        finally:
            found.shutdown()
            thread.join(BOUND)


def test_every_delivery_is_counted_once() -> None:
    with server(bytes) as address, Load(address, Bytes(), clients=3, senders=2) as load:
        found = load.flood(window=8, warm_up=0, seconds=0.1)
        assert found.deliveries > 0
        assert found.deliveries <= 3 * load.sent
        assert len(load.pace(rate=200, seconds=0.1)) == 20


def test_a_server_that_says_more_than_it_was_told_is_found_out() -> None:
    with (
        server(lambda data: data + b"y") as address,
        Load(address, Bytes(), clients=2, senders=1) as load,
        pytest.raises(LoadError, match="more arrived"),
    ):
        load.flood(window=4, warm_up=0, seconds=0.1)
