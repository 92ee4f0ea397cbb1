"""Adding and removing items, with the derived data that follows from it.

Short items of one neighbourhood are also indexed by the text of their neighbours (`near`, M-28),
and a superseded item is hidden and shares no text (M-05). Both must follow every addition, removal
and superseding relation.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from mcpp_agents.memory.search.neighbours import are_neighbours, neighbourhood_of
from mcpp_agents.memory.storage.connection import SqliteConnection
from mcpp_agents.memory.storage.engine import Item, ItemLink
from mcpp_agents.memory.storage.fts_table import FtsTable
from mcpp_agents.memory.storage.rows import (
    FROM_ITEMS,
    INSERTED_COLUMNS,
    ITEM_COLUMNS,
    item_from_row,
    item_values,
)


class ItemWriter:
    """Writes the tables `memory`, `relation`, `tally` and the word index inside a transaction."""

    def __init__(self, connection: SqliteConnection, table: FtsTable) -> None:
        self._connection = connection
        self._table = table

    def add(self, items: Sequence[Item], links: Iterable[ItemLink]) -> None:
        """Insert items and relations, and index them with their neighbours."""
        scopes = {name: self._scope_id(name) for name in {item.scope for item in items}}
        latest: dict[tuple[int, str], tuple[int, Item]] = {}  # the last item of each neighbourhood
        near: dict[int, list[str]] = {}
        rows: list[tuple[Any, ...]] = []
        [last] = self._connection.one(
            "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'memory'"
        )
        first = seq = last + 1
        for seq, item in enumerate(items, first):
            scope, neighbourhood = scopes[item.scope], neighbourhood_of(item)
            before = latest.get((scope, neighbourhood)) or self._latest(scope, neighbourhood)
            near[seq] = []
            if before and are_neighbours(before[1], item):
                near[seq].append(before[1].content)
                near.setdefault(before[0], []).append(item.content)
            else:
                before = None
            latest[scope, neighbourhood] = seq, item
            rows.append((seq, scope, neighbourhood, before and before[0], item))
        for older in sorted(near.keys() - range(first, seq + 1)):
            self._set_near(older, near.pop(older), append=True)
        self._connection.raw.executemany(
            "INSERT INTO memory"
            f" (seq, scope, neighbourhood, before, near, {', '.join(INSERTED_COLUMNS)})"
            f" VALUES (?, ?, ?, ?, ?{', ?' * len(INSERTED_COLUMNS)})",
            [
                (seq, scope, neighbourhood, before, "\n".join(near[seq]), *item_values(item))
                for seq, scope, neighbourhood, before, item in rows
            ],
        )
        self._table.add(first, seq)
        self._connection.execute("UPDATE tally SET items = items + ?", [len(rows)])
        for link in links:
            self._add_link(link)

    def remove(self, seq: int) -> None:
        """Delete an item, its relations and vectors, and its text in its neighbours."""
        scope, neighbourhood = self._connection.one(
            "SELECT scope, neighbourhood FROM memory WHERE seq = ?", seq
        )
        self._table.remove(seq)
        superseded = self._transfer_superseded(seq)
        execute = self._connection.execute
        execute("DELETE FROM relation WHERE ? IN (source, target)", [seq])
        execute("DELETE FROM vector WHERE seq = ?", [seq])
        execute("DELETE FROM memory WHERE seq = ?", [seq])
        execute("INSERT INTO forgotten (seq) VALUES (?)", [seq])
        execute("UPDATE tally SET items = items - 1")
        if neighbourhood:  # an item without a neighbourhood has no neighbours
            self._reindex_around(scope, neighbourhood, seq)
            execute(
                "UPDATE memory SET before = NULL"
                " WHERE scope = ? AND neighbourhood = ? AND before = ?",
                [scope, neighbourhood, seq],
            )
        for target in superseded:
            self._update_superseded(target)

    def _scope_id(self, name: str) -> int:
        self._connection.execute("INSERT OR IGNORE INTO scope (name) VALUES (?)", [name])
        return int(self._connection.one("SELECT id FROM scope WHERE name = ?", name)[0])

    # Neighbours in a neighbourhood

    def _place(self, seq: int) -> tuple[int, str]:
        query = "SELECT scope, neighbourhood FROM memory WHERE seq = ?"
        scope, neighbourhood = self._connection.one(query, seq)
        return scope, neighbourhood

    def _latest(self, scope: int, neighbourhood: str) -> tuple[int, Item] | None:
        rows = self._connection.all(
            f"SELECT {ITEM_COLUMNS} {FROM_ITEMS} WHERE m.scope = ? AND m.neighbourhood = ?"
            " AND m.superseded = 0 ORDER BY m.seq DESC LIMIT 1",
            scope,
            neighbourhood,
        )
        return (rows[0][0], item_from_row(rows[0])) if rows else None

    def _reindex_around(self, scope: int, neighbourhood: str, seq: int) -> None:
        """Update the neighbour text of an item that appeared or disappeared, and of those beside.

        The text it shared must be removed, or the neighbours would still be found by it.
        """
        if not neighbourhood:
            return
        found = set()
        for order, side in (("DESC", "<"), ("ASC", ">="), ("ASC", ">")):
            found |= set(
                self._connection.all(
                    f"SELECT seq FROM memory WHERE scope = ? AND neighbourhood = ? AND seq {side} ?"
                    f" AND superseded = 0 ORDER BY seq {order} LIMIT 1",
                    scope,
                    neighbourhood,
                    seq,
                )
            )
        for (each,) in sorted(found):
            self._set_near(each, self._neighbour_texts(scope, neighbourhood, each))

    def _neighbour_texts(self, scope: int, neighbourhood: str, seq: int) -> list[str]:
        """Return the texts of an item's neighbours, at most one before and one after it."""
        rows = []
        for order, side, count in (("DESC", "<=", 2), ("ASC", ">", 1)):
            rows += self._connection.all(
                f"SELECT {ITEM_COLUMNS} {FROM_ITEMS} WHERE m.scope = ? AND m.neighbourhood = ?"
                f" AND m.seq {side} ? AND m.superseded = 0 ORDER BY m.seq {order} LIMIT {count}",
                scope,
                neighbourhood,
                seq,
            )
        items = sorted(map(item_from_row, rows), key=lambda item: item.seq)
        neighbours = [(a, b) for a, b in pairwise(items) if are_neighbours(a, b)]
        return [(b if a.seq == seq else a).content for a, b in neighbours]

    def _set_near(self, seq: int, texts: list[str], *, append: bool = False) -> None:
        """Set the neighbour text of an item, or append to it, and index the item again."""
        self._table.remove(seq)
        self._connection.execute(
            "UPDATE memory SET near = near || char(10) || ? WHERE seq = ?"
            if append
            else "UPDATE memory SET near = ? WHERE seq = ?",
            ["\n".join(texts), seq],
        )
        self._table.add(seq, seq)

    # Relations

    def _add_link(self, link: ItemLink) -> None:
        inserted = self._connection.execute(
            "INSERT OR IGNORE INTO relation (source, relationship, target)"
            " SELECT a.seq, ?, b.seq FROM memory a, memory b WHERE a.id = ? AND b.id = ?",
            [link.relationship, link.source, link.target],
        )
        if inserted.rowcount and link.relationship == "supersedes":
            [target] = self._connection.one("SELECT seq FROM memory WHERE id = ?", link.target)
            self._update_superseded(target)

    def _transfer_superseded(self, seq: int) -> list[int]:
        """Let the successors of an item supersede what it superseded; return those items."""
        self._connection.execute(
            "INSERT OR IGNORE INTO relation (source, relationship, target)"
            " SELECT later.source, 'supersedes', earlier.target"
            " FROM relation later, relation earlier"
            " WHERE later.target = ?1 AND later.relationship = 'supersedes'"
            " AND earlier.source = ?1 AND earlier.relationship = 'supersedes'",
            [seq],
        )
        rows = self._connection.all(
            "SELECT target FROM relation WHERE source = ? AND relationship = 'supersedes'", seq
        )
        return [row[0] for row in rows]

    def _update_superseded(self, seq: int) -> None:
        """Count the items that supersede one; only at zero does it share text with neighbours."""
        self._connection.execute(
            "UPDATE memory SET superseded = (SELECT count(*) FROM relation"
            " WHERE target = memory.seq AND relationship = 'supersedes') WHERE seq = ?",
            [seq],
        )
        scope, neighbourhood = self._connection.one(
            "SELECT scope, neighbourhood FROM memory WHERE seq = ?", seq
        )
        self._reindex_around(scope, neighbourhood, seq)
