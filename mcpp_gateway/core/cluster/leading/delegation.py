"""Delegation: commands on their way to the leader, which may be this gateway itself.

A leader that is silent is suspected, and another gateway claims. Which one does not matter for
safety: of several claims the first in the log counts. A gateway that learns that the leader cannot
be reached claims at once; otherwise they claim one after another, in the order of `ranking`.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from mcpp.protocol.envelope import Envelope
from mcpp_gateway.core.cluster.leading.forwarding import PendingCommands
from mcpp_gateway.core.cluster.leading.leader import FindOwner, FindSettings, Leader
from mcpp_gateway.core.cluster.leading.leadership import Silence, ranking
from mcpp_gateway.core.cluster.messages import JOIN, Command, Forward, encode
from mcpp_gateway.core.cluster.records import LOST, Claim, encode_record
from mcpp_gateway.core.cluster.replica import Replica
from mcpp_gateway.core.cluster.wire import ClusterOptions, Wire
from mcpp_gateway.core.contexts.hops import Hops
from mcpp_gateway.core.records import Batch
from mcpp_gateway.core.sessions import Session

PROBE_SECONDS: Final = 0.015
_SHORTEST_SECONDS: Final = 0.001  # of a timer
_RESEND_SECONDS: Final = 0.5
_CLAIM_SECONDS: Final = 1.0
_RANK_SECONDS: Final = 0.1
_FORWARD_BYTES: Final = 262_144
_COMMAND_BYTES: Final = 64
_PORTIONS: Final = 150
_MAX_EARLY: Final = 16  # messages; what is lost is sent again
_ALIVE_SECONDS: Final = 0.75
# A leader whose beats do not say that it leads has missed its own claim. Four take a second.
_MAX_UNAWARE_BEATS: Final = 4


class Delegation:
    """The commands of one gateway in one pod. Owns them, and the leader if that is here."""

    def __init__(
        self,
        pod: str,
        gateway: str,
        replica: Replica,
        *,
        wire: Wire,
        silence: Silence,
        options: ClusterOptions,
        settings: FindSettings,
        owner: FindOwner,
        new_id: Callable[[], str],
        on_join: Callable[[int], None],
        new_hops: Callable[[], Hops | None],
    ) -> None:
        self.gateway = gateway
        self.outgoing = PendingCommands()
        self.leader: Leader | None = None  # if it is this gateway
        self._deciding: Leader | None = None  # the same, until it hands over to its successor
        self.may_lead = False
        self.refused: dict[str, int] = {}
        self._pod = pod
        self._replica = replica
        self._wire = wire
        self._silence = silence
        self._options = options
        self._settings = settings
        self._owner = owner
        self._new_id = new_id
        self._new_hops = new_hops
        self._on_join = on_join  # told the number of a session of this gateway, decided here
        self._incarnation = 0
        self._origin = f"{gateway}/0"
        self._unsent: list[Command] = []
        self._early: deque[Forward] = deque(maxlen=_MAX_EARLY)  # from before this gateway led
        self._suspected_since: float | None = None
        self._unaware_beats = 0  # of the gateway that leads by the log
        self._claimed_at = float("-inf")
        self._lost_term = 0  # in which it last claimed as one that knows of lost records
        self._progress_at = float("-inf")
        self._resend_soon = False
        self._held_until = float("-inf")

    @property
    def origin(self) -> str:
        """This incarnation of the gateway, as the log names it."""
        return self._origin

    @property
    def waiting_bytes(self) -> int:
        """The bytes of commands without an outcome."""
        return self.outgoing.waiting_bytes + _COMMAND_BYTES * len(self.outgoing)

    @property
    def is_quiet(self) -> bool:
        """Whether `step` has nothing to do, as long as the leader is heard of."""
        leader = self.leader
        waits = self.outgoing.queue or (leader is not None and leader.in_flight)
        is_watched = self._unaware_beats or self._suspected_since is not None
        return not waits and not is_watched

    # --- commands -------------------------------------------------------------------------------

    def command(
        self,
        event: int,
        number: int,
        session: Session | None,
        now: float,
        *,
        participant: str = "",
        grant: bytes = b"",
    ) -> None:
        """Ask for something else on behalf of a session of this gateway."""
        if not self.outgoing:
            self._progress_at = now
        seen = self._replica.fence.index
        command = self.outgoing.add(
            event, number, session, participant=participant, seen=seen, grant=grant, now=now
        )
        leader = self._deciding
        if leader is None:
            self._unsent.append(command)
        else:
            self._hear_own(leader, command, now)
        self._wire.wake()

    def send(
        self, number: int, session: Session, text: bytes, envelope: Envelope, now: float
    ) -> None:
        """Ask for a decision on a text of a session of this gateway."""
        outgoing, leader = self.outgoing, self._deciding
        if not outgoing.queue:
            self._progress_at = now
        pending = outgoing.add_text(number, session, text, envelope.id, now)
        if leader is None:
            self._unsent.append(pending.command)
        else:
            leader.hear_text((self._origin, number), pending.number, text, envelope, now)
            if leader.is_full:
                self._seal(leader, now)
        self._wire.wake()

    def cancel_join(self, session: int) -> None:
        """Do not ask again for a session whose connection has ended."""
        cancelled = self.outgoing.cancel_join(session)
        if cancelled is not None:
            self._unsent = [
                cancelled if each.number == cancelled.number else each for each in self._unsent
            ]

    def hear(self, forward: Forward, now: float) -> None:
        """Take commands of another gateway, if this one leads."""
        leader = self._deciding
        if leader is None:
            # Another gateway may know sooner than this one that it leads.
            if self.leader is None and forward.commands:
                self._early.append(forward)
            return
        for command in forward.commands:
            leader.hear(forward.origin, command, now)
            if leader.is_full:
                self._seal(leader, now)
        self._wire.wake()

    def flush(self, now: float) -> None:
        """Send what this tick has collected: commands to the leader, or a batch to the log."""
        leader, options = self.leader, self._options
        if leader is not None:
            is_free = leader.in_flight_bytes < options.in_flight_bytes
            if not leader.in_flight or (is_free and len(leader.in_flight) < options.in_flight):
                self._seal(leader, now)
        elif self._unsent and self._replica.fence.leader is not None and now >= self._held_until:
            unsent, self._unsent = self._unsent, []
            self._forward(unsent)

    def probe(self, now: float) -> float | None:
        """Ask the leader for a sign of life if it has been quiet while commands wait.

        An empty message does: if the leader is not there, the servers say so at once. Commands that
        it took with it would wait until they are sent again. Return the seconds until it is to be
        asked next; None if no commands wait.
        """
        leader = self._replica.fence.leader
        if self.leader is not None or not self.outgoing or now < self._held_until:
            return None
        quiet = now - self._progress_at
        if 0 <= quiet < PROBE_SECONDS:
            return max(PROBE_SECONDS - quiet, _SHORTEST_SECONDS)
        if leader is not None:
            self._wire.forward(leader, encode(Forward(self.origin, ())))
        return PROBE_SECONDS

    def limit_hops(self, has_persons: bool) -> None:
        """Begin or stop to limit hops, where a person was added or the last one removed."""
        leader = self.leader
        if leader is not None and (leader.hops is None) == has_persons:
            leader.hops = self._new_hops()

    def hold(self, until: float) -> None:
        """Send no commands before a time.

        A gateway that was suspended first finds out which connections have ended meanwhile: their
        joins would replace newer connections at other gateways.
        """
        self._held_until = until

    def start_again(self) -> None:
        """Drop all commands, and begin a new incarnation."""
        self._incarnation += 1
        self._origin = f"{self.gateway}/{self._incarnation}"
        self.outgoing = PendingCommands()
        self._unsent.clear()

    # --- leadership -----------------------------------------------------------------------------

    def tick(self, now: float) -> int:
        """Let the leader do what is due by the clock, about once a second, in portions.

        Return the number of contexts that expired.
        """
        leader, expired = self._deciding, 0
        if leader is None:
            return 0
        for _ in range(_PORTIONS):
            found = leader.expire(now)
            expired += found
            left = leader.end_absence(now, self._options.rejoin_seconds)
            if leader.is_full:
                self._seal(leader, now)
            if not (found or left):
                break
        self._wire.wake()
        return expired

    def step(self, now: float) -> None:
        """Do what is due by the clock, about ten times a second: repeat, suspect, claim."""
        stalled = now - self._progress_at >= _RESEND_SECONDS or self._resend_soon
        leader = self.leader
        if leader is None:
            is_held = now < self._held_until or self._replica.fence.leader is None
            if stalled and self.outgoing and not is_held:
                self._progress_at, self._resend_soon = now, False
                self._send_again()
            self._watch_leader(now)
            return
        if stalled and leader.in_flight:
            self._progress_at, self._resend_soon = now, False
            for sealed in leader.in_flight:
                self._wire.append(sealed.data)
        for origin in () if self._deciding is None else leader.origins:
            gateway = origin.rpartition("/")[0]
            if gateway != self.gateway and self._is_gone(gateway):
                leader.end_gateway(origin, now)
                self._wire.wake()

    def lose(self, gateway: str, now: float) -> None:
        """Take note that a gateway cannot be reached; claim if it leads."""
        self._silence.end(gateway)
        if self._replica.fence.leader == gateway and self._may_claim(now):
            self._claim(self.gateway, now)

    def claim_anew(self, now: float) -> None:
        """Claim whichever gateway leads, at most once a second, to learn where the log ends.

        When this gateway leads, it has applied what is before its claim.
        """
        if self.may_lead and now - self._claimed_at >= _CLAIM_SECONDS:
            self._claim(self.gateway, now)

    def begin_epoch(self, now: float) -> None:
        """Claim as the leader that knows of lost records, which begins a new epoch (N-14).

        At once, and once more after a second: others that know the same claim, too, and the first
        one that leads has to do it before it is replaced.
        """
        assert self.leader is not None
        if self._lost_term != self.leader.term or now - self._claimed_at >= _CLAIM_SECONDS:
            self._lost_term = self.leader.term
            self._claim(self.gateway, now, after_loss=True)

    def hear_beat(self, gateway: str, term: int | None) -> None:
        """Take note of a beat: the term in which its gateway leads this pod, if it does."""
        fence = self._replica.fence
        if gateway == fence.leader:
            is_aware = term is not None and term >= fence.term
            self._unaware_beats = 0 if is_aware else self._unaware_beats + 1

    def append_failed(self) -> None:
        """Take note that the log did not accept a record."""
        self._resend_soon = True

    def hand_over(self, now: float) -> bool:
        """Let another gateway lead. Return whether nothing is left to do.

        The claim follows what was decided here in the log. From then on nothing is decided here:
        all gateways, this one included, send their commands to the successor.
        """
        self.may_lead = False
        leader = self.leader
        if leader is None:
            return True
        others = [each for each in self._silence.candidates(_ALIVE_SECONDS) if each != self.gateway]
        if others and now - self._claimed_at > _CLAIM_SECONDS:
            self._seal(leader, now)
            self._deciding = None
            self._claim(ranking(self._pod, others)[0], now)
        return not others

    def change(self, claim: Claim, now: float) -> None:
        """Follow a claim that counts: stop leading, begin, or send the new leader what waits."""
        if self.leader is not None:
            self.leader = self._deciding = None
            self._replica.fall_back()
        self._suspected_since = None
        self._unaware_beats = 0
        self._silence.hear(claim.gateway)
        self._progress_at = now
        if claim.gateway == self.gateway:
            self._lead(now)
            return
        self._early.clear()
        if now >= self._held_until:
            self._send_again()
        else:
            self._resend_soon = True

    def commit(self, batch: Batch, now: float) -> None:
        """Take note of a batch that counts."""
        self._progress_at = now
        if self.leader is not None:
            self.leader.commit(batch)
            self._wire.wake()

    # --- private --------------------------------------------------------------------------------

    def _hear_own(self, leader: Leader, command: Command, now: float) -> None:
        leader.hear(self.origin, command, now)
        if command.event == JOIN:
            self._on_join(command.session)
        if leader.is_full:
            self._seal(leader, now)

    def _seal(self, leader: Leader, now: float) -> None:
        if not leader.in_flight:
            self._progress_at = now
        record = leader.seal(now)
        if record is not None:
            self._wire.append(record)

    def _send_again(self) -> None:
        self._unsent.clear()
        self._forward(self.outgoing.unresolved())

    def _forward(self, commands: list[Command]) -> None:
        gateway = self._replica.fence.leader
        assert gateway is not None
        for part in _portions(commands):
            self._wire.forward(gateway, encode(Forward(self.origin, part)))

    def _lead(self, now: float) -> None:
        self.leader = self._deciding = Leader(
            self._replica,
            self._settings,
            self._owner,
            self._new_id,
            refused=self.refused,
            checkpoint_entries=self._options.checkpoint_entries,
            hops=self._new_hops(),
        )
        self._unsent.clear()
        for command in self.outgoing.unresolved():
            self._hear_own(self.leader, command, now)
        early, self._early = self._early, deque(maxlen=_MAX_EARLY)
        for forward in early:
            self.hear(forward, now)
        self._wire.wake()

    def _watch_leader(self, now: float) -> None:
        leader = self._replica.fence.leader
        suspect_seconds = self._options.suspect_seconds
        is_aware = self._unaware_beats < _MAX_UNAWARE_BEATS
        if leader is not None and self._silence.seconds(leader) < suspect_seconds and is_aware:
            self._suspected_since = None
            return
        if self._suspected_since is None:
            self._suspected_since = now
        candidates = [*self._silence.candidates(suspect_seconds), self.gateway]
        rank = ranking(self._pod, candidates).index(self.gateway)
        if now - self._suspected_since >= rank * _RANK_SECONDS and self._may_claim(now):
            self._claim(self.gateway, now)

    def _is_gone(self, gateway: str) -> bool:
        return self._silence.seconds(gateway) >= self._options.gone_seconds

    def _may_claim(self, now: float) -> bool:
        if not self.may_lead or self.leader is not None:
            return False
        return now - self._claimed_at >= _CLAIM_SECONDS

    def _claim(self, gateway: str, now: float, *, after_loss: bool = False) -> None:
        self._claimed_at = now
        replica = self._replica
        epoch = replica.epoch or self._new_id()
        time, applied = max(now, replica.time), LOST if after_loss else replica.sequence
        claim = Claim(replica.fence.term + 1, gateway, time, epoch, applied=applied)
        self._wire.append(encode_record(claim))


def _portions(commands: list[Command]) -> Iterator[list[Command]]:
    """Yield commands in portions that fit into a message."""
    part: list[Command] = []
    size = 0
    for command in commands:
        bytes = len(command.text) + len(command.grant) + _COMMAND_BYTES
        if part and size + bytes > _FORWARD_BYTES:
            yield part
            part, size = [], 0
        part.append(command)
        size += bytes
    if part:
        yield part
