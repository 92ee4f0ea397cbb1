"""Storing, relating and forgetting."""

import math
from datetime import date
from typing import Any

import pytest

from mcpp_agents.memory import (
    AccessDenied,
    InvalidMemory,
    MemoryDraft,
    MemoryStore,
    MemoryStoreError,
    UnknownMemory,
)
from mcpp_agents.memory.access import Principal
from mcpp_agents.memory.storage.postgres.address import is_database
from tests.agents.memory.conftest import audited, holds, rows


def names(store: MemoryStore, goal: str) -> list[str]:
    return [item.name for item in store.context(goal).items]


def test_a_stored_item_is_found_at_once(store: MemoryStore) -> None:
    answer = store.remember("Tokens rotate", "A refresh-token is used once", "decision")
    [item] = store.context("refresh-token").items
    assert (item.id, item.type, item.facet) == (answer.id, "decision", "decisions")


def test_items_survive_reopening_the_store(location: str) -> None:
    with MemoryStore.open(location, embedder=None) as store:
        store.remember("Tokens rotate", "on each use", "decision")
    with MemoryStore.open(location, embedder=None) as store:
        assert names(store, "tokens") == ["Tokens rotate"]


def nested(levels: int) -> Any:
    """Return objects and lists in each other."""
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


@pytest.mark.rule("M-44")
def test_metadata_may_nest_sixteen_levels(store: MemoryStore) -> None:
    store.remember("t", "c", metadata={"a": nested(15)})
    assert store.context("t").items[0].metadata["a"] == nested(15)


@pytest.mark.rule("M-44")
def test_numbers_of_metadata_have_at_most_64_characters(store: MemoryStore) -> None:
    numbers = [10**64 - 1, 1 - 10**63, 1e300, True]
    store.remember("t", "c", metadata={"a": numbers})
    assert store.context("t").items[0].metadata["a"] == numbers


@pytest.mark.rule("M-02")
def test_an_idempotency_key_stores_once(store: MemoryStore) -> None:
    first = store.remember("One", "apple", "note", idempotency_key="k")
    again = store.remember("One", "apple", "note", idempotency_key="k")
    assert (again.id, first.created, again.created) == (first.id, True, False)
    assert len(names(store, "apple")) == 1


@pytest.mark.parametrize(
    "other",
    [{"title": "Two"}, {"content": "pear"}, {"kind": "fact"}, {"project": "web"}, {"tags": ["t"]}],
)
def test_an_idempotency_key_is_refused_for_another_memory(
    store: MemoryStore, other: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {"title": "One", "content": "apple", "kind": "note"}
    first = store.remember(**fields, idempotency_key="k")
    with pytest.raises(InvalidMemory, match=f"given to another memory: {first.id}"):
        store.remember(**{**fields, **other}, idempotency_key="k")
    assert not store.remember(**fields, idempotency_key="k").created


def test_an_idempotency_key_stores_once_within_a_batch_too(store: MemoryStore) -> None:
    draft = MemoryDraft(title="One", content="apple", kind="note", idempotency_key="k")
    first, second = store.remember_many([draft, draft])
    assert first.id == second.id


def test_an_idempotency_key_belongs_to_its_principal(store: MemoryStore) -> None:
    store.remember("Mine", "apple", "note", idempotency_key="k")
    other = store.acting_as(Principal("bob"))
    assert other.remember("His", "apple", "note", idempotency_key="k").created


@pytest.mark.rule("M-01")
def test_a_batch_is_stored_completely_or_not_at_all(store: MemoryStore) -> None:
    good = MemoryDraft(title="Good", content="apple", kind="note")
    bad = MemoryDraft(title="Bad", content="apple", kind="note", related_to=("mem_none",))
    with pytest.raises(UnknownMemory):
        store.remember_many([good, bad])
    assert names(store, "apple") == []


@pytest.mark.rule("M-05")
def test_superseded_items_are_not_found(store: MemoryStore) -> None:
    old = store.remember("Old port", "The port is 80", "fact")
    store.remember("New port", "The port is 8787", "fact", related_to=[f"supersedes:{old.id}"])
    [item] = store.context("port").items
    assert item.name == "New port"
    assert item.related == []


@pytest.mark.rule("M-05")
def test_forgetting_the_successor_restores_the_superseded_item(store: MemoryStore) -> None:
    old = store.remember("Old port", "The port is 80", "fact")
    new = store.remember("New port", "The port is 1", "fact", related_to=[f"supersedes:{old.id}"])
    store.forget(new.id)
    assert names(store, "port") == ["Old port"]


@pytest.mark.rule("M-06")
def test_contradicted_items_are_marked(store: MemoryStore) -> None:
    first = store.remember("Ports", "The port is open", "fact")
    second = store.remember(
        "Firewall", "The port is closed", "fact", related_to=[f"contradicts:{first.id}"]
    )
    found = {item.name: item for item in store.context("port").items}
    assert "contradicted by 'Firewall'" in found["Ports"].reason
    assert found["Ports"].metadata["contradicted_by"] == [second.id]
    assert "contradicted" not in found["Firewall"].reason


@pytest.mark.parametrize("how", ["contradicts", "requires", "supports", "decides"])
def test_relations_are_visible_from_both_ends(store: MemoryStore, how: str) -> None:
    first = store.remember("First", "apple", "note")
    store.remember("Second", "pear", "note", related_to=[f"{how}:{first.id}"])
    [apple] = store.context("apple").items
    [pear] = store.context("pear").items
    assert [(r.name, r.relationship, r.direction, r.distance) for r in apple.related] == [
        ("Second", how, "incoming", 1)
    ]
    assert [(r.name, r.relationship, r.direction) for r in pear.related] == [
        ("First", how, "outgoing")
    ]


@pytest.mark.rule("M-04")
def test_a_bare_id_is_a_plain_relation(store: MemoryStore) -> None:
    first = store.remember("First", "apple", "note")
    store.remember("Second", "pear", "note", related_to=[first.id])
    [pear] = store.context("pear").items
    assert [r.relationship for r in pear.related] == ["related_to"]


def test_related_items_can_be_left_out_or_limited(store: MemoryStore) -> None:
    hub = store.remember("Hub", "apple", "note")
    for number in range(5):
        store.remember(f"Spoke {number}", "pear", "note", related_to=[hub.id])
    assert len(store.context("apple").items[0].related) == 3
    assert len(store.context("apple", related_limit=5).items[0].related) == 5
    assert store.context("apple", include_related=False).items[0].related == []
    assert store.context("apple", related_limit=-1).items[0].related == []


def test_distinct_items_with_the_same_title_both_survive(store: MemoryStore) -> None:
    store.remember("Standup", "We shipped the apple", "session")
    store.remember("Standup", "We broke the apple", "session")
    assert names(store, "apple") == ["Standup", "Standup"]


@pytest.mark.rule("M-07")
def test_a_forgotten_item_is_not_found_through_its_neighbours(
    store: MemoryStore, location: str
) -> None:
    # In one neighbourhood, so that the neighbours are indexed with its words.
    for text in ("we talked", "the zebra password", "we parted"):
        answer = store.remember("Turn", text, "message", source="talk")
        if "zebra" in text:
            secret = answer
    assert len(store.context("zebra").items) == 3
    store.forget(secret.id)
    assert store.context("zebra").items == []
    if not is_database(location):
        rows(location, "INSERT INTO memory_index (memory_index) VALUES ('integrity-check')")
    assert rows(location, "SELECT count(*) FROM memory WHERE near LIKE '%zebra%'") == [(0,)]


def test_forgetting_an_unknown_item_is_refused(store: MemoryStore) -> None:
    with pytest.raises(UnknownMemory, match="Unknown memory: mem_x"):
        store.forget("mem_x")


@pytest.mark.rule("M-07")
def test_only_its_author_or_the_owner_forgets_a_shared_item(store: MemoryStore) -> None:
    alice = store.acting_as(Principal("alice", frozenset({"p"})))
    bob = store.acting_as(Principal("bob", frozenset({"p"})))
    shared = alice.remember("Shared", "apple", "note", project="p")
    with pytest.raises(AccessDenied):
        bob.forget(shared.id)
    assert store.forget(shared.id).forgotten


@pytest.mark.rule("M-05")
def test_forgetting_the_middle_of_a_chain_restores_nothing(store: MemoryStore) -> None:
    first = store.remember("First", "the port", "fact")
    middle = store.remember("Middle", "the port", "fact", related_to=[f"supersedes:{first.id}"])
    last = store.remember("Last", "the port", "fact", related_to=[f"supersedes:{middle.id}"])
    store.forget(middle.id)
    assert [item.name for item in store.context("port").items] == ["Last"]
    store.forget(last.id)
    assert [item.name for item in store.context("port").items] == ["First"]


@pytest.mark.rule("M-05")
def test_a_superseded_turn_shares_no_words_until_it_is_restored(store: MemoryStore) -> None:
    first = store.remember("First", "the code is walrus", "message", source="D1:1")
    store.remember("Answer", "noted", "message", source="D1:2")
    later = store.remember("Later", "it is heron", "message", source="D1:3",
                           related_to=[f"supersedes:{first.id}"])  # fmt: skip
    store.remember("Last", "good", "message", source="D1:4")
    assert [item.name for item in store.context("walrus").items] == []
    assert [item.name for item in store.context("heron").items] == ["Later", "Answer", "Last"]
    store.forget(later.id)
    assert [item.name for item in store.context("walrus").items] == ["First", "Last", "Answer"]
    assert [item.name for item in store.context("noted").items] == ["Answer", "First", "Last"]


@pytest.mark.rule("M-05")
def test_an_item_supersedes_only_inside_its_scope(store: MemoryStore) -> None:
    shared = store.remember("Shared", "apple", "note", project="p")
    with pytest.raises(InvalidMemory, match="another scope"):
        store.remember("Private", "apple", "note", related_to=[f"supersedes:{shared.id}"])


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"title": " "}, "title"),
        ({"title": "x" * 301}, "title"),
        ({"content": ""}, "content"),
        ({"content": "x" * 32_769}, "content"),
        ({"content": "\x00"}, "content"),
        ({"content": "\ud800"}, "content"),
        ({"kind": "No Kind"}, "kind"),
        ({"kind": "note\n"}, "kind"),
        ({"project": ""}, "project"),
        ({"project": "a\x1fb"}, "project"),
        ({"agent_id": "x" * 300}, "agent_id"),
        ({"tags": ["x"] * 65}, "tags"),
        ({"tags": "text"}, "tags"),
        ({"valid_at": "yesterday"}, "valid_at"),
        ({"valid_at": "2026-01-01\ud80012:00"}, "valid_at"),
        ({"valid_at": "2026-01-01\x0012:00"}, "valid_at"),
        ({"valid_at": "2026-01-01\n12:00"}, "valid_at"),
        ({"surprise": 1}, "surprise"),
    ],
)
@pytest.mark.rule("M-09")
def test_a_refusal_names_the_field(
    store: MemoryStore, fields: dict[str, object], complaint: str
) -> None:
    arguments = {"title": "T", "content": "c", "kind": "note", **fields}
    with pytest.raises(InvalidMemory, match=complaint):
        store.remember(**arguments)  # type: ignore[arg-type]


@pytest.mark.rule("M-03")
def test_an_unknown_kind_is_domain_knowledge(store: MemoryStore) -> None:
    assert store.remember("Song", "la la", "melody").facet == "domain"


@pytest.mark.rule("M-08")
def test_secrets_are_never_stored(store: MemoryStore, location: str) -> None:
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    answer = store.remember("Deploy", f"Use {key} to deploy", "note", tags=[key])
    assert answer.secrets_withheld
    [item] = store.context("deploy").items
    assert item.content == "Use [secret withheld] to deploy"
    store.close()
    assert not holds(location, key)


@pytest.mark.rule("M-08")
@pytest.mark.parametrize(
    "field",
    ["title", "content", "source", "url", "idempotency_key", "tags", "retrieval_keys"],
)
def test_no_field_stores_a_secret(store: MemoryStore, location: str, field: str) -> None:
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    fields: dict[str, Any] = {"title": "Deploy", "content": "zebra", "kind": "note"}
    fields[field] = [key] if field in ("tags", "retrieval_keys") else key
    assert store.remember(**fields).secrets_withheld
    assert store.remember("Plain", "zebra", "note", idempotency_key="a").secrets_withheld is False
    assert len({item.name for item in store.context("zebra deploy secret").items}) == 2
    store.close()
    assert not holds(location, key)


@pytest.mark.rule("M-08")
@pytest.mark.parametrize("field", ["domain", "project", "agent_id"])
def test_an_id_is_kept_unchanged_and_refused_if_it_looks_like_a_secret(
    store: MemoryStore, location: str, field: str
) -> None:
    ids = ("npm-package-publishing-pipeline", "hf-model-evaluation-harness", "sk-SK-shop-2026")
    for id in ids:
        stored: dict[str, Any] = {"title": id, "content": "zebra", "kind": "note", field: id}
        assert store.remember(**stored).secrets_withheld is False
    for id in ids:
        asked: dict[str, Any] = {field: id}
        assert [item.name for item in store.context("zebra", **asked).items] == [id]
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    secret: dict[str, Any] = {field: key}
    with pytest.raises(InvalidMemory, match=f"{field} must not be a secret"):
        store.remember("Deploy", "zebra", "note", **secret)
    with pytest.raises(InvalidMemory, match=f"{field} must not be a secret"):
        store.context("zebra", **secret)
    store.close()
    assert not holds(location, key)


@pytest.mark.rule("M-14")
def test_every_call_leaves_an_audit_row_without_the_text(store: MemoryStore, location: str) -> None:
    answer = store.remember("Tokens", "zebra", "note")
    store.context("the zebra crossing")
    store.forget(answer.id)
    audit = rows(location, "SELECT tool, principal, details FROM audit ORDER BY id")
    assert [row[:2] for row in audit] == [
        ("remember", "owner"),
        ("context", "owner"),
        ("forget", "owner"),
    ]
    assert f'"ids": ["{answer.id}"]' in audit[1][2]
    assert '"goal_length": 18' in audit[1][2]
    assert "zebra" not in str(audit)


@pytest.mark.rule("M-14")
def test_a_refused_call_leaves_one_audit_row_too(store: MemoryStore, location: str) -> None:
    outsider = store.acting_as(Principal("bob"))
    for name, arguments in [
        ("remember", {"title": "zebra"}),
        ("remember", {"title": "zebra", "content": "", "kind": "note"}),
        ("context", {"goal": " "}),
        ("context", {"goal": "zebra", "project": "web"}),
        ("forget", {"id": "zebra"}),
        ("zebra", {}),
    ]:
        with pytest.raises(MemoryStoreError):
            outsider.call(name, arguments)
    audit = audited(location)
    assert audit == [
        ("remember", "InvalidMemory"),
        ("remember", "InvalidMemory"),
        ("context", "InvalidMemory"),
        ("context", "ProjectDenied"),
        ("forget", "UnknownMemory"),
        ("unknown", "InvalidMemory"),
    ]


@pytest.mark.rule("M-44")
def test_without_a_kind_a_memory_is_an_episode(store: MemoryStore) -> None:
    answer = store.remember("Deploy", "It took an hour.")
    assert (answer.kind, answer.facet) == ("episode", "recent_memory")
    assert store.call("remember", {"title": "x", "content": "y"}).kind == "episode"  # type: ignore[union-attr]


@pytest.mark.rule("M-44")
def test_tasks_and_metadata_are_returned_and_tasks_are_found(store: MemoryStore) -> None:
    store.remember(
        "Deploy",
        "It took an hour.",
        "claim",
        task_ids=["OPS-17"],
        active_task="OPS-18",
        metadata={"minutes": 60, "nested": {"password": "hunter2", "list": [1, (2, 3)]}},
    )
    [item] = store.context("OPS-18").items
    assert item.facet == "domain"
    assert item.metadata["task_ids"] == ["OPS-18", "OPS-17"]
    assert item.metadata["active_task"] == "OPS-18"
    assert item.metadata["minutes"] == 60
    assert "hunter2" not in str(item)


@pytest.mark.rule("M-44")
def test_no_value_of_metadata_is_lost(store: MemoryStore) -> None:
    values: dict[str, Any] = {
        "retries": 0,
        "share": 0.0,
        "draft": False,
        "reviewer": None,
        "labels": [],
        "facts": {},
    }
    store.remember("Deploy", "It took an hour.", metadata=values)
    [item] = store.context("deploy").items
    assert {name: item.metadata.get(name, "lost") for name in values} == values


@pytest.mark.rule("M-44")
@pytest.mark.parametrize(
    "metadata",
    [
        {"author": "boss"},
        {"x": "y" * 9000},
        {str(n): n for n in range(65)},
        {"": 1},
        {"a": "\x00"},
        {"a": nested(16)},
        {"a": nested(190)},
        {"a": math.nan},
        {"a": [10**64]},
        {"a": -(10**63)},
        {"a": [-math.inf]},
        {"a": {"b": {1}}},
        {"a": b"x"},
        {"a": {1: 2}},
        {"a": [date(2026, 1, 1)]},
    ],
)
def test_unsuitable_metadata_are_refused(store: MemoryStore, metadata: dict[str, Any]) -> None:
    with pytest.raises(InvalidMemory, match="metadata"):
        store.remember("t", "c", metadata=metadata)


@pytest.mark.rule("M-02")
@pytest.mark.rule("M-44")
def test_a_repetition_with_other_metadata_is_refused(store: MemoryStore) -> None:
    store.remember("t", "c", idempotency_key="k", metadata={"a": [1, (2,)]})
    assert not store.remember("t", "c", idempotency_key="k", metadata={"a": [1, (2,)]}).created
    with pytest.raises(InvalidMemory, match="idempotency_key"):
        store.remember("t", "c", idempotency_key="k", metadata={"a": 2})
