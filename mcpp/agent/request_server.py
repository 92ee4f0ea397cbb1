"""Serves the requests to a participant: concurrently, each answered exactly once."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from mcpp import kinds
from mcpp.agent.fulfilments import Fulfilments
from mcpp.agent.threads import ThreadLimitError
from mcpp.agent.tools import ToolCall
from mcpp.client.message import Message
from mcpp.client.tasks import contained
from mcpp.errors import ConnectionLostError, EncodeError, McppError, TooLargeError
from mcpp.kinds import Kind
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure, ToolResult

logger = logging.getLogger("mcpp.agent")

Method = Callable[[dict[str, Any], ToolCall], Awaitable[Any]]

# Beyond this many concurrent requests the next are answered with "busy". They are not queued:
# behind them in the log are the cancellations and responses that would make room. Beyond twice as
# many, requests get no response at all, since a flood must not exhaust memory.
MAX_REQUESTS: Final = 256


@dataclass(slots=True)
class RequestServer:
    """Dispatches requests to methods. Owns the running requests and the proposals to this agent."""

    methods: Mapping[str, Method]
    tasks: TaskGroup
    _running: dict[str, tuple[str, anyio.CancelScope]] = field(default_factory=dict)
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
            requester, scope = self._running.get(message.correlation_id or "", (None, None))
            if scope is not None and requester == message.sender:
                scope.cancel()

    def _start(self, message: Message, problem: Failure | None) -> None:
        running = len(self._running)
        if running >= 2 * MAX_REQUESTS:
            logger.warning("dropped %s from %s: too many requests", message.kind, message.sender)
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
            pass  # no connection to respond on
        except McppError as error:
            logger.warning("cannot answer %s from %s: %s", message.kind, message.sender, error)
        finally:
            del self._running[message.id]

    async def _outcome(self, message: Message) -> Any:
        try:
            request = rpc.read_request(message.envelope)
            method = self.methods.get(request.method, _unknown)
            call = ToolCall(message.pod, message.envelope)
            return await contained(method(request.params, call))
        except Failure as failure:
            return failure
        except ThreadLimitError:
            return Failure(rpc.BUSY, "busy: too many threads")
        except Exception:
            logger.exception("serving %s failed", message.kind)
            return Failure(rpc.INTERNAL_ERROR, "internal error")

    async def _answer(self, message: Message, outcome: Any) -> None:
        kind = Kind.parse(message.kind)._replace(family=kinds.RESPONSE)
        proposer = self._proposals.proposer(message.correlation_id)
        recipients = dict.fromkeys((message.sender, proposer or message.sender))
        context = message.context

        async def send(payload: Any) -> None:
            await message.pod.send(
                str(kind),
                rpc.response(message.id, payload),
                to=recipients,
                correlation_id=message.id,
                context=None if context is None else context.id,
            )

        try:
            await send(outcome)
        except TooLargeError as error:
            await send(Failure(rpc.INTERNAL_ERROR, f"the response is too large: {error}"))
        except EncodeError as error:
            logger.exception("cannot send the response to %s", message.kind)
            await send(_invalid_result(kind, error))


def _invalid_result(kind: Kind, error: EncodeError) -> Any:
    text = f"the result is invalid: {error}"
    if kind.method == rpc.TOOLS_CALL:
        return ToolResult([{"type": "text", "text": text}], is_error=True).to_json()
    return Failure(rpc.INTERNAL_ERROR, text)


async def _unknown(params: dict[str, Any], call: ToolCall) -> Any:
    raise Failure(rpc.METHOD_NOT_FOUND, f"{call.pod.me} does not serve this method")
