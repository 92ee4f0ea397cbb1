"""Plans: which terms an entry has in an index, and which a query needs.

Besides the words of its text, an entry has a term for each fact that filters ask about: sender,
recipients, kind, context with its ancestors, type. A plan combines terms so that every entry that
matches the query satisfies it. Entries that satisfy it may not match: they are checked (`pages`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

from mcpp_gateway.core.history.query import HistoryQuery
from mcpp_gateway.core.records import LogEntry

# A private character, which no word has: facts and words do not meet.
_MARK: Final = "\ue000"
_MAX_RECIPIENTS: Final = 64  # of an entry with more, only that they are many is a fact
_MANY: Final = ""
_KIND_PART: Final = re.compile("[/:]")


class Term(NamedTuple):
    """A term that an entry has to have, or the beginning of one."""

    text: str
    prefix: bool = False


class AllOf(NamedTuple):
    """Several plans that an entry has to satisfy."""

    parts: "tuple[Plan, ...]"


class AnyOf(NamedTuple):
    """Several plans, one of which an entry has to satisfy; without one, none does."""

    parts: "tuple[Plan, ...]"


Plan: TypeAlias = Term | AllOf | AnyOf


def facts(entry: LogEntry) -> Iterator[str]:
    """Yield the terms of what filters ask about."""
    yield _fact("from", entry.sender)
    yield from (_fact("kind", part) for part in _kind_parts(entry.kind))
    if entry.to is not None:
        several = entry.to if len(entry.to) <= _MAX_RECIPIENTS else (_MANY,)
        yield from (_fact("to", name) for name in several)
    lineage = entry.lineage
    if lineage is None:
        yield _fact("main", "")
    else:
        yield from (_fact("context", id) for id in (lineage.id, *lineage.ancestors))
        if lineage.type is not None:
            yield _fact("type", lineage.type)


def plan(query: HistoryQuery) -> Plan | None:
    """Return what every matching entry satisfies; None if that may be any entry."""
    parts = [_plan(query.filter.to_json())]
    if query.words is not None:
        if not query.words.parts:
            return AnyOf(())
        parts += (Term(*term) for term in query.words.terms())
    return _all_of(parts)


def _plan(filter: Mapping[str, Any]) -> Plan | None:
    match filter:
        case {"main": _}:
            return Term(_fact("main", ""))
        case {"type": type}:
            return Term(_fact("type", type))
        case {"context": id}:
            return Term(_fact("context", id))
        case {"from": id}:
            return Term(_fact("from", id))
        case {"to": id}:
            return AnyOf((Term(_fact("to", id)), Term(_fact("to", _MANY))))
        case {"kind": pattern}:
            return _kind_plan(pattern)
        case {"all": inner}:
            return _all_of(map(_plan, inner))
        case {"any": inner}:
            parts = tuple(map(_plan, inner))
            found = tuple(part for part in parts if part is not None)
            return AnyOf(found) if len(found) == len(parts) else None
    return None  # such as a negation: what has no term cannot be found by one


def _all_of(parts: Iterable[Plan | None]) -> Plan | None:
    found = tuple(dict.fromkeys(part for part in parts if part is not None))
    if not found:
        return None
    return found[0] if len(found) == 1 else AllOf(found)


def _kind_plan(pattern: str) -> Plan | None:
    """Return the term of a kind, or of the longest whole part that a glob begins with."""
    literal, star, _ = pattern.partition("*")
    if not star:
        return Term(_fact("kind", pattern))
    parts = [part for part in _kind_parts(literal) if part != literal or literal[-1] in "/:"]
    return Term(_fact("kind", parts[-1])) if parts else None


def _kind_parts(kind: str) -> list[str]:
    """Return the beginnings of a kind up to each separator, and the kind: `mcp/`, `mcp/request`."""
    ends = [found.end() for found in _KIND_PART.finditer(kind)]
    parts = [kind[:end] for end in ends[:8]]
    return parts if kind in parts or not kind else [*parts, kind]


@lru_cache(maxsize=65_536)
def _fact(name: str, value: str) -> str:
    digest = blake2b(f"{name}\0{value}".encode(), digest_size=8)
    return _MARK + digest.hexdigest()
