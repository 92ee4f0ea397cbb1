"""Contexts in a pod: creation, limits, rates, expiry, floods."""

from typing import Any

import pytest

from mcpp import ContextTree, filters
from mcpp.protocol.codec import decode
from mcpp_gateway.core.records import Batch
from tests.gateway.harness import FREE, HarnessClient, PodHarness


def announced(client: HarnessClient) -> list[dict[str, Any]]:
    return [each["payload"] for each in client.seen if each["kind"] == "system/context"]


@pytest.mark.rule("C-01")
def test_an_accepted_envelope_creates_its_context_and_a_refused_one_does_not() -> None:
    harness = PodHarness("a", capabilities={"a": [{"kind": "chat"}]})
    a = harness.join("a")
    harness.send(a, "other", context={"id": "no"})
    harness.send(a, context={"id": "yes"})
    assert [node.id for node in harness.pod.tree] == ["yes"]


@pytest.mark.rule("C-02", "F-03")
def test_a_type_once_fixed_holds_for_envelopes_that_omit_or_change_it() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b", filter=filters.parse({"type": "t"}))
    harness.send(a, id="early", context={"id": "c"})
    harness.send(a, id="1", context={"id": "c", "type": "t"})
    harness.send(a, id="2", context={"id": "c"})
    harness.send(a, id="3", context={"id": "c", "type": "other"})
    assert b.ids[1:] == ["1", "2", "3"]
    assert b.last["context"] == {"id": "c", "type": "other"}


@pytest.mark.rule("C-15", "G-25")
def test_an_envelope_to_the_gateway_enters_no_context() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    harness.send(a, "pod/filter", payload={"filter": {"all": []}}, context={"id": "c"})
    assert a.last["kind"] == "system/filter"
    assert len(harness.pod.tree) == 0


@pytest.mark.rule("C-09")
def test_a_context_takes_its_burst_from_all_together_the_first_included() -> None:
    limits = {**FREE, "context_messages_per_second": 0.5, "context_burst": 3}
    harness = PodHarness("a", "b", limits=limits)
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, context={"id": "c"})
    harness.send(b, context={"id": "c", "type": "t"})
    harness.send(a, context={"id": "c", "parent": "p"})
    assert a.errors == b.errors == []
    harness.send(b, context={"id": "c"})
    assert b.errors == ["rate_limited"]
    assert b.last["payload"]["scope"] == "context"
    assert b.last["payload"]["retry_after_seconds"] == pytest.approx(2, abs=0.01)
    harness.send(b, context={"id": "p"})
    harness.send(b)
    harness.now += 2.001
    harness.send(b, context={"id": "c"})
    assert b.errors == ["rate_limited"]


@pytest.mark.rule("C-09")
def test_an_envelope_refused_for_another_reason_takes_no_token_of_the_context() -> None:
    limits = {**FREE, "context_messages_per_second": 0.001, "context_burst": 2}
    harness = PodHarness("a", "b", limits=limits)
    a, b = harness.join("a"), harness.join("b")
    taken = harness.send(b, context={"id": "c", "parent": "p"})
    for _ in range(5):
        harness.send(a, context={"id": "c"}, id=taken)
        harness.send(b, context={"id": "c", "parent": "q"})
    harness.send(a, context={"id": "c"})
    assert set(a.errors) == {"duplicate_id"}
    assert set(b.errors) == {"context_parent_changed"}
    harness.send(a, context={"id": "c"})
    assert a.errors[-1] == "rate_limited"


@pytest.mark.rule("C-09")
def test_a_silenced_type_or_parent_is_not_fixed() -> None:
    limits = {**FREE, "context_messages_per_second": 0.001, "context_burst": 1}
    harness = PodHarness("a", limits=limits)
    a = harness.join("a")
    harness.send(a, context={"id": "c"})
    harness.send(a, context={"id": "c", "type": "t", "parent": "p"})
    assert a.errors == ["rate_limited"]
    (node,) = harness.pod.tree
    assert (node.id, node.type, node.parent) == ("c", None, None)


@pytest.mark.rule("C-10", "C-11")
def test_an_idle_context_expires_children_first_and_everyone_is_notified() -> None:
    harness = PodHarness("a", "b", limits={**FREE, "context_idle_seconds": 10})
    a, b = harness.join("a"), harness.join("b", filter=~filters.everything)
    harness.send(a, context={"id": "p", "type": "t"})
    harness.now += 3
    harness.send(b, context={"id": "c", "parent": "p"})
    harness.send(a, context={"id": "c"})
    harness.tick(9.999)
    assert announced(a) == []
    harness.tick(0.001)
    assert [event["context"]["id"] for event in announced(b)] == ["c", "p"]
    assert announced(a) == [
        {
            "event": "expired",
            "context": {"id": "c", "parent": "p", "creator": "b"},
            "messages": 2,
            "participants": ["a", "b"],
            "started": "1970-01-01T00:16:43.000000Z",
            "last": "1970-01-01T00:16:43.000000Z",
        },
        {
            "event": "expired",
            "context": {"id": "p", "type": "t", "creator": "a"},
            "messages": 1,
            "participants": ["a"],
            "started": "1970-01-01T00:16:40.000000Z",
            "last": "1970-01-01T00:16:43.000000Z",
        },
    ]
    assert harness.pod.expired == 2


@pytest.mark.rule("C-10")
def test_a_parent_lives_as_long_as_its_children_are_used() -> None:
    harness = PodHarness("a", limits={**FREE, "context_idle_seconds": 10})
    a = harness.join("a")
    harness.send(a, context={"id": "p"})
    harness.send(a, context={"id": "c", "parent": "p"})
    for _ in range(10):
        harness.tick(6)
        harness.send(a, context={"id": "c"})
    assert announced(a) == []
    harness.tick(10)
    assert [event["context"]["id"] for event in announced(a)] == ["c", "p"]


@pytest.mark.rule("C-10")
def test_a_parent_that_is_used_outlives_its_child() -> None:
    harness = PodHarness("a", limits={**FREE, "context_idle_seconds": 10})
    a = harness.join("a")
    harness.send(a, context={"id": "c", "parent": "p"})
    harness.tick(6)
    harness.send(a, context={"id": "p"})
    harness.tick(6)
    assert [event["context"]["id"] for event in announced(a)] == ["c"]
    harness.tick(3.999)
    assert len(announced(a)) == 1
    harness.tick(0.001)
    assert [event["context"]["id"] for event in announced(a)] == ["c", "p"]


@pytest.mark.rule("C-04", "C-11")
def test_a_placeholder_expires_with_no_messages_and_no_participants() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    harness.send(a, context={"id": "c", "parent": "p"})
    harness.tick(1000)
    placeholder = announced(a)[1]
    assert placeholder["context"] == {"id": "p"}
    assert (placeholder["messages"], placeholder["participants"]) == (0, [])


@pytest.mark.rule("C-12")
@pytest.mark.parametrize("dormant", [0, 1])
def test_a_forgotten_id_may_be_used_anew_by_anyone_for_something_else(dormant: int) -> None:
    harness = PodHarness("a", "b", limits={**FREE, "max_dormant_contexts": dormant})
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, context={"id": "c", "type": "t", "parent": "p"})
    harness.tick(1000)
    harness.send(b, context={"id": "c", "type": "u", "parent": "q"})
    assert b.errors == []
    newest = {node.id: node for node in harness.pod.tree}["c"]
    assert (newest.type, newest.messages, newest.participants) == ("u", 1, ("b",))
    assert newest.creator == "b"
    assert [event["event"] for event in announced(a)] == ["expired", "expired"]


@pytest.mark.rule("C-12", "C-14", "C-17")
def test_an_expired_context_is_revived_as_it_was_when_its_id_is_used_again() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, context={"id": "p", "type": "plan"})
    harness.send(a, context={"id": "c", "type": "t", "parent": "p"})
    harness.send(b, context={"id": "c"})
    harness.tick(1000)
    late = harness.send(b, id="late", context={"id": "c", "type": "u", "parent": "q"})
    *_, parent, child, last = a.seen
    assert last["id"] == late
    assert parent["payload"] == {
        "event": "revived",
        "context": {"id": "p", "type": "plan", "creator": "a"},
        "messages": 1,
    }
    assert child["payload"] == {
        "event": "revived",
        "context": {"id": "c", "type": "t", "parent": "p", "creator": "a"},
        "messages": 2,
    }
    nodes = {node.id: node for node in harness.pod.tree}
    assert set(nodes) == {"c", "p"}
    assert (nodes["c"].messages, nodes["c"].started) == (3, 1000.0)
    done = harness.send(a, "conclusion", context={"id": "c"})
    seen = ContextTree([decode(each) for each in b.texts[1:]])["c"]
    assert seen.conclusion is not None
    assert (seen.conclusion.id, len(seen.envelopes)) == (done, 4)


@pytest.mark.rule("C-12")
def test_a_child_revives_its_parent_and_a_refused_envelope_revives_nothing() -> None:
    limits = {**FREE, "max_contexts_per_participant": 2}
    harness = PodHarness("a", "b", limits=limits)
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, context={"id": "p", "type": "plan"})
    harness.tick(1000)
    harness.send(b, context={"id": "own", "parent": "other"})
    harness.send(b, context={"id": "c", "parent": "p"})
    assert b.errors == ["context_limit"]
    harness.send(a, context={"id": "c", "parent": "p"})
    assert [event["event"] for event in announced(b)] == ["expired", "revived"]
    assert a.last["context"] == {"id": "c", "parent": "p"}


@pytest.mark.rule("C-12", "C-10")
def test_a_revived_context_expires_again_and_can_be_revived_again() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    for _ in range(3):
        harness.send(b if announced(a) else a, context={"id": "c"})
        harness.tick(1000)
    events = announced(a)
    assert [event["event"] for event in events] == [
        "expired", "revived", "expired", "revived", "expired",
    ]  # fmt: skip
    assert [event["messages"] for event in events] == [1, 1, 2, 2, 3]
    assert {event["context"]["creator"] for event in events} == {"a"}
    assert [event["participants"] for event in events if "last" in event] == [["a"], ["b"], ["b"]]


@pytest.mark.rule("C-02", "C-03", "C-06", "K-10", "F-03", "F-04")
def test_what_others_name_as_type_or_parent_is_relayed_and_ignored() -> None:
    by_type = [{"kind": "chat", "context": {"type": "t"}}]
    harness = PodHarness("a", "b", "m", "x", capabilities={"x": by_type})
    a, m, x = (harness.join(id) for id in ("a", "m", "x"))
    b = harness.join("b", filter=filters.parse({"any": [{"type": "t"}, {"context": "q"}]}))
    harness.send(a, id="open", context={"id": "c"})
    for claim in ({"type": "t", "parent": "q"}, {"parent": "c"}, {"parent": "r"}):
        harness.send(m, context={"id": "c", **claim})
    harness.send(x, context={"id": "c", "type": "t"})
    assert (m.errors, x.errors) == ([], ["capability_violation"])
    assert a.last["context"] == {"id": "c", "parent": "r"}
    assert [node.id for node in harness.pod.tree] == ["c"]
    assert b.ids[1:] == []
    harness.send(a, id="fixed", context={"id": "c", "type": "t", "parent": "p"})
    harness.send(x, id="allowed", context={"id": "c"})
    assert b.ids[1:] == ["fixed", "allowed"]
    harness.send(a, context={"id": "c", "parent": "q"})
    assert a.errors == ["context_parent_changed"]


@pytest.mark.rule("C-13", "F-04")
def test_replay_filters_by_where_a_context_stood_when_the_envelope_came() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.send(a, id="before", context={"id": "c"})
    harness.send(a, id="within", context={"id": "c", "parent": "p"})
    harness.tick(1000)
    harness.send(a, id="after", context={"id": "c", "parent": "q"})
    b = harness.join("b", last=100, filter=filters.in_context("p", descendants=True))
    assert [id for id in b.ids if not id.startswith("sys")] == ["within"]


@pytest.mark.rule("C-08")
def test_a_context_counts_against_its_creator_even_after_it_left() -> None:
    limits = {**FREE, "max_contexts_per_participant": 2}
    harness = PodHarness("a", "b", limits=limits)
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, context={"id": "c", "parent": "p"})
    harness.send(b, context={"id": "c"})
    harness.leave(a)
    a = harness.join("a")
    harness.send(a, context={"id": "d"})
    assert a.errors == ["context_limit"]
    harness.send(b, context={"id": "d", "parent": "e"})
    assert b.errors == []
    harness.tick(1000)
    harness.send(a, context={"id": "f", "parent": "g"})
    assert a.errors == ["context_limit"]


@pytest.mark.rule("C-16", "C-07", "G-47")
def test_under_a_flood_of_context_ids_memory_stays_flat_and_others_notice_nothing() -> None:
    harness = PodHarness("flood", "b")
    flood, b = harness.join("flood"), harness.join("b")
    before = len(b.texts)
    for i in range(30_000):
        effect = harness.pod.receive(flood.session, _flood(i), harness.now)
        if i < 256:
            harness.perform([] if effect is None else [effect])
    tree = harness.pod.tree
    assert len(tree) == 256
    assert harness.pod.refused == {"context_limit": 30_000 - 256}
    assert harness.pod.journal.end == 2 + 256
    assert len(b.texts) == before + 256
    sizes = [len(getattr(tree, name)) for name in ("_nodes", "_deadlines")]
    assert sizes == [256, 256]
    harness.send(b, context={"id": "mine", "parent": "own"})
    assert b.errors == []


def _flood(i: int) -> bytes:
    return (
        b'{"protocol":"mcpp/v0.1","id":"%d","ts":"2025-08-31T12:00:00Z","from":"flood",'
        b'"kind":"chat","context":{"id":"c%d"},"payload":0}' % (i, i)
    )


@pytest.mark.rule("C-16", "G-47")
def test_contexts_that_come_and_go_leave_nothing_behind() -> None:
    limits = {**FREE, "context_idle_seconds": 1, "history_messages": 10}
    limits["max_dormant_contexts"] = 100
    harness = PodHarness("a", "b", limits=limits)
    a = harness.join("a")
    harness.join("b", filter=filters.main_only)
    for i in range(300):
        for j in range(20):
            harness.send(a, f"k{i}", context={"id": f"{i}.{j}", "parent": f"p{i}"})
        harness.tick(2)
    tree = harness.pod.tree
    names = ("_nodes", "_counts", "_adopted", "_deadlines", "_unheld", "_dormant")
    assert [len(getattr(tree, name)) for name in names] == [0, 0, 0, 0, 0, 100]
    assert len(getattr(harness.pod.journal, "_entries")) == 10  # noqa: B009
    assert len(getattr(harness.pod.journal, "_positions")) == 10  # noqa: B009


@pytest.mark.rule("C-12")
@pytest.mark.parametrize("dormant", [100, 0])
def test_the_tree_is_rebuilt_from_the_log(dormant: int) -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    state = harness.pod.snapshot(term=1, index=0, boot="", now=harness.now)
    batches: list[Batch] = []

    def keep() -> None:
        start = state.position + sum(len(batch.entries) for batch in batches)
        entries = harness.pod.journal.read(start, 100)
        batches.append(Batch(1, len(batches), start, harness.now, entries))

    for sender, context in (
        (a, {"id": "p"}),
        (a, {"id": "c", "type": "t", "parent": "p"}),
        (b, {"id": "c", "type": "x", "parent": "y"}),
    ):
        harness.send(sender, context=context)
        keep()
    harness.tick(1000)
    keep()
    harness.send(b, context={"id": "c"})
    keep()
    # Even if fewer dormant contexts are kept than when the log was written.
    again = PodHarness("a", "b", limits={**FREE, "max_dormant_contexts": dormant})
    again.pod.restore(state, batches, 2000.0)
    live, expired = again.pod.tree.snapshot()
    kept = harness.pod.tree.snapshot()
    assert expired == kept[1] == ()
    if dormant:
        assert live == kept[0]
    assert [(each.id, each.type, each.parent, each.creator, each.messages) for each in live] == [
        ("p", None, None, "a", 1),
        ("c", "t", "p", "a", 3),
    ]
