"""The context tracker and the reader of `system/context` events."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import Context, Envelope, new_envelope
from mcpp.payloads import ContextInfo
from mcpp.protocol.contexts import ContextTracker, Lineage, read_context_change

GATEWAY = "system:gateway"


def in_context(
    id: str | None, *, type: str | None = None, parent: str | None = None, sender: str = "alice"
) -> Envelope:
    context = None if id is None else Context(id=id, type=type, parent=parent)
    return new_envelope("chat", {"text": ""}, sender=sender, context=context)


def event(payload: Any, sender: str = GATEWAY, kind: str = "system/context") -> Envelope:
    return new_envelope(kind, payload, sender=sender)


def revival(id: str, parent: str | None, creator: str) -> Envelope:
    context = {"id": id, "creator": creator} | ({} if parent is None else {"parent": parent})
    return event({"event": "revived", "context": context, "messages": 1})


def expiry(id: str) -> Envelope:
    return event({"event": "expired", "context": {"id": id}, "messages": 2})


def facts(lineage: Lineage | None) -> tuple[str, str | None, tuple[str, ...]]:
    assert lineage is not None
    return lineage.id, lineage.type, lineage.ancestors


@pytest.mark.rule("C-02")
def test_the_creators_first_envelope_that_names_a_type_or_a_parent_fixes_it() -> None:
    tracker = ContextTracker()
    tracker.observe(in_context("c"))
    tracker.observe(in_context("c", type="t"))
    tracker.observe(in_context("c", type="other", parent="p"))
    assert facts(tracker.observe(in_context("c", parent="q"))) == ("c", "t", ("p",))


@pytest.mark.rule("C-02", "C-14")
def test_others_fix_nothing_and_create_no_placeholder() -> None:
    tracker = ContextTracker()
    tracker.observe(in_context("c"))
    for parent in ("q", "c"):
        lineage = tracker.observe(in_context("c", type="x", parent=parent, sender="mallory"))
        assert facts(lineage) == ("c", None, ())
    assert tracker.contexts == {"c": ContextInfo(id="c", creator="alice")}
    tracker.observe(in_context("child", parent="c"))
    tracker.observe(in_context("p", sender="bob"))
    tracker.observe(in_context("c", parent="p"))
    assert facts(tracker.find("child")) == ("child", None, ("c", "p"))


@pytest.mark.rule("C-02", "C-04")
def test_a_named_parent_is_known_before_it_is_used_and_may_get_a_parent_later() -> None:
    tracker = ContextTracker()
    tracker.observe(in_context("c", parent="p"))
    assert facts(tracker.find("p")) == ("p", None, ())
    tracker.observe(in_context("p", type="above", parent="root"))
    assert facts(tracker.find("c")) == ("c", None, ("p", "root"))


def test_the_main_context_has_no_lineage() -> None:
    tracker = ContextTracker()
    assert tracker.observe(in_context(None)) is None
    assert tracker.learn(in_context(None)) is None
    assert tracker.find("unknown") is None


@pytest.mark.rule("C-12", "C-14")
def test_an_expired_context_is_forgotten_and_its_id_starts_anew() -> None:
    tracker = ContextTracker()
    tracker.observe(in_context("c", type="old", parent="p"))
    assert tracker.observe(expiry("c")) is None
    assert "c" not in tracker.contexts
    assert facts(tracker.observe(in_context("c", type="new"))) == ("c", "new", ())


@pytest.mark.rule("C-12", "C-14")
def test_a_revived_context_is_back_with_its_type_parent_and_creator() -> None:
    tracker = ContextTracker()
    tracker.observe(in_context("c", type="t", parent="p"))
    for id in "cp":
        tracker.observe(expiry(id))
    context = {"id": "c", "type": "t", "parent": "p", "creator": "alice"}
    tracker.observe(event({"event": "revived", "context": context, "messages": 1}))
    assert facts(tracker.observe(in_context("c", type="u", sender="bob"))) == ("c", "t", ("p",))
    assert tracker.contexts == {
        "c": ContextInfo(id="c", type="t", parent="p", creator="alice", messages=1),
        "p": ContextInfo(id="p"),
    }


def test_a_tracker_starts_from_the_contexts_of_a_welcome() -> None:
    info = ContextInfo(id="c", type="t", parent="p", creator="alice", messages=3)
    tracker = ContextTracker([info])
    known = tracker.learn(in_context("c", type="other"))
    assert known == info
    tracker.reset()
    assert not tracker.contexts


def test_type_and_parent_missing_in_a_welcome_are_fixed_by_a_later_envelope() -> None:
    tracker = ContextTracker([ContextInfo(id="c", creator="alice", messages=3)])
    tracker.observe(in_context("c", type="x", parent="y", sender="mallory"))
    assert tracker.contexts == {"c": ContextInfo(id="c", creator="alice", messages=3)}
    tracker.observe(in_context("c", type="t", parent="p"))
    fixed = ContextInfo(id="c", type="t", parent="p", creator="alice", messages=3)
    assert tracker.contexts["c"] == fixed


@pytest.mark.rule("C-14")
def test_a_parent_that_would_close_a_cycle_is_ignored() -> None:
    tracker = ContextTracker()
    tracker.observe(in_context("a", parent="b"))
    assert facts(tracker.observe(in_context("b", parent="a"))) == ("b", None, ())
    assert facts(tracker.observe(in_context("c", parent="c"))) == ("c", None, ())
    assert facts(tracker.observe(in_context("a"))) == ("a", None, ("b",))


@pytest.mark.rule("C-14")
def test_a_cycle_in_a_welcome_cannot_hang_the_tracker() -> None:
    tracker = ContextTracker([ContextInfo(id="a", parent="b"), ContextInfo(id="b", parent="a")])
    assert facts(tracker.observe(in_context("c", parent="a"))) == ("c", None, ("a", "b"))


@pytest.mark.rule("C-11")
def test_an_expiry_is_read_with_everything_it_says_about_the_context() -> None:
    payload = {
        "event": "expired",
        "context": {"id": "c", "type": "t", "parent": "p"},
        "messages": 7,
        "participants": ["alice"],
        "started": "2025-08-31T12:00:00Z",
        "last": "2025-08-31T12:00:00Z",
    }
    change = read_context_change(event(payload))
    assert change is not None
    assert change.event == "expired"
    assert change.contexts == (ContextInfo(id="c", type="t", parent="p", messages=7),)


@pytest.mark.rule("C-11", "C-18")
def test_contexts_that_expired_together_are_read_and_forgotten_one_by_one() -> None:
    contexts = [{"id": "c", "type": "t", "parent": "p", "messages": 7}, {"id": "p", "messages": 0}]
    envelope = event({"event": "expired", "contexts": contexts})
    change = read_context_change(envelope)
    assert change is not None
    assert change.contexts == (
        ContextInfo(id="c", type="t", parent="p", messages=7),
        ContextInfo(id="p", messages=0),
    )
    tracker = ContextTracker([*change.contexts, ContextInfo(id="other")])
    tracker.observe(envelope)
    assert [*tracker.contexts] == ["other"]


@pytest.mark.parametrize(
    "envelope",
    [
        event({"event": "expired", "contexts": []}),
        event({"event": "expired", "contexts": [{"id": None}]}),
        event({"event": "expired", "context": {"id": "c"}}, sender="mallory"),
        event({"event": "expired", "context": {"id": "c"}}, kind="chat"),
        event({"event": "unknown", "context": {"id": "c"}}),
        event({"event": "expired"}),
        event({"event": "expired", "context": {"id": None}}),
        event({"event": "expired", "context": 1}),
        event([]),
        event(None),
    ],
)
def test_any_other_envelope_changes_no_context(envelope: Envelope) -> None:
    assert read_context_change(envelope) is None


@pytest.mark.parametrize("messages", [None, "7", 1.5, True, []])
def test_an_expiry_with_an_invalid_count_is_still_an_expiry(messages: Any) -> None:
    payload = {"event": "expired", "context": {"id": "c", "messages": 3}, "messages": messages}
    change = read_context_change(event(payload))
    assert change is not None
    assert change.contexts == (ContextInfo(id="c"),)


IDS = st.sampled_from("abcd")
LOGS = st.lists(
    st.builds(
        in_context,
        st.none() | IDS,
        type=st.none() | IDS,
        parent=st.none() | IDS,
        sender=st.sampled_from(["alice", "bob"]),
    )
    | st.builds(expiry, IDS)
    | st.builds(revival, IDS, st.none() | IDS, st.sampled_from(["alice", "bob"])),
    max_size=40,
)


@given(LOGS)
def test_no_log_makes_a_context_its_own_ancestor(log: list[Envelope]) -> None:
    tracker = ContextTracker()
    for envelope in log:
        tracker.observe(envelope)
        for id in tracker.contexts:
            lineage = tracker.find(id)
            assert lineage is not None
            assert id not in lineage.ancestors
            assert len(set(lineage.ancestors)) == len(lineage.ancestors)


@given(LOGS)
@pytest.mark.rule("C-02")
def test_type_and_parent_never_change_while_a_context_lives(log: list[Envelope]) -> None:
    tracker = ContextTracker()
    for envelope in log:
        before = dict(tracker.contexts)
        change = read_context_change(envelope)
        if change is not None:
            before.pop(change.contexts[0].id, None)
        tracker.observe(envelope)
        for id, known in before.items():
            now = tracker.contexts.get(id)
            if now is not None:
                assert known.type in (None, now.type)
                assert known.parent in (None, now.parent)
