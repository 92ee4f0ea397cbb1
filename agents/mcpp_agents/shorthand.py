"""Filters as people type them: `main`, `kind:mcp/*`, `not from:noisy`, several for either of them.

The words of one text must all hold, separated by spaces; `not` turns the next one around. JSON is
taken as it is.
"""

from mcpp import filters
from mcpp.errors import FilterError
from mcpp.filters import Filter


def read_filter(text: str) -> Filter:
    """Return the filter that a text means. Raises FilterError with what to write instead."""
    if text.lstrip().startswith("{"):
        return filters.parse(text)
    wanted = filters.everything
    negated = False
    for word in text.split():
        if word == "not":
            negated = not negated
            continue
        part = _read_word(word)
        wanted &= ~part if negated else part
        negated = False
    if negated:
        raise FilterError("$", "`not` must be followed by what is not wanted")
    return wanted


def read_filters(texts: list[str]) -> Filter | None:
    """Return a filter that passes what any of the texts means; None for no text."""
    parts = [read_filter(text) for text in texts]
    if not parts:
        return None
    either, *rest = parts
    for part in rest:
        either |= part
    return either


def _read_word(word: str) -> Filter:
    key, colon, value = word.partition(":")
    match key:
        case "everything" | "main" | "conclusions" if not colon:
            return {
                "everything": filters.everything,
                "main": filters.main_only,
                "conclusions": filters.conclusions,
            }[key]
        case "kind":
            return filters.kind(value)
        case "from":
            return filters.sender(value)
        case "to":
            return filters.addressed_to(value)
        case "type":
            return filters.parse({"type": value})
        case "context":
            return filters.in_context(value, descendants=True)
        case _:
            known = "main, conclusions, kind:GLOB, from:NAME, to:NAME, type:TYPE, context:ID, not"
            raise FilterError("$", f"{word!r} is none of: {known}; nor is it JSON")
