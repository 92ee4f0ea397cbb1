"""Which request fulfils a proposal: the first in the log's order, and only one (P-20)."""

from dataclasses import dataclass, field
from typing import Final

from mcpp.protocol import rpc
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.rpc import Failure

# Of each proposer, so that nobody's flood makes us forget what became of another's; and of those
# that are open and those that are closed apart, so that it is none of its own way around either.
_KEPT: Final = 1024


@dataclass(slots=True)
class _Proposal:
    id: str
    sender: str
    gist: bytes | None  # a whole one may be as long as a text can be
    closed_by: str | None = None


@dataclass(slots=True)
class Fulfilments:
    """The proposals made to one participant. Owns what became of each."""

    _proposals: dict[str, _Proposal] = field(default_factory=dict)
    _open: dict[str, dict[str, None]] = field(default_factory=dict)
    _closed: dict[str, dict[str, None]] = field(default_factory=dict)

    def propose(self, envelope: Envelope) -> None:
        """Take note of a proposal to us."""
        if envelope.id not in self._proposals:
            proposal = _Proposal(envelope.id, envelope.sender, rpc.request_digest(envelope))
            self._proposals[proposal.id] = proposal
            self._keep(self._open, proposal)

    def withdraw(self, id: str, sender: str) -> None:
        """Close a proposal that its proposer takes back (P-21)."""
        proposal = self._proposals.get(id)
        if proposal is not None and proposal.sender == sender:
            self._close(proposal, "withdrawn")

    def claim(self, request: Envelope) -> Failure | None:
        """Let a request fulfil the proposal whose id it carries, or say why it does not."""
        proposal = self._proposals.get(request.correlation_id or "")
        if proposal is None:
            return None
        if proposal.closed_by is not None:
            return Failure(rpc.CLOSED_PROPOSAL, proposal.closed_by)
        if proposal.gist is None or rpc.request_digest(request) != proposal.gist:
            return Failure(rpc.INVALID_REQUEST, "this is not what was proposed")
        self._close(proposal, "already_fulfilled")
        return None

    def proposer(self, id: str | None) -> str | None:
        """Return who made a proposal."""
        proposal = self._proposals.get(id or "")
        return None if proposal is None else proposal.sender

    def _close(self, proposal: _Proposal, how: str) -> None:
        if proposal.closed_by is None:
            proposal.closed_by = how
            self._open[proposal.sender].pop(proposal.id)
            self._keep(self._closed, proposal)

    def _keep(self, kept: dict[str, dict[str, None]], proposal: _Proposal) -> None:
        ids = kept.setdefault(proposal.sender, {})
        ids[proposal.id] = None
        if len(ids) > _KEPT:
            oldest = next(iter(ids))
            del ids[oldest], self._proposals[oldest]
