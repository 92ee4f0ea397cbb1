"""The words of texts as both engines know them: those of FTS5's tokenizer.

Texts are split by FTS5 itself, in a table in memory, so words, stems and positions are the same as
in a file. A word is known to the database as a hash of 64 bits: it needs no table of words, and a
`forget` leaves none behind.
"""

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from mcpp_agents.memory.storage.fts_table import COLUMN_WEIGHTS
from mcpp_agents.memory.storage.schema import TOKENIZER

_COLUMNS: Final = tuple(COLUMN_WEIGHTS)
_NEAR: Final = "near"


@dataclass(slots=True)
class WordCounts:
    """The words of one item: weighted frequencies, its own words, and pairs of adjacent ones."""

    frequencies: dict[int, float] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    pairs: set[int] = field(default_factory=set)
    length: int = 0


class Tokenizer:
    """Splits texts. It may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        columns = ", ".join(_COLUMNS)
        self._connection.execute(
            f"CREATE VIRTUAL TABLE text USING fts5 ({columns}, content = '', {TOKENIZER})"
        )
        self._connection.execute("CREATE VIRTUAL TABLE word USING fts5vocab (text, instance)")

    def close(self) -> None:
        """Free the table."""
        with self._lock:
            self._connection.close()

    def count(self, rows: Iterable[Sequence[str]]) -> list[WordCounts]:
        """Return the words of rows, each with a text for every column of the word index."""
        texts = list(rows)
        found = [WordCounts() for _ in texts]
        before = (0, "", 0, "")
        for token in self._tokens(texts):
            row, column, position, word = token
            counts, number = found[row - 1], word_number(word)
            weight = COLUMN_WEIGHTS[column]
            counts.frequencies[number] = counts.frequencies.get(number, 0.0) + weight
            counts.length += 1
            if column != _NEAR:
                counts.own.add(number)
                if before[:3] == (row, column, position - 1):
                    counts.pairs.add(pair_number(before[3], word))
            before = token
        return found

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text."""
        found: list[list[str]] = [[] for _ in texts]
        for row, _, _, word in self._tokens([(text, "", "", "", "") for text in texts]):
            found[row - 1].append(word)
        return found

    def _tokens(self, texts: Sequence[Sequence[str]]) -> list[tuple[int, str, int, str]]:
        names = ", ".join(("rowid", *_COLUMNS))
        places = ", ".join("?" * (len(_COLUMNS) + 1))
        with self._lock:
            self._connection.execute("BEGIN")
            try:
                self._connection.executemany(
                    f"INSERT INTO text ({names}) VALUES ({places})",
                    [(number, *row) for number, row in enumerate(texts, 1)],
                )
                return self._connection.execute(
                    "SELECT doc, col, offset, term FROM word ORDER BY doc, col, offset"
                ).fetchall()
            finally:
                self._connection.execute("ROLLBACK")


@lru_cache(maxsize=100_000)
def word_number(word: str) -> int:
    """Return the number by which the database knows a word."""
    return _number(word)


def pair_number(first: str, second: str) -> int:
    """Return the number of a pair of adjacent words."""
    return _number(f"{first} {second}")


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
