"""Finding where a session begins: in bounded pieces, and charged to the participant."""

from collections.abc import Iterator
from typing import Any

import pytest

from mcpp import filters
from mcpp_gateway.core.effects import CatchUp
from mcpp_gateway.core.journal import MemoryJournal
from mcpp_gateway.core.records import LogEntry
from mcpp_gateway.edge.hub import SEARCH_SECONDS
from tests.gateway.harness import FREE, HubHarness, ManualLoop, PodHarness, text

NOTHING = filters.parse({"kind": "never"})
LONG = 20_000
MOST_AT_ONCE = 1_000


class CountingJournal(MemoryJournal):
    """A log in memory that counts what is read of it."""

    entries_read = 0

    def read(self, position: int, limit: int) -> list[LogEntry]:
        entries = super().read(position, limit)
        self.entries_read += len(entries)
        return entries


def long_log(**limits: float) -> tuple[PodHarness, CountingJournal, str]:
    """Return a pod with a long log, and the id of its first envelope."""
    journal = CountingJournal(LONG * 2, 1 << 30)
    harness = PodHarness("a", "m", limits={**FREE, **limits}, multiple=["m"], log=journal)
    a = harness.join("a")
    first = harness.send(a)
    fill(journal, LONG)
    return harness, journal, first


def fill(journal: MemoryJournal, count: int) -> None:
    for number in range(count):
        id = f"old-{number}"
        journal.append(LogEntry(id, "a", None, "chat", None, text(id, "a")))


@pytest.mark.rule("G-57")
@pytest.mark.parametrize("how", ["after", "last", "nothing passes"])
def test_joining_reads_a_bounded_part_of_the_log_at_a_time(how: str) -> None:
    harness, journal, first = long_log()
    ways: dict[str, dict[str, Any]] = {
        "after": {"after": first},
        "last": {"last": LONG},
        "nothing passes": {"last": 1, "filter": NOTHING},
    }
    journal.entries_read = 0
    m = harness.join("m", behind=True, **ways[how])
    assert journal.entries_read <= MOST_AT_ONCE
    calls = 0
    while m.session.opening is not None:
        before = journal.entries_read
        texts, effect = harness.pod.catch_up(m.session, 1000)
        assert journal.entries_read - before <= MOST_AT_ONCE
        assert (texts == []) == (effect == CatchUp(m.session))
        m.texts += texts
        calls += 1
    assert calls >= LONG / MOST_AT_ONCE
    # The join of @a passes every filter, for others than @a; that of @m is not for @m.
    expected = {"after": (True, LONG), "last": (False, LONG), "nothing passes": (False, 1)}
    assert (m.welcome["resumed"], m.welcome["replayed"]) == expected[how]


@pytest.mark.rule("G-57", "G-14")
def test_what_happens_meanwhile_is_live_and_not_replayed() -> None:
    harness, _, first = long_log()
    a = harness.join("a")
    m = harness.join("m", behind=True, after=first)
    assert harness.pod.catch_up(m.session, 1 << 20)[0] == []
    live = harness.send(a, context={"id": "later"})
    harness.send(m, "pod/filter", payload={"filter": {"kind": "never"}}, id="f")
    m.full = False
    harness.perform([CatchUp(m.session)])
    assert m.welcome["contexts"] == []
    history, rest = m.ids[1 : m.welcome["replayed"] + 1], m.seen[m.welcome["replayed"] + 1 :]
    assert live not in history
    assert [each.get("correlation_id", each["id"]) for each in rest] == [live, "f"]


@pytest.mark.rule("G-57")
def test_an_id_that_is_accepted_after_the_join_was_not_found() -> None:
    harness, _, _ = long_log()
    a = harness.join("a")
    m = harness.join("m", behind=True, after="new", last=1)
    harness.send(a, id="new")
    m.full = False
    harness.perform([CatchUp(m.session)])
    assert (m.welcome["resumed"], m.welcome["replayed"]) == (False, 1)
    assert m.ids[-1] == "new"


@pytest.mark.rule("G-57")
def test_others_are_served_while_sessions_look_for_their_beginning() -> None:
    loop = ManualLoop()
    journal = CountingJournal(LONG * 2, 1 << 30)
    harness = HubHarness(loop, "a", *(f"m{number}" for number in range(50)), journal=journal)
    a = harness.join("a")
    fill(journal, LONG)
    ticking = iter_time(harness)
    harness.hub.clock = lambda: next(ticking)
    clients = [harness.join(f"m{number}", last=1, filter=NOTHING) for number in range(50)]
    for number in range(20):
        before = journal.entries_read
        harness.send(a, f"live-{number}")
        loop.turn()
        assert journal.entries_read - before <= 10 * MOST_AT_ONCE
    assert b"live-18" in a.texts[-1] or b"live-19" in a.texts[-1]
    while any(harness.peers[client].audience is None for client in clients):
        loop.turn()
    loop.close()


def iter_time(harness: HubHarness) -> Iterator[float]:
    """Let every look at the clock take a part of what a tick has for this."""
    while True:
        harness.now += SEARCH_SECONDS / 5
        yield harness.now


@pytest.mark.rule("G-49", "G-57")
def test_what_was_read_delays_the_next_join() -> None:
    harness, _, first = long_log(messages_per_second=1)
    harness.leave(harness.join("m", after=first))
    harness.now += 1
    assert harness.pod.members.join_wait("m", harness.now) == 0
    for _ in range(4):
        m = harness.join("m", last=1, filter=NOTHING)
        harness.leave(m)
    # 100,000 entries count as 200 joins.
    assert harness.pod.members.join_wait("m", harness.now) > 5


@pytest.mark.rule("G-57")
def test_a_participant_with_many_connections_looks_for_few_beginnings_at_a_time() -> None:
    harness, _, first = long_log()
    clients = []
    while harness.pod.members.join_wait("m", harness.now) == 0:
        clients.append(harness.join("m", behind=True, after=first))
        assert len(clients) < 10
    while clients[0].session.opening is not None:
        harness.catch_up(clients[0])
    assert harness.pod.members.join_wait("m", harness.now) == 0
    harness.leave(clients[0])
    assert clients[1].session.opening is not None
    harness.leave(clients[1])
    assert clients[1].session.opening is None


@pytest.mark.rule("G-57", "G-56")
def test_retention_during_the_search_leaves_a_replay_without_a_gap() -> None:
    journal = CountingJournal(LONG, 1 << 30)
    harness = PodHarness("a", "m", limits=FREE, multiple=["m"], log=journal)
    fill(journal, LONG)
    m = harness.join("m", behind=True, last=LONG)
    for _ in range(5):
        harness.pod.catch_up(m.session, 1 << 20)
    fill(journal, LONG // 2)  # the older half is gone
    m.full = False
    harness.perform([CatchUp(m.session)])
    history = m.ids[1 : m.welcome["replayed"] + 1]
    assert history[0] == f"old-{LONG // 2 + 1}"
    assert history[-1] == f"old-{LONG - 1}"


@pytest.mark.rule("G-15")
def test_a_session_whose_filter_leaves_out_a_long_part_of_the_log_becomes_live() -> None:
    harness, _, first = long_log()
    a = harness.join("a")
    m = harness.join("m", after=first, filter=NOTHING)
    assert m.session.audience is not None
    sent = harness.send(a, to=["m"])
    assert m.ids[-1] == sent
