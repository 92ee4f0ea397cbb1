"""The leader: decides on the commands of all gateways, ahead of the log.

What it decides in a tick becomes one batch. Several batches may be on their way to the log; they
are sent again, unchanged, until they come back from it. A copy that arrives late is void.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcpp import kinds
from mcpp.errors import CapabilityError, DecodeError, FilterError
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import GATEWAY, Envelope
from mcpp_gateway.core import refusals, system_envelopes
from mcpp_gateway.core.cluster.messages import JOIN, LEAVE, SEND, STOP, Command
from mcpp_gateway.core.cluster.records import (
    ANSWER,
    DENIED,
    DROPPED,
    GONE,
    JOINED,
    LEFT,
    OUTRUN,
    REPEATED,
    REPLACED,
    ClusterBatch,
    Note,
    encode_record,
)
from mcpp_gateway.core.cluster.replica import Replica, apply_note
from mcpp_gateway.core.cluster.roster import SessionKey
from mcpp_gateway.core.contexts.hops import Hops
from mcpp_gateway.core.decisions import Decisions, LivePart, Revival, SuspectedLoop, Verdict
from mcpp_gateway.core.joining.cards import Cards
from mcpp_gateway.core.joining.grants import GrantedSettings, decode_grant
from mcpp_gateway.core.records import Batch, LogEntry
from mcpp_gateway.core.refusals import Refusal
from mcpp_gateway.core.requests.cards import NewCard, card_refusal, read_card_request
from mcpp_gateway.core.sessions import ParticipantSettings, participant_info

# A batch is sealed at this size: a record has to fit into a message of the log's servers.
MAX_BATCH_BYTES: Final = 524_288
# What one portion of the clock's work may add to a batch.
_LEAVES_AT_ONCE: Final = 64
_CHECKPOINT_BYTES: Final = 32 << 20
_CHECKPOINT_SECONDS: Final = 3600.0
_ENTRY_BYTES: Final = 256  # what an entry takes beyond its text, about

FindSettings = Callable[[str], ParticipantSettings | None]
FindOwner = Callable[[str], str | None]  # the issuer of a participant with a signed token


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """A batch on its way to the log."""

    record: ClusterBatch
    data: bytes
    # Whether it holds nothing but entries for texts of the leader's own gateway, one for each.
    is_plain: bool


class Leader:
    """Decides for one term. Owns what is decided and not committed."""

    accepting: Final = True  # as a journal, for `Decisions`

    def __init__(
        self,
        replica: Replica,
        settings: FindSettings,
        owner: FindOwner,
        new_id: Callable[[], str],
        *,
        refused: dict[str, int],
        checkpoint_entries: int,
        hops: Hops | None = None,
    ) -> None:
        self.term = replica.fence.term
        self.roster = replica.roster.copy()
        self._cards = Cards(replica.cards.snapshot())  # ahead of the log
        self.in_flight: deque[Sealed] = deque()
        self.in_flight_bytes = 0
        self._refused = refused
        self._checkpoint_entries = checkpoint_entries
        self._heard = dict(replica.heard)
        self._replica = replica
        self._committed_settings = settings
        self._committed_owner = owner
        self._granted: dict[str, GrantedSettings] = {}  # ahead of the log
        self._new_id = new_id
        self._index = replica.fence.index
        self._position = replica.journal.end
        self._time = replica.time
        self._ahead: dict[str, LogEntry] = {}
        self._journal_find = replica.journal.find
        self._entries: list[LogEntry] = []
        self._notes: list[Note] = []
        self._heard_now: dict[str, int] = {}
        self._is_plain = True
        self._bytes = 0
        # Its claim, at least, is not in any state yet.
        self._since_entries, self._since_bytes, self._since_time = 0, 1, self._time
        replica.run_ahead()
        self._decisions = Decisions(replica.tree, self, hops)  # type: ignore[arg-type]

    @property
    def hops(self) -> Hops | None:
        """How many chats follow each other without a person, as far as that is limited."""
        return self._decisions.hops

    @hops.setter
    def hops(self, hops: Hops | None) -> None:
        self._decisions.hops = hops

    # --- commands -------------------------------------------------------------------------------

    def hear_text(
        self, key: SessionKey, number: int, text: bytes, envelope: Envelope, now: float
    ) -> None:
        """Decide on the next command of the leader's own gateway: a text that it has decoded."""
        origin = key[0]
        if number != self._heard.get(origin, 0) + 1:
            return
        self._heard[origin] = self._heard_now[origin] = number
        if now < self._time:
            now = self._time
        else:
            self._time = now
        participant = self.roster.participant(key)
        if participant is not None:
            settings = self._settings(participant) or ParticipantSettings.unknown(participant)
            verdict = self._decisions.decide(settings, envelope, text, now)
            if type(verdict) is LogEntry and not verdict.attachments:
                # `_append` without a call: 0.1 µs.
                self._entries.append(verdict)
                self._ahead[verdict.id] = verdict
                self._bytes += len(text) + _ENTRY_BYTES
                return
            command = Command(number, SEND, key[1], "", text)
            self._carry_out(verdict, origin, command, settings, envelope, now)
        else:
            self._note(DROPPED, origin, number)

    def hear(self, origin: str, command: Command, now: float) -> bool:
        """Decide on the next command of a gateway. Return False if it is not the next."""
        number = command.number
        if number != self._heard.get(origin, 0) + 1:
            return False
        self._heard[origin] = self._heard_now[origin] = number
        self._time = now = max(now, self._time)
        self._is_plain = False
        event = command.event
        if event == SEND:
            self._decide(origin, command, now)
        elif event == JOIN:
            self._join(origin, command, now)
        elif event == LEAVE:
            self._leave(origin, command, now)
        elif event == STOP:
            self.end_gateway(origin, now, number)
        else:
            self._note(DROPPED, origin, number)
        return True

    def heard(self, origin: str) -> int:
        """Return the number of the last command of a gateway that was decided."""
        return self._heard.get(origin, 0)

    @property
    def origins(self) -> list[str]:
        """The incarnations of gateways that have sent commands and are not gone."""
        return [origin for origin, number in self._heard.items() if number > 0]

    def end_gateway(self, origin: str, now: float, number: int = 0) -> None:
        """Remove a gateway that stops or is silent, with its sessions."""
        self._note(GONE, origin, number)
        apply_note(self.roster, self._heard, self._notes[-1], now, self._index)

    def expire(self, now: float) -> int:
        """Expire some idle contexts; return how many, 0 if there are no more."""
        self._time = now = max(now, self._time)
        expired = self._replica.tree.expire(now, system_envelopes.ANNOUNCED_BYTES)
        for group in system_envelopes.announced_together(expired):
            contexts = tuple(node.lineage for node in group)
            self._system(kinds.CONTEXT, system_envelopes.expiry(group), now, contexts=contexts)
        return len(expired)

    def end_absence(self, now: float, rejoin_seconds: float) -> int:
        """Let some participants leave that did not come back; return how many."""
        self._time = now = max(now, self._time)
        late = [
            participant
            for participant, since in self.roster.absent.items()
            if now - since >= rejoin_seconds or self._settings(participant) is None
        ][:_LEAVES_AT_ONCE]
        for participant in late:
            self._presence("leave", participant, now)
            self.roster.leave(participant)
        return len(late)

    # --- batches --------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether the present batch should be sealed at once."""
        return self._bytes >= MAX_BATCH_BYTES

    @property
    def has_outcomes(self) -> bool:
        """Whether anything was decided since the last batch."""
        return bool(self._entries or self._notes or self._heard_now)

    def seal(self, now: float) -> bytes | None:
        """Return the record of what was decided since the last one, if anything was.

        A state that is due comes with an empty batch where nothing was: it must be stored before
        retention deletes what it holds.
        """
        if not (self.has_outcomes or self._is_state_due(now)):
            return None
        self._time = now = max(now, self._time)
        batch = Batch(self.term, self._index, self._position, now, self._entries)
        replica = self._replica
        known = {"applied": replica.sequence, "expected": replica.fence.index}
        record = ClusterBatch(batch, self._heard_now, self._notes, **known)
        data = encode_record(record)
        self.in_flight.append(Sealed(record, data, self._is_plain))
        self.in_flight_bytes += len(data)
        self._keep_checkpoint(len(data), now)
        self._index += 1
        self._position += len(self._entries)
        self._entries, self._notes, self._heard_now = [], [], {}
        self._bytes, self._is_plain = 0, True
        return data

    def _is_state_due(self, now: float) -> bool:
        is_old = now - self._since_time >= _CHECKPOINT_SECONDS
        return is_old and self._since_bytes > 0 and not self.in_flight

    def _keep_checkpoint(self, size_bytes: int, now: float) -> None:
        """Keep a state now and then: by entries, bytes and time, so that retention cuts nothing."""
        self._since_entries += len(self._entries)
        self._since_bytes += size_bytes
        if (
            self._since_entries >= self._checkpoint_entries
            or self._since_bytes >= _CHECKPOINT_BYTES
            or now - self._since_time >= _CHECKPOINT_SECONDS
        ):
            self._since_entries, self._since_bytes, self._since_time = 0, 0, now
            self._replica.checkpoint(self._index)

    def commit(self, batch: Batch) -> None:
        """Take note that a batch has come back from the log."""
        while self.in_flight and self.in_flight[0].record.batch.index <= batch.index:
            self.in_flight_bytes -= len(self.in_flight.popleft().data)
        ids = [entry.id for entry in batch.entries]
        deque(map(self._ahead.pop, ids, repeat(None)), maxlen=0)  # a loop would take 0.1 µs more
        if self._granted and not (self.in_flight or self.has_outcomes):
            self._granted.clear()

    def recognise(self, data: bytes) -> Sealed | None:
        """Return the next batch of this leader if bytes hold it.

        It need not be decoded again: 1.3 µs an entry.
        """
        sealed = self.in_flight[0] if self.in_flight else None
        return sealed if sealed is not None and sealed.data == data else None

    def find(self, id: str) -> LogEntry | None:
        """Return the entry of an envelope id that is decided or committed."""
        found = self._ahead.get(id)
        return self._journal_find(id) if found is None else found

    # --- private --------------------------------------------------------------------------------

    def _settings(self, participant: str) -> ParticipantSettings | None:
        granted = self._granted.get(participant) if self._granted else None
        return self._committed_settings(participant) if granted is None else granted.settings

    def _accept_grant(self, participant: str, data: bytes) -> bool:
        """Take what a signed token admits. Return False for the name of another participant."""
        ahead = self._granted.get(participant)
        owner = self._committed_owner(participant) if ahead is None else ahead.issuer
        if owner is None and self._settings(participant) is not None:
            return False  # it is configured
        try:
            granted = decode_grant(participant, data)
        except (msgspec.DecodeError, CapabilityError, FilterError):
            return False  # of a newer version
        if owner not in (None, granted.issuer):
            return False
        self._granted[participant] = granted
        return True

    def _decide(self, origin: str, command: Command, now: float) -> None:
        participant = self.roster.participant((origin, command.session))
        if participant is None:
            self._note(DROPPED, origin, command.number)
            return
        try:
            envelope = decode(command.text)
        except DecodeError as error:
            self._refuse(origin, command, refusals.invalid_envelope(error), None, now)
            return
        settings = self._settings(participant) or ParticipantSettings.unknown(participant)
        verdict = self._decisions.decide(settings, envelope, command.text, now)
        self._carry_out(verdict, origin, command, settings, envelope, now)

    def _carry_out(
        self,
        verdict: Verdict,
        origin: str,
        command: Command,
        settings: ParticipantSettings,
        envelope: Envelope,
        now: float,
    ) -> None:
        """Log the outcome of a text."""
        if isinstance(verdict, LogEntry):
            self._append(verdict)
        elif isinstance(verdict, Revival):
            for state in verdict.contexts:
                contexts = (self._replica.tree.revived_lineage(state),)
                payload = system_envelopes.revival(state)
                self._system(kinds.CONTEXT, payload, now, contexts=contexts)
            self._append(verdict.entry)
        elif isinstance(verdict, Refusal):
            self._refuse(origin, command, verdict, envelope.id, now)
        elif isinstance(verdict, SuspectedLoop):
            payload = system_envelopes.loop(settings.id, verdict.hops, verdict.context)
            place = () if verdict.context is None else (verdict.context,)
            self._system(kinds.LOOP, payload, now, contexts=place)
            self._refuse(origin, command, verdict.refusal, envelope.id, now)
        elif isinstance(verdict, LivePart):
            self._note(DROPPED, origin, command.number)  # gateways relay these themselves
        elif verdict is not None:
            # Its gateway has the original: a short text must not make the log grow by a long one.
            id = envelope.id.encode()
            self._note(REPEATED, origin, command.number, command.session, text=id)
        elif envelope.kind == kinds.CARD_REQUEST:
            self._set_card(origin, command, settings, envelope, now)
        else:
            refusal = refusals.reserved_kind(envelope.kind)
            self._refuse(origin, command, refusal, envelope.id, now)

    def _set_card(
        self,
        origin: str,
        command: Command,
        settings: ParticipantSettings,
        request: Envelope,
        now: float,
    ) -> None:
        """Keep a participant's card, announce it if it is another one, and acknowledge it."""
        try:
            card = read_card_request(request)
        except DecodeError as error:
            self._refuse(origin, command, refusals.invalid_card(error), request.id, now)
            return
        assert isinstance(card, NewCard), "other requests are served where they arrive"
        id = settings.id
        if self._cards.would_change(id, card.text):
            refusal = card_refusal(self._cards, id, card)
            if refusal is not None:
                self._refuse(origin, command, refusal, request.id, now)
                return
            self._cards.set(id, card.text)
            info = Raw(participant_info(settings, self._cards.digest(id)))
            self._system(kinds.UPDATE, {"participant": info}, now, card=card.text)
        payload = system_envelopes.card(id, self._cards.digest(id))
        text = system_envelopes.system(
            self._new_id(), kinds.CARD, payload, now, correlation_id=request.id
        )
        self._note(ANSWER, origin, command.number, command.session, text=text)

    def _refuse(
        self, origin: str, command: Command, refusal: Refusal, id: str | None, now: float
    ) -> None:
        self._refused[refusal.code] = self._refused.get(refusal.code, 0) + 1
        text = system_envelopes.system(
            self._new_id(), kinds.ERROR, refusal.payload(), now, correlation_id=id
        )
        self._note(ANSWER, origin, command.number, command.session, text=text)

    def _join(self, origin: str, command: Command, now: float) -> None:
        participant, key = command.participant, (origin, command.session)
        is_accepted = not command.grant or self._accept_grant(participant, command.grant)
        settings = self._settings(participant)
        if settings is None or not is_accepted:
            self._note(DENIED, origin, command.number, command.session)
            return
        if participant not in self.roster.present:
            self._presence("join", participant, now)
            self.roster.present[participant] = None
        elif not settings.multiple:
            replaced = self.roster.sessions_of(participant)
            if any(self._is_outrun(origin, command, old) for old in replaced):
                self._note(OUTRUN, origin, command.number, command.session)
                return
            for old in replaced:
                self._note(REPLACED, old[0], 0, old[1])
                self.roster.remove(old)
        self.roster.add(key, participant, self._index)
        note = (command.number, command.session, participant, command.grant)
        self._note(JOINED, origin, *note)

    def _is_outrun(self, origin: str, command: Command, old: SessionKey) -> bool:
        """Return whether a session may be newer than a join that would replace it.

        It is not if the gateway knew of it when it asked, or has it itself.
        """
        return old[0] != origin and command.seen <= self.roster.index(old)

    def _leave(self, origin: str, command: Command, now: float) -> None:
        key = (origin, command.session)
        is_member = self.roster.participant(key) is not None
        left = self.roster.remove(key)
        event = LEFT if is_member else DROPPED
        self._note(event, origin, command.number, command.session)
        if left is not None:
            self._presence("leave", left, now)
            self.roster.leave(left)

    def _presence(self, event: str, participant: str, now: float) -> None:
        settings = self._settings(participant) or ParticipantSettings.unknown(participant)
        about = participant_info(settings, self._cards.digest(participant))
        payload = {"event": event, "participant": Raw(about)}
        self._system(kinds.PRESENCE, payload, now, about=(participant,))

    def _system(
        self,
        kind: str,
        payload: Mapping[str, Any],
        now: float,
        *,
        about: tuple[str, ...] = (),
        contexts: tuple[Lineage, ...] = (),
        card: bytes = b"",
    ) -> None:
        id = self._new_id()
        text = system_envelopes.system(id, kind, payload, now)
        to = () if card else None
        self._append(LogEntry(id, GATEWAY, to, kind, None, text, about, contexts, card=card))

    def _append(self, entry: LogEntry) -> None:
        self._is_plain = False
        self._entries.append(entry)
        self._ahead[entry.id] = entry
        self._bytes += len(entry.text) + len(entry.card) + _ENTRY_BYTES

    def _note(
        self,
        event: int,
        origin: str,
        number: int,
        session: int = 0,
        participant: str = "",
        text: bytes = b"",
    ) -> None:
        self._is_plain = False
        place = len(self._entries)
        self._notes.append(Note(place, event, origin, number, session, participant, text))
        self._bytes += len(text) + _ENTRY_BYTES
