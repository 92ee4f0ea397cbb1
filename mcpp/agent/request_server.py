"""Serves the requests to a participant: concurrently, each answered exactly once."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from mcpp import kinds
from mcpp.agent.fulfilments import Fulfilments
from mcpp.agent.hooks import Hooks
from mcpp.agent.shares import AnswerRoom, Shares
from mcpp.agent.threads import ThreadLimitError, requester
from mcpp.agent.tools import ToolCall
from mcpp.buffers import MAX_BUFFER_BYTES
from mcpp.client.message import Message
from mcpp.client.tasks import contained
from mcpp.conversation import private_content
from mcpp.errors import (
    AttachmentError,
    ConnectionLostError,
    EncodeError,
    McppError,
    Refused,
    TooLargeError,
)
from mcpp.kinds import Kind
from mcpp.protocol import rpc
from mcpp.protocol.envelope import Attachment
from mcpp.protocol.rpc import Failure, ToolResult
from mcpp.tracing import spans

logger = logging.getLogger("mcpp.agent")

Method = Callable[[dict[str, Any], ToolCall], Awaitable[Any]]

# Requests served at once, shared fairly by the requesters (P-43); the next are answered with
# "busy". They are not queued: behind them in the log are the cancellations and responses that
# would make room. Beyond twice as many refusals on their way, they get no response at all, since a
# flood must not exhaust memory.
MAX_REQUESTS: Final = 256


@dataclass(slots=True)
class RequestServer:
    """Dispatches requests to methods. Owns the running requests and the proposals to this agent."""

    methods: Mapping[str, Method]
    tasks: TaskGroup
    hooks: Hooks = field(default_factory=Hooks)
    _running: dict[str, tuple[str, anyio.CancelScope]] = field(default_factory=dict)
    _places: Shares = field(default_factory=lambda: Shares(MAX_REQUESTS))
    _bytes: Shares = field(default_factory=lambda: Shares(MAX_BUFFER_BYTES))
    _refusals: Shares = field(default_factory=lambda: Shares(2 * MAX_REQUESTS))
    _room: AnswerRoom = field(default_factory=AnswerRoom)
    _proposals: Fulfilments = field(default_factory=Fulfilments)

    def receive(self, message: Message) -> None:
        """Process a message in the log's order; start serving it if it is a request to us."""
        family = Kind.parse(message.kind).family
        if family == kinds.REQUEST and message.to == (message.pod.me,):
            if message.id in self._running:
                # Two responses to one id would contradict each other (P-16). The session drops
                # repeated ids, but remembers them for less time than a tool may take.
                logger.warning(
                    "ignored %s from %s: its id is in use",
                    message.kind,
                    message.sender,
                )
                return
            problem = self._proposals.fulfil(message.envelope)
            if not message.replayed:
                self._start(message, problem)
        elif family == kinds.PROPOSAL and message.to == (message.pod.me,):
            self._proposals.add(message.envelope)
        elif family == kinds.WITHDRAW:
            self._proposals.withdraw(message.correlation_id or "", message.sender)
        elif message.kind == rpc.CANCELLED_KIND:
            sender, scope = self._running.get(message.correlation_id or "", (None, None))
            if scope is not None and sender == message.sender:
                scope.cancel()

    def _start(self, message: Message, problem: Failure | None) -> None:
        sender, size_bytes = message.sender, _size_bytes(message)
        if problem is None and not self._take_place(sender, size_bytes):
            problem = Failure(rpc.BUSY, "busy: too many requests at once")
        if problem is not None and not self._refusals.take(sender):
            logger.debug("dropped %s from %s: too many requests", message.kind, sender)
            return
        scope = anyio.CancelScope()
        self._running[message.id] = (sender, scope)
        if problem is not None:
            self.tasks.start_soon(self._refuse, message, problem, scope)
        else:
            self.tasks.start_soon(self._serve, message, scope)

    def _take_place(self, sender: str, size_bytes: int) -> bool:
        if not self._places.take(sender):
            return False
        if self._bytes.take(sender, size_bytes):
            return True
        self._places.release(sender)
        return False

    async def _refuse(self, message: Message, problem: Failure, scope: anyio.CancelScope) -> None:
        try:
            await self._finish(message, problem, scope)
        finally:
            self._refusals.release(message.sender)

    async def _serve(self, message: Message, scope: anyio.CancelScope) -> None:
        requester.set(message.sender)
        call = ToolCall(message.pod, message.envelope)
        is_answered = False
        try:
            is_answered = await self._finish(message, call, scope)
        finally:
            await call.end(is_answered=is_answered)
            self._places.release(message.sender)
            self._bytes.release(message.sender, _size_bytes(message))

    async def _finish(
        self, message: Message, work: ToolCall | Failure, scope: anyio.CancelScope
    ) -> bool:
        """Answer a request, unless it is cancelled; return whether it was answered."""
        try:
            with scope:
                if isinstance(work, Failure):
                    await self._answer(message, work)
                else:
                    with spans.serving(message.envelope, message.pod.name) as span:
                        outcome = await self._outcome(message, work)
                        span.record(outcome)
                        await self._answer(message, outcome, work)
                return True
        except ConnectionLostError:
            pass  # no connection to respond on
        except McppError as error:
            logger.warning("cannot answer %s from %s: %s", message.kind, message.sender, error)
        finally:
            del self._running[message.id]
        return False

    async def _outcome(self, message: Message, call: ToolCall) -> Any:
        try:
            return await contained(self._call(message, call))
        except Failure as failure:
            if call.is_private and Kind.parse(message.kind).method == rpc.TOOLS_CALL:
                return _error_result(failure.message)  # it may quote the arguments
            return failure
        except ThreadLimitError:
            return Failure(rpc.BUSY, "busy: too many threads")
        except Exception:
            logger.exception("serving %s failed", message.kind)
            return Failure(rpc.INTERNAL_ERROR, "internal error")

    async def _call(self, message: Message, call: ToolCall) -> Any:
        """Call the method that a request names, with the agent's middleware around it."""
        results: list[Any] = []

        async def serve(message: Message) -> None:
            request = rpc.read_request(message.envelope)
            params = await self._with_private_arguments(message, request.params, call)
            method = self.methods.get(request.method, _unknown)
            results.append(await method(params, call))

        await self.hooks.wrapped(serve)(message)
        if not results:
            raise Failure(rpc.INTERNAL_ERROR, "refused by the participant")
        return results[-1]

    async def _with_private_arguments(
        self, message: Message, params: dict[str, Any], call: ToolCall
    ) -> dict[str, Any]:
        """Return the parameters of a call with its private arguments in place (A-14)."""
        reference = private_content.marked(params, private_content.ARGUMENTS, message.attachments)
        if reference is None:
            return params
        if not self._room.take(message.sender, private_content.LEAST_BYTES, message.pod.limits):
            # All may hear this. The call is not begun: its answer could not be delivered.
            raise Failure(rpc.BUSY, "busy: too many private answers in ten minutes")
        call._reserved.append(private_content.LEAST_BYTES)
        call.keep_private()
        if self._proposals.proposer(message.correlation_id) is not None:
            # It was approved without them.
            raise Failure(rpc.INVALID_REQUEST, "private arguments do not fulfil a proposal")
        if params.get("arguments"):
            # The gateway has checked capabilities on these.
            raise Failure(rpc.INVALID_REQUEST, "there are arguments besides the private ones")
        try:
            content = await message.pod.fetch(
                reference, max_bytes=private_content.MAX_ARGUMENTS_BYTES
            )
            arguments = private_content.unseal(content)
        except AttachmentError as error:
            raise Failure(rpc.INVALID_PARAMS, f"the private arguments: {error}") from None
        return {**params, "arguments": arguments}

    async def _answer(self, message: Message, outcome: Any, call: ToolCall | None = None) -> None:
        kind = Kind.parse(message.kind)._replace(family=kinds.RESPONSE)
        proposer = self._proposals.proposer(message.correlation_id)
        is_private = call is not None and call.is_private
        id = None if call is None else call.response_id
        if is_private and proposer not in (None, message.sender):
            # The proposer hears every response to its proposal, and reads what is attached.
            outcome = Failure(rpc.INVALID_REQUEST, "a private result is only for its requester")
        recipients = dict.fromkeys((message.sender, proposer or message.sender))
        context = message.context

        async def send(
            payload: Any, id: str | None = id, attachments: Sequence[Attachment] = ()
        ) -> None:
            try:
                await message.pod.send(
                    str(kind),
                    rpc.response(rpc.request_id(message.envelope), payload),
                    to=recipients,
                    correlation_id=message.id,
                    context=None if context is None else context.id,
                    attachments=attachments,
                    id=id,
                )
            except Refused as refused:
                if refused.code != "duplicate_id" or id is None:
                    raise
                # another participant took the published id (P-70)
                await send(payload, None, attachments)

        try:
            if call is None or not call.is_private or isinstance(outcome, Failure):
                content, attachments = await message.pod.with_references(outcome)
            else:
                content, attachments = await self._private_answer(message, outcome, call)
            await send(content, attachments=attachments)
        except AttachmentError as error:
            # Whether it succeeded is as private as the response.
            text = f"the request was processed, but its response cannot be attached: {error}"
            await send(Failure(rpc.INTERNAL_ERROR, text))
        except TooLargeError as error:
            await send(Failure(rpc.INTERNAL_ERROR, f"the response is too large: {error}"))
        except EncodeError as error:
            logger.exception("cannot send the response to %s", message.kind)
            await send(_invalid_result(kind, error))

    async def _private_answer(
        self, message: Message, outcome: Any, call: ToolCall
    ) -> tuple[Any, list[Attachment]]:
        """Upload a result for the requester only, within its share of the room for such results."""

        def reserve(size: int) -> None:
            missing = size - sum(call._reserved)
            if not self._room.take(message.sender, missing, message.pod.limits):
                raise AttachmentError(None, "too many private answers in ten minutes")

        reference = await message.pod._attach_privately(outcome, reserve)
        return private_content.pointing_to(reference, message.sender), [reference]


def _size_bytes(message: Message) -> int:
    """Return what a request may take of memory, with its private arguments."""
    private = sum(each.size for each in message.attachments if each.private)
    return message.envelope.size_bytes + min(private, private_content.MAX_ARGUMENTS_BYTES)


def _invalid_result(kind: Kind, error: EncodeError) -> Any:
    text = f"the result is invalid: {error}"
    if kind.method == rpc.TOOLS_CALL:
        return _error_result(text)
    return Failure(rpc.INTERNAL_ERROR, text)


def _error_result(text: str) -> dict[str, Any]:
    return ToolResult([{"type": "text", "text": text}], is_error=True).to_json()


async def _unknown(params: dict[str, Any], call: ToolCall) -> Any:
    raise Failure(rpc.METHOD_NOT_FOUND, f"{call.pod.me} does not serve this method")
