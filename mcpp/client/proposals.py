"""Proposals: asking for what one may not request, so that somebody who may can do it.

A request that carries the proposal's id fulfils it; the first one in the log's order wins, and its
answer is the proposer's too, and so is its cancellation. A rejection is an opinion and closes
nothing.
"""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from mcpp import kinds
from mcpp.client.exchange import Exchange
from mcpp.errors import CallError, DecodeError, NoAnswerError, ToolError
from mcpp.kinds import Kind
from mcpp.payloads import Notification, Reject
from mcpp.protocol import rpc
from mcpp.protocol.envelope import Envelope

if TYPE_CHECKING:
    from mcpp.client.sender import Sender


@dataclass(slots=True)
class ProposalState(Exchange):
    """What becomes of a proposal. Owns what was said to it so far, whether anybody waits or not."""

    rejections: list[tuple[str, Reject]] = field(default_factory=list)
    fulfilled_by: str | None = None
    withdrawn: bool = False

    def note(self, envelope: Envelope) -> None:
        """Take note of a fulfilment, an opinion, or the end; progress is not passed on."""
        if envelope.kind == kinds.REJECT:
            self._reject(envelope)
        elif Kind.parse(envelope.kind).family == kinds.REQUEST:
            self.fulfilled_by = envelope.sender
        elif envelope.kind == kinds.WITHDRAW:
            self.withdrawn = True
        self._event.set()

    def _reject(self, envelope: Envelope) -> None:
        """Take note of an opinion: the last of each, for one may say it a thousand times."""
        with suppress(DecodeError):  # what is no rejection is no opinion either
            opinion = (envelope.sender, envelope.payload_as(Reject))
            others = [other for other in self.rejections if other[0] != envelope.sender]
            self.rejections[:] = [*others, opinion]


@dataclass(slots=True, weakref_slot=True)
class OpenProposal:
    """A proposal of ours."""

    voice: "Sender"
    envelope: Envelope
    _fate: ProposalState

    @property
    def id(self) -> str:
        """The proposal's id, which a fulfilling request carries."""
        return self.envelope.id

    @property
    def rejections(self) -> list[tuple[str, Reject]]:
        """Who has spoken against it so far, and why: the last opinion of each."""
        return self._fate.rejections

    @property
    def fulfilled_by(self) -> str | None:
        """Who has fulfilled it, if anybody has."""
        return self._fate.fulfilled_by

    async def result(self, timeout: float | None = None, *, until_rejected: bool = False) -> Any:
        """Wait until somebody fulfils the proposal, and return what its owner answers.

        For a tool that is a ToolResult. It may be asked again after a timeout: a later answer
        counts as long as the proposal is open.

        Args:
            timeout: in seconds.
            until_rejected: wait no longer than until somebody speaks against it, though others may
                still fulfil it.

        Raises NoAnswerError, CallError for a rejection, and what `Pod.call` raises.
        """
        with anyio.move_on_after(timeout):
            return await self._result(until_rejected)
        raise NoAnswerError(self._owner, self._method, timeout or 0.0)

    async def withdraw(self, reason: str | None = None) -> Envelope:
        """Take the proposal back. It counts unless a fulfilling request came before."""
        payload = {} if reason is None else {"reason": reason}
        return await self.voice.send(
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
            answer = self._fate.answer
            if answer is not None:
                if answer.kind.startswith(kinds.RESPONSE):
                    return _outcome(answer)
                problem = f"approved by @{answer.sender}, who then gave up: {_reason(answer)}"
                raise CallError(self._owner, self._method, problem)
            if self._fate.withdrawn:
                raise CallError(self._owner, self._method, "the proposal was withdrawn")
            if until_rejected and self.rejections and self.fulfilled_by is None:
                who, opinion = self.rejections[-1]
                problem = f"rejected by @{who}: {opinion.text or opinion.reason}"
                raise CallError(self._owner, self._method, problem)
            await self._fate.change()


def _reason(cancelled: Envelope) -> str:
    try:
        params = cancelled.payload_as(Notification).params
    except DecodeError:
        params = {}
    return str(params.get("reason") or "no reason given")


def _outcome(envelope: Envelope) -> Any:
    kind = Kind.parse(envelope.kind)
    method = kind.method or ""
    value = rpc.read_response(envelope, method)
    if method != rpc.TOOLS_CALL:
        return value
    result = rpc.ToolResult.from_json(value)
    if result.is_error:
        raise ToolError(envelope.sender, kind.name or method, result)
    return result
