"""Comparing what an agent says with a recording, although ids and times are new.

Ids of the agent's envelopes and contexts are new in every run. `IdMap` learns which new id stands
for which recorded one, and translates what others answered to them.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import msgspec

from mcpp.protocol import rpc
from mcpp.protocol.codec import decode, encode
from mcpp.protocol.envelope import Envelope

COMPARED_BY: Final = ("kind", "structure", "exact")
Comparison: TypeAlias = Literal["kind", "structure", "exact"] | Callable[[Envelope, Envelope], bool]
"""What must be equal: kind and addressees; also context, what is answered, and the shape of the
payload; also the payload itself. Or a function of the recorded and the new envelope."""

_TRANSLATED = ("correlation_id", "context", "payload")


@dataclass(slots=True)
class IdMap:
    """Recorded ids of the agent, and the new ones that stand for them. Owns the pairs."""

    pairs: dict[str, str] = field(default_factory=dict)

    def with_pair(self, recorded: Envelope, said: Envelope, own: set[str]) -> "IdMap":
        """Return a map that also takes one envelope for the other.

        `own` are the recorded contexts that the agent created.
        """
        pairs = self.pairs | {recorded.id: said.id}
        if recorded.context is not None and said.context is not None:
            for old, new in (
                (recorded.context.id, said.context.id),
                (recorded.context.parent, said.context.parent),
            ):
                if old in own and new is not None:
                    pairs.setdefault(old, new)
        return IdMap({old: new for old, new in pairs.items() if old != new})

    def translate(self, envelope: Envelope) -> Envelope:
        """Return a recorded envelope as it has to be in this run."""
        if not self.pairs:
            return envelope
        value = msgspec.json.decode(encode(envelope))
        for name in _TRANSLATED:
            if name in value:
                value[name] = self._translate(value[name])
        return decode(msgspec.json.encode(value))

    def _translate(self, value: Any) -> Any:
        match value:
            case str():
                return self.pairs.get(value, value)
            case list():
                return [self._translate(part) for part in value]
            case dict():
                return {name: self._translate(part) for name, part in value.items()}
        return value


def are_alike(recorded: Envelope, said: Envelope, compare: Comparison) -> bool:
    """Return whether an envelope is as recorded. The recorded one must be translated."""
    if callable(compare):
        return recorded.kind == said.kind and bool(compare(recorded, said))
    return compared_value(recorded, compare) == compared_value(said, compare)


def difference(recorded: Envelope, said: Envelope, compare: Comparison) -> str:
    """Return a diff of what is compared, as lines of JSON."""
    mode: Comparison = "exact" if callable(compare) else compare
    before, after = (
        msgspec.json.format(msgspec.json.encode(compared_value(one, mode)), indent=2).decode()
        for one in (recorded, said)
    )
    return diff(before, after)


def diff(before: str, after: str) -> str:
    """Return a unified diff of two texts."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), "recorded", "now", lineterm=""
    )
    return "\n".join(lines)


def compared_value(envelope: Envelope, compare: Comparison) -> dict[str, Any]:
    """Return the part of an envelope that counts, as a JSON value."""
    value: dict[str, Any] = {"kind": envelope.kind, "to": envelope.to}
    if compare == "kind":
        return value
    context = envelope.context
    value["correlation_id"] = envelope.correlation_id
    value["context"] = None if context is None else [context.id, context.type, context.parent]
    payload = _without_trace(envelope.payload)
    value["payload"] = payload if compare == "exact" else shape(payload)
    return value


def _without_trace(payload: Any) -> Any:
    """Return a request's payload without its trace context, which says nothing to the agent."""
    params = payload.get("params") if isinstance(payload, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    if params is None or not isinstance(meta, dict) or rpc.TRACE_CONTEXT.isdisjoint(meta):
        return payload
    kept = {name: value for name, value in meta.items() if name not in rpc.TRACE_CONTEXT}
    rest = {name: value for name, value in params.items() if name != "_meta"}
    return {**payload, "params": {**rest, "_meta": kept} if kept else rest}


def shape(value: Any) -> Any:
    """Return the shape of a JSON value: names and types, with one of each kind of array items."""
    match value:
        case dict():
            return {name: shape(part) for name, part in value.items()}
        case list():
            shapes = {msgspec.json.encode(part, order="sorted"): part for part in map(shape, value)}
            return [shapes[key] for key in sorted(shapes)]
        case bool():
            return "boolean"
        case int() | float():
            return "number"
    return "null" if value is None else "string"
