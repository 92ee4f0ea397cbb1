"""A read-only pod in which recorded entries arrive again, at the recorded pace times a speed."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from mcpp import kinds
from mcpp.errors import DecodeError, McppError
from mcpp.protocol.codec import decode_unambiguous
from mcpp.protocol.envelope import Envelope
from mcpp_gateway.core import refusals, system_envelopes
from mcpp_gateway.core.contexts.tree import LiveContexts
from mcpp_gateway.core.decisions import Decisions, Verdict, sender_refusal
from mcpp_gateway.core.effects import POSITION_LOST, Close, Effect, Several
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.records import LogEntry
from mcpp_gateway.core.replay.journal import RecordedLog, ReplayJournal
from mcpp_gateway.core.replay.playhead import Playhead
from mcpp_gateway.core.sessions import ParticipantSettings, Session

MIN_SPEED: Final = 0.01
MAX_SPEED: Final = 1000.0
# Arrive in one step at most. A seek over more makes participants rejoin: they read it as they can.
_MAX_STEP: Final = 1000
_MEMBERS: Final = frozenset(("state", "position", "time", "speed"))


class ReplayError(McppError):
    """A request that cannot be carried out; `member` says which part of it is wrong."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason


class _ReadOnlyDecisions(Decisions):
    """Accepts nothing but what is for the gateway."""

    def decide(
        self, settings: ParticipantSettings, envelope: Envelope, text: bytes, now: float
    ) -> Verdict:
        """Return a refusal, or None for `pod/*`."""
        refusal = sender_refusal(settings, envelope)
        if refusal is not None or envelope.kind.startswith("pod/"):
            return refusal
        return refusals.read_only()


class ReplayPod(PodCore):
    """Plays a recording. Its participants only watch: there is no presence of theirs."""

    def __init__(
        self,
        name: str,
        settings: Iterable[ParticipantSettings],
        limits: PodLimits,
        *,
        new_id: Callable[[], str],
        recording: RecordedLog,
        speed: float,
    ) -> None:
        self._played = ReplayJournal(recording)
        self._recording = recording
        super().__init__(name, settings, limits, new_id=new_id, journal=self._played)
        self._decisions = _ReadOnlyDecisions(self.tree, self._played)
        self.playhead = Playhead(speed, self._time_at(recording.start))
        self._begun = False
        self._restore_tree()
        self._requests.add(kinds.SET_REPLAY, self._serve_control)

    # --- playing --------------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Let arrive what is due by now."""
        if self.playhead.state != "playing":
            return []
        due = self.playhead.recorded(now)
        waiting = self._recording.read(self._played.end, _MAX_STEP)
        entries = [entry for entry in waiting if entry.time <= due]
        effects = self._arrive(entries)
        if self._played.end >= self._recording.end:
            self.playhead.set_state("ended", now)
            effects += self._tell(now)
        elif len(entries) == _MAX_STEP:
            # More is due than can arrive: the replay is slower than asked for, and drops nothing.
            self.playhead.seek(entries[-1].time, now)
        return effects

    def next_due_seconds(self, now: float) -> float | None:
        """Return the seconds until the next entry is due; None while nothing is played."""
        if self.playhead.state != "playing":
            return None
        return (self._time_at(self._played.end) - self.playhead.recorded(now)) / self.playhead.speed

    def control(self, envelope: Envelope, session: Session, now: float) -> list[Effect]:
        """Carry out a `pod/replay`, and answer it. Raises ReplayError."""
        request = _parse(envelope)
        target = self._target(request)
        effects: list[Effect] = []
        if "speed" in request:
            self.playhead.set_speed(request["speed"], now)
        if target is not None:
            effects += self._seek(target, now)
        if self._played.end >= self._recording.end:
            self.playhead.set_state("ended", now)
        elif "state" in request:
            self.playhead.set_state(request["state"], now)
        elif self.playhead.state == "ended":
            self.playhead.set_state("paused", now)
        answer = self.answers.send(session, self._status_text(now, envelope.id))
        closes = [each for each in effects if isinstance(each, Close)]
        others = [each for each in effects if not isinstance(each, Close)]
        told = [] if not request or closes else self._tell(now, but=session)
        return [*others, *([] if answer is None else [answer]), *told, *closes]

    def status(self, now: float) -> dict[str, Any]:
        """Return how far the recording was played, as welcomes and `system/replay` state it."""
        recording = self._recording
        return {
            "state": self.playhead.state,
            "position": self._played.end,
            "speed": self.playhead.speed,
            "start": recording.start,
            "end": recording.end,
            "time": self.playhead.recorded(now),
            "start_time": self._time_at(recording.start),
            "end_time": self._time_at(recording.end - 1),
        }

    def join(self, participant: str, now: float, **options: Any) -> tuple[Session, list[Effect]]:
        """Let a participant in. Playing begins when the first one joins."""
        if not self._begun:
            self._begun = True
            self.playhead.set_state("playing", now)
        return super().join(participant, now, **options)

    # --- what differs from a pod that records ---------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Do nothing: contexts expire as they were recorded."""
        return []

    def _log_presence(self, now: float) -> list[Effect]:
        """Log nothing: presence is that of the recording."""
        self._presence.drop()
        return []

    def _pod_info(self, now: float) -> dict[str, Any]:
        return {**super()._pod_info(now), "replay": self.status(now)}

    def _serve_control(self, session: Session, envelope: Envelope, now: float) -> Effect | None:
        try:
            effects = self.control(envelope, session, now)
        except ReplayError as error:
            refusal = refusals.invalid_replay(error.member, error.reason)
            return self.answers.refuse(session, refusal, envelope.id, now)
        return Several(tuple(effects)) if effects else None

    # --- private --------------------------------------------------------------------------------

    def _arrive(self, entries: list[LogEntry]) -> list[Effect]:
        if not entries:
            return []
        for entry in entries:
            self._replay(entry, entry.time, {})
        self._move_to(self._played.end + len(entries))
        effects: list[Effect] = [self._delivery.broadcast(entry) for entry in entries]
        return [*effects, *self.release(self._played.end)]

    def _move_to(self, position: int) -> None:
        self._played.end = position
        assert self._gate is not None
        self._gate.committed = position

    def _seek(self, target: int, now: float) -> list[Effect]:
        """Go to a position. A participant never receives an entry twice in one epoch."""
        head = self._played.end
        if target == head:
            return []
        if head < target <= head + _MAX_STEP:
            effects = self._arrive(self._recording.read(head, target - head))
        else:
            effects = [
                Close(session, POSITION_LOST, "the replay moved; rejoin")
                for member in self.members.present.values()
                for session in member.sessions
            ]
            if target < head:
                self.epoch = self._new_id()
            self._move_to(target)
            self._restore_tree()
        self.playhead.seek(self._time_at(target), now)
        return effects

    def _restore_tree(self) -> None:
        """Set the contexts as they were at the present position."""
        self.tree = LiveContexts(self.limits)
        found = self._recording.before(self._played.end)
        if found is not None:
            state, batches = found
            self.tree.restore(state.live, state.dormant)
            for batch in batches:
                for entry in batch.entries:
                    self._replay(entry, batch.time, {})

    def _target(self, request: dict[str, Any]) -> int | None:
        recording = self._recording
        if "time" in request:
            position = recording.position_at(request["time"])
        elif isinstance(request.get("position"), str):
            found = recording.find(request["position"])
            if found is None or not recording.start <= found < recording.end:
                raise ReplayError("position", "is not an envelope of the recording")
            position = found
        elif "position" in request:
            position = request["position"]
        else:
            return None
        return min(max(position, recording.start), recording.end)

    def _time_at(self, position: int) -> float:
        """Return the time of an entry; at the end, that of the last one."""
        position = min(position, self._recording.end - 1)
        found = self._recording.read(position, 1)
        return found[0].time if found else 0.0

    def _status_text(self, now: float, correlation_id: str | None = None) -> bytes:
        return system_envelopes.system(
            self._new_id(), kinds.REPLAY, self.status(now), now, correlation_id=correlation_id
        )

    def _tell(self, now: float, but: Session | None = None) -> list[Effect]:
        """Return the effects that tell all sessions the state."""
        sessions = [each for member in self.members.present.values() for each in member.sessions]
        answers = (
            self.answers.send(each, self._status_text(now)) for each in sessions if each is not but
        )
        return [each for each in answers if each is not None]


def _parse(envelope: Envelope) -> dict[str, Any]:
    try:
        payload = decode_unambiguous(envelope.raw_payload, "payload") or {}
    except DecodeError as error:
        raise ReplayError("payload", error.reason) from None
    if not isinstance(payload, dict):
        raise ReplayError("payload", "must be an object")
    given = {name: value for name, value in payload.items() if value is not None}
    for name in sorted(given.keys() - _MEMBERS):
        raise ReplayError(name[:40], "is not a member of a request")
    if given.get("state", "playing") not in ("playing", "paused"):
        raise ReplayError("state", 'must be "playing" or "paused"')
    if type(given.get("position", 0)) not in (int, str):
        raise ReplayError("position", "must be a position or the id of an envelope")
    if type(given.get("time", 0)) not in (int, float) or abs(given.get("time", 0)) > 1e15:
        raise ReplayError("time", "must be a Unix time")
    speed = given.get("speed", 1)
    if type(speed) not in (int, float) or not MIN_SPEED <= speed <= MAX_SPEED:
        raise ReplayError("speed", f"must be a number from {MIN_SPEED} to {MAX_SPEED:g}")
    return given
