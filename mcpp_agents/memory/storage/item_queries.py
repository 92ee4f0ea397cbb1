"""The SQL that both engines share: queries on the tables, in a dialect that both understand.

Placeholders are `?`. A list of values is one placeholder: `Dialect.among` writes the condition. A
condition restricts a query on `memory m` to a view.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from mcpp_agents.memory.access import View
from mcpp_agents.memory.storage.engine import Item, LinkedItem, Outline
from mcpp_agents.memory.storage.rows import FROM_ITEMS, ITEM_COLUMNS, item_from_row

# An SQL condition on `memory m`, beginning with AND, and its values.
Condition = tuple[str, Sequence[Any]]


class Written(Protocol):
    """The result of a statement that writes."""

    @property
    def rowcount(self) -> int:
        """The number of rows that were changed."""


class SqlConnection(Protocol):
    """A connection to a database that may be used by several threads."""

    def reading(self) -> AbstractContextManager[None]:
        """Run the block's reads on one snapshot; inside another transaction, as part of it."""

    def execute(self, sql: str, values: Sequence[Any] = ()) -> Written:
        """Execute a statement of a write."""

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement of a write for each row of values; return how many rows changed."""

    def all(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows of a query."""

    def one(self, sql: str, *values: Any) -> tuple[Any, ...]:
        """Return the first row of a query that has one."""


class Dialect(NamedTuple):
    """How a database compares a column with a list: an operator, and the list as one value."""

    among: str
    list_value: Callable[[Sequence[Any]], Any]


class ItemQueries:
    """The part of an engine that consists of plain SQL."""

    def __init__(self, connection: SqlConnection, dialect: Dialect) -> None:
        self._sql = connection
        self._among, self._list = dialect

    @abstractmethod
    def _condition(self, view: View | None, *, by_scope: bool = False) -> Condition:
        """Return the condition that keeps a query inside a view; None sees everything.

        Args:
            by_scope: rows are found by their scope in an index, rather than by their numbers.
        """

    # Items

    def find(self, ids: Sequence[str], view: View | None) -> dict[str, Item]:
        items = self._select(view, f"m.id {self._among}", self._list(list(ids)))
        return {item.id: item for item in items}

    def find_by_key(self, principal: str, author: str | None, key: str) -> Item | None:
        where = "m.principal = ? AND coalesce(m.author, '') = ? AND m.idempotency_key = ?"
        return next(iter(self._select(None, where, principal, author or "", key)), None)

    def stored_by(self, principal: str) -> list[Item]:
        return self._select(None, "m.principal = ?", principal)

    def fetch(self, seqs: Sequence[int], view: View) -> dict[int, Item]:
        where = f"m.seq {self._among} AND m.superseded = 0"
        return {item.seq: item for item in self._select(view, where, self._list(list(seqs)))}

    def items_without_vector(self, model: str, after: int, limit: int) -> list[Item]:
        where = f"m.seq > ? AND NOT EXISTS ({self._vector_of_item})"
        return self._select(None, where, after, model, limit, end="ORDER BY m.seq LIMIT ?")

    @property
    @abstractmethod
    def _vector_of_item(self) -> str:
        """A query of the vector that `m` has of the model given by a placeholder."""

    def outline(self, seqs: Sequence[int], view: View) -> list[Outline]:
        where = f"m.seq {self._among} AND m.superseded = 0"
        return self._outlines(view, where, self._list(list(seqs)))

    def newest(self, view: View, kinds: Sequence[str], limit: int) -> list[Outline]:
        where = f"m.kind {self._among} AND m.superseded = 0"
        end = "ORDER BY m.seq DESC LIMIT ?"
        return self._outlines(view, where, self._list(list(kinds)), limit, end=end, by_scope=True)

    def linked(self, seqs: Sequence[int], view: View, limit: int) -> list[LinkedItem]:
        with self._sql.reading():
            inside, values = self._condition(view)
            directions = [
                f"SELECT {outgoing} AS outgoing, r.{here} AS here, r.{there} AS there,"
                " r.relationship AS relationship"
                f" FROM relation r JOIN memory m ON m.seq = r.{there}"
                f" WHERE r.{here} {self._among} AND m.superseded = 0{inside}"
                for outgoing, here, there in ((1, "source", "target"), (0, "target", "source"))
            ]
            # Ranked by numbers alone: any number of items may be related to one, and be long.
            rows = self._sql.all(
                f"WITH link AS ({' UNION ALL '.join(directions)}), ranked AS (SELECT link.*,"
                " row_number() OVER (PARTITION BY here ORDER BY outgoing DESC, there DESC)"
                " AS place,"
                " row_number() OVER (PARTITION BY here, outgoing, relationship ORDER BY there DESC)"
                " AS place_alike,"
                " count(*) OVER (PARTITION BY here, outgoing, relationship) AS alike FROM link)"
                f" SELECT outgoing, here, relationship, alike, {ITEM_COLUMNS}"
                " FROM ranked JOIN memory m ON m.seq = there JOIN scope s ON s.id = m.scope"
                " WHERE place <= ?"
                " OR (outgoing = 0 AND relationship = 'contradicts' AND place_alike <= ?)"
                " ORDER BY outgoing DESC, there DESC",
                *[self._list(list(seqs)), *values] * 2,
                limit,
                limit,
            )
        return [
            LinkedItem(of, item_from_row(row), relationship, bool(outgoing), alike)
            for outgoing, of, relationship, alike, *row in rows
        ]

    def _select(self, view: View | None, where: str, *values: Any, end: str = "") -> list[Item]:
        start = f"SELECT {ITEM_COLUMNS} {FROM_ITEMS}"
        return [item_from_row(row) for row in self._rows(start, view, where, values, end)]

    def _outlines(
        self, view: View, where: str, *values: Any, end: str = "", by_scope: bool = False
    ) -> list[Outline]:
        start = "SELECT m.seq, m.kind, m.since FROM memory m"
        rows = self._rows(start, view, where, values, end, by_scope=by_scope)
        return [Outline(*row) for row in rows]

    def _rows(
        self,
        start: str,
        view: View | None,
        where: str,
        values: Sequence[Any],
        end: str,
        *,
        by_scope: bool = False,
    ) -> list[Any]:
        """Return the rows inside a view; the value of a LIMIT in `end` is the last one."""
        with self._sql.reading():
            inside, scopes = self._condition(view, by_scope=by_scope)
            count = len(values) - end.count("?")
            return self._sql.all(
                f"{start} WHERE {where}{inside} {end}", *values[:count], *scopes, *values[count:]
            )

    # Quotas, and contexts that opted out

    def quota_used(self, principal: str, author: str, since: float) -> int:
        sql = "SELECT coalesce(sum(items), 0) FROM quota WHERE principal = ? AND author = ?"
        with self._sql.reading():
            self._condition(None)
            return int(self._sql.one(f"{sql} AND at > ?", principal, author, since)[0])

    def charge_quota(
        self, principal: str, author: str, *, items: int, at: float, expired_at: float
    ) -> None:
        self._sql.execute("DELETE FROM quota WHERE at <= ?", [expired_at])
        self._sql.execute(
            "INSERT INTO quota (principal, author, at, items) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (principal, author, at)"
            " DO UPDATE SET items = quota.items + excluded.items",
            [principal, author, at, items],
        )

    def opted_out(self, principal: str) -> frozenset[str]:
        with self._sql.reading():
            self._condition(None)
            rows = self._sql.all("SELECT context FROM opt_out WHERE principal = ?", principal)
        return frozenset(row[0] for row in rows)

    def opt_out(self, principal: str, added: Iterable[str], removed: Iterable[str]) -> None:
        self._sql.execute_many(
            "DELETE FROM opt_out WHERE principal = ? AND context = ?",
            [(principal, context) for context in removed],
        )
        self._sql.execute_many(
            "INSERT INTO opt_out (principal, context) VALUES (?, ?) ON CONFLICT DO NOTHING",
            [(principal, context) for context in added],
        )
