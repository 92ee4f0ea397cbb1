"""Filter expressions as in the inspector: `main or kind:mcp/* and not from:bob`.

`and` binds more tightly than `or` and may be omitted. A filter in JSON is accepted too.
"""

import re
from collections import deque
from typing import Final

from mcpp import FilterError, filters
from mcpp.filters import Filter

WORDS: Final = (
    "main, conclusions, kind:GLOB, from:NAME, to:NAME, type:TYPE, context:ID, context:ID+ (with "
    "its descendants), not, and, or, ( )"
)
_NAMED: Final = {
    "everything": filters.everything,
    "nothing": filters.parse({"any": []}),
    "main": filters.main_only,
    "conclusions": filters.conclusions,
}
_tokens = re.compile(r"[()]|[^\s()]+").findall


def read_filter(text: str) -> Filter:
    """Parse a filter expression or JSON. Raises FilterError that lists the valid terms."""
    if text.lstrip().startswith("{"):
        return filters.parse(text)
    if not text.strip():
        return filters.everything
    # Parse the result as JSON too, so that a filter that a gateway would refuse is refused here.
    return filters.parse(_FilterParser(text).parse().to_json())


def read_filters(texts: list[str]) -> Filter | None:
    """Return the union of several filter expressions, None for an empty list."""
    parts = [read_filter(text) for text in texts]
    if not parts:
        return None
    either, *rest = parts
    for part in rest:
        either |= part
    return either


class _FilterParser:
    """Recursive-descent parser of filter expressions. Owns the tokens that are left."""

    def __init__(self, text: str) -> None:
        self._left = deque(_tokens(text))
        self._depth = 0

    def parse(self) -> Filter:
        result = self._disjunction()
        if self._left:
            raise FilterError("$", "unmatched )")
        return result

    def _disjunction(self) -> Filter:
        result = self._conjunction()
        while self._accept("or"):
            result |= self._conjunction()
        return result

    def _conjunction(self) -> Filter:
        result = self._term()
        while self._left and self._left[0] not in ("or", ")"):
            self._accept("and")
            result &= self._term()
        return result

    def _term(self) -> Filter:
        if self._accept("not"):
            is_negated = True
            while self._accept("not"):
                is_negated = not is_negated
            return ~self._term() if is_negated else self._term()
        if self._accept("("):
            return self._group()
        if not self._left or self._left[0] in (")", "and", "or"):
            raise FilterError("$", f"a term is missing; terms are: {WORDS}")
        return _parse_word(self._left.popleft())

    def _group(self) -> Filter:
        self._depth += 1
        if self._depth > filters.MAX_DEPTH:
            raise FilterError("$", f"nests deeper than {filters.MAX_DEPTH} levels")
        result = self._disjunction()
        self._depth -= 1
        if not self._accept(")"):
            raise FilterError("$", "unmatched (")
        return result

    def _accept(self, word: str) -> bool:
        if not self._left or self._left[0] != word:
            return False
        self._left.popleft()
        return True


def _parse_word(word: str) -> Filter:
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
            raise FilterError("$", f"unknown term {word!r}; terms are: {WORDS}; or use JSON")
