"""Contexts learned from a stream of envelopes: rule C-02 and `system/context` events.

An envelope may omit its context's type and parent once they are fixed, so what a context *is*
depends on the envelopes before it. `ContextTracker` is the only implementation of that rule outside
the gateway, and `read_context_change` is the only reader of `system/context`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from mcpp import kinds
from mcpp.payloads import ContextInfo
from mcpp.protocol.envelope import GATEWAY, Context, Envelope

__all__ = ["ContextChange", "ContextTracker", "Lineage", "read_context_change"]


# Compared by identity, which makes it a cheap key: the gateway keeps one per context.
@dataclass(frozen=True, slots=True, eq=False)
class Lineage:
    """A context as fixed when an envelope arrived: its id, its type and the ids of its ancestors.

    `ancestors` begins with the parent and ends with the root.
    """

    id: str
    type: str | None = None
    ancestors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextChange:
    """What a `system/context` envelope announces, and for which contexts.

    `ContextInfo.messages` is the number of envelopes that were in the context.
    """

    event: Literal["expired"]
    contexts: tuple[ContextInfo, ...]


class _Expiry(msgspec.Struct):
    event: Literal["expired"]
    context: ContextInfo
    messages: Any = None


_read_expiry: Final = msgspec.json.Decoder(_Expiry).decode


def read_context_change(envelope: Envelope) -> ContextChange | None:
    """Return the change that a `system/context` envelope announces (C-11).

    None for any other envelope, for one that the gateway did not send, and for an unknown event.
    """
    if envelope.kind != kinds.CONTEXT or envelope.sender != GATEWAY:
        return None
    try:
        expiry = _read_expiry(envelope.raw_payload)
    except msgspec.MsgspecError:
        return None
    messages = expiry.messages if type(expiry.messages) is int else None
    context = msgspec.structs.replace(expiry.context, messages=messages)
    return ContextChange(expiry.event, (context,))


class ContextTracker:
    """A pod's contexts as its envelopes describe them (C-14). Owns `contexts`, by id.

    It also accepts logs that no gateway has checked: a parent that would close a cycle is ignored.
    """

    __slots__ = ("contexts",)

    def __init__(self, contexts: Iterable[ContextInfo] = ()) -> None:
        self.contexts: dict[str, ContextInfo] = {}
        self.reset(contexts)

    def reset(self, contexts: Iterable[ContextInfo] = ()) -> None:
        """Start again from known contexts, such as those of a welcome."""
        self.contexts = {info.id: info for info in contexts}

    def observe(self, envelope: Envelope) -> Lineage | None:
        """Process the next envelope of the log and return its lineage, None in the main context."""
        known = self.learn(envelope)
        if envelope.kind == kinds.CONTEXT:
            self.expire(envelope)
        return None if known is None else self._lineage(known)

    def learn(self, envelope: Envelope) -> ContextInfo | None:
        """Learn from an envelope's context and return what is now known of it.

        Use this instead of `observe` where changes are applied separately and no lineage is needed.
        """
        context = envelope.context
        if context is None:
            return None
        known = self.contexts.get(context.id)
        if known is None:
            known = self.contexts[context.id] = ContextInfo(id=context.id)
        if (known.type is None and context.type is not None) or (
            known.parent is None and context.parent is not None
        ):
            return self._fix(known, context)
        return known

    def expire(self, envelope: Envelope) -> tuple[ContextInfo, ...]:
        """Forget the contexts that expire with a `system/context` envelope, and return them.

        Their ids may be used anew (C-12). Returns () for any other envelope.
        """
        change = read_context_change(envelope)
        if change is None:
            return ()
        for context in change.contexts:
            self.forget(context.id)
        return change.contexts

    def find(self, id: str) -> Lineage | None:
        """Return the lineage of a known context, None for an unknown id."""
        known = self.contexts.get(id)
        return None if known is None else self._lineage(known)

    def forget(self, id: str) -> None:
        """Forget a context, if it is known."""
        self.contexts.pop(id, None)

    def _fix(self, known: ContextInfo, context: Context) -> ContextInfo:
        # C-02: the first envelope that names a type or a parent fixes it.
        type = context.type if known.type is None else known.type
        parent = known.parent
        if parent is None and context.parent is not None and not self._closes_cycle(context):
            parent = context.parent
            self.contexts.setdefault(parent, ContextInfo(id=parent))  # C-04: a placeholder
        fixed = ContextInfo(id=known.id, type=type, parent=parent, messages=known.messages)
        self.contexts[known.id] = fixed
        return fixed

    def _closes_cycle(self, context: Context) -> bool:
        parent = context.parent
        return parent is not None and (
            parent == context.id or context.id in self._ancestors(self.contexts.get(parent))
        )

    def _lineage(self, known: ContextInfo) -> Lineage:
        return Lineage(known.id, known.type, tuple(self._ancestors(known)))

    def _ancestors(self, known: ContextInfo | None) -> dict[str, None]:
        found: dict[str, None] = {}
        # Contexts given to `reset` are not checked for cycles.
        while known is not None and known.parent is not None and known.parent not in found:
            found[known.parent] = None
            known = self.contexts.get(known.parent)
        return found
