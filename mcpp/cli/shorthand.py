"""Filter expressions and searches as in the inspector.

A filter (`main or kind:mcp/* and not from:bob`) selects live messages too. `and` binds more tightly
than `or` and may be omitted. A filter in JSON is accepted too.

A search (`refund "late payment" from:bob since:10:00`) is for the past: words, conditions of a
filter, and bounds of time, all of which must hold.
"""

import re
from collections import deque
from typing import Final, NamedTuple

from mcpp import filters
from mcpp.errors import FilterError
from mcpp.filters import Filter

__all__ = ["SEARCH_WORDS", "WORDS", "Search", "read_filter", "read_filters", "read_search"]

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

SEARCH_WORDS: Final = (
    'words, "phrases" and prefixes* that must all occur; kind:GLOB, from:NAME, to:NAME, type:TYPE, '
    "context:ID, context:ID+, each also after not; (FILTER); since:TIME, until:TIME, text:WORD"
)
_CONDITIONS: Final = ("kind", "from", "to", "type", "context")
# Parameters of a search. A live filter must not have them: routes are chosen without payloads.
_PARAMETERS: Final = ("text", "since", "until")
_search_tokens = re.compile(
    r"""(?P<bracket>[()])
    | (?P<key>kind|from|to|type|context|text|since|until):(?P<value>"[^"]*"?|[^\s()]*)
    | (?P<phrase>"[^"]*"?)
    | (?P<word>[^\s()"]+)""",
    re.VERBOSE,
).finditer


class ShorthandError(FilterError):
    """A filter or a search as people type it is invalid."""

    def __init__(self, reason: str) -> None:
        super().__init__("$", reason)

    def __str__(self) -> str:
        return self.reason


class Search(NamedTuple):
    """What to look for in the past: the parameters of `Pod.history`."""

    filter: Filter | None = None
    text: str | None = None
    since: str | None = None
    until: str | None = None


def read_filter(text: str) -> Filter:
    """Parse a filter expression or JSON. Raises FilterError that lists the valid terms."""
    if text.lstrip().startswith("{"):
        return filters.parse(text)
    if not text.strip():
        return filters.everything
    # Parse the result as JSON too, so that a filter that a gateway would refuse is refused here.
    return filters.parse(_FilterParser(text).parse().to_json())


def read_search(text: str) -> Search:
    """Parse a search. Raises FilterError that says what is wrong; the times are not parsed."""
    words: list[str] = []
    times: dict[str, str] = {}
    wanted = filters.everything
    is_negated = False
    position = 0
    for token in _search_tokens(text):
        key, value = token["key"], token["value"]
        if token.start() < position:
            continue  # within brackets
        if token["bracket"]:
            position = _closing(text, token.start())
            condition = read_filter(text[token.start() : position])
        elif key in _CONDITIONS:
            condition = read_filter(f"{key}:{value.strip(chr(34))}")
        elif key in _PARAMETERS:
            if is_negated:
                raise ShorthandError(f"{key}: cannot be negated")
            _add_parameter(key, value, words, times)
            continue
        else:
            word = token["phrase"] or token["word"]
            if word == "or":
                raise ShorthandError("put what is joined by or into brackets: (from:a or from:b)")
            if word == "not":
                is_negated = not is_negated
            elif is_negated:
                raise ShorthandError(f"not is for conditions such as from:bob, not for {word}")
            elif word != "and":
                words.append(word)
            continue
        wanted &= ~condition if is_negated else condition
        is_negated = False
    if is_negated:
        raise ShorthandError("a condition is missing after not")
    filter = None if wanted == filters.everything else filters.parse(wanted.to_json())
    return Search(filter, " ".join(words) or None, **times)


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
            raise ShorthandError("unmatched )")
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
            raise ShorthandError(f"a term is missing; terms are: {WORDS}")
        return _parse_word(self._left.popleft())

    def _group(self) -> Filter:
        self._depth += 1
        if self._depth > filters.MAX_DEPTH:
            raise ShorthandError(f"nests deeper than {filters.MAX_DEPTH} levels")
        result = self._disjunction()
        self._depth -= 1
        if not self._accept(")"):
            raise ShorthandError("unmatched (")
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
        case _ if colon and key in _PARAMETERS:
            reason = f"{key}: is for the past: use `mcpp search`, or --since of `mcpp tail`"
            raise ShorthandError(reason)
        case _ if not colon and key in _NAMED:
            return _NAMED[key]
        case _:
            raise ShorthandError(f"unknown term {word!r}; terms are: {WORDS}; or use JSON")


def _add_parameter(key: str, value: str, words: list[str], times: dict[str, str]) -> None:
    plain = value.strip('"')
    if not plain.strip():
        raise ShorthandError(f"{key}: needs a value")
    if key == "text":
        words.append(value)  # what is quoted is a phrase
    elif key in times:
        raise ShorthandError(f"{key}: is given twice")
    else:
        times[key] = plain


def _closing(text: str, start: int) -> int:
    """Return the end of what an opening bracket begins."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth <= 0:
            break
    if depth or text[start] == ")":
        raise ShorthandError(f"unmatched {text[start]}")
    return place + 1
