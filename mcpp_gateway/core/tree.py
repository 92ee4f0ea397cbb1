"""The tree of live contexts of one pod: creation, limits, lineage and expiry.

The first envelope that names a context id creates it. Its type and its parent are each fixed by the
first envelope that names one (C-02). The rule is here as well as in `mcpp.protocol.contexts`,
because the gateway has to refuse what breaks it, and to know the outcome before anything changes.

A parent that no envelope has used yet is a placeholder of depth 1. When it gets a parent of its
own, everything below it moves, so its deepest descendant is checked against the limit again.

A leaf expires when it is idle; a parent when its last child has expired and it is idle itself. So
only leaves are in the queue of deadlines, once each, and an accepted envelope costs no more than
storing its time.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import Context
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.rates import Bucket, Rate

CYCLE = "context_cycle"
PARENT_CHANGED = "context_parent_changed"
DEPTH_EXCEEDED = "context_depth_exceeded"
LIMIT = "context_limit"


class LiveContext:
    """One live context. Only the tree changes it."""

    __slots__ = (
        "bucket",
        "charged_to",
        "children",
        "depth",
        "height",
        "id",
        "last",
        "lineage",
        "messages",
        "parent",
        "participants",
        "queued",
        "started",
        "type",
    )

    def __init__(self, id: str, charged_to: str, now: float, rate: Rate) -> None:
        self.id = id
        self.type: str | None = None
        self.parent: LiveContext | None = None
        self.children: set[LiveContext] = set()
        self.depth = 1
        self.height = 1  # levels down to the deepest descendant; 0: unknown
        self.lineage = Lineage(id)
        self.charged_to = charged_to
        self.participants: set[str] = set()
        self.messages = 0
        self.started = now
        self.last = now
        self.queued = False
        self.bucket = Bucket(rate)


@dataclass(frozen=True, slots=True)
class Placement:
    """The change to the tree that accepting an envelope requires; it is known to be allowed."""

    node: LiveContext | None  # None: to be created
    context: Context
    parent: LiveContext | str | None  # a str: a placeholder to be created; None: unchanged
    lineage: Lineage


@dataclass(slots=True)
class LiveContexts:
    """The live contexts of a pod. Owns the nodes; always a tree within its limits."""

    limits: PodLimits
    _nodes: dict[str, LiveContext] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _deadlines: list[tuple[float, int, LiveContext]] = field(default_factory=list)
    _tie_break: Iterator[int] = field(default_factory=count)
    _rate: Rate = field(init=False)

    def __post_init__(self) -> None:
        self.reconfigure(self.limits)

    def reconfigure(self, limits: PodLimits) -> None:
        """Apply new limits. Live contexts stay."""
        self.limits = limits
        self._rate = Rate.per_second(limits.context_messages_per_second, limits.context_burst)

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[LiveContext]:
        """Yield the live contexts, the most recently created first."""
        return reversed(self._nodes.values())

    def find(self, context: Context) -> LiveContext | None:
        """Return an envelope's context if it exists and the envelope fixes nothing new.

        This is the common case. Otherwise use `lineage` and `check`.
        """
        node = self._nodes.get(context.id)
        if node is not None and (context.type is None or node.type is not None):
            parent = node.parent
            if context.parent is None or (parent is not None and parent.id == context.parent):
                return node
        return None

    def lineage(self, context: Context) -> Lineage:
        """Return the lineage that an envelope's context has, or would have. Changes nothing."""
        return self._lineage_after(self._nodes.get(context.id), context)

    def check(self, context: Context, sender: str) -> LiveContext | Placement | str:
        """Return an envelope's context, the change that it requires, or the code of a refusal.

        Changes nothing.
        """
        node = self._nodes.get(context.id)
        if node is not None:
            parent = node.parent
            if context.parent is not None and parent is not None and parent.id != context.parent:
                above = self._nodes.get(context.parent)
                return CYCLE if _is_above(node, above) else PARENT_CHANGED
        return self.find(context) or self._check_placement(node, context, sender)

    def enter(self, place: LiveContext | Placement, sender: str, now: float) -> Lineage:
        """Count an accepted envelope in its context, after making the change that it requires."""
        node = place if isinstance(place, LiveContext) else self._apply(place, sender, now)
        node.last = now
        node.messages += 1
        node.participants.add(sender)
        return node.lineage

    def expire(self, now: float) -> list[LiveContext]:
        """Remove the contexts that are idle and return them, children before their parents."""
        expired: list[LiveContext] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            node: LiveContext | None = heapq.heappop(self._deadlines)[2]
            assert node is not None
            node.queued = False
            if self._nodes.get(node.id) is not node:
                continue  # removed together with its last child
            while node is not None and not node.children:
                if node.last + self.limits.context_idle_seconds > now:
                    self._queue(node)
                    break
                expired.append(node)
                node = self._remove(node)
        return expired

    # --- private ------------------------------------------------------------------------------

    def _check_placement(
        self, node: LiveContext | None, context: Context, sender: str
    ) -> Placement | str:
        parent: LiveContext | str | None = None
        if context.parent is not None and (node is None or node.parent is None):
            above = self._nodes.get(context.parent)
            if context.parent == context.id or (node is not None and _is_above(node, above)):
                return CYCLE
            parent = above or context.parent
            depth_above = 1 if above is None else above.depth
            if depth_above + _height(node) > self.limits.max_context_depth:
                return DEPTH_EXCEEDED
        elif node is None and self.limits.max_context_depth < 1:
            return DEPTH_EXCEEDED
        new = (node is None) + isinstance(parent, str)
        if new and (
            len(self._nodes) + new > self.limits.max_contexts_per_pod
            or self._counts.get(sender, 0) + new > self.limits.max_contexts_per_participant
        ):
            return LIMIT
        return Placement(node, context, parent, self._lineage_after(node, context))

    def _lineage_after(self, node: LiveContext | None, context: Context) -> Lineage:
        named = (node and node.type) or context.type
        parent = node.parent if node is not None else None
        if parent is None and context.parent is not None and context.parent != context.id:
            above = self._nodes.get(context.parent)
            ancestors = () if above is None else above.lineage.ancestors
            return Lineage(context.id, named, (context.parent, *ancestors))
        return Lineage(context.id, named, () if node is None else node.lineage.ancestors)

    def _apply(self, placement: Placement, sender: str, now: float) -> LiveContext:
        node = placement.node
        if node is None:
            node = self._create(placement.context.id, sender, now)
            node.bucket.take(now)
        if node.type is None:
            node.type = placement.context.type
        if placement.parent is not None:
            parent = placement.parent
            if isinstance(parent, str):
                parent = self._create(parent, sender, now)
            node.parent = parent
            parent.children.add(node)
            _increase_heights(parent, _height(node))
        _update_lineage(node)
        return node

    def _create(self, id: str, sender: str, now: float) -> LiveContext:
        node = LiveContext(id, sender, now, self._rate)
        self._nodes[id] = node
        self._counts[sender] = self._counts.get(sender, 0) + 1
        self._queue(node)
        return node

    def _queue(self, node: LiveContext) -> None:
        if not node.queued:
            node.queued = True
            deadline = node.last + self.limits.context_idle_seconds
            heapq.heappush(self._deadlines, (deadline, next(self._tie_break), node))

    def _remove(self, node: LiveContext) -> LiveContext | None:
        """Remove a leaf and return its parent, which may now be a leaf."""
        del self._nodes[node.id]
        left = self._counts[node.charged_to] - 1
        if left:
            self._counts[node.charged_to] = left
        else:
            del self._counts[node.charged_to]
        parent = node.parent
        if parent is not None:
            parent.children.discard(node)
            _reset_heights(parent)
            parent.last = max(parent.last, node.last)
        return parent


def _is_above(node: LiveContext, at: LiveContext | None) -> bool:
    while at is not None:
        if at is node:
            return True
        at = at.parent
    return False


def _height(node: LiveContext | None) -> int:
    """Return the number of levels from a node down to its deepest descendant.

    It is cached, because a sender that is refused may repeat its envelope: a walk through all
    descendants each time would cost the gateway a thousand times what it costs the sender (G-47).
    Where it is unknown, it is unknown in every node above too.
    """
    if node is None:
        return 1
    if not node.height:
        node.height = 1 + max((_height(child) for child in node.children), default=0)
    return node.height


def _increase_heights(node: LiveContext | None, height_below: int) -> None:
    """Update the heights of a node and those above it after a subtree was added below it."""
    while node is not None and 0 < node.height <= height_below:
        height_below += 1
        node.height = height_below
        node = node.parent


def _reset_heights(node: LiveContext | None) -> None:
    """Mark the heights of a node and those above it as unknown after a child was removed."""
    while node is not None and node.height:
        node.height = 0
        node = node.parent


def _update_lineage(node: LiveContext) -> None:
    """Recompute depth and lineage of a node and of all its descendants after it was moved."""
    parent = node.parent
    ancestors: tuple[str, ...] = ()
    if parent is not None:
        node.depth = parent.depth + 1
        ancestors = (parent.id, *parent.lineage.ancestors)
    node.lineage = Lineage(node.id, node.type, ancestors)
    for child in node.children:
        _update_lineage(child)
