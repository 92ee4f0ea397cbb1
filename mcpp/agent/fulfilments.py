"""Decides which request fulfils a proposal: only the first one in the log's order (P-20)."""

from dataclasses import dataclass, field
from typing import Final

from mcpp.protocol import rpc
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.rpc import Failure

# Kept per proposer, so that one participant's flood does not evict the proposals of others, and
# separately for open and closed ones, so that it cannot evict its own closed ones to reuse them.
_MAX_KEPT: Final = 1024
# Proposers are told by the gateway, which bounds them; this bounds them here (P-42).
_MAX_PROPOSERS: Final = 4096


@dataclass(slots=True)
class _Proposal:
    id: str
    sender: str
    digest: bytes | None  # instead of the proposal, which may be large
    closed_reason: str | None = None


@dataclass(slots=True)
class Fulfilments:
    """The proposals made to one participant. Owns the state of each."""

    _proposals: dict[str, _Proposal] = field(default_factory=dict)
    _open: dict[str, dict[str, None]] = field(default_factory=dict)
    _closed: dict[str, dict[str, None]] = field(default_factory=dict)

    def add(self, envelope: Envelope) -> None:
        """Record a proposal to this participant."""
        if envelope.id not in self._proposals:
            proposal = _Proposal(envelope.id, envelope.sender, rpc.request_digest(envelope))
            self._proposals[proposal.id] = proposal
            self._keep(self._open, proposal)

    def withdraw(self, id: str, sender: str) -> None:
        """Close a proposal that its proposer withdraws (P-21)."""
        proposal = self._proposals.get(id)
        if proposal is not None and proposal.sender == sender:
            self._close(proposal, "withdrawn")

    def fulfil(self, request: Envelope) -> Failure | None:
        """Fulfil the proposal whose id the request carries, or return why it cannot.

        Returns None for a request without the id of a known proposal: it is an ordinary one.
        """
        proposal = self._proposals.get(request.correlation_id or "")
        if proposal is None:
            return None
        if proposal.closed_reason is not None:
            return Failure(rpc.CLOSED_PROPOSAL, proposal.closed_reason)
        if proposal.digest is None or rpc.request_digest(request) != proposal.digest:
            return Failure(rpc.INVALID_REQUEST, "the request differs from the proposal")
        self._close(proposal, "already_fulfilled")
        return None

    def proposer(self, id: str | None) -> str | None:
        """Return the participant that made a proposal, or None if it is unknown."""
        proposal = self._proposals.get(id or "")
        return None if proposal is None else proposal.sender

    def _close(self, proposal: _Proposal, reason: str) -> None:
        if proposal.closed_reason is None:
            proposal.closed_reason = reason
            self._open[proposal.sender].pop(proposal.id)
            self._keep(self._closed, proposal)

    def _keep(self, kept: dict[str, dict[str, None]], proposal: _Proposal) -> None:
        ids = kept.setdefault(proposal.sender, {})
        if len(kept) > _MAX_PROPOSERS:
            for id in kept.pop(next(iter(kept))):
                del self._proposals[id]
        ids[proposal.id] = None
        if len(ids) > _MAX_KEPT:
            oldest = next(iter(ids))
            del ids[oldest], self._proposals[oldest]
