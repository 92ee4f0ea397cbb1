"""The FTS5 table `memory_index`: adding and removing rows, and the queries that searches use.

An expression is a query in FTS5's syntax; `quoted` makes a term one. A mask restricts a query to
the rows of a view (see `view_masks`).
"""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from mcpp_agents.memory.storage.view_masks import Mask, mask_condition

# A title names the subject of an item, a neighbour's text only its surroundings.
COLUMN_WEIGHTS: Final = {"title": 2.0, "content": 1.0, "keys": 2.0, "near": 0.5, "grams": 1.0}
_WEIGHTS: Final = ", ".join(map(str, COLUMN_WEIGHTS.values()))


class FtsTable:
    """The table `memory_index`. The connection's owner holds the lock during every call."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, first: int, last: int) -> None:
        """Index the rows of `memory` in a range of numbers, both included."""
        self._connection.execute(
            "INSERT INTO memory_index (rowid, title, content, keys, near, grams)"
            " SELECT seq, title, content, keys, near, grams FROM memory WHERE seq BETWEEN ? AND ?",
            [first, last],
        )

    def remove(self, seq: int) -> None:
        """Remove a row from the index, before the row changes: FTS5 needs its indexed text."""
        self._connection.execute(
            "INSERT INTO memory_index (memory_index, rowid, title, content, keys, near, grams)"
            " SELECT 'delete', seq, title, content, keys, near, grams FROM memory WHERE seq = ?",
            [seq],
        )

    def purge(self) -> None:
        """Rewrite the index, so that no word of a removed row remains in it."""
        self._connection.execute("INSERT INTO memory_index (memory_index) VALUES ('optimize')")

    def count(self, expression: str, mask: Mask | None = None, since: int = 0) -> int:
        """Return how many rows after `since` match."""
        where, values = mask_condition(mask, since)
        sql = f"SELECT count(*) FROM memory_index WHERE memory_index MATCH ?{where}"
        return int(self.all(sql, expression, *values)[0][0])

    def bm25(self, expression: str, mask: Mask | None) -> list[Any]:
        """Return the rows that match, each with FTS5's own score."""
        where, values = mask_condition(mask)
        return self.all(
            f"SELECT rowid, -bm25(memory_index, {_WEIGHTS})"
            f" FROM memory_index WHERE memory_index MATCH ?{where}",
            expression,
            *values,
        )

    def rows(self, expression: str, mask: Mask | None) -> list[int]:
        """Return the rows that match."""
        where, values = mask_condition(mask)
        sql = f"SELECT rowid FROM memory_index WHERE memory_index MATCH ?{where}"
        return [row[0] for row in self.all(sql, expression, *values)]

    def newest(self, expression: str, mask: Mask | None, limit: int) -> list[int]:
        """Return the newest rows that match."""
        where, values = mask_condition(mask)
        rows = self.all(
            f"SELECT rowid FROM memory_index WHERE memory_index MATCH ?{where}"
            " ORDER BY rowid DESC LIMIT ?",
            expression,
            *values,
            limit,
        )
        return [row[0] for row in rows]

    def look_up(self, expression: str, seqs: Sequence[int]) -> list[int]:
        """Return which of a few rows match, by one lookup each."""
        rows = self.all(
            "SELECT rowid FROM memory_index WHERE memory_index MATCH ?"
            " AND rowid IN (SELECT value FROM json_each(?))",
            expression,
            json.dumps(list(seqs)),
        )
        return [row[0] for row in rows]

    def rows_with_neighbours(self, seqs: Sequence[int]) -> list[int]:
        """Return which of these rows are also indexed by the text of neighbours."""
        sql = "SELECT seq FROM memory WHERE near != '' AND seq IN (SELECT value FROM json_each(?))"
        return [row[0] for row in self.all(sql, json.dumps(list(seqs)))]

    def all(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows of a query on the file."""
        return self._connection.execute(sql, values).fetchall()


def quoted(term: str) -> str:
    """Quote a term for FTS5, so that nothing in it is an operator or a column."""
    return '"' + term.replace('"', '""') + '"'
