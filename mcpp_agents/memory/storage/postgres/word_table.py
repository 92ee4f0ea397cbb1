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
            " WHERE seq BETWEEN ? AND ? AND superseded = 0",
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
                "UPDATE scope SET items = items - 1, tokens = tokens - ? WHERE id = ?",
                [length, scope],
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
        self._database.execute_many(
            "UPDATE scope SET items = items + ?, tokens = tokens + ? WHERE id = ?",
            [
                (len(own), sum(counts.length for counts in own), scope)
                for scope in sorted({scope for _, scope, _ in items})
                if (own := [counts for _, of, counts in items if of == scope])
            ],
        )

    def _insert_postings(self, items: Sequence[_CountedItem]) -> None:
        """Insert all postings with one statement, in the order of the index."""
        rows = sorted(
            (scope, word, seq, counts.length, frequency, word in counts.own)
            for seq, scope, counts in items
            for word, frequency in counts.frequencies.items()
        )
        for start in range(0, len(rows), _POSTINGS_AT_ONCE):
            columns = zip(*rows[start : start + _POSTINGS_AT_ONCE], strict=True)
            self._database.execute(
                "INSERT INTO posting (scope, word, seq, length, frequency, own) SELECT * FROM"
                " unnest(?::int[], ?::bigint[], ?::bigint[], ?::int[], ?::real[], ?::bool[])",
                [sql_array(column) for column in columns],
            )
