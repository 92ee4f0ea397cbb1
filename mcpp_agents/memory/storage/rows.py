"""Rows: conversion between items and rows of the table `memory`, and rows of vectors."""

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from mcpp_agents.memory.search.terms import grams
from mcpp_agents.memory.search.times import time_terms
from mcpp_agents.memory.storage.engine import Item

ITEM_COLUMNS: Final = (
    "m.seq, m.id, s.name, m.kind, m.title, m.content, m.principal, m.origin, m.created_at,"
    " m.author, m.idempotency_key, m.more"
)
FROM_ITEMS: Final = "FROM memory m JOIN scope s ON s.id = m.scope"

# The columns that `item_values` fills.
INSERTED_COLUMNS: Final = (
    "id", "kind", "title", "content", "keys", "grams", "domain", "created_at", "since", "principal",
    "author", "origin", "idempotency_key", "more",
)  # fmt: skip
# Fields that no query selects by are kept as JSON in the column `more`.
_MORE: Final = (
    "updated_at",
    "domain",
    "project",
    "agent_id",
    "tags",
    "retrieval_keys",
    "source",
    "url",
    "valid_at",
    "metadata",
)


class StoredVector(NamedTuple):
    """A stored vector. `mark` increases with every vector that any process adds."""

    mark: int
    seq: int
    previous_seq: int | None  # the neighbour before it
    vector: bytes


class ChangedRow(NamedTuple):
    """A row to read again (see `changed` in the schema). `mark` increases with every change."""

    mark: int
    seq: int


def item_values(item: Item) -> tuple[Any, ...]:
    """Return the values of an item, in the order of INSERTED_COLUMNS."""
    keys = " ".join(filter(None, (*item.retrieval_keys, *item.tags, item.domain)))
    times = time_terms(item.content, item.day)
    return (
        item.id,
        item.kind,
        item.title,
        item.content,
        keys,
        " ".join(filter(None, [grams(f"{item.title}\n{item.content}\n{keys}"), *times])),
        item.domain and item.domain.casefold(),
        item.created_at,
        item.since,
        item.principal,
        item.author,
        item.origin,
        item.idempotency_key,
        json.dumps({name: getattr(item, name) for name in _MORE}, ensure_ascii=False),
    )


def item_from_row(row: Sequence[Any]) -> Item:
    """Return the item of a row of ITEM_COLUMNS."""
    seq, id_, scope, kind, title, content, principal, origin, created_at, author, key, more = row
    fields = json.loads(more)
    for name in ("tags", "retrieval_keys"):
        fields[name] = tuple(fields[name])
    return Item(
        seq=seq, id=id_, scope=scope, kind=kind, title=title, content=content, principal=principal,
        origin=origin, created_at=created_at, author=author, idempotency_key=key, **fields,
    )  # fmt: skip
