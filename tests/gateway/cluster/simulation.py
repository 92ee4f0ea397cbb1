"""A deterministic simulation of a cluster: gateways, a log, a network, clients, virtual time.

Gateways are real `ClusterPod`s behind real hubs. The log and the network delay, drop, repeat and
reorder what they carry, by a random generator that is passed in: the same seed gives the same run.
Clients behave like the SDK: they number their messages, resume after the last envelope they have
seen, and send again what was not echoed.
"""

import heapq
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any

from mcpp.filters import everything
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.cluster.leading.delegation import PROBE_SECONDS
from mcpp_gateway.core.cluster.leading.leadership import Fence, Silence
from mcpp_gateway.core.cluster.messages import PodBeat, decode_forward
from mcpp_gateway.core.cluster.ordering import Ordering
from mcpp_gateway.core.cluster.pod import ClusterPod
from mcpp_gateway.core.cluster.records import (
    Claim,
    ClusterState,
    decode_cluster_state,
    encode_cluster_state,
)
from mcpp_gateway.core.cluster.wire import ClusterOptions
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.records import Batch, BatchHead
from mcpp_gateway.core.sessions import ParticipantSettings
from mcpp_gateway.edge.frames import decode_texts
from mcpp_gateway.edge.hub import Hub
from mcpp_gateway.edge.peer import Peer
from mcpp_gateway.edge.read_quota import ReadQuota
from mcpp_gateway.testing import ManualScheduler

OBSERVER = "observer"
PARTICIPANTS = ("a", "b", "c", OBSERVER)
LIMITS = PodLimits(messages_per_second=0, context_messages_per_second=0, context_idle_seconds=3)
# One reads a context, so that the leader has to decide.
CAPABILITIES: list[dict[str, Any]] = [{"kind": "chat"}, {"kind": "x", "context": {"type": "y"}}]
STEP_SECONDS = 0.1
DRAIN_SECONDS = 2.0
OPTIONS = ClusterOptions(rejoin_seconds=4.0, gone_seconds=3.0, checkpoint_entries=7, in_flight=4)


class OpenFence(Fence):
    """A fence that lets every record pass: what compare-and-set alone would give."""

    def admits(self, batch: Batch | BatchHead) -> bool:
        self.index = batch.index + 1
        return True

    def admits_claim(self, claim: Claim) -> bool:
        self.term, self.leader = max(self.term, claim.term), claim.gateway
        return True


class World:
    """Virtual time, the log and the network."""

    def __init__(
        self, random: Random, gateways: int = 3, *, fenced: bool = True, probes: bool = False
    ) -> None:
        self.probes = probes  # off for the kept seeds: the rest of a run would be another one
        self.random = random
        self.fenced = fenced
        self.now = 1_000_000.0
        self.loss = 0.0  # share of messages that are lost or repeated
        self.log: list[bytes] = []
        self.log_is_open = True
        self.states: list[bytes] = []
        self.gateways: dict[str, SimGateway] = {}
        self.clients = {id: SimClient(self, id) for id in PARTICIPANTS}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._names = count(1)
        for _ in range(gateways):
            self.start_gateway()

    # --- time -----------------------------------------------------------------------------------

    def at(self, delay: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), call))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, call = heapq.heappop(self._events)
            call()
        self.now = end

    def delay(self) -> float:
        """A few milliseconds; sometimes much more, so that the order changes."""
        if self.random.random() < self.loss:
            return self.random.uniform(0.0, 0.8)
        return self.random.uniform(0.001, 0.005)

    def copies(self) -> int:
        """How often a message arrives."""
        if self.random.random() >= self.loss:
            return 1
        return self.random.choice((0, 0, 2))

    # --- the log --------------------------------------------------------------------------------

    def append(self, sender: "SimGateway", record: bytes, expected: int | None) -> None:
        if sender.is_cut or sender.is_mute:
            return
        for _ in range(self.copies()):
            self.at(self.delay(), lambda: self._store(record, expected))

    def _store(self, record: bytes, expected: int | None) -> None:
        if not self.log_is_open or (expected is not None and expected != len(self.log)):
            return
        self.log.append(record)
        sequence = len(self.log)
        for gateway in self.gateways.values():
            for _ in range(self.copies()):
                self.at(self.delay(), partial(gateway.receive_record, sequence, record))

    # --- gateways -------------------------------------------------------------------------------

    def start_gateway(self) -> "SimGateway":
        gateway = SimGateway(self, f"g{next(self._names)}")
        self.gateways[gateway.name] = gateway
        gateway.start()
        return gateway

    def kill(self, name: str) -> None:
        gateway = self.gateways.pop(name)
        gateway.is_dead = True
        for client in self.clients.values():
            if client.gateway is gateway:
                client.lose_connection()

    def drain(self, name: str) -> None:
        """Let a gateway hand over what it leads, and end."""
        gateway = self.gateways[name]
        if gateway.hand_over():
            self.kill(name)
        elif not gateway.is_draining:
            gateway.is_draining = True
            self.at(DRAIN_SECONDS, lambda: self.kill(name) if name in self.gateways else None)
        if name in self.gateways:
            self.at(0.005, lambda: self.drain(name) if name in self.gateways else None)

    def forward(self, sender: "SimGateway", name: str, message: bytes) -> None:
        if sender.is_cut or sender.is_mute:
            return
        target = self.gateways.get(name)
        if target is None:
            self.at(self.delay(), lambda: sender.call(lambda: sender.lose_leader(name)))
            return
        for _ in range(self.copies()):
            self.at(self.delay(), lambda: target.receive_forward(message))

    def heal(self) -> None:
        """End all faults."""
        self.loss = 0.0
        self.log_is_open = True
        for gateway in self.gateways.values():
            gateway.is_cut = gateway.is_mute = gateway.is_deaf = False
            gateway.resume()


class SimGateway:
    """One gateway: a clustered pod, a hub, and the timers that an event loop would run."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_dead = False
        self.is_draining = False
        self.is_cut = False  # from everything
        self.is_mute = False  # cannot send
        self.is_deaf = False  # cannot receive
        # Clocks differ, but that of one process does not go back (`steady_clock`).
        self.clock_offset = world.random.choice((-3600.0, -5.0, 0.0, 5.0))
        self._paused: list[Callable[[], None]] | None = None
        self._wake = self._probing = False
        self._scheduler = ManualScheduler()
        quota = ReadQuota(self._scheduler, self.clock, tick_bytes=1 << 20)
        self.hub = Hub(self._scheduler, self.clock, quota)
        self.silence = Silence()
        ids = count(1)
        settings = [
            ParticipantSettings(id, Capabilities(CAPABILITIES), id == OBSERVER)
            for id in PARTICIPANTS
        ]
        self.pod = ClusterPod(
            "pod",
            settings,
            LIMITS,
            new_id=lambda: f"{name}.{next(ids)}",
            gateway=name,
            wire=self,
            silence=self.silence,
            options=OPTIONS,
            fence=Fence() if world.fenced else OpenFence(),
        )
        self.ordering = Ordering(1)

    def clock(self) -> float:
        return self.world.now + self.clock_offset

    def start(self) -> None:
        """Read the log, as far as it is, and begin to follow it."""
        world = self.world
        if world.states:
            state = decode_cluster_state(world.states[-1])
            self.pod.begin(state)
            for sequence in range(state.window_sequence, state.sequence + 1):
                self.pod.fill(world.log[sequence - 1])
            self.ordering = Ordering(state.sequence + 1)
        for sequence in range(self.ordering.next, len(world.log) + 1):
            self._take(sequence, world.log[sequence - 1])
        self.pod.delegation.may_lead = True
        world.at(world.random.uniform(0.0, STEP_SECONDS), self._step)
        world.at(world.random.uniform(0.0, 1.0), self._tick)

    # --- the wire of the pod --------------------------------------------------------------------

    def append(self, record: bytes) -> None:
        expected = None
        if not self.world.fenced:
            # What compare-and-set demands: nothing in the log that this gateway does not know.
            leader = self.pod.delegation.leader
            sent = [] if leader is None else [each.data for each in leader.in_flight]
            ahead = sent.index(record) if record in sent else 0
            expected = self.ordering.next - 1 + ahead
        self.world.append(self, record, expected)

    def forward(self, gateway: str, message: bytes) -> None:
        self.world.forward(self, gateway, message)

    def relay(self, text: bytes) -> None:
        for other in self.world.gateways.values():
            if other is not self:
                other.call(partial(other.relay_here, text))

    def relay_here(self, text: bytes) -> None:
        effect = self.pod.relay(text, self.world.now)
        if effect is not None:
            self.hub.perform(effect)

    def wake(self) -> None:
        if not self._wake:
            self._wake = True
            self.world.at(0.0, lambda: self.call(self._flush))

    def save(self, state: ClusterState) -> None:
        self.world.states = [*self.world.states[-1:], encode_cluster_state(state)]

    # --- what happens to it ---------------------------------------------------------------------

    def call(self, what: Callable[[], None]) -> None:
        """Run something in this gateway's process: later if it is paused, never if it is dead."""
        if self.is_dead:
            return
        if self._paused is not None:
            self._paused.append(what)
            return
        what()
        self._scheduler.run()

    def pause(self) -> None:
        self._paused = self._paused or []

    def resume(self) -> None:
        waiting, self._paused = self._paused or [], None
        for what in waiting:
            self.call(what)

    def hand_over(self) -> bool:
        """Return whether it leads no more; a paused one does nothing."""
        is_done = False

        def hand_over() -> None:
            nonlocal is_done
            is_done = self.pod.delegation.hand_over(self.clock())

        if self._paused is None:
            self.call(hand_over)
        return is_done

    def receive_record(self, sequence: int, record: bytes) -> None:
        if not (self.is_cut or self.is_deaf):
            self.call(lambda: self._take(sequence, record))

    def receive_forward(self, message: bytes) -> None:
        if not (self.is_cut or self.is_deaf):
            self.call(lambda: self.pod.delegation.hear(decode_forward(message), self.clock()))

    def receive_beat(self, gateway: str, beat: PodBeat | None) -> None:
        def receive() -> None:
            self.silence.hear(gateway)
            if beat is not None:
                self.ordering.expect(beat.sequence)
            self.pod.delegation.hear_beat(gateway, None if beat is None else beat.term)

        if not (self.is_cut or self.is_deaf):
            self.call(receive)

    def lose_leader(self, gateway: str) -> None:
        self.pod.delegation.lose(gateway, self.clock())

    def _take(self, sequence: int, record: bytes) -> None:
        for each, data in self.ordering.add(sequence, record):
            self.hub.perform_all(self.pod.apply(each, data, self.clock()))

    def _flush(self) -> None:
        self._wake = False
        self.pod.delegation.flush(self.clock())
        if self.world.probes and not self._probing and self.pod.delegation.outgoing:
            self._probing = True
            self.world.at(PROBE_SECONDS, lambda: self.call(self._probe))

    def _probe(self) -> None:
        wait = self.pod.delegation.probe(self.clock())
        self._probing = wait is not None
        if wait is not None:
            self.world.at(wait, lambda: self.call(self._probe))

    def _step(self) -> None:
        if self.is_dead:
            return
        self.world.at(STEP_SECONDS, self._step)
        if self._paused is None:
            self.call(self._step_now)

    def _step_now(self) -> None:
        world = self.world
        self.silence.advance(self.clock())
        self.pod.delegation.step(self.clock())
        if not (self.is_cut or self.is_mute):
            beat = self.pod.beat()
            for other in world.gateways.values():
                if other is not self and world.copies():
                    world.at(world.delay(), partial(other.receive_beat, self.name, beat))
        if not (self.is_cut or self.is_deaf) and world.log_is_open:
            self._repair()

    def _repair(self) -> None:
        """Ask the log for what is known to exist and has not arrived."""
        if self.ordering.is_missing:
            known = self.world.log[self.ordering.next - 1 :]
            for sequence, record in enumerate(known, self.ordering.next):
                self.world.at(self.world.delay(), partial(self.receive_record, sequence, record))

    def _tick(self) -> None:
        if self.is_dead:
            return
        self.world.at(1.0, self._tick)
        if self._paused is None:
            self.call(lambda: self.hub.perform_all(self.pod.tick(self.clock())))


@dataclass(eq=False)
class SimClient:
    """A participant: what it has sent, what it has seen, and where it is connected."""

    world: World
    id: str
    gateway: SimGateway | None = None
    seen: list[str] = field(default_factory=list)  # since the last gap
    acknowledged: list[str] = field(default_factory=list)
    sent: int = 0
    unsettled: list[tuple[str, bytes]] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)  # ids in the order of their outcomes
    welcomed: bool = False
    full: bool = False
    problems: list[str] = field(default_factory=list)
    welcome: dict[str, Any] = field(default_factory=dict)
    closes: list[int] = field(default_factory=list)
    replayed: int = 0
    _peer: Peer | None = None
    _resent: set[str] = field(default_factory=set)
    _connection: int = 0

    # --- what the test does ---------------------------------------------------------------------

    def connect(self, gateway: SimGateway) -> None:
        assert self.gateway is None
        self.gateway = gateway
        self.welcomed = False
        self.expected = []
        transport = _Transport(self)
        after = self.seen[-1] if self.seen else None
        last = None if self.seen else 1_000_000

        connection = self._connection

        def join() -> None:
            if self._connection == connection:
                self._peer = gateway.hub.join(
                    gateway.pod, self.id, transport, filter=everything, after=after, last=last
                )

        gateway.call(join)

    def send(self, flavour: str) -> None:
        """Send one message: accepted, long, in a context, refused by the leader or the gateway."""
        self.sent += 1
        id = f"{self.id}-{self.sent}"
        kind, sender, members = "chat", self.id, {}
        if flavour == "forbidden":
            kind = "other"
        elif flavour == "forged":
            sender = "somebody"
        elif flavour == "context":
            members = {"context": {"id": f"x{self.sent % 3}"}}
        envelope = {
            "protocol": "mcpp/v0.1",
            "id": id,
            "ts": "2025-08-31T12:00:00Z",
            "from": sender,
            "kind": kind,
            **members,
            "payload": "x" * 40_000 if flavour == "long" else None,
        }
        text = json.dumps(envelope).encode()
        self.unsettled.append((id, text))
        if self.welcomed:
            self._transmit(id, text)

    def lose_connection(self) -> None:
        """The connection ends, noticed by both sides."""
        gateway, self.gateway = self.gateway, None
        self._connection += 1
        peer, self._peer = self._peer, None
        if gateway is not None and peer is not None:
            gateway.call(lambda: None if peer.closed else gateway.hub.leave(peer))

    # --- what the gateway does ------------------------------------------------------------------

    def receive(self, text: bytes) -> None:
        envelope = json.loads(text)
        id, kind = envelope["id"], envelope["kind"]
        if kind == "system/welcome":
            self._begin(envelope["payload"])
        elif kind == "system/error":
            self._settle(envelope.get("correlation_id", ""))
        elif self.replayed > 0:
            self.replayed -= 1
            self._see(id, envelope["from"])
        elif id in self.seen:
            if id not in self._resent:
                self.problems.append(f"{self.id} received {id} twice")
            self._settle(id)
        else:
            self._see(id, envelope["from"])

    def close(self, code: int) -> None:
        self.closes.append(code)
        self.gateway = None
        self._peer = None
        self._connection += 1

    def _begin(self, payload: dict[str, Any]) -> None:
        self.welcome, self.welcomed = payload, True
        self.replayed = payload["replayed"]
        if not payload["resumed"]:
            self.seen = []
        connection = self._connection

        def send_again() -> None:
            if self._connection == connection:
                for id, text in self.unsettled:
                    self._resent.add(id)
                    self._transmit(id, text)

        self.world.at(0.0, send_again)

    def _see(self, id: str, sender: str) -> None:
        if id in self.seen:
            self.problems.append(f"{self.id} received {id} twice in the log")
        self.seen.append(id)
        if sender == self.id:
            self.acknowledged.append(id)
            self._settle(id)

    def _settle(self, id: str) -> None:
        if id in self.expected:
            if self.expected[0] != id:
                self.problems.append(f"{self.id}: outcome of {id} before {self.expected[0]}")
            self.expected.remove(id)
        self.unsettled = [each for each in self.unsettled if each[0] != id]

    def _transmit(self, id: str, text: bytes) -> None:
        gateway, peer = self.gateway, self._peer
        if gateway is None or peer is None:
            return
        self.expected.append(id)

        def receive() -> None:
            if not peer.closed:
                gateway.hub.receive(peer, text, gateway.clock())

        gateway.call(receive)


class _Transport:
    """The hub's end of one connection of a client."""

    full = False

    def __init__(self, client: SimClient) -> None:
        self._client = client
        self._connection = client._connection

    def write(self, data: bytes) -> None:
        for text in decode_texts(data):
            if self._client._connection == self._connection:
                self._client.receive(text)

    def close(self, code: int, reason: str) -> None:
        if self._client._connection == self._connection:
            self._client.close(code)

    def set_outbox(self, max_bytes: int) -> None:
        pass

    @property
    def waiting_bytes(self) -> int:
        return 0


def check_settled(world: World) -> list[str]:
    """Heal everything, let it settle, and return what contradicts the promises."""
    world.heal()
    for seconds in (*[0.5] * 80, *[0.05] * 100):  # what comes late may still close a connection
        was_quiet = _is_quiet(world)
        for client in world.clients.values():
            if client.gateway is None:
                client.connect(world.random.choice(list(world.gateways.values())))
        world.run(seconds)
        if was_quiet and _is_quiet(world):
            break
    return [
        *(problem for client in world.clients.values() for problem in client.problems),
        *_check_views(world),
        *_check_replicas(world),
    ]


def _is_quiet(world: World) -> bool:
    ends = {gateway.ordering.next - 1 for gateway in world.gateways.values()}
    leaders = [
        gateway.pod.delegation.leader
        for gateway in world.gateways.values()
        if gateway.pod.delegation.leader
    ]
    if len(leaders) != 1 or leaders[0].in_flight or leaders[0].has_outcomes:
        return False
    return ends == {len(world.log)} and all(
        client.welcomed and client.gateway is not None and not client.unsettled
        for client in world.clients.values()
    )


def _check_views(world: World) -> list[str]:
    problems: list[str] = []
    journal = next(iter(world.gateways.values())).pod.journal
    entries = journal.read(0, 1_000_000)
    truth = [entry.id for entry in entries]
    if len(set(truth)) != len(truth):
        problems.append("the log holds an id twice")
    for client in world.clients.values():
        visible = [entry.id for entry in entries if client.id not in entry.about]
        if client.unsettled:
            problems.append(f"{client.id}: no outcome of {[id for id, _ in client.unsettled]}")
        if client.seen and client.seen != visible[-len(client.seen) :]:
            problems.append(f"{client.id} has seen another order")
        lost = set(client.acknowledged) - set(truth)
        if lost:
            problems.append(f"{client.id}: acknowledged and lost: {sorted(lost)}")
        own = [int(entry.id.split("-")[1]) for entry in entries if entry.sender == client.id]
        if own != sorted(own):
            problems.append(f"{client.id}: not FIFO: {own}")
    return problems


def _check_replicas(world: World) -> list[str]:
    problems = []
    views = []
    for gateway in world.gateways.values():
        pod = gateway.pod
        live, dormant = pod.tree.snapshot()
        views.append(
            (
                [entry.id for entry in pod.journal.read(0, 1_000_000)],
                sorted((each.id, each.creator, each.messages) for each in live),
                sorted((each.id, each.creator, each.messages) for each in dormant),
                sorted(pod.participants),
                pod.replica.roster.snapshot(),
                pod.replica.heard,
                pod.replica.fence.term,
                pod.replica.fence.leader,
            )
        )
    for view in views[1:]:
        for name, mine, other in zip(
            ("log", "live", "dormant", "present", "sessions", "heard", "term", "leader"),
            views[0],
            view,
            strict=True,
        ):
            if mine != other:
                problems.append(f"replicas differ in {name}: {mine} and {other}")
    present = set(world.clients)
    if not problems and set(views[0][3]) != present:
        problems.append(f"present are {views[0][3]}")
    return problems
