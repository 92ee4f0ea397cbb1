"""The pod: texts and times in, effects out. It knows no socket, no clock and no asyncio.

    text -> decision -> journal -> gate -> delivery

`Decisions` says what becomes of an envelope, the journal makes it durable, the gate holds back what
must not leave before that, and `Router` chooses the recipients. How participants come and go is in
`joining`, requests to the gateway itself are in `requests`.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.filters import Filter, everything
from mcpp.payloads import Presence
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import GATEWAY, Envelope
from mcpp_gateway.core import refusals, system_envelopes
from mcpp_gateway.core.attachments.blob_table import BlobTable
from mcpp_gateway.core.contexts.hops import Hops
from mcpp_gateway.core.contexts.replay import replay
from mcpp_gateway.core.contexts.tree import LiveContexts
from mcpp_gateway.core.decisions import Decisions, LivePart, Revival, SuspectedLoop, Verdict
from mcpp_gateway.core.delivery import Router
from mcpp_gateway.core.effects import (
    REPLACED,
    REVOKED,
    Broadcast,
    CatchUp,
    Close,
    Effect,
    Several,
)
from mcpp_gateway.core.gate import Gate
from mcpp_gateway.core.history.pages import MemorySource
from mcpp_gateway.core.joining.cards import Cards, replay_card
from mcpp_gateway.core.joining.grants import GrantedSettings
from mcpp_gateway.core.joining.members import Members
from mcpp_gateway.core.joining.openings import Openings
from mcpp_gateway.core.joining.presence import PresenceQueue
from mcpp_gateway.core.journal import Journal, MemoryJournal
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.records import Batch, LogEntry, Origin, OwnerState, State
from mcpp_gateway.core.refusals import Refusal
from mcpp_gateway.core.requests.answers import Answer, Answers
from mcpp_gateway.core.requests.cards import CardRequests, NewCard, card_refusal
from mcpp_gateway.core.requests.filters import FilterRequests
from mcpp_gateway.core.requests.history import HistoryRequests
from mcpp_gateway.core.requests.service import RequestService
from mcpp_gateway.core.sessions import Audience, Member, ParticipantSettings, Session

__all__ = ["GATEWAY", "Audience", "Member", "ParticipantSettings", "PodCore", "Session"]


class PodCore:
    """One pod. Owns its parts, the contexts and the deliveries; performs nothing itself."""

    def __init__(
        self,
        name: str,
        settings: Iterable[ParticipantSettings],
        limits: PodLimits,
        *,
        new_id: Callable[[], str],
        journal: Journal | None = None,
        issuers: Collection[str] = (),
    ) -> None:
        self.name = name
        self.epoch = new_id()
        self.journal: Journal = journal or MemoryJournal(
            limits.history_messages, limits.history_bytes
        )
        self.tree = LiveContexts(limits)
        self.limits = limits
        self.members = Members(settings, limits)
        self.tree.caps = self.members.caps()
        self.expired = 0
        self.origin: Origin | None = None  # of a fork
        self.issuers = issuers  # whose signed tokens name participants that are not configured
        self.stopping = False  # no presence is logged: after a restart the members are present
        self._new_id = new_id
        self._presence = PresenceQueue()
        self.blobs = BlobTable(self.members.limits)
        self._decisions = Decisions(
            self.tree, self.journal, self._new_hops(), self._attachment_refusal
        )
        self._delivery = Router(self.journal, self.members.present, limits.outbox_bytes)
        self.filter_work = self._delivery.work
        # None: every entry is committed as soon as it is appended.
        self._gate: Gate[LogEntry, Answer] | None = None
        if not self.journal.commits_at_once:
            self._gate = Gate(self.journal.committed)
        # Sessions that have read everything committed, and wait for more or for their own join.
        self._waiting_for_commit: dict[Session, None] = {}
        self._openings = Openings(
            self.journal,
            self.members,
            self._delivery,
            new_id=new_id,
            pod_info=self._pod_info,
        )
        self.answers = Answers(
            self._delivery, self._hold, outbox_bytes=limits.outbox_bytes, new_id=new_id
        )
        self.history = HistoryRequests(
            self.answers,
            self.members,
            self.memory_source,
            outbox_bytes=limits.outbox_bytes,
            epoch=lambda: self.epoch,
        )
        self._requests = RequestService(self.answers)
        filters = FilterRequests(self.answers, self.members.filter_counts)
        self._requests.add(kinds.SET_FILTER, filters.serve)
        self._requests.add(kinds.GET_HISTORY, self.history.serve)
        cards = CardRequests(self.answers, self.members, self._set_card)
        self._requests.add(kinds.CARD_REQUEST, cards.serve)

    @property
    def participants(self) -> Sequence[str]:
        """The ids of those present, in the order in which they joined."""
        return tuple(self.members.present)

    def sessions_elsewhere(self, participant: str) -> int:
        """Return how many sessions a participant has at other gateways."""
        return 0

    @property
    def refused(self) -> Mapping[str, int]:
        """How many texts were refused, by code."""
        return self.answers.refused

    def filter_owners(self) -> dict[Member, int]:
        """Return the participants whose filters are evaluated live, with their parts."""
        return self._delivery.filter_owners()

    def memory_source(self) -> MemorySource | None:
        """Return the log for queries if it is in memory; otherwise the edge reads it."""
        journal = self.journal
        return MemorySource(journal) if isinstance(journal, MemoryJournal) else None

    # --- restarts -------------------------------------------------------------------------------

    def restore(self, state: State, batches: Iterable[Batch], rejoin_until: float) -> None:
        """Continue a log: apply its last state and what follows, without deciding again.

        Participants that were present stay present until `rejoin_until`.
        """
        self.epoch = state.epoch
        self.origin = state.origin
        self.tree.restore(state.live, state.dormant)
        self.members.cards = Cards(state.cards)
        self.blobs.restore(state)
        self._restore_owners(state.owners)
        present = dict.fromkeys(state.present)
        for batch in batches:
            for position, entry in enumerate(batch.entries, batch.position):
                self._replay(entry, batch.time, present)
                if entry.attachments:
                    self.blobs.name(entry, position)
        self._decisions.hops = self._new_hops()
        self.members.drop_unknown_cards()
        for id in present:
            # A participant with a signed token is known again when it comes back.
            may_return = self.issuers or self.members.settings(id) is not None
            self.members.add(id).rejoin_until = rejoin_until if may_return else 0.0

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
            tuple(self.members.present),
            self.journal.window(),
            live,
            dormant,
            boot,
            fsync,
            self.origin,
            self.members.cards.snapshot(),
            *self.blobs.snapshot(),
            self.members.owners(),
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
        effects: list[Effect] = []
        member = self.members.present.get(participant)
        if member is None:
            member = self.members.add(participant)
            self._presence.join(member)
            effects += self._announce_if_due(now)
        elif not member.settings.multiple:
            for old in member.sessions:
                self._detach(old)
                effects.append(Close(old, REPLACED, "replaced by a newer connection"))
            member.sessions.clear()
        member.rejoin_until = None
        session = self._attach(member, filter, peer)
        session.joined = now
        self._openings.begin(session, self.tree, after=after, last=last)
        return session, effects

    def can_join(self, participant: str) -> bool:
        """Return whether there is room to log a participant's join, if it has to be (G-55)."""
        if participant in self.members.present:
            return True
        # Where room is short, few at a time: the journal does not count joins not logged yet.
        return self.journal.admitting and (self.journal.accepting or self._presence.has_room)

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
        if session.opening is not None and self._openings.advance(session):
            return [], CatchUp(session)
        texts, effect = self._delivery.catch_up(session, max_bytes)
        if not texts and effect is None:
            self._waiting_for_commit[session] = None
        return texts, effect

    def reconfigure(self, settings: Iterable[ParticipantSettings], now: float) -> list[Effect]:
        """Apply a new list of participants; those no longer on it are closed for good."""
        were_granted = {id for id in self.members.present if self.members.owner(id) is not None}
        self.members.configure(settings, now)
        self.tree.caps = self.members.caps()
        self._limit_hops()
        effects: list[Effect] = []
        for id, member in list(self.members.present.items()):
            found = self.members.settings(id)
            if id in were_granted and self.members.owner(id) is None:
                effects += self.revoke(id, now)  # it is configured now: with another token
            elif found is not None:
                effects += self._update(member, found)
            elif member.sessions or not self.issuers:
                effects += self.revoke(id, now)
        return effects

    def change_limits(self, limits: PodLimits, now: float) -> None:
        """Apply new limits (O-03). What is open stays, even where there is more than allowed."""
        self.limits = limits
        self.members.change_limits(limits, now)
        self.tree.reconfigure(limits)
        self.tree.caps = self.members.caps()
        self.journal.resize(limits.history_messages, limits.history_bytes)
        self._delivery.outbox_bytes = self.answers.outbox_bytes = limits.outbox_bytes
        self.history.change_outbox(limits.outbox_bytes)

    def admit(self, granted: GrantedSettings, now: float) -> list[Effect]:
        """Let a participant join that a signed token names, or change what it may do (S-01)."""
        settings = granted.settings
        self.members.grant(granted, now)
        self.tree.caps = self.members.caps()
        if settings.person:
            self._limit_hops()
        member = self.members.present.get(settings.id)
        return [] if member is None else self._update(member, settings)

    def forget_owners(self, wall_time: float) -> None:
        """Forget participants whose signed tokens have expired by the system's clock (S-01).

        Called about once a second.
        """
        self.members.forget_owners(wall_time, self.issuers)

    def revoke(self, participant: str, now: float) -> list[Effect]:
        """Close every session of a participant with a final code."""
        member = self.members.present.get(participant)
        if member is None:
            return []
        if not member.sessions:
            self._remove_member(member, now)
            return self._announce_if_due(now)
        closes = [Close(session, REVOKED, "token revoked") for session in member.sessions]
        presence = [effect for close in closes for effect in self.leave(close.session, now)]
        return [*closes, *presence]

    def presence_wait(self, now: float) -> float | None:
        """Return the seconds until `announce` is due; None if no participant joined or left."""
        return self._presence.wait(now)

    def announce(self, now: float) -> list[Effect]:
        """Log who has joined and left, together if there are several (G-33, G-64)."""
        return [*self._log_presence(now), *self._resume_announced()]

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
            return self.answers.refuse(session, refusal, refusals.readable_id(text), now)
        try:
            envelope = decode(text)
        except DecodeError as error:
            refusal = refusals.invalid_envelope(error)
            return self.answers.refuse(session, refusal, refusals.readable_id(text), now)
        verdict = self._decisions.decide(member.settings, envelope, text, now)
        if isinstance(verdict, LogEntry):
            if verdict.attachments:
                self.blobs.name(verdict, self.journal.end)
            self.journal.append(verdict)
            if self._gate is None:
                # The common case without a call: 0.1 µs.
                if self._delivery.unfiltered:
                    return Broadcast(text, self._delivery.all)
                return self._delivery.broadcast(verdict)
            self._gate.entries.append(verdict)
            return None
        return self._carry_out(verdict, session, envelope, now)

    def tick(self, now: float) -> list[Effect]:
        """Do what is due by the clock, about once a second: expire contexts, children first.

        Sooner again where `has_expiries`: what expires together is announced bit by bit (C-18).
        While the log has no space, this waits (G-58).
        """
        if not self.journal.accepting:
            return self._announce_if_due(now)
        effects = self._expire(now)
        for member in list(self.members.present.values()):
            if member.rejoin_until is not None and member.rejoin_until <= now:
                self._remove_member(member, now)
        return effects + self._announce_if_due(now)

    @property
    def has_expiries(self) -> bool:
        """Whether more contexts are to be expired than the last `tick` had room for."""
        return self.tree.has_expiries and self.journal.accepting

    def release(self, committed: int) -> list[Effect]:
        """Return what may leave now that every entry before a position is committed."""
        assert self._gate is not None
        effects: list[Effect] = []
        for entries, answer in self._gate.release(committed):
            effects += self._delivery.broadcast_all(entries)
            effect = None if answer is None else self.answers.release(answer)
            if effect is not None:
                effects.append(effect)
        waiting, self._waiting_for_commit = self._waiting_for_commit, {}
        effects += map(CatchUp, waiting)
        return effects

    def _limit_hops(self) -> None:
        """Begin or stop to limit hops, where a person was added or the last one removed."""
        if (self._decisions.hops is None) == self.members.has_persons:
            self._decisions.hops = self._new_hops()

    # --- private: parts -------------------------------------------------------------------------

    def _hold(self, answer: Answer) -> bool:
        """Keep an answer for `release`; False if everything before it is committed."""
        gate, end = self._gate, self.journal.end
        if gate is None or answer.session.audience is None or gate.is_open(end):
            return False
        gate.hold(answer, end)
        return True

    def _new_hops(self) -> Hops | None:
        """Return the hops of the log's last chats; None where they are not limited (G-84)."""
        if not self.members.has_persons or not self.limits.max_hops:
            return None
        hops = Hops(self.limits.max_hops, self.members.is_person)
        hops.read(self.journal)
        return hops

    def _attachment_refusal(self, envelope: Envelope) -> Refusal | None:
        """Return a refusal if an envelope names a blob that its sender may not read (A-06)."""
        rights = self.members.rights(envelope.sender)
        missing = self.blobs.unreadable(rights, envelope.attachments, self.journal.committed)
        return None if missing is None else refusals.no_attachment(missing.hash)

    def _pod_info(self, now: float) -> dict[str, Any]:
        """Return what welcomes say of the pod."""
        pod: dict[str, Any] = {"name": self.name, "epoch": self.epoch, "log": self.journal.kind}
        return pod if self.origin is None else {**pod, "origin": self.origin.to_json()}

    # --- private: joining and leaving -----------------------------------------------------------

    def _update(self, member: Member, settings: ParticipantSettings) -> list[Effect]:
        """Apply new settings to a participant; what it may hear changes at once."""
        hears = member.settings.hears
        member.update(settings)
        if settings.hears == hears:
            return []
        live = [session for session in member.sessions if session.audience is not None]
        return [self._delivery.move(session) for session in live]

    def _attach(self, member: Member, filter: Filter, peer: Any) -> Session:
        """Return a new session of a member, which is behind until it has caught up."""
        session = Session(member, filter, peer, waiting=deque())
        self.members.attach(session)
        return session

    def _detach(self, session: Session) -> None:
        self._delivery.detach(session)
        self._waiting_for_commit.pop(session, None)
        self.members.detach(session)

    def _remove_member(self, member: Member, now: float) -> None:
        """Let a participant without sessions leave: at once, or when the log has space (G-58)."""
        if not self.journal.accepting:
            member.rejoin_until = now
            return
        del self.members.present[member.settings.id]
        self._presence.leave(member)

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
        effects: list[Effect] = []
        for events in self._presence.take(now):
            about = tuple(member.settings.id for _, member in events)
            payload = system_envelopes.presence(events)
            owners = self.members.owners(about)
            effects += self._broadcast(kinds.PRESENCE, payload, now, about=about, owners=owners)
        self._presence.set_announced(self.journal.end)
        return effects

    def _resume_announced(self) -> Iterable[Effect]:
        """Let the sessions go live that waited for their join to be logged."""
        if self._gate is not None:
            return ()  # when it is committed
        waiting, self._waiting_for_commit = self._waiting_for_commit, {}
        return map(CatchUp, waiting)

    # --- private: the log -----------------------------------------------------------------------

    def _carry_out(
        self, verdict: Verdict, session: Session, envelope: Envelope, now: float
    ) -> Effect | None:
        """Do what was decided on an envelope, but for a single entry of the log."""
        if isinstance(verdict, Refusal):
            return self.answers.refuse(session, verdict, envelope.id, now)
        if isinstance(verdict, LivePart):
            return self._delivery.relay(verdict.entry, session)
        if isinstance(verdict, Revival):
            return self._revive(verdict, now)
        if isinstance(verdict, SuspectedLoop):
            return self._announce_loop(verdict, session, envelope, now)
        if isinstance(verdict, bytes):
            return self.answers.send(session, verdict)
        return self._requests.serve(session, envelope, now)

    def _set_card(
        self, session: Session, card: NewCard, request: Envelope, now: float
    ) -> Effect | None:
        """Keep a participant's card, announce it if it is another one, and acknowledge it."""
        member, cards = session.member, self.members.cards
        id = member.settings.id
        effects: list[Effect] = []
        if cards.would_change(id, card.text):
            refusal = card_refusal(cards, id, card)
            if refusal is None and not self.journal.accepting:
                refusal = refusals.unavailable()
            if refusal is not None:
                return self.answers.refuse(session, refusal, request.id, now)
            cards.set(id, card.text)
            self.members.show_card(id, member)
            update = {"participant": member.info}
            effects += self._broadcast(kinds.UPDATE, update, now, card=card.text)
        payload = system_envelopes.card(id, cards.digest(id))
        answer = self.answers.reply(session, kinds.CARD, payload, now, correlation_id=request.id)
        return Several((*effects, *(() if answer is None else (answer,))))

    def _announce_loop(
        self, loop: SuspectedLoop, session: Session, chat: Envelope, now: float
    ) -> Effect | None:
        """Log that a loop is suspected, for people to see, then refuse the chat (G-84)."""
        payload = system_envelopes.loop(chat.sender, loop.hops, loop.context)
        contexts = () if loop.context is None else (loop.context,)
        effects = self._broadcast(kinds.LOOP, payload, now, contexts=contexts)
        refused = self.answers.refuse(session, loop.refusal, chat.id, now)
        return Several((*effects, *(() if refused is None else (refused,))))

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
        card: bytes = b"",
        owners: tuple[OwnerState, ...] = (),
    ) -> list[Effect]:
        id = self._new_id()
        text = system_envelopes.system(id, kind, payload, now)
        to = () if card else None
        entry = LogEntry(
            id, GATEWAY, to, kind, None, text, about, contexts, now, card=card, owners=owners
        )
        return self._append(entry)

    def _append(self, entry: LogEntry) -> list[Effect]:
        if entry.attachments:
            self.blobs.name(entry, self.journal.end)
        self.journal.append(entry)
        if self._gate is None:
            return [self._delivery.broadcast(entry)]
        self._gate.entries.append(entry)
        return []

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

    def _restore_owners(self, owners: Iterable[OwnerState]) -> None:
        """Take from the log which issuers use which names, but for issuers that are gone (S-04)."""
        self.members.restore_owners(each for each in owners if each.issuer in self.issuers)

    def _replay(self, entry: LogEntry, time: float, present: dict[str, None]) -> None:
        if entry.kind != kinds.PRESENCE or entry.sender != GATEWAY or not entry.about:
            replay(self.tree, entry, time)
            replay_card(self.members.cards, entry)
            return
        self._restore_owners(entry.owners)
        for presence in decode(entry.text).payload_as(Presence).each():
            if presence.event == "join":
                present[presence.participant.id] = None
            else:
                present.pop(presence.participant.id, None)
