"""Capabilities: patterns over envelopes that say what a participant may send. They fail closed.

    {kind: "mcp/request:tools/*", to: "files", payload: {params: {name: ["read_*", "!read_key"]}}}

A string is a glob, a leading `!` negates it, a list means alternatives, an object requires each of
its keys; any other value must be equal, including its JSON type. A missing value never matches.
`context: false` means "in the main context".
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from mcpp.errors import CapabilityError, DecodeError
from mcpp.kinds import decoded
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.globs import compile_glob
from mcpp.protocol.jsontext import decode_unambiguous

__all__ = ["Capabilities", "compile_pattern"]

_Test: TypeAlias = Callable[[Any], bool]
_Rule: TypeAlias = Callable[["_Subject"], bool]

MEMBERS: Final = ("kind", "to", "context", "payload")
MAX_DEPTH: Final = 16

# Senders may invent kinds, so the cache of decisions per kind is bounded.
_CACHED_KINDS: Final = 1024


class Capabilities:
    """A participant's compiled patterns. Owns a cache of decisions per kind.

    Raises CapabilityError, with the path, for an invalid pattern.
    """

    bounds: "Capabilities | None" = None  # those that also have to allow an envelope

    def __init__(self, patterns: Iterable[Mapping[str, Any]]) -> None:
        self.patterns = tuple(patterns)
        self._compile_rules()  # for mistakes; kept only once something is sent
        self._rules: list[tuple[_Test, _Rule | None]] | None = None
        self.reads_context = any("context" in pattern for pattern in self.patterns)
        self._by_kind: dict[str, bool | tuple[_Rule, ...]] = {}

    def allow(self, envelope: Envelope, lineage: Lineage | None) -> bool:
        """Return whether the envelope may be sent. `lineage` is that of its context."""
        decision = self._by_kind.get(envelope.kind)
        if decision is None:
            decision = self._decide_kind(envelope.kind)
        if decision is True or decision is False:
            return decision
        subject = _Subject(envelope, lineage)
        return any(rule(subject) for rule in decision)

    def within(self, others: "Capabilities") -> "Capabilities":
        """Return capabilities that allow what both of these allow; the patterns are the first's."""
        return _Both(self, others)

    def _compile_rules(self) -> list[tuple[_Test, _Rule | None]]:
        return [_compile_rule(rule, f"$[{i}]") for i, rule in enumerate(self.patterns)]

    def _decide_kind(self, kind: str) -> bool | tuple[_Rule, ...]:
        """Return the decision for a kind, or the rules to evaluate if it depends on the rest."""
        if self._rules is None:
            self._rules = self._compile_rules()
        spelled = decoded(kind)
        rest = [rule for matches, rule in self._rules if matches(spelled)]
        decision = True if None in rest else tuple(rule for rule in rest if rule) or False
        if len(self._by_kind) >= _CACHED_KINDS:
            self._by_kind.clear()
        self._by_kind[kind] = decision
        return decision


class _Both(Capabilities):
    """The patterns of a participant, bounded by those that its issuer may grant (S-05)."""

    def __init__(self, stated: Capabilities, allowed: Capabilities) -> None:
        self.patterns, self._rules, self._by_kind = stated.patterns, None, {}
        self.reads_context = stated.reads_context or allowed.reads_context
        self.bounds: Capabilities = allowed

    def allow(self, envelope: Envelope, lineage: Lineage | None) -> bool:
        return super().allow(envelope, lineage) and self.bounds.allow(envelope, lineage)


def _compile_rule(pattern: Mapping[str, Any], path: str) -> tuple[_Test, _Rule | None]:
    """Return the test of the kind and, if the pattern has more members, the test of the rest."""
    if not isinstance(pattern, Mapping):
        raise CapabilityError(path, "must be an object")
    if "kind" not in pattern:
        raise CapabilityError(path, 'has no kind; for every kind use kind = "*"')
    for name in pattern:
        if name not in MEMBERS:
            raise CapabilityError(f"{path}.{name}", f"is not one of {', '.join(MEMBERS)}")
    _check_shape(pattern, path)
    tests = {name: compile_pattern(part, f"{path}.{name}") for name, part in pattern.items()}
    kind = tests.pop("kind")
    if not tests:
        return kind, None

    def rest(subject: _Subject) -> bool:
        return all(test(getattr(subject, name)) for name, test in tests.items())

    return kind, rest


def _check_shape(pattern: Mapping[str, Any], path: str) -> None:
    """Reject patterns that could never match (K-12), which would deny everything silently."""
    for name in ("kind", "to"):
        for part in _alternatives(pattern.get(name, "*")):
            if not isinstance(part, str):
                raise CapabilityError(f"{path}.{name}", "must be a string or a list of strings")
    for part in _alternatives(pattern.get("context", False)):
        if part is not False and not isinstance(part, Mapping):
            raise CapabilityError(f"{path}.context", "must be false or an object")
        for key in part or ():
            if key not in _CONTEXT_KEYS:
                raise CapabilityError(f"{path}.context.{key}", f"is not one of {_CONTEXT_KEYS}")


def _alternatives(pattern: Any) -> Iterable[Any]:
    return pattern if isinstance(pattern, list | tuple) else (pattern,)


def compile_pattern(pattern: Any, path: str = "$", depth: int = 1) -> _Test:
    """Return the predicate for a pattern. An array matches if each of its elements does."""
    if depth > MAX_DEPTH:
        raise CapabilityError(path, f"nests deeper than {MAX_DEPTH} levels")
    return partial(_matches, _compile(pattern, path, depth))


# No closure, which would refer to itself: patterns are freed at once, and not by the collector.
def _matches(test: _Test, value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(partial(_matches, test), value))
    return test(value)


def _compile(pattern: Any, path: str, depth: int) -> _Test:
    if isinstance(pattern, str):
        return _compile_text(pattern)
    if isinstance(pattern, list | tuple):
        return _compile_alternatives(pattern, path, depth)
    if isinstance(pattern, Mapping):
        tests = {
            key: compile_pattern(part, f"{path}.{key}", depth + 1) for key, part in pattern.items()
        }
        return lambda value: (
            isinstance(value, Mapping)
            and all(key in value and test(value[key]) for key, test in tests.items())
        )
    is_plain = pattern is None or isinstance(pattern, bool | int | float)
    if not is_plain or (isinstance(pattern, float) and not math.isfinite(pattern)):
        raise CapabilityError(path, "is not a JSON value")
    return lambda value: isinstance(value, bool) == isinstance(pattern, bool) and value == pattern


def _compile_text(pattern: str) -> _Test:
    if pattern.startswith("!"):
        unwanted = compile_glob(pattern[1:])
        return lambda value: isinstance(value, str) and not unwanted(value)
    wanted = compile_glob(pattern)
    return lambda value: isinstance(value, str) and wanted(value)


def _compile_alternatives(patterns: Iterable[Any], path: str, depth: int) -> _Test:
    wanted: list[_Test] = []
    denied: list[_Test] = []
    for i, pattern in enumerate(patterns):
        if isinstance(pattern, list | tuple):
            raise CapabilityError(f"{path}[{i}]", "is a list in a list, where `!` would be lost")
        test = compile_pattern(pattern, f"{path}[{i}]", depth + 1)
        negative = isinstance(pattern, str) and pattern.startswith("!")
        (denied if negative else wanted).append(test)
    if not wanted and not denied:
        raise CapabilityError(path, "is an empty list, which never matches")
    return lambda value: (
        all(test(value) for test in denied) and (not wanted or any(test(value) for test in wanted))
    )


class _Subject:
    """The members of an envelope that rules read, parsed at most once: a payload may be large."""

    __slots__ = ("_envelope", "_lineage", "_payload")

    def __init__(self, envelope: Envelope, lineage: Lineage | None) -> None:
        self._envelope = envelope
        self._lineage = lineage
        self._payload: Any = _UNREAD

    @property
    def to(self) -> tuple[str, ...] | None:
        return self._envelope.to

    @property
    def payload(self) -> Any:
        if self._payload is _UNREAD:
            self._payload = _unambiguous(self._envelope.raw_payload, "$.payload")
        return self._payload

    @property
    def context(self) -> Any:
        context, lineage = self._envelope.context, self._lineage
        if context is None or lineage is None:
            return False
        value: dict[str, Any] = {"id": lineage.id}
        if lineage.type is not None:
            value["type"] = lineage.type
        if lineage.ancestors:
            value["parent"] = lineage.ancestors[0]
        if context.raw_metadata is not UNSET:
            value["metadata"] = _unambiguous(context.raw_metadata, "$.context.metadata")
        return value


def _unambiguous(raw: msgspec.Raw, path: str) -> Any:
    try:
        return decode_unambiguous(raw, path)
    except DecodeError:
        # K-08: with a repeated key, the rule and the recipient might read different values.
        return _UNREADABLE


_CONTEXT_KEYS: Final = ("id", "type", "parent", "metadata")
# No pattern matches these, because they are not JSON values.
_UNREAD: Final = object()
_UNREADABLE: Final = object()
