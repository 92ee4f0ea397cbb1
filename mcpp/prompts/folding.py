"""Folds contexts into a few lines and a handle for the rest.

A concluded context becomes its conclusion and an outline. A conclusion folds everything before it
in its context and in inner contexts; later messages stay. Only a conclusion by the context's
creator counts: no participant can replace another's reasoning.

Of a long open context, a summary replaces the messages that it was made from. Summaries are given
by the caller and never read from the log, and one applies only where its digest shows that the
viewer has received exactly these messages (M-55).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from mcpp import kinds
from mcpp.outcomes import outcome_of
from mcpp.payloads import ContextInfo, opts_out
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

KEPT_NEWEST: Final = 10
"""The newest messages of an open context, which no summary replaces."""

MAX_SUMMARY_CHARS: Final = 4_000

_SUMMARIZED_KINDS: Final = frozenset({kinds.CHAT, kinds.REFLECTION, kinds.CONCLUSION})
_DIGEST_CHARS: Final = 32


class ContextSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of messages of an open context, those from `first` to `last` (envelope ids).

    `digest` is that of `digest_of` for the ids of all envelopes there that `is_summarized`, in the
    log's order. `author` is who made it: a participant or a model.
    """

    context: str
    first: str
    last: str
    digest: str
    text: str
    author: str


def is_summarized(envelope: Envelope) -> bool:
    """Return whether summaries of open contexts are made from such envelopes.

    What else is said in a context stays in prompts: attachments, and what opted out (M-33).
    """
    return (
        envelope.kind in _SUMMARIZED_KINDS
        and not envelope.attachments
        and envelope.context is not None
        and not opts_out(envelope.context.metadata)
    )


def digest_of(id: str, before: str = "") -> str:
    """Return the digest of a sequence of ids: of the last id, and the digest of those before."""
    return sha256(f"{before} {id}".encode()).hexdigest()[:_DIGEST_CHARS]


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
    inner = {entry.context for entry in members} - {context}
    outline = _outline(members)
    outline += [f"{len(inner)} inner contexts"] if inner else []
    label = f"{quoting.name(context.type)} " if context.type else ""
    said = envelope_text(end.envelope)
    text = quoting.quote(said if context.title is None else f"{context.title}\n{said}")
    return TextBlock(
        f"[folded; handle {handle}] {label}{quoting.name(context.id)}: "
        f"{'; '.join(outline)}. @{quoting.name(context.creator)} "
        f"{_ENDS[outcome_of(end.envelope)]}:\n{text}"
    )


def summarized_members(context: LoggedContext, summary: ContextSummary) -> list[PromptEntry]:
    """Return the entries that a summary of an open context replaces, in order.

    These are the messages it was made from, except the newest ones, and calls of other participants
    between them. There are none if the viewer has not received exactly these messages: the summary
    would show what the viewer may not read, or is not about this context.
    """
    if context.conclusion is not None:
        return []
    texts = [entry for entry in context.members if is_summarized(entry.envelope)]
    places = {entry.envelope.id: place for place, entry in enumerate(texts)}
    start, end = places.get(summary.first), places.get(summary.last)
    if start is None or end is None:
        return []
    digest = ""
    for entry in texts[start : end + 1]:
        digest = digest_of(entry.envelope.id, digest)
    hidden = texts[start : min(end + 1, len(texts) - KEPT_NEWEST)]
    if digest != summary.digest or not hidden:
        return []
    first, last = hidden[0].position, hidden[-1].position
    between = [entry for entry in context.members if first < entry.position < last]
    calls = [entry for entry in between if entry.call is not None and entry.kind == "other"]
    # An unanswered call stays, and so does the result of a call that stays.
    ids = Counter([entry.call.id for entry in calls if entry.call is not None])
    hidden += [entry for entry in calls if entry.call is not None and ids[entry.call.id] > 1]
    return sorted(hidden, key=lambda entry: entry.position)


def summary_handle(summary: ContextSummary) -> str:
    """Return the handle that retrieves what a summary replaces."""
    return new_handle("summary " + summary.last)


def summary_note(
    context: LoggedContext, hidden: Sequence[PromptEntry], summary: ContextSummary
) -> TextBlock:
    """Return the block that replaces messages of an open context: an outline and the summary."""
    label = f"{quoting.name(context.type)} " if context.type else ""
    return TextBlock(
        f"[folded; handle {summary_handle(summary)}] {label}{quoting.name(context.id)}, not"
        f" concluded: {'; '.join(_outline(hidden))}. Summary by {quoting.name(summary.author)}:\n"
        f"{quoting.quote(summary.text[:MAX_SUMMARY_CHARS])}"
    )


def _outline(members: Sequence[PromptEntry]) -> list[str]:
    senders = Counter([entry.envelope.sender for entry in members])
    calls = [entry.call for entry in members if entry.call is not None and not entry.is_result]
    tools = Counter([call.tool for call in calls])
    outline = [f"{len(members)} messages from {_most_common(senders, quoting.name)}"]
    return outline + ([f"calls of {_most_common(tools, quoting.tool)}"] if tools else [])


def _most_common(names: "Counter[str]", escape: Callable[[str], str], limit: int = 5) -> str:
    shown = [escape(name) for name, _ in names.most_common(limit)]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")
