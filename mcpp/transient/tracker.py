"""Follows the transient results in a pod's log: pending, consumed or superseded.

The state is the same for every viewer. Only whether a result has been *shown* depends on the
viewer (T-06), so those methods take one. Envelopes never change: collapsing is a decision about how
to show a result.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from mcpp import kinds
from mcpp.protocol.contexts import ContextTracker
from mcpp.protocol.envelope import Envelope
from mcpp.transient.calls import LoggedCall, LoggedCalls
from mcpp.transient.collapsing.lifecycle import (
    Badge,
    Matching,
    TransientResult,
    TransientResults,
    collapsed_text,
)

# Sent by a participant's runtime, so no evidence that its model has read anything. A runtime also
# sends reflections and proposals when one of several parallel calls is late or refused.
_AUTOMATIC: Final = (
    kinds.RESPONSE,
    kinds.NOTIFICATION,
    kinds.REFLECTION,
    kinds.PROPOSAL,
    kinds.WITHDRAW,
    "pod/",
    "system/",
    *(
        f"{kinds.REQUEST}:{method}"
        for method in ("initialize", "ping", "tools/list", "resources/list", "prompts/list")
    ),
)


class Change(msgspec.Struct, frozen=True):
    """The effects of an envelope: a call, a new transient result, results settled by it."""

    call: LoggedCall | None = None
    tracked: TransientResult | None = None  # new
    settled: tuple[TransientResult, ...] = ()


_NOTHING: Final = Change()
_BY_SERVER: Final = Matching()


class TransientTracker:
    """Follows a log and the transient results in it. Owns its calls."""

    def __init__(self, matching: Matching = _BY_SERVER) -> None:
        self.calls = LoggedCalls()
        self.seen: set[str] = set()  # the ids of all envelopes
        self._length = 0
        self._results = TransientResults(matching)
        self._contexts = ContextTracker() if matching.from_parents else None
        self._last_sent: dict[str, int] = {}

    def add(self, envelope: Envelope) -> Change:
        """Process the next envelope of the log; an envelope delivered again has no effect."""
        index = self._length
        self._length += 1
        if envelope.id in self.seen:
            return _NOTHING
        self.seen.add(envelope.id)
        if self._contexts is not None:
            self._follow(self._contexts, envelope)
        if not envelope.kind.startswith(_AUTOMATIC):
            self._last_sent[envelope.sender] = index
        call = self.calls.add(envelope, index)
        if call is None:
            return _NOTHING
        if call.response is not envelope:
            return Change(call)
        found = self._results.add(call, self._ancestors(call))
        return Change(call, found.tracked, found.settled)

    def is_shown(self, index: int, viewer: str) -> bool:
        """Return whether a viewer's model has been called since this index of the log (T-06)."""
        return self._last_sent.get(viewer, -1) > index

    def find(self, id: str) -> TransientResult | None:
        """Return the transient result with this handle, call id or response id."""
        return self._results.find(id)

    def is_paired(self, tracked: TransientResult) -> bool:
        """Return whether a tool is known to consume results of this one's tool."""
        return self._results.is_paired(tracked)

    def is_collapsible(self, tracked: TransientResult, viewer: str | None = None) -> bool:
        """Return whether a result may collapse for a viewer, by default its caller."""
        shown = self.is_shown(tracked.call.answered_at, viewer or tracked.call.caller)
        return tracked.state != "pending" and shown

    def badges(self, response_id: str, viewer: str | None = None) -> tuple[Badge, ...]:
        """Return the badges that a UI may show beside a response."""
        found: list[Badge] = []
        tracked = self._results.find_response(response_id)
        if tracked is not None:
            found.append("collapsed" if self.is_collapsible(tracked, viewer) else "transient")
        if self._results.has_consumed(response_id):
            found.append("consumed")
        return tuple(found)

    def collapse(self, tracked: TransientResult) -> dict[str, Any]:
        """Return the collapsed result: its summary replaces all visible content (T-15)."""
        return {"content": [{"type": "text", "text": collapsed_text(tracked)}]}

    def expand(self, handle: str) -> Mapping[str, Any] | None:
        """Return a new copy of the original result behind a handle; None if unknown (T-16)."""
        tracked = self._results.find_handle(handle)
        return None if tracked is None else tracked.call.original()

    @staticmethod
    def _follow(contexts: ContextTracker, envelope: Envelope) -> None:
        if envelope.kind == kinds.CONTEXT:
            contexts.change(envelope)
        elif envelope.context is not None:
            contexts.observe(envelope)

    def _ancestors(self, call: LoggedCall) -> Iterator[str | None]:
        if self._contexts is not None and call.context_id is not None:
            lineage = self._contexts.find(call.context_id)
            yield from () if lineage is None else lineage.ancestors
            yield None
