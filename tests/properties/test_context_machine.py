"""A state machine test of the context tree alone against a naive model, and of its rebuilding.

The model keeps plain facts and searches all of them each time. The accepted envelopes, expiries and
revivals are kept as a log would keep them: a tree that is restored from any snapshot and given the
rest of the log must equal the live one.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mcpp import kinds, new_envelope
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import ContextTracker, Lineage, read_context_change
from mcpp.protocol.envelope import GATEWAY, Context, Envelope
from mcpp_gateway.core import system_envelopes
from mcpp_gateway.core.contexts.tree import (
    CYCLE,
    DEPTH_EXCEEDED,
    LIMIT,
    PARENT_CHANGED,
    LiveContexts,
)
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.records import DormantState, State, decode_state, encode_state

IDLE = 4.0
CAP, POD_CAP, DEPTH = 3, 7, 3


@dataclass
class ModelContext:
    """A context, live or dormant, as plain facts."""

    id: str
    type: str | None = None
    parent: str | None = None
    creator: str | None = None
    messages: int = 0
    senders: set[str] = field(default_factory=set)
    started: float = 0.0
    last: float = 0.0
    holder: str | None = None
    holder_last: float = 0.0
    claims: list[tuple[str, float]] = field(default_factory=list)  # of others, latest last


class Model:
    """The rules C-01 to C-12, without regard to cost."""

    def __init__(self, max_dormant: int) -> None:
        self.live: dict[str, ModelContext] = {}
        self.dormant: dict[str, ModelContext] = {}
        self.max_dormant = max_dormant

    def held(self, who: str) -> list[ModelContext]:
        return [each for each in self.live.values() if each.holder == who]

    def adopted(self, who: str) -> list[ModelContext]:
        return [each for each in self.held(who) if each.creator not in (None, who)]

    def has_room(self, who: str) -> bool:
        return len(self.held(who)) < CAP

    def above(self, id: str | None) -> list[str]:
        """Return an id and all ids above it, live or dormant."""
        chain: list[str] = []
        while id is not None:
            assert id not in chain, "a cycle"
            chain.append(id)
            known = self.live.get(id) or self.dormant.get(id)
            id = None if known is None else known.parent
        return chain

    def height(self, id: str) -> int:
        below = [each.id for each in self.live.values() if each.parent == id]
        return 1 + max(map(self.height, below), default=0)

    def refusals(self, context: Context, sender: str) -> set[str]:
        """Return the codes with which an envelope may be refused; empty: it is accepted."""
        known = self.live.get(context.id) or self.dormant.get(context.id)
        parent = None if known is None else known.parent
        fixes = known is None or known.creator in (None, sender)
        if fixes and context.parent is not None:
            chain = self.above(context.parent)
            # A cycle through more dormant contexts than can be live is also too deep.
            if context.id in chain[: DEPTH + 1]:
                return {CYCLE}
            if parent not in (None, context.parent):
                return {PARENT_CHANGED, CYCLE} if context.id in chain else {PARENT_CHANGED}
            parent = context.parent
        if self.too_deep(context.id, parent):
            return {DEPTH_EXCEEDED}
        opened = self.opened(context.id, parent)
        if opened and len(self.live) + len(opened) > POD_CAP:
            return {LIMIT}
        used = len(self.held(sender)) - len(self.adopted(sender))
        charged = self.charged(context.id, opened, sender)
        return {LIMIT} if charged and used + len(charged) > CAP else set()

    def charged(self, context: str, opened: list[str], sender: str) -> list[str]:
        """Return what an envelope in a context needs room for: all but what others created."""
        new = [id for id in opened if id not in self.dormant]
        own = [id for id in opened if id in self.dormant and self.dormant[id].creator == sender]
        unused = context in self.dormant and self.dormant[context].creator is None
        return [*new, *own, *([context] if unused else [])]

    def too_deep(self, id: str, parent: str | None) -> bool:
        if id in self.live and (parent is None or self.live[id].parent is not None):
            return False
        height = self.height(id) if id in self.live else 1
        return len(self.above(parent)) + height > DEPTH

    def opened(self, id: str, parent: str | None) -> list[str]:
        path = [*reversed(self.above(parent)), id]
        return [each for each in path if each not in self.live]

    def accept(self, context: Context, sender: str, now: float) -> list[str]:
        """Apply an envelope and return the ids of revived contexts."""
        known = self.live.get(context.id) or self.dormant.get(context.id)
        fixes = known is None or known.creator in (None, sender)
        parent = None if known is None else known.parent
        if parent is None and fixes:
            parent = context.parent
        opened = self.opened(context.id, parent)
        revived = [id for id in opened if id in self.dormant]
        charged = self.charged(context.id, opened, sender)
        while self.adopted(sender) and len(self.held(sender)) + len(charged) > CAP:
            given_up = min(self.adopted(sender), key=lambda each: (each.holder_last, each.id))
            self.pass_on(given_up, now)
        for id in opened:
            fresh = ModelContext(id, started=now)
            self.live[id] = self.dormant.pop(id, fresh)
            self.live[id].last = self.live[id].holder_last = now
        others = [id for id in opened if id not in charged]
        for id in [*charged, *others]:  # in this order: its own have the first claim
            used = self.live[id].creator is not None
            if id in charged or (used and self.has_room(sender)):
                self.live[id].holder = sender
        one = self.live[context.id]
        one.creator = one.creator or sender
        one.parent = parent
        if fixes:
            one.type = one.type or context.type
        one.messages += 1
        one.senders.add(sender)
        named_by = sender
        for each in [self.live[id] for id in self.above(context.id)]:
            # A placeholder is held by those that named it only.
            self.touch(each, sender, now, may_hold=each.creator is not None or named_by == sender)
            named_by = each.creator or sender
        return revived

    def touch(self, one: ModelContext, sender: str, now: float, *, may_hold: bool) -> None:
        one.last = now
        if one.holder == sender:
            one.holder_last = now
        elif may_hold and self.has_room(sender):
            if one.holder is None or one.creator == sender:
                one.holder, one.holder_last, one.claims = sender, now, []
            else:
                one.claims = [each for each in one.claims if each[0] != sender]
                one.claims.append((sender, now))

    def pass_on(self, one: ModelContext, at: float) -> None:
        one.holder = None
        while one.claims:
            who, time = one.claims.pop()
            if time + IDLE > at and self.has_room(who):
                one.holder, one.holder_last = who, time
                return

    def advance(self, now: float) -> None:
        while True:
            due = [
                (each.holder_last + IDLE, each.id)
                for each in self.live.values()
                if each.holder is not None and each.holder_last + IDLE <= now
            ]
            if not due:
                return
            at, id = min(due)
            self.pass_on(self.live[id], at)

    def expire(self, order: list[str]) -> None:
        """Expire all that are due, in an order in which children come before their parents."""
        for id in order:
            gone = self.live.pop(id)
            assert gone.holder is None
            assert all(each.parent != id for each in self.live.values())
            gone.senders = set()
            gone.claims = []
            self.dormant[id] = gone
            while len(self.dormant) > self.max_dormant:
                del self.dormant[next(iter(self.dormant))]
        parents = {each.parent for each in self.live.values()}
        assert all(each.holder or each.id in parents for each in self.live.values())


ids = st.sampled_from([f"c{i}" for i in range(6)])
senders = st.sampled_from("xyz")


class ContextMachine(RuleBasedStateMachine):
    """Random envelopes, ticks and snapshots."""

    @initialize(max_dormant=st.sampled_from([0, 2, 100]))
    def start(self, max_dormant: int) -> None:
        self.limits = PodLimits(
            max_context_depth=DEPTH,
            max_contexts_per_participant=CAP,
            max_contexts_per_pod=POD_CAP,
            context_idle_seconds=IDLE,
            context_messages_per_second=0,
            max_dormant_contexts=max_dormant,
        )
        self.tree = LiveContexts(self.limits)
        self.model = Model(max_dormant)
        self.tracker = ContextTracker()
        self.now = 0.0
        self.log: list[tuple[float, Lineage | None, Envelope]] = []
        self.saved: list[tuple[int, bytes]] = []
        self.save()

    @rule(sender=senders, id=ids, type=st.sampled_from([None, "t"]), parent=st.none() | ids)
    def send(self, sender: str, id: str, type: str | None, parent: str | None) -> None:
        context = Context(id=id, type=type, parent=parent)
        self.model.advance(self.now)
        expected = self.model.refusals(context, sender)
        would = self.tree.lineage(context, sender)
        node = self.tree.find(context, sender)
        revived: tuple[DormantState, ...] = ()
        if node is not None:
            self.tree.enter(node, sender, self.now)
            lineage = node.lineage
        else:
            place = self.tree.check(context, sender, self.now)
            if isinstance(place, str):
                assert place in expected
                return
            revived = place.revived
            lineage = self.tree.open(place, sender, self.now)
        assert expected == set()
        assert [each.id for each in revived] == self.model.accept(context, sender, self.now)
        for state in revived:
            self._record(None, kinds.CONTEXT, system_envelopes.revival(state))
        envelope = new_envelope("chat", None, sender=sender, context=context)
        tracked = self._keep(lineage, envelope)
        assert (would.type, would.ancestors) == (lineage.type, lineage.ancestors)
        assert tracked is not None
        assert (tracked.type, tracked.ancestors) == (lineage.type, lineage.ancestors)

    @rule(sender=senders, id=ids)
    def speak(self, sender: str, id: str) -> None:
        self.send(sender, id, None, None)

    @rule(sender=senders, steps=st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=2, max_size=4))
    def answer_everywhere(self, sender: str, steps: list[float]) -> None:
        """Send in all contexts in turn, so that those of others pass to one sender."""
        for step in steps:
            self.now += step
            for id in sorted(self.model.live):
                self.speak(sender, id)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 3.5]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule(seconds=st.sampled_from([0.0, 1.0, 4.5]))
    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.model.advance(self.now)
        expired = self.tree.expire(self.now)
        self.model.expire([node.id for node in expired])
        for node in expired:
            self._record(None, kinds.CONTEXT, system_envelopes.expiry([node]))

    @rule()
    def save(self) -> None:
        live, dormant = self.tree.snapshot()
        state = State("e", 1, 0, len(self.log), self.now, live=live, dormant=dormant)
        self.saved.append((len(self.log), encode_state(state)))

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """Continue with a tree that was rebuilt from any of the snapshots."""
        position, state = data.draw(st.sampled_from(self.saved))
        rebuilt = self._rebuild(position, state)
        for tree in (self.tree, rebuilt):
            tree.advance(self.now)
        assert rebuilt.snapshot() == self.tree.snapshot()
        self.tree = rebuilt
        self.saved = self.saved[-3:]

    # --- invariants -----------------------------------------------------------------------------

    @invariant()
    def the_tree_equals_the_model(self) -> None:
        self.tree.advance(self.now)
        self.model.advance(self.now)
        live, dormant = self.tree.snapshot()
        assert {
            each.id: ModelContext(
                each.id,
                each.type,
                each.parent,
                each.creator,
                each.messages,
                set(each.participants),
                each.started,
                each.last,
                each.holder,
                each.holder_last,
                list(each.heirs),
            )
            for each in live
        } == self.model.live
        assert [
            (each.id, each.type, each.parent, each.creator, each.messages) for each in dormant
        ] == [
            (each.id, each.type, each.parent, each.creator, each.messages)
            for each in self.model.dormant.values()
        ]

    @invariant()
    def counts_stay_within_the_caps(self) -> None:
        held = Counter(node.holder for node in self.tree if node.holder is not None)
        assert getattr(self.tree, "_counts") == held  # noqa: B009
        assert all(count <= CAP for count in held.values())
        assert len(self.tree) <= POD_CAP
        adopted: dict[str, set[Any]] = getattr(self.tree, "_adopted")  # noqa: B009
        assert {id: {node.id for node in nodes} for id, nodes in adopted.items()} == {
            who: {each.id for each in self.model.adopted(who)}
            for who in held
            if self.model.adopted(who)
        }

    @invariant()
    def a_client_that_receives_everything_has_the_same_view(self) -> None:
        assert {
            info.id: (info.type, info.parent, info.creator)
            for info in self.tracker.contexts.values()
        } == {
            node.id: (node.type, node.parent and node.parent.id, node.creator) for node in self.tree
        }

    # --- the log --------------------------------------------------------------------------------

    def _record(self, lineage: Lineage | None, kind: str, payload: Any) -> None:
        text = system_envelopes.system(f"s{len(self.log)}", kind, payload, self.now)
        self._keep(lineage, decode(text))

    def _keep(self, lineage: Lineage | None, envelope: Envelope) -> Lineage | None:
        self.log.append((self.now, lineage, envelope))
        return self.tracker.observe(envelope)

    def _rebuild(self, position: int, data: bytes) -> LiveContexts:
        """Do what a pod does that recovers its log."""
        tree = LiveContexts(self.limits)
        state = decode_state(data)
        tree.restore(state.live, state.dormant)
        for time, lineage, envelope in self.log[position:]:
            if lineage is not None:
                tree.replay(lineage, envelope.sender, time)
                continue
            assert envelope.sender == GATEWAY
            change = read_context_change(envelope)
            assert change is not None
            if change.event == "expired":
                tree.replay_expiry((each.id for each in change.contexts), time)
            else:
                tree.replay_revival(change.contexts, time)
        return tree


TestContexts = pytest.mark.rule(
    "C-02", "C-03", "C-05", "C-06", "C-07", "C-08", "C-10", "C-12", "C-14", "C-16"
)(ContextMachine.TestCase)
TestContexts.settings = settings(max_examples=200, stateful_step_count=50)
