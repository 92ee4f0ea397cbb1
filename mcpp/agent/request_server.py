"""Serves what others ask of a participant: requests one beside the other, each answered once."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from mcpp import kinds
from mcpp.agent.fulfilments import Fulfilments
from mcpp.agent.tools import ToolCall
from mcpp.client.message import Message
from mcpp.client.tasks import contained
from mcpp.errors import ConnectionLostError, DecodeError, McppError, TooLargeError
from mcpp.kinds import Kind
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure, ToolResult

log = logging.getLogger("mcpp")

Method = Callable[[dict[str, Any], ToolCall], Awaitable[Any]]

# Beyond this many at once the next are told that we are busy. They never wait here: behind them in
# the log come the cancellations and answers that would make room. When as many are being told so,
# the rest gets no answer at all, for a flood must not fill the memory.
MAX_REQUESTS: Final = 256


@dataclass(slots=True)
class RequestServer:
    """Answers requests by method. Owns those that run and the claims to proposals."""

    methods: Mapping[str, Method]
    tasks: TaskGroup
    _running: dict[str, tuple[str, anyio.CancelScope]] = field(default_factory=dict)
    _claims: Fulfilments = field(default_factory=Fulfilments)

    def receive(self, message: Message) -> None:
        """Take note of a message in the log's order, and start to serve it if it asks us."""
        family = Kind.parse(message.kind).family
        if family == kinds.REQUEST and message.to == (message.pod.me,):
            if message.id in self._running:
                # Two answers to one id would contradict each other (P-16). The session drops what
                # comes again, but not for as long as a tool may take.
                log.warning("%s of %s has a running id again", message.kind, message.sender)
                return
            problem = self._claims.claim(message.envelope)
            if not message.replayed:
                self._start(message, problem)
        elif family == kinds.PROPOSAL and message.to == (message.pod.me,):
            self._claims.propose(message.envelope)
        elif family == kinds.WITHDRAW:
            self._claims.withdraw(message.correlation_id or "", message.sender)
        elif message.kind == rpc.CANCELLED_KIND:
            requester, scope = self._running.get(message.correlation_id or "", (None, None))
            if scope is not None and requester == message.sender:
                scope.cancel()

    def _start(self, message: Message, problem: Failure | None) -> None:
        running = len(self._running)
        if running >= 2 * MAX_REQUESTS:
            log.warning("%s of %s goes unanswered: too many", message.kind, message.sender)
            return
        if running >= MAX_REQUESTS:
            problem = problem or Failure(rpc.BUSY, "busy: too many requests at once")
        scope = anyio.CancelScope()
        self._running[message.id] = (message.sender, scope)
        self.tasks.start_soon(self._serve, message, problem, scope)

    async def _serve(
        self, message: Message, problem: Failure | None, scope: anyio.CancelScope
    ) -> None:
        try:
            with scope:
                outcome = problem or await self._outcome(message)
                await self._answer(message, outcome)
        except ConnectionLostError:
            pass  # nobody is left to be told
        except McppError as error:
            log.warning("the answer to %s of %s got lost: %s", message.kind, message.sender, error)
        finally:
            del self._running[message.id]

    async def _outcome(self, message: Message) -> Any:
        try:
            asked = rpc.read_request(message.envelope)
            method = self.methods.get(asked.method, _unknown)
            call = ToolCall(message.pod, message.envelope)
            return await contained(method(asked.params, call))
        except Failure as failure:
            return failure
        except Exception:
            log.exception("serving %s failed", message.kind)
            return Failure(rpc.INTERNAL_ERROR, "internal error")

    async def _answer(self, message: Message, outcome: Any) -> None:
        kind = Kind.parse(message.kind)._replace(family=kinds.RESPONSE)
        proposer = self._claims.proposer(message.correlation_id)
        readers = dict.fromkeys((message.sender, proposer or message.sender))
        context = message.context

        async def send(payload: Any) -> None:
            await message.pod.send(
                str(kind),
                rpc.response(message.id, payload),
                to=readers,
                correlation_id=message.id,
                context=None if context is None else context.id,
            )

        try:
            await send(outcome)
        except TooLargeError as error:
            await send(Failure(rpc.INTERNAL_ERROR, f"the answer is too large: {error}"))
        except DecodeError as error:
            log.exception("the answer to %s cannot be sent", message.kind)
            await send(_unsayable(kind, error))


def _unsayable(kind: Kind, error: DecodeError) -> Any:
    text = f"the result cannot be sent, {error}"
    if kind.method == rpc.TOOLS_CALL:
        return ToolResult([{"type": "text", "text": text}], is_error=True).to_json()
    return Failure(rpc.INTERNAL_ERROR, text)


async def _unknown(params: dict[str, Any], call: ToolCall) -> Any:
    raise Failure(rpc.METHOD_NOT_FOUND, f"{call.pod.me} does not know this method")
