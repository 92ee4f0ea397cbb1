"""The contexts of one pod: who may open one, where it stands, whom it counts against, its expiry.

The first envelope that names a context id creates the context, and its sender is the creator. Only
the creator fixes the type and the parent, each once; what others name is ignored. A parent in which
nothing was sent yet is a placeholder of depth 1 without a creator. When a context is given a
parent, everything below it moves, so its deepest descendant is checked again.

A live context counts against its holder. That is the participant that opened it, and the creator
as soon as it sends; a holder that has sent nothing there for `context_idle_seconds` is followed by
the last sender with room under its cap. A context without a holder expires with its last child. So
participants are charged for their own envelopes only. What a participant holds of others it loses
when it needs the room, so that answering never keeps it from opening contexts of its own; and what
it revives of others without room, it does not hold.

An expired context is dormant: using its id again revives it with its type, parent and creator. The
number of dormant contexts and their size are bounded; the oldest are forgotten first.

Everything here follows from the accepted envelopes and their times alone: what the clock does to
holders happens in the order in which it is due, before the next envelope. So the tree can be
rebuilt from the log.
"""

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

from mcpp.payloads import ContextInfo
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import Context
from mcpp_gateway.core.contexts.live_context import (
    LiveContext,
    announced_bytes,
    attach,
    dormant_bytes,
    dormant_state,
    height_of,
    live_state,
    lower_heights,
    settle,
)
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.rates import Rate
from mcpp_gateway.core.records import DormantState, LiveState

CYCLE = "context_cycle"
PARENT_CHANGED = "context_parent_changed"
DEPTH_EXCEEDED = "context_depth_exceeded"
LIMIT = "context_limit"

# G-47: what a context keeps of those who sent in it, and a dormant context on average.
_MAX_PARTICIPANTS: Final = 64
_MAX_HEIRS: Final = 8
_DORMANT_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Placement:
    """The changes that accepting an envelope makes to the tree, already found to be allowed."""

    id: str
    type: str | None  # of the context, afterwards
    node: LiveContext | None  # None: the last of `opened`
    opened: tuple[str, ...]  # ids that become live, parents first
    revived: tuple[DormantState, ...]  # those of them that were dormant, in the same order
    parent: str | None  # to be attached to; None: it stays where it is


@dataclass(slots=True)
class LiveContexts:
    """The contexts of a pod. Owns them; never exceeds its limits; is always a tree."""

    limits: PodLimits
    _nodes: dict[str, LiveContext] = field(default_factory=dict)
    _dormant: dict[str, DormantState] = field(default_factory=dict)
    _forgotten: int = 0  # since `_dormant` was copied
    _dormant_bytes: int = 0
    _counts: dict[str, int] = field(default_factory=dict)
    # What participants hold of others' contexts.
    _adopted: dict[str, set[LiveContext]] = field(default_factory=dict)
    _deadlines: list[tuple[float, str, int, LiveContext]] = field(default_factory=list)
    _next_deadline: float = inf
    _unheld: dict[LiveContext, None] = field(default_factory=dict)  # since the last expiry
    _tie_break: Iterator[int] = field(default_factory=count)
    # Contexts that some participants may hold, where that differs from the others.
    caps: dict[str, int] = field(default_factory=dict)
    _rate: Rate = field(init=False)
    _cap: int = field(init=False)  # contexts that one participant may hold

    def __post_init__(self) -> None:
        self.reconfigure(self.limits)

    def reconfigure(self, limits: PodLimits) -> None:
        """Apply new limits. Contexts that are live stay."""
        self.limits = limits
        self._rate = Rate.per_second(limits.context_messages_per_second, limits.context_burst)
        self._cap = limits.max_contexts_per_participant
        self._deadlines.clear()
        self._next_deadline = inf
        for node in self._nodes.values():
            node.deadline = None
            if node.holder is not None:
                self._queue(node)
        self._forget_oldest()

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[LiveContext]:
        """Yield the live contexts, the latest opened first."""
        return reversed(self._nodes.values())

    # --- deciding -------------------------------------------------------------------------------

    def find(self, context: Context, sender: str) -> LiveContext | None:
        """Return the live context of an envelope that changes nothing in the tree.

        This is the common case. Otherwise ask `lineage` and `check`.
        """
        node = self._nodes.get(context.id)
        if node is None:
            return None
        if node.creator != sender:
            return None if node.creator is None else node
        if node.type is None and context.type is not None:
            return None
        named = context.parent
        if named is None or ((parent := node.parent) is not None and parent.id == named):
            return node
        return None

    def begun(self, id: str) -> LiveContext | None:
        """Return a live context in which something was sent."""
        node = self._nodes.get(id)
        return None if node is None or node.creator is None else node

    def lineage(self, context: Context, sender: str) -> Lineage:
        """Return where an envelope's context stands, or would stand."""
        type, parent, creator = self._facts(context.id)
        if creator is None or creator == sender:
            type = context.type if type is None else type
            parent = context.parent if parent is None else parent
        if parent == context.id:
            parent = None
        return Lineage(context.id, type, () if parent is None else self._chain(parent))

    def revived_lineage(self, state: DormantState) -> Lineage:
        """Return where a context stood that is live again, before its envelope changed it."""
        ancestors = () if state.parent is None else self._nodes[state.id].lineage.ancestors
        return Lineage(state.id, state.type, ancestors)

    def check(self, context: Context, sender: str, now: float) -> Placement | str:
        """Return the placement that an envelope needs which changes the tree, or a refusal code."""
        self.advance(now)
        type, parent, creator = self._facts(context.id)
        if creator is None or creator == sender:
            named = context.parent
            if named is not None and context.id in self._chain(named):
                return CYCLE
            if named is not None and parent is not None and named != parent:
                return PARENT_CHANGED
            type = context.type if type is None else type
            parent = named if parent is None else parent
        return self._place(context.id, type, parent, sender)

    # --- applying -------------------------------------------------------------------------------

    def open(self, place: Placement, sender: str, now: float) -> Lineage:
        """Make the changes that an accepted envelope needs, and count it; return where it is."""
        self.advance(now)
        node = self._apply(place, sender, now)
        self.enter(node, sender, now)
        return node.lineage

    def enter(self, node: LiveContext, sender: str, now: float) -> None:
        """Count an accepted envelope in its context."""
        if self._next_deadline <= now:
            self.advance(now)
        node.messages += 1
        if node.parent is None and node.holder == sender:
            # `_touch` in the common case, without a call: 0.1 µs.
            node.last = node.holder_last = now
        else:
            self._touch(node, sender, now)
        if sender not in node.participants and len(node.participants) < _MAX_PARTICIPANTS:
            # Not changed in place: a snapshot holds it, too.
            node.participants = tuple(sorted((*node.participants, sender)))

    def advance(self, now: float) -> None:
        """Let the contexts of holders that have become idle pass to others, in order of time."""
        deadlines, idle = self._deadlines, self.limits.context_idle_seconds
        while self._next_deadline <= now:
            deadline, _, _, node = heapq.heappop(deadlines)
            self._next_deadline = deadlines[0][0] if deadlines else inf
            if node.deadline != deadline:
                continue  # it has expired, or another deadline
            node.deadline = None
            if node.holder is None:
                continue
            due = node.holder_last + idle
            if due > deadline:
                self._queue(node)
            else:
                self._pass_on(node, due)

    def expire(self, now: float, max_bytes: float = math.inf) -> list[LiveContext]:
        """Make idle contexts dormant and return them, children before their parents.

        As many as take about `max_bytes` to announce; `has_expiries` says whether there are more.
        """
        self.advance(now)
        expired: list[LiveContext] = []
        unheld = iter(self._unheld)
        for each in unheld:
            node: LiveContext | None = each
            while node is not None and self._has_ended(node):
                expired.append(node)
                max_bytes -= announced_bytes(node)
                node = self._remove(node)
            if max_bytes <= 0:
                break
        self._unheld = dict.fromkeys(unheld)
        return expired

    @property
    def has_expiries(self) -> bool:
        """Whether contexts are left that the last `expire` had no room for."""
        return bool(self._unheld)

    # --- restoring ------------------------------------------------------------------------------

    def snapshot(self) -> tuple[tuple[LiveState, ...], tuple[DormantState, ...]]:
        """Return the live contexts in the order of their opening, and the dormant, oldest first."""
        return tuple([live_state(node) for node in self._nodes.values()]), tuple(
            self._dormant.values()
        )

    def restore(self, live: Iterable[LiveState], dormant: Iterable[DormantState]) -> None:
        """Fill an empty tree from a snapshot."""
        for each in dormant:
            self._keep_dormant(each)
        self._forget_oldest()
        parents: list[tuple[LiveContext, str]] = []
        for state in live:
            node = self._nodes[state.id] = LiveContext(state.id, state.started, self._rate)
            node.lineage = Lineage(state.id, state.type)
            node.type, node.creator = state.type, state.creator
            node.messages, node.participants = state.messages, state.participants
            node.last, node.holder_last = state.last, state.holder_last
            node.heirs = dict(state.heirs)
            if state.holder is None:
                self._unheld[node] = None
            else:
                self._hold(node, state.holder, state.holder_last)
            if state.parent is not None:
                parents.append((node, state.parent))
        for node, parent in parents:
            node.parent = self._nodes[parent]
            node.parent.children.add(node)
        for node in self._nodes.values():
            node.height = 0
            if node.parent is None:
                settle(node)

    def replay(self, lineage: Lineage, sender: str, now: float) -> None:
        """Apply an accepted envelope from the log, without deciding on it again."""
        known = self._nodes.get(lineage.id)
        if (
            known is not None
            and known.creator is not None
            and known.type == lineage.type
            and known.lineage.ancestors == lineage.ancestors
        ):
            self.enter(known, sender, now)  # the common case
            return
        self.advance(now)
        path = (*reversed(lineage.ancestors), lineage.id)
        self._open_all([id for id in path if id not in self._nodes], lineage.id, sender, now)
        node: LiveContext | None = None
        for id in path:
            parent, node = node, self._nodes[id]
            if parent is not None and node.parent is None:
                attach(node, parent)
        assert node is not None
        self._fix(node, lineage.type, sender)
        self.enter(node, sender, now)

    def replay_expiry(self, ids: Iterable[str], now: float) -> None:
        """Apply expiries from the log, which names children before their parents."""
        self.advance(now)
        for id in ids:
            node = self._nodes.get(id)
            if node is not None and not node.children:
                self._remove(node)

    def replay_revival(self, contexts: Iterable[ContextInfo], now: float) -> None:
        """Make contexts known that the next envelope in the log revives.

        They are dormant already, unless fewer dormant contexts are kept than when it was written.
        """
        for info in contexts:
            if info.id not in self._dormant and info.id not in self._nodes:
                self._keep_dormant(
                    DormantState(
                        info.id, info.type, info.parent, info.creator, info.messages or 0, now
                    )
                )

    # --- private: deciding ----------------------------------------------------------------------

    def _facts(self, id: str) -> tuple[str | None, str | None, str | None]:
        """Return type, parent and creator of a context that is live or dormant."""
        node = self._nodes.get(id)
        if node is not None:
            return node.type, None if node.parent is None else node.parent.id, node.creator
        state = self._dormant.get(id)
        return (None, None, None) if state is None else (state.type, state.parent, state.creator)

    def _chain(self, id: str | None) -> tuple[str, ...]:
        """Return an id and the ids above it, live or dormant.

        Dormant contexts may form longer chains than live ones may. The rest of such a chain is left
        out (G-47): it is too deep to become live.
        """
        found: list[str] = []
        while id is not None and len(found) <= self.limits.max_context_depth:
            found.append(id)
            node = self._nodes.get(id)
            if node is not None:
                return (*found, *node.lineage.ancestors)
            state = self._dormant.get(id)
            id = None if state is None else state.parent
        return tuple(found)

    def _place(self, id: str, type: str | None, parent: str | None, sender: str) -> Placement | str:
        node = self._nodes.get(id)
        if node is not None and node.parent is not None:
            parent = None
        chain = () if parent is None else self._chain(parent)
        opened = [each for each in reversed(chain) if each not in self._nodes]
        if node is None:
            opened.append(id)
        is_placed = node is None or parent is not None
        if is_placed and len(chain) + height_of(node) > self.limits.max_context_depth:
            return DEPTH_EXCEEDED
        revived = tuple(self._dormant[each] for each in opened if each in self._dormant)
        if opened and not self._has_room(id, opened, sender):
            return LIMIT
        return Placement(id, type, node, tuple(opened), revived, parent)

    def _has_room(self, id: str, opened: list[str], sender: str) -> bool:
        if len(self._nodes) + len(opened) > self.limits.max_contexts_per_pod:
            return False
        needed = sum(self._is_charged(each, sender, id) for each in opened)
        held = self._counts.get(sender, 0) - len(self._adopted.get(sender, ()))
        return not needed or held + needed <= self.caps.get(sender, self._cap)

    def _is_charged(self, id: str, sender: str, context: str) -> bool:
        """Return whether a sender has to hold what it opens with an envelope in a context.

        All but the dormant ones of others: an answer there must not depend on its sender's cap.
        """
        state = self._dormant.get(id)
        if state is None or state.creator == sender:
            return True
        return state.creator is None and id == context  # of which it becomes the creator

    # --- private: applying ----------------------------------------------------------------------

    def _apply(self, place: Placement, sender: str, now: float) -> LiveContext:
        self._open_all(place.opened, place.id, sender, now)
        node = self._nodes[place.id]
        if place.node is None:
            node.bucket.take(now)
        if place.parent is not None and node.parent is None:
            attach(node, self._nodes[place.parent])
        self._fix(node, place.type, sender)
        return node

    def _fix(self, node: LiveContext, type: str | None, sender: str) -> None:
        """Set the creator and the type of a context, if they are not set."""
        if node.creator is None:
            node.creator = sender
            if node.holder is not None and node.holder != sender:
                self._adopted.setdefault(node.holder, set()).add(node)
        if node.type is None and type is not None:
            node.type = type
            node.lineage = Lineage(node.id, type, node.lineage.ancestors)

    def _open_all(self, ids: Sequence[str], context: str, sender: str, now: float) -> None:
        """Open what an envelope in a context needs, parents first: create it, or revive it."""
        charged = [id for id in ids if self._is_charged(id, sender, context)]
        self._make_room(sender, len(charged), now)
        # For dormant contexts of others. Without room they have no holder, and expire soon: the
        # sender's envelope does not prolong their life.
        room = self._cap - self._counts.get(sender, 0) - len(charged)
        for id in ids:
            node = self._open(id, now)
            if id not in charged and node.creator is not None:
                room -= 1
            if id in charged or (room >= 0 and node.creator is not None):
                self._hold(node, sender, now)
            else:
                self._unheld[node] = None

    def _open(self, id: str, now: float) -> LiveContext:
        node = self._nodes[id] = LiveContext(id, now, self._rate)
        state = self._dormant.pop(id, None)
        if state is not None:
            self._dormant_bytes -= dormant_bytes(state)
            node.type, node.creator = state.type, state.creator
            node.messages, node.started = state.messages, state.started
            node.lineage = Lineage(id, state.type)
            parent = None if state.parent is None else self._nodes.get(state.parent)
            if parent is not None:
                attach(node, parent)
        return node

    def _has_ended(self, node: LiveContext) -> bool:
        return node.holder is None and not node.children and self._nodes.get(node.id) is node

    def _remove(self, node: LiveContext) -> LiveContext | None:
        """Make a leaf dormant and return its parent, which may now be a leaf."""
        del self._nodes[node.id]
        node.deadline = None
        self._release(node)
        parent = node.parent
        self._keep_dormant(dormant_state(node))
        self._forget_oldest()
        if parent is not None:
            parent.children.discard(node)
            lower_heights(parent)
        return parent

    def _keep_dormant(self, state: DormantState) -> None:
        self._dormant[state.id] = state
        self._dormant_bytes += dormant_bytes(state)

    def _forget_oldest(self) -> None:
        most = self.limits.max_dormant_contexts
        while len(self._dormant) > most or self._dormant_bytes > most * _DORMANT_BYTES:
            oldest = self._dormant.pop(next(iter(self._dormant)))
            self._forgotten += 1
            self._dormant_bytes -= dormant_bytes(oldest)
        if self._forgotten > 1000 + len(self._dormant) // 8:
            # The first of a dict is found more slowly with each one that was removed before it.
            self._dormant = dict(self._dormant)
            self._forgotten = 0

    # --- private: holders -----------------------------------------------------------------------

    def _touch(self, node: LiveContext | None, sender: str, now: float) -> None:
        """Prolong the life of a context and of those above it, unless the sender is at its cap."""
        may_hold: bool | None = None  # asked for only where it matters
        below: LiveContext | None = None
        while node is not None:
            node.last = now
            holder = node.holder
            if holder == sender:
                node.holder_last = now
            elif node.creator is not None or (below is not None and below.creator == sender):
                # A placeholder counts only against those that named it as a parent.
                if may_hold is None:
                    may_hold = self._counts.get(sender, 0) < self._cap
                if may_hold and (holder is None or node.creator == sender):
                    node.heirs.clear()
                    self._hold(node, sender, now)
                    may_hold = None
                elif may_hold:
                    heirs = node.heirs
                    if sender in heirs:
                        del heirs[sender]  # to become the last
                    heirs[sender] = now
                    if len(heirs) > _MAX_HEIRS:
                        del heirs[next(iter(heirs))]
            below, node = node, node.parent

    def _hold(self, node: LiveContext, holder: str, last: float) -> None:
        """Count a context against a participant, whose last envelope in it is of this time."""
        self._release(node)
        node.holder, node.holder_last = holder, last
        self._counts[holder] = self._counts.get(holder, 0) + 1
        if node.creator is not None and node.creator != holder:
            self._adopted.setdefault(holder, set()).add(node)
        self._queue(node)

    def _release(self, node: LiveContext) -> None:
        holder = node.holder
        if holder is None:
            return
        node.holder = None
        self._counts[holder] -= 1
        if not self._counts[holder]:
            del self._counts[holder]
        adopted = self._adopted.get(holder)
        if adopted is not None:
            adopted.discard(node)
            if not adopted:
                del self._adopted[holder]

    def _pass_on(self, node: LiveContext, at: float) -> None:
        """Let the last sender with room hold a context from a time on, if it is not idle then."""
        self._release(node)
        heirs, idle = node.heirs, self.limits.context_idle_seconds
        while heirs:
            id, last = heirs.popitem()
            if last + idle <= at:
                heirs.clear()
            elif self._counts.get(id, 0) < self.caps.get(id, self._cap):
                self._hold(node, id, last)
                return
        self._unheld[node] = None

    def _make_room(self, sender: str, opened: int, now: float) -> None:
        """Take from a participant what it holds of others, as far as it needs the room."""
        adopted = self._adopted.get(sender)
        room = self.caps.get(sender, self._cap) - opened
        while adopted and self._counts[sender] > room:
            self._pass_on(min(adopted, key=lambda node: (node.holder_last, node.id)), now)

    def _queue(self, node: LiveContext) -> None:
        """Have the holder of a context looked at when it may have become idle."""
        due = node.holder_last + self.limits.context_idle_seconds
        if node.deadline is None or due < node.deadline:
            node.deadline = due
            heapq.heappush(self._deadlines, (due, node.id, next(self._tie_break), node))
            self._next_deadline = self._deadlines[0][0]
