"""One live context and its place in the tree: parent, children, depth, height and lineage."""

from collections.abc import Iterable

import msgspec

from mcpp.protocol.contexts import Lineage
from mcpp_gateway.core.rates import Bucket, Rate
from mcpp_gateway.core.records import DormantState, LiveState


class LiveContext:
    """One live context. Only the tree changes it."""

    __slots__ = (
        "bucket",
        "children",
        "creator",
        "deadline",
        "depth",
        "height",
        "heirs",
        "holder",
        "holder_last",
        "id",
        "last",
        "lineage",
        "messages",
        "parent",
        "participants",
        "started",
        "type",
    )

    def __init__(self, id: str, now: float, rate: Rate) -> None:
        self.id = id
        self.type: str | None = None
        self.parent: LiveContext | None = None
        self.creator: str | None = None  # None: a placeholder
        self.children: set[LiveContext] = set()
        self.depth = 1
        self.height = 1  # levels down to the deepest descendant; 0: to be counted again
        self.lineage = Lineage(id)
        self.holder: str | None = None  # the participant that it counts against
        self.holder_last = now  # the time of the holder's last envelope in it or below it
        self.heirs: dict[str, float] = {}  # times of the last envelopes of others, latest last
        self.deadline: float | None = None  # when to look at its holder again
        self.participants: tuple[str, ...] = ()  # sorted; the first that there were
        self.messages = 0
        self.started = now
        self.last = now  # the time of the last envelope in it or below it
        self.bucket = Bucket(rate)


def live_state(node: LiveContext) -> LiveState:
    """Return a context as a snapshot holds it."""
    return LiveState(
        node.id,
        node.type,
        None if node.parent is None else node.parent.id,
        node.creator,
        node.messages,
        node.participants,
        node.started,
        node.last,
        node.holder,
        node.holder_last,
        tuple(node.heirs.items()) if node.heirs else (),
    )


def postponed(live: Iterable[LiveState], seconds: float) -> tuple[LiveState, ...]:
    """Return contexts as if all that was said in them had been said later by some seconds."""
    return tuple(
        msgspec.structs.replace(
            each,
            last=each.last + seconds,
            holder_last=each.holder_last + seconds,
            heirs=tuple((id, last + seconds) for id, last in each.heirs),
        )
        for each in live
    )


def announced_bytes(node: LiveContext) -> int:
    """Return about how many bytes the announcement of an expiry takes."""
    parent = "" if node.parent is None else node.parent.id
    names = (node.id, node.type or "", node.creator or "", parent, *node.participants)
    return 160 + sum(len(name) + 3 for name in names)


def dormant_bytes(state: DormantState) -> int:
    """Return what a dormant context takes in a state, estimated generously."""
    names = (state.id, state.type, state.parent, state.creator)
    return 48 + sum([len(name) for name in names if name is not None])


def dormant_state(node: LiveContext) -> DormantState:
    """Return a context as it is kept after its expiry."""
    parent = None if node.parent is None else node.parent.id
    return DormantState(node.id, node.type, parent, node.creator, node.messages, node.started)


def attach(node: LiveContext, parent: LiveContext) -> None:
    """Put a context, with everything below it, under a parent."""
    node.parent = parent
    parent.children.add(node)
    _raise_heights(parent, height_of(node))
    settle(node)


def height_of(node: LiveContext | None) -> int:
    """Return the number of levels from a context down to its deepest descendant.

    It is kept, because a refused sender may ask again and again: walking through all descendants
    each time would cost the gateway a thousand times what it costs the sender (G-47). Where it has
    to be counted again, so it has in every context above.
    """
    if node is None:
        return 1
    if not node.height:
        node.height = 1 + max((height_of(child) for child in node.children), default=0)
    return node.height


def _raise_heights(node: LiveContext | None, height_below: int) -> None:
    """Update the heights after something of this height was put below a context."""
    while node is not None and 0 < node.height <= height_below:
        height_below += 1
        node.height = height_below
        node = node.parent


def lower_heights(node: LiveContext | None) -> None:
    """Mark the heights as unknown after something below a context was removed."""
    while node is not None and node.height:
        node.height = 0
        node = node.parent


def settle(node: LiveContext) -> None:
    """Update depth and lineage of a context and of all below it, after it was moved."""
    parent = node.parent
    ancestors: tuple[str, ...] = ()
    if parent is not None:
        node.depth = parent.depth + 1
        ancestors = (parent.id, *parent.lineage.ancestors)
    node.lineage = Lineage(node.id, node.type, ancestors)
    for child in node.children:
        settle(child)
