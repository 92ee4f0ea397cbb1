"""A participant's side of the wire without I/O: texts and time in, effects and texts out.

The life of a line: `join()` says what to ask for, the first text is the welcome, then come the
envelopes it announces as replayed, then live ones. Three promises hold across lines:

- An envelope is handed out once and in the log's order. `position` is where the next line goes on;
  ids that were seen are dropped, for a gateway that lost its log gets resent envelopes again.
- What is sent is settled by its echo or its refusal, and sent again on a new line until then. It
  waits for the end of the replay, which may hold the echo: then nothing needs to be sent again.
- Echoes and answers settle before the bounded inbox. When that is full, the rest is not kept and
  `position` stands still: a line dropped when there is room again brings it back.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from mcpp import filters, kinds
from mcpp.errors import DecodeError, FilterError, TooLargeError, WrongParticipantError
from mcpp.filters import Filter
from mcpp.kinds import Kind
from mcpp.payloads import (
    ContextInfo,
    Error,
    ParticipantInfo,
    PodInfo,
    Presence,
    Welcome,
)
from mcpp.payloads import SetFilter as SetFilter
from mcpp.protocol import rpc
from mcpp.protocol.codec import decode, encode
from mcpp.protocol.contexts import ContextTracker, read_context_change
from mcpp.protocol.envelope import Envelope
from mcpp.session.effects import (
    Answered,
    Echoed,
    Effect,
    EnvelopeRefused,
    Joined,
    Noted,
    Unreadable,
    Unsendable,
)
from mcpp.session.outgoing import Outgoing

# Once a position is forgotten, whatever the log still holds was missed: ask for as much of it as a
# gateway keeps by default.
MISSED_MESSAGES: Final = 10_000
_SEEN_IDS: Final = 2 * MISSED_MESSAGES
_PROGRESS: Final = str(Kind(kinds.NOTIFICATION, rpc.PROGRESS))


def is_final(code: int) -> bool:
    """Tell whether a close code says not to come back."""
    return 4500 <= code <= 4999


@dataclass(frozen=True, slots=True)
class Join:
    """What to ask for when a line is opened."""

    filter: Filter | None = None
    after: str | None = None
    last: int | None = None

    def query(self) -> dict[str, str]:
        """Return it as the members of a URL's query."""
        asked: dict[str, str] = {}
        if self.after is not None:
            asked["after"] = self.after
        if self.last is not None:
            asked["last"] = str(self.last)
        if self.filter is not None:
            asked["filter"] = msgspec.json.encode(self.filter.to_json()).decode()
        return asked


# --- what the inbox holds ----------------------------------------------------------------------


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """An envelope for the participant; `replayed` if it is history from before it joined."""

    envelope: Envelope
    replayed: bool


@dataclass(frozen=True, slots=True)
class Gap:
    """Envelopes were missed here. `lost_log` tells whether the gateway itself has lost them."""

    lost_log: bool


class _Question(NamedTuple):
    requester: str
    participant: str
    origins: tuple[str, ...]  # the request itself, if ours, and the proposal that it fulfils


class ClientSession:
    """Everything a participant knows about its pod. Owns no connection and no clock."""

    def __init__(
        self,
        name: str | None = None,
        *,
        filter: Filter | Mapping[str, Any] | None = None,
        last: int | None = None,
        after: str | None = None,
        capacity: int = 1024,
    ) -> None:
        if last is not None and last < 0:
            raise ValueError(f"last must be at least 0, not {last}")
        self.name = name or ""
        self.filter = filters.as_filter(filter)
        self.position = after
        self.pod: PodInfo | None = None
        self.limits: dict[str, object] = {}
        self.participants: dict[str, ParticipantInfo] = {}
        self._contexts = ContextTracker()
        self.outgoing = Outgoing()
        self.joined = False
        self.history = 0
        self._last = last
        self._capacity = capacity
        self._inbox: deque[Delivery | Gap] = deque()
        self._overflowed = False
        self._filter_again: Envelope | None = None  # set while there was no room for what came
        self._resuming = False
        self._replaying = 0
        self._history_left = 0  # of what `last` asked for, over as many lines as it takes
        self._end_of_replay: str | None = None
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._noted_early: set[str] = set()  # while there was no room; they will come again
        self._asked: dict[str, _Question] = {}
        self._proposed: dict[str, Envelope] = {}

    @property
    def contexts(self) -> dict[str, ContextInfo]:
        """The live contexts of the pod by id, as far as this participant knows them."""
        return self._contexts.contexts

    # --- lines ---

    def join(self) -> Join:
        """Begin a new line and return what to ask the gateway for."""
        self.joined = False
        self._overflowed = False
        self._replaying = 0
        self._resuming = self.position is not None
        if self._filter_again is not None:
            self.outgoing.add_first(self._filter_again, encode(self._filter_again))
            self._filter_again = None
        self.outgoing.requeue()
        first = self.pod is None or not self._resuming
        return Join(self.filter, self.position, self._last if first else MISSED_MESSAGES)

    @property
    def live(self) -> bool:
        """Whether the line has told everything from before it was opened."""
        return self.joined and not self._replaying

    @property
    def should_rejoin(self) -> bool:
        """Whether the inbox has overflowed on this line and has room again.

        Not while somebody waits for what only the end of a replay lets us send or may hold: far
        behind, with a small inbox, no line would ever come to it.
        """
        if not self._overflowed or len(self._inbox) > self._capacity // 8:
            return False
        return self.live or not self._is_awaited

    @property
    def may_pause(self) -> bool:
        """Whether reading the rest of a replay may wait until the inbox has room for it."""
        crowded = len(self._inbox) > self._capacity // 2
        return crowded and not self.live and not self._overflowed and not self._is_awaited

    @property
    def _is_awaited(self) -> bool:
        return len(self.outgoing) > 0 or len(self._asked) > 0

    # --- sending ---

    def send(self, envelope: Envelope, *, give_up_at: float) -> None:
        """Take an envelope on; `transmit` says when to write it.

        Raises TooLargeError where the gateway would close the line instead of answering.
        """
        text = encode(envelope)
        limit = self._max_bytes
        if limit is not None and len(text) > limit:
            raise TooLargeError(len(text), limit)
        self.outgoing.add(envelope, text, give_up_at=give_up_at)

    def transmit(self, now: float) -> list[bytes]:
        """Return the texts to write to the line now."""
        return self.outgoing.transmit(now) if self.live else []

    def expect(self, asking: Envelope, participant: str) -> None:
        """Expect an answer to a request or a proposal, and from this participant alone (P-14)."""
        if Kind.parse(asking.kind).family == kinds.PROPOSAL:
            self._proposed[asking.id] = asking
        else:
            self._asked[asking.id] = _Question(asking.sender, participant, (asking.id,))

    def forget(self, id: str) -> None:
        """Expect no answer any more to the request or proposal with this id."""
        self._proposed.pop(id, None)
        for key, asked in list(self._asked.items()):
            if id in asked.origins:
                rest = tuple(origin for origin in asked.origins if origin != id)
                if rest:
                    self._asked[key] = asked._replace(origins=rest)
                else:
                    del self._asked[key]

    # --- receiving ---

    def take(self) -> Delivery | Gap | None:
        """Return what comes next in the log's order, or None when there is nothing."""
        return self._inbox.popleft() if self._inbox else None

    def receive(self, text: bytes, now: float) -> Sequence[Effect]:
        """Read one text from the line.

        Raises WrongParticipantError when the gateway knows us under another name.
        """
        try:
            envelope = decode(text)
            if envelope.kind.startswith("system/"):
                return self._system(envelope, now)
        except (DecodeError, FilterError) as error:
            if self._replaying:
                self._replaying -= 1
                self._history_left = max(0, self._history_left - 1)
            return (Unreadable(error),)
        return self._logged(envelope, now)

    def _system(self, envelope: Envelope, now: float) -> Sequence[Effect]:
        match envelope.kind:
            case kinds.WELCOME:
                return self._welcome(envelope.payload_as(Welcome))
            case kinds.ERROR:
                return self._refused(envelope.payload_as(Error), envelope.correlation_id, now)
            case kinds.FILTER_SET:
                filter = filters.parse(envelope.payload_as(SetFilter).filter)
                return self._filter_set(filter, envelope.correlation_id or "")
            case kinds.PRESENCE if not self._replaying:
                self._update_roster(envelope.payload_as(Presence))
            case kinds.CONTEXT if not self._replaying:
                self._update_contexts(envelope)
        return self._logged(envelope, now)

    def _filter_set(self, filter: Filter, id: str) -> Sequence[Effect]:
        settled = self.outgoing.settle(id)
        if not self._overflowed:
            self.filter = filter
        else:
            # P-11: the next line begins where another filter was in force. It brings what either
            # lets through, and then the change is made again.
            self.filter = _either(self.filter, filter)
            self._filter_again = self._filter_again if settled is None else settled[0]
        return () if settled is None else (Echoed(settled[0]),)

    def _welcome(self, welcome: Welcome) -> Sequence[Effect]:
        if self.name and welcome.you.id != self.name:
            raise WrongParticipantError(self.name, welcome.you.id)
        lost_log = self.pod is not None and self.pod.epoch != welcome.pod.epoch
        if (self._resuming or self.pod is not None) and (lost_log or not welcome.resumed):
            self._inbox.append(Gap(lost_log))
            self._history_left = 0
            self._noted_early.clear()
        if not self._resuming:
            self.history = self._history_left = welcome.replayed
        self.name = welcome.you.id
        self.pod = welcome.pod
        self.limits = welcome.limits
        self.outgoing.pace(self.limits)
        self.participants = {info.id: info for info in welcome.participants}
        self._contexts.reset(welcome.contexts)
        self.joined = True
        self._replaying = welcome.replayed
        self._end_of_replay = welcome.position
        if not welcome.replayed:
            self._arrive()
        return (Joined(welcome.replayed), *self._drop_too_large())

    @property
    def _max_bytes(self) -> int | None:
        limit = self.limits.get("max_message_bytes")
        return limit if isinstance(limit, int) else None

    def _drop_too_large(self) -> Sequence[Effect]:
        # The gateway may have come back with a lower limit than they were taken on under.
        limit = self._max_bytes
        if limit is None:
            return ()
        dropped = self.outgoing.drop_longer(limit)
        return [Unsendable(envelope, TooLargeError(size, limit)) for envelope, size in dropped]

    def _refused(self, details: Error, id: str | None, now: float) -> Sequence[Effect]:
        if id is None or id not in self.outgoing:
            return (EnvelopeRefused(None, details),)
        refused = self.outgoing.refuse(id, details, now)
        return () if refused is None else (EnvelopeRefused(refused, details),)

    def _logged(self, envelope: Envelope, now: float) -> Sequence[Effect]:
        if envelope.context is not None:
            self.outgoing.count(envelope.context.id, now)
        replayed = self._replaying
        if replayed:
            self._replaying -= 1
        elif envelope.context is not None:
            self._contexts.learn(envelope)
        id = envelope.id
        new = id not in self._seen and id not in self._seen_before
        effects: Sequence[Effect] = ()
        times_sent = 0
        if envelope.correlation_id is not None or envelope.sender == self.name:
            effects, times_sent = self._settle(envelope, new)
        if new:
            if self._overflowed or len(self._inbox) >= self._capacity:
                self._overflowed = True
                if any(isinstance(effect, Noted) for effect in effects):
                    self._note_early(id)
            else:
                self._remember(id)
                self._noted_early.discard(id)
                # A second sending is answered with what the log has, out of the log's order.
                if times_sent <= 1:
                    self.position = id
                history = self._history_left > 0
                if history:
                    self._history_left -= 1
                self._inbox.append(Delivery(envelope, history))
        if replayed == 1:
            self._arrive()
        return effects

    def _arrive(self) -> None:
        # The replay may have ended with envelopes that the filter kept from us.
        if self._end_of_replay is not None and not self._overflowed:
            self.position = self._end_of_replay

    def _settle(self, envelope: Envelope, new: bool) -> tuple[Sequence[Effect], int]:
        effects: list[Effect] = []
        times_sent = 0
        if envelope.sender == self.name:
            settled = self.outgoing.settle(envelope.id)
            if settled is not None:
                times_sent = settled[1]
                effects.append(Echoed(envelope))
        if envelope.correlation_id is not None and new and envelope.id not in self._noted_early:
            effects += self._answer(envelope, envelope.correlation_id)
        return effects, times_sent

    def _answer(self, envelope: Envelope, id: str) -> Sequence[Effect]:
        asked = self._asked.get(id)
        if asked is not None and asked.participant == envelope.sender:
            if envelope.kind.startswith(kinds.RESPONSE):
                del self._asked[id]
                return [Answered(origin, envelope) for origin in asked.origins]
            if envelope.kind == _PROGRESS:
                return [Noted(origin, envelope) for origin in asked.origins]
        if (
            asked is not None
            and asked.requester == envelope.sender
            and envelope.kind == rpc.CANCELLED_KIND
        ):
            # P-20: whoever gives up on the fulfilment of a proposal ends it for the proposer, too.
            fulfilled = [origin for origin in asked.origins if origin != id]
            for origin in fulfilled:
                self.forget(origin)
            return [Answered(origin, envelope) for origin in fulfilled]
        proposal = self._proposed.get(id)
        if proposal is not None:
            if rpc.fulfils(envelope, proposal):
                # P-20: the first in the log's order wins; its answer is the proposal's.
                (owner,) = proposal.to or ("",)
                ours = self._asked.get(envelope.id, _Question("", owner, ()))
                if ours.participant != owner:
                    return ()  # with an id of ours, which a gateway that lost its log lets pass
                del self._proposed[id]
                origins = (*ours.origins, id)
                self._asked[envelope.id] = _Question(envelope.sender, owner, origins)
                return (Noted(id, envelope),)
            if envelope.kind == kinds.WITHDRAW and envelope.sender == self.name:
                del self._proposed[id]
                return (Noted(id, envelope),)
            if envelope.kind == kinds.REJECT:
                return (Noted(id, envelope),)
        return ()

    def _remember(self, id: str) -> None:
        self._seen.add(id)
        if len(self._seen) >= _SEEN_IDS:
            self._seen_before, self._seen = self._seen, set()

    def _note_early(self, id: str) -> None:
        if len(self._noted_early) >= _SEEN_IDS:
            self._noted_early.clear()  # of one who never reads
        self._noted_early.add(id)

    def _update_contexts(self, envelope: Envelope) -> None:
        change = read_context_change(envelope)
        if change is None:
            return
        self._contexts.apply(change)
        for context in change.contexts:
            self.outgoing.forget(context.id)

    def _update_roster(self, presence: Presence) -> None:
        if presence.event == "join":
            self.participants[presence.participant.id] = presence.participant
        else:
            self.participants.pop(presence.participant.id, None)


def _either(one: Filter | None, other: Filter) -> Filter | None:
    """Return what passes one of two filters, None for everything, also where both are too long."""
    try:
        return None if one is None else filters.parse((one | other).to_json())
    except FilterError:
        return None
