"""How long a participant waits before it reconnects."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import anyio
import pytest

from mcpp import encode
from mcpp.client.connection import Connection, Options, backoff
from mcpp.client.pod import Pod
from mcpp.client.tasks import background
from mcpp.errors import BusyError, ClosedError
from mcpp.session.resumption import Gap, Join
from mcpp.session.session import ClientSession
from mcpp.transports.several import SeveralGateways
from mcpp.transports.transport import ABNORMAL, Connector, TransportClosed
from tests.mcpp.session.test_session import chat, welcome


@dataclass
class ShortTransport:
    """A transport that delivers a welcome and breaks after some seconds of its own clock."""

    clock: "Clock"
    seconds: float
    code: int
    texts: list[bytes] = field(default_factory=lambda: [welcome()])

    async def receive(self) -> Sequence[bytes]:
        if self.texts:
            return [self.texts.pop()]
        self.clock.now += self.seconds
        raise TransportClosed(self.code)

    async def send(self, texts: Sequence[bytes]) -> None: ...
    async def keep_alive(self) -> None: ...
    async def aclose(self) -> None: ...


@dataclass
class Clock:
    """A clock, and transports that last for given times; the last one is closed for good."""

    holds: list[float]
    now: float = 0.0
    brings: bool = False  # an envelope on each transport
    address: str = "here"

    async def open(self, join: Join) -> ShortTransport:
        seconds = self.holds.pop(0)
        line = ShortTransport(self, seconds, ABNORMAL if self.holds else 4500)
        if self.brings:
            line.texts.insert(0, encode(chat()))
        return line


@pytest.mark.anyio
@pytest.mark.rule("P-12")
async def test_only_a_lasting_connection_resets_the_backoff() -> None:
    expected = [0, 1, 2, 3, 0, 1]
    attempts: list[int] = []

    def wait(attempt: int) -> float:
        attempts.append(attempt)
        return 0.001

    lines = Clock([0.0, 0.0, 0.0, 0.0005, 1.0, 0.0, 0.0])
    connection = Connection(ClientSession("me"), lines, Options(backoff=wait), lambda: lines.now)
    pod = Pod(connection)
    async with background() as tasks:
        await tasks.start(connection.run, tasks)
        with anyio.fail_after(5):
            for _ in expected:
                assert isinstance(await pod.next(), Gap)
            with pytest.raises(ClosedError):
                await pod.next()
    assert attempts == expected


async def seconds_until_closed(connector: Connector, clock: Clock, delay: float) -> float:
    connection = Connection(
        ClientSession("me"), connector, Options(backoff=lambda attempt: delay), lambda: clock.now
    )
    began = anyio.current_time()
    async with background() as tasks:
        await tasks.start(connection.run, tasks)
        pod = Pod(connection)
        with anyio.fail_after(30):
            assert isinstance(await pod.next(), Gap)
            with pytest.raises(ClosedError):
                await pod.next()
    return anyio.current_time() - began


@pytest.mark.anyio
@pytest.mark.rule("P-12")
async def test_a_participant_of_several_gateways_moves_on_soon() -> None:
    clock = Clock([1.0, 0.0])
    assert await seconds_until_closed(SeveralGateways([clock, clock]), clock, 8.0) < 8.0


@pytest.mark.anyio
@pytest.mark.rule("P-12")
@pytest.mark.parametrize(("lasts", "gateways"), [(0.9, 2), (1.0, 1)])
async def test_a_short_connection_and_an_only_gateway_are_not_left_sooner(
    lasts: float, gateways: int
) -> None:
    clock = Clock([lasts, 0.0])
    connector = SeveralGateways([clock, clock]) if gateways > 1 else clock
    assert await seconds_until_closed(connector, clock, 0.3) >= 0.3


@dataclass
class BusyGateway:
    """A gateway that lets us in, and then not for two attempts. Owns what happened."""

    events: list[str] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    address: str = "here"

    async def open(self, join: Join) -> "BusyGateway":
        if self.events and self.events[-2:] != ["busy", "busy"]:
            self.events.append("busy")
            raise BusyError(self.address, "429 joined too often", 0)
        self.events.append("open")
        self.texts = [welcome(resumed=join.after is not None)]
        if join.after is None:
            self.texts += [encode(chat(text)) for text in ("1", "2")]
        return self

    async def receive(self) -> Sequence[bytes]:
        if not self.texts:
            await anyio.sleep_forever()
        return [self.texts.pop(0)]

    async def send(self, texts: Sequence[bytes]) -> None: ...
    async def keep_alive(self) -> None: ...
    async def aclose(self) -> None:
        self.events.append("close")


@pytest.mark.anyio
@pytest.mark.rule("P-11", "P-12")
async def test_retry_after_is_respected_without_leaving_meanwhile() -> None:
    attempts: list[int] = []

    def wait(attempt: int) -> float:
        attempts.append(attempt)
        return 0.0

    gateway = BusyGateway()
    connection = Connection(ClientSession("me", capacity=1), gateway, Options(backoff=wait))
    pod = Pod(connection)
    async with background() as tasks:
        await tasks.start(connection.run, tasks)
        with anyio.fail_after(5):
            await pod.next()
            while gateway.events[-1] != "close":
                await anyio.lowlevel.checkpoint()
    assert gateway.events[:5] == ["open", "busy", "busy", "open", "close"]
    assert attempts == [0, 0]


@pytest.mark.anyio
@pytest.mark.rule("P-12")
async def test_a_connection_that_delivered_something_resets_the_backoff() -> None:
    attempts: list[int] = []

    def wait(attempt: int) -> float:
        attempts.append(attempt)
        return 0.001

    lines = Clock([0.0] * 4, brings=True)
    connection = Connection(ClientSession("me"), lines, Options(backoff=wait), lambda: lines.now)
    async with background() as tasks:
        await tasks.start(connection.run, tasks)
        with anyio.fail_after(5):
            while connection.failure is None:
                await anyio.lowlevel.checkpoint()
    assert attempts == [0, 0, 0]


@pytest.mark.rule("P-12")
def test_the_backoff_is_bounded_and_has_jitter() -> None:
    waits = [[backoff(attempt) for _ in range(200)] for attempt in range(12)]
    for shorter, longer in pairwise(waits[:7]):
        assert max(shorter) <= max(longer) * 1.001
    assert all(0.05 <= wait <= 10 for row in waits for wait in row)
    assert all(len(set(row)) > 190 for row in waits)


def test_many_attempts_do_not_overflow() -> None:
    assert 5 <= backoff(1_000_000) <= 10
