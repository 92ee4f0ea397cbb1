"""The hub: performs what pods ask for, many pods and connections at a time.

Frames from a server are unmasked, so everyone in an audience gets the same bytes. A broadcast is
appended once to each audience; at the end of the loop's tick the frames of an audience are joined
once, and every connection gets one write. The cost is the envelopes plus the connections of a tick,
not their product, and nothing is delayed.

What belongs to one connection alone (an error, an acknowledgement) is noted with its place between
the frames of the audience, and woven in when the tick is written.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol, assert_never

from mcpp.filters import Filter
from mcpp_gateway.core.effects import SLOW_READER, Broadcast, Close, Direct, Effect, Move
from mcpp_gateway.core.pod import Audience, PodCore, Session
from mcpp_gateway.edge.frames import encode_text
from mcpp_gateway.edge.read_quota import ReadAccount, ReadQuota

logger = logging.getLogger("mcpp.gateway")

# A session that is behind is sent this much of the log at once. In a turn of the loop it gets this
# more than was taken in since its last one: so it always comes nearer to the end, however busy the
# gateway is, and the others have their turn.
CATCH_UP_BYTES = 65_536

# News of presence may wait this long for more of it: when a thousand join at once, each of them is
# news to all the others, and a write for each would be a million.
PRESENCE_SECONDS = 0.02


class PeerTransport(Protocol):
    """What the hub needs of a connection."""

    def write(self, data: bytes) -> None:
        """Send bytes, without ever waiting."""

    def close(self, code: int, reason: str) -> None:
        """End the connection, after what was written."""

    def set_outbox(self, max_bytes: int) -> None:
        """Set how much may wait before the connection is reported as full."""

    @property
    def full(self) -> bool:
        """Whether more waits than the outbox holds."""


class Peer:
    """A session's connection as the hub sees it. The hub alone changes it."""

    __slots__ = (
        "account",
        "audience",
        "begin",
        "caught_up_to",
        "closed",
        "inserts",
        "line",
        "owed_bytes",
        "pod",
        "session",
        "stop",
    )

    def __init__(self, pod: PodCore, line: PeerTransport) -> None:
        self.pod = pod
        self.line = line
        self.session: Session
        self.account: ReadAccount
        self.audience: Audience | None = None  # None: behind, or closed
        self.closed = False
        self.begin = 0  # how many of the audience's frames of this tick are not for this peer
        self.inserts: list[tuple[int, bytes]] | None = None
        self.owed_bytes = 0  # of the inserts
        self.caught_up_to = 0  # what the hub had read in all when this peer last had its turn
        # Where the outbox was full, among the audience's frames of this tick: nothing from there on
        # is sent, or a resumption from a later envelope would hide the gap.
        self.stop: int | None = None

    def take(self, frames: list[bytes]) -> bytes:
        """Return what this tick owes to this peer, its own texts woven in, and owe it no more."""
        parts: list[bytes] = []
        if self.stop is not None:
            frames = frames[: self.stop]
            self.stop = 0
        at = self.begin
        for place, own in self.inserts or ():
            parts += frames[at:place]
            parts.append(own)
            at = place
        parts += frames[at:]
        self.begin = 0
        self.inserts = None
        self.owed_bytes = 0
        return b"".join(parts)


class Hub:
    """Owns the peers and what the present tick owes to them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], quota: ReadQuota
    ) -> None:
        self.clock = clock
        self.received = 0
        self.delivered = 0
        self.tick_seconds = 0.0
        self.ticks = 0
        self._loop = loop
        self._quota = quota
        self._soon = False
        self._later = False
        self._audiences: list[Audience] = []
        self._special: dict[Peer, None] = {}
        self._full: list[Peer] = []

    def join(
        self,
        pod: PodCore,
        participant: str,
        line: PeerTransport,
        *,
        filter: Filter,
        after: str | None,
        last: int | None,
    ) -> Peer:
        """Bring a connection into its pod and begin to send."""
        peer = Peer(pod, line)
        peer.session, effects = pod.join(
            participant, self.clock(), filter=filter, after=after, last=last, peer=peer
        )
        peer.account = self._quota.account(peer.session.member)
        line.set_outbox(CATCH_UP_BYTES)
        peer.caught_up_to = self._quota.read_bytes
        self._perform(effects)
        self._flush_later()
        self.catch_up(peer)
        return peer

    def leave(self, peer: Peer) -> None:
        """Take a lost connection out of its pod."""
        peer.audience = None
        peer.closed = True
        self._perform(peer.pod.leave(peer.session, self.clock()))
        self._flush_later()

    def flush_and_leave(self, peer: Peer) -> None:
        """Take a connection out that is about to close, after what this tick owes to it."""
        self._write_now(peer)
        self.leave(peer)

    def receive(self, peer: Peer, text: bytes, now: float) -> bool:
        """Give one text of a connection to its pod. Return whether to stop reading from it."""
        self.received += 1
        effect = peer.pod.receive(peer.session, text, now)
        # The common effect, inlined: 0.4 µs less than `perform`.
        if type(effect) is Broadcast and not effect.besides:
            data = encode_text(effect.text)
            for audience in effect.audiences:
                if not audience.frames:
                    self._audiences.append(audience)
                audience.frames.append(data)
            if not self._soon:
                self._soon = True
                self._loop.call_soon(self.flush)
            return False
        if effect is not None:
            self.perform((effect,))
        return peer.closed or peer.session.member.rate_limited > peer.account.limit

    def perform(self, effects: Iterable[Effect]) -> None:
        """Do what a pod asks for, in its order, before the loop's tick ends."""
        self._perform(effects)
        if not self._soon and (self._audiences or self._special):
            self._soon = True
            self._loop.call_soon(self.flush)

    def catch_up(self, peer: Peer) -> None:
        """Send a peer that is behind as much of the log as its line takes now."""
        owed = CATCH_UP_BYTES + self._quota.read_bytes - peer.caught_up_to
        peer.caught_up_to = self._quota.read_bytes
        while peer.audience is None and not peer.closed and not peer.line.full:
            texts, effect = peer.pod.catch_up(peer.session, CATCH_UP_BYTES)
            if texts:
                peer.line.write(b"".join(map(encode_text, texts)))
                self.delivered += len(texts)
            if effect is not None:
                self.perform((effect,))
                return
            owed -= CATCH_UP_BYTES
            if owed <= 0 and peer.session.position < peer.pod.log.end and not peer.line.full:
                self._loop.call_soon(self.catch_up, peer)
                return

    def on_outbox_full(self, peer: Peer) -> None:
        """Take note of a line whose outbox is full. It may be in the middle of `flush`."""
        if peer.audience is not None:
            self._full.append(peer)
            self._loop.call_soon(self._close_full)

    def flush(self) -> None:
        """Write what this tick owes, one write a connection."""
        began = self.clock()
        self._quota.start_tick()
        self._soon = self._later = False
        audiences, self._audiences = self._audiences, []
        special, self._special = self._special, {}
        batches: dict[Audience, list[bytes]] = {}
        for audience in audiences:
            batches[audience], audience.frames = audience.frames, []
        for audience, frames in batches.items():
            data = b"".join(frames)
            self.delivered += len(frames) * len(audience.sessions)
            for session in audience.sessions:
                peer: Peer = session.peer
                if peer not in special:
                    peer.line.write(data)
        for peer in special:
            if peer.audience is not None:
                peer.line.write(peer.take(batches.get(peer.audience, [])))
                if peer.stop is not None:
                    self._special[peer] = None
        self.ticks += 1
        self.tick_seconds += self.clock() - began

    # --- private --------------------------------------------------------------------------------

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Broadcast():
                    data = encode_text(effect.text)
                    for audience in effect.audiences:
                        if not audience.frames:
                            self._audiences.append(audience)
                        audience.frames.append(data)
                    for session in effect.besides:
                        self._insert(session.peer, data)
                case Direct():
                    self._insert(effect.session.peer, encode_text(effect.text))
                case Move():
                    self._move(effect)
                case Close():
                    self._close(effect.session.peer, effect.code, effect.reason)
                case _:
                    assert_never(effect)

    def _flush_later(self) -> None:
        if not (self._soon or self._later):
            self._later = True
            self._loop.call_later(PRESENCE_SECONDS, self.flush)

    def _insert(self, peer: Peer, data: bytes) -> None:
        assert peer.audience is not None, "a peer that is behind gets its texts from the pod"
        if peer.stop is not None:
            return
        # G-38 holds within a tick too: a short repetition is answered with an original of any size.
        peer.owed_bytes += len(data)
        if peer.owed_bytes > peer.pod.limits.outbox_bytes:
            peer.stop = len(peer.audience.frames)
            self._special[peer] = None
            self.on_outbox_full(peer)
            return
        if peer.inserts is None:
            peer.inserts = []
        peer.inserts.append((len(peer.audience.frames), data))
        self.delivered += 1
        self._special[peer] = None

    def _move(self, move: Move) -> None:
        peer: Peer = move.session.peer
        if move.text:
            self._insert(peer, encode_text(move.text))
        if peer.audience is None:
            peer.line.set_outbox(peer.pod.limits.outbox_bytes)
        else:
            self._write_now(peer)
        peer.audience = move.audience
        peer.begin = len(move.audience.frames)
        if peer.begin or peer.stop is not None:
            self._special[peer] = None

    def _write_now(self, peer: Peer) -> None:
        """Write what the tick owes to a peer before it leaves its audience."""
        if peer.audience is not None:
            peer.line.write(peer.take(peer.audience.frames))
            self._special.pop(peer, None)

    def _close(self, peer: Peer, code: int, reason: str) -> None:
        self.flush_and_leave(peer)
        peer.line.close(code, reason)

    def _close_full(self) -> None:
        full, self._full = self._full, []
        for peer in full:
            if peer.audience is not None:
                logger.warning(
                    "slow reader closed", extra={"participant": peer.session.member.standing.id}
                )
                # Not `_close`: its outbox is full, so what the tick owes it is left for its resume.
                self._special.pop(peer, None)
                self.leave(peer)
                peer.line.close(SLOW_READER, "reads too slowly; resume")
