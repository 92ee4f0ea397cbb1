"""Speaking in a pod: in its main context, or in a sub-context, with the same words."""

import inspect
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import anyio
import msgspec

from mcpp import kinds
from mcpp.client import factory
from mcpp.client.connection import Connection
from mcpp.client.exchange import Exchange
from mcpp.client.proposals import OpenProposal, ProposalState
from mcpp.errors import NoAnswerError, ToolError
from mcpp.kinds import Kind
from mcpp.protocol import rpc
from mcpp.protocol.envelope import Context, Envelope
from mcpp.protocol.rpc import TOOLS_CALL, ToolResult

OnProgress = Callable[["Progress"], Awaitable[None] | None]
Place: TypeAlias = "Context | Sender | str | None"

CALL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far whoever was asked says it is."""

    progress: float
    total: float | None = None
    message: str | None = None


class Sender:
    """What a participant says in one place. `context=` says it in another, by object or by id."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session = connection.session

    def describe(self) -> Context | None:
        """Return the context as the next envelope should carry it, None for the main one."""
        raise NotImplementedError

    def told(self) -> None:
        """Take note that an envelope with this description is in the log."""

    async def send(
        self,
        kind: str,
        payload: Any = None,
        *,
        to: Iterable[str] | None = None,
        correlation_id: str | None = None,
        context: Place = None,
        wait: bool = True,
        rate_limit_seconds: float | None = None,
        id: str | None = None,
    ) -> Envelope:
        """Send an envelope and return its echo, which says that everybody gets it.

        With `wait=False` it returns at once, and a refusal is only logged. The end of the
        connection's block waits for the rest, as long as the gateway's limits make it take, but an
        exception does not: then it is logged how many may be lost. A rate limit is waited out for
        up to `rate_limit_seconds`. `id` is for a payload that names it, such as a request's.

        Raises Refused, DecodeError for what breaks a rule of the protocol, or ConnectionLostError.
        """
        place = self if context is None else context
        envelope = self._envelope(kind, payload, to, correlation_id, place, id=id)
        echo = await self._connection.send(
            envelope, wait=wait, rate_limit_seconds=rate_limit_seconds
        )
        _note_told(place)
        return echo

    async def call(
        self,
        to: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        timeout: float | None = None,
        context: Place = None,
        on_progress: OnProgress | None = None,
        **named: Any,
    ) -> ToolResult:
        """Call a participant's tool: `await pod.call("files", "read_file", path="notes.md")`.

        Arguments whose names are taken here go into the mapping `arguments`.

        Raises NoAnswerError, RemoteError, ToolError (all CallError) or Refused.
        """
        if arguments is not None and not isinstance(arguments, Mapping):
            raise TypeError(f"arguments go by name, as in call({to!r}, {tool!r}, text=...)")
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
        context: Place = None,
        on_progress: OnProgress | None = None,
    ) -> Any:
        """Ask a participant by JSON-RPC and return the result. `timeout` defaults to a minute.

        When it is cancelled or the time is up, whoever was asked is told so.

        Raises NoAnswerError, RemoteError or Refused.
        """
        timeout = CALL_SECONDS if timeout is None else timeout
        params = dict(params or {})
        name = params.get("name")
        place = self if context is None else context
        id = factory.new_id()
        if on_progress is not None:
            params["_meta"] = {**params.get("_meta", {}), "progressToken": id}
        envelope = self._envelope(
            str(Kind(kinds.REQUEST, method, name if isinstance(name, str) else None)),
            rpc.request(id, method, params),
            [to],
            correlation_id,
            place,
            id=id,
        )
        asked = str(name or method)
        exchange = Exchange()
        self._connection.expect(envelope, to, exchange)
        try:
            with anyio.move_on_after(timeout):
                await self._connection.send(envelope)
                _note_told(place)
                while True:
                    heard, answered = await exchange.next()
                    if answered:
                        return rpc.read_response(heard, asked)
                    if on_progress is not None:
                        await _tell_progress(heard, on_progress)
            await self._give_up(envelope, *_cancelled(id, "timed out"))
        except (Exception, anyio.get_cancelled_exc_class()):
            await self._give_up(envelope, *_cancelled(id, "cancelled"))
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
        context: Place = None,
        wait: bool = True,
    ) -> Envelope:
        """Send a JSON-RPC notification."""
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
        context: Place = None,
        **named: Any,
    ) -> OpenProposal:
        """Propose a call of a participant's tool that we may not make ourselves.

        Somebody who may can fulfil it; then `await proposal.result()` returns the tool's answer.
        """
        params = {"name": tool, "arguments": {**(arguments or {}), **named}}
        place = self if context is None else context
        envelope = self._envelope(
            str(Kind(kinds.PROPOSAL, TOOLS_CALL, tool)),
            {"method": TOOLS_CALL, "params": params},
            [to],
            None,
            place,
        )
        fate = ProposalState()
        self._connection.expect(envelope, to, fate)
        try:
            await self._connection.send(envelope)
        except (Exception, anyio.get_cancelled_exc_class()):
            await self._give_up(envelope, kinds.WITHDRAW, {"reason": "cancelled"})
            self._connection.forget(envelope.id)
            raise
        _note_told(place)
        proposal = OpenProposal(self, envelope, fate)
        # It may stay open for ever, but once nobody has hold of it nobody can ask for its result.
        weakref.finalize(proposal, self._connection.forget, envelope.id).atexit = False
        return proposal

    async def _give_up(self, asking: Envelope, kind: str, payload: Any) -> None:
        """Tell whoever may still act on what we asked for that nobody waits for it (P-18)."""
        if self._connection.expects(asking.id):
            context = None if asking.context is None else asking.context.id
            said = self._envelope(kind, payload, asking.to, asking.id, context)
            await self._connection.tell(said)

    def _envelope(
        self,
        kind: str,
        payload: Any,
        to: Iterable[str] | None,
        correlation_id: str | None,
        place: Place,
        id: str | None = None,
    ) -> Envelope:
        return factory.new_envelope(
            kind,
            payload,
            sender=self._session.name,
            to=to,
            correlation_id=correlation_id,
            context=place.describe() if isinstance(place, Sender) else place,
            id=id,
        )


def _cancelled(id: str, reason: str) -> tuple[str, dict[str, Any]]:
    params = {"requestId": id, "reason": reason}
    return rpc.CANCELLED_KIND, rpc.notification(rpc.CANCELLED, params)


def _note_told(place: Place) -> None:
    if isinstance(place, Sender):
        place.told()


async def _tell_progress(envelope: Envelope, on_progress: OnProgress) -> None:
    params = envelope.payload.get("params") if isinstance(envelope.payload, dict) else None
    try:
        progress = msgspec.convert(params, Progress)
    except msgspec.ValidationError:
        return  # whoever was asked may say anything; only progress is passed on
    outcome = on_progress(progress)
    if inspect.isawaitable(outcome):
        await outcome
