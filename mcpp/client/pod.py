"""A participant's handle on its pod.

async with mcpp.connect(url, token=token) as pod:
    await pod.send("chat", {"text": "hello"})
    async for message in pod:
        ...
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from mcpp import kinds, payloads
from mcpp.client import factory
from mcpp.client.connection import Connection
from mcpp.client.context_scope import ContextScope
from mcpp.client.message import Message
from mcpp.client.sender import OnProgress, Progress, Sender
from mcpp.filters import Filter, parse
from mcpp.kinds import Kind
from mcpp.payloads import ContextInfo, ParticipantInfo
from mcpp.protocol import rpc
from mcpp.protocol.envelope import Context, Envelope
from mcpp.session.session import Gap

__all__ = ["OnGap", "OnProgress", "Pod", "Progress"]

OnGap = Callable[[Gap], Awaitable[None] | None]

log = logging.getLogger("mcpp")


class Pod(Sender):
    """A pod as one participant sees it. Iterate over it in one place for what others say."""

    def __init__(
        self, connection: Connection, *, own: bool = False, on_gap: OnGap | None = None
    ) -> None:
        super().__init__(connection)
        self._own = own
        self._on_gap = on_gap

    # --- what it knows ---

    @property
    def me(self) -> str:
        """Our own name, as the gateway knows us."""
        return self._session.name

    @property
    def name(self) -> str:
        """The pod's name."""
        return "" if self._session.pod is None else self._session.pod.name

    @property
    def participants(self) -> Mapping[str, ParticipantInfo]:
        """Who is here now, ourselves too, and what each may send."""
        return MappingProxyType(self._session.participants)

    @property
    def contexts(self) -> Mapping[str, ContextInfo]:
        """The contexts that live now, by id."""
        return MappingProxyType(self._session.contexts)

    @property
    def position(self) -> str | None:
        """The last envelope received: `connect(after=…)` goes on from there."""
        return self._session.position

    @property
    def connected(self) -> bool:
        """Whether there is a line to the gateway now; while there is none, another is opened."""
        return self._session.joined and self._connection.failure is None

    @property
    def history(self) -> int:
        """How many envelopes of history the gateway announced when we joined."""
        return self._session.history

    @property
    def limits(self) -> Mapping[str, object]:
        """The gateway's limits."""
        return MappingProxyType(self._session.limits)

    # --- what others say ---

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """Return the next message in the log's order. Raises ConnectionLostError at the end."""
        while isinstance(item := await self.next(), Gap):
            await self.tell_gap(item)
        return item

    async def next(self) -> Message | Gap:
        """Return the next message like `anext`, or a gap in its place, of which nobody is told."""
        while True:
            item = self._connection.take()
            if item is None:
                await self._connection.arrival()
            elif isinstance(item, Gap):
                return item
            elif self._own or item.envelope.sender != self._session.name:
                return Message(self, item.envelope, item.replayed)

    async def tell_gap(self, gap: Gap) -> None:
        """Tell of a gap whoever asked to be told with `on_gap=`, or the log."""
        if self._on_gap is None:
            why = ": the gateway has lost its log" if gap.lost_log else ""
            log.warning("envelopes of pod %r were missed%s", self.name, why)
            return
        outcome = self._on_gap(gap)
        if inspect.isawaitable(outcome):
            await outcome

    # --- what we say, besides what every voice does ---

    def describe(self) -> None:
        """Return no context: this is the main one."""

    def context(
        self,
        type: str | None = None,
        *,
        id: str | None = None,
        parent: Context | ContextScope | str | None = None,
        **metadata: Any,
    ) -> ContextScope:
        """Open a sub-context: `async with pod.context("reasoning", trigger="…") as thinking`."""
        parent_id = parent if isinstance(parent, str | None) else parent.id
        return ContextScope(self, type, id=id, parent=parent_id, metadata=metadata)

    async def set_filter(self, filter: Filter | Mapping[str, Any]) -> None:
        """Have the gateway send only what passes; it is in force when this returns.

        Raises FilterError for JSON that describes none, and Refused with `invalid_filter`.
        """
        wanted = filter if isinstance(filter, Filter) else parse(filter)
        await self.send(kinds.SET_FILTER, {"filter": wanted.to_json()})

    async def approve(self, proposal: Message | Envelope) -> Envelope:
        """Make the request that somebody proposed, and leave its answer to whoever proposed it.

        The call takes the time that it takes, whether we stay or not. Returns the request.

        Raises DecodeError for what is no proposal to one participant or whose kind belies its
        payload, and Refused.
        """
        envelope = proposal.envelope if isinstance(proposal, Message) else proposal
        proposed = rpc.read_proposal(envelope)
        id = factory.new_id()
        return await self.send(
            str(Kind.parse(envelope.kind)._replace(family=kinds.REQUEST)),
            rpc.request(id, proposed.method, proposed.params),
            to=envelope.to,
            correlation_id=envelope.id,
            context=None if envelope.context is None else envelope.context.id,
            id=id,
        )

    async def fulfil(self, proposal: Message | Envelope, *, timeout: float | None = None) -> Any:
        """Make the request that somebody proposed, and return its result.

        The call is then ours: when the time is up or we leave it is cancelled, also for whoever
        proposed it.

        Raises DecodeError for what is no proposal to one participant or whose kind belies its
        payload, and what `request` raises.
        """
        envelope = proposal.envelope if isinstance(proposal, Message) else proposal
        proposed = rpc.read_proposal(envelope)
        (owner,) = envelope.to or ()
        return await self.request(
            owner,
            proposed.method,
            proposed.params,
            timeout=timeout,
            correlation_id=envelope.id,
            context=None if envelope.context is None else envelope.context.id,
        )

    async def reject(
        self, proposal: Message | Envelope, reason: str, text: str | None = None
    ) -> Envelope:
        """Speak against a proposal. It stays open: others may still fulfil it."""
        return await self.send(
            kinds.REJECT,
            payloads.Reject(reason=reason, text=text),
            to=[proposal.sender],
            correlation_id=proposal.id,
            context=None if proposal.context is None else proposal.context.id,
        )
