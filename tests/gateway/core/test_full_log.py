"""A log without space: what the gateway itself would log waits or is not needed."""

import pytest

from mcpp_gateway.core.journal import MemoryJournal
from tests.gateway.harness import FREE, HarnessClient, PodHarness


def full_pod() -> tuple[PodHarness, MemoryJournal, HarnessClient]:
    """Return a pod with one participant and a context, whose log has no space any more."""
    journal = MemoryJournal(1000, 1 << 20)
    harness = PodHarness("a", "b", "c", limits=FREE, log=journal)
    a = harness.join("a")
    harness.send(a, context={"id": "task"})
    journal.accepting = False
    return harness, journal, a


@pytest.mark.rule("G-58")
def test_joining_and_leaving_again_and_again_takes_no_space() -> None:
    harness, journal, a = full_pod()
    harness.join("b")
    end = journal.end
    for _ in range(50):
        b = harness.join("b")
        harness.leave(b)
        harness.tick(1)
    assert journal.end == end
    assert list(harness.pod.participants) == ["a", "b"]
    journal.accepting = True
    harness.tick(1)
    assert a.last["payload"] | {"participant": "b"} == {"event": "leave", "participant": "b"}
    assert list(harness.pod.participants) == ["a"]


@pytest.mark.rule("G-58")
def test_a_participant_that_is_still_present_may_join_without_any_reserve() -> None:
    harness, journal, _ = full_pod()
    harness.leave(harness.join("b"))
    journal.admitting = False
    assert harness.pod.can_join("b")
    assert not harness.pod.can_join("c")
    end = journal.end
    assert harness.join("b").welcome["participants"][1]["id"] == "b"
    assert journal.end == end


@pytest.mark.rule("G-58")
def test_contexts_expire_once_there_is_space() -> None:
    harness, journal, a = full_pod()
    harness.tick(1000)
    assert [node.id for node in harness.pod.tree] == ["task"]
    journal.accepting = True
    harness.tick()
    assert a.last["payload"]["event"] == "expired"


@pytest.mark.rule("G-58", "G-37")
def test_a_revoked_participant_is_closed_at_once_and_leaves_later() -> None:
    harness, journal, a = full_pod()
    b = harness.join("b")
    end = journal.end
    harness.perform(harness.pod.revoke("b", harness.now))
    assert (b.closed, journal.end) == (4501, end)
    journal.accepting = True
    harness.tick()
    assert a.last["payload"]["event"] == "leave"


def joined_at_once(count: int) -> tuple[PodHarness, list[str]]:
    """Let participants join a full log until one is refused, and return who has joined."""
    names = [f"p{number}" for number in range(count)]
    journal = MemoryJournal(1000, 1 << 20)
    harness = PodHarness(*names, limits=FREE, log=journal)
    journal.accepting = False
    joined = []
    for name in names:
        if not harness.pod.can_join(name):
            break
        harness.pod.join(name, harness.now)
        joined.append(name)
    return harness, joined


@pytest.mark.rule("G-55", "G-64")
def test_joins_that_are_not_logged_yet_do_not_use_up_the_reserve() -> None:
    harness, joined = joined_at_once(4000)
    assert harness.pod.presence_wait(harness.now)  # joins wait to be announced
    assert len(joined) < 4000
    assert not harness.pod.can_join("p3999")
    assert harness.pod.can_join("p0")
    harness.tick(1)
    assert harness.pod.can_join("p3999")


@pytest.mark.rule("G-55")
def test_many_join_at_once_while_there_is_a_reserve() -> None:
    _, joined = joined_at_once(300)
    assert len(joined) == 300
