"""Sending envelopes, requests and proposals: the common base of `Pod` and `ContextScope`."""

import inspect
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, overload

import anyio
import msgspec

from mcpp import kinds
from mcpp.client import factory
from mcpp.client.connection import Connection
from mcpp.client.message import Message
from mcpp.client.pending import PendingResponse
from mcpp.client.proposals import OpenProposal, ProposalState
from mcpp.conversation import private_content
from mcpp.conversation.content import restore
from mcpp.conversation.text_stream import TextStream
from mcpp.errors import (
    AbsentError,
    AttachmentError,
    CallError,
    DecodeError,
    EncodeError,
    NoAnswerError,
    ToolError,
)
from mcpp.kinds import Kind
from mcpp.live import GrowingText
from mcpp.payloads import TEXT_KINDS, LiveText, Preview, Proposal, text_payload
from mcpp.protocol import rpc
from mcpp.protocol.envelope import Attachment, Context, Envelope
from mcpp.protocol.rpc import TOOLS_CALL, ToolResult
from mcpp.protocol.value_types import InvalidValueError, ValueType
from mcpp.tracing import spans

if TYPE_CHECKING:
    from mcpp.client.pod import Pod

T = TypeVar("T")
OnProgress = Callable[["Progress"], Awaitable[None] | None]
OnText = Callable[[str], Awaitable[None] | None]
ContextLike: TypeAlias = "Context | Sender | str | None"

CALL_SECONDS: Final = 60.0
ASK_SECONDS: Final = 300.0  # a model may take long, and reports progress
# The news that a participant has joined may take this long: gateways announce several together.
PRESENCE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress that the called participant reports, in units of its choice."""

    progress: float
    total: float | None = None
    message: str | None = None


class Sender:
    """Sends as one participant in one context.

    Every method takes `context=` to send in another context: a `Context`, a `ContextScope`, the
    `Pod` (its main context), or a context's id.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session = connection.session

    def _describe(self) -> Context | None:
        """Return the context that the next envelope should carry, None for the main one."""
        raise NotImplementedError

    @property
    def _own_pod(self) -> "Pod":
        """The pod in which it sends."""
        raise NotImplementedError

    def _mark_described(self) -> None:
        """Record that an envelope with the context's description is in the log."""

    async def send(
        self,
        kind: str,
        payload: Any = None,
        *,
        to: str | Iterable[str] | None = None,
        correlation_id: str | None = None,
        context: ContextLike = None,
        attachments: Iterable[Attachment] = (),
        wait: bool = True,
        rate_limit_seconds: float | None = None,
        id: str | None = None,
    ) -> Envelope:
        """Send an envelope and return its echo: the gateway has logged it, in its final order.

        One of a kind `live/*` has no echo and is in no log. It is returned as it was sent, or left
        out if it cannot be sent at once.

        Args:
            kind: such as `chat`.
            payload: anything that msgspec can encode as JSON. A string that is sent as `chat`,
                `reflection` or `conclusion` becomes the payload of that kind: `{"text": …}`.
            to: the addressee or several; None addresses the whole pod.
            correlation_id: the id of the envelope that this one answers.
            context: another context to send in.
            attachments: references that `Pod.attach` returned, or that this participant received.
            wait: False returns at once. A refusal is then only logged, and leaving the
                connection's block waits for the rest; if the block raises, the number of
                envelopes that may be lost is logged.
            rate_limit_seconds: how long to wait out a rate limit; defaults to the connection's.
            id: the envelope's id, where the payload has to name it.

        Raises Refused, EncodeError for an envelope that breaks a rule of the protocol, or
        ConnectionLostError.
        """
        target = self if context is None else context
        if isinstance(payload, str) and kind in TEXT_KINDS:
            payload = text_payload(kind, payload)
        envelope = self._envelope(
            kind, payload, to, correlation_id, target, id=id, attachments=attachments
        )
        if kinds.is_live(kind):
            await self._connection.send_live(envelope)
            return envelope
        echo = await self._connection.send(
            envelope, wait=wait, rate_limit_seconds=rate_limit_seconds
        )
        _mark_described(target)
        return echo

    @overload
    async def call(
        self,
        to: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: None = None,
        timeout: float | None = None,
        wait_for_presence: float = PRESENCE_SECONDS,
        context: ContextLike = None,
        on_progress: OnProgress | None = None,
        on_text: OnText | None = None,
        private: bool = False,
        **named: Any,
    ) -> ToolResult: ...
    @overload
    async def call(
        self,
        to: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: type[T],
        timeout: float | None = None,
        wait_for_presence: float = PRESENCE_SECONDS,
        context: ContextLike = None,
        on_progress: OnProgress | None = None,
        on_text: OnText | None = None,
        private: bool = False,
        **named: Any,
    ) -> T: ...
    async def call(
        self,
        to: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        returns: Any = None,
        timeout: float | None = None,
        wait_for_presence: float = PRESENCE_SECONDS,
        context: ContextLike = None,
        on_progress: OnProgress | None = None,
        on_text: OnText | None = None,
        private: bool = False,
        **named: Any,
    ) -> Any:
        """Call a participant's tool: `await pod.call("files", "read_file", path="notes.md")`.

        Args:
            to: the participant that offers the tool.
            tool: its name.
            arguments: arguments whose names are taken here, such as `timeout`; others go by name.
            returns: the type of the result, such as a dataclass or a pydantic model: the call then
                returns a value of it instead of a ToolResult.
            timeout: seconds to wait for the result; defaults to 60.
            wait_for_presence: seconds to wait before that for the participant to join; by default
                just long enough for the news of it to arrive.
            context: another context to call it in.
            on_progress: called with each `Progress` that the tool reports.
            on_text: called with each piece of the result's text that the tool streams.
            private: keep arguments and result from all other participants, which hear only that
                the tool is called (A-14).

        Raises AbsentError, NoAnswerError, RemoteError, ToolError (all CallError), Refused,
        AttachmentError for private arguments that cannot be uploaded, or DecodeError for a result
        that is not of the type `returns`.
        """
        if arguments is not None and not isinstance(arguments, Mapping):
            raise TypeError(f"pass arguments by name, as in call({to!r}, {tool!r}, text=...)")
        params: dict[str, Any] = {"name": tool, "arguments": {**(arguments or {}), **named}}
        attachments: list[Attachment] = []
        if private:
            reference = await self._own_pod._attach_privately(params["arguments"])
            meta = private_content.mark(reference, private_content.ARGUMENTS)
            params, attachments = {"name": tool, "arguments": {}, "_meta": meta}, [reference]
        value = await self.request(
            to,
            TOOLS_CALL,
            params,
            attachments=attachments,
            timeout=timeout,
            wait_for_presence=wait_for_presence,
            context=context,
            on_progress=on_progress,
            on_text=on_text,
        )
        result = ToolResult.from_json(value)
        if result.is_error:
            raise ToolError(to, tool, result)
        return result if returns is None else _typed(result, returns)

    async def request(
        self,
        to: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        wait_for_presence: float = PRESENCE_SECONDS,
        correlation_id: str | None = None,
        context: ContextLike = None,
        on_progress: OnProgress | None = None,
        on_text: OnText | None = None,
        id: str | None = None,
        attachments: Iterable[Attachment] = (),
    ) -> Any:
        """Send a JSON-RPC request to a participant and return the result.

        On a timeout or cancellation the participant receives a cancellation (P-18).

        Args:
            to: the participant.
            method: such as `resources/read`.
            params: the method's parameters.
            timeout: seconds to wait for the response; defaults to 60.
            wait_for_presence: seconds to wait before that for the participant to join; by default
                just long enough for the news of it to arrive.
            correlation_id: the id of the proposal that this request fulfils.
            context: another context to send it in.
            on_progress: called with each `Progress` that the participant reports.
            on_text: called with each piece of text that the participant streams.
            id: the request's id, for a caller that has to know it before the answer arrives.
            attachments: references that `Pod.attach` returned, or that this participant received.

        Raises AbsentError, NoAnswerError, RemoteError or Refused.
        """
        timeout = CALL_SECONDS if timeout is None else timeout
        params = dict(params or {})
        name = params.get("name")
        target = self if context is None else context
        id = factory.new_id() if id is None else id
        if on_progress is not None:
            params["_meta"] = {**params.get("_meta", {}), "progressToken": id}
        kind = str(Kind(kinds.REQUEST, method, name if isinstance(name, str) else None))
        label = str(name or method)
        with spans.requesting(method, params, id, to, self._own_pod.name) as span:
            payload = rpc.request(id, method, span.inject(params))
            envelope = self._envelope(
                kind, payload, [to], correlation_id, target, id=id, attachments=attachments
            )
            await self._require(to, label, wait_for_presence)
            response = await self._exchange(envelope, target, label, timeout, on_progress, on_text)
            result = await self._read_result(response, label)
            span.record(result)
            return result

    async def _read_result(self, response: Envelope, label: str) -> Any:
        """Return the result in a response, with the content that it names (A-12)."""
        result = rpc.read_response(response, label)
        if not response.attachments:
            return result
        try:
            return await restore(self._connection.connector, result, response.attachments)
        except AttachmentError as error:
            problem = f"its content cannot be fetched: {error}"
            raise CallError(response.sender, label, problem) from None

    async def ask(
        self,
        to: str,
        question: str,
        *,
        timeout: float | None = None,
        wait_for_presence: float = PRESENCE_SECONDS,
        context: ContextLike = None,
        on_progress: OnProgress | None = None,
        on_text: OnText | None = None,
    ) -> Message:
        """Ask a participant in a chat and return its reply.

        Args:
            to: the participant.
            question: the text.
            timeout: seconds to wait for the reply; defaults to 300.
            wait_for_presence: seconds to wait before that for the participant to join.
            context: another context to ask in.
            on_progress: called with each `Progress` that the participant reports.
            on_text: called with each piece of the reply while it is being written. A participant
                that begins anew, such as after a call of a tool, is heard from the beginning.

        Raises AbsentError, NoAnswerError or Refused.
        """
        timeout = ASK_SECONDS if timeout is None else timeout
        target = self if context is None else context
        payload = text_payload(kinds.CHAT, question)
        envelope = self._envelope(kinds.CHAT, payload, [to], None, target)
        await self._require(to, "chat", wait_for_presence)
        reply = await self._exchange(envelope, target, "chat", timeout, on_progress, on_text)
        return Message(self._own_pod, reply)

    def stream(
        self,
        kind: str = kinds.CHAT,
        *,
        to: str | Iterable[str] | None = None,
        correlation_id: str | None = None,
        context: ContextLike = None,
    ) -> TextStream:
        """Send a text that others see while it is written: `async with pod.stream() as out`.

        Args:
            kind: `chat` or `reflection`.
            to: the addressee or several; None addresses the whole pod.
            correlation_id: the id of the envelope that this one answers.
            context: another context to send in.

        Raises EncodeError for a kind that is not a text, and at the end what `send` raises.
        """
        if kind not in (kinds.CHAT, kinds.REFLECTION):
            raise EncodeError("$.kind", f"{kind!r} is not a text that can be streamed")
        return TextStream(self, kind, to=to, correlation_id=correlation_id, context=context)

    async def _exchange(
        self,
        envelope: Envelope,
        target: ContextLike,
        label: str,
        timeout: float,
        on_progress: OnProgress | None,
        on_text: OnText | None,
    ) -> Envelope:
        """Send a request or a question and return the answer to it; cancel it on giving up."""
        (to,) = envelope.to or ("",)
        pending = PendingResponse()
        text = GrowingText("", to)
        self._connection.expect(envelope, to, pending)
        try:
            with anyio.move_on_after(timeout), self._connection.while_present(to) as presence:
                await self._connection.send(envelope)
                _mark_described(target)
                while True:
                    received, is_answer = await pending.next()
                    if is_answer:
                        return received
                    if received.kind == kinds.LIVE_TEXT:
                        if on_text is not None:
                            if received.correlation_id != text.id:  # it has begun another one
                                text = GrowingText(received.correlation_id or "", to)
                            await _report_text(received, text, on_text)
                    elif on_progress is not None:
                        await _report_progress(received, on_progress)
            reason = "you left the pod" if presence.cancelled_caught else "timed out"
            await self._give_up(envelope, *_cancelled(envelope.id, reason))
        except (Exception, anyio.get_cancelled_exc_class()):
            await self._give_up(envelope, *_cancelled(envelope.id, "cancelled"))
            raise
        else:
            if presence.cancelled_caught:
                raise self._absence(to, label, "it left before it answered")
            raise NoAnswerError(to, label, timeout)
        finally:
            self._connection.forget(envelope.id)

    async def notify(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        to: str | Iterable[str] | None = None,
        correlation_id: str | None = None,
        context: ContextLike = None,
        wait: bool = True,
    ) -> Envelope:
        """Send a JSON-RPC notification. The arguments are those of `send`."""
        kind = str(Kind(kinds.NOTIFICATION, method))
        payload = rpc.notification(method, params or {})
        return await self.send(
            kind, payload, to=to, correlation_id=correlation_id, context=context, wait=wait
        )

    async def propose(
        self,
        to: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        reason: str | None = None,
        preview: Preview | tuple[str | None, str | None] | None = None,
        wait_for_presence: float = PRESENCE_SECONDS,
        context: ContextLike = None,
        **named: Any,
    ) -> OpenProposal:
        """Propose a tool call that this participant has no capability to make itself.

        A participant that has the capability can fulfil it; `await proposal.result()` then returns
        the tool's result.

        Args:
            to: the participant that offers the tool.
            tool: its name.
            arguments: arguments whose names are taken here, such as `reason`; others go by name.
            reason: why, for the person or program that decides.
            preview: what the call would change, as text: before and after it.
            wait_for_presence: seconds to wait for the participant to join, as for `call`.
            context: another context to propose it in.

        Raises AbsentError and Refused.
        """
        params = {"name": tool, "arguments": {**(arguments or {}), **named}}
        target = self if context is None else context
        if isinstance(preview, tuple):
            preview = Preview(before=preview[0], after=preview[1])
        envelope = self._envelope(
            str(Kind(kinds.PROPOSAL, TOOLS_CALL, tool)),
            Proposal(method=TOOLS_CALL, params=params, reason=reason, preview=preview),
            [to],
            None,
            target,
        )
        await self._require(to, tool, wait_for_presence)
        proposal = self._track(envelope, to, ProposalState())
        try:
            await self._connection.send(envelope)
        except (Exception, anyio.get_cancelled_exc_class()):
            await self._give_up(envelope, kinds.WITHDRAW, {"reason": "cancelled"})
            self._connection.forget(envelope.id)
            raise
        _mark_described(target)
        return proposal

    def _track(self, envelope: Envelope, owner: str, state: ProposalState) -> OpenProposal:
        """Expect what happens to a proposal, for as long as it is referred to."""
        self._connection.expect(envelope, owner, state)
        proposal = OpenProposal(self, envelope, state)
        # It may stay open indefinitely; without a reference to it no task can ask for its result.
        weakref.finalize(proposal, self._connection.forget, envelope.id).atexit = False
        return proposal

    async def _require(self, participant: str, label: str, wait_seconds: float) -> None:
        """Wait for a participant to be present. Raises AbsentError if it is not in time (P-50)."""
        if self._session.is_absent(participant):
            with anyio.move_on_after(wait_seconds):
                await self._connection.wait_for_presence(participant)
        if self._session.is_absent(participant):
            error = self._absence(participant, label, "it is not in the pod")
            error.offering = await self._connection.cards.offering(label)
            raise error

    def _absence(self, participant: str, label: str, problem: str) -> AbsentError:
        present = [name for name in self._session.participants if name != self._session.name]
        return AbsentError(participant, label, problem, present)

    async def _give_up(self, request: Envelope, kind: str, payload: Any) -> None:
        """Cancel a request or withdraw a proposal whose result is no longer awaited (P-18)."""
        if self._connection.is_pending(request.id):
            context = None if request.context is None else request.context.id
            envelope = self._envelope(kind, payload, request.to, request.id, context)
            await self._connection.send_shielded(envelope)

    def _envelope(
        self,
        kind: str,
        payload: Any,
        to: str | Iterable[str] | None,
        correlation_id: str | None,
        context: ContextLike,
        id: str | None = None,
        attachments: Iterable[Attachment] = (),
    ) -> Envelope:
        return factory.new_envelope(
            kind,
            payload,
            sender=self._session.name,
            to=to,
            correlation_id=correlation_id,
            context=context._describe() if isinstance(context, Sender) else context,
            attachments=attachments,
            id=id,
        )


def _typed(result: ToolResult, type: Any) -> Any:
    """Return a result as a type. Raises DecodeError, and TypeError for a type JSON cannot carry."""
    value = result.value
    if result.structured is None and type is not str:
        # Servers older than structured results send the JSON as text.
        with suppress(msgspec.DecodeError):
            value = msgspec.json.decode(result.text)
    try:
        return ValueType.of(type).read(value)
    except InvalidValueError as error:
        raise DecodeError(f"$.result{error.path}", error.reason) from None


def _cancelled(id: str, reason: str) -> tuple[str, dict[str, Any]]:
    params = {"requestId": id, "reason": reason}
    return rpc.CANCELLED_KIND, rpc.notification(rpc.CANCELLED, params)


def _mark_described(context: ContextLike) -> None:
    if isinstance(context, Sender):
        context._mark_described()


async def _report_text(part: Envelope, text: GrowingText, on_text: OnText) -> None:
    piece = text.add(part.payload_as(LiveText))
    if piece:
        outcome = on_text(piece)
        if inspect.isawaitable(outcome):
            await outcome


async def _report_progress(envelope: Envelope, on_progress: OnProgress) -> None:
    params = envelope.payload.get("params") if isinstance(envelope.payload, dict) else None
    try:
        progress = msgspec.convert(params, Progress)
    except msgspec.ValidationError:
        return  # not in the form of progress
    outcome = on_progress(progress)
    if inspect.isawaitable(outcome):
        await outcome
