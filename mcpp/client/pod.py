"""A participant's handle on its pod.

async with mcpp.connect(url, token=token) as pod:
    await pod.send("chat", {"text": "hello"})
    async for message in pod:
        ...
"""

import inspect
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, overload

from anyio import CancelScope, Lock
from anyio.abc import TaskGroup

from mcpp import kinds, payloads
from mcpp.client import factory
from mcpp.client.connection import Connection
from mcpp.client.history import HistoryMessage, PodHistory
from mcpp.client.message import Message
from mcpp.client.scopes.claims import ClaimScope, with_claims
from mcpp.client.scopes.context_scope import ContextScope
from mcpp.client.scopes.templates import ContextTemplate
from mcpp.client.tasks import contained
from mcpp.conversation import attachments, content, private_content
from mcpp.conversation.cards import PodCards
from mcpp.errors import ConnectionLostError
from mcpp.filters import Filter, parse
from mcpp.kinds import Kind
from mcpp.payloads import ContextInfo, ParticipantInfo
from mcpp.protocol import rpc
from mcpp.protocol.cards import OfferedItem
from mcpp.protocol.envelope import Attachment, Context, Envelope
from mcpp.session.claims import HeldClaim
from mcpp.session.resumption import Delivery, Gap, HistoryEnd

OnGap = Callable[[Gap], Awaitable[None] | None]

# Unechoed envelopes beyond which what can be left out is not sent.
_MANY_UNECHOED: Final = 64
_MAX_MESSAGE_BYTES: Final = 1_048_576  # where the gateway does not say it

logger = logging.getLogger("mcpp.client")


class Pod(PodHistory):
    """A pod as one participant sees it.

    `async with mcpp.connect(…) as pod` yields one; programs do not construct it. Iterate over it,
    in one task, to get the messages of others.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        own: bool = False,
        on_gap: OnGap | None = None,
        tasks: TaskGroup | None = None,
    ) -> None:
        super().__init__(connection)
        self._tasks = tasks
        self._own = own
        self._on_gap = on_gap
        self._claim_locks: dict[str, Lock] = {}
        # The last claim of each name that held, and whether the name was done before.
        self._claim_marks: dict[str, tuple[HistoryMessage, bool]] = {}
        self._hears_claims = False
        self.state: Any = None
        """What the agent's `lifespan` yields; also at `message.state`."""

    # --- state ---

    @property
    def me(self) -> str:
        """This participant's own name."""
        return self._session.name

    @property
    def name(self) -> str:
        """The pod's name."""
        return "" if self._session.pod is None else self._session.pod.name

    @property
    def participants(self) -> Mapping[str, ParticipantInfo]:
        """The participants that are present, this one included, with their capabilities."""
        return MappingProxyType(self._session.participants)

    @property
    def cards(self) -> PodCards:
        """What the participants say about themselves and what they offer."""
        return self._connection.cards

    @property
    def contexts(self) -> Mapping[str, ContextInfo]:
        """The live contexts, by id."""
        return MappingProxyType(self._session.contexts)

    @property
    def position(self) -> str | None:
        """The id of the last envelope received: `connect(after=…)` resumes there."""
        return self._session.position

    @property
    def connected(self) -> bool:
        """Whether the gateway is connected now; otherwise reconnection is in progress."""
        return self._session.joined and self._connection.failure is None

    @property
    def is_congested(self) -> bool:
        """Whether sent envelopes wait for a rate limit, a reconnection or many echoes."""
        outgoing = self._session.outgoing
        return outgoing.waiting or len(outgoing) > _MANY_UNECHOED

    @property
    def replayed(self) -> int:
        """The number of history envelopes that the gateway announced on joining."""
        return self._session.history

    @property
    def limits(self) -> Mapping[str, object]:
        """The gateway's limits, such as `max_message_bytes`."""
        return MappingProxyType(self._session.limits)

    # --- receiving ---

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        """Return the next message in the log's order.

        Raises ConnectionLostError when the connection has ended for good.
        """
        while not isinstance(item := await self.next_item(), Message):
            if isinstance(item, Gap):
                await self.handle_gap(item)
        return item

    async def next(self) -> Message | Gap:
        """Return the next message like `anext`, or a Gap instead of calling `on_gap`."""
        while isinstance(item := await self.next_item(), HistoryEnd):
            pass
        return item

    async def next_item(self) -> Message | HistoryEnd | Gap:
        """Return the next item like `next`, or a HistoryEnd after the last replayed message."""
        while True:
            item = self._connection.take()
            if item is None:
                await self._connection.wait_for_messages()
            elif not isinstance(item, Delivery):
                return item
            elif item.envelope.kind == kinds.UPDATE and not item.replayed:
                continue  # the session knows it: see `participants` and `cards`
            elif self._own or item.envelope.sender != self._session.name:
                return Message(self, item.envelope, item.replayed)

    async def handle_gap(self, gap: Gap) -> None:
        """Call `on_gap` with a gap, or log the gap if there is no such function."""
        if self._on_gap is None:
            reason = ": the gateway has lost its log" if gap.lost_log else ""
            logger.warning("missed envelopes in pod %r%s", self.name, reason)
            return
        outcome = self._on_gap(gap)
        if inspect.isawaitable(outcome):
            await outcome

    def start_soon(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a background task that is cancelled when the connection's block ends.

        Its result is ignored; an exception is logged and ends only this task.

        Raises RuntimeError after the end of the block.
        """
        if self._tasks is None:
            raise RuntimeError("this pod was not opened by connect()")
        self._tasks.start_soon(self._run_task, function, args)

    async def _run_task(
        self, function: Callable[..., Awaitable[object]], args: tuple[object, ...]
    ) -> None:
        try:
            await contained(function(*args))
        except ConnectionLostError:
            pass  # the reading task raises it
        except Exception:
            name = getattr(function, "__name__", "?")
            logger.exception("%s: background task %s failed", self.me, name)

    # --- sending, beyond what every Sender does ---

    def _describe(self) -> None:
        """Return no context: this is the main one."""

    @property
    def _own_pod(self) -> "Pod":
        return self

    def context(
        self,
        type: str | ContextTemplate | None = None,
        *,
        title: str | None = None,
        id: str | None = None,
        parent: Context | ContextScope | str | None = None,
        **metadata: Any,
    ) -> ContextScope:
        """Open a sub-context: `async with pod.context("task", title="Book Paris") as booking`.

        A block that raises leaves the context *failed*, with the exception's type and message; one
        that is cancelled leaves it *cancelled*.

        Args:
            type: such as `reasoning` or `task`, or a template with steps and checked metadata.
            title: what people see instead of its id.
            id: of an existing context; a new one by default.
            parent: the context above it.
            metadata: describes it; sent with its first envelope.

        Raises EncodeError for metadata that the template does not allow.
        """
        parent_id = parent if isinstance(parent, str | None) else parent.id
        return ContextScope(self, type, title=title, id=id, parent=parent_id, metadata=metadata)

    async def tools(self) -> list[OfferedItem]:
        """Return the tools of all present participants that have announced a card.

        Names and descriptions; a participant's `tools/list` has the schemas.
        """
        cards = await self.cards.all()
        return [tool for card in cards.values() for tool in card.tools.values()]

    async def attach(
        self,
        content: bytes | str | PathLike[str],
        *,
        name: str | None = None,
        media_type: str | None = None,
        private: bool = False,
    ) -> Attachment:
        """Upload content, and return a reference to send: `send(…, attachments=[reference])`.

        Until an envelope names it, the gateway keeps it for `blob_grace_seconds` and for this
        participant only.

        Args:
            content: bytes, or the path of a file.
            name: a file name for people; by default that of the file.
            media_type: such as `image/png`; by default by the name.
            private: only those to which an envelope that names it is addressed may fetch it; all
                others hear of its hash, size, name and type.

        Raises AttachmentError, and EncodeError for a name or type that is not one.
        """
        connector = self._connection.connector
        return await attachments.upload(connector, content, name, media_type, private=private)

    @overload
    async def fetch(
        self, attachment: Attachment, *, max_bytes: int = attachments.MAX_FETCH_BYTES
    ) -> bytes: ...
    @overload
    async def fetch(
        self,
        attachment: Attachment,
        *,
        to: str | PathLike[str],
        max_bytes: int = attachments.MAX_FETCH_BYTES,
    ) -> Path: ...
    async def fetch(
        self,
        attachment: Attachment,
        *,
        to: str | PathLike[str] | None = None,
        max_bytes: int = attachments.MAX_FETCH_BYTES,
    ) -> bytes | Path:
        """Return content that an envelope names, after checking its hash and size.

        Args:
            attachment: the reference, one of `message.attachments`.
            to: the path of a file to write instead, which is then returned. The reference's own
                name comes from its sender: do not use it as a path unchecked.
            max_bytes: the most that is fetched.

        Raises AttachmentError.
        """
        connector = self._connection.connector
        if to is None:
            return await attachments.fetch(connector, attachment, max_bytes)
        return await attachments.fetch_to(connector, attachment, Path(to), max_bytes)

    async def with_references(self, result: Any) -> tuple[Any, list[Attachment]]:
        """Return an MCP result with large content uploaded and named instead, and the references.

        Responses of participants are sent this way. Raises AttachmentError.
        """
        limit = self._session.limits.get("max_message_bytes")
        # What surrounds the result takes little: a request's id, names, the references.
        max_bytes = (limit if isinstance(limit, int) else _MAX_MESSAGE_BYTES) * 3 // 4
        return await content.to_references(self._connection.connector, result, max_bytes)

    async def _attach_privately(
        self, value: Any, reserve: Callable[[int], None] | None = None
    ) -> Attachment:
        """Upload arguments or a result of a call for the other side only (A-14).

        `reserve` gets the size before.
        """
        content = private_content.seal(factory.to_raw(value, "$.payload"))
        if reserve is not None:
            reserve(len(content))
        return await self.attach(content, media_type=private_content.MEDIA_TYPE, private=True)

    def claim(self, name: str, *, wait: float | None = None) -> ClaimScope:
        """Hold a name that one participant at a time may hold: `async with pod.claim("task-42")`.

        The first claim in the log's order wins. It ends with the block, or when this participant
        leaves the pod; then the block is cancelled as soon as that is known, and raises
        ClaimLostError. Until then others may hold the name already: pass `claim.token` to whatever
        must not be written by two, and let it refuse lower tokens than it has seen.

        Args:
            name: an id, such as a task's: 1 to 128 of A-Z a-z 0-9 . _ : ~ -
            wait: seconds to wait while another holds it; by default indefinitely.

        Raises ClaimHeldError if it is not free in time, EncodeError for another name, and Refused.
        """
        return ClaimScope(self, name, wait=wait)

    @property
    def claims(self) -> Mapping[str, HeldClaim]:
        """The names that are held, by name, as far as claims were received since joining."""
        return MappingProxyType(self._session.claims.held)

    async def _hear_claims(self) -> None:
        """Make sure that a filter does not hide the claims of others."""
        if self._session.filter is not None and not self._hears_claims:
            self._hears_claims = True
            await self.set_filter(with_claims(self._session.filter))

    async def wait_for_presence(self, participant: str, timeout: float | None = None) -> None:
        """Wait until a participant is in the pod.

        Raises AbsentError if it is not there in time (`timeout` in seconds).
        """
        await self._require(participant, "joining", math.inf if timeout is None else timeout)

    def while_present(self, participant: str) -> AbstractContextManager[CancelScope]:
        """Cancel the block when a participant has left the pod and does not come back soon.

        `with pod.while_present("bob") as presence: …`, then look at `presence.cancelled_caught`.
        """
        return self._connection.while_present(participant)

    async def send_envelope(self, envelope: Envelope, *, wait: bool = True) -> Envelope:
        """Send an envelope as it is, with its id, time and unknown members, and return its echo.

        Without `wait` it returns at once, as `send` does. One of a kind `live/*` has no echo.

        Raises ValueError if another participant is its sender, Refused, or ConnectionLostError.
        """
        if envelope.sender != self.me:
            raise ValueError(f"the sender is {envelope.sender!r}, not {self.me!r}")
        if kinds.is_live(envelope.kind):
            await self._connection.send_live(envelope)
            return envelope
        return await self._connection.send(envelope, wait=wait)

    async def set_filter(self, filter: Filter | Mapping[str, Any]) -> None:
        """Have the gateway send only messages that pass; it does so when this returns.

        Raises FilterError for JSON that is not a filter, and Refused with `invalid_filter`.
        """
        wanted = filter if isinstance(filter, Filter) else parse(filter)
        await self.send(kinds.SET_FILTER, {"filter": wanted.to_json()})

    async def cancel(self, message: Envelope | str, reason: str | None = None) -> Envelope:
        """Tell the participants that this one no longer waits for what it asked in a message.

        The SDK cancels handlers of that message. Calls do this by themselves.

        Args:
            message: what was sent, or its id.
            reason: for the log.
        """
        id = message if isinstance(message, str) else message.id
        params = {"requestId": id} | ({} if reason is None else {"reason": reason})
        where = None if isinstance(message, str) else message.context
        return await self.notify(
            rpc.CANCELLED,
            params,
            to=None if isinstance(message, str) else message.to,
            correlation_id=id,
            context=None if where is None else where.id,
        )

    async def approve(self, proposal: Message | Envelope) -> Envelope:
        """Fulfil a proposal without waiting for the response, and return the request.

        The response goes to the proposer, too. The call continues if this participant leaves.

        Raises DecodeError for an invalid proposal, one to several participants, or one whose kind
        and payload disagree; and Refused.
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
        """Fulfil a proposal and return the result, which the proposer receives, too.

        A timeout or leaving cancels the call, also for the proposer. `approve` does not.

        Raises DecodeError as `approve` does, and what `request` raises.
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
        """Reject a proposal. It stays open: another participant may still fulfil it.

        Args:
            proposal: the proposal.
            reason: a short code such as `policy`.
            text: an explanation for people.
        """
        return await self.send(
            kinds.REJECT,
            payloads.Reject(reason=reason, text=text),
            to=[proposal.sender],
            correlation_id=proposal.id,
            context=None if proposal.context is None else proposal.context.id,
        )
