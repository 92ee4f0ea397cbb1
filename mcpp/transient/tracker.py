"""Tracks the lifecycle of transient results in a log: pending, consumed or superseded.

The state is the same for every viewer. Only whether a result has been *shown* depends on the
viewer (T-06), so those methods take one. Envelopes never change: collapsing is a decision about how
to show a result.
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from mcpp import kinds
from mcpp.protocol.envelope import Envelope
from mcpp.transient.calls import LoggedCall, LoggedCalls
from mcpp.transient.marks import Hint, Mark, cut, read_hints, read_mark
from mcpp.transient.summaries import summarize

Badge = Literal["transient", "consumed", "collapsed"]
TransientState = Literal["pending", "consumed", "superseded"]

MAX_FETCHERS: Final = 64
"""Tools that one consumer can be paired with: every consumption looks at each of them."""

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


class TransientResult(msgspec.Struct, eq=False):
    """A transient result and its state."""

    call: LoggedCall
    handle: str
    mark: Mark
    state: TransientState = "pending"
    settled_by: str | None = None  # the id of the response that consumed or superseded it
    settled_at: int = -1

    @property
    def summary(self) -> str:
        """The server's summary, truncated, or else a generated one (T-17)."""
        return cut(self.mark.summary or "") or summarize(self.call.original())


class Change(msgspec.Struct, frozen=True):
    """The effects of an envelope: a call, a new transient result, results settled by it."""

    call: LoggedCall | None = None
    tracked: TransientResult | None = None  # new
    settled: tuple[TransientResult, ...] = ()


_NOTHING: Final = Change()


class TransientTracker:
    """Follows a log and the transient results in it. Owns its calls and tool pairs."""

    def __init__(self) -> None:
        self.calls = LoggedCalls()
        self.seen: set[str] = set()  # the ids of all envelopes
        self._length = 0
        self._tracked: dict[str, TransientResult] = {}  # by the call's id
        self._by_response: dict[str, TransientResult] = {}
        self._by_handle: dict[str, TransientResult] = {}
        self._pairs: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
        self._paired: set[tuple[str | None, str]] = set()  # server, tool that has a consumer
        self._pending: dict[tuple[object, ...], deque[TransientResult]] = defaultdict(deque)
        self._copies: dict[tuple[object, ...], TransientResult] = {}
        self._consumers: set[str] = set()
        self._last_sent: dict[str, int] = {}

    def add(self, envelope: Envelope) -> Change:
        """Process the next envelope of the log; an envelope delivered again has no effect."""
        index = self._length
        self._length += 1
        if envelope.id in self.seen:
            return _NOTHING
        self.seen.add(envelope.id)
        if not envelope.kind.startswith(_AUTOMATIC):
            self._last_sent[envelope.sender] = index
        call = self.calls.add(envelope, index)
        if call is None:
            return _NOTHING
        if call.response is not envelope or call.is_error:
            return Change(call)  # T-07, T-08: a failed call neither consumes nor is collapsible
        for hint in read_hints(call.result):
            if call.server is not None:
                self._pair(call.server, hint)
        mark = read_mark(call.result)
        settled = self._consume(call, mark) if mark.consumed else ()
        tracked = None
        if mark.transient:
            tracked, superseded = self._track(call, mark)
            settled += superseded
        return Change(call, tracked, settled)

    def is_shown(self, index: int, viewer: str) -> bool:
        """Return whether a viewer's model has been called since this index of the log (T-06)."""
        return self._last_sent.get(viewer, -1) > index

    def find(self, id: str) -> TransientResult | None:
        """Return the transient result with this handle, call id or response id."""
        return self._by_handle.get(id) or self._tracked.get(id) or self._by_response.get(id)

    def is_paired(self, tracked: TransientResult) -> bool:
        """Return whether a tool is known to consume results of this one's tool."""
        return (tracked.call.server, tracked.call.tool) in self._paired

    def is_collapsible(self, tracked: TransientResult, viewer: str | None = None) -> bool:
        """Return whether a result may collapse for a viewer, by default its caller."""
        shown = self.is_shown(tracked.call.answered_at, viewer or tracked.call.caller)
        return tracked.state != "pending" and shown

    def badges(self, response_id: str, viewer: str | None = None) -> tuple[Badge, ...]:
        """Return the badges that a UI may show beside a response."""
        found: list[Badge] = []
        tracked = self._by_response.get(response_id)
        if tracked is not None:
            found.append("collapsed" if self.is_collapsible(tracked, viewer) else "transient")
        if response_id in self._consumers:
            found.append("consumed")
        return tuple(found)

    def collapse(self, tracked: TransientResult) -> dict[str, Any]:
        """Return the collapsed result: its summary replaces all visible content (T-15)."""
        # T-18: the summary is a single line, and quoted it cannot imitate the marker.
        text = f"[collapsed; handle {tracked.handle}]\n> {tracked.summary}"
        return {"content": [{"type": "text", "text": text}]}

    def expand(self, handle: str) -> Mapping[str, Any] | None:
        """Return a new copy of the original result behind a handle; None if unknown (T-16)."""
        tracked = self._by_handle.get(handle)
        return None if tracked is None else tracked.call.original()

    def _pair(self, server: str, hint: Hint) -> None:
        # T-11: keyed by the declaring server, so that no server can pair another's tools.
        fetchers = self._pairs[server, hint.consumed_by]
        if len(fetchers) < MAX_FETCHERS:
            fetchers.setdefault(hint.tool)
            self._paired.add((server, hint.tool))

    def _track(
        self, call: LoggedCall, mark: Mark
    ) -> tuple[TransientResult, tuple[TransientResult, ...]]:
        assert call.response is not None
        tracked = TransientResult(call, self._new_handle(call.response.id), mark)
        self._tracked[call.id] = tracked
        self._by_response[call.response.id] = tracked
        self._by_handle[tracked.handle] = tracked
        self._pending[self._queue(call, call.tool)].append(tracked)
        key = call.deduplication_key()
        older = self._copies.get(key)
        self._copies[key] = tracked
        if older is not None and older.state == "pending":
            # T-14: the newer copy replaces the older one.
            return tracked, (self._settle(older, "superseded", call),)
        return tracked, ()

    def _consume(self, call: LoggedCall, mark: Mark) -> tuple[TransientResult, ...]:
        if mark.consumes is not None:
            named = (self._tracked.get(one) or self._by_response.get(one) for one in mark.consumes)
            found = [
                tracked
                for tracked in dict.fromkeys(named)
                if tracked is not None
                and tracked.state == "pending"
                and tracked.call.caller == call.caller
                and tracked.call.answered_at < call.index
            ]
        else:
            oldest = self._oldest(call)
            found = [] if oldest is None else [oldest]
        if found and call.response is not None:
            self._consumers.add(call.response.id)
        return tuple(self._settle(tracked, "consumed", call) for tracked in found)

    def _oldest(self, call: LoggedCall) -> TransientResult | None:
        fronts = []
        for tool in self._pairs.get((call.server or "", call.tool), ()):
            pending = self._pending.get(self._queue(call, tool))
            while pending and pending[0].state != "pending":
                pending.popleft()
            # T-06: a result that arrived after the consumer's request cannot be its input.
            if pending and pending[0].call.answered_at < call.index:
                fronts.append(pending[0])
        return min(fronts, key=lambda tracked: tracked.call.answered_at, default=None)

    def _settle(
        self, tracked: TransientResult, state: TransientState, by: LoggedCall
    ) -> TransientResult:
        tracked.state = state
        tracked.settled_by = None if by.response is None else by.response.id
        tracked.settled_at = by.answered_at
        return tracked

    @staticmethod
    def _queue(call: LoggedCall, tool: str) -> tuple[object, ...]:
        return (call.caller, call.context_id, call.server, tool)

    def _new_handle(self, id: str) -> str:
        length = 8
        digest = new_handle(id, 64)
        while digest[:length] in self._by_handle and length < len(digest):
            length += 2
        return digest[:length]


def new_handle(id: str, length: int = 8) -> str:
    """Return a short digest of an id: few tokens, the same in every prompt."""
    return hashlib.sha256(id.encode()).hexdigest()[:length]
