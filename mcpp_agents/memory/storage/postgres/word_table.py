"""The tables `word_list` and `posting`: the words of current items.

A superseded item is not in them, because no search finds it.
"""

from collections.abc import Sequence
from typing import Final

from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.fts_table import COLUMN_WEIGHTS
from mcpp_agents.memory.storage.postgres.database import PostgresDatabase, sql_array
from mcpp_agents.memory.storage.postgres.words import WordCounts, count_words

_POSTINGS_AT_ONCE: Final = 50_000
# The first or last of the other current items of a scope.
_OTHERS: Final = (
    "SELECT {}(seq) FROM memory m WHERE m.scope = scope.id AND superseded = 0 AND seq <> ?"
)
# The number and scope of an item, and its words.
_CountedItem = tuple[int, int, WordCounts]


class PostingTable:
    """Adds and removes the words of items, inside a write."""

    def __init__(self, database: PostgresDatabase, tokenizer: Tokenizer) -> None:
        self._database = database
        self._tokenizer = tokenizer

    def add(self, first: int, last: int) -> None:
        """Index the current rows of `memory` in a range of numbers, both included."""
        rows = self._database.all(
            f"SELECT seq, scope, {', '.join(COLUMN_WEIGHTS)} FROM memory"
            " WHERE seq BETWEEN ? AND ? AND superseded = 0 ORDER BY seq",
            first,
            last,
        )
        counted = count_words(self._tokenizer, (row[2:] for row in rows))
        items = [(row[0], row[1], counts) for row, counts in zip(rows, counted, strict=True)]
        self._insert_lists(items)
        self._insert_postings(items)

    def remove(self, seq: int) -> None:
        """Remove the words of an item, if it has any here."""
        removed = self._database.all(
            "DELETE FROM word_list WHERE seq = ? RETURNING scope, length, words", seq
        )
        for scope, length, words in removed:
            self._database.execute(
                "DELETE FROM posting WHERE scope = ? AND word = ANY (?) AND seq = ?",
                [scope, words, seq],
            )
            self._database.execute(
                "UPDATE scope SET items = items - 1, tokens = tokens - ?,"
                # Read in the index, and only if this is one of both.
                f" first = CASE WHEN first = ? THEN ({_OTHERS.format('min')}) ELSE first END,"
                f" last = CASE WHEN last = ? THEN ({_OTHERS.format('max')}) ELSE last END"
                " WHERE id = ?",
                [length, seq, seq, seq, seq, scope],
            )

    def _insert_lists(self, items: Sequence[_CountedItem]) -> None:
        self._database.execute_many(
            "INSERT INTO word_list (seq, scope, length, words, pairs)"
            " VALUES (?, ?, ?, ?::bigint[], ?::bigint[])",
            [
                (seq, scope, counts.length, sql_array(counts.frequencies), sql_array(counts.pairs))
                for seq, scope, counts in items
            ],
        )
        by_scope: dict[int, list[tuple[int, WordCounts]]] = {}
        for seq, scope, counts in items:
            by_scope.setdefault(scope, []).append((seq, counts))
        self._database.execute_many(
            "UPDATE scope SET items = items + ?, tokens = tokens + ?,"
            " first = least(first, ?), last = greatest(last, ?) WHERE id = ?",
            [
                (len(own), sum(counts.length for _, counts in own), own[0][0], own[-1][0], scope)
                for scope, own in sorted(by_scope.items())
            ],
        )

    def _insert_postings(self, items: Sequence[_CountedItem]) -> None:
        """Insert all postings with one statement, in the order of the index."""
        rows = sorted(
            (word, scope, seq, counts.length, frequency, word in counts.own)
            for seq, scope, counts in items
            for word, frequency in counts.frequencies.items()
        )
        for start in range(0, len(rows), _POSTINGS_AT_ONCE):
            columns = zip(*rows[start : start + _POSTINGS_AT_ONCE], strict=True)
            self._database.execute(
                "INSERT INTO posting (word, scope, seq, length, frequency, own) SELECT * FROM"
                " unnest(?::bigint[], ?::int[], ?::bigint[], ?::int[], ?::real[], ?::bool[])",
                [sql_array(column) for column in columns],
            )
