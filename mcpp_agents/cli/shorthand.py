"""Filters as people type them, the same as in the inspector: `main or kind:mcp/* and not from:bob`.

`and` binds more tightly than `or`, and may be left out. JSON is taken as it is.
"""

import re
from collections import deque
from typing import Final

from mcpp import filters
from mcpp.errors import FilterError
from mcpp.filters import Filter

WORDS: Final = (
    "main, conclusions, kind:GLOB, from:NAME, to:NAME, type:TYPE, context:ID, context:ID+ (with "
    "those below it), not, and, or, ( )"
)
_NAMED: Final = {
    "everything": filters.everything,
    "nothing": filters.parse({"any": []}),
    "main": filters.main_only,
    "conclusions": filters.conclusions,
}
_tokens = re.compile(r"[()]|[^\s()]+").findall


def read_filter(text: str) -> Filter:
    """Return the filter that a text means. Raises FilterError with what to write instead."""
    if text.lstrip().startswith("{"):
        return filters.parse(text)
    if not text.strip():
        return filters.everything
    # As JSON, too, so that what no gateway would take is refused here.
    return filters.parse(_Reader(text).read().to_json())


def read_filters(texts: list[str]) -> Filter | None:
    """Return a filter that passes what any of the texts means; None for no text."""
    parts = [read_filter(text) for text in texts]
    if not parts:
        return None
    either, *rest = parts
    for part in rest:
        either |= part
    return either


class _Reader:
    """Reads an expression from left to right. Owns the words that are left."""

    def __init__(self, text: str) -> None:
        self._left = deque(_tokens(text))
        self._depth = 0

    def read(self) -> Filter:
        wanted = self._either()
        if self._left:
            raise FilterError("$", "a ) closes nothing")
        return wanted

    def _either(self) -> Filter:
        wanted = self._both()
        while self._next("or"):
            wanted |= self._both()
        return wanted

    def _both(self) -> Filter:
        wanted = self._one()
        while self._left and self._left[0] not in ("or", ")"):
            self._next("and")
            wanted &= self._one()
        return wanted

    def _one(self) -> Filter:
        if self._next("not"):
            is_negated = True
            while self._next("not"):
                is_negated = not is_negated
            return ~self._one() if is_negated else self._one()
        if self._next("("):
            return self._inner()
        if not self._left or self._left[0] in (")", "and", "or"):
            raise FilterError("$", f"something is missing; there are: {WORDS}")
        return _read_word(self._left.popleft())

    def _inner(self) -> Filter:
        self._depth += 1
        if self._depth > filters.MAX_DEPTH:
            raise FilterError("$", f"nests deeper than {filters.MAX_DEPTH} levels")
        wanted = self._either()
        self._depth -= 1
        if not self._next(")"):
            raise FilterError("$", "a ( is not closed")
        return wanted

    def _next(self, word: str) -> bool:
        if not self._left or self._left[0] != word:
            return False
        self._left.popleft()
        return True


def _read_word(word: str) -> Filter:
    key, colon, value = word.partition(":")
    match key:
        case "kind":
            return filters.kind(value)
        case "from":
            return filters.sender(value)
        case "to":
            return filters.addressed_to(value)
        case "type":
            return filters.parse({"type": value})
        case "context":
            return filters.in_context(value.removesuffix("+"), descendants=value.endswith("+"))
        case _ if not colon and key in _NAMED:
            return _NAMED[key]
        case _:
            raise FilterError("$", f"{word!r} is none of: {WORDS}; nor is it JSON")
