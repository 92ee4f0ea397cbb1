"""A participant's side of the protocol, without I/O: texts and time in, effects and texts out.

The first text of a connection is the welcome, then come the envelopes that it announces as
replayed, then live ones. `ClientSession` composes four parts:

- `Resumption` delivers each envelope once and in order, over any number of connections.
- `Outgoing` keeps what was sent until its echo or its refusal, and resends it on a new connection.
  It waits for the end of the replay, which may contain the echo: then nothing is sent again.
- `Correlations` matches answers to requests and proposals. It and the echoes come before the
  bounded inbox, so a full inbox delays neither.
- `ContextTracker` knows the live contexts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mcpp import filters, kinds
from mcpp.buffers import MAX_BUFFER_BYTES, BoundedQueue
from mcpp.errors import DecodeError, FilterError, TooLargeError, WrongParticipantError
from mcpp.filters import Filter
from mcpp.payloads import (
    ContextInfo,
    Error,
    ParticipantInfo,
    PodInfo,
    Presence,
    SetFilter,
    Update,
    Welcome,
)
from mcpp.protocol.codec import decode, decode_history, encode
from mcpp.protocol.contexts import ContextTracker
from mcpp.protocol.envelope import Envelope
from mcpp.session.claims import ClaimRegister
from mcpp.session.correlations import Correlations
from mcpp.session.effects import (
    Echoed,
    Effect,
    EnvelopeRefused,
    Joined,
    Noted,
    Served,
    Unreadable,
    Unsendable,
)
from mcpp.session.live_parts import LiveParts
from mcpp.session.outgoing import Outgoing
from mcpp.session.resumption import (
    Delivery,
    Gap,
    HistoryEnd,
    Join,
    Resumption,
)
from mcpp.session.roster import Roster

# What says who holds which name (P-55).
_CLAIM_KINDS: Final = (f"{kinds.CLAIM}:", f"{kinds.RELEASE}:", kinds.PRESENCE)


REVOKED: Final = 4501  # the token was revoked or has changed


def is_final(code: int) -> bool:
    """Return whether a close code is final: the client must not reconnect."""
    return 4500 <= code <= 4999


class _UnreadWelcome(Welcome, frozen=True):
    """A welcome whose participants are not parsed yet."""

    participants: msgspec.Raw  # type: ignore[assignment]


class ClientSession:
    """What a participant knows about its pod. Owns no connection and no clock."""

    def __init__(
        self,
        name: str | None = None,
        *,
        filter: Filter | Mapping[str, Any] | None = None,
        last: int | None = None,
        after: str | None = None,
        live: bool = False,
        capacity: int = 1024,
        capacity_bytes: int = MAX_BUFFER_BYTES,
    ) -> None:
        if last is not None and last < 0:
            raise ValueError(f"last must be at least 0, not {last}")
        self.name = name or ""
        self.filter = filters.as_filter(filter)
        self.pod: PodInfo | None = None
        self.limits: dict[str, object] = {}
        self.card: str | None = None  # the digest of our card, as of the last welcome
        self.outgoing = Outgoing()
        self.joined = False
        self._roster = Roster()
        self.claims = ClaimRegister()
        self._contexts = ContextTracker()
        self._correlations = Correlations()
        self._resumption = Resumption(
            last=last, after=after, capacity=capacity, capacity_bytes=capacity_bytes
        )
        self._live_parts = LiveParts()
        self._takes_live = live  # whether live parts are put into the inbox, too
        # Answers that arrive while the past is read, which they may be about; None at other times.
        self.recorded: BoundedQueue[Envelope] | None = None
        self._filter_again: Envelope | None = None  # a change made while the inbox was full

    @property
    def contexts(self) -> dict[str, ContextInfo]:
        """The pod's live contexts that this participant knows, by id."""
        return self._contexts.contexts

    @property
    def participants(self) -> dict[str, ParticipantInfo]:
        """The participants that are present, by name."""
        return self._roster.participants

    @property
    def presence_changes(self) -> int:
        """How often the list of participants has changed so far."""
        return self._roster.changes

    def is_absent(self, participant: str) -> bool:
        """Return whether a participant is known not to be in the pod."""
        return self.live and participant not in self.participants and self._roster.is_complete

    @property
    def position(self) -> str | None:
        """The id of the envelope after which the next connection resumes."""
        return self._resumption.position

    @property
    def history(self) -> int:
        """How many envelopes from before the first join are replayed."""
        return self._resumption.history

    # --- connections ---

    def join(self) -> Join:
        """Begin a new connection and return what to request from the gateway."""
        self.joined = False
        after, last = self._resumption.begin(joined_before=self.pod is not None)
        if self._filter_again is not None:
            self.outgoing.add_first(self._filter_again, encode(self._filter_again))
            self._filter_again = None
        self.outgoing.requeue()
        return Join(self.filter, after, last)

    @property
    def live(self) -> bool:
        """Whether the replay is over: only then is anything sent."""
        return self.joined and not self._resumption.replaying

    @property
    def should_rejoin(self) -> bool:
        """Whether to reconnect, because the inbox overflowed on this connection and has room again.

        False during a replay while something waits to be sent or answered, which may need the end
        of the replay: with a small inbox and a long replay, no connection would ever reach it.
        """
        return self._resumption.has_room_again and (self.live or not self._is_awaited)

    @property
    def may_pause(self) -> bool:
        """Whether reading the rest of a replay may wait until the inbox has room for it."""
        return self._resumption.is_crowded and not self.live and not self._is_awaited

    @property
    def _is_awaited(self) -> bool:
        return len(self.outgoing) > 0 or self._correlations.has_requests

    # --- sending ---

    def send(self, envelope: Envelope, *, give_up_at: float) -> None:
        """Queue an envelope; `transmit` returns its text when it may be written.

        Raises TooLargeError where the gateway would close the connection for its size.
        """
        text = encode(envelope)
        limit = self._max_bytes
        if limit is not None and len(text) > limit:
            raise TooLargeError(len(text), limit)
        self.outgoing.add(envelope, text, give_up_at=give_up_at)

    def send_live(self, part: Envelope, now: float) -> bytes | None:
        """Return the text of a live part to write now, or None if it cannot be sent now."""
        stream = part.correlation_id or part.kind
        if not (self.live and self._live_parts.may_send(stream) and self.outgoing.spend_spare(now)):
            return None
        self._live_parts.add(part.id, stream)
        if part.context is not None:
            self.outgoing.count_accepted(part.context.id, now)
        return encode(part)

    def transmit(self, now: float) -> list[bytes]:
        """Return the texts to write to the connection now."""
        return self.outgoing.transmit(now) if self.live else []

    def expect(self, asking: Envelope, participant: str) -> None:
        """Expect an answer to a request or a proposal, from this participant only (P-14)."""
        self._correlations.expect(asking, participant)

    def forget(self, id: str) -> None:
        """Stop expecting an answer to the request or proposal with this id."""
        self._correlations.forget(id)

    def learn(self, envelope: Envelope) -> Sequence[Effect]:
        """Return what an envelope of the past means to pending proposals, as if it came now."""
        return self._correlations.receive(envelope)

    # --- receiving ---

    def take(self) -> Delivery | HistoryEnd | Gap | None:
        """Return the next item in the log's order, or None when there is none."""
        return self._resumption.take()

    def receive(self, text: bytes, now: float) -> Sequence[Effect]:
        """Process one text from the connection.

        Raises WrongParticipantError when the token belongs to another participant.
        """
        try:
            envelope = _decode(text)
            if envelope.kind.startswith("system/"):
                return self._receive_system(envelope, now, len(text))
            if kinds.is_live(envelope.kind):
                return self._receive_live(envelope, now, len(text))
        except (DecodeError, FilterError) as error:
            self._resumption.skip()
            return (Unreadable(error),)
        return self._receive_logged(envelope, now, len(text))

    def _receive_system(self, envelope: Envelope, now: float, size: int) -> Sequence[Effect]:
        match envelope.kind:
            case kinds.WELCOME:
                return self._receive_welcome(envelope.payload_as(_UnreadWelcome))
            case kinds.ERROR:
                details = envelope.payload_as(Error)
                return self._receive_refusal(details, envelope.correlation_id, now)
            case kinds.FILTER_SET:
                filter = filters.parse(envelope.payload_as(SetFilter).filter)
                return self._receive_filter(filter, envelope.correlation_id or "")
            case (
                kinds.HISTORY | kinds.REPLAY | kinds.CARD
            ):  # direct: neither a position nor for the inbox
                settled = self.outgoing.settle(envelope.correlation_id or "")
                return () if settled is None else (Served(settled[0], envelope),)
            case kinds.PRESENCE if not self._resumption.replaying:
                self._update_participants(envelope.payload_as(Presence), size)
            case kinds.UPDATE if not self._resumption.replaying:
                self._roster.update(envelope.payload_as(Update).participant, size)
            case kinds.CONTEXT if not self._resumption.replaying:
                self._update_contexts(envelope)
        return self._receive_logged(envelope, now, size)

    def _receive_live(self, part: Envelope, now: float, size: int) -> Sequence[Effect]:
        """Take a live part, which changes nothing that follows from the log (P-71)."""
        if part.context is not None:
            self.outgoing.count_accepted(part.context.id, now)
        # Once the complete message is there, further parts are of no use.
        id = part.correlation_id
        if id is not None and not self._resumption.is_new(id):
            return ()
        if self._takes_live:
            self._resumption.receive_live(part, size)
        return self._correlations.receive_live(part)

    def _receive_logged(self, envelope: Envelope, now: float, size: int) -> Sequence[Effect]:
        resumption = self._resumption
        if envelope.context is not None:
            self.outgoing.count_accepted(envelope.context.id, now)
            if not resumption.replaying:
                self._contexts.learn(envelope)
        if envelope.kind.startswith(_CLAIM_KINDS) and not resumption.is_history:
            self.claims.receive(envelope)
        effects: Sequence[Effect] = ()
        times_sent = 0
        if envelope.correlation_id is not None or envelope.sender == self.name:
            effects, times_sent = self._settle(envelope)
        if not resumption.receive(envelope, times_sent, size) and any(
            isinstance(effect, Noted) for effect in effects
        ):
            resumption.mark_reported(envelope.id)
        return effects

    def _settle(self, envelope: Envelope) -> tuple[Sequence[Effect], int]:
        effects: list[Effect] = []
        times_sent = 0
        if self.recorded is not None:
            self.recorded.push(envelope, envelope.size_bytes)
        if envelope.sender == self.name:
            settled = self.outgoing.settle(envelope.id)
            if settled is not None:
                times_sent = settled[1]
                effects.append(Echoed(envelope))
        if envelope.correlation_id is not None and self._resumption.is_new(envelope.id):
            effects += self._correlations.receive(envelope)
        return effects, times_sent

    def _receive_welcome(self, welcome: "_UnreadWelcome") -> Sequence[Effect]:
        if not welcome.resumed:
            self.claims.clear()
        if self.name and welcome.you.id != self.name:
            raise WrongParticipantError(self.name, welcome.you.id)
        lost_log = self.pod is not None and self.pod.epoch != welcome.pod.epoch
        self._resumption.welcome(
            welcome.replayed,
            position=welcome.position,
            resumed=welcome.resumed,
            lost_log=lost_log,
            joined_before=self.pod is not None,
        )
        self.name = welcome.you.id
        self.card = welcome.you.card
        self.pod = welcome.pod
        self.limits = welcome.limits
        self.outgoing.set_limits(self.limits)
        self._roster.reset(welcome.participants, is_complete=not welcome.more)
        self._contexts.reset(welcome.contexts)
        self.joined = True
        return (Joined(welcome.replayed, lost_log), *self._drop_too_large())

    def _receive_refusal(self, details: Error, id: str | None, now: float) -> Sequence[Effect]:
        if id is not None and self._live_parts.refuse(id, details):
            if details.error == "rate_limited":
                self.outgoing.slow_down(details, now)
            return ()
        if id is None or id not in self.outgoing:
            return (EnvelopeRefused(None, details),)
        refused = self.outgoing.refuse(id, details, now)
        return () if refused is None else (EnvelopeRefused(refused, details),)

    def _receive_filter(self, filter: Filter, id: str) -> Sequence[Effect]:
        settled = self.outgoing.settle(id)
        if not self._resumption.overflowed:
            self.filter = filter
        else:
            # P-11: the next connection resumes where the old filter was in force. Request what
            # passes either of the two, then make the change again.
            self.filter = _either(self.filter, filter)
            self._filter_again = self._filter_again if settled is None else settled[0]
        return () if settled is None else (Echoed(settled[0]),)

    def _update_contexts(self, envelope: Envelope) -> None:
        change = self._contexts.change(envelope)
        if change is not None and change.event == "expired":
            for context in change.contexts:
                self.outgoing.forget_context(context.id)

    def _update_participants(self, presence: Presence, size: int) -> None:
        entries = presence.each()
        for each in entries:
            if each.event == "join":
                self._roster.add(each.participant, size // len(entries))
            else:
                self._roster.remove(each.participant.id)

    @property
    def _max_bytes(self) -> int | None:
        limit = self.limits.get("max_message_bytes")
        return limit if isinstance(limit, int) else None

    def _drop_too_large(self) -> Sequence[Effect]:
        # The limit may be lower than when these envelopes were accepted.
        limit = self._max_bytes
        if limit is None:
            return ()
        dropped = self.outgoing.drop_longer(limit)
        return [Unsendable(envelope, TooLargeError(size, limit)) for envelope, size in dropped]


def _decode(text: bytes) -> Envelope:
    try:
        return decode(text)
    except DecodeError as error:
        try:
            return decode_history(text)  # a page of envelopes may be nested deeper (P-33)
        except DecodeError:
            raise error from None


def _either(one: Filter | None, other: Filter) -> Filter | None:
    """Return a filter that passes what either passes, or None (no filter) if that is too long."""
    try:
        return None if one is None else filters.parse((one | other).to_json())
    except FilterError:
        return None
