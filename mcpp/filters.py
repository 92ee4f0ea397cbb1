"""Filters: one algebra for subscriptions at the gateway and for logs in memory.

    wanted = filters.main_only | filters.kind("mcp/*") & ~filters.sender("noisy")
    list(wanted.select(envelopes))
    await pod.set_filter(wanted)          # the gateway sends nothing else

`everything`, `main_only` and `conclusions` are filters; the functions return others.
In JSON a filter is an object with one key (F-01): `{"any": [{"main": true}, {"kind": "mcp/*"}]}`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from mcpp import kinds
from mcpp.errors import DecodeError, FilterError
from mcpp.protocol.codec import is_kind
from mcpp.protocol.contexts import ContextTracker, Lineage
from mcpp.protocol.envelope import (
    ID_PATTERN,
    MAX_KIND_LENGTH,
    PARTICIPANT_PATTERN,
    REFERENCE_PATTERN,
    Envelope,
)
from mcpp.protocol.globs import compile_glob
from mcpp.protocol.jsontext import decode_unambiguous

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_NODES",
    "MAX_STARS",
    "Addressed",
    "Filter",
    "addressed_to",
    "conclusions",
    "everything",
    "in_context",
    "kind",
    "main_only",
    "parse",
    "sender",
    "with_types",
]

MAX_NODES: Final = 64
MAX_DEPTH: Final = 8
MAX_BYTES: Final = 4096
# Before a replay the gateway evaluates the filter on its whole log, to announce the number.
MAX_STARS: Final = 64

# A context of another pod may be the parent of one in this pod (C-04).
_is_context = re.compile(f"{ID_PATTERN}|{REFERENCE_PATTERN}").fullmatch
_is_participant = re.compile(PARTICIPANT_PATTERN).fullmatch


class Addressed(Protocol):
    """What a filter reads: an envelope, or a log entry with the same attributes."""

    @property
    def sender(self) -> str: ...
    @property
    def to(self) -> Collection[str] | None: ...
    @property
    def kind(self) -> str: ...


class Filter:
    """An immutable predicate on envelopes. Filters combine with `&`, `|` and `~`."""

    __slots__ = ()

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        """Return whether an envelope passes. `lineage` is that of its context, None in main."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the filter as a JSON value."""
        raise NotImplementedError

    def select(self, envelopes: Iterable[Envelope]) -> Iterator[Envelope]:
        """Yield the envelopes of a log that pass, tracking contexts from its beginning."""
        tracker = ContextTracker()
        for envelope in envelopes:
            if self.matches(envelope, tracker.observe(envelope)):
                yield envelope

    def __repr__(self) -> str:
        return f"filters.parse({self.to_json()})"

    def __and__(self, other: "Filter") -> "Filter":
        return _All((*_parts(self, _All), *_parts(other, _All)))

    def __or__(self, other: "Filter") -> "Filter":
        return _Any((*_parts(self, _Any), *_parts(other, _Any)))

    def __invert__(self) -> "Filter":
        return self.part if isinstance(self, _Not) else _Not(self)


def parse(value: object) -> Filter:
    """Return the filter for a JSON value or a JSON text.

    Raises FilterError with the path of the invalid part.
    """
    if isinstance(value, str | bytes):
        text = value.encode(errors="replace") if isinstance(value, str) else value
        if len(text) > MAX_BYTES:
            raise FilterError("$", f"is longer than {MAX_BYTES} bytes")
        try:
            value = decode_unambiguous(text, "$")
        except (DecodeError, ValueError, RecursionError) as error:
            raise FilterError("$", f"is not JSON: {error}") from None
    parsed = _parse(value, "$", 1, _Count())
    if len(msgspec.json.encode(value)) > MAX_BYTES:
        raise FilterError("$", f"is longer than {MAX_BYTES} bytes")
    return parsed


def as_filter(value: "Filter | Mapping[str, Any] | None") -> Filter | None:
    """Return a filter unchanged, or parse its JSON value. Raises FilterError or TypeError."""
    if value is None or isinstance(value, Filter):
        return value
    if isinstance(value, Mapping):
        return parse(value)
    raise TypeError(f"{value!r} is not a filter: see mcpp.filters")


# --- predicates --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class _Main(Filter):
    """Passes the main context."""

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        return lineage is None

    def to_json(self) -> dict[str, Any]:
        return {"main": True}


@dataclass(frozen=True, slots=True, repr=False)
class _Type(Filter):
    """Passes contexts of one type."""

    type: str

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        return lineage is not None and lineage.type == self.type

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type}


@dataclass(frozen=True, slots=True, repr=False)
class _InContext(Filter):
    """Passes one context, and its descendants if wanted."""

    id: str
    descendants: bool

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        return lineage is not None and (
            lineage.id == self.id or (self.descendants and self.id in lineage.ancestors)
        )

    def to_json(self) -> dict[str, Any]:
        more = {"descendants": True} if self.descendants else {}
        return {"context": self.id, **more}


@dataclass(frozen=True, slots=True, repr=False)
class _Kind(Filter):
    """Passes kinds that match a glob."""

    pattern: str
    test: Callable[[str], bool] = field(compare=False)

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        return self.test(kinds.decoded(envelope.kind))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.pattern}


@dataclass(frozen=True, slots=True, repr=False)
class _From(Filter):
    """Passes what one participant sent."""

    id: str

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        return envelope.sender == self.id

    def to_json(self) -> dict[str, Any]:
        return {"from": self.id}


@dataclass(frozen=True, slots=True, repr=False)
class _To(Filter):
    """Passes what names one participant in `to`."""

    id: str

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        return envelope.to is not None and self.id in envelope.to

    def to_json(self) -> dict[str, Any]:
        return {"to": self.id}


@dataclass(frozen=True, slots=True, repr=False)
class _Any(Filter):
    """Passes what at least one part passes; without parts, nothing."""

    parts: tuple[Filter, ...]

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        return any(part.matches(envelope, lineage) for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return {"any": [part.to_json() for part in self.parts]}


@dataclass(frozen=True, slots=True, repr=False)
class _All(Filter):
    """Passes what every part passes; without parts, everything."""

    parts: tuple[Filter, ...]

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        return all(part.matches(envelope, lineage) for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return {"all": [part.to_json() for part in self.parts]}


@dataclass(frozen=True, slots=True, repr=False)
class _Not(Filter):
    """Passes what its part does not pass."""

    part: Filter

    def matches(self, envelope: Addressed, lineage: Lineage | None) -> bool:
        return not self.part.matches(envelope, lineage)

    def to_json(self) -> dict[str, Any]:
        return {"not": self.part.to_json()}


# --- constructors ---------------------------------------------

everything: Final[Filter] = _All(())
main_only: Final[Filter] = _Main()


def with_types(*types: str) -> Filter:
    """Pass the main context and contexts of these types."""
    return _Any((main_only, *(_parse_type(name, "$.type") for name in types)))


conclusions: Final[Filter] = _All((_Not(main_only), _Kind(kinds.CONCLUSION, "conclusion".__eq__)))


def in_context(id: str, *, descendants: bool = False) -> Filter:
    """Pass one context; with `descendants`, also those below it."""
    return _InContext(_checked(id, _is_context, "$.context"), descendants)


def kind(pattern: str) -> Filter:
    """Pass kinds that match a glob, such as `mcp/*`."""
    return _parse_kind(pattern, "$.kind")


def sender(id: str) -> Filter:
    """Pass envelopes that this participant sent."""
    return _From(_checked(id, _is_participant, "$.from"))


def addressed_to(id: str) -> Filter:
    """Pass envelopes that name this participant in `to`."""
    return _To(_checked(id, _is_participant, "$.to"))


def _parts(part: Filter, kind: type[_All] | type[_Any]) -> tuple[Filter, ...]:
    return part.parts if isinstance(part, kind) else (part,)


# --- parsing JSON ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Count:
    nodes: int = 0
    stars: int = 0


def _parse(value: object, path: str, depth: int, count: _Count) -> Filter:
    count.nodes += 1
    if count.nodes > MAX_NODES:
        raise FilterError(path, f"is more than {MAX_NODES} parts")
    if depth > MAX_DEPTH:
        raise FilterError(path, f"nests deeper than {MAX_DEPTH} levels")
    if not isinstance(value, dict):
        raise FilterError(path, "must be an object with one key")
    keys = set(value)
    if "context" in keys:
        keys.discard("descendants")
    if len(keys) != 1:
        raise FilterError(path, f"must have exactly one key, one of: {', '.join(_KEYS)}")
    (key,) = keys
    inner = value[key]
    here = f"{path}.{key}"
    match key:
        case "main":
            if inner is not True:
                raise FilterError(here, 'must be true; for the opposite, {"not": {"main": true}}')
            return main_only
        case "type":
            return _parse_type(inner, here)
        case "context":
            descendants = value.get("descendants", False)
            if not isinstance(descendants, bool):
                raise FilterError(f"{path}.descendants", "must be true or false")
            return _InContext(_checked(inner, _is_context, here), descendants)
        case "kind":
            count.stars += str(inner).count("*")
            if count.stars > MAX_STARS:
                raise FilterError(here, f"makes the filter exceed {MAX_STARS} stars")
            return _parse_kind(inner, here)
        case "from":
            return _From(_checked(inner, _is_participant, here))
        case "to":
            return _To(_checked(inner, _is_participant, here))
        case "any" | "all":
            if not isinstance(inner, list):
                raise FilterError(here, "must be an array of filters")
            parts = tuple(
                _parse(part, f"{here}[{i}]", depth + 1, count) for i, part in enumerate(inner)
            )
            return _Any(parts) if key == "any" else _All(parts)
        case "not":
            return _Not(_parse(inner, here, depth + 1, count))
        case _:
            raise FilterError(path, f"has no key {str(key)[:40]!r}; one of: {', '.join(_KEYS)}")


_KEYS: Final = ("main", "type", "context", "kind", "from", "to", "any", "all", "not")


def _parse_type(value: object, path: str) -> Filter:
    return _Type(_checked(value, is_kind, path))


def _parse_kind(value: object, path: str) -> Filter:
    def is_pattern(text: str) -> bool:
        return 0 < len(text) <= MAX_KIND_LENGTH and text.isprintable()

    pattern = _checked(value, is_pattern, path)
    return _Kind(pattern, compile_glob(pattern))


def _checked(value: object, test: Callable[[str], object], path: str) -> str:
    if not isinstance(value, str) or not test(value):
        raise FilterError(path, "is not a text that could match")
    return value
