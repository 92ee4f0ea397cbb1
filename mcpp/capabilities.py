"""Capabilities: what a participant may send, as patterns over the envelope. They fail closed.

    {kind: "mcp/request:tools/*", to: "files", payload: {params: {name: ["read_*", "!read_key"]}}}

A text is a glob, a leading `!` negates it, a list is alternatives, an object wants each of its
keys; anything else matches exactly, by JSON type. What is missing never matches. `context: false`
means "outside of any context".
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from msgspec import UNSET

from mcpp.codec import decode_unambiguous
from mcpp.contexts import Lineage
from mcpp.envelope import Envelope
from mcpp.errors import CapabilityError, DecodeError
from mcpp.globs import compile_glob

_Test: TypeAlias = Callable[[Any], bool]
_Rule: TypeAlias = Callable[[Envelope, Lineage | None], bool]

MEMBERS: Final = ("kind", "to", "context", "payload")
MAX_DEPTH: Final = 16

# Kinds are the sender's to invent, so the verdicts remembered for them are bounded.
_REMEMBERED_KINDS: Final = 1024


class Capabilities:
    """A participant's patterns, compiled. Owns a memory of verdicts by kind; nothing else changes.

    Raises CapabilityError, with the path, for a pattern that could never be meant.
    """

    def __init__(self, patterns: Iterable[Mapping[str, Any]]) -> None:
        self.patterns = tuple(patterns)
        self._rules = [_compile_rule(rule, f"$[{i}]") for i, rule in enumerate(self.patterns)]
        self._by_kind: dict[str, bool | tuple[_Rule, ...]] = {}

    def allow(self, envelope: Envelope, lineage: Lineage | None) -> bool:
        """Tell whether the envelope may be sent; `lineage` is where its context stands."""
        verdict = self._by_kind.get(envelope.kind)
        if verdict is None:
            verdict = self._judge_kind(envelope.kind)
        if verdict is True or verdict is False:
            return verdict
        return any(rule(envelope, lineage) for rule in verdict)

    def _judge_kind(self, kind: str) -> bool | tuple[_Rule, ...]:
        rest = [rule for matches, rule in self._rules if matches(kind)]
        verdict = True if None in rest else tuple(rule for rule in rest if rule) or False
        if len(self._by_kind) >= _REMEMBERED_KINDS:
            self._by_kind.clear()
        self._by_kind[kind] = verdict
        return verdict


def _compile_rule(pattern: Mapping[str, Any], path: str) -> tuple[_Test, _Rule | None]:
    """Return the test of the kind and, where there is more to ask, the test of the rest."""
    if not isinstance(pattern, Mapping):
        raise CapabilityError(path, "must be an object")
    if "kind" not in pattern:
        raise CapabilityError(path, 'has no kind; for every kind say kind = "*"')
    for name in pattern:
        if name not in MEMBERS:
            raise CapabilityError(f"{path}.{name}", f"is not one of {', '.join(MEMBERS)}")
    tests = {name: compile_pattern(part, f"{path}.{name}") for name, part in pattern.items()}
    kind = tests.pop("kind")
    if not tests:
        return kind, None

    def rest(envelope: Envelope, lineage: Lineage | None) -> bool:
        try:
            return all(test(_READ[name](envelope, lineage)) for name, test in tests.items())
        except DecodeError:
            return (
                False  # K-08: a repeated key could show the rule one value and the reader another
            )

    return kind, rest


def compile_pattern(pattern: Any, path: str = "$", depth: int = 1) -> _Test:
    """Return the test that a pattern stands for. An array passes if each of its elements does."""
    if depth > MAX_DEPTH:
        raise CapabilityError(path, f"nests deeper than {MAX_DEPTH} levels")
    test = _compile(pattern, path, depth)

    def matches(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return bool(value) and all(map(matches, value))
        return test(value)

    return matches


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
    return lambda value: isinstance(value, bool) == isinstance(pattern, bool) and value == pattern


def _compile_text(pattern: str) -> _Test:
    if pattern.startswith("!"):
        unwanted = compile_glob(pattern[1:])
        return lambda value: isinstance(value, str) and not unwanted(value)
    wanted = compile_glob(pattern)
    return lambda value: isinstance(value, str) and wanted(value)


def _compile_alternatives(patterns: Iterable[Any], path: str, depth: int) -> _Test:
    wanted: list[_Test] = []
    vetoes: list[_Test] = []
    for i, pattern in enumerate(patterns):
        test = compile_pattern(pattern, f"{path}[{i}]", depth + 1)
        negative = isinstance(pattern, str) and pattern.startswith("!")
        (vetoes if negative else wanted).append(test)
    if not wanted and not vetoes:
        raise CapabilityError(path, "is an empty list, which nothing could match")
    return lambda value: (
        all(test(value) for test in vetoes) and (not wanted or any(test(value) for test in wanted))
    )


def _read_context(envelope: Envelope, lineage: Lineage | None) -> Any:
    context = envelope.context
    if context is None or lineage is None:
        return False
    value: dict[str, Any] = {"id": lineage.id}
    if lineage.type is not None:
        value["type"] = lineage.type
    if lineage.ancestors:
        value["parent"] = lineage.ancestors[0]
    if context.raw_metadata is not UNSET:
        # K-08: with a repeated key it counts as missing, so a rule that asks for it does not match.
        with suppress(DecodeError):
            value["metadata"] = decode_unambiguous(context.raw_metadata, "$.context.metadata")
    return value


_READ: Final[dict[str, Callable[[Envelope, Lineage | None], Any]]] = {
    "to": lambda envelope, lineage: envelope.to,
    "context": _read_context,
    "payload": lambda envelope, lineage: decode_unambiguous(envelope.raw_payload, "$.payload"),
}
