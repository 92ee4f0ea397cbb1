"""The pod: texts and times in, effects out. It knows no socket, no clock and no asyncio.

    text -> decision -> journal -> gate -> delivery

`Decisions` says what becomes of an envelope, the journal makes it durable, the gate holds back what
must not leave before that, and `Router` chooses the recipients. Participants are configured;
sessions are their connections.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from mcpp import kinds
from mcpp.errors import DecodeError, FilterError
from mcpp.filters import Filter, everything, parse
from mcpp.payloads import Presence
from mcpp.protocol.codec import decode, decode_unambiguous
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import GATEWAY, Envelope
from mcpp_gateway.core import refusals, system_envelopes
from mcpp_gateway.core.contexts.live_context import LiveContext
from mcpp_gateway.core.contexts.replay import replay
from mcpp_gateway.core.contexts.tree import LiveContexts
from mcpp_gateway.core.decisions import Decisions, Revival
from mcpp_gateway.core.delivery import Router
from mcpp_gateway.core.effects import (
    REPLACED,
    REVOKED,
    SLOW_READER,
    Broadcast,
    CatchUp,
    Close,
    Effect,
    ReadHistory,
    Several,
)
from mcpp_gateway.core.gate import Gate
from mcpp_gateway.core.hearing.filter_counts import FilterCounts
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.history.pages import (
    MAX_PAGE_BYTES,
    MemorySource,
    Page,
    read_page,
)
from mcpp_gateway.core.history.query import HistoryError, parse_query
from mcpp_gateway.core.history.requests import HistoryRequests
from mcpp_gateway.core.journal import Journal, MemoryJournal, UnreadableError
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.rates import Bucket, Rate
from mcpp_gateway.core.records import Batch, LogEntry, Origin, State
from mcpp_gateway.core.refusals import Refusal
from mcpp_gateway.core.sessions import Audience, Member, ParticipantSettings, Session

__all__ = ["GATEWAY", "Audience", "Member", "ParticipantSettings", "PodCore", "Session"]

# Every join is broadcast, and reads the log to count what it will replay. So a participant may join
# this often, and what the pod reads for it counts as parts of joins: see `reading_cost`.
_JOINS_PER_SECOND: Final = 10
_JOIN_BURST: Final = 100
_READ_TOKENS: Final = 1 / 500
_HISTORY_WAIT_SECONDS: Final = 1.0
_MAX_REQUEST_BYTES: Final = 16_384  # of `pod/*`: a filter has 4,096
# G-64: presence is logged no more often, so that joining and leaving cannot fill the log.
_PRESENCES: Final = Rate.per_second(10, 20)
# At once, about 2 ms. The rest is read in further calls, so that nobody waits for it; meanwhile a
# participant with several connections may open a few more that ask for a replay.
_READ_AT_ONCE: Final = 512
_OPENING_AT_ONCE: Final = 4
_OPENING_SECONDS: Final = 1.0


class _Answer(msgspec.Struct, frozen=True, gc=False):
    """A text for one live session, with the filter that it acknowledges."""

    session: Session
    text: bytes
    filter: Filter | None


class PodCore:
    """One pod. Owns members, contexts and deliveries; performs nothing itself."""

    def __init__(
        self,
        name: str,
        settings: Iterable[ParticipantSettings],
        limits: PodLimits,
        *,
        new_id: Callable[[], str],
        journal: Journal | None = None,
    ) -> None:
        self.name = name
        self.epoch = new_id()
        self.journal: Journal = journal or MemoryJournal(
            limits.history_messages, limits.history_bytes
        )
        self.tree = LiveContexts(limits)
        self.limits = limits
        self.refused: dict[str, int] = {}
        self.expired = 0
        self.origin: Origin | None = None  # of a fork
        self.sessions = 0
        self.stopping = False  # no presence is logged: after a restart the members are present
        self._new_id = new_id
        self._rate = Rate.per_second(limits.messages_per_second, limits.burst)
        self._join_rate = _join_rate(limits)
        self._settings = {each.id: each for each in settings}
        # Buckets outlive sessions, or a reconnection would fill them.
        self._buckets: dict[str, Bucket] = {}
        self._joins: dict[str, Bucket] = {}
        self._members: dict[str, Member] = {}
        self._decisions = Decisions(self.tree, self.journal)
        self._delivery = Router(self.journal, self._members, limits.outbox_bytes)
        # None: every entry is committed as soon as it is appended.
        self._gate: Gate[LogEntry | _Answer] | None = None
        if not isinstance(self.journal, MemoryJournal):
            self._gate = Gate(self.journal.committed)
        # Sessions that have read everything committed, and wait for more or for their own join.
        self._waiting_for_commit: dict[Session, None] = {}
        self._history = HistoryRequests()
        self._presences: list[tuple[str, Member]] = []  # to be announced
        self._unannounced: list[Member] = []
        self._presence_bucket = Bucket(_PRESENCES)
        self.filter_counts = FilterCounts(limits)
        self.filter_work = self._delivery.work

    @property
    def participants(self) -> Sequence[str]:
        """The ids of those present, in the order in which they joined."""
        return tuple(self._members)

    def filter_owners(self) -> dict[Member, int]:
        """Return the participants whose filters are evaluated live, with their parts."""
        return self._delivery.filter_owners()

    def bucket(self, participant: str) -> Bucket | None:
        """Return the bucket of a participant, which stays the same while it is configured."""
        return self._buckets.get(participant)

    # --- restarts -------------------------------------------------------------------------------

    def restore(self, state: State, batches: Iterable[Batch], rejoin_until: float) -> None:
        """Continue a log: apply its last state and what follows, without deciding again.

        Participants that were present stay present until `rejoin_until`.
        """
        self.epoch = state.epoch
        self.origin = state.origin
        self.tree.restore(state.live, state.dormant)
        present = dict.fromkeys(state.present)
        for batch in batches:
            for entry in batch.entries:
                self._replay(entry, batch.time, present)
        for id in present:
            member = self._add_member(self._settings.get(id) or ParticipantSettings.unknown(id))
            member.rejoin_until = rejoin_until if id in self._settings else 0.0

    def snapshot(
        self, *, term: int, index: int, boot: str, now: float, fsync: str = "always"
    ) -> State:
        """Return everything that deciding needs, as of the end of the log.

        This takes a few milliseconds, because it holds what the pod holds; encoding it takes
        longer, and may be done on another thread.
        """
        live, dormant = self.tree.snapshot()
        return State(
            self.epoch,
            term,
            index,
            self.journal.end,
            now,
            tuple(self._members),
            self.journal.window(),
            live,
            dormant,
            boot,
            fsync,
            self.origin,
        )

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
            member = self._add_member(settings)
            member.announced = False
            self._unannounced.append(member)
            self._presences.append(("join", member))
            effects += self._announce_if_due(now)
        elif not settings.multiple:
            for old in member.sessions:
                self._detach(old)
                effects.append(Close(old, REPLACED, "replaced by a newer connection"))
            member.sessions.clear()
        member.rejoin_until = None
        session = Session(member, filter, peer, now)
        session.waiting = deque()
        member.sessions.append(session)
        self.sessions += 1
        self.filter_counts.add(participant, filter)
        self._begin(session, self.tree, after, last)
        return session, effects

    def join_refusal(self, participant: str, filter: Filter) -> str | None:
        """Return why a participant cannot have one more connection with this filter (G-66)."""
        member = self._members.get(participant)
        sessions = () if member is None else member.sessions
        previous = everything
        if sessions and not self._settings[participant].multiple:
            previous = sessions[0].wanted  # it replaces its connection
        elif len(sessions) >= self.limits.max_connections_per_participant:
            return "too many connections of this participant (max_connections_per_participant)"
        elif self.sessions >= self.limits.max_connections_per_pod:
            return "too many connections in this pod (max_connections_per_pod)"
        if not self.filter_counts.allow(participant, filter, previous):
            return "too many different filters (max_filters_per_participant, max_filters_per_pod)"
        return None

    def join_wait(self, participant: str, now: float) -> float:
        """Return the seconds until a participant may join again, 0 if it may now (G-49)."""
        bucket = self._joins.get(participant)
        wait = 0.0 if bucket is None else bucket.wait(now)
        member = self._members.get(participant)
        if not wait and member is not None and member.settings.multiple:
            opening = sum(session.opening is not None for session in member.sessions)
            return _OPENING_SECONDS if opening >= _OPENING_AT_ONCE else 0.0
        return wait

    def can_join(self, participant: str) -> bool:
        """Return whether there is room to log a participant's join, if it has to be (G-55)."""
        if participant in self._members:
            return True
        # Where room is short, one join after the other: those not logged yet are not counted.
        return self.journal.admitting and (self.journal.accepting or not self._presences)

    def leave(self, session: Session, now: float) -> list[Effect]:
        """Remove a session; a participant leaves with its last one."""
        member = session.member
        if session not in member.sessions:
            return []
        member.sessions.remove(session)
        self._detach(session)
        if not member.sessions and not self.stopping:
            self._remove_member(member, now)
        return self._announce_if_due(now)

    def catch_up(self, session: Session, max_bytes: int) -> tuple[list[bytes], Effect | None]:
        """Return what a session that is behind gets next; see `Router.catch_up`.

        A CatchUp comes without texts, too, while the session's beginning is being looked for.
        """
        if session.opening is not None and self.journal.committed >= session.opens_at:
            self._continue_opening(session, session.opening)
            if session.opening is not None:
                return [], CatchUp(session)
        texts, effect = self._delivery.catch_up(session, max_bytes)
        if not texts and effect is None:
            self._waiting_for_commit[session] = None
        return texts, effect

    def reconfigure(self, settings: Iterable[ParticipantSettings], now: float) -> list[Effect]:
        """Apply a new list of participants; those no longer on it are closed for good."""
        self._settings = {each.id: each for each in settings}
        for buckets in (self._buckets, self._joins):
            for id in buckets.keys() - self._settings.keys():
                del buckets[id]
        effects: list[Effect] = []
        for id, member in list(self._members.items()):
            found = self._settings.get(id)
            if found is None:
                effects += self.revoke(id, now)
                continue
            hears = member.settings.hears
            member.update(found)
            if found.hears != hears:
                effects += [
                    self._delivery.move(session)
                    for session in member.sessions
                    if session.audience is not None
                ]
        return effects

    def revoke(self, participant: str, now: float) -> list[Effect]:
        """Close every session of a participant with a final code."""
        member = self._members.get(participant)
        if member is None:
            return []
        if not member.sessions:
            self._remove_member(member, now)
            return self._announce_if_due(now)
        closes = [Close(session, REVOKED, "token revoked") for session in member.sessions]
        presence = [effect for close in closes for effect in self.leave(close.session, now)]
        return [*closes, *presence]

    # --- envelopes ------------------------------------------------------------------------------

    def receive(self, session: Session, text: bytes, now: float) -> Effect | None:
        """Decide on one text of a session: relay it, answer it, or refuse it. Never raises."""
        member = session.member
        if not member.announced:
            return self._receive_first(session, text, now)
        wait = member.bucket.take(now)
        if wait:
            # C-16: refusing has to be cheaper than flooding, so the text is not decoded.
            member.rate_limited += 1
            refusal = refusals.rate_limited(wait, "participant")
            return self._refuse(session, refusal, refusals.readable_id(text), now)
        try:
            envelope = decode(text)
        except DecodeError as error:
            refusal = refusals.invalid_envelope(error)
            return self._refuse(session, refusal, refusals.readable_id(text), now)
        verdict = self._decisions.decide(member.settings, envelope, text, now)
        if isinstance(verdict, LogEntry):
            self.journal.append(verdict)
            if self._gate is None:
                # The common case without a call: 0.1 µs.
                if self._delivery.unfiltered:
                    return Broadcast(text, self._delivery.all)
                return self._delivery.broadcast(verdict)
            self._gate.hold(verdict, self.journal.end)
            return None
        if isinstance(verdict, Refusal):
            return self._refuse(session, verdict, envelope.id, now)
        if isinstance(verdict, Revival):
            return self._revive(verdict, now)
        if verdict is not None:
            return self._answer(session, verdict)
        return self._serve(session, envelope, now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due by the clock, about once a second: expire contexts, children first.

        Sooner again where `has_expiries`: what expires together is announced bit by bit (C-18).
        While the log has no space, this waits (G-58).
        """
        if not self.journal.accepting:
            return self._announce_if_due(now)
        effects = self._expire(now)
        for member in list(self._members.values()):
            if member.rejoin_until is not None and member.rejoin_until <= now:
                self._remove_member(member, now)
        return effects + self._announce_if_due(now)

    @property
    def has_expiries(self) -> bool:
        """Whether more contexts are to be expired than the last `tick` had room for."""
        return self.tree.has_expiries and self.journal.accepting

    def presence_wait(self, now: float) -> float | None:
        """Return the seconds until `announce` is due; None if nobody has joined or left."""
        return self._presence_bucket.wait(now) if self._presences else None

    def announce(self, now: float) -> list[Effect]:
        """Log who has joined and left, together if there are several (G-33, G-64)."""
        return [*self._log_presence(now), *self._resume_announced()]

    def release(self, committed: int) -> list[Effect]:
        """Return what may leave now that every entry before a position is committed."""
        assert self._gate is not None
        effects: list[Effect] = []
        delivery = self._delivery
        for item in self._gate.release(committed):
            if type(item) is LogEntry:
                # The common case without a call, as in `receive`.
                if delivery.unfiltered:
                    effects.append(Broadcast(item.text, delivery.all))
                else:
                    effects.append(delivery.broadcast(item))
                continue
            assert type(item) is _Answer
            item.session.waiting_bytes -= len(item.text)
            effect = delivery.answer(item.session, item.text, item.filter)
            if effect is not None:
                effects.append(effect)
        waiting, self._waiting_for_commit = self._waiting_for_commit, {}
        effects += map(CatchUp, waiting)
        return effects

    @property
    def history_bytes(self) -> int:
        """The most bytes of envelopes in a page of history, besides the last one."""
        # G-38: a page must not fill the outbox of a session that reads.
        return min(MAX_PAGE_BYTES, self.limits.outbox_bytes // 4)

    def listener(self, participant: str) -> Rights:
        """Return who reads the log, with what that participant may hear (H-06)."""
        settings = self._settings.get(participant)
        return Rights(participant, everything if settings is None else settings.hears)

    def answer_history(
        self, request: ReadHistory, page: Page | HistoryError | UnreadableError, now: float
    ) -> list[Effect]:
        """Answer a request with what was read for it, and begin the participant's next one."""
        effects: list[Effect] = []
        rights = self.listener(request.listener.participant)
        if rights.hears != request.listener.hears:
            # The participant may hear something else since: what was read is not for it.
            return [msgspec.structs.replace(request, listener=rights)]
        if request.session in request.session.member.sessions:
            answer = self._send_page(request.session, request.id, page, now)
            effects += [] if answer is None else [answer]
        following = self._history.finish(request)
        return effects if following is None else [*effects, following]

    # --- private --------------------------------------------------------------------------------

    def _detach(self, session: Session) -> None:
        self._delivery.detach(session)
        self._waiting_for_commit.pop(session, None)
        self.sessions -= 1
        self.filter_counts.remove(session.member.settings.id, session.wanted)

    def _receive_first(self, session: Session, text: bytes, now: float) -> Effect | None:
        """Receive a text of a participant whose join the log does not hold yet: that comes first.

        Its session goes live last, and so reads both from the log.
        """
        before = self._log_presence(now)
        effect = self.receive(session, text, now)
        after = self._resume_announced()
        return Several((*before, *(() if effect is None else (effect,)), *after))

    def _announce_if_due(self, now: float) -> list[Effect]:
        return self.announce(now) if self.presence_wait(now) == 0.0 else []

    def _log_presence(self, now: float) -> list[Effect]:
        presences, self._presences = self._presences, []
        effects: list[Effect] = []
        while presences:
            size, count = 0, 0
            while count < len(presences) and (not count or size < system_envelopes.ANNOUNCED_BYTES):
                size += presences[count][1].info_bytes
                count += 1
            some, presences = presences[:count], presences[count:]
            about = tuple(member.settings.id for _, member in some)
            payload = system_envelopes.presence(some)
            effects += self._broadcast(kinds.PRESENCE, payload, now, about=about)
            self._presence_bucket.charge(1, now)
        for member in self._unannounced:
            member.announced = True
            for session in member.sessions:
                session.live_at = self.journal.end
        self._unannounced.clear()
        return effects

    def _resume_announced(self) -> Iterable[Effect]:
        """Let the sessions go live that waited for their join to be logged."""
        if self._gate is not None:
            return ()  # when it is committed
        waiting, self._waiting_for_commit = self._waiting_for_commit, {}
        return map(CatchUp, waiting)

    def _expire(self, now: float) -> list[Effect]:
        expired = self.tree.expire(now, system_envelopes.ANNOUNCED_BYTES)
        self.expired += len(expired)
        return [
            effect
            for group in system_envelopes.announced_together(expired)
            for effect in self._broadcast(
                kinds.CONTEXT,
                system_envelopes.expiry(group),
                now,
                contexts=tuple(node.lineage for node in group),
            )
        ]

    def _replay(self, entry: LogEntry, time: float, present: dict[str, None]) -> None:
        if entry.kind != kinds.PRESENCE or entry.sender != GATEWAY or not entry.about:
            replay(self.tree, entry, time)
            return
        for presence in decode(entry.text).payload_as(Presence).each():
            if presence.event == "join":
                present[presence.participant.id] = None
            else:
                present.pop(presence.participant.id, None)

    def _serve(self, session: Session, envelope: Envelope, now: float) -> Effect | None:
        """Answer an envelope that is for the gateway itself."""
        if envelope.kind == kinds.GET_HISTORY:
            return self._read_history(session, envelope, now)
        if envelope.kind != kinds.SET_FILTER:
            refusal = refusals.reserved_kind(envelope.kind)
            return self._refuse(session, refusal, envelope.id, now)
        try:
            payload = _read_request(envelope, "$.payload")
            if not isinstance(payload, dict) or not isinstance(payload.get("filter"), dict):
                raise FilterError("$.payload.filter", "must be an object")  # noqa: TRY301
            filter = parse(payload["filter"])
        except (DecodeError, FilterError) as error:
            refusal = refusals.invalid_filter(error)
            return self._refuse(session, refusal, envelope.id, now)
        participant = session.member.settings.id
        if not self.filter_counts.allow(participant, filter, session.wanted):
            return self._refuse(session, refusals.filter_limit(), envelope.id, now)
        self.filter_counts.remove(participant, session.wanted)
        self.filter_counts.add(participant, filter)
        session.wanted = filter
        text = system_envelopes.system(
            self._new_id(),
            kinds.FILTER_SET,
            {"filter": filter.to_json()},
            now,
            correlation_id=envelope.id,
        )
        return self._answer(session, text, filter)

    def _read_history(self, session: Session, envelope: Envelope, now: float) -> Effect | None:
        """Answer a request for history: in place from memory, otherwise once it was read."""
        try:
            query = parse_query(_read_request(envelope, "payload"))
            listener = self.listener(session.member.settings.id)
            source = self._memory_source()
            if source is not None:
                page = read_page(query, listener, source, max_bytes=self.history_bytes)
                return self._send_page(session, envelope.id, page, now)
            return self._history.add(ReadHistory(session, query, listener, envelope.id))
        except HistoryError as error:
            return self._send_page(session, envelope.id, error, now)
        except DecodeError as error:
            bad = HistoryError(error.path, error.reason)
            return self._send_page(session, envelope.id, bad, now)
        except OverflowError:
            refusal = refusals.rate_limited(_HISTORY_WAIT_SECONDS, "history")
            return self._refuse(session, refusal, envelope.id, now)

    def _memory_source(self) -> MemorySource | None:
        """Return the log for queries if it is in memory; otherwise the edge reads it."""
        journal = self.journal
        return MemorySource(journal) if isinstance(journal, MemoryJournal) else None

    def _send_page(
        self,
        session: Session,
        correlation_id: str,
        page: Page | HistoryError | UnreadableError,
        now: float,
    ) -> Effect | None:
        if isinstance(page, HistoryError):
            refusal = refusals.invalid_history(page.member, page.reason)
            return self._refuse(session, refusal, correlation_id, now)
        if isinstance(page, UnreadableError):
            return self._refuse(session, refusals.log_unreadable(), correlation_id, now)
        payload = system_envelopes.history(page, self.epoch)
        text = system_envelopes.system(
            self._new_id(), kinds.HISTORY, payload, now, correlation_id=correlation_id
        )
        return self._answer(session, text)

    def _refuse(
        self, session: Session, refusal: Refusal, correlation_id: str | None, now: float
    ) -> Effect | None:
        self.refused[refusal.code] = self.refused.get(refusal.code, 0) + 1
        text = system_envelopes.system(
            self._new_id(), kinds.ERROR, refusal.payload(), now, correlation_id=correlation_id
        )
        return self._answer(session, text)

    def _answer(self, session: Session, text: bytes, filter: Filter | None = None) -> Effect | None:
        """Send one session a text, in its place behind what was accepted before (G-30)."""
        if session.audience is None:
            return self._delivery.queue(session, text, filter)
        if self._gate is None or self._gate.is_open(self.journal.end):
            return self._delivery.answer(session, text, filter)
        self._gate.hold(_Answer(session, text, filter), self.journal.end)
        session.waiting_bytes += len(text)
        if session.waiting_bytes > self.limits.outbox_bytes:
            # G-39: a disk that hangs must not make answers pile up.
            return Close(session, SLOW_READER, "outbox full: answers wait for the log; resume")
        return None

    def _revive(self, revival: Revival, now: float) -> Effect | None:
        """Log the revived contexts, then the envelope that revived them (C-12)."""
        effects = [
            effect
            for state in revival.contexts
            for effect in self._broadcast(
                kinds.CONTEXT,
                system_envelopes.revival(state),
                now,
                contexts=(self.tree.revived_lineage(state),),
            )
        ]
        effects += self._append(revival.entry)
        return Several(tuple(effects)) if effects else None

    def _broadcast(
        self,
        kind: str,
        payload: Mapping[str, Any],
        now: float,
        *,
        about: tuple[str, ...] = (),
        contexts: tuple[Lineage, ...] = (),
    ) -> list[Effect]:
        id = self._new_id()
        text = system_envelopes.system(id, kind, payload, now)
        return self._append(LogEntry(id, GATEWAY, None, kind, None, text, about, contexts, now))

    def _append(self, entry: LogEntry) -> list[Effect]:
        self.journal.append(entry)
        if self._gate is None:
            return [self._delivery.broadcast(entry)]
        self._gate.hold(entry, self.journal.end)
        return []

    def _add_member(self, settings: ParticipantSettings) -> Member:
        member = self._members[settings.id] = self._new_member(settings)
        return member

    def _new_member(self, settings: ParticipantSettings) -> Member:
        bucket = self._buckets.setdefault(settings.id, Bucket(self._rate))
        return Member(settings, bucket)

    def _remove_member(self, member: Member, now: float) -> None:
        """Let a participant without sessions leave: at once, or when the log has space (G-58)."""
        if not self.journal.accepting:
            member.rejoin_until = now
            return
        del self._members[member.settings.id]
        self._presences.append(("leave", member))

    def _pod_info(self, now: float) -> dict[str, Any]:
        """Return what welcomes say of the pod."""
        pod: dict[str, Any] = {"name": self.name, "epoch": self.epoch, "log": self.journal.kind}
        return pod if self.origin is None else {**pod, "origin": self.origin.to_json()}

    def _begin(
        self,
        session: Session,
        contexts: Iterable[LiveContext],
        after: str | None,
        last: int | None,
    ) -> None:
        """Let a session begin at the end of the log, with a welcome that lists these contexts."""
        member = session.member
        session.position = session.opens_at = self.journal.end
        joins = self._joins.setdefault(member.settings.id, Bucket(self._join_rate))
        joins.charge(1, session.joined)
        welcome = self._welcome(member, contexts, session.joined)
        opening = self._open(session, welcome, after, last)
        if after is None and not last:
            next(opening, None)  # there is nothing to read
            return
        session.opening = opening
        if self._gate is None:
            # At once: the next envelope may push out of the log what it wants to resume after.
            self._continue_opening(session, opening)

    def _open(
        self, session: Session, welcome: dict[str, Any], after: str | None, last: int | None
    ) -> Generator[int, None, None]:
        """Find where a session begins, then queue its welcome. Yields what reading cost."""
        try:
            found = yield from self._delivery.place(session, after, last)
        except UnreadableError:
            session.position = session.opens_at
            found = False, 0
        welcome["resumed"], welcome["replayed"] = found
        text = system_envelopes.system(self._new_id(), kinds.WELCOME, welcome, session.joined)
        assert session.waiting is not None
        session.waiting.appendleft((session.position, text, None))
        session.waiting_bytes += len(text)

    def _continue_opening(self, session: Session, opening: Generator[int, None, None]) -> None:
        cost = 0
        for each in opening:
            cost += each
            if cost >= _READ_AT_ONCE:
                break
        else:
            session.opening = None
        # As of the time of the join, which was charged then.
        self._joins[session.member.settings.id].charge(cost * _READ_TOKENS, session.joined)

    def _welcome(
        self, member: Member, contexts: Iterable[LiveContext], now: float
    ) -> dict[str, Any]:
        """Return a welcome's payload as of now, but for what is replayed."""
        journal = self.journal
        rest: dict[str, Any] = {
            "pod": self._pod_info(now),
            "limits": self.limits,
        }
        # A client that is cut off before it received anything can resume from here.
        with suppress(UnreadableError):
            if latest := journal.read(journal.end - 1, 1):
                rest["position"] = latest[0].id
        contexts = (node for node in contexts if member.rights.allow_context(node.lineage))
        return system_envelopes.welcome(member, self._members.values(), contexts, rest)


def _read_request(envelope: Envelope, path: str) -> Any:
    """Return the payload of a request to the gateway, none of which is long (G-47)."""
    if len(envelope.raw_payload) > _MAX_REQUEST_BYTES:
        raise DecodeError(path, f"is longer than {_MAX_REQUEST_BYTES} bytes")
    return decode_unambiguous(envelope.raw_payload, path)


def _join_rate(limits: PodLimits) -> Rate:
    """Return how often one may join: the more often, the more messages it may send (G-49)."""
    messages = limits.messages_per_second
    joins = messages and max(_JOINS_PER_SECOND, messages / 20)
    return Rate.per_second(joins, max(_JOIN_BURST, limits.burst // 4))
