"""Folds concluded contexts into their conclusion, a one-line outline and a handle for the rest.

A conclusion folds everything before it in its context and in inner contexts; later messages stay.
Only a conclusion by the context's creator counts: no participant can replace another's reasoning.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from mcpp import kinds
from mcpp.outcomes import outcome_of
from mcpp.payloads import ContextInfo
from mcpp.prompts import quoting
from mcpp.prompts.blocks import TextBlock
from mcpp.prompts.entries import LoggedContext, PromptEntry, envelope_text
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import Envelope
from mcpp.transient.collapsing.lifecycle import new_handle

_ENDS: Final = {
    "concluded": "concludes",
    "failed": "reports that it failed",
    "cancelled": "reports that it was cancelled",
}


class LoggedContexts:
    """A log's contexts, as prompts group them. Owns the latest with each id."""

    def __init__(self) -> None:
        self._live: dict[str, LoggedContext] = {}
        self._expired: dict[str, LoggedContext] = {}

    def observe(self, envelope: Envelope, lineage: Lineage) -> LoggedContext:
        """Record an envelope and return its context."""
        own = self._named(lineage.id)
        own.creator = own.creator or envelope.sender
        own.type = lineage.type
        own.title = lineage.title
        if own.parent is None and lineage.ancestors:
            # A parent may be set after the first envelope, or refer to a context not used yet.
            parent = self._named(lineage.ancestors[0])
            # In a log that no gateway validated, a cycle may go through an expired context.
            if own not in parent.path():
                own.parent = parent
                parent.inner.append(own)
        return own

    def find(self, id: str | None) -> LoggedContext | None:
        """Return the context with this id, if it has not expired."""
        return None if id is None else self._live.get(id)

    def expire(self, id: str) -> None:
        """End a context; its id may be reused for another context, unless this one is revived."""
        if id in self._live:
            self._expired[id] = self._live.pop(id)

    def revive(self, known: ContextInfo) -> None:
        """Continue an expired context."""
        context = self._expired.pop(known.id, None) or self._named(known.id)
        context.creator = known.creator or context.creator
        context.type = known.type or context.type
        self._live[known.id] = context

    def _named(self, id: str) -> LoggedContext:
        if id not in self._live:
            self._live[id] = LoggedContext(id)
        return self._live[id]


def concludes(envelope: Envelope, context: LoggedContext | None) -> bool:
    """Return whether an envelope concludes its context."""
    return (
        context is not None
        and envelope.kind == kinds.CONCLUSION
        and envelope.sender == context.creator
    )


def members_of(context: LoggedContext) -> list[PromptEntry]:
    """Return the entries that a conclusion folds: all before it, here and in inner contexts.

    A result counts as being where its call is, so that both fold together.
    """
    end = context.conclusion
    assert end is not None
    inside = context.members
    if context.inner:
        inside = [entry for one in context.subtree() for entry in one.members]
        inside.sort(key=lambda entry: entry.position)
    return [entry for entry in inside if _anchor(entry).position <= end.position]


def _anchor(entry: PromptEntry) -> PromptEntry:
    return entry.partner if entry.kind == "result" and entry.partner else entry


def fold_handle(context: LoggedContext) -> str:
    """Return the handle that retrieves a folded context."""
    assert context.conclusion is not None
    return new_handle("context " + context.conclusion.envelope.id)


def fold_note(context: LoggedContext, members: Sequence[PromptEntry], handle: str) -> TextBlock:
    """Return the block that replaces a folded context: its outline and its quoted conclusion."""
    end = context.conclusion
    assert end is not None
    senders = Counter([entry.envelope.sender for entry in members])
    calls = [entry.call for entry in members if entry.call is not None and not entry.is_result]
    tools = Counter([call.tool for call in calls])
    inner = {entry.context for entry in members} - {context}
    outline = [f"{len(members)} messages from {_most_common(senders, quoting.name)}"]
    outline += [f"calls of {_most_common(tools, quoting.tool)}"] if tools else []
    outline += [f"{len(inner)} inner contexts"] if inner else []
    label = f"{quoting.name(context.type)} " if context.type else ""
    said = envelope_text(end.envelope)
    text = quoting.quote(said if context.title is None else f"{context.title}\n{said}")
    return TextBlock(
        f"[folded; handle {handle}] {label}{quoting.name(context.id)}: "
        f"{'; '.join(outline)}. @{quoting.name(context.creator)} "
        f"{_ENDS[outcome_of(end.envelope)]}:\n{text}"
    )


def _most_common(names: "Counter[str]", escape: Callable[[str], str], limit: int = 5) -> str:
    shown = [escape(name) for name, _ in names.most_common(limit)]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")
