"""A state machine test of the pod against a model of the rules.

One participant watches everything and never leaves: what it receives is the log. From the log, with
the SDK's filters and context tracker, the model computes what every other connection must receive
and in which order. It runs twice: with effects performed at once, where connections may lag behind
in their replay, and with the texts of a tick written in batches.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from mcpp import filters
from mcpp.errors import FilterError
from mcpp.filters import Filter, everything
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import ContextTracker, Lineage, read_context_change
from mcpp.protocol.envelope import GATEWAY, Envelope
from mcpp_gateway.core.contexts.live_context import LiveContext
from mcpp_gateway.core.pod import PodCore
from tests.gateway.cluster.harness import ClusterPodHarness, FollowingPodHarness
from tests.gateway.harness import (
    DelayedJournal,
    HubHarness,
    ManualLoop,
    PodHarness,
    RecordingTransport,
    text,
)

WATCHER, MANY = "watcher", "many"
SENDERS = ("a", "b", MANY)
LIMITS: dict[str, Any] = {
    "max_context_depth": 4,
    "max_contexts_per_participant": 4,
    "max_contexts_per_pod": 5,
    "messages_per_second": 1,
    "burst": 10,
    "context_messages_per_second": 2,
    "context_burst": 6,
    "context_idle_seconds": 5,
    "max_dormant_contexts": 3,
    "history_messages": 25,
}


class PodDriver(Protocol):
    """What the state machine needs of a pod and of the interpreter of its effects."""

    pod: PodCore

    def join(self, id: str, filter: Filter, after: str | None, last: int | None) -> Any: ...
    def send(self, connection: Any, data: bytes) -> None: ...
    def leave(self, connection: Any) -> None: ...
    def tick(self, seconds: float) -> None: ...
    def settle(self, connection: Any) -> None: ...
    def texts(self, connection: Any) -> list[bytes]: ...
    def is_closed(self, connection: Any) -> bool: ...
    def is_live(self, connection: Any) -> bool: ...
    def close(self) -> None: ...


class ImmediateDriver:
    """Effects are performed one by one; a new client is behind and catches up in small steps."""

    harness_type = PodHarness

    def __init__(self) -> None:
        self._harness = self.harness_type(*SENDERS, WATCHER, limits=LIMITS, multiple=[MANY])
        self.pod = self._harness.pod

    def join(self, id: str, filter: Filter, after: str | None, last: int | None) -> Any:
        return self._harness.join(id, filter=filter, after=after, last=last, behind=True)

    def send(self, connection: Any, data: bytes) -> None:
        self._harness.send_text(connection, data)

    def leave(self, connection: Any) -> None:
        self._harness.leave(connection)

    def tick(self, seconds: float) -> None:
        self._harness.tick(seconds)

    def settle(self, connection: Any) -> None:
        if connection.session.audience is None and connection.closed is None:
            self._harness.catch_up(connection, 700)

    def texts(self, connection: Any) -> list[bytes]:
        found: list[bytes] = connection.texts
        return found

    def is_closed(self, connection: Any) -> bool:
        return connection.closed is not None

    def is_live(self, connection: Any) -> bool:
        return connection.session.audience is not None

    def close(self) -> None:
        pass


class LeadingDriver(ImmediateDriver):
    """The pod of a cluster, at the gateway that leads."""

    harness_type = ClusterPodHarness


class FollowingDriver(ImmediateDriver):
    """The pod of a cluster, at another gateway."""

    harness_type = FollowingPodHarness


class BatchedDriver:
    """Effects are batched by ticks; texts arrive when the loop is turned."""

    def __init__(self) -> None:
        self._loop = ManualLoop()
        self._harness = HubHarness(self._loop, *SENDERS, WATCHER, **LIMITS)
        self.pod = self._harness.pod

    def join(
        self, id: str, filter: Filter, after: str | None, last: int | None
    ) -> RecordingTransport:
        joined = self._harness.join(id, filter=filter, after=after, last=last)
        self._announce()
        return joined

    def _announce(self) -> None:
        """Log presence at once, however much there is; storms have tests of their own."""
        self._harness.hub.perform_all(self.pod.announce(self._harness.now))

    def send(self, connection: RecordingTransport, data: bytes) -> None:
        self._harness.hub.receive(self._harness.peers[connection], data, self._harness.now)
        if self._harness.pod.journal.end % 3 == 0:
            self._loop.turn()

    def leave(self, connection: RecordingTransport) -> None:
        self.settle(connection)
        self._harness.hub.leave(self._harness.peers[connection])
        self._announce()

    def tick(self, seconds: float) -> None:
        self._harness.now += seconds
        self._harness.hub.perform_all(self.pod.tick(self._harness.now))

    def settle(self, connection: RecordingTransport) -> None:
        self._loop.turn()
        self._harness.hub.flush()  # presence may be delayed

    def texts(self, connection: RecordingTransport) -> list[bytes]:
        return connection.texts

    def is_closed(self, connection: RecordingTransport) -> bool:
        return connection.closed is not None

    def is_live(self, connection: RecordingTransport) -> bool:
        return False  # broadcasts may not have been written yet

    def close(self) -> None:
        self._loop.close()


class DelayedDriver(BatchedDriver):
    """As batched, with a journal that commits late: nothing may leave before that (G-50)."""

    def __init__(self) -> None:
        self._loop = ManualLoop()
        self._journal = DelayedJournal(LIMITS["history_messages"])
        self._harness = HubHarness(self._loop, *SENDERS, WATCHER, journal=self._journal, **LIMITS)
        self.pod = self._harness.pod
        self._steps = 0

    def send(self, connection: RecordingTransport, data: bytes) -> None:
        self._harness.hub.receive(self._harness.peers[connection], data, self._harness.now)
        self._steps += 1
        pending = self._journal.end - self._journal.committed
        self._commit(self._journal.committed + (pending if self._steps % 5 == 0 else pending // 2))
        self._loop.turn()
        self._check()

    def settle(self, connection: RecordingTransport) -> None:
        self._commit(self._journal.end)
        super().settle(connection)

    def _commit(self, end: int) -> None:
        self._journal.committed = end
        self._harness.hub.perform_all(self.pod.release(end))

    def _check(self) -> None:
        uncommitted = set(self._journal.uncommitted())
        for transport in self._harness.peers:
            assert uncommitted.isdisjoint(transport.texts)


@dataclass(eq=False)
class ModelClient:
    """A connection and what it has to receive according to the model."""

    id: str
    connection: Any
    filter: Filter
    expected: list[bytes | str] = field(default_factory=list)  # a str: a direct text's correlation

    def wants(self, entry: "ModelEntry") -> bool:
        if entry.envelope.sender == GATEWAY:
            return entry.about != self.id
        return (
            self.filter.matches(entry.envelope, entry.lineage)
            or entry.envelope.sender == self.id
            or self.id in (entry.envelope.to or ())
        )


@dataclass(frozen=True)
class ModelEntry:
    """One broadcast, as the model decoded it."""

    text: bytes
    envelope: Envelope
    lineage: Lineage | None
    about: str | None


names = st.sampled_from([f"c{i}" for i in range(5)])
contexts = st.none() | st.fixed_dictionaries(
    {"id": names}, optional={"parent": names, "type": st.sampled_from("tu")}
)
kinds = st.sampled_from(["chat", "rare", "mcp/x"])
leaves = st.one_of(
    st.just({"main": True}),
    st.sampled_from([{"type": "t"}, {"type": "u"}]),
    st.builds(lambda name, below: {"context": name, "descendants": below}, names, st.booleans()),
    st.sampled_from([{"kind": "*r*"}, {"kind": "mcp/*"}, {"from": "a"}, {"to": "b"}]),
)
expressions: st.SearchStrategy[dict[str, Any]] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(lambda parts: {"any": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda parts: {"all": parts}, st.lists(inner, max_size=3)),
        st.builds(lambda part: {"not": part}, inner),
    ),
    max_leaves=4,
)
recipients = st.none() | st.lists(st.sampled_from(SENDERS), max_size=2)


class PodMachine(RuleBasedStateMachine):
    """Random joins, leaves, envelopes, filters and time."""

    driver_type: type[PodDriver] = ImmediateDriver
    clients: Bundle[ModelClient] = Bundle("clients")

    @initialize()
    def watch(self) -> None:
        self.driver = self.driver_type()
        self.log: list[ModelEntry] = []
        self.open: list[ModelClient] = []
        self.ids = count()
        self.sent: list[str] = []
        self.seconds = 0.0
        self.accepted: Counter[str] = Counter()
        self.tracker = ContextTracker()
        self.watcher = ModelClient(WATCHER, None, everything)
        self.watcher.connection = self.driver.join(WATCHER, everything, None, None)
        # The only broadcast that the watcher does not receive is its own join.
        (first,) = self.driver.pod.journal.read(0, 1)
        self._learn(first.text)
        for _ in range(3):
            self.driver.settle(self.watcher.connection)

    @rule(
        target=clients,
        id=st.sampled_from(SENDERS),
        expression=expressions,
        back=st.none() | st.integers(0, 40),
        last=st.none() | st.integers(0, 8),
        steps=st.sampled_from([0, 1, 10]),
    )
    def join(
        self, id: str, expression: dict[str, Any], back: int | None, last: int | None, steps: int
    ) -> ModelClient:
        after = None if back is None else self._id_at(back)
        if back == LIMITS["history_messages"] - 1:
            # The oldest one is pushed out by the join itself, before or after it is looked for.
            after = None
        client = ModelClient(id, None, filters.parse(expression))
        replaced = [other for other in self.open if other.id == id and id != MANY]
        client.connection = self.driver.join(id, client.filter, after, last)
        for other in replaced:
            self.open.remove(other)
        self._observe()
        kept = self.log[-LIMITS["history_messages"] :]
        resumed = after in [each.envelope.id for each in kept]
        if resumed:
            while kept.pop(0).envelope.id != after:
                pass
        wanted = [each.text for each in kept if client.wants(each)]
        if not resumed:
            wanted = wanted[-last:] if last else []
        client.expected = [f"welcome:{resumed}:{len(wanted)}", *wanted]
        self.open.append(client)
        for other in replaced:
            assert self.driver.is_closed(other.connection)
        for _ in range(steps):
            self.driver.settle(client.connection)
        return client

    @rule(client=consumes(clients))
    def leave(self, client: ModelClient) -> None:
        if client in self.open:
            self.open.remove(client)
            self.driver.leave(client.connection)
            self._observe()

    @rule(client=clients, kind=kinds, context=contexts, to=recipients)
    def send_envelope(
        self, client: ModelClient, kind: str, context: dict[str, Any] | None, to: list[str] | None
    ) -> None:
        members = {"to": to, "context": context}
        given = {name: value for name, value in members.items() if value is not None}
        id = f"m{next(self.ids)}"
        self.sent.append(id)
        self._send(client, text(id, client.id, kind, **given), id)

    @rule(client=clients, context=st.none() | st.builds(lambda name: {"id": name}, names))
    def chat(self, client: ModelClient, context: dict[str, Any] | None) -> None:
        self.send_envelope(client, "chat", context, None)

    @rule(client=clients, child=names, parent=names)
    def nest(self, client: ModelClient, child: str, parent: str) -> None:
        self.send_envelope(client, "chat", {"id": child, "parent": parent}, None)

    @rule(client=clients, back=st.integers(1, 30))
    def repeat(self, client: ModelClient, back: int) -> None:
        if self.sent:
            id = self.sent[-min(back, len(self.sent))]
            self._send(client, text(id, client.id, "rare"), id)

    @rule(client=clients, victim=st.sampled_from([*SENDERS, WATCHER, GATEWAY]), context=contexts)
    def forge(self, client: ModelClient, victim: str, context: dict[str, Any] | None) -> None:
        if victim != client.id:
            given: dict[str, Any] = {} if context is None else {"context": context}
            self._send(client, text("forged", victim, **given), "forged")
            assert "forged" not in {each.envelope.id for each in self.log}

    @rule(
        client=clients,
        data=st.sampled_from(
            [b"", b"{}", b'{"id":1}', text("x", "a", "system/presence"), text("x", "b", "pod/x")]
        ),
    )
    def send_nonsense(self, client: ModelClient, data: bytes) -> None:
        before = len(self.log)
        self._send(client, data, "x" if b'"x"' in data else "")
        assert len(self.log) == before

    @rule(client=clients, expression=expressions | st.just({"main": False}))
    def set_filter(self, client: ModelClient, expression: dict[str, Any]) -> None:
        if client not in self.open:
            return
        id = f"f{next(self.ids)}"
        data = text(id, client.id, "pod/filter", {"filter": expression})
        refused = sum(self.driver.pod.refused.values())
        self._send(client, data, id)
        if sum(self.driver.pod.refused.values()) == refused:
            client.filter = filters.parse(expression)
        elif expression == {"main": False}:
            with pytest.raises(FilterError):
                filters.parse(expression)

    @rule(seconds=st.sampled_from([0.0, 0.25, 1.0, 4.0, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds
        self.driver.tick(seconds)
        self._observe()

    @rule(client=clients)
    def read_on(self, client: ModelClient) -> None:
        if client in self.open:
            self.driver.settle(client.connection)
            if self.driver.is_closed(client.connection):  # its position left the log
                self.open.remove(client)
            self._observe()

    # --- invariants -----------------------------------------------------------------------------

    @invariant()
    def every_client_receives_what_the_rules_require(self) -> None:
        for client in self.open:
            texts = self.driver.texts(client.connection)
            shown = [_shown(data, wanted) for data, wanted in zip(texts, client.expected)]  # noqa: B905
            assert shown == client.expected[: len(texts)]
            if self.driver.is_live(client.connection):
                assert len(texts) == len(client.expected)

    @invariant()
    def the_tree_is_a_tree_within_its_limits(self) -> None:
        nodes = {node.id: node for node in self.driver.pod.tree}
        charged = Counter(node.holder for node in nodes.values() if node.holder is not None)
        assert len(nodes) <= LIMITS["max_contexts_per_pod"]
        assert all(n <= LIMITS["max_contexts_per_participant"] for n in charged.values())
        for node in nodes.values():
            path = list(_path(node))
            assert len(path) == node.depth <= LIMITS["max_context_depth"]
            assert all(nodes[each.id] is each for each in path)
            assert node.lineage.ancestors == tuple(each.id for each in path[1:])
            assert node.children == {each for each in nodes.values() if each.parent is node}
            assert node.height in (0, _height(node))

    @invariant()
    def a_client_that_receives_everything_has_the_same_view_of_the_tree(self) -> None:
        assert {
            info.id: (info.type, info.parent, info.creator)
            for info in self.tracker.contexts.values()
        } == {
            node.id: (node.type, node.parent and node.parent.id, node.creator)
            for node in self.driver.pod.tree
        }

    @invariant()
    def no_participant_exceeds_its_rate(self) -> None:
        allowed = LIMITS["burst"] + LIMITS["messages_per_second"] * self.seconds
        assert all(accepted <= allowed for accepted in self.accepted.values())

    @invariant()
    def participants_are_those_with_open_connections(self) -> None:
        present = {WATCHER, *(client.id for client in self.open)}
        assert set(self.driver.pod.participants) == present

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        for client in list(self.open):
            for _ in range(60):
                self.driver.settle(client.connection)
            if self.driver.is_closed(client.connection):
                self.open.remove(client)
            self._observe()  # its leave is broadcast to the others
        for client in self.open:
            assert len(self.driver.texts(client.connection)) == len(client.expected)
        self.every_client_receives_what_the_rules_require()
        self.driver.close()

    # --- the model ------------------------------------------------------------------------------

    def _send(self, client: ModelClient, data: bytes, id: str) -> None:
        """Send; expect either a broadcast after its revivals, or an answer to the sender only."""
        if client not in self.open:
            return
        before = len(self.log)
        known = set(self.tracker.contexts)
        self.driver.send(client.connection, data)
        self._observe()
        new = self.log[before:]
        if new:
            *revivals, entry = new
            assert entry.text == data
            assert entry.envelope.sender == client.id
            self.accepted[client.id] += 1
            self._check_revivals(revivals, entry, known)
        else:
            client.expected.append(f"direct:{id}")

    def _check_revivals(
        self, revivals: list[ModelEntry], entry: ModelEntry, known: set[str]
    ) -> None:
        """Check that the contexts above an envelope were revived, parents first (C-12)."""
        ids = []
        for each in revivals:
            change = read_context_change(each.envelope)
            assert change is not None
            assert change.event == "revived"
            ids += [info.id for info in change.contexts]
        assert known.isdisjoint(ids)
        if ids:
            assert entry.lineage is not None
            path = (*reversed(entry.lineage.ancestors), entry.lineage.id)
            assert ids == [id for id in path if id in ids]

    def _observe(self) -> None:
        """Update the model from what the watcher received."""
        pod = self.driver.pod
        new = pod.journal.read(max(len(self.log), pod.journal.start), 1000)
        assert pod.journal.end == len(self.log) + len(new), (
            "more was logged at once than the log holds"
        )
        for each in new:
            entry = self._learn(each.text)
            if entry.about != WATCHER:
                self.watcher.expected.append(entry.text)
            for client in self.open:
                if client.wants(entry):
                    client.expected.append(entry.text)
        seen = self.driver.texts(self.watcher.connection)[1:]
        assert seen == self.watcher.expected[: len(seen)]

    def _learn(self, data: bytes) -> ModelEntry:
        envelope = decode(data)
        about = None
        if envelope.kind == "system/presence":
            about = envelope.payload["participant"]["id"]
        lineage = self.tracker.observe(envelope)
        entry = ModelEntry(data, envelope, lineage, about)
        self.log.append(entry)
        return entry

    def _id_at(self, back: int) -> str:
        return self.log[-1 - back].envelope.id if back < len(self.log) else "unknown"


def _shown(data: bytes, wanted: bytes | str) -> bytes | str:
    """Return a received text in the notation of the model."""
    if isinstance(wanted, bytes):
        return data
    envelope = json.loads(data)
    if envelope["kind"] == "system/welcome":
        payload = envelope["payload"]
        return f"welcome:{payload['resumed']}:{payload['replayed']}"
    if envelope["from"] != GATEWAY:  # the original of a repetition
        return f"direct:{envelope['id']}"
    assert envelope["kind"] in ("system/error", "system/filter")
    return f"direct:{envelope.get('correlation_id', '')}"


def _path(node: LiveContext) -> Iterator[LiveContext]:
    at: LiveContext | None = node
    for _ in range(10):
        if at is None:
            return
        yield at
        at = at.parent
    raise AssertionError("a cycle")


def _height(node: LiveContext) -> int:
    return 1 + max(map(_height, node.children), default=0)


class HubMachine(PodMachine):
    """The same with batched delivery."""

    driver_type = BatchedDriver


class DelayedMachine(PodMachine):
    """The same with a journal that commits late."""

    driver_type = DelayedDriver


class LeadingMachine(PodMachine):
    """The same in a cluster, at the gateway that leads."""

    driver_type = LeadingDriver


class FollowingMachine(PodMachine):
    """The same in a cluster, at another gateway."""

    driver_type = FollowingDriver


TestPod = pytest.mark.rule(
    "G-18", "G-24", "F-18", "C-05", "C-06", "C-07", "C-12", "C-14", "G-12", "G-17", "G-30"
)(PodMachine.TestCase)
TestHub = pytest.mark.rule("G-18", "G-30", "F-12")(HubMachine.TestCase)
TestDelayed = pytest.mark.rule("G-50", "G-30")(DelayedMachine.TestCase)
TestDelayed.settings = settings(max_examples=100, stateful_step_count=50)
TestPod.settings = settings(max_examples=100, stateful_step_count=50)
TestHub.settings = settings(max_examples=100, stateful_step_count=50)
TestLeading = pytest.mark.rule("G-52", "N-03")(LeadingMachine.TestCase)
TestFollowing = pytest.mark.rule("G-52", "N-03")(FollowingMachine.TestCase)
TestLeading.settings = settings(max_examples=60, stateful_step_count=50)
TestFollowing.settings = settings(max_examples=60, stateful_step_count=50)
