"""Which answers count for which requests and proposals.

A request is answered by the participant that was asked, and by no other (P-14). A proposal is
answered through the request that fulfils it: the first fulfilment in the log's order wins, and its
answer is the proposal's answer (P-20). So a request may be pending for two reasons at once, as one
of ours and as the fulfilment of one of our proposals; these are its `origins`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.kinds import Kind
from mcpp.payloads import LiveText
from mcpp.protocol import rpc
from mcpp.protocol.envelope import Envelope
from mcpp.session.effects import Answered, Noted

_PROGRESS: Final = str(Kind(kinds.NOTIFICATION, rpc.PROGRESS))


class _PendingRequest(NamedTuple):
    requester: str
    participant: str  # whose answer counts
    origins: tuple[str, ...]  # our request's id, our proposal's id, or both
    answer: str = kinds.RESPONSE  # how the kind of the answer begins


class Correlations:
    """One participant's requests and proposals that wait for an answer. Owns both."""

    __slots__ = ("_proposals", "_requests")

    def __init__(self) -> None:
        self._requests: dict[str, _PendingRequest] = {}
        self._proposals: dict[str, Envelope] = {}  # those without a fulfilment

    def __len__(self) -> int:
        """Return how many requests and proposals are pending."""
        return len(self._requests) + len(self._proposals)

    @property
    def has_requests(self) -> bool:
        """Whether the answer to any request is pending; open proposals do not count."""
        return bool(self._requests)

    def expect(self, asking: Envelope, participant: str) -> None:
        """Expect an answer to a request, proposal or chat, from this participant only."""
        if Kind.parse(asking.kind).family == kinds.PROPOSAL:
            self._proposals[asking.id] = asking
        else:
            answer = kinds.CHAT if asking.kind == kinds.CHAT else kinds.RESPONSE
            self._requests[asking.id] = _PendingRequest(
                asking.sender, participant, (asking.id,), answer
            )

    def forget(self, id: str) -> None:
        """Stop expecting an answer to the request or proposal with this id."""
        self._proposals.pop(id, None)
        for key, request in list(self._requests.items()):
            if id in request.origins:
                rest = tuple(origin for origin in request.origins if origin != id)
                if rest:
                    self._requests[key] = request._replace(origins=rest)
                else:
                    del self._requests[key]

    def receive(self, envelope: Envelope) -> Sequence[Answered | Noted]:
        """Return what an envelope means to pending requests and proposals.

        Each envelope must be given once, in the log's order.
        """
        id = envelope.correlation_id
        if id is None:
            return ()
        request = self._requests.get(id)
        if request is not None and request.participant == envelope.sender:
            if envelope.kind.startswith(request.answer):
                del self._requests[id]
                return [Answered(origin, envelope) for origin in request.origins]
            if envelope.kind == _PROGRESS:
                return [Noted(origin, envelope) for origin in request.origins]
        if (
            request is not None
            and request.requester == envelope.sender
            and envelope.kind == rpc.CANCELLED_KIND
        ):
            return self._cancel_fulfilment(envelope, id, request)
        proposal = self._proposals.get(id)
        return () if proposal is None else self._update_proposal(envelope, proposal)

    def receive_live(self, part: Envelope) -> Sequence[Noted]:
        """Return what a live part means to the pending request that it helps to answer."""
        if not self._requests or part.kind != kinds.LIVE_TEXT:
            return ()
        try:
            request = self._requests.get(part.payload_as(LiveText).in_reply_to or "")
        except DecodeError:
            return ()
        if request is None or request.participant != part.sender:
            return ()
        return [Noted(origin, part) for origin in request.origins]

    def _cancel_fulfilment(
        self, cancellation: Envelope, id: str, request: _PendingRequest
    ) -> Sequence[Answered]:
        # P-20: cancelling the fulfilment of a proposal also ends it for the proposer.
        fulfilled = [origin for origin in request.origins if origin != id]
        for origin in fulfilled:
            self.forget(origin)
        return [Answered(origin, cancellation) for origin in fulfilled]

    def _update_proposal(self, envelope: Envelope, proposal: Envelope) -> Sequence[Noted]:
        if rpc.fulfils(envelope, proposal):
            return self._fulfil(envelope, proposal)
        if envelope.kind == kinds.WITHDRAW and envelope.sender == proposal.sender:
            del self._proposals[proposal.id]
            return (Noted(proposal.id, envelope),)
        if envelope.kind == kinds.REJECT:
            return (Noted(proposal.id, envelope),)
        return ()

    def _fulfil(self, envelope: Envelope, proposal: Envelope) -> Sequence[Noted]:
        (owner,) = proposal.to or ("",)
        ours = self._requests.get(envelope.id, _PendingRequest("", owner, ()))
        if ours.participant != owner:
            # A forged request with the id of one of ours; a gateway that lost its log accepts it.
            return ()
        del self._proposals[proposal.id]
        origins = (*ours.origins, proposal.id)
        self._requests[envelope.id] = _PendingRequest(envelope.sender, owner, origins)
        return (Noted(proposal.id, envelope),)
