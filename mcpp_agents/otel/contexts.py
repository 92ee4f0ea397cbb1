"""From a pod's log to the contexts that have ended, each with what its span needs.

A context begins with the first envelope in it, and ends with its creator's conclusion or with its
expiry. All that is kept of it is bounded, and can be stored to go on later.
"""

from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from mcpp import Envelope, kinds
from mcpp.outcomes import Usage, ends_context, outcome_of, step_of, usage_of
from mcpp.payloads import ContextInfo
from mcpp.protocol.contexts import ContextTracker

T = TypeVar("T")

# Open contexts kept at once, and ended ones that are remembered: late envelopes begin nothing anew.
MAX_OPEN: Final = 10_000
MAX_ENDED: Final = 20_000
# Envelopes whose contexts are remembered, for links between contexts.
_MAX_IDS: Final = 20_000
# Of each kind of list that a context has.
_MAX_LISTED: Final = 32
_MAX_TEXT: Final = 200


class TracedContext(msgspec.Struct, kw_only=True):
    """A context, open or ended. Times are nanoseconds since 1970."""

    info: ContextInfo
    start: int
    end: int
    state: str = "open"  # or concluded, failed, cancelled, expired, unknown
    root: str = ""
    period: str = ""  # the envelope that revived it; empty the first time
    problem: str = ""
    messages: int = 0
    participants: list[str] = []
    steps: list[tuple[int, str]] = []
    answers: list[tuple[str, str]] = []  # contexts that it answers to, each with its root
    traces: list[str] = []  # the trace contexts of requests in it
    usage: Usage | None = None


class ContextLog:
    """The open contexts of a pod. Owns them, and the ids of recent envelopes and ended contexts."""

    def __init__(self, contexts: Iterable[TracedContext] = (), *, max_open: int = MAX_OPEN) -> None:
        """Begin with the contexts that were open when this was stopped."""
        self.open: dict[str, TracedContext] = {known.info.id: known for known in contexts}
        self._max_open = max_open
        self._tracker = ContextTracker(known.info for known in self.open.values())
        self._ended: dict[str, str] = {}  # the root of each
        self._places: dict[str, str] = {}  # the context of each recent envelope

    def learn(self, contexts: Iterable[ContextInfo]) -> None:
        """Learn the contexts that a welcome lists."""
        for info in contexts:
            self._tracker.contexts.setdefault(info.id, info)

    def add(self, envelope: Envelope, time: int) -> list[TracedContext]:
        """Process the next envelope and return the contexts that it ends."""
        change = self._tracker.change(envelope)
        if change is not None:
            ended = []
            for context in change.contexts:
                if change.event == "expired" and context.id in self.open:
                    ended.append(self._finish(context.id, "expired"))
                elif change.event == "revived":
                    self._ended.pop(context.id, None)
                    self._begin(context, time, envelope.id)
            return ended
        info = self._tracker.learn(envelope)
        if info is None or info.id in self._ended:
            return []
        if info.parent is not None and info.parent not in self._ended:
            # It began no later, although nothing may have been sent in it yet (C-04).
            parent = self._tracker.contexts.get(info.parent)
            self._begin(parent or ContextInfo(id=info.parent), time)
        known = self.open.pop(info.id, None) or self._begin(info, time)
        self.open[info.id] = known  # the most recently used is the last
        known.info = info
        self._describe(known, envelope, time)
        if ends_context(envelope) and envelope.sender == info.creator:
            _conclude(known, envelope)
            return [self._finish(info.id, outcome_of(envelope))]
        return self._make_room()

    def lose(self, present: Iterable[str]) -> list[TracedContext]:
        """Return the contexts that have ended while envelopes were missed."""
        missing = self.open.keys() - set(present)
        return [self._finish(id, "unknown") for id in [id for id in self.open if id in missing]]

    def _begin(self, info: ContextInfo, time: int, period: str = "") -> TracedContext:
        known = TracedContext(info=info, start=time, end=time, period=period)
        return self.open.setdefault(info.id, known)

    def _describe(self, known: TracedContext, envelope: Envelope, time: int) -> None:
        known.end = max(known.end, time)
        known.messages += 1
        _list(known.participants, envelope.sender)
        place = self._places.get(envelope.correlation_id or "")
        if place is not None and place != known.info.id:
            _list(known.answers, (place, self._root_of(place)))
        if envelope.kind.startswith(kinds.REQUEST):
            _list(known.traces, _trace_of(envelope))
        step = step_of(envelope)
        if step is not None and len(known.steps) < _MAX_LISTED:
            known.steps.append((time, step[:_MAX_TEXT]))
        self._places[envelope.id] = known.info.id
        if len(self._places) > _MAX_IDS:
            del self._places[next(iter(self._places))]

    def _finish(self, id: str, state: str) -> TracedContext:
        known = self.open[id]
        known.state = state
        known.root = self._root(known.info)
        del self.open[id]
        self._ended[id] = known.root
        if len(self._ended) > MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return known

    def _make_room(self) -> list[TracedContext]:
        """Give up the contexts that were not used for longest, if there are too many."""
        excess = len(self.open) - self._max_open
        return [self._finish(next(iter(self.open)), "open") for _ in range(excess)]

    def _root_of(self, id: str) -> str:
        known = self._tracker.contexts.get(id)
        return self._ended.get(id) or self._root(known or ContextInfo(id=id))

    def _root(self, info: ContextInfo) -> str:
        """Return the id of the outermost context: all contexts below it are one trace."""
        seen = {info.id}
        id, parent = info.id, info.parent
        while parent is not None and parent not in seen:
            if parent in self._ended:
                return self._ended[parent]
            seen.add(parent)
            known = self._tracker.contexts.get(parent)
            id, parent = parent, None if known is None else known.parent
        return id


def _conclude(known: TracedContext, conclusion: Envelope) -> None:
    payload = conclusion.payload if conclusion.kind == kinds.CONCLUSION else None
    if not isinstance(payload, dict):
        return
    error = payload.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    known.problem = message[:_MAX_TEXT] if isinstance(message, str) else ""
    known.usage = usage_of(conclusion)


def _list(items: list[T], item: T | None) -> None:
    if item and item not in items and len(items) < _MAX_LISTED:
        items.append(item)


def _trace_of(request: Envelope) -> str | None:
    """Return the `traceparent` of a request; None if it has none of the usual form (O-06)."""
    payload: Any = request.payload
    params = payload.get("params") if isinstance(payload, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    trace = meta.get("traceparent") if isinstance(meta, dict) else None
    return trace if isinstance(trace, str) and len(trace) == 55 else None
