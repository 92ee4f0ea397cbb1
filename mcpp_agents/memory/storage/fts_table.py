"""The words of items, twice: by word in the FTS5 table `memory_index`, by item in `word_list`.

FTS5 finds the items with a word. To check whether a few items contain it, FTS5 would read all items
with the word; their word lists answer in 0.1 µs for each item and word.

An expression is a query in FTS5's syntax; `quoted` makes a term one. A mask restricts a query to
the rows of a view (see `view_masks`).
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.item_queries import Condition
from mcpp_agents.memory.storage.view_masks import Mask, mask_condition

# A title names the subject of an item, a neighbour's text only its surroundings.
COLUMN_WEIGHTS: Final = {"title": 2.0, "content": 1.0, "keys": 2.0, "near": 0.5, "grams": 1.0}
# The first character of a code is one of the basic plane, the second one of another.
_FIRST: Final = 0x800
_FIRST_COUNT: Final = 0xD000
_SECOND: Final = 0x10000
_SECOND_COUNT: Final = 0x100000
_SEPARATORS: Final = 4  # two line breaks and two spaces
_TOTALS_ID: Final = 1  # of FTS5's block with the number of rows, and of words in each column
_HEADING, _TEXT, _NEAR = (COLUMN_WEIGHTS[name] for name in ("title", "content", "near"))
_WEIGHTS: Final = ", ".join(map(str, COLUMN_WEIGHTS.values()))


# The words of an item, in order, as codes (see `FtsTable.codes`), in three lines: title and keys;
# the text and its grams; the neighbours' texts.
WordList = str


def length_of(words: WordList) -> int:
    """Return the number of words."""
    return (len(words) - _SEPARATORS) // 2


def frequency_in(words: WordList, code: str) -> float:
    """Return how often a word or phrase occurs, weighted by the column."""
    frequency = _TEXT * words.count(code)
    frequency += (_HEADING - _TEXT) * words.count(code, 0, words.index("\n"))
    if words[-1] != "\n":
        frequency += (_NEAR - _TEXT) * words.count(code, words.rindex("\n"))
    return frequency


def is_own(words: WordList, code: str) -> bool:
    """Return whether a word or phrase occurs outside of the neighbours' texts."""
    return words.find(code, 0, words.rindex("\n")) >= 0


class FtsTable:
    """Both tables of words. The connection's owner holds the lock during every call."""

    def __init__(self, connection: sqlite3.Connection, tokenizer: Tokenizer) -> None:
        self._connection = connection
        self._tokenizer = tokenizer

    def add(self, first: int, last: int) -> None:
        """Index the rows of `memory` in a range of numbers, both included."""
        self.add_lists(first, last)
        self._count(first, last, 1)
        self._connection.execute(
            "INSERT INTO memory_index (rowid, title, content, keys, near, grams)"
            " SELECT seq, title, content, keys, near, grams FROM memory WHERE seq BETWEEN ? AND ?",
            [first, last],
        )

    def add_lists(self, first: int, last: int) -> None:
        """Add the word lists of rows of `memory`."""
        rows = self.all(
            "SELECT seq, title, keys, content, grams, near FROM memory WHERE seq BETWEEN ? AND ?",
            first,
            last,
        )
        codes = iter(self.codes([text for row in rows for text in row[1:]]))
        lists = [
            (row[0], f"{title} {keys}\n{text} {grams}\n{near}")
            for row, title, keys, text, grams, near in zip(rows, *[codes] * 5, strict=True)
        ]
        self._connection.executemany("INSERT INTO word_list (seq, words) VALUES (?, ?)", lists)

    def remove(self, seq: int) -> None:
        """Remove a row from the index, before the row changes: FTS5 needs its indexed text."""
        self._count(seq, seq, -1)
        self._connection.execute("DELETE FROM word_list WHERE seq = ?", [seq])
        self._connection.execute(
            "INSERT INTO memory_index (memory_index, rowid, title, content, keys, near, grams)"
            " SELECT 'delete', seq, title, content, keys, near, grams FROM memory WHERE seq = ?",
            [seq],
        )

    def _count(self, first: int, last: int, sign: int) -> None:
        """Add the current rows of a range to the tally, or with a sign of -1 subtract them."""
        self._connection.execute(
            "INSERT INTO tally (scope, domain, items, words)"
            " SELECT m.scope, coalesce(m.domain, ''), ? * count(*),"
            f" ? * sum(length(w.words) - {_SEPARATORS}) / 2"
            " FROM memory m JOIN word_list w USING (seq)"
            " WHERE m.seq BETWEEN ? AND ? AND m.superseded = 0 GROUP BY 1, 2"
            " ON CONFLICT DO UPDATE SET"
            " items = items + excluded.items, words = words + excluded.words",
            [sign, sign, first, last],
        )
        if sign < 0:  # nothing remains of the domain of a forgotten item
            self._connection.execute(
                "DELETE FROM tally WHERE items = 0"
                " AND scope IN (SELECT scope FROM memory WHERE seq BETWEEN ? AND ?)",
                [first, last],
            )

    def purge(self) -> None:
        """Rewrite the index, so that no word of a removed row remains in it."""
        self._connection.execute("INSERT INTO memory_index (memory_index) VALUES ('optimize')")

    def count(self, expression: str, mask: Mask, since: int = 0) -> int:
        """Return how many rows of a mask, after `since`, match."""
        return self._matching(expression, *mask_condition(mask, since))

    def count_all(self, expression: str) -> int:
        """Return how many rows of the file match."""
        return self._matching(expression, "", ())

    def _matching(self, expression: str, where: str, values: Sequence[Any]) -> int:
        sql = f"SELECT count(*) FROM memory_index WHERE memory_index MATCH ?{where}"
        return int(self.all(sql, expression, *values)[0][0])

    def bm25(self, expression: str, mask: Mask) -> list[tuple[int, float, int]]:
        """Return the rows that match, each with FTS5's own score and its number of words."""
        where, values = mask_condition(mask)
        rows = self.all(
            f"SELECT memory_index.rowid, -bm25(memory_index, {_WEIGHTS}), sizes.sz"
            " FROM memory_index CROSS JOIN memory_index_docsize sizes"
            " ON sizes.id = memory_index.rowid"
            f" WHERE memory_index MATCH ?{where}",
            expression,
            *values,
        )
        return [(seq, points, _total(sizes)) for seq, points, sizes in rows]

    def average_length(self, view: Condition) -> float:
        """Return the average number of words of the rows that a view shows."""
        where, values = view
        [(items, words)] = self.all(
            f"SELECT sum(m.items), sum(m.words) FROM tally m WHERE true{where}", *values
        )
        return max(words or 0, 1) / max(items or 0, 1)

    def totals(self) -> tuple[int, int]:
        """Return the number of rows, and of their words, by which FTS5 scores."""
        [(block,)] = self.all(f"SELECT block FROM memory_index_data WHERE id = {_TOTALS_ID}")
        rows, *words = _integers(block) or [0]
        return rows, sum(words)

    def newest(self, expression: str, mask: Mask, limit: int) -> list[int]:
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

    def word_lists(self, seqs: Iterable[int]) -> dict[int, WordList]:
        """Return the word lists of rows."""
        rows = self.all(
            "SELECT seq, words FROM word_list WHERE seq IN (SELECT value FROM json_each(?))",
            json.dumps(list(seqs)),
        )
        return dict(rows)

    def codes(self, texts: Sequence[str]) -> list[str]:
        """Return the codes of the words of each text, one after another.

        A code is a hash of 36 bits in two characters, so no table of words could keep one after a
        `forget`. A list of 100 words has the code of a word that is not there once in 500 million.
        """
        return ["".join(map(_code, words)) for words in self._tokenizer.split(texts)]

    def all(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows of a query on the file."""
        return self._connection.execute(sql, values).fetchall()


@lru_cache(maxsize=10_000)
def _total(sizes: bytes) -> int:
    """Return the sum of the columns' sizes."""
    return sum(_integers(sizes))


def _integers(packed: bytes) -> list[int]:
    """Return numbers that FTS5 keeps as variable-length integers."""
    found = []
    number = 0
    for byte in packed:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            found.append(number)
            number = 0
    return found


@lru_cache(maxsize=100_000)
def _code(word: str) -> str:
    number = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "big")
    number, first = divmod(number, _FIRST_COUNT)
    return chr(_FIRST + first) + chr(_SECOND + number % _SECOND_COUNT)


def quoted(term: str) -> str:
    """Quote a term for FTS5, so that nothing in it is an operator or a column."""
    return '"' + term.replace('"', '""') + '"'
