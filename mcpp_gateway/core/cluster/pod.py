"""One pod as one of several gateways serves it: edge checks here, decisions at the leader.

    text -> edge checks -> command -> leader -> log -> apply -> delivery at every gateway

Every gateway sends its commands to the leader, itself included, and delivers what the log brings.
So it makes no difference to a session which gateway leads, and a failover changes only who decides
on the commands that have no outcome yet.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from mcpp.errors import DecodeError
from mcpp.filters import Filter, everything
from mcpp.protocol.codec import decode
from mcpp_gateway.core import effects as close_codes
from mcpp_gateway.core import refusals
from mcpp_gateway.core.cluster.delegation import Delegation
from mcpp_gateway.core.cluster.forwarding import Held
from mcpp_gateway.core.cluster.leadership import Fence, Silence
from mcpp_gateway.core.cluster.messages import JOIN, LEAVE, SEND, STOP, PodBeat
from mcpp_gateway.core.cluster.records import (
    ANSWER,
    DENIED,
    GONE,
    JOINED,
    REPEATED,
    REPLACED,
    VERSION,
    Claim,
    ClusterBatch,
    ClusterState,
    Note,
    decode_record,
)
from mcpp_gateway.core.cluster.replica import Replica, is_join
from mcpp_gateway.core.cluster.wire import ClusterOptions, Wire
from mcpp_gateway.core.contexts.live_context import LiveContext
from mcpp_gateway.core.effects import CatchUp, Close, Effect
from mcpp_gateway.core.history.pages import MemorySource
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.records import LogEntry
from mcpp_gateway.core.sessions import Member, ParticipantSettings, Session

_NOT_YET: Final = 1 << 62  # a position that no log reaches
_DEFAULTS: Final = ClusterOptions()


class _Listed(LiveContext):
    """A context as a welcome lists it, as of one position. It has no other attributes."""

    __slots__ = ()

    def __init__(self, node: LiveContext) -> None:
        self.id = node.id
        self.type = node.type
        self.parent = node.parent
        self.creator = node.creator
        self.messages = node.messages
        self.lineage = node.lineage


class ClusterPod(PodCore):
    """A pod of a cluster at this gateway. Owns its sessions and the replica of the state."""

    def __init__(
        self,
        name: str,
        settings: Iterable[ParticipantSettings],
        limits: PodLimits,
        *,
        new_id: Callable[[], str],
        gateway: str,
        wire: Wire,
        silence: Silence,
        options: ClusterOptions = _DEFAULTS,
        fence: Fence | None = None,
    ) -> None:
        self.replica = Replica(limits, fence)
        super().__init__(name, settings, limits, new_id=new_id, journal=self.replica.journal)
        self.outdated = False  # whether the log holds records of a newer version
        self.void = 0  # records that did not count
        self.delegation = Delegation(
            name,
            gateway,
            self.replica,
            wire=wire,
            silence=silence,
            options=options,
            settings=lambda participant: self._settings.get(participant),
            new_id=new_id,
            on_join=self._capture,
        )
        self.refused = self.delegation.refused
        self.tree = self.replica.tree
        self._gate = None
        self._wire = wire
        self._sessions: dict[int, Session] = {}
        self._numbers: dict[Session, int] = {}
        self._last_number = 0
        self._joining: dict[int, tuple[str | None, int | None]] = {}
        self._opened: list[Session] = []  # in the present batch
        self._local: dict[str, Member] = {}
        self._captured: dict[int, list[LiveContext]] = {}

    @property
    def leader(self) -> str | None:
        """The gateway that decides."""
        return self.replica.fence.leader

    @property
    def is_leader(self) -> bool:
        """Whether this gateway decides."""
        return self.delegation.leader is not None

    @property
    def session_count(self) -> int:
        """The number of sessions at this gateway."""
        return len(self._sessions)

    def waiting_seconds(self, now: float) -> float:
        """Return for how long the oldest command has had no outcome."""
        since = self.delegation.outgoing.oldest_since
        return 0.0 if since is None else now - since

    def beat(self) -> PodBeat | None:
        """Return what the leader says about the pod; None if this gateway does not lead."""
        leader = self.delegation.leader
        return None if leader is None else PodBeat(leader.term, self.replica.sequence)

    # --- sessions -------------------------------------------------------------------------------

    def join(
        self,
        participant: str,
        now: float,
        *,
        filter: Filter = everything,
        after: str | None = None,
        last: int | None = None,
        peer: Any = None,
    ) -> tuple[Session, list[Effect]]:
        """Ask for a session. It is welcomed once the log shows that it has joined."""
        member = self._local.get(participant) or self._members.get(participant)
        if member is None:
            member = self._new_member(self._settings[participant])
        self._local[participant] = member
        session = Session(member, filter, peer, opens_at=_NOT_YET, waiting=deque())
        member.sessions.append(session)
        self.sessions += 1
        self.filter_counts.add(participant, filter)
        self._last_number += 1
        number = self._last_number
        self._sessions[number] = session
        self._numbers[session] = number
        self._joining[number] = after, last
        self.delegation.command(JOIN, number, session, now, participant=participant)
        return session, []

    def can_join(self, participant: str) -> bool:
        """Return whether the log can be reached: every join is decided there (G-53)."""
        return self.journal.admitting

    def leave(self, session: Session, now: float) -> list[Effect]:
        """Remove a session here, and ask the leader to do so everywhere."""
        number = self._numbers.get(session)
        if number is None:
            self._detach(session)
            return []
        if number in self._joining:
            self.delegation.cancel_join(number)
        if not self.stopping:
            self.delegation.command(LEAVE, number, session, now)
        self._remove(number)
        return []

    def catch_up(self, session: Session, max_bytes: int) -> tuple[list[bytes], Effect | None]:
        """Return what a session that is behind gets next; nothing until it has joined."""
        found = super().catch_up(session, max_bytes)
        self._waiting_for_commit.clear()  # what is in the journal is committed
        return found

    def revoke(self, participant: str, now: float) -> list[Effect]:
        """Close every session of a participant at this gateway with a final code."""
        member = self._local.get(participant)
        sessions = () if member is None else tuple(member.sessions)
        for session in sessions:
            self.leave(session, now)
        return [Close(session, close_codes.REVOKED, "token revoked") for session in sessions]

    def close_all(self, now: float) -> list[Effect]:
        """Close every session at this gateway: its client should resume at another one."""
        reason = "the log is out of reach; resume"
        sessions = list(self._numbers)
        for session in sessions:
            self.leave(session, now)
        return [Close(session, close_codes.LOG_UNREACHABLE, reason) for session in sessions]

    def reconfigure(self, settings: Iterable[ParticipantSettings], now: float) -> list[Effect]:
        """Apply a new list of participants; those no longer on it are closed for good."""
        self._settings = {each.id: each for each in settings}
        for buckets in (self._buckets, self._joins):
            for id in buckets.keys() - self._settings.keys():
                del buckets[id]
        effects: list[Effect] = []
        for id, member in {**self._members, **self._local}.items():
            found = self._settings.get(id)
            if found is not None:
                member.update(found)
            elif id in self._local:
                effects += self.revoke(id, now)
        return effects

    def receive(self, session: Session, text: bytes, now: float) -> Effect | None:
        """Check one text of a session as far as its gateway can, and pass it to the leader."""
        member = session.member
        wait = member.bucket.take(now)
        if wait:
            member.rate_limited += 1
            refusal = refusals.rate_limited(wait, "participant")
            return self._refuse(session, refusal, refusals.readable_id(text), now)
        try:
            envelope = decode(text)
        except DecodeError as error:
            refusal = refusals.invalid_envelope(error)
            return self._refuse(session, refusal, refusals.readable_id(text), now)
        id, kind = member.settings.id, envelope.kind
        if envelope.sender != id:
            refusal = refusals.sender_mismatch(envelope.sender, id)
            return self._refuse(session, refusal, envelope.id, now)
        if kind.startswith("system/"):
            return self._refuse(session, refusals.reserved_kind(kind), envelope.id, now)
        if kind.startswith("pod/"):
            return self._serve(session, envelope, now)
        capabilities = member.settings.capabilities
        if not (capabilities.reads_context or capabilities.allow(envelope, None)):
            # Where no pattern reads a context, this gateway knows as much as the leader.
            refusal = refusals.capability_violation(kind, capabilities.patterns)
            return self._refuse(session, refusal, envelope.id, now)
        number = self._numbers.get(session)
        if number is not None:
            self.delegation.command(SEND, number, session, now, text=text, envelope=envelope)
        return None

    def tick(self, now: float) -> list[Effect]:
        """Do what is due by the clock, about once a second. Only the leader has to."""
        self.expired += self.delegation.tick(now)
        return []

    def stop(self, now: float) -> None:
        """Say that this gateway stops: its participants may come back at another one."""
        self.stopping = True
        self.delegation.command(STOP, 0, None, now)

    # --- the log --------------------------------------------------------------------------------

    def begin(self, state: ClusterState) -> None:
        """Begin with a state instead of with the first record."""
        self.replica.restore(state)
        self.epoch = self.replica.epoch
        for id in self.replica.roster.present:
            self._add_member(self._settings.get(id) or ParticipantSettings.unknown(id))

    def fill(self, data: bytes) -> None:
        """Add the texts of a record that the state includes, for clients that resume."""
        record = decode_record(data)
        if isinstance(record, ClusterBatch):
            self.replica.journal.fill(record.batch.position, record.batch.entries)

    def apply(self, sequence: int, data: bytes, now: float) -> list[Effect]:
        """Apply the next record of the log and return what its sessions get."""
        self.replica.sequence = sequence
        leader = self.delegation.leader
        try:
            record = (leader and leader.recognise(data)) or decode_record(data)
        except msgspec.DecodeError:
            self.void += 1
            return []
        if record is None or record.version > VERSION:
            self.outdated, self.delegation.may_lead = True, False
        if isinstance(record, Claim):
            return self._apply_claim(record, now)
        if record is None or not self.replica.fence.admits(record.batch):
            self.void += 1
            return []
        return self._apply_batch(record, sequence, now)

    # --- private: sessions ----------------------------------------------------------------------

    def _memory_source(self) -> MemorySource:
        return MemorySource(self.replica.journal)  # what this gateway holds of the log

    def _answer(self, session: Session, text: bytes, filter: Filter | None = None) -> Effect | None:
        """Send one session a text, in its place behind its commands so far (G-30)."""
        if not self.delegation.outgoing.hold(Held(session, text, filter)):
            return self._deliver(session, text, filter)
        session.waiting_bytes += len(text)
        if session.waiting_bytes > self.limits.outbox_bytes:
            return Close(
                session, close_codes.SLOW_READER, "outbox full: answers wait for the log; resume"
            )
        return None

    def _deliver(self, session: Session, text: bytes, filter: Filter | None) -> Effect | None:
        if session not in self._numbers:
            return None
        if session.audience is None:
            return self._delivery.queue(session, text, filter)
        return self._delivery.answer(session, text, filter)

    def _apply_claim(self, claim: Claim, now: float) -> list[Effect]:
        replica = self.replica
        if not replica.fence.admits_claim(claim):
            self.void += 1
            return []
        replica.time = max(replica.time, claim.time)
        if not replica.epoch:
            replica.epoch = self.epoch = claim.epoch
        self._captured.clear()
        self.delegation.change(claim, now)
        self.tree = replica.tree
        return []

    # --- private: applying ----------------------------------------------------------------------

    def _apply_batch(self, record: ClusterBatch, sequence: int, now: float) -> list[Effect]:
        replica, batch, notes = self.replica, record.batch, record.notes
        effects: list[Effect] = []
        replica.begin_batch(batch, sequence)
        replica.heard.update(record.heard)
        heard = record.heard.get(self.delegation.origin)
        at = 0
        outgoing = self.delegation.outgoing
        broadcast, apply_entry = self._delivery.broadcast, replica.apply_entry
        for place, entry in enumerate(batch.entries):
            while at < len(notes) and notes[at].place <= place:
                self._apply_note(notes[at], batch.time, effects, now)
                at += 1
            apply_entry(entry, batch.time)
            if entry.about:
                self._apply_presence(entry)
            effects.append(broadcast(entry))
            if heard is not None and entry.id == outgoing.next_id:
                if not outgoing.pop_next():
                    self._release(outgoing.resolve(0), effects)
            elif entry.sender in self._local:
                # G-26: what a participant sends at other gateways counts here, too.
                self._local[entry.sender].bucket.charge(1, now)
        for note in notes[at:]:
            self._apply_note(note, batch.time, effects, now)
        if heard is not None:
            self._release(self.delegation.outgoing.resolve(heard), effects)
        # Last: they read this batch from the log, and get no part of it live as well.
        effects += map(CatchUp, self._opened)
        self._opened.clear()
        self.delegation.commit(batch, now)
        if replica.end_batch(batch):
            self._wire.save(replica.snapshot())
        return effects

    def _apply_presence(self, entry: LogEntry) -> None:
        for id in entry.about:
            if is_join(entry):
                self._add_member(self._settings.get(id) or ParticipantSettings.unknown(id))
            else:
                self._members.pop(id, None)

    def _add_member(self, settings: ParticipantSettings) -> Member:
        member = self._local.get(settings.id) or self._new_member(settings)
        self._members[settings.id] = member
        return member

    def _apply_note(self, note: Note, time: float, effects: list[Effect], now: float) -> None:
        self.replica.apply_note(note, time)
        if note.origin != self.delegation.origin:
            return
        session = self._sessions.get(note.session)
        if note.event == GONE:
            self._start_again(effects)
            return
        if session is not None:
            if note.event == JOINED:
                after, last = self._joining.pop(note.session)
                session.joined = now
                captured = self._captured.pop(note.session, None)
                contexts: Iterable[LiveContext] = self.tree if captured is None else captured
                self._begin(session, contexts, after, last)
                self._opened.append(session)
            elif note.event in (ANSWER, REPEATED):
                effect = self._deliver(session, self._answer_of(note), None)
                if effect is not None:
                    effects.append(effect)
            elif note.event == REPLACED:
                self._remove(note.session)
                reason = "replaced by a newer connection"
                effects.append(Close(session, close_codes.REPLACED, reason))
            elif note.event == DENIED:
                self._remove(note.session)
                reason = "not yet configured everywhere; try again"
                effects.append(Close(session, close_codes.LOG_UNREACHABLE, reason))
        self._captured.pop(note.session, None)
        if note.number:
            self._release(self.delegation.outgoing.resolve(note.number), effects)

    def _answer_of(self, note: Note) -> bytes:
        """Return the text of an answer. The original of a repeated envelope is in the log (G-27).

        Where this gateway does not have it, the repetition's own bytes serve (G-29).
        """
        if note.event == ANSWER:
            return note.text
        found = self.journal.find(note.text.decode())
        return (found and found.text) or self.delegation.outgoing.text_of(note.number)

    def _release(self, answers: Iterator[Held], effects: list[Effect]) -> None:
        for held in answers:
            held.session.waiting_bytes -= len(held.text)
            effect = self._deliver(held.session, held.text, held.filter)
            if effect is not None:
                effects.append(effect)

    def _start_again(self, effects: list[Effect]) -> None:
        """End all sessions here: the leader has given this gateway up, or it has stopped."""
        sessions = list(self._sessions.items())
        self.delegation.start_again()
        self._captured.clear()
        for number, session in sessions:
            self._remove(number)
            effects.append(
                Close(session, close_codes.LOG_UNREACHABLE, "the log was out of reach; resume")
            )

    def _remove(self, number: int) -> None:
        session = self._sessions.pop(number)
        del self._numbers[session]
        self._joining.pop(number, None)
        self._captured.pop(number, None)
        self._detach(session)

    def _detach(self, session: Session) -> None:
        member = session.member
        if session in member.sessions:
            member.sessions.remove(session)
            super()._detach(session)
        if not member.sessions and self._local.get(member.settings.id) is member:
            del self._local[member.settings.id]

    def _capture(self, number: int) -> None:
        """Keep the contexts as they are where a session joins: this gateway decides ahead."""
        self._captured[number] = [_Listed(node) for node in self.replica.tree]
