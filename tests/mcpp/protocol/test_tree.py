"""A log as a tree of contexts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import Context, ContextTree, Envelope, new_envelope


def say(
    sender: str,
    context: str | None = None,
    *,
    kind: str = "reflection",
    payload: Any = None,
    type: str | None = None,
    parent: str | None = None,
) -> Envelope:
    where = None if context is None else Context(id=context, type=type, parent=parent)
    return new_envelope(kind, payload, sender=sender, context=where)


def expiry(id: str) -> Envelope:
    payload = {
        "event": "expired",
        "context": {"id": id},
        "messages": 1,
        "participants": ["a"],
        "started": "2025-08-31T12:00:00Z",
        "last": "2025-08-31T12:00:00Z",
    }
    return new_envelope("system/context", payload, sender="system:gateway")


def revival(id: str, creator: str, parent: str | None = None) -> Envelope:
    context = {"id": id, "creator": creator} | ({} if parent is None else {"parent": parent})
    payload = {"event": "revived", "context": context, "messages": 1}
    return new_envelope("system/context", payload, sender="system:gateway")


def test_envelopes_are_grouped_by_context_and_nested_by_parent() -> None:
    tree = ContextTree(
        [
            say("alice", kind="chat"),
            say("alice", "top", type="reasoning"),
            say("bob", "below", parent="top", type="delegation"),
            say("alice", "top"),
        ]
    )
    top = tree["top"]
    assert [len(tree.main), len(top.envelopes), len(tree["below"].envelopes)] == [1, 2, 1]
    assert top.children == [tree["below"]]
    assert tree.roots == [top]
    assert (top.type, top.creator, top.participants) == ("reasoning", "alice", ("alice",))
    assert len(tree) == 2


@pytest.mark.rule("C-17")
def test_only_its_creator_concludes_a_context() -> None:
    tree = ContextTree([say("alice", "c"), say("mallory", "c", kind="conclusion")])
    assert tree["c"].state == "open"
    last = say("alice", "c", kind="conclusion", payload={"decision": "deny"})
    tree.add(last)
    assert (tree["c"].state, tree["c"].conclusion) == ("concluded", last)


def test_an_expired_context_is_idle_and_its_id_starts_a_new_node() -> None:
    tree = ContextTree([say("alice", "c", type="old"), expiry("c")])
    old = tree["c"]
    assert old.state == "expired"
    tree.add(say("bob", "c", type="new"))
    assert (tree["c"].type, tree["c"].creator, tree["c"].state) == ("new", "bob", "open")
    assert [node.type for node in tree] == ["old", "new"]


@pytest.mark.rule("C-12", "C-17")
def test_a_revived_context_is_the_same_node_and_its_creator_concludes_it() -> None:
    tree = ContextTree([say("alice", "c", type="t", parent="p"), expiry("c"), expiry("p")])
    node = tree["c"]
    tree.add(revival("c", "alice", parent="p"))
    tree.add(say("bob", "c", kind="conclusion"))
    assert (tree["c"], node.state, node.parent) == (node, "open", tree["p"])
    tree.add(say("alice", "c", kind="conclusion"))
    assert (node.state, len(node.envelopes), len(tree)) == ("concluded", 3, 2)


@pytest.mark.rule("C-14", "C-17")
def test_in_a_log_without_the_beginning_a_revival_names_the_creator() -> None:
    tree = ContextTree([say("bob", "c", kind="conclusion"), expiry("c")])
    tree.add(revival("c", "alice"))
    assert (tree["c"].creator, tree["c"].state) == ("alice", "open")
    later = ContextTree([revival("c", "alice"), say("bob", "c", type="x")])
    assert (later["c"].creator, later["c"].type, len(later)) == ("alice", None, 1)


def test_a_parent_without_envelopes_is_in_the_tree() -> None:
    tree = ContextTree([say("alice", "child", parent="unseen")])
    assert tree["unseen"].envelopes == []
    assert tree["unseen"].children == [tree["child"]]
    tree.add(say("alice", "unseen", parent="above"))
    assert tree.roots == [tree["above"]]


def test_a_placeholder_that_expired_is_open_once_its_id_is_used() -> None:
    tree = ContextTree([say("alice", "child", parent="p"), expiry("child"), expiry("p")])
    assert tree["p"].state == "expired"
    for _ in range(2):
        tree.add(say("bob", "p"))
    assert (tree["p"].state, len(tree["p"].envelopes)) == ("open", 2)


def test_the_outline_has_one_line_per_context() -> None:
    tree = ContextTree(
        [
            say("alice", kind="chat"),
            say("alice", "r-1", type="reasoning"),
            say("bob", "r-2", parent="r-1"),
            say("alice", "r-1", kind="conclusion", payload={"decision": "deny"}),
        ]
    )
    assert tree.outline().splitlines() == [
        "main: 1 message",
        "  reasoning r-1 by alice: 2 messages, concluded: deny",
        "    context r-2 by bob: 1 message, open",
    ]


@pytest.mark.parametrize("payload", [None, [], {"text": "long " * 40}, {"decision": {"deep": [1]}}])
def test_any_conclusion_fits_on_one_line(payload: Any) -> None:
    tree = ContextTree([say("alice", "c", kind="conclusion", payload=payload)])
    assert len(tree.outline().splitlines()[1]) < 120


IDS = st.sampled_from("abcd")
ENVELOPES = st.one_of(
    st.builds(
        say,
        st.sampled_from(["alice", "bob"]),
        st.none() | IDS,
        kind=st.sampled_from(["chat", "conclusion"]),
        parent=st.none() | IDS,
    ),
    st.builds(expiry, IDS),
    st.builds(revival, IDS, st.sampled_from(["alice", "bob"]), st.none() | IDS),
)


@given(st.lists(ENVELOPES, max_size=30))
@pytest.mark.rule("P-23")
def test_grouping_never_loses_or_repeats_an_envelope(log: list[Envelope]) -> None:
    tree = ContextTree(log)
    grouped = [*tree.main, *(envelope for node in tree for envelope in node.envelopes)]
    assert sorted(envelope.id for envelope in grouped) == sorted(envelope.id for envelope in log)


@given(st.lists(ENVELOPES, max_size=30))
def test_any_log_results_in_a_tree(log: list[Envelope]) -> None:
    nodes = list(ContextTree(log))
    assert len(nodes) == len(set(nodes))
    for node in nodes:
        assert all(child.parent is node for child in node.children)


@given(st.lists(ENVELOPES, max_size=30))
@pytest.mark.rule("P-23")
def test_a_group_keeps_the_order_of_the_log(log: list[Envelope]) -> None:
    places = {envelope.id: place for place, envelope in enumerate(log)}
    for node in ContextTree(log):
        order = [places[envelope.id] for envelope in node.envelopes]
        assert order == sorted(order)


@pytest.mark.rule("H-10", "C-17")
def test_an_erased_conclusion_still_ends_its_context() -> None:
    tree = ContextTree([say("alice", "c"), say("alice", "c", kind="tombstone")])
    assert tree["c"].state == "open"
    tree.add(say("mallory", "c", kind="tombstone", payload={"outcome": "failed"}))
    tree.add(say("alice", "c", kind="tombstone", payload={"outcome": "text"}))
    assert tree["c"].conclusion is None
    tree.add(say("alice", "c", kind="tombstone", payload={"outcome": "failed"}))
    assert tree.outline().endswith("failed (erased)")
