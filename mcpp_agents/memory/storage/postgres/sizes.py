"""The sizes of scopes, and of the domains in them: current items, their tokens, first and last.

They follow every write, so that a search need not read the items of its view to know them.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from mcpp_agents.memory.storage.postgres.database import PostgresDatabase

_REMOVED: Final = (
    "UPDATE {table} AS size SET items = items - 1, tokens = tokens - ?,"
    # The others are looked up in an index, and only if this is one of both.
    " first = CASE WHEN first = ? THEN (SELECT min(seq) {others}) ELSE first END,"
    " last = CASE WHEN last = ? THEN (SELECT max(seq) {others}) ELSE last END WHERE {row}"
)
_OTHERS: Final = "FROM memory m WHERE m.superseded = 0 AND m.seq <> ? AND m.scope = "
_REMOVED_FROM_SCOPE: Final = _REMOVED.format(
    table="scope", others=_OTHERS + "size.id", row="size.id = ?"
)
_REMOVED_FROM_DOMAIN: Final = _REMOVED.format(
    table="scope_domain",
    others=_OTHERS + "size.scope AND m.domain = size.domain",
    row="size.scope = ? AND size.domain = ?",
)


class SizedItem(NamedTuple):
    """What an item adds to the sizes."""

    seq: int
    scope: int
    domain: str | None
    tokens: int


class SizeTable:
    """Adds items to the sizes and removes them, inside a write."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def add(self, items: Iterable[SizedItem]) -> None:
        """Count items in, given in the order of their numbers."""
        of_scopes: dict[int, list[SizedItem]] = {}
        of_domains: dict[tuple[int, str], list[SizedItem]] = {}
        for item in items:
            of_scopes.setdefault(item.scope, []).append(item)
            if item.domain is not None:
                of_domains.setdefault((item.scope, item.domain), []).append(item)
        self._database.execute_many(
            "UPDATE scope SET items = items + ?, tokens = tokens + ?,"
            " first = least(first, ?), last = greatest(last, ?) WHERE id = ?",
            [(*_size(own), scope) for scope, own in sorted(of_scopes.items())],
        )
        self._database.execute_many(
            "INSERT INTO scope_domain AS size (items, tokens, first, last, scope, domain)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (scope, domain) DO UPDATE SET"
            " items = size.items + excluded.items, tokens = size.tokens + excluded.tokens,"
            " first = least(size.first, excluded.first), last = greatest(size.last, excluded.last)",
            [(*_size(own), *place) for place, own in sorted(of_domains.items())],
        )

    def remove(self, item: SizedItem) -> None:
        """Count an item out, before its row in `memory` changes."""
        seq = item.seq
        changed = [item.tokens, seq, seq, seq, seq, item.scope]
        self._database.execute(_REMOVED_FROM_SCOPE, changed)
        if item.domain is not None:
            self._database.execute(_REMOVED_FROM_DOMAIN, [*changed, item.domain])
            self._database.execute(
                "DELETE FROM scope_domain WHERE scope = ? AND domain = ? AND items = 0",
                [item.scope, item.domain],
            )


def _size(items: list[SizedItem]) -> tuple[int, int, int, int]:
    return len(items), sum(item.tokens for item in items), items[0].seq, items[-1].seq
