"""Reading a pod's log back: the methods of `Pod` that are about the past.

A query is answered page by page, each fetched when it is needed. Between two pages nothing is held
at the gateway, so an abandoned or cancelled iteration leaves nothing behind, and one that was
interrupted by a lost connection goes on with the next page.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import anyio
import msgspec

from mcpp import filters, history, kinds
from mcpp.client import factory
from mcpp.client.connection import Connection
from mcpp.client.message import Message
from mcpp.client.sender import Sender
from mcpp.errors import HistoryLostError, NotInHistoryError
from mcpp.filters import Filter
from mcpp.outcomes import ContextState, ends_context
from mcpp.payloads import GetHistory, History
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.tree import ContextNode
from mcpp.times import TimeLike, parse_time

if TYPE_CHECKING:
    from mcpp.client.pod import Pod

Order: TypeAlias = Literal["oldest", "newest"]
Reference: TypeAlias = Message | Envelope | str

# The largest page that a gateway serves has 500 envelopes. Fewer make the first ones come sooner.
_PAGE_ENVELOPES: Final = 200
# Bounds on what `context_of` and `open_proposals` hold in memory; other participants wrote it.
_MAX_ENVELOPES: Final = 10_000
_MAX_BYTES: Final = 67_108_864


class HistoryMessage(Message, frozen=True, kw_only=True):
    """A message of the past: with its position in the log, and when the gateway received it.

    An erased message has lost its payload.
    """

    position: int
    time: float
    erased: bool = False

    @property
    def received_at(self) -> datetime:
        """The time at which the gateway received it, in UTC."""
        return datetime.fromtimestamp(self.time, UTC)


@dataclass(frozen=True, slots=True)
class ContextHistory:
    """A context of the past with its descendants. `messages` are those of all of them, in order.

    `complete` is false if there were more messages than asked for.
    """

    node: ContextNode
    messages: list[HistoryMessage]
    complete: bool = True

    @property
    def id(self) -> str:
        """The context's id."""
        return self.node.id

    @property
    def type(self) -> str | None:
        """The context's type, such as `reasoning`."""
        return self.node.type

    @property
    def title(self) -> str | None:
        """What its creator calls it."""
        return self.node.title

    @property
    def state(self) -> ContextState:
        """How its creator ended it: concluded, failed, cancelled; else expired or open."""
        return self.node.state

    @property
    def conclusion(self) -> Envelope | None:
        """The outcome: the conclusion of the context's creator, if there is one."""
        return self.node.conclusion


class HistoryIterator:
    """Iterates over past messages, in one task: `async for message in pod.history(…)`.

    It ends at the end of the log as it was at the first page, however much is sent meanwhile.
    `start`, `end` and `indexed_to` are positions as of the first page, None before it: the oldest
    that can be read, the end of the log, and the end of its text index. What is newer than the
    index is read from the log itself, so nothing is missing.
    """

    def __init__(self, pod: "Pod", query: GetHistory, limit: int | None = None) -> None:
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be at least 0, not {limit}")
        self.start: int | None = None
        self.end: int | None = None
        self.indexed_to: int | None = None
        self._pod = pod
        self._query = query
        self._left = math.inf if limit is None else limit
        self._epoch: str | None = None
        self._fetched: deque[history.PastEnvelope] = deque()
        self._finished = False

    def __aiter__(self) -> "HistoryIterator":
        return self

    async def __anext__(self) -> HistoryMessage:
        """Return the next message. It may be called again after it was cancelled or has raised.

        Raises Refused, HistoryLostError or ConnectionLostError.
        """
        while self._left > 0 and not self._fetched and not self._finished:
            await self._fetch()
        if self._left <= 0 or not self._fetched:
            raise StopAsyncIteration
        self._left -= 1
        past = self._fetched.popleft()
        return HistoryMessage(
            self._pod,
            past.envelope,
            True,
            position=past.position,
            time=past.time,
            erased=past.erased,
        )

    async def all(self) -> list[HistoryMessage]:
        """Return all messages that are left."""
        return [message async for message in self]

    async def _fetch(self) -> None:
        limit = int(min(self._left, _PAGE_ENVELOPES))
        query = msgspec.structs.replace(self._query, limit=limit)
        async with self._pod._query_lock:
            answer = await self._pod.send(kinds.GET_HISTORY, query)
        page = answer.payload_as(History)
        # Nothing is awaited from here on: cancellation finds all of the page, or nothing.
        if self._epoch is None:
            self._epoch, self.start, self.end = page.epoch, page.start, page.end
            self.indexed_to = page.indexed_to
        elif page.epoch != self._epoch:
            raise HistoryLostError
        end = cast(int, self.end)
        for past in history.past_envelopes(page):
            if past.position < end:
                self._fetched.append(past)
            elif query.order == "oldest":
                self._finished = True
        self._finished = self._finished or page.next is None
        self._query = msgspec.structs.replace(self._query, cursor=page.next)


class PodHistory(Sender):
    """What a participant may ask about the past of its pod."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        # A gateway reads one query of a participant at a time, and refuses more than a few (H-09).
        self._query_lock = anyio.Lock()

    def history(
        self,
        filter: Filter | Mapping[str, Any] | None = None,
        *,
        context: str | None = None,
        text: str | None = None,
        since: TimeLike | None = None,
        until: TimeLike | None = None,
        after: Reference | None = None,
        before: Reference | None = None,
        limit: int | None = None,
        order: Order = "oldest",
    ) -> HistoryIterator:
        """Read the log back: `async for message in pod.history(text="refund", since="10:00")`.

        It yields what this participant may receive, its own messages included. What a filter of
        its connection excludes is not excluded here.

        Args:
            filter: which envelopes, as a Filter or as JSON.
            context: only envelopes in the context with this id, and in its descendants.
            text: words that must all occur; `"quoted"` words must follow each other, and `ref*`
                stands for every word that begins so.
            since: the earliest time of receipt: a datetime, or a text such as `10:00`, `yesterday`,
                `2h ago`, or ISO 8601. Times without a zone are in the local one.
            until: the time before which they were received; a day is included as a whole.
            after: only what follows this message, or the envelope with this id.
            before: only what precedes it.
            limit: the number of messages after which to stop.
            order: `oldest` or `newest` first.

        Raises FilterError, TimeError, and ValueError where `since` and `after`, or `until` and
        `before`, are both given. The iteration raises Refused with `invalid_history` for an id
        that is not in the log.
        """
        if (since is not None and after is not None) or (until is not None and before is not None):
            raise ValueError("pass a time or a message as a bound, not both")
        wanted = filters.as_filter(filter)
        query = GetHistory(
            filter=None if wanted is None else filters.parse(wanted.to_json()).to_json(),
            context=context,
            text=text,
            after=_id(after) if since is None else _earliest(since),
            before=_id(before) if until is None else _seconds(until, is_end=True),
            order=order,
        )
        return HistoryIterator(cast("Pod", self), query, limit)

    async def around(
        self, message: Reference, *, before: int = 10, after: int = 10
    ) -> list[HistoryMessage]:
        """Return a message of the log between those that precede and follow it, oldest first.

        Args:
            message: a message, an envelope, or its id.
            before: how many that precede it.
            after: how many that follow it.

        Raises NotInHistoryError for one that this participant may not read, and Refused with
        `invalid_history` for one that is not in the log.
        """
        if before < 0 or after < 0:
            raise ValueError("before and after must be at least 0")
        id = _id(message)
        # The one before it is needed as a bound, even where none is asked for.
        earlier = await self.history(before=id, order="newest", limit=max(before, 1)).all()
        bound = earlier[0] if earlier else None
        later = await self.history(after=bound, limit=after + 1).all()
        if not later or later[0].id != id:
            raise NotInHistoryError(str(id))
        return [*reversed(earlier[:before]), *later]

    async def context_of(self, id: str, *, limit: int = _MAX_ENVELOPES) -> ContextHistory:
        """Return a context of the past with all its descendants, their messages and the outcome.

        Args:
            id: of the context; it may have expired long ago.
            limit: how many messages to read at most, from the oldest on. It also stops at 64 MiB.
                Outcomes count however many messages precede them.

        Raises NotInHistoryError if the log has no message of it.
        """
        messages, complete = await collect(self.history(context=id), limit)
        live = self._session.contexts
        node = history.context_node(id, [message.envelope for message in messages], live)
        if node is None:
            raise NotInHistoryError(id)
        if not complete:
            await self._read_outcomes(node, messages[-1])
        return ContextHistory(node, messages, complete)

    async def _read_outcomes(self, node: ContextNode, after: HistoryMessage) -> None:
        """Find the conclusions of a context and its descendants behind the messages read."""
        conclusions = filters.kind(kinds.CONCLUSION) | filters.kind(kinds.TOMBSTONE)
        # Others may send any number of conclusions: only the creators' count (C-17).
        if node.creator is not None:
            own = conclusions & filters.sender(node.creator) & filters.in_context(node.id)
            newest = self.history(own, after=after, order="newest", limit=_MAX_ENVELOPES)
            async for message in newest:
                if ends_context(message.envelope):
                    node.conclusion = message.envelope
                    break
        later = self.history(conclusions, context=node.id, after=after)
        found, _ = await collect(later, _MAX_ENVELOPES)
        nodes = {each.id: each for each, _ in node.walk()}
        for message in found:
            where = None if message.context is None else nodes.get(message.context.id)
            is_creators = where is not None and where.creator == message.sender
            if where is not None and is_creators and ends_context(message.envelope):
                where.conclusion = message.envelope

    async def open_proposals(
        self,
        *,
        since: TimeLike | None = None,
        rejected: bool = False,
        limit: int = _MAX_ENVELOPES,
    ) -> list[HistoryMessage]:
        """Return the proposals that wait for a decision, oldest first, from the log.

        A participant that has just joined gets those from before, too. Pass one to `approve`,
        `fulfil` or `reject`.

        Args:
            since: do not look further back than this time.
            rejected: also return those that were rejected; they may still be fulfilled (P-21).
            limit: how many proposals, requests, rejections and withdrawals to read at most, from
                the newest back. It also stops at 64 MiB.
        """
        newest = self.history(history.proposal_kinds, since=since, order="newest", limit=limit)
        messages, _ = await collect(newest, limit, _is_about_proposals)
        by_id = {message.id: message for message in reversed(messages)}
        envelopes = (message.envelope for message in by_id.values())
        erased = {message.id for message in messages if message.erased}
        waiting = history.open_proposals(envelopes, rejected=rejected, erased=erased)
        return [by_id[envelope.id] for envelope in waiting]


async def collect(
    reader: HistoryIterator, limit: int, wanted: Callable[[Envelope], bool] | None = None
) -> tuple[list[HistoryMessage], bool]:
    """Return messages within bounds of number and bytes (P-40), and whether those are all."""
    found: list[HistoryMessage] = []
    size = 0
    async for message in reader:
        if wanted is None or wanted(message.envelope):
            size += len(message.envelope.raw_payload)
            if len(found) >= limit or size > _MAX_BYTES:
                return found, False
            found.append(message)
    return found, True


def _is_about_proposals(envelope: Envelope) -> bool:
    """Return whether to keep an envelope: most requests are plain calls and fulfil nothing."""
    return envelope.correlation_id is not None or envelope.kind.startswith(kinds.PROPOSAL)


def _id(reference: Reference | None) -> str | None:
    return reference if isinstance(reference, str | None) else reference.id


def _seconds(time: TimeLike, *, is_end: bool = False) -> float:
    return parse_time(time, factory.local_now(), is_end=is_end).timestamp()


def _earliest(since: TimeLike) -> float:
    """Return the bound for `after`, which excludes the time itself."""
    return math.nextafter(_seconds(since), -math.inf)
