"""Where the words of a search occur in a text, and the part of the text around them."""

import re
from collections.abc import Callable
from typing import Final

_PARTS: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')
_SNIPPET_CHARACTERS: Final = 160
_BEFORE_CHARACTERS: Final = 40


class Highlighter:
    """Finds the words of a search, regardless of case. What the index folds beyond that is not."""

    def __init__(self, text: str | None) -> None:
        words = [phrase or word.removesuffix("*") for phrase, word in _PARTS.findall(text or "")]
        # Phrases are found whatever stands between their words.
        patterns = [r"\W+".join(map(re.escape, word.split())) for word in words if word.strip()]
        joined = "|".join(sorted(patterns, key=len, reverse=True))
        self._pattern = re.compile(joined, re.IGNORECASE) if joined else None

    def found_in(self, text: str) -> bool:
        """Return whether any of the words occurs; true without words."""
        return self._pattern is None or self._pattern.search(text) is not None

    def snippet(self, text: str, limit: int = _SNIPPET_CHARACTERS) -> str:
        """Return the part of a line around the first word, at most this long."""
        if len(text) <= limit:
            return text
        found = None if self._pattern is None else self._pattern.search(text)
        start = 0 if found is None else max(0, found.start() - _BEFORE_CHARACTERS)
        start = min(start, len(text) - limit)
        shown = text[start : start + limit - 2]
        return f"{'…' if start else ''}{shown}{'…' if start + limit - 2 < len(text) else ''}"

    def paint(self, text: str, paint: Callable[[str], str]) -> str:
        """Return the text with each occurrence replaced by what `paint` makes of it."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: paint(found[0]) if found[0] else "", text)
