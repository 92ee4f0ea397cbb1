"""Proposals: requests that a participant with the required capability may make instead.

A request that carries the proposal's id fulfils it. The first one in the log's order wins; its
response, or its cancellation, also settles the proposal. A rejection does not close
the proposal.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio

from mcpp import kinds
from mcpp.client.pending import PendingResponse
from mcpp.errors import CallError, DecodeError, LostProposalError, NoAnswerError, ToolError
from mcpp.kinds import Kind
from mcpp.payloads import Notification, Proposal, Reject
from mcpp.protocol import rpc
from mcpp.protocol.envelope import Envelope

_MAX_REJECTIONS: Final = 256
_MAX_REJECTION_CHARS: Final = 4096

if TYPE_CHECKING:
    from mcpp.client.pod import Pod
    from mcpp.client.sender import Sender


@dataclass(slots=True)
class ProposalState(PendingResponse):
    """The state of our own proposal: rejections, fulfilment, withdrawal, response."""

    is_lost_with_log: ClassVar = True

    rejections: list[tuple[str, Reject]] = field(default_factory=list)
    fulfilled_by: str | None = None
    withdrawal: Envelope | None = None

    def add_update(self, envelope: Envelope) -> None:
        """Record a rejection, a fulfilment or a withdrawal; progress is ignored."""
        if envelope.kind == kinds.REJECT:
            self._reject(envelope)
        elif Kind.parse(envelope.kind).family == kinds.REQUEST:
            self.fulfilled_by = envelope.sender
        elif envelope.kind == kinds.WITHDRAW:
            self.withdrawal = envelope
        self._event.set()

    @property
    def end(self) -> Envelope | None:
        """The envelope that ended it, None while it is open or being worked on."""
        return self._response if isinstance(self._response, Envelope) else self.withdrawal

    @property
    def is_settled(self) -> bool:
        """Whether it has ended, with or without an envelope that says so."""
        return self._response is not None or self.withdrawal is not None

    def _reject(self, envelope: Envelope) -> None:
        """Record a rejection: each participant's last one, of so many participants (P-40)."""
        with suppress(DecodeError):  # malformed rejections are ignored
            given = envelope.payload_as(Reject)
            text = None if given.text is None else given.text[:_MAX_REJECTION_CHARS]
            rejection = Reject(reason=given.reason[:_MAX_REJECTION_CHARS], text=text)
            others = [other for other in self.rejections if other[0] != envelope.sender]
            self.rejections[:] = [*others[-_MAX_REJECTIONS + 1 :], (envelope.sender, rejection)]


@dataclass(slots=True, weakref_slot=True)
class OpenProposal:
    """A proposal that this participant has made.

    `await pod.propose(…)` returns one; programs do not construct it.
    """

    _sender: "Sender"
    envelope: Envelope
    _state: ProposalState

    @property
    def id(self) -> str:
        """The proposal's id, which the fulfilling request carries as `correlation_id`."""
        return self.envelope.id

    @property
    def rejections(self) -> list[tuple[str, Reject]]:
        """The participants that have rejected it, each with its last rejection."""
        return self._state.rejections

    @property
    def fulfilled_by(self) -> str | None:
        """The participant that has fulfilled it, None while it is open."""
        return self._state.fulfilled_by

    @property
    def pod(self) -> "Pod":
        """The pod in which it was made."""
        return self._sender._own_pod

    @property
    def reason(self) -> str | None:
        """Why it was proposed, as `propose(…, reason=…)` said."""
        return self.envelope.payload_as(Proposal).shown_reason

    @property
    def end(self) -> Envelope | None:
        """The envelope that ended it: the response, a withdrawal, or a cancelled fulfilment."""
        return self._state.end

    @property
    def is_settled(self) -> bool:
        """Whether it has ended, so that `result` returns or raises at once."""
        return self._state.is_settled

    async def result(self, timeout: float | None = None, *, until_rejected: bool = False) -> Any:
        """Wait until the proposal is fulfilled, and return the result.

        For a tool that is a ToolResult. It may be called again after a timeout: a later response
        counts as long as the proposal is open.

        Args:
            timeout: seconds to wait; None waits indefinitely.
            until_rejected: stop waiting at the first rejection, although another participant may
                still fulfil the proposal.

        Raises NoAnswerError, AbsentError if the tool's owner leaves while it works,
        LostProposalError if the gateway loses its log, CallError for a rejection, and what
        `Pod.call` raises.
        """
        with anyio.move_on_after(timeout):
            return await self._result(until_rejected)
        raise NoAnswerError(self._owner, self._method, timeout or 0.0)

    async def withdraw(self, reason: str | None = None) -> Envelope:
        """Withdraw the proposal. This has no effect once it is fulfilled."""
        payload = {} if reason is None else {"reason": reason}
        return await self._sender.send(
            kinds.WITHDRAW,
            payload,
            to=self.envelope.to,
            correlation_id=self.id,
            context=None if self.envelope.context is None else self.envelope.context.id,
        )

    @property
    def _owner(self) -> str:
        return self.envelope.to[0] if self.envelope.to else ""

    @property
    def _method(self) -> str:
        kind = Kind.parse(self.envelope.kind)
        return kind.name or kind.method or ""

    async def _result(self, until_rejected: bool) -> Any:
        while True:
            try:
                response = self._state.response
            except LostProposalError:
                raise LostProposalError(self._owner, self._method) from None
            if response is not None:
                if response.kind.startswith(kinds.RESPONSE):
                    return await self._outcome(response)
                reason = _reason(response)
                problem = f"approved by @{response.sender}, which then cancelled it: {reason}"
                raise CallError(self._owner, self._method, problem)
            if self._state.withdrawal is not None:
                raise CallError(self._owner, self._method, "the proposal was withdrawn")
            if until_rejected and self.rejections and self.fulfilled_by is None:
                sender, rejection = self.rejections[-1]
                problem = f"rejected by @{sender}: {rejection.text or rejection.reason}"
                raise CallError(self._owner, self._method, problem)
            if self.fulfilled_by is None:
                await self._state.wait_for_change()
                continue
            with self._sender._connection.while_present(self._owner) as presence:
                await self._state.wait_for_change()
            if presence.cancelled_caught:
                problem = "it left before it answered"
                raise self._sender._absence(self._owner, self._method, problem)

    async def _outcome(self, response: Envelope) -> Any:
        kind = Kind.parse(response.kind)
        method = kind.method or ""
        value = await self._sender._read_result(response, method)
        if method != rpc.TOOLS_CALL:
            return value
        result = rpc.ToolResult.from_json(value)
        if result.is_error:
            raise ToolError(response.sender, kind.name or method, result)
        return result


def _reason(cancelled: Envelope) -> str:
    try:
        params = cancelled.payload_as(Notification).params
    except DecodeError:
        params = {}
    return str(params.get("reason") or "no reason given")
