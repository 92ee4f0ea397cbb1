"""Words as the word index knows them: those of FTS5's tokenizer, folded and stemmed.

FTS5 itself splits texts, in a table in memory, so words and their order are the same as in a file.
That takes 2 µs per word. But white space always ends a word, and most pieces between white space
occurred before: their words are kept, and a text takes a tenth of the time.
"""

import sqlite3
import threading
from collections.abc import Sequence
from functools import partial
from typing import Final

TOKENIZER: Final = "tokenize = 'porter unicode61 remove_diacritics 2'"

_MAX_KEPT: Final = 50_000
# Longer pieces, such as text in a script without spaces, hardly occur again.
_MAX_KEPT_CHARS: Final = 40


class Tokenizer:
    """Splits texts. It may be used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, str] = {}  # words, separated by spaces
        self._connection = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False
        )
        # FTS5 cuts words after 32,768 bytes, which may be inside of a character.
        self._connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        self._connection.execute(
            f"CREATE VIRTUAL TABLE text USING fts5 (piece, content = '', {TOKENIZER})"
        )
        self._connection.execute("CREATE VIRTUAL TABLE word USING fts5vocab (text, instance)")

    def close(self) -> None:
        """Free the table."""
        with self._lock:
            self._connection.close()

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text."""
        pieces = [text.split() for text in texts]
        with self._lock:
            kept = self._kept
            new = list(set().union(*pieces) - kept.keys())
            if new:
                kept.update(zip(new, self._words(new), strict=True))
            found = [" ".join([kept[piece] for piece in each]).split() for each in pieces]
            for piece in new:
                if len(piece) > _MAX_KEPT_CHARS:
                    del kept[piece]
            if len(kept) > _MAX_KEPT:
                kept.clear()
        return found

    def _words(self, pieces: Sequence[str]) -> list[str]:
        """Return the words of each piece, separated by spaces."""
        found: list[list[str]] = [[] for _ in pieces]
        self._connection.execute("BEGIN")
        try:
            self._connection.executemany(
                "INSERT INTO text (rowid, piece) VALUES (?, ?)", enumerate(pieces)
            )
            words = self._connection.execute("SELECT doc, term FROM word ORDER BY doc, offset")
            for piece, word in words:
                found[piece].append(word)
        finally:
            self._connection.execute("ROLLBACK")
        return [" ".join(words) for words in found]
