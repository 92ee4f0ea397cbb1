"""Effects that wait for the log: nothing leaves early, in order, and bounded."""

from collections.abc import Iterator

import pytest

from tests.gateway.harness import DelayedJournal, HubHarness, ManualLoop, text


@pytest.fixture
def harness() -> Iterator[HubHarness]:
    loop = ManualLoop()
    harness = HubHarness(
        loop, "a", "b", journal=DelayedJournal(1000), max_message_bytes=1000, outbox_bytes=4000
    )
    yield harness
    loop.close()


def commit(harness: HubHarness) -> None:
    journal = harness.pod.journal
    assert isinstance(journal, DelayedJournal)
    journal.committed = journal.end
    harness.hub.perform_all(harness.pod.release(journal.end))
    harness.loop.turn()


@pytest.mark.rule("G-50")
def test_neither_a_welcome_nor_an_echo_leaves_before_the_commit(harness: HubHarness) -> None:
    a = harness.join("a")
    harness.loop.turn()
    assert a.texts == []
    commit(harness)
    assert len(a.texts) == 1
    harness.send(a, "m1")
    harness.loop.turn()
    assert len(a.texts) == 1
    commit(harness)
    assert a.texts[-1] == text("m1", "a")


@pytest.mark.rule("G-30", "G-50")
def test_a_refusal_keeps_its_place_behind_what_waits_for_the_log(harness: HubHarness) -> None:
    a = harness.join("a")
    commit(harness)
    harness.send(a, "m1")
    harness.send(a, "m2", kind="system/x")
    harness.send(a, "m3")
    harness.loop.turn()
    assert len(a.texts) == 1
    commit(harness)
    welcome, first, refusal, last = a.texts
    assert b"system/welcome" in welcome
    assert (first, last) == (text("m1", "a"), text("m3", "a"))
    assert b"reserved_kind" in refusal


@pytest.mark.rule("G-39")
def test_refusals_do_not_pile_up_while_the_log_is_not_committed(harness: HubHarness) -> None:
    a = harness.join("a")
    commit(harness)
    harness.send(a, "m1")
    for number in range(100):
        if a.closed is None:
            harness.send(a, f"bad{number}", kind="system/x")
    assert a.closed == 4001
    commit(harness)
