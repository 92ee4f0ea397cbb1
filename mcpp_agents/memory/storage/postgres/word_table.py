"""The tables `word_list` and `posting`, the words of current items, and the sizes they add up to.

A superseded item is not in them, because no search finds it.
"""

from collections.abc import Sequence
from typing import Final

from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.fts_table import COLUMN_WEIGHTS
from mcpp_agents.memory.storage.postgres.database import PostgresDatabase, sql_array
from mcpp_agents.memory.storage.postgres.sizes import SizedItem, SizeTable
from mcpp_agents.memory.storage.postgres.words import WordCounts, count_words

_POSTINGS_AT_ONCE: Final = 50_000


class PostingTable:
    """Adds and removes the words of items, inside a write."""

    def __init__(self, database: PostgresDatabase, tokenizer: Tokenizer) -> None:
        self._database = database
        self._tokenizer = tokenizer
        self._sizes = SizeTable(database)

    def add(self, first: int, last: int) -> None:
        """Index the current rows of `memory` in a range of numbers, both included."""
        rows = self._database.all(
            f"SELECT seq, scope, domain, {', '.join(COLUMN_WEIGHTS)} FROM memory"
            " WHERE seq BETWEEN ? AND ? AND superseded = 0 ORDER BY seq",
            first,
            last,
        )
        counted = count_words(self._tokenizer, (row[3:] for row in rows))
        items = [
            (SizedItem(row[0], row[1], row[2], counts.length), counts)
            for row, counts in zip(rows, counted, strict=True)
        ]
        self._insert_lists(items)
        self._insert_postings(items)
        self._sizes.add(item for item, _ in items)

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
            [domain] = self._database.one("SELECT domain FROM memory WHERE seq = ?", seq)
            self._sizes.remove(SizedItem(seq, scope, domain, length))

    def _insert_lists(self, items: Sequence[tuple[SizedItem, WordCounts]]) -> None:
        self._database.execute_many(
            "INSERT INTO word_list (seq, scope, length, words, pairs)"
            " VALUES (?, ?, ?, ?::bigint[], ?::bigint[])",
            [
                (
                    item.seq,
                    item.scope,
                    item.tokens,
                    sql_array(counts.frequencies),
                    sql_array(counts.pairs),
                )
                for item, counts in items
            ],
        )

    def _insert_postings(self, items: Sequence[tuple[SizedItem, WordCounts]]) -> None:
        """Insert all postings with one statement, in the order of the index."""
        rows = sorted(
            (word, item.scope, item.seq, item.tokens, frequency, word in counts.own)
            for item, counts in items
            for word, frequency in counts.frequencies.items()
        )
        for start in range(0, len(rows), _POSTINGS_AT_ONCE):
            columns = zip(*rows[start : start + _POSTINGS_AT_ONCE], strict=True)
            self._database.execute(
                "INSERT INTO posting (word, scope, seq, length, frequency, own) SELECT * FROM"
                " unnest(?::bigint[], ?::int[], ?::bigint[], ?::int[], ?::real[], ?::bool[])",
                [sql_array(column) for column in columns],
            )
