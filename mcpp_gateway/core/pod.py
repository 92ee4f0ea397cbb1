"""The pod: texts and times in, effects out. It knows no socket, no clock and no asyncio.

Every rule of the gateway is here or in what this module holds: roster, context tree, limits,
filters, duplicates and history. Participants are configured; sessions are their connections. The
sessions that share a filter form an audience, and get the same bytes.

A session begins behind: it reads the log with `catch_up` until it has met its end, and only then
takes its place in an audience. So a long absence never fills an outbox.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from mcpp import kinds
from mcpp.errors import DecodeError, FilterError
from mcpp.filters import Filter, everything, parse
from mcpp.protocol.codec import decode, decode_unambiguous
from mcpp.protocol.envelope import GATEWAY, Envelope
from mcpp_gateway.core import refusals, system_envelopes
from mcpp_gateway.core.audiences import Audiences
from mcpp_gateway.core.effects import (
    POSITION_LOST,
    REPLACED,
    REVOKED,
    SLOW_READER,
    Broadcast,
    Close,
    Direct,
    Effect,
    Move,
)
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.log import Log, LogEntry, MemoryLog
from mcpp_gateway.core.rates import Bucket, Rate
from mcpp_gateway.core.refusals import Refusal
from mcpp_gateway.core.sessions import Audience, Member, ParticipantSettings, Session
from mcpp_gateway.core.tree import LiveContext, LiveContexts, Placement

__all__ = ["GATEWAY", "Audience", "Member", "ParticipantSettings", "PodCore", "Session"]

# A join is news to everyone, and reads the log to count what it will replay. So a participant may
# come back this often, and each envelope that it makes the pod look at counts as a part of a join.
_JOINS_PER_SECOND: Final = 10
_JOIN_BURST: Final = 100
_READ_TOKENS: Final = 1 / 500
_READ_AT_ONCE: Final = 256
# What reading an entry counts for that is not sent: filters take their time too.
_UNSENT_BYTES: Final = 256
_RESERVED: Final = ("pod/", "system/")
# G-47: longer lists of recipients are searched as sets, and no route is remembered for them.
_SHORT_LIST: Final = 8


class PodCore:
    """One pod. Owns roster, contexts, log and audiences; performs nothing itself."""

    def __init__(
        self,
        name: str,
        settings: Iterable[ParticipantSettings],
        limits: PodLimits,
        *,
        new_id: Callable[[], str],
        log: Log | None = None,
    ) -> None:
        self.name = name
        self.epoch = new_id()
        self.log: Log = log or MemoryLog(limits.history_messages, limits.history_bytes)
        self.tree = LiveContexts(limits)
        self.limits = limits
        self.refused: dict[str, int] = {}
        self.expired = 0
        self._new_id = new_id
        self._rate = Rate.per_second(limits.messages_per_second, limits.burst)
        self._join_rate = _join_rate(limits)
        self._settings = {each.id: each for each in settings}
        # Buckets outlive sessions, or a reconnection would be a full one.
        self._buckets: dict[str, Bucket] = {}
        self._joins: dict[str, Bucket] = {}
        self._members: dict[str, Member] = {}
        self._audiences = Audiences()

    @property
    def participants(self) -> Sequence[str]:
        """The ids of those present, in the order in which they joined."""
        return tuple(self._members)

    # --- joining and leaving --------------------------------------------------------------------

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
        """Let a configured participant in. Its session begins with the welcome, then `catch_up`."""
        settings = self._settings[participant]
        effects: list[Effect] = []
        member = self._members.get(participant)
        if member is None:
            member = self._arrive(settings)
            effects.append(self._presence("join", member, now))
        elif not settings.multiple:
            for old in member.sessions:
                self._audiences.detach(old)
                effects.append(Close(old, REPLACED, "replaced by a newer connection"))
            member.sessions.clear()
        session = Session(member, filter, peer)
        member.sessions.append(session)
        resumed, replayed = self._place(session, after, last)
        read = self.log.end - session.position
        joins = self._joins.setdefault(participant, Bucket(self._join_rate))
        joins.charge(1 + read * _READ_TOKENS, now)
        welcome = self._welcome(session, now, resumed, replayed)
        session.waiting = deque([(session.position, welcome, None)])
        session.waiting_bytes = len(welcome)
        return session, effects

    def join_wait(self, participant: str, now: float) -> float:
        """Return the seconds until a participant may join again, 0 if it may now (G-49)."""
        bucket = self._joins.get(participant)
        return 0.0 if bucket is None else bucket.wait(now)

    def leave(self, session: Session, now: float) -> list[Effect]:
        """Take a session out; the last one of a participant takes the participant along."""
        member = session.member
        if session not in member.sessions:
            return []
        member.sessions.remove(session)
        self._audiences.detach(session)
        if member.sessions:
            return []
        del self._members[member.settings.id]
        return [self._presence("leave", member, now)]

    def catch_up(self, session: Session, max_bytes: int) -> tuple[list[bytes], Effect | None]:
        """Return what a session that is behind gets next, about `max_bytes` of it.

        With it comes a Close if the log has forgotten what the session has not read: a gap is told,
        never hidden. With nothing comes a Move: the session has met the end of the log and is live.
        So it goes live only while its line has room, and its outbox begins empty.
        """
        texts: list[bytes] = []
        size = 0
        while size < max_bytes:
            if session.position < self.log.start:
                return texts, Close(session, POSITION_LOST, "fell behind the history; resume")
            entries = self.log.read(session.position, _READ_AT_ONCE)
            if not entries:
                self._take_waiting(session, texts)
                return texts, None if texts else Move(session, self._audiences.attach(session))
            for entry in entries:
                size += self._take_waiting(session, texts)
                if self._passes(session, entry):
                    texts.append(entry.text)
                    size += len(entry.text)
                else:
                    size += _UNSENT_BYTES
                session.position += 1
                if size >= max_bytes:
                    break
        return texts, None

    def reconfigure(self, settings: Iterable[ParticipantSettings], now: float) -> list[Effect]:
        """Take a new list of participants; those no longer on it are closed for good."""
        self._settings = {each.id: each for each in settings}
        for buckets in (self._buckets, self._joins):
            for id in buckets.keys() - self._settings.keys():
                del buckets[id]
        effects: list[Effect] = []
        for id, member in list(self._members.items()):
            found = self._settings.get(id)
            if found is None:
                effects += self.revoke(id, now)
            else:
                member.update(found)
        return effects

    def revoke(self, participant: str, now: float) -> list[Effect]:
        """Close every session of a participant with a final code."""
        member = self._members.get(participant)
        if member is None:
            return []
        closes = [Close(session, REVOKED, "token revoked") for session in member.sessions]
        presence = [effect for close in closes for effect in self.leave(close.session, now)]
        return [*closes, *presence]

    # --- envelopes ------------------------------------------------------------------------------

    def receive(self, session: Session, text: bytes, now: float) -> Effect | None:
        """Judge one text of a session: relay it, answer it, or refuse it. Never raises."""
        member = session.member
        wait = member.bucket.take(now)
        if wait:
            # C-16: to refuse has to be cheaper than to flood, so the text is not decoded.
            member.rate_limited += 1
            refusal = refusals.rate_limited(wait, "participant")
            return self._refuse(session, refusal, refusals.readable_id(text), now)
        try:
            envelope = decode(text)
        except DecodeError as error:
            refusal = refusals.invalid_envelope(error)
            return self._refuse(session, refusal, refusals.readable_id(text), now)
        verdict = self._judge(member, envelope, text, now)
        if isinstance(verdict, LogEntry):
            self.log.append(verdict)
            if self._audiences.plain:
                return Broadcast(text, self._audiences.all)
            return self._deliver(verdict)
        if isinstance(verdict, Refusal):
            return self._refuse(session, verdict, envelope.id, now)
        if verdict is not None:
            return self._direct(session, verdict)
        return self._serve(session, envelope, now)

    def tick(self, now: float) -> list[Effect]:
        """Do what time demands, once a second: forget idle contexts and say so, children first."""
        forgotten = self.tree.expire(now)
        self.expired += len(forgotten)
        return [
            self._broadcast(kinds.CONTEXT, system_envelopes.expiry(node), now) for node in forgotten
        ]

    # --- private: judging -----------------------------------------------------------------------

    def _judge(
        self, member: Member, envelope: Envelope, text: bytes, now: float
    ) -> LogEntry | Refusal | bytes | None:
        """Return the entry to broadcast, a refusal, the original of a repeat, or None for pod/*.

        The order of the checks is part of the protocol (G-20).
        """
        settings = member.settings
        sender = settings.id
        if envelope.sender != sender:
            return refusals.sender_mismatch(envelope.sender, sender)
        kind = envelope.kind
        if kind.startswith(_RESERVED):
            return None if kind.startswith("pod/") else refusals.reserved_kind(kind)
        context = envelope.context
        lineage = node = None
        if context is not None:
            node = self.tree.find(context)
            lineage = self.tree.lineage(context) if node is None else node.lineage
        if not settings.capabilities.allow(envelope, lineage):
            return refusals.capability_violation(kind, settings.capabilities.patterns)
        original = self.log.find(envelope.id)
        if original is not None:
            if original.sender == sender:
                return original.text
            return refusals.duplicate_id(envelope.id)
        if context is not None:
            place: LiveContext | Placement | None = node
            if place is None:
                found = self.tree.check(context, sender)
                if isinstance(found, str):
                    return refusals.context(found, context.id)
                place = found
                node = found if isinstance(found, LiveContext) else found.node
            if node is not None:
                wait = node.bucket.take(now)
                if wait:
                    return refusals.rate_limited(wait, "context")
            lineage = self.tree.enter(place, sender, now)
        to = envelope.to
        if to is None or len(to) <= _SHORT_LIST:
            return LogEntry(envelope.id, sender, to, kind, lineage, text)
        return LogEntry(envelope.id, sender, frozenset(to), kind, lineage, text)

    def _serve(self, session: Session, envelope: Envelope, now: float) -> Effect | None:
        """Answer what is meant for the gateway itself."""
        if envelope.kind != kinds.SET_FILTER:
            refusal = refusals.reserved_kind(envelope.kind)
            return self._refuse(session, refusal, envelope.id, now)
        try:
            payload = decode_unambiguous(envelope.raw_payload, "$.payload")
            if not isinstance(payload, dict) or not isinstance(payload.get("filter"), dict):
                raise FilterError("$.payload.filter", "must be an object")  # noqa: TRY301
            filter = parse(payload["filter"])
        except (DecodeError, FilterError) as error:
            refusal = refusals.invalid_filter(error)
            return self._refuse(session, refusal, envelope.id, now)
        answer = system_envelopes.system(
            self._new_id(),
            kinds.FILTER_SET,
            {"filter": filter.to_json()},
            now,
            correlation_id=envelope.id,
        )
        return self._set_filter(session, filter, answer)

    def _refuse(
        self, session: Session, refusal: Refusal, correlation_id: str | None, now: float
    ) -> Effect | None:
        self.refused[refusal.code] = self.refused.get(refusal.code, 0) + 1
        text = system_envelopes.system(
            self._new_id(), kinds.ERROR, refusal.payload(), now, correlation_id=correlation_id
        )
        return self._direct(session, text)

    # --- private: delivering --------------------------------------------------------------------

    def _deliver(self, entry: LogEntry) -> Broadcast:
        """Route an entry to the audiences whose filter it passes, and to whom it goes anyway."""
        audiences = self._audiences
        route = audiences.route(entry)
        if len(route) == len(audiences.all):
            return Broadcast(entry.text, route)
        return Broadcast(entry.text, route, self._extra_recipients(entry, route))

    def _extra_recipients(
        self, entry: LogEntry, route: tuple[Audience, ...]
    ) -> tuple[Session, ...]:
        """Return the sessions outside the route that get an entry all the same (F-09)."""
        reached = frozenset(route)
        return tuple(
            session
            for id in {entry.sender, *(entry.to or ())}
            if id in self._members
            for session in self._members[id].sessions
            if session.audience is not None and session.audience not in reached
        )

    def _passes(self, session: Session, entry: LogEntry) -> bool:
        """Tell whether a session that reads the log gets an entry: what `_deliver` does live."""
        me = session.member.settings.id
        if entry.sender == GATEWAY:
            return entry.about != me
        return (
            entry.sender == me
            or session.filter.matches(entry, entry.lineage)
            or (entry.to is not None and me in entry.to)
        )

    def _direct(self, session: Session, text: bytes) -> Effect | None:
        if session.audience is not None:
            return Direct(session, text)
        return self._wait(session, text, None)

    def _set_filter(self, session: Session, filter: Filter, answer: bytes) -> Effect | None:
        if session.audience is None:
            return self._wait(session, answer, filter)
        self._audiences.detach(session)
        session.filter = filter
        return Move(session, self._audiences.attach(session), answer)

    def _wait(self, session: Session, text: bytes, filter: Filter | None) -> Close | None:
        """Keep a direct text of a session that is behind for its place in the stream."""
        assert session.waiting is not None, "only a live session has nothing waiting"
        session.waiting.append((self.log.end, text, filter))
        session.waiting_bytes += len(text)
        if session.waiting_bytes > self.limits.outbox_bytes:
            return Close(session, SLOW_READER, "reads too slowly; resume")
        return None

    def _take_waiting(self, session: Session, texts: list[bytes]) -> int:
        """Move the direct texts whose place has come to `texts` and return their size."""
        size = 0
        while session.waiting and session.waiting[0][0] <= session.position:
            _, text, filter = session.waiting.popleft()
            texts.append(text)
            size += len(text)
            if filter is not None:
                session.filter = filter
        session.waiting_bytes -= size
        return size

    def _broadcast(
        self, kind: str, payload: Mapping[str, Any], now: float, about: str | None = None
    ) -> Broadcast:
        id = self._new_id()
        text = system_envelopes.system(id, kind, payload, now)
        self.log.append(LogEntry(id, GATEWAY, None, kind, None, text, about))
        return Broadcast(text, self._audiences.all)

    # --- private: roster and positions ----------------------------------------------------------

    def _arrive(self, settings: ParticipantSettings) -> Member:
        bucket = self._buckets.setdefault(settings.id, Bucket(self._rate))
        member = Member(settings, bucket)
        self._members[settings.id] = member
        return member

    def _presence(self, event: str, member: Member, now: float) -> Broadcast:
        payload = {"event": event, "participant": member.info}
        return self._broadcast(kinds.PRESENCE, payload, now, about=member.settings.id)

    def _place(self, session: Session, after: str | None, last: int | None) -> tuple[bool, int]:
        """Set where a new session begins to read; return `resumed` and `replayed` (G-12)."""
        end = self.log.end
        position = None if after is None else self.log.after(after)
        if position is not None:
            session.position = position
            return True, self._count(session, position, end)
        session.position = end
        count = 0
        while last and count < last and session.position > self.log.start:
            first = max(self.log.start, session.position - _READ_AT_ONCE)
            for entry in reversed(self.log.read(first, session.position - first)):
                session.position -= 1
                count += self._passes(session, entry)
                if count == last:
                    break
        return False, count

    def _count(self, session: Session, position: int, end: int) -> int:
        count = 0
        while position < end:
            entries = self.log.read(position, min(_READ_AT_ONCE, end - position))
            count += sum(self._passes(session, entry) for entry in entries)
            position += len(entries)
        return count

    def _welcome(self, session: Session, now: float, resumed: bool, replayed: int) -> bytes:
        rest: dict[str, Any] = {
            "pod": {"name": self.name, "epoch": self.epoch},
            "limits": self.limits,
            "resumed": resumed,
            "replayed": replayed,
        }
        # Whoever is cut off before anything came can resume from here.
        if latest := self.log.read(self.log.end - 1, 1):
            rest["position"] = latest[0].id
        payload = system_envelopes.welcome(session.member, self._members.values(), self.tree, rest)
        return system_envelopes.system(self._new_id(), kinds.WELCOME, payload, now)


def _join_rate(limits: PodLimits) -> Rate:
    """Return how often one may join: the more often, the more messages it may send (G-49)."""
    messages = limits.messages_per_second
    joins = messages and max(_JOINS_PER_SECOND, messages / 20)
    return Rate.per_second(joins, max(_JOIN_BURST, limits.burst // 4))
