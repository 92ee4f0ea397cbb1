"""The hub: batches per tick, with everything in its place."""

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from mcpp import filters
from mcpp.filters import Filter, everything
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings, PodCore
from mcpp_gateway.edge.frames import decode_texts
from mcpp_gateway.edge.hub import CATCH_UP_BYTES, Hub, Peer
from mcpp_gateway.edge.read_quota import ReadQuota
from tests.gateway.stage import text


class Line:
    """A connection that records what it is given. As asyncio's transports do, it reports being
    full once, and not again until it has been read."""

    def __init__(self, on_full: Callable[["Line"], None]) -> None:
        self.writes: list[bytes] = []
        self.waiting = 0
        self.reads = True
        self.full = False
        self.closed: int | None = None
        self._outbox = 0
        self._on_full = on_full

    def write(self, data: bytes) -> None:
        assert self.closed is None
        self.writes.append(data)
        if not self.reads:
            self.waiting += len(data)
            if self.waiting > self._outbox and not self.full:
                self.full = True
                self._on_full(self)

    def close(self, code: int, reason: str) -> None:
        self.closed = code

    def set_outbox(self, max_bytes: int) -> None:
        self._outbox = max_bytes

    @property
    def texts(self) -> list[bytes]:
        return decode_texts(b"".join(self.writes))


class Loop(asyncio.SelectorEventLoop):
    """An event loop that is turned by hand."""

    def turn(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()


class House:
    """A hub with one pod and recording lines."""

    def __init__(self, loop: Loop, *ids: str, **limits: float) -> None:
        numbers = count()
        self.loop = loop
        self.now = 1000.0
        self.quota = ReadQuota(loop, tick_bytes=1 << 20)
        self.hub = Hub(loop, lambda: self.now, self.quota)
        allowed = {"messages_per_second": 0, "context_messages_per_second": 0, **limits}
        self.pod = PodCore(
            "house",
            [
                ParticipantSettings(id, Capabilities([{"kind": "*"}]), id.startswith("m"))
                for id in ids
            ],
            PodLimits(**allowed),  # type: ignore[arg-type]
            new_id=lambda: f"sys-{next(numbers)}",
        )
        self.peers: dict[Line, Peer] = {}

    def join(
        self,
        id: str,
        *,
        filter: Filter = everything,
        after: str | None = None,
        last: int | None = None,
        reads: bool = True,
    ) -> Line:
        line = Line(self._on_outbox_full)
        line.reads = reads
        self.peers[line] = self.hub.join(self.pod, id, line, filter=filter, after=after, last=last)
        return line

    def _on_outbox_full(self, line: Line) -> None:
        if line in self.peers:  # as a connection: only once it has joined
            self.hub.on_outbox_full(self.peers[line])

    def send(self, line: Line, id: str, kind: str = "chat", **members: object) -> None:
        peer = self.peers[line]
        sender = peer.session.member.standing.id
        self.hub.receive(peer, text(id, sender, kind, **members), self.now)

    def drain(self, line: Line) -> None:
        """Let a line read all that waits, and report that as a transport would."""
        line.waiting = 0
        if line.full:
            line.full = False
            self.hub.catch_up(self.peers[line])


def ids(line: Line) -> list[str]:
    envelopes = [json.loads(each) for each in line.texts]
    return [each.get("correlation_id", each["id"]) for each in envelopes]


def own(line: Line) -> list[str]:
    return [id for id in ids(line) if not id.startswith("sys")]


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.mark.rule("G-18", "G-40")
def test_a_tick_is_one_write_and_the_same_bytes_for_everyone_with_the_same_filter(
    loop: Loop,
) -> None:
    house = House(loop, "a", "b", "c")
    a, b, c = house.join("a"), house.join("b"), house.join("c")
    loop.turn()
    before = [len(line.writes) for line in (a, b, c)]
    for i in range(50):
        house.send(a, f"{i}")
    loop.turn()
    assert [len(line.writes) for line in (a, b, c)] == [count + 1 for count in before]
    assert a.writes[-1] is b.writes[-1] is c.writes[-1]
    assert own(b) == [f"{i}" for i in range(50)]


@pytest.mark.rule("G-30", "G-17")
def test_direct_texts_are_woven_in_where_they_were_caused(loop: Loop) -> None:
    house = House(loop, "a", "b")
    a, b = house.join("a"), house.join("b")
    loop.turn()
    house.send(a, "1")
    house.send(b, "bad", "system/x")
    house.send(a, "2")
    house.send(b, "2")
    house.send(a, "3")
    house.send(b, "ask", "pod/filter", payload={"filter": {"kind": "rare"}})
    house.send(a, "4")
    house.send(a, "5", "rare")
    house.send(b, "ask2", "pod/filter", payload={"filter": {"all": []}})
    house.send(a, "6")
    loop.turn()
    house.send(a, "7")
    loop.turn()
    assert own(b) == ["1", "bad", "2", "2", "3", "ask", "5", "ask2", "6", "7"]
    assert own(a) == ["1", "2", "3", "4", "5", "6", "7"]


@pytest.mark.rule("F-09")
def test_what_passes_anyway_stands_in_order_among_what_passes_the_filter(loop: Loop) -> None:
    house = House(loop, "a", "b")
    a, b = house.join("a"), house.join("b", filter=filters.kind("rare"))
    loop.turn()
    for i in range(12):
        kind = "rare" if i % 3 == 0 else "often"
        house.send(a, str(i), kind, **({"to": ["b"]} if i % 3 == 1 else {}))
    loop.turn()
    assert own(b) == [str(i) for i in range(12) if i % 3 != 2]


@pytest.mark.rule("G-18")
def test_a_connection_that_comes_in_the_middle_of_a_tick_gets_the_rest_of_it(loop: Loop) -> None:
    house = House(loop, "a", "b")
    a = house.join("a")
    loop.turn()
    house.send(a, "1")
    b = house.join("b")
    house.send(a, "2")
    loop.turn()
    assert own(b) == ["2"]
    assert own(a) == ["1", "2"]


@pytest.mark.rule("G-34")
def test_a_replaced_connection_first_gets_what_it_was_owed(loop: Loop) -> None:
    house = House(loop, "a", "b")
    a, b = house.join("a"), house.join("b")
    loop.turn()
    house.send(a, "1")
    newer = house.join("b", last=1)
    house.send(a, "2")
    loop.turn()
    assert b.closed == 4500
    assert own(b) == ["1"]
    assert own(newer) == ["1", "2"]


@pytest.mark.rule("G-38", "G-31")
def test_a_stopped_reader_is_closed_and_the_others_notice_only_that_it_left(loop: Loop) -> None:
    house = House(loop, "a", "b", "c", outbox_bytes=5000)
    a, b, c = house.join("a"), house.join("b"), house.join("c")
    loop.turn()
    b.reads = False
    for i in range(20):
        house.send(a, str(i), payload="x" * 500)
        loop.turn()
    loop.turn()
    assert b.closed == 4001
    assert own(a) == own(c) == [str(i) for i in range(20)]
    assert house.pod.participants == ("a", "c")
    missed = own(b)
    again = house.join("b", after=missed[-1])
    assert missed + own(again) == own(a)


@pytest.mark.rule("G-38", "G-15")
def test_a_reader_that_stops_at_the_end_of_its_replay_does_not_go_live_on_a_full_line(
    loop: Loop,
) -> None:
    house = House(loop, "a", "b", outbox_bytes=200_000)
    a = house.join("a")
    for i in range(10):
        house.send(a, str(i), payload="x" * 7000)
    loop.turn()
    b = house.join("b", last=20, reads=False)
    loop.turn()
    assert b.full
    for i in range(200):
        house.send(a, f"later{i}", payload="x" * 7000)
        loop.turn()
    # It is still behind: what it has not read waits in the log and not in its outbox.
    assert b.waiting < CATCH_UP_BYTES + 8000
    while b.full:
        house.drain(b)
        loop.turn()
    b.reads = True
    house.send(a, "end")
    loop.turn()
    assert own(b) == own(a)


@pytest.mark.rule("G-15")
def test_a_resumption_catches_up_however_busy_the_gateway_is(loop: Loop) -> None:
    house = House(loop, "a", "b", history_messages=200)
    a = house.join("a")
    house.send(a, "first")

    def tick(number: int) -> None:
        for i in range(40):
            house.send(a, f"{number}-{i}", payload="x" * 7000)
        house.quota.read_bytes += 40 * 7200  # as the connections count
        loop.turn()

    for number in range(4):
        tick(number)
    b = house.join("b", after="first")
    for number in range(4, 20):
        tick(number)
    assert b.closed is None
    wanted = [f"{number}-{i}" for number in range(20) for i in range(40)]
    assert [id for id in ids(b) if "-" in id and not id.startswith("sys")] == wanted


@pytest.mark.rule("G-15", "G-33")
def test_a_connection_that_fell_behind_the_log_is_closed_and_leaves(loop: Loop) -> None:
    house = House(loop, "a", "b", history_messages=20)
    a = house.join("a")
    for i in range(20):
        house.send(a, str(i), payload="x" * 7000)
    b = house.join("b", last=20, reads=False)
    loop.turn()
    for i in range(100):
        house.send(a, f"later{i}")
    house.drain(b)
    loop.turn()
    assert b.closed == 4002
    assert house.pod.participants == ("a",)


@pytest.mark.rule("G-39", "G-33")
def test_whoever_only_sends_while_behind_is_closed_and_leaves(loop: Loop) -> None:
    house = House(loop, "a", "b", outbox_bytes=5000)
    a = house.join("a")
    for i in range(20):
        house.send(a, str(i), payload="x" * 7000)
    b = house.join("b", last=20, reads=False)
    for i in range(1000):
        if b.closed is None:
            house.send(b, f"bad{i}", "system/x")
    assert b.closed == 4001
    assert house.pod.participants == ("a",)


@pytest.mark.rule("G-38", "G-47")
def test_short_repetitions_of_a_long_envelope_do_not_pile_up_within_a_tick(loop: Loop) -> None:
    house = House(loop, "a", "b", outbox_bytes=4_000_000)
    a, b = house.join("a"), house.join("b")
    house.send(a, "long", payload="x" * 1_000_000)
    loop.turn()
    for _ in range(400):
        house.send(a, "long")
    loop.turn()
    loop.turn()
    assert sum(map(len, a.writes)) < 6_000_000
    assert a.closed == 4001
    assert own(b) == ["long"]


@pytest.mark.rule("G-35")
def test_several_connections_of_one_participant_keep_their_own_filters(loop: Loop) -> None:
    house = House(loop, "a", "many")
    a = house.join("a")
    one, two = house.join("many"), house.join("many", filter=filters.kind("rare"))
    loop.turn()
    house.send(a, "1")
    house.send(one, "2")
    house.send(a, "3", "rare")
    loop.turn()
    assert own(one) == ["1", "2", "3"]
    assert own(two) == ["2", "3"]


def test_a_lost_connection_is_owed_nothing(loop: Loop) -> None:
    house = House(loop, "a", "b")
    a, b = house.join("a"), house.join("b")
    loop.turn()
    house.send(a, "1")
    house.send(b, "bad", "system/x")
    house.hub.leave(house.peers[b])
    count = len(b.writes)
    loop.turn()
    assert len(b.writes) == count
    assert own(a) == ["1"]
