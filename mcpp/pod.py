"""A participant's handle on its pod.

async with mcpp.connect(url, token=token) as pod:
    await pod.send("chat", {"text": "hello"})
    async for message in pod:
        ...
"""

import inspect
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import anyio
import msgspec

from mcpp import kinds, mint, payloads, rpc
from mcpp.connection import Connection
from mcpp.envelope import Context, Envelope
from mcpp.errors import NoAnswerError, ToolError
from mcpp.filters import Filter
from mcpp.kinds import Kind
from mcpp.message import Message
from mcpp.payloads import ContextInfo, ParticipantInfo
from mcpp.proposals import OpenProposal
from mcpp.rpc import TOOLS_CALL, ToolResult
from mcpp.scope import ContextScope
from mcpp.session import Gap

OnGap = Callable[[Gap], Awaitable[None] | None]
OnProgress = Callable[["Progress"], Awaitable[None] | None]

CALL_SECONDS: Final = 60.0

log = logging.getLogger("mcpp")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far whoever was asked says it is."""

    progress: float
    total: float | None = None
    message: str | None = None


class Pod:
    """A pod as one participant sees it. Iterate over it in one place for what others say."""

    def __init__(
        self, connection: Connection, *, own: bool = False, on_gap: OnGap | None = None
    ) -> None:
        self._connection = connection
        self._session = connection.session
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
        while True:
            item = await self._connection.next()
            if isinstance(item, Gap):
                await self._tell_gap(item)
            elif self._own or item.envelope.sender != self._session.name:
                return Message(self, item.envelope, item.replayed)

    async def _tell_gap(self, gap: Gap) -> None:
        if self._on_gap is None:
            log.warning("envelopes of pod %r were missed (%s)", self.name, gap)
            return
        outcome = self._on_gap(gap)
        if inspect.isawaitable(outcome):
            await outcome

    # --- what we say ---

    async def send(
        self,
        kind: str,
        payload: Any = None,
        *,
        to: Iterable[str] | None = None,
        correlation_id: str | None = None,
        context: Context | ContextScope | str | None = None,
        wait: bool = True,
        rate_limit_seconds: float | None = None,
    ) -> Envelope:
        """Send an envelope and return its echo, which says that everybody gets it.

        With `wait=False` it returns at once, and a refusal is only logged. A rate limit is waited
        out for up to `rate_limit_seconds`.

        Raises Refused, DecodeError for what breaks a rule of the protocol, or ConnectionLostError.
        """
        envelope = self._envelope(kind, payload, to, correlation_id, context)
        echo = await self._connection.send(
            envelope, wait=wait, rate_limit_seconds=rate_limit_seconds
        )
        if isinstance(context, ContextScope):
            context.told()
        return echo

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

    async def set_filter(self, filter: Filter) -> None:
        """Have the gateway send only what passes; it is in force when this returns.

        Raises Refused with `invalid_filter`.
        """
        await self.send(kinds.SET_FILTER, {"filter": filter.to_json()})

    # --- requests ---

    async def call(
        self,
        to: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        timeout: float | None = None,
        context: Context | ContextScope | str | None = None,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> ToolResult:
        """Call a participant's tool: `await pod.call("files", "read_file", path="notes.md")`.

        Arguments whose names are taken here go into the mapping `arguments`.

        Raises NoAnswerError, RemoteError, ToolError (all CallError) or Refused.
        """
        params = {"name": tool, "arguments": {**(arguments or {}), **named}}
        value = await self.request(
            to, TOOLS_CALL, params, timeout=timeout, context=context, on_progress=on_progress
        )
        result = ToolResult.from_json(value)
        if result.is_error:
            raise ToolError(to, tool, result)
        return result

    async def request(
        self,
        to: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        correlation_id: str | None = None,
        context: Context | ContextScope | str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Ask a participant by JSON-RPC and return the result. `timeout` defaults to a minute.

        When it is cancelled or the time is up, whoever was asked is told so.

        Raises NoAnswerError, RemoteError or Refused.
        """
        timeout = CALL_SECONDS if timeout is None else timeout
        params = dict(params or {})
        name = params.get("name")
        id = mint.new_id()
        if on_progress is not None:
            params["_meta"] = {**params.get("_meta", {}), "progressToken": id}
        envelope = self._envelope(
            str(Kind(kinds.REQUEST, method, name if isinstance(name, str) else None)),
            rpc.request(id, method, params),
            [to],
            correlation_id,
            context,
            id=id,
        )
        asked = str(name or method)
        exchange = self._connection.expect(envelope, to)
        try:
            with anyio.move_on_after(timeout):
                await self._connection.send(envelope)
                if isinstance(context, ContextScope):
                    context.told()
                while True:
                    heard, answered = await exchange.next()
                    if answered:
                        return rpc.read_response(heard, asked)
                    if on_progress is not None:
                        await _tell_progress(heard, on_progress)
            await self._give_up(envelope, to, "timed out")
        except (Exception, anyio.get_cancelled_exc_class()):
            await self._give_up(envelope, to, "cancelled")
            raise
        else:
            raise NoAnswerError(to, asked, timeout)
        finally:
            self._connection.forget(envelope.id)

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        to: Iterable[str] | None = None,
        correlation_id: str | None = None,
        context: Context | ContextScope | str | None = None,
        wait: bool = True,
    ) -> Envelope:
        """Send a JSON-RPC notification."""
        kind = str(Kind(kinds.NOTIFICATION, method))
        payload = rpc.notification(method, params or {})
        return await self.send(
            kind, payload, to=to, correlation_id=correlation_id, context=context, wait=wait
        )

    async def _give_up(self, request: Envelope, to: str, reason: str) -> None:
        """Tell whoever still works on a request of ours that nobody waits for it (P-18)."""
        if self._connection.expects(request.id):
            cancelled = self._envelope(
                str(Kind(kinds.NOTIFICATION, rpc.CANCELLED)),
                rpc.notification(rpc.CANCELLED, {"requestId": request.id, "reason": reason}),
                [to],
                request.id,
                None if request.context is None else request.context.id,
            )
            await self._connection.tell(cancelled)

    # --- proposals ---

    async def propose(
        self,
        to: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        context: Context | ContextScope | str | None = None,
        **named: Any,
    ) -> OpenProposal:
        """Propose a call of a participant's tool that we may not make ourselves.

        Somebody who may can fulfil it; then `await proposal.result()` returns the tool's answer.
        """
        params = {"name": tool, "arguments": {**(arguments or {}), **named}}
        envelope = self._envelope(
            str(Kind(kinds.PROPOSAL, TOOLS_CALL, tool)),
            {"method": TOOLS_CALL, "params": params},
            [to],
            None,
            context,
        )
        exchange = self._connection.expect(envelope, to)
        try:
            await self._connection.send(envelope)
        except BaseException:
            self._connection.forget(envelope.id)
            raise
        if isinstance(context, ContextScope):
            context.told()
        proposal = OpenProposal(self, envelope, exchange)
        # It may stay open for ever, but once nobody has hold of it nobody can ask for its result.
        weakref.finalize(proposal, self._connection.forget, envelope.id).atexit = False
        return proposal

    async def fulfil(self, proposal: Message | Envelope, *, timeout: float | None = None) -> Any:
        """Make the request that somebody proposed, and return its result.

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

    def _envelope(
        self,
        kind: str,
        payload: Any,
        to: Iterable[str] | None,
        correlation_id: str | None,
        context: Context | ContextScope | str | None,
        id: str | None = None,
    ) -> Envelope:
        return mint.new_envelope(
            kind,
            payload,
            sender=self._session.name,
            to=to,
            correlation_id=correlation_id,
            context=context.describe() if isinstance(context, ContextScope) else context,
            id=id,
        )


async def _tell_progress(envelope: Envelope, on_progress: OnProgress) -> None:
    params = envelope.payload.get("params") if isinstance(envelope.payload, dict) else None
    try:
        progress = msgspec.convert(params, Progress)
    except msgspec.ValidationError:
        return  # whoever was asked may say anything; only progress is passed on
    outcome = on_progress(progress)
    if inspect.isawaitable(outcome):
        await outcome
