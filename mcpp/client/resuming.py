"""A participant's own proposals of the past, found in the log after a restart (P-53)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from mcpp import filters, kinds
from mcpp.client.history import collect
from mcpp.client.proposals import OpenProposal, ProposalState
from mcpp.errors import DecodeError
from mcpp.history import proposal_kinds
from mcpp.kinds import Kind
from mcpp.protocol import rpc
from mcpp.protocol.envelope import Envelope

if TYPE_CHECKING:
    from mcpp.client.pod import Pod

# How many envelopes about proposals to read at most, from the newest back.
_MAX_ENVELOPES: Final = 10_000


async def own_proposals(pod: "Pod", *, limit: int = _MAX_ENVELOPES) -> list[OpenProposal]:
    """Return this participant's proposals that it may still have to act on, oldest first.

    These are the open ones, the ones being worked on, and those whose end is in the log after
    everything that this participant has said in the proposal's context: it cannot have acted on
    that end. Proposals of this process are not among them.

    Raises Refused and ConnectionLostError.
    """
    relevant = (
        proposal_kinds
        | (filters.kind(f"{kinds.RESPONSE}:*") & filters.addressed_to(pod.me))
        | filters.kind(rpc.CANCELLED_KIND)
        | filters.sender(pod.me)
    )
    with pod._connection.recording() as recorded:
        newest, _ = await collect(pod.history(relevant, order="newest"), limit)
        # Nothing is awaited from here on: what arrives later finds the proposals expected.
        past = [message.envelope for message in reversed(newest)]
        envelopes = list({envelope.id: envelope for envelope in (*past, *recorded)}.values())
    found: list[OpenProposal] = []
    for envelope in envelopes:
        if _is_own(envelope, pod.me) and not pod._connection.is_pending(envelope.id):
            found.append(pod._track(envelope, _owner(envelope), ProposalState()))
        else:
            pod._connection.learn(envelope)
    return [each for each in found if not each.is_settled or _is_news(each, envelopes, pod.me)]


def _is_own(envelope: Envelope, me: str) -> bool:
    """Return whether a proposal is ours and can be fulfilled (P-20)."""
    if envelope.sender != me or Kind.parse(envelope.kind).family != kinds.PROPOSAL:
        return False
    try:
        rpc.read_proposal(envelope)
    except DecodeError:
        return False
    return True


def _is_news(proposal: OpenProposal, log: Sequence[Envelope], me: str) -> bool:
    """Return whether a proposal ended after all that its proposer has said in its context."""
    where = _context(proposal.envelope)
    for envelope in reversed(log):
        if envelope.sender == me and _context(envelope) == where:
            return False
        if envelope is proposal.end:
            return True
    return True  # it ended while the log was read


def _owner(proposal: Envelope) -> str:
    (owner,) = proposal.to or ("",)
    return owner


def _context(envelope: Envelope) -> str | None:
    return None if envelope.context is None else envelope.context.id
