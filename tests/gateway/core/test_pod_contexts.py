"""Contexts in a pod: creation, limits, rates, expiry, floods."""

from typing import Any

import pytest

from mcpp import filters
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
        harness.send(a, context={"id": "c", "parent": "q"})
    harness.send(a, context={"id": "c"})
    assert "rate_limited" not in a.errors
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
            "context": {"id": "c", "parent": "p"},
            "messages": 2,
            "participants": ["a", "b"],
            "started": "1970-01-01T00:16:43.000000Z",
            "last": "1970-01-01T00:16:43.000000Z",
        },
        {
            "event": "expired",
            "context": {"id": "p", "type": "t"},
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
def test_a_forgotten_id_may_be_used_anew_by_anyone_for_something_else() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, context={"id": "c", "type": "t", "parent": "p"})
    harness.tick(1000)
    harness.send(b, context={"id": "c", "type": "u", "parent": "q"})
    assert b.errors == []
    newest = {node.id: node for node in harness.pod.tree}["c"]
    assert (newest.type, newest.messages, newest.participants) == ("u", 1, {"b"})


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
def test_a_context_counts_against_its_creator_until_it_expires() -> None:
    limits = {**FREE, "max_contexts_per_participant": 2}
    harness = PodHarness("a", "b", limits=limits)
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, context={"id": "c", "parent": "p"})
    harness.send(b, context={"id": "p"})
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
    harness = PodHarness("a", "b", limits=limits)
    a = harness.join("a")
    harness.join("b", filter=filters.main_only)
    for i in range(300):
        for j in range(20):
            harness.send(a, f"k{i}", context={"id": f"{i}.{j}", "parent": f"p{i}"})
        harness.tick(2)
    tree = harness.pod.tree
    names = ("_nodes", "_counts", "_deadlines")
    assert [len(getattr(tree, name)) for name in names] == [0, 0, 0]
    assert len(getattr(harness.pod.journal, "_entries")) == 10  # noqa: B009
    assert len(getattr(harness.pod.journal, "_positions")) == 10  # noqa: B009
