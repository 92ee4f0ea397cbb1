"""Reading a pod's past: pages of the log, and what they say about proposals and contexts.

Everything here is a function of envelopes in the log's order. `Pod.history` fetches the pages.
"""

from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.filters import Filter, kind
from mcpp.kinds import Kind
from mcpp.payloads import History
from mcpp.protocol import rpc
from mcpp.protocol.codec import decode
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.tree import ContextNode, ContextTree

__all__ = [
    "PastEnvelope",
    "context_node",
    "open_proposals",
    "past_envelopes",
    "proposal_kinds",
]

# What opens or closes a proposal: a request may fulfil one.
proposal_kinds: Filter = (
    kind(f"{kinds.PROPOSAL}:*")
    | kind(f"{kinds.REQUEST}:*")
    | kind(kinds.REJECT)
    | kind(kinds.WITHDRAW)
    | kind(kinds.TOMBSTONE)
)


class PastEnvelope(NamedTuple):
    """An envelope of the log, its position, and the Unix time at which the gateway received it."""

    position: int
    time: float
    envelope: Envelope
    erased: bool


def past_envelopes(page: History) -> Iterator[PastEnvelope]:
    """Yield the envelopes of a page in its order. Raises DecodeError for an invalid one."""
    for entry in page.entries:
        envelope = decode(bytes(entry.envelope))
        yield PastEnvelope(entry.position, entry.time, envelope, entry.erased)


def open_proposals(
    envelopes: Iterable[Envelope], *, rejected: bool = False, erased: Container[str] = ()
) -> list[Envelope]:
    """Return the proposals that may still be fulfilled, oldest first.

    They were neither fulfilled (P-20) nor withdrawn by their proposers (P-21). A rejection does not
    close a proposal; with `rejected`, the rejected ones are returned too. An answer that is among
    the `erased` ids closes it, since it may have been the fulfilment: no call should be made twice.
    The kind of an erased envelope proves nothing, as any participant may send it. Proposals that no
    participant may fulfil, because kind and payload disagree, are left out.
    """
    proposals: dict[str, Envelope] = {}
    with_rejection: set[str] = set()
    for envelope in envelopes:
        if Kind.parse(envelope.kind).family == kinds.PROPOSAL:
            if _is_valid(envelope):
                proposals[envelope.id] = envelope
            continue
        proposal = proposals.get(envelope.correlation_id or "")
        if proposal is None:
            continue
        if envelope.kind == kinds.REJECT:
            with_rejection.add(proposal.id)
        elif envelope.id in erased or _closes(envelope, proposal):
            del proposals[proposal.id]
    return [each for id, each in proposals.items() if rejected or id not in with_rejection]


def context_node(
    id: str, envelopes: Iterable[Envelope], live: Container[str]
) -> ContextNode | None:
    """Return a context with its descendants, from the envelopes in them; None without any.

    `live` are the ids of contexts that exist now; the others have expired.
    """
    tree = ContextTree(envelopes)
    if id not in tree:
        return None
    node = tree[id]
    for each, _ in node.walk():
        each.expired = each.id not in live
    return node


def _is_valid(proposal: Envelope) -> bool:
    try:
        rpc.read_proposal(proposal)
    except DecodeError:
        return False
    return True


def _closes(envelope: Envelope, proposal: Envelope) -> bool:
    if envelope.kind == kinds.WITHDRAW:
        return envelope.sender == proposal.sender
    return rpc.fulfils(envelope, proposal)
