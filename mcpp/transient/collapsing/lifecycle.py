"""The rules by which transient results are consumed or superseded (T-05 to T-14).

They know neither envelopes nor a model's API: `TransientTracker` applies them to a pod's log,
`Conversation` to the messages of any MCP client, so both decide alike.
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, Protocol

import msgspec

from mcpp.transient.marks import Hint, Mark, cut, read_hints, read_mark
from mcpp.transient.summaries import summarize

Badge = Literal["transient", "consumed", "collapsed"]
TransientState = Literal["pending", "consumed", "superseded"]

MAX_FETCHERS: Final = 64
"""Tools that one consumer can be paired with: every consumption looks at each of them."""


class AnsweredCall(Protocol):
    """A tool call with its result. `index` and `answered_at` order requests and results."""

    @property
    def id(self) -> str:
        """The id of the call."""

    @property
    def index(self) -> int:
        """The place of the request."""

    @property
    def answered_at(self) -> int:
        """The place of the result."""

    @property
    def caller(self) -> str:
        """Who made the call."""

    @property
    def context_id(self) -> str | None:
        """The context in which it was made."""

    @property
    def server(self) -> str:
        """Who answered."""

    @property
    def tool(self) -> str:
        """The tool's name at the server."""

    @property
    def response_id(self) -> str:
        """The id of the result."""

    @property
    def result(self) -> Mapping[str, Any]:
        """The MCP result as a model sees it."""

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""

    def original(self) -> dict[str, Any]:
        """Return a new copy of the complete result."""

    def deduplication_key(self) -> tuple[object, ...]:
        """Return a key shared by calls for the same data."""


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """How consumers are matched with results; the defaults trust no server with another's data."""

    order: Literal["oldest", "newest"] = "oldest"
    across_servers: bool = False  # hints and names also reach other servers' results (T-24)
    from_parents: bool = False  # a consumer in a context reaches the results of its parents (T-24)

    def __post_init__(self) -> None:
        if self.order not in ("oldest", "newest"):
            raise ValueError(f"order must be 'oldest' or 'newest', not {self.order!r}")


class TransientResult(msgspec.Struct, eq=False):
    """A transient result and its state."""

    call: AnsweredCall
    handle: str
    mark: Mark
    state: TransientState = "pending"
    settled_by: str | None = None  # the id of the response that consumed or superseded it, if any
    settled_at: int = -1
    _summary: str | None = None

    @property
    def summary(self) -> str:
        """The server's summary, truncated, or else a generated one (T-17)."""
        if self._summary is None:  # it is part of every prompt, and long results take long to read
            self._summary = cut(self.mark.summary or "") or summarize(self.call.original())
        return self._summary


class Settlement(msgspec.Struct, frozen=True):
    """The effects of a result: it is transient itself, or it settles earlier ones."""

    tracked: TransientResult | None = None
    settled: tuple[TransientResult, ...] = ()


NOTHING: Final = Settlement()

_Place = tuple[str, str | None]  # caller, context
_Queues = dict[tuple[str, str], deque[TransientResult]]  # by server and tool


class TransientResults:
    """The transient results of all calls so far. Owns their states and the tool pairs."""

    def __init__(self, matching: Matching) -> None:
        self._matching = matching
        self._tracked: dict[str, TransientResult] = {}  # by the call's id
        self._by_response: dict[str, TransientResult] = {}
        self._by_handle: dict[str, TransientResult] = {}
        self._pairs: dict[tuple[str | None, str], dict[str, None]] = defaultdict(dict)
        self._paired: set[tuple[str | None, str]] = set()  # server, tool that has a consumer
        self._pending: dict[_Place, _Queues] = defaultdict(dict)
        self._copies: dict[tuple[object, ...], TransientResult] = {}
        self._consumers: set[str] = set()

    def add(self, call: AnsweredCall, ancestors: Iterable[str | None] = ()) -> Settlement:
        """Process the result of a call.

        `ancestors` are the contexts around the call's own, the nearest first; None is the main one.
        """
        if call.is_error:
            return NOTHING  # T-07, T-08: a failed call neither consumes nor is collapsible
        for hint in read_hints(call.result):
            self._pair(call.server, hint)
        mark = read_mark(call.result)
        settled = self._consume(call, mark, ancestors) if mark.consumed else ()
        tracked = None
        if mark.transient:
            tracked, superseded = self._track(call, mark)
            settled += superseded
        return Settlement(tracked, settled) if tracked or settled else NOTHING

    def find(self, id: str) -> TransientResult | None:
        """Return the transient result with this handle, call id or response id."""
        return self._by_handle.get(id) or self._tracked.get(id) or self._by_response.get(id)

    def find_response(self, response_id: str) -> TransientResult | None:
        """Return the transient result with this response id."""
        return self._by_response.get(response_id)

    def find_handle(self, handle: object) -> TransientResult | None:
        """Return the transient result with this handle, which a model may have written."""
        return self._by_handle.get(handle) if isinstance(handle, str) else None

    def settle(self, id: str) -> bool:
        """Settle a pending result without a consumer; return whether there was one."""
        tracked = self.find(id)
        if tracked is None or tracked.state != "pending":
            return False
        tracked.state = "consumed"
        return True

    def has_consumed(self, response_id: str) -> bool:
        """Return whether a response has consumed another result."""
        return response_id in self._consumers

    def is_paired(self, tracked: TransientResult) -> bool:
        """Return whether a tool is known to consume results of this one's tool."""
        return self._is_paired(tracked.call.server, tracked.call.tool)

    def _is_paired(self, server: str, tool: str) -> bool:
        return (self._owner(server), tool) in self._paired

    def _owner(self, server: str) -> str | None:
        # T-11: pairs belong to the declaring server, so that no server can pair another's tools.
        return None if self._matching.across_servers else server

    def _pair(self, server: str, hint: Hint) -> None:
        owner = self._owner(server)
        fetchers = self._pairs[owner, hint.consumed_by]
        if len(fetchers) < MAX_FETCHERS:
            fetchers.setdefault(hint.tool)
            self._paired.add((owner, hint.tool))

    def _track(
        self, call: AnsweredCall, mark: Mark
    ) -> tuple[TransientResult, tuple[TransientResult, ...]]:
        tracked = TransientResult(call, self._new_handle(call.response_id), mark)
        self._tracked[call.id] = tracked
        self._by_response[call.response_id] = tracked
        self._by_handle[tracked.handle] = tracked
        queues = self._pending[call.caller, call.context_id]
        queues.setdefault((call.server, call.tool), deque()).append(tracked)
        key = call.deduplication_key()
        older = self._copies.get(key)
        self._copies[key] = tracked
        if older is not None and older.state == "pending":
            # T-14: the newer copy replaces the older one.
            return tracked, (self._settle(older, "superseded", call),)
        return tracked, ()

    def _consume(
        self, call: AnsweredCall, mark: Mark, ancestors: Iterable[str | None]
    ) -> tuple[TransientResult, ...]:
        if mark.consumes is not None:
            named = (self._tracked.get(one) or self._by_response.get(one) for one in mark.consumes)
            found = [
                tracked
                for tracked in dict.fromkeys(named)
                if tracked is not None
                and tracked.state == "pending"
                and tracked.call.caller == call.caller
                and self._may_consume(call, tracked)
                and tracked.call.answered_at < call.index
            ]
        else:
            found = self._matched(call, ancestors)
        if found:
            self._consumers.add(call.response_id)
        return tuple(self._settle(tracked, "consumed", call) for tracked in found)

    def _may_consume(self, call: AnsweredCall, tracked: TransientResult) -> bool:
        """Return whether a consumer may name a result: one of its server, or of the caller."""
        allowed = (call.server, call.caller)
        return self._matching.across_servers or tracked.call.server in allowed

    def _matched(
        self, call: AnsweredCall, ancestors: Iterable[str | None]
    ) -> list[TransientResult]:
        around = ancestors if self._matching.from_parents else ()
        for context in (call.context_id, *around):
            queues = self._pending.get((call.caller, context))
            if queues:
                fetchers = self._pairs.get((self._owner(call.server), call.tool))
                chosen = (
                    self._fetched_by(call, queues, fetchers)
                    if fetchers
                    else self._from_only_server(call, queues)
                )
                if chosen is not None:
                    return [chosen]
        return []

    def _fetched_by(
        self, call: AnsweredCall, queues: _Queues, fetchers: Iterable[str]
    ) -> TransientResult | None:
        if self._matching.across_servers:
            names = frozenset(fetchers)
            chosen = [key for key in queues if key[1] in names]
        else:
            chosen = [(call.server, tool) for tool in fetchers]
        return self._first(self._offered(queues, chosen, call))

    def _from_only_server(self, call: AnsweredCall, queues: _Queues) -> TransientResult | None:
        """Return the result that a consumer uses which no hint names (T-12)."""
        for key in [key for key in queues if not _trimmed(queues, key)]:
            del queues[key]
        # What a caller fetched from itself, such as expanded content, is no server's.
        others = [key for key in queues if key[0] != call.caller]
        if len(others) > MAX_FETCHERS or any(key[0] != call.server for key in others):
            return None
        return self._first(
            self._offered(queues, [key for key in others if not self._is_paired(*key)], call)
        )

    def _offered(
        self, queues: _Queues, keys: Iterable[tuple[str, str]], call: AnsweredCall
    ) -> Iterator[TransientResult]:
        """Yield the first result of each queue that precedes the consumer's request (T-06)."""
        newest = self._matching.order == "newest"
        for key in keys:
            pending = _trimmed(queues, key)
            for tracked in reversed(pending) if newest else pending:
                if tracked.state == "pending" and tracked.call.answered_at < call.index:
                    yield tracked
                    break
                if not newest and tracked.state == "pending":
                    break  # the others of this queue arrived even later

    def _first(self, offered: Iterable[TransientResult]) -> TransientResult | None:
        choose = max if self._matching.order == "newest" else min
        return choose(offered, key=lambda tracked: tracked.call.answered_at, default=None)

    @staticmethod
    def _settle(
        tracked: TransientResult, state: TransientState, by: AnsweredCall
    ) -> TransientResult:
        tracked.state = state
        tracked.settled_by = by.response_id
        tracked.settled_at = by.answered_at
        return tracked

    def _new_handle(self, id: str) -> str:
        length = 8
        digest = new_handle(id, 64)
        while digest[:length] in self._by_handle and length < len(digest):
            length += 2
        return digest[:length]


def _trimmed(queues: _Queues, key: tuple[str, str]) -> deque[TransientResult]:
    """Return a queue without settled results at its ends."""
    pending = queues.get(key, _EMPTY)
    while pending and pending[0].state != "pending":
        pending.popleft()
    while pending and pending[-1].state != "pending":
        pending.pop()
    return pending


_EMPTY: Final[deque[TransientResult]] = deque()


def new_handle(id: str, length: int = 8) -> str:
    """Return a short digest of an id: few tokens, the same in every prompt."""
    return hashlib.sha256(id.encode(errors="surrogatepass")).hexdigest()[:length]


def collapsed_text(tracked: TransientResult) -> str:
    """Return what replaces all visible content of a collapsed result (T-15)."""
    # T-18: the summary is a single line, and quoted it cannot imitate the marker.
    return f"[collapsed; handle {tracked.handle}]\n> {tracked.summary}"
