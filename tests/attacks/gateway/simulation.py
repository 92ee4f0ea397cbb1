"""A gateway without sockets whose clock is the processor time of the thread.

Latencies are then what the gateway itself takes, on a busy machine too. In a round everything
arrives at once: a chunk from each attacker, then the honest client's envelope. The event loop turns
until that is echoed, and all of this is the latency.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from mcpp_gateway import config
from mcpp_gateway.edge.admission import AdmissionControl
from mcpp_gateway.edge.connection import ServerConnection
from mcpp_gateway.edge.server import Gateway
from tests.attacks.gateway.process import configuration, envelope
from tests.gateway.edge.test_connection import RecordingSocket
from tests.gateway.harness import ManualLoop
from tests.gateway.harness import text as envelope_text
from tests.gateway.sockets import token

# Nothing sleeps here; this much of a second passes in each turn in which nothing is left to do.
IDLE_SECONDS = 0.001
# What `_reference_work` takes on the idle machine on which the goals were set.
REFERENCE_SECONDS = 0.00026


class FakeTime:
    """Processor time, plus the time in which the gateway would have waited."""

    def __init__(self) -> None:
        self.waited = 1e9

    def __call__(self) -> float:
        return self.waited + time.thread_time()


class AttackedLoop(ManualLoop):
    """An event loop by the simulation's clock."""

    def __init__(self, clock: FakeTime) -> None:
        super().__init__()
        self._simulated = clock

    def time(self) -> float:
        return self._simulated()


class PausableSocket(RecordingSocket):
    """A transport that knows whether it is read, and keeps the end of what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent = self.sent[-4096:] + bytes(data)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class SimulatedClient:
    """A connection whose bytes are handed to the gateway as asyncio would."""

    def __init__(self, gateway: Gateway, name: str, query: str = "") -> None:
        self.name = name
        self.socket = PausableSocket()
        self.connection = ServerConnection(gateway)
        self.connection.connection_made(self.socket)
        self.connection.data_received(
            f"GET /ws?{query} HTTP/1.1\r\nhost: localhost:8787\r\nupgrade: websocket\r\n"
            "connection: upgrade\r\nsec-websocket-version: 13\r\n"
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"authorization: Bearer {token(name)}\r\n\r\n".encode()
        )

    @property
    def reads(self) -> bool:
        """Whether the gateway reads from this connection now."""
        return not self.socket.paused

    def send(self, data: bytes) -> None:
        self.connection.data_received(data)


class Simulation:
    """A gateway, an honest client and attackers."""

    def __init__(self, text: str) -> None:
        self.clock = FakeTime()
        self.loop = AttackedLoop(self.clock)
        parsed = config.parse(text, {})
        self.gateway = Gateway(parsed, self.loop)
        self.gateway.hub.clock = self.gateway.quota.budget.clock = self.clock
        self.gateway.admission = AdmissionControl(parsed, 8787)
        self.honest = SimulatedClient(self.gateway, "alice")
        self.slowness = 1.0  # how many times the reference a piece of work takes, at worst
        self._number = 0

    def join(self, name: str, query: str = "") -> SimulatedClient:
        client = SimulatedClient(self.gateway, name, query)
        self.loop.turn()
        return client

    def settle(self, client: SimulatedClient) -> None:
        """Let time pass until a client is read again."""
        while not client.reads:
            self.clock.waited += 0.01
            self.loop.turn()

    def latencies(
        self,
        attackers: Sequence[SimulatedClient],
        chunk: Callable[[int, int], bytes],
        *,
        seconds: float,
        pause_seconds: float = 0.005,
    ) -> list[float]:
        """Attack for some seconds of the gateway's time; return the honest client's latencies.

        `chunk` returns what an attacker sends next, by its number and that of the round. An
        attacker whose connection is not read sends nothing, as TCP would have it.
        """
        found: list[float] = []
        until, number = self.clock() + seconds, 0
        next_second = self.clock() + 1
        while self.clock() < until:
            number += 1
            if self.clock() > next_second:
                self._measure_slowness()
                next_second += 1
                self.gateway.quota.start_second()
            chunks = [(each, chunk(i, number)) for i, each in enumerate(attackers) if each.reads]
            began = self.clock()
            for attacker, data in chunks:
                attacker.send(data)
            found.append(self.echo(began))
            resume_at = self.clock() + pause_seconds
            while self.clock() < resume_at:
                self.clock.waited += IDLE_SECONDS
                self.loop.turn()
        self._measure_slowness()
        return found

    def _measure_slowness(self) -> None:
        """Where processors are shared or slower, the same work takes more processor time."""
        took = sorted(_reference_work() for _ in range(5))
        self.slowness = max(self.slowness, took[2] / REFERENCE_SECONDS)

    def echo(self, began: float) -> float:
        """Send an envelope of the honest client; return the time since `began` until its echo."""
        self._number += 1
        id = f"honest-{self._number}"
        self.honest.socket.sent = b""
        self.honest.send(envelope("alice", id))
        while f'"id":"{id}"'.encode() not in self.honest.socket.sent:
            self.loop.turn()
            assert self.clock() - began < 30, "the honest client is not served"
        return self.clock() - began


_REFERENCE = envelope_text("m-1", "alice", "chat", {"text": "some words " * 10})


def _reference_work() -> float:
    began = time.thread_time()
    for _ in range(100):
        json.loads(_REFERENCE)
    return time.thread_time() - began


@contextmanager
def simulation(
    attackers: int, more: dict[str, str] | None = None, **limits: float
) -> Iterator[Simulation]:
    made = Simulation(configuration(attackers, more=more, **limits))
    gc.collect()
    gc.freeze()  # what else the test's process holds is not the gateway's
    try:
        yield made
    finally:
        gc.unfreeze()
        made.loop.close()
