"""Where the words of a search occur in a text, and the part of the text around them."""

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Final

_PARTS: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')
_WORDS: Final = re.compile(r"[^\W_]+")
_SNIPPET_CHARACTERS: Final = 160
_BEFORE_CHARACTERS: Final = 40


class Highlighter:
    """Finds the words of a search, without regard to case, compatibility forms and accents."""

    def __init__(self, text: str | None) -> None:
        parts = [
            _WORDS.findall(_fold(phrase or word)) for phrase, word in _PARTS.findall(text or "")
        ]
        # Phrases are found whatever stands between their words.
        patterns = [r"[\W_]+".join(map(re.escape, words)) for words in parts if words]
        joined = "|".join(sorted(patterns, key=len, reverse=True))
        self._pattern = re.compile(joined) if joined else None

    def found_in(self, text: str) -> bool:
        """Return whether any of the words occurs; true without words."""
        return self._pattern is None or self._pattern.search(_fold(text)) is not None

    def snippet(self, text: str, limit: int = _SNIPPET_CHARACTERS) -> str:
        """Return the part of a line around the first word, at most this long."""
        if len(text) <= limit:
            return text
        first, _ = next(self._occurrences(text), (0, 0))
        room = limit - 2  # without the marks of what is left out
        start = min(max(0, first - _BEFORE_CHARACTERS), len(text) - room)
        end = start + room
        return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"

    def paint(self, text: str, paint: Callable[[str], str]) -> str:
        """Return the text with each occurrence replaced by what `paint` makes of it."""
        parts = []
        end = 0
        for start, stop in self._occurrences(text):
            parts += [text[end:start], paint(text[start:stop])]
            end = stop
        return "".join([*parts, text[end:]])

    def _occurrences(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield where the text, as it is written, has the words. Folding may change its length."""
        if self._pattern is None or not self.found_in(text):
            return
        folded = [_fold_character(character) for character in text]
        ends = list(accumulate(map(len, folded)))  # of each character, in the folded text
        written = 0
        for found in self._pattern.finditer("".join(folded)):
            start = max(written, bisect_right(ends, found.start()))
            written = bisect_right(ends, found.end() - 1) + 1
            while written < len(text) and not folded[written]:
                written += 1  # an accent that is a character of its own
            if start < written:
                yield start, written


def _fold(text: str) -> str:
    return text.lower() if text.isascii() else "".join(map(_fold_character, text))


@lru_cache(maxsize=4096)
def _fold_character(character: str) -> str:
    """Return a character as it is compared: nothing for an accent, two letters for a ligature."""
    plain = unicodedata.normalize("NFKD", character)
    return "".join(one for one in plain if not unicodedata.combining(one)).casefold()
