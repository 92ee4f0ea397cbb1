"""Contexts learned from a stream of envelopes: rule C-02 and `system/context` events.

Only a context's creator fixes its type and parent, and its envelopes may omit them afterwards. So
what a context *is* depends on the envelopes before. `ContextTracker` is the only implementation of
that rule outside the gateway, and `read_context_change` is the only reader of `system/context`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from mcpp import kinds
from mcpp.outcomes import title_of
from mcpp.payloads import ContextInfo
from mcpp.protocol.envelope import GATEWAY, Context, Envelope

__all__ = ["ContextChange", "ContextTracker", "Lineage", "read_context_change"]


# Beyond this many, no more are learned (P-42): ten times what a gateway allows in a pod.
MAX_CONTEXTS: Final = 100_000


# Compared by identity, which makes it a cheap key: the gateway keeps one per context.
@dataclass(frozen=True, slots=True, eq=False)
class Lineage:
    """A context as fixed when an envelope arrived: its id, its type and the ids of its ancestors.

    `ancestors` begins with the parent and ends with the root. `title` is None at the gateway, which
    reads no metadata.
    """

    id: str
    type: str | None = None
    ancestors: tuple[str, ...] = ()
    title: str | None = None


@dataclass(frozen=True, slots=True)
class ContextChange:
    """What a `system/context` envelope announces, and for which contexts.

    `ContextInfo.messages` is the number of envelopes that were in the context.
    """

    event: Literal["expired", "revived"]
    contexts: tuple[ContextInfo, ...]


class _Told(msgspec.Struct):
    """A context as an event describes it. Only its id is needed to know which one it is."""

    id: str
    type: str | None = None
    parent: str | None = None
    creator: str | None = None
    messages: Any = None


class _Event(msgspec.Struct):
    event: Literal["expired", "revived"]
    context: _Told | None = None
    contexts: list[_Told] = []
    messages: Any = None


_read_event: Final = msgspec.json.Decoder(_Event).decode


def read_context_change(envelope: Envelope) -> ContextChange | None:
    """Return the change that a `system/context` envelope announces (C-11, C-12).

    None for any other envelope, for one that the gateway did not send, and for an unknown event.
    """
    if envelope.kind != kinds.CONTEXT or envelope.sender != GATEWAY:
        return None
    try:
        event = _read_event(envelope.raw_payload)
    except msgspec.MsgspecError:
        return None
    if event.context is not None:
        event.context.messages = event.messages
        return ContextChange(event.event, (_info(event.context),))
    return ContextChange(event.event, tuple(map(_info, event.contexts))) if event.contexts else None


def _info(told: _Told) -> ContextInfo:
    return ContextInfo(
        id=told.id,
        type=told.type,
        parent=told.parent,
        creator=told.creator,
        messages=told.messages if type(told.messages) is int else None,
    )


class ContextTracker:
    """A pod's contexts as its envelopes describe them (C-14). Owns `contexts`, by id.

    It also accepts logs that no gateway has checked: a parent that would close a cycle is ignored.
    """

    __slots__ = ("_max_contexts", "contexts")

    def __init__(
        self, contexts: Iterable[ContextInfo] = (), *, max_contexts: int = MAX_CONTEXTS
    ) -> None:
        """Begin with known contexts. Beyond `max_contexts` no more are learned (P-42)."""
        self.contexts: dict[str, ContextInfo] = {}
        self._max_contexts = max_contexts
        self.reset(contexts)

    def reset(self, contexts: Iterable[ContextInfo] = ()) -> None:
        """Start again from known contexts, such as those of a welcome."""
        self.contexts = {info.id: info for info in islice(contexts, self._max_contexts)}

    def observe(self, envelope: Envelope) -> Lineage | None:
        """Process the next envelope of the log and return its lineage, None in the main context."""
        known = self.learn(envelope)
        if envelope.kind == kinds.CONTEXT:
            self.change(envelope)
        return None if known is None else self._lineage(known)

    def learn(self, envelope: Envelope) -> ContextInfo | None:
        """Learn from an envelope's context and return what is now known of it.

        Use this instead of `observe` where changes are applied separately and no lineage is needed.
        """
        context = envelope.context
        if context is None:
            return None
        known = self.contexts.get(context.id)
        if known is None and self._is_full:
            return ContextInfo(id=context.id)
        if known is None or known.creator is None:
            return self._fix(known or ContextInfo(id=context.id), context, envelope.sender)
        if known.creator == envelope.sender and (
            (known.type is None and context.type is not None)
            or (known.parent is None and context.parent is not None)
            or (known.title is None and title_of(context) is not None)
        ):
            return self._fix(known, context, envelope.sender)
        return known

    def change(self, envelope: Envelope) -> ContextChange | None:
        """Apply the change that a `system/context` envelope announces, and return it.

        Expired contexts are forgotten, revived ones are added as they were (C-12). Returns None for
        any other envelope.
        """
        change = read_context_change(envelope)
        for context in () if change is None else change.contexts:
            if change is not None and change.event == "expired":
                self.forget(context.id)
            elif context.id in self.contexts or not self._is_full:
                known = self.contexts.get(context.id) or ContextInfo(id=context.id)
                self.contexts[context.id] = msgspec.structs.replace(
                    context,
                    type=known.type or context.type,
                    parent=known.parent or self._add_parent(context.id, context.parent),
                    title=known.title,
                )
        return change

    @property
    def _is_full(self) -> bool:
        return len(self.contexts) >= self._max_contexts

    def find(self, id: str) -> Lineage | None:
        """Return the lineage of a known context, None for an unknown id."""
        known = self.contexts.get(id)
        return None if known is None else self._lineage(known)

    def forget(self, id: str) -> None:
        """Forget a context, if it is known."""
        self.contexts.pop(id, None)

    def _fix(self, known: ContextInfo, context: Context, creator: str) -> ContextInfo:
        # C-02: the creator's first envelope that names a type or a parent fixes it.
        fixed = ContextInfo(
            id=known.id,
            type=context.type if known.type is None else known.type,
            parent=known.parent or self._add_parent(context.id, context.parent),
            creator=creator,
            messages=known.messages,
            title=known.title or title_of(context),
        )
        self.contexts[known.id] = fixed
        return fixed

    def _add_parent(self, id: str, parent: str | None) -> str | None:
        """Return the parent of a context, known from here on; None if it would close a cycle."""
        if parent is None or parent == id or id in self._ancestors(self.contexts.get(parent)):
            return None
        self.contexts.setdefault(parent, ContextInfo(id=parent))  # C-04: a placeholder
        return parent

    def _lineage(self, known: ContextInfo) -> Lineage:
        return Lineage(known.id, known.type, tuple(self._ancestors(known)), known.title)

    def _ancestors(self, known: ContextInfo | None) -> dict[str, None]:
        found: dict[str, None] = {}
        # Contexts given to `reset` are not checked for cycles.
        while known is not None and known.parent is not None and known.parent not in found:
            found[known.parent] = None
            known = self.contexts.get(known.parent)
        return found
