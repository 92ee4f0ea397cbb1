"""Adding and removing items, with the derived data that follows from it.

Short items of one neighbourhood are also indexed by the text of their neighbours (`near`, M-28),
and a superseded item is hidden and shares no text (M-05). Both must follow every addition, removal
and superseding relation.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mcpp_agents.memory.search.neighbours import (
    NEAR_BEFORE,
    are_neighbours,
    before_in_row,
    neighbourhood_of,
)
from mcpp_agents.memory.storage.engine import Item, ItemLink
from mcpp_agents.memory.storage.item_queries import SqlConnection
from mcpp_agents.memory.storage.rows import (
    FROM_ITEMS,
    INSERTED_COLUMNS,
    ITEM_COLUMNS,
    item_from_row,
    item_values,
)


class WordTable(Protocol):
    """The words of items."""

    def add(self, first: int, last: int) -> None:
        """Index the rows of `memory` in a range of numbers, both included."""

    def remove(self, seq: int) -> None:
        """Remove a row from the index, before the row changes."""


class ItemWriter:
    """Writes `memory`, `relation` and the word index inside a transaction, in shared SQL."""

    def __init__(self, connection: SqlConnection, table: WordTable) -> None:
        self._connection = connection
        self._table = table

    @abstractmethod
    def _reserve(self, count: int) -> int:
        """Return the first of so many new numbers."""

    @abstractmethod
    def _scope_id(self, name: str) -> int:
        """Return the id of a scope, which is created if it is new."""

    def _neighbourhood(self, item: Item) -> str:
        """Return the key of an item's neighbourhood, empty if it has none."""
        return neighbourhood_of(item)

    @abstractmethod
    def _remove_derived(self, seq: int) -> None:
        """Remove what was derived from an item, apart from its words."""

    @abstractmethod
    def _note_change(self, seq: int) -> None:
        """Note that an item was superseded or restored, or follows another one."""

    def add(self, items: Sequence[Item], links: Iterable[ItemLink]) -> None:
        """Insert items and relations, and index them with their neighbours."""
        if not items:
            return
        scopes = {name: self._scope_id(name) for name in {item.scope for item in items}}
        latest: dict[tuple[int, str], list[Item]] = {}  # the last items of each neighbourhood
        near: dict[int, list[str]] = {}
        rows: list[tuple[Any, ...]] = []
        first = seq = self._reserve(len(items))
        for seq, new in enumerate(items, first):
            item = replace(new, seq=seq)
            scope, neighbourhood = scopes[item.scope], self._neighbourhood(item)
            earlier = latest.get((scope, neighbourhood))
            if earlier is None:  # without a neighbourhood an item has no neighbours
                earlier = self._latest(scope, neighbourhood) if neighbourhood else []
            row = before_in_row(earlier, item)
            near[seq] = [each.content for each in row]
            if row:
                near.setdefault(row[0].seq, []).append(item.content)
            latest[scope, neighbourhood] = [*earlier, item][-NEAR_BEFORE:]
            rows.append((seq, scope, neighbourhood, row[0].seq if row else None, item))
        for older in sorted(near.keys() - range(first, seq + 1)):
            self._append_near(older, near.pop(older))
        self._connection.execute_many(
            "INSERT INTO memory"
            f" (seq, scope, neighbourhood, before, near, {', '.join(INSERTED_COLUMNS)})"
            f" VALUES (?, ?, ?, ?, ?{', ?' * len(INSERTED_COLUMNS)})",
            [
                (seq, scope, neighbourhood, before, "\n".join(near[seq]), *item_values(item))
                for seq, scope, neighbourhood, before, item in rows
            ],
        )
        self._table.add(first, seq)
        self.add_links(links)

    def add_links(self, links: Iterable[ItemLink]) -> int:
        """Insert relations between stored items, and return how many are new."""
        return sum(self._add_link(link) for link in links)

    def remove(self, seq: int) -> None:
        """Delete an item, its relations and vectors, and its text in its neighbours."""
        scope, neighbourhood = self._connection.one(
            "SELECT scope, neighbourhood FROM memory WHERE seq = ?", seq
        )
        self._table.remove(seq)
        superseded = self._transfer_superseded(seq)
        execute = self._connection.execute
        execute("DELETE FROM relation WHERE ? IN (source, target)", [seq])
        self._remove_derived(seq)
        execute("DELETE FROM memory WHERE seq = ?", [seq])
        self._update_neighbours(scope, neighbourhood, seq)
        for target in superseded:
            self._update_superseded(target)

    # Neighbours in a neighbourhood

    def _latest(self, scope: int, neighbourhood: str) -> list[Item]:
        rows = self._connection.all(
            f"SELECT {ITEM_COLUMNS} {FROM_ITEMS} WHERE m.scope = ? AND m.neighbourhood = ?"
            f" AND m.superseded = 0 ORDER BY m.seq DESC LIMIT {NEAR_BEFORE}",
            scope,
            neighbourhood,
        )
        return [item_from_row(row) for row in reversed(rows)]

    def _update_neighbours(self, scope: int, neighbourhood: str, seq: int) -> None:
        """Update an item that appeared or disappeared, and those that it is near to.

        The text it shared must be removed, or the neighbours would still be found by it.
        """
        if not neighbourhood:  # an item without one has no neighbours
            return
        found = set()
        for order, side, count in (("DESC", "<", 1), ("ASC", ">=", 1), ("ASC", ">", NEAR_BEFORE)):
            found |= set(
                self._connection.all(
                    f"SELECT seq FROM memory WHERE scope = ? AND neighbourhood = ? AND seq {side} ?"
                    f" AND superseded = 0 ORDER BY seq {order} LIMIT {count}",
                    scope,
                    neighbourhood,
                    seq,
                )
            )
        for (each,) in sorted(found):
            self._join_neighbours(scope, neighbourhood, each)

    def _join_neighbours(self, scope: int, neighbourhood: str, seq: int) -> None:
        """Join an item to its neighbours, at most three before and one after it."""
        rows = []
        for order, side, count in (("DESC", "<=", NEAR_BEFORE + 1), ("ASC", ">", 1)):
            rows += self._connection.all(
                f"SELECT {ITEM_COLUMNS} {FROM_ITEMS} WHERE m.scope = ? AND m.neighbourhood = ?"
                f" AND m.seq {side} ? AND m.superseded = 0 ORDER BY m.seq {order} LIMIT {count}",
                scope,
                neighbourhood,
                seq,
            )
        items = sorted(map(item_from_row, rows), key=lambda item: item.seq)
        place = [item.seq for item in items].index(seq)
        before = before_in_row(items[:place], items[place])
        after = [each for each in items[place + 1 :] if are_neighbours(items[place], each)]
        texts = [each.content for each in before + after]
        self._table.remove(seq)
        self._connection.execute(
            "UPDATE memory SET near = ?, before = ? WHERE seq = ?",
            ["\n".join(texts), before[0].seq if before else None, seq],
        )
        self._table.add(seq, seq)
        self._note_change(seq)

    def _append_near(self, seq: int, texts: list[str]) -> None:
        """Append to the neighbour text of an item that others have followed."""
        self._table.remove(seq)
        self._connection.execute(
            "UPDATE memory SET near = near || ? WHERE seq = ?", ["\n" + "\n".join(texts), seq]
        )
        self._table.add(seq, seq)

    # Relations

    def _add_link(self, link: ItemLink) -> bool:
        inserted = self._connection.execute(
            "INSERT INTO relation (source, relationship, target)"
            " SELECT a.seq, ?, b.seq FROM memory a, memory b WHERE a.id = ? AND b.id = ?"
            " ON CONFLICT DO NOTHING",
            [link.relationship, link.source, link.target],
        )
        if inserted.rowcount and link.relationship == "supersedes":
            [target] = self._connection.one("SELECT seq FROM memory WHERE id = ?", link.target)
            self._update_superseded(target)
        return bool(inserted.rowcount)

    def _transfer_superseded(self, seq: int) -> list[int]:
        """Let the successors of an item supersede what it superseded; return those items."""
        self._connection.execute(
            "INSERT INTO relation (source, relationship, target)"
            " SELECT later.source, 'supersedes', earlier.target"
            " FROM relation later JOIN relation earlier ON earlier.source = later.target"
            " WHERE later.target = ? AND later.relationship = 'supersedes'"
            " AND earlier.relationship = 'supersedes' ON CONFLICT DO NOTHING",
            [seq],
        )
        rows = self._connection.all(
            "SELECT target FROM relation WHERE source = ? AND relationship = 'supersedes'", seq
        )
        return [row[0] for row in rows]

    def _update_superseded(self, seq: int) -> None:
        """Count the items that supersede one; only at zero does it share text with neighbours."""
        self._table.remove(seq)
        self._connection.execute(
            "UPDATE memory SET superseded = (SELECT count(*) FROM relation"
            " WHERE target = memory.seq AND relationship = 'supersedes') WHERE seq = ?",
            [seq],
        )
        self._table.add(seq, seq)
        self._note_change(seq)
        scope, neighbourhood = self._connection.one(
            "SELECT scope, neighbourhood FROM memory WHERE seq = ?", seq
        )
        self._update_neighbours(scope, neighbourhood, seq)
