"""The hub: passes texts to pods and performs the effects that they return.

`Hub.perform` is the only interpreter of effects: sockets, `MemoryGateway` and the tests all use it.
Every effect of every pod goes through it in the pod's order, so an output gate that holds effects
back until the log is committed belongs in front of it.

A server's frames are unmasked, so all sessions of an audience get the same bytes. A broadcast is
appended once to each audience. At the end of the event loop's tick the frames of an audience are
joined once, and every connection gets one write. The cost of a tick is its envelopes plus its
connections, not their product, and nothing is delayed.

A text for one session alone (an error, an acknowledgement) is stored with its position among the
audience's frames, and inserted there when the tick is written.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import assert_never

from mcpp.filters import Filter
from mcpp_gateway.core.effects import (
    SLOW_READER,
    Broadcast,
    Broadcasts,
    CatchUp,
    Close,
    Direct,
    Effect,
    Move,
    ReadHistory,
    RelayLive,
    Several,
)
from mcpp_gateway.core.pod import Audience, PodCore
from mcpp_gateway.edge.frames import encode_text
from mcpp_gateway.edge.latency import LatencyHistogram
from mcpp_gateway.edge.page_turns import PageTurns
from mcpp_gateway.edge.peer import Peer, PeerTransport, Traffic
from mcpp_gateway.edge.read_quota import ReadQuota, Scheduler

# A session that catches up is sent this much of the log at once. In one turn it gets this much more
# than was read since its last one: so it always comes closer to the end of the log, however busy
# the gateway is, and other connections get their turns.
CATCH_UP_BYTES = 65_536

# In one tick this long is spent on reading for sessions to which nothing of it is sent: where they
# begin, or what their filters leave out. While the gateway is busy, it is as long as everything
# else took since the last time, up to the second figure: so half of the time at most.
SEARCH_SECONDS = 0.005
MAX_SEARCH_SECONDS = 0.02

# What one piece of that work may take before the participant is charged for it.
_FREE_SEARCH_SECONDS = 0.001

# After so much was written, all outboxes together are looked at (G-68): they cannot grow faster.
MUCH_BYTES = 33_554_432

# Presence may be delayed this long to be written together: when a thousand participants leave at
# once, a write for each to all the others would be a million writes.
PRESENCE_SECONDS = 0.02


# Live parts of one tick, and unsent ones of one connection (G-82).
LIVE_BYTES = 65_536


def live_room(pod: PodCore) -> int:
    """Return how many bytes may be unsent at a connection that is sent live parts.

    All connections together stay within an eighth of `pod_outbox_bytes`: none is closed for them.
    """
    limits = pod.limits
    shared = limits.pod_outbox_bytes // (8 * max(1, pod.members.sessions))
    return min(LIVE_BYTES, limits.outbox_bytes // 8, shared)


def _nothing() -> None:
    """Do nothing: outboxes in memory are not bounded together."""


class Hub:
    """Performs effects. Owns the frames of the current tick."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], quota: ReadQuota) -> None:
        self.clock = clock
        self.traffic: defaultdict[PodCore, Traffic] = defaultdict(Traffic)
        self.tick_seconds = 0.0
        self.ticks = 0
        self._scheduler = scheduler
        self._quota = quota
        self._flush_soon = False
        self._flush_later = False
        self._audiences: list[Audience] = []  # those with frames in this tick
        self._individual: dict[Peer, None] = {}  # peers that get other bytes than their audience
        self._live: list[Audience] = []  # those with live parts in this tick
        self.live_dropped = 0  # parts that were not written to a connection
        self._full: list[Peer] = []
        self.pages = PageTurns(scheduler, quota, self.perform_all)
        # How history is read; it ends with an answer of the pod.
        self.read_history: Callable[[ReadHistory], None] = self.pages.add
        self.written_bytes = 0
        self._checked_bytes = 0  # of these, when the outboxes were last looked at
        self.latency = LatencyHistogram()
        self._tick_began = 0.0  # when the first text of this tick was received
        # A text that waits for the log: its pod, its position and when it was received.
        self._sample: tuple[PodCore, int, float] | None = None
        self.on_much_written: Callable[[], None] = _nothing
        self._announcing: set[PodCore] = set()  # those with presence that will be logged later
        self._searching: dict[Peer, None] = {}  # for which the log is looked through, in order
        self._search_soon = False
        self._searched_at = 0.0

    # --- inputs: what happens at the connections ------------------------------------------------

    def join(
        self,
        pod: PodCore,
        participant: str,
        transport: PeerTransport,
        *,
        filter: Filter,
        after: str | None,
        last: int | None,
    ) -> Peer:
        """Join a connection to its pod and start sending."""
        peer = Peer(pod, transport, self.traffic[pod])
        peer.session, effects = pod.join(
            participant, self.clock(), filter=filter, after=after, last=last, peer=peer
        )
        peer.account = self._quota.account(peer.session.member)
        peer.caught_up_to = self._quota.read_bytes
        transport.set_outbox(CATCH_UP_BYTES)
        self._perform_presence(effects)
        self.announce_later(pod)
        self.catch_up(peer)
        return peer

    def leave(self, peer: Peer) -> None:
        """Remove a closed connection from its pod."""
        peer.audience = None
        peer.closed = True
        self._perform_presence(peer.pod.leave(peer.session, self.clock()))
        self.announce_later(peer.pod)

    def announce_later(self, pod: PodCore) -> None:
        """Have presence logged that the pod keeps back to log it with what follows (G-64)."""
        wait = pod.presence_wait(self.clock())
        if wait is not None and pod not in self._announcing:
            self._announcing.add(pod)
            self._scheduler.call_later(wait, self._announce, pod)

    def flush_and_leave(self, peer: Peer) -> None:
        """Write what this tick owes to a connection that is about to close, and remove it."""
        self._write_owed(peer)
        self.leave(peer)

    def receive(self, peer: Peer, text: bytes, now: float) -> bool:
        """Pass one text of a connection to its pod. Return whether to stop reading from it."""
        peer.traffic.received += 1
        effect = peer.pod.receive(peer.session, text, now)
        if type(effect) is Broadcast:
            if effect.extra:
                self.perform(effect)
                return False
            # `perform` of the common effect, without a call and its checks: 0.3 µs.
            data = encode_text(text)
            for audience in effect.audiences:
                if not audience.frames:
                    self._audiences.append(audience)
                audience.frames.append(data)
            if not self._flush_soon:
                self._flush_soon = True
                self._tick_began = now
                self._scheduler.call_soon(self.flush)
            return False
        if effect is not None:
            self.perform(effect)
        elif self._sample is None:
            self._sample = (peer.pod, peer.pod.journal.end, now)
        # `is_exhausted` without a call: with a log in files this is the common case.
        return peer.closed or peer.session.member.rate_limited > peer.account.limit

    def catch_up(self, peer: Peer) -> None:
        """Send a session that is behind as much of the log as its connection accepts now."""
        if self._searching and peer.session.opening is not None:
            self._searching[peer] = None  # behind the others
        else:
            self._catch_up(peer)

    def on_outbox_full(self, peer: Peer) -> None:
        """Close a live connection whose outbox is full, after the current write."""
        if peer.audience is not None:
            self._full.append(peer)
            self._scheduler.call_soon(self._close_full)

    # --- effects --------------------------------------------------------------------------------

    def perform_all(self, effects: Iterable[Effect]) -> None:
        """Perform effects in order."""
        for effect in effects:
            if type(effect) is Broadcast and self._flush_soon and not effect.extra:
                # `perform` of the common effect, as in `receive`.
                data = encode_text(effect.text)
                for audience in effect.audiences:
                    if not audience.frames:
                        self._audiences.append(audience)
                    audience.frames.append(data)
            else:
                self.perform(effect)

    def perform(self, effect: Effect, *, soon: bool = True) -> None:
        """Perform an effect: written at the end of the current tick, or later if not `soon`."""
        if isinstance(effect, Broadcast):
            text = effect.text
            size = len(text)
            # `encode_text`, inlined for the common size: the call takes 0.05 µs.
            data = (
                b"\x81\x7e" + size.to_bytes(2) + text if 126 <= size < 65_536 else encode_text(text)
            )
            for audience in effect.audiences:
                if not audience.frames:
                    self._audiences.append(audience)
                audience.frames.append(data)
            if effect.extra:
                for session in effect.extra:
                    self._insert(session.peer, data)
        elif isinstance(effect, Broadcasts):
            frames = [
                b"\x81\x7e" + len(text).to_bytes(2) + text
                if 126 <= len(text) < 65_536
                else encode_text(text)
                for text in effect.texts
            ]
            for audience in effect.audiences:
                if not audience.frames:
                    self._audiences.append(audience)
                audience.frames += frames
        elif isinstance(effect, RelayLive):
            self._keep_live(effect)
        elif isinstance(effect, Direct):
            self._insert(effect.session.peer, encode_text(effect.text))
        elif isinstance(effect, Move):
            self._move(effect)
        elif isinstance(effect, Close):
            peer: Peer = effect.session.peer
            self.flush_and_leave(peer)
            peer.transport.close(effect.code, effect.reason)
        elif isinstance(effect, CatchUp):
            self.catch_up(effect.session.peer)
        elif isinstance(effect, ReadHistory):
            self.read_history(effect)
        elif isinstance(effect, Several):
            for each in effect.effects:
                self.perform(each, soon=soon)
        else:
            assert_never(effect)
        if soon and not self._flush_soon and (self._audiences or self._individual or self._live):
            self._flush_soon = True
            self._scheduler.call_soon(self.flush)

    def flush(self) -> None:
        """Write what this tick owes, one write per connection."""
        began = self.clock()
        self._quota.start_tick()
        self._flush_soon = self._flush_later = False
        if self._live:
            self._write_live()
        audiences, self._audiences = self._audiences, []
        individual, self._individual = self._individual, {}
        batches: dict[Audience, list[bytes]] = {}
        for audience in audiences:
            batches[audience], audience.frames = audience.frames, []
        for audience, frames in batches.items():
            if not audience.sessions:
                continue
            data = b"".join(frames)
            written_bytes = len(data) * len(audience.sessions)
            for session in audience.sessions:
                peer: Peer = session.peer
                if peer not in individual:
                    peer.transport.write(data)
            # All are of one pod: counted once for each audience.
            peer.traffic.delivered += len(frames) * len(audience.sessions)
            peer.traffic.sent_bytes += written_bytes
            self.written_bytes += written_bytes
        for peer in individual:
            if peer.audience is not None:
                peer.transport.write(peer.take_owed(batches.get(peer.audience, [])))
                if peer.stop is not None:
                    self._individual[peer] = None
        if self.written_bytes - self._checked_bytes > MUCH_BYTES:
            self._checked_bytes = self.written_bytes
            self.on_much_written()
        self.ticks += 1
        now = self.clock()
        self.tick_seconds += now - began
        self._measure(now)

    # --- private --------------------------------------------------------------------------------

    def _measure(self, now: float) -> None:
        """Take the delivery time of the tick's first text, or of the text that is sampled.

        One of each tick, so that an envelope costs nothing.
        """
        if self._tick_began:
            self.latency.add(now - self._tick_began)
            self._tick_began = 0.0
        if self._sample is not None:
            pod, position, received = self._sample
            if pod.journal.committed >= position:
                self.latency.add(now - received)
                self._sample = None

    def _announce(self, pod: PodCore) -> None:
        self._announcing.discard(pod)
        self._perform_presence(pod.announce(self.clock()))

    def _catch_up(self, peer: Peer) -> None:
        """Send a session more of the log, and charge the time to its participant (G-65)."""
        budget = self._quota.budget
        began, cpu_began = self.clock(), budget.cpu_clock()
        self._send_log(peer)
        excess = budget.measure(began, cpu_began, _FREE_SEARCH_SECONDS)
        if excess:
            budget.charge(peer.account, excess, began)

    def _send_log(self, peer: Peer) -> None:
        owed = CATCH_UP_BYTES + self._quota.read_bytes - peer.caught_up_to
        peer.caught_up_to = self._quota.read_bytes
        transport = peer.transport
        while peer.audience is None and not peer.closed and not transport.full:
            texts, effect = peer.pod.catch_up(peer.session, CATCH_UP_BYTES)
            if texts:
                data = b"".join(map(encode_text, texts))
                transport.write(data)
                peer.traffic.delivered += len(texts)
                peer.traffic.sent_bytes += len(data)
            if type(effect) is CatchUp:
                self._searching[peer] = None
                self._schedule_search()
                return
            if effect is not None:
                self.perform(effect)
                return
            if not texts:
                return  # until more of the log is committed
            owed -= CATCH_UP_BYTES
            if (
                owed <= 0
                and peer.session.position < peer.pod.journal.committed
                and not transport.full
            ):
                self._scheduler.call_soon(self.catch_up, peer)
                return

    def _search(self) -> None:
        """Look through the log for the sessions that wait for it in turn, for a part of a tick."""
        budget, waiting = self._quota.budget, self._searching
        began = now = self.clock()
        rest = began - self._searched_at
        until = began + min(max(rest, SEARCH_SECONDS), MAX_SEARCH_SECONDS)
        waits = []
        for peer in list(waiting):
            wait = budget.wait(peer.account, now)
            if wait and not peer.closed:
                waits.append(wait)
                continue
            del waiting[peer]
            self._catch_up(peer)  # if there is more to do, it comes back as the last
            now = self.clock()
            if now >= until:
                break
        self._searched_at = self.clock()
        self._search_soon = False
        self._schedule_search(min(waits, default=0.0) if len(waits) == len(waiting) else 0.0)

    def _schedule_search(self, wait: float = 0.0) -> None:
        if self._searching and not self._search_soon:
            self._search_soon = True
            if wait:
                self._scheduler.call_later(wait, self._search)
            else:
                self._scheduler.call_soon(self._search)

    def _perform_presence(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self.perform(effect, soon=False)
        if not (self._flush_soon or self._flush_later):
            self._flush_later = True
            self._scheduler.call_later(PRESENCE_SECONDS, self.flush)

    def _keep_live(self, relay: RelayLive) -> None:
        data = encode_text(relay.text)
        for audience in relay.audiences:
            if audience.live_bytes + len(data) > LIVE_BYTES:
                self.live_dropped += len(audience.sessions)
                continue
            if not audience.live:
                self._live.append(audience)
            audience.live.append((data, relay.sender))
            audience.live_bytes += len(data)

    def _write_live(self) -> None:
        """Write the live parts of this tick to the connections that keep up (G-82).

        Before everything else, so that what is written then does not count as unsent yet.
        """
        audiences, self._live = self._live, []
        for audience in audiences:
            parts, audience.live, audience.live_bytes = audience.live, [], 0
            if not audience.sessions:
                continue
            senders = {session for _, session in parts}
            data = b"".join([part for part, _ in parts])
            written = dropped = 0
            room = live_room(next(iter(audience.sessions)).peer.pod) - len(data)
            for session in audience.sessions:
                peer: Peer = session.peer
                if peer.transport.waiting_bytes > room or peer.stop is not None:
                    dropped += 1
                elif session not in senders:
                    peer.transport.write(data)
                    written += 1
                elif others := [part for part, sender in parts if sender is not session]:
                    rest = b"".join(others)
                    peer.transport.write(rest)
                    peer.traffic.delivered += len(others)
                    peer.traffic.sent_bytes += len(rest)
                    self.written_bytes += len(rest)
            peer.traffic.delivered += written * len(parts)
            peer.traffic.sent_bytes += written * len(data)
            self.live_dropped += dropped * len(parts)
            self.written_bytes += written * len(data)

    def _insert(self, peer: Peer, data: bytes) -> None:
        """Owe a peer a frame of its own at the present position of its audience."""
        assert peer.audience is not None, "a session that catches up gets its texts from the pod"
        if peer.stop is not None:
            return
        # G-38 holds within a tick too: a short repetition is answered with an original of any size.
        peer.owed_bytes += len(data)
        if peer.owed_bytes > peer.pod.limits.outbox_bytes:
            peer.stop = len(peer.audience.frames)
            self._individual[peer] = None
            self.on_outbox_full(peer)
            return
        if peer.inserts is None:
            peer.inserts = []
        peer.inserts.append((len(peer.audience.frames), data))
        peer.traffic.delivered += 1
        peer.traffic.sent_bytes += len(data)
        self._individual[peer] = None

    def _move(self, move: Move) -> None:
        peer: Peer = move.session.peer
        if move.text:
            self._insert(peer, encode_text(move.text))
        if peer.audience is None:
            outbox_bytes = peer.pod.limits.outbox_bytes
            # G-82: live parts that are unsent do not count.
            peer.transport.set_outbox(outbox_bytes + min(LIVE_BYTES, outbox_bytes // 8))
        else:
            self._write_owed(peer)
        peer.audience = move.audience
        peer.first = len(move.audience.frames)
        if peer.first or peer.stop is not None:
            self._individual[peer] = None

    def _write_owed(self, peer: Peer) -> None:
        """Write what this tick owes to a peer that leaves its audience."""
        if peer.audience is not None:
            peer.transport.write(peer.take_owed(peer.audience.frames))
            self._individual.pop(peer, None)

    def _close_full(self) -> None:
        full, self._full = self._full, []
        for peer in full:
            if peer.audience is not None:
                # Without flushing: the outbox is full, and a resumption delivers what is missing.
                self._individual.pop(peer, None)
                self.leave(peer)
                peer.transport.close(SLOW_READER, "outbox full: reading too slowly; resume")
