"""The live contexts of one pod: who may open one, where it stands, when it expires.

The first envelope that names a context id creates the context, and its sender is the context's
creator. Only the creator fixes the type and the parent, each once; what others name is ignored. A
parent in which nothing was said yet is a placeholder of depth 1 without a creator. When a context
is given a parent, everything below it moves, so its deepest descendant is checked again.

A context counts against one participant, its holder: the creator until it has been idle there for
`context_idle_seconds`, then the last sender. So no participant uses up another's cap, and answering
in a requester's context costs nothing while the requester is active. An envelope of a sender that
is at its cap is accepted but does not prolong the context's life.

An expired context becomes dormant: its id is remembered, and using it again revives the context
with the same type, parent and creator. Dormant contexts are bounded in number, the oldest go first.
"""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import Context
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.rates import Bucket, Rate
from mcpp_gateway.core.records import DormantState, LiveState

CYCLE = "context_cycle"
PARENT_CHANGED = "context_parent_changed"
DEPTH_EXCEEDED = "context_depth_exceeded"
LIMIT = "context_limit"


class LiveContext:
    """One live context. Only the tree changes it."""

    __slots__ = (
        "bucket",
        "children",
        "creator",
        "depth",
        "height",
        "heir",
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

    def __init__(self, id: str, holder: str, now: float, rate: Rate) -> None:
        self.id = id
        self.type: str | None = None
        self.parent: LiveContext | None = None
        self.creator: str | None = None  # None: a placeholder
        self.children: set[LiveContext] = set()
        self.depth = 1
        self.height = 1  # levels down to the deepest descendant; 0: to be counted again
        self.lineage = Lineage(id)
        self.holder = holder  # the participant that it counts against
        self.holder_last = now  # the time of the holder's last envelope in it or below it
        self.heir: str | None = None  # the last other sender, which holds it next
        self.participants: set[str] = set()
        self.messages = 0
        self.started = now
        self.last = now  # the time of the last envelope that prolonged its life
        self.bucket = Bucket(rate)


@dataclass(frozen=True, slots=True)
class Placement:
    """The changes that accepting an envelope makes to the tree, already found to be allowed.

    `opened` are the ids to open, parents first: dormant ones are revived, others are created.
    """

    context: Context
    node: LiveContext | None  # None: the last of `opened`
    opened: tuple[str, ...]
    attach: bool  # whether the context gets the parent that it names
    lineage: Lineage


@dataclass(slots=True)
class LiveContexts:
    """The contexts of a pod. Owns them; never exceeds its limits; is always a tree."""

    limits: PodLimits
    _nodes: dict[str, LiveContext] = field(default_factory=dict)
    _dormant: dict[str, DormantState] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _deadlines: list[tuple[float, int, LiveContext]] = field(default_factory=list)
    _tie_break: Iterator[int] = field(default_factory=count)
    _rate: Rate = field(init=False)

    def __post_init__(self) -> None:
        self.reconfigure(self.limits)

    def reconfigure(self, limits: PodLimits) -> None:
        """Apply new limits. Contexts that are live stay."""
        self.limits = limits
        self._rate = Rate.per_second(limits.context_messages_per_second, limits.context_burst)

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[LiveContext]:
        """Yield the live contexts, the latest created first."""
        return reversed(self._nodes.values())

    # --- deciding: nothing changes --------------------------------------------------------------

    def find(self, context: Context, sender: str) -> LiveContext | None:
        """Return the live context of an envelope that changes nothing in the tree.

        This is the common case. Otherwise ask `lineage` and `check`.
        """
        node = self._nodes.get(context.id)
        if node is None:
            return None
        if node.creator != sender:
            return None if node.creator is None else node
        if context.type is None or node.type is not None:
            parent = node.parent
            if context.parent is None or (parent is not None and parent.id == context.parent):
                return node
        return None

    def lineage(self, context: Context, sender: str) -> Lineage:
        """Return where an envelope's context stands, or would stand."""
        found = self._state(context.id)
        type, parent, creator = found or (None, None, None)
        if creator is None or creator == sender:
            type = type or context.type
            parent = parent or context.parent
        if parent == context.id:
            parent = None
        return Lineage(context.id, type, () if parent is None else self._chain(parent))

    def check(self, context: Context, sender: str) -> LiveContext | Placement | str:
        """Return the context an envelope belongs to, the placement it needs, or a refusal code."""
        node = self.find(context, sender)
        if node is not None:
            return node
        node = self._nodes.get(context.id)
        state = self._state(context.id)
        _, fixed, creator = state or (None, None, None)
        named = context.parent if creator in (None, sender) else None
        if named is not None and fixed is not None and named != fixed:
            return CYCLE if self._is_below(named, context.id) else PARENT_CHANGED
        if named is not None and self._is_below(named, context.id):
            return CYCLE
        return self._place(context, node, fixed or named, sender)

    # --- applying -------------------------------------------------------------------------------

    def enter(self, place: LiveContext | Placement, sender: str, now: float) -> Lineage:
        """Count an accepted envelope in its context, after making the changes it needs."""
        node = place if type(place) is LiveContext else self._apply(place, sender, now)  # type: ignore[arg-type]
        node.messages += 1
        node.participants.add(sender)
        self._touch(node, sender, now)
        return node.lineage

    def is_dormant(self, id: str) -> bool:
        """Return whether an id belongs to an expired context that can be revived."""
        return id in self._dormant

    def __getitem__(self, id: str) -> LiveContext:
        return self._nodes[id]

    def expire(self, now: float) -> list[LiveContext]:
        """Make idle contexts dormant and return them, children before their parents."""
        expired: list[LiveContext] = []
        idle = self.limits.context_idle_seconds
        while self._deadlines and self._deadlines[0][0] <= now:
            node: LiveContext | None = heapq.heappop(self._deadlines)[2]
            assert node is not None
            if self._nodes.get(node.id) is not node:
                continue  # it expired together with its last child
            self._review(node, now)
            if node.children or node.last + idle > now:
                self._queue(node, now)
                continue
            while node is not None and not node.children and node.last + idle <= now:
                expired.append(node)
                node = self._remove(node)
            if node is not None and not node.children:
                self._queue(node, now)
        return expired

    # --- restoring ------------------------------------------------------------------------------

    def snapshot(self) -> tuple[tuple[LiveState, ...], tuple[DormantState, ...]]:
        """Return the live contexts, parents first, and the dormant ones, oldest first."""
        live = sorted(self._nodes.values(), key=lambda node: node.depth)
        return tuple(map(_live_state, live)), tuple(self._dormant.values())

    def restore(self, live: Iterable[LiveState], dormant: Iterable[DormantState]) -> None:
        """Fill an empty tree from a snapshot."""
        self._dormant = {state.id: state for state in dormant}
        for state in live:
            node = self._create(state.id, state.holder, state.started)
            node.type, node.creator = state.type, state.creator
            node.messages, node.participants = state.messages, set(state.participants)
            node.last, node.holder_last, node.heir = state.last, state.holder_last, state.heir
            if state.parent is not None:
                self._attach(node, self._nodes[state.parent])
            _settle(node)

    def replay(self, lineage: Lineage, sender: str, now: float) -> None:
        """Apply an accepted envelope from the log, without deciding on it again."""
        path = (*reversed(lineage.ancestors), lineage.id)
        parent: LiveContext | None = None
        for id in path:
            node = self._nodes.get(id) or self._open(id, sender, now)
            if node.parent is None and parent is not None:
                self._attach(node, parent)
                _settle(node)
            parent = node
        assert parent is not None
        if parent.creator is None:
            parent.creator = sender
        if parent.type != lineage.type:
            parent.type = lineage.type
            _settle(parent)
        self.enter(parent, sender, now)

    def replay_expiry(self, ids: Iterable[str]) -> None:
        """Apply expiries from the log, which names children before their parents."""
        for id in ids:
            node = self._nodes.get(id)
            if node is not None and not node.children:
                self._remove(node)

    # --- private: deciding ----------------------------------------------------------------------

    def _state(self, id: str) -> tuple[str | None, str | None, str | None] | None:
        """Return type, parent and creator of a context that is live or dormant."""
        node = self._nodes.get(id)
        if node is not None:
            return node.type, None if node.parent is None else node.parent.id, node.creator
        state = self._dormant.get(id)
        return None if state is None else (state.type, state.parent, state.creator)

    def _chain(self, id: str | None) -> tuple[str, ...]:
        """Return an id and the ids above it, live or dormant."""
        found: dict[str, None] = {}
        while id is not None and id not in found:
            node = self._nodes.get(id)
            if node is not None:
                return (*found, id, *node.lineage.ancestors)
            found[id] = None
            state = self._dormant.get(id)
            id = None if state is None else state.parent
        return tuple(found)

    def _is_below(self, id: str, above: str) -> bool:
        return id == above or above in self._chain(id)

    def _place(
        self, context: Context, node: LiveContext | None, parent: str | None, sender: str
    ) -> Placement | str:
        limits = self.limits
        chain = () if parent is None else self._chain(parent)
        opened = [id for id in reversed(chain) if id not in self._nodes]
        if node is None:
            opened.append(context.id)
        attach = parent is not None and (node is None or node.parent is None)
        depth_above = len(chain) if attach else 0
        if depth_above + _height(node) > limits.max_context_depth:
            return DEPTH_EXCEEDED
        if opened and (
            len(self._nodes) + len(opened) > limits.max_contexts_per_pod
            or self._counts.get(sender, 0) + len(opened) > limits.max_contexts_per_participant
        ):
            return LIMIT
        lineage = self.lineage(context, sender)
        return Placement(context, node, tuple(opened), attach, lineage)

    # --- private: applying ----------------------------------------------------------------------

    def _apply(self, place: Placement, sender: str, now: float) -> LiveContext:
        for id in place.opened:
            self._open(id, sender, now)
        node = self._nodes[place.context.id]
        if place.node is None:
            node.bucket.take(now)
        if node.creator is None:
            node.creator = sender
        if node.creator == sender:
            node.type = node.type or place.context.type
            if place.attach and node.parent is None:
                self._attach(node, self._nodes[place.lineage.ancestors[0]])
        _settle(node)
        return node

    def _open(self, id: str, sender: str, now: float) -> LiveContext:
        """Create a context, or revive it if it is dormant. Its parent is live already."""
        node = self._create(id, sender, now)
        state = self._dormant.pop(id, None)
        if state is not None:
            node.type, node.creator = state.type, state.creator
            node.messages, node.started = state.messages, state.started
            parent = None if state.parent is None else self._nodes.get(state.parent)
            if parent is not None:
                self._attach(node, parent)
            _settle(node)
        return node

    def _create(self, id: str, holder: str, now: float) -> LiveContext:
        node = LiveContext(id, holder, now, self._rate)
        self._nodes[id] = node
        self._counts[holder] = self._counts.get(holder, 0) + 1
        self._queue(node, now)
        return node

    def _attach(self, node: LiveContext, parent: LiveContext) -> None:
        node.parent = parent
        parent.children.add(node)
        _raise_heights(parent, _height(node))

    def _touch(self, node: LiveContext | None, sender: str, now: float) -> None:
        """Prolong the life of a context and of those above it."""
        may_hold = self._counts.get(sender, 0) < self.limits.max_contexts_per_participant
        while node is not None:
            if node.holder == sender:
                node.holder_last = node.last = now
            elif may_hold:
                node.last = now
                node.heir = sender
            node = node.parent

    def _review(self, node: LiveContext, now: float) -> None:
        """Let the heir hold a context in which the holder is idle, if it may hold one more."""
        idle = self.limits.context_idle_seconds
        if node.holder_last + idle > now or node.heir is None:
            return
        if self._counts.get(node.heir, 0) < self.limits.max_contexts_per_participant:
            self._release(node.holder)
            self._counts[node.heir] = self._counts.get(node.heir, 0) + 1
            node.holder, node.heir, node.holder_last = node.heir, None, node.last
        else:
            node.last = node.holder_last

    def _queue(self, node: LiveContext, now: float) -> None:
        """Have a context reviewed when its holder has been idle, or it has."""
        idle = self.limits.context_idle_seconds
        deadline = node.holder_last + idle
        if deadline <= now:
            deadline = node.last + idle if node.last + idle > now else now + idle
        heapq.heappush(self._deadlines, (deadline, next(self._tie_break), node))

    def _release(self, holder: str) -> None:
        left = self._counts[holder] - 1
        if left:
            self._counts[holder] = left
        else:
            del self._counts[holder]

    def _remove(self, node: LiveContext) -> LiveContext | None:
        """Make a leaf dormant and return its parent, which may now be a leaf."""
        del self._nodes[node.id]
        self._release(node.holder)
        parent = node.parent
        if self.limits.max_dormant_contexts:
            self._dormant[node.id] = _dormant_state(node)
            if len(self._dormant) > self.limits.max_dormant_contexts:
                del self._dormant[next(iter(self._dormant))]
        if parent is not None:
            parent.children.discard(node)
            _lower_heights(parent)
        return parent


def _live_state(node: LiveContext) -> LiveState:
    return LiveState(
        node.id,
        node.type,
        None if node.parent is None else node.parent.id,
        node.creator,
        node.messages,
        tuple(sorted(node.participants)),
        node.started,
        node.last,
        node.holder,
        node.holder_last,
        node.heir,
    )


def _dormant_state(node: LiveContext) -> DormantState:
    parent = None if node.parent is None else node.parent.id
    return DormantState(node.id, node.type, parent, node.creator, node.messages, node.started)


def _height(node: LiveContext | None) -> int:
    """Return the number of levels from a context down to its deepest descendant.

    It is kept, because a refused sender may ask again and again: walking through all descendants
    each time would cost the gateway a thousand times what it costs the sender (G-47). Where it has
    to be counted again, so it has in every context above.
    """
    if node is None:
        return 1
    if not node.height:
        node.height = 1 + max((_height(child) for child in node.children), default=0)
    return node.height


def _raise_heights(node: LiveContext | None, height_below: int) -> None:
    """Update the heights after something of this height was put below a context."""
    while node is not None and 0 < node.height <= height_below:
        height_below += 1
        node.height = height_below
        node = node.parent


def _lower_heights(node: LiveContext | None) -> None:
    """Mark the heights as unknown after something below a context was removed."""
    while node is not None and node.height:
        node.height = 0
        node = node.parent


def _settle(node: LiveContext) -> None:
    """Update depth and lineage of a context and of all below it, after it was moved."""
    parent = node.parent
    ancestors: tuple[str, ...] = ()
    if parent is not None:
        node.depth = parent.depth + 1
        ancestors = (parent.id, *parent.lineage.ancestors)
    node.lineage = Lineage(node.id, node.type, ancestors)
    for child in node.children:
        _settle(child)
