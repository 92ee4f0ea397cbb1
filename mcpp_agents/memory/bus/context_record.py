"""What the listener keeps of one live context, within bounds."""

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mcpp import Envelope, Kind, kinds
from mcpp_agents.memory.bus.envelope_text import (
    attribute_lines,
    failure_text,
    kept_text,
    subject_text,
)
from mcpp_agents.memory.bus.summaries.extractive_summary import SpokenTurn
from mcpp_agents.memory.bus.summaries.rolling import RollingState

MAX_GOTCHAS: Final = 3
MAX_TURN_CHARS: Final = 4_000
_MAX_TURNS: Final = 200
_MAX_SUBJECT_CHARS: Final = 1_000
_MAX_ENVELOPES: Final = 50
_MAX_CALLS: Final = 50  # unanswered calls of one participant in one context
_MAX_ADDRESSEES: Final = 16  # of one call; a call to several is served by none (P-16)
_KEPT_TURNS: Final = 10  # of a conversation that is too long


class EnvelopeRef(NamedTuple):
    """The id and time of an envelope."""

    id: str
    ts: str

    @classmethod
    def of(cls, envelope: Envelope) -> "EnvelopeRef":
        return cls(envelope.id, envelope.ts)


class FailedCall(NamedTuple):
    """A call that failed: its response, and the participant that called."""

    response: EnvelopeRef
    caller: str


@dataclass
class ContextRecord:
    """The creator of a context and what was said in it.

    `generation` distinguishes successive contexts with the same id. The creator is None if the
    beginning of the context was not received; then nothing in it is kept (M-30).
    """

    creator: str | None
    generation: int
    last: EnvelopeRef | None = None
    began: str | None = None  # the timestamp of the earliest text that is kept
    concluded: bool = False
    subject: dict[str, str] = field(default_factory=dict)  # lines by the name of the metadata
    turns: list[SpokenTurn] = field(default_factory=list)
    envelopes: list[str] = field(default_factory=list)
    participants: set[str] = field(default_factory=set)
    # Unanswered calls: caller → request id → participants that may respond.
    calls: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    creator_failures: dict[str, FailedCall] = field(default_factory=dict)  # by their text
    other_failures: dict[str, FailedCall] = field(default_factory=dict)
    rolling: RollingState = field(default_factory=RollingState)
    is_erased: bool = False  # a part of it, or its question, was erased from the log (H-14)
    has_summary: bool = False  # a rolling summary of it may be stored (M-53)

    @property
    def subject_text(self) -> str:
        """What the creator says that the context is about."""
        return "\n".join(self.subject.values())

    @property
    def has_full_subject(self) -> bool:
        """Whether no more metadata are recorded; redacting many small members would take long."""
        return len(self.subject_text) >= _MAX_SUBJECT_CHARS

    @property
    def failures(self) -> dict[str, FailedCall]:
        """The failed calls to keep, those of the creator first (M-32)."""
        failures = {**self.other_failures, **self.creator_failures}
        first = dict.fromkeys([*self.creator_failures, *self.other_failures])
        return {text: failures[text] for text in list(first)[:MAX_GOTCHAS]}

    def add_envelope(self, envelope: Envelope) -> None:
        """Record an envelope's id and sender, and a call or its response."""
        self.last = EnvelopeRef.of(envelope)
        self.began = self.began or envelope.ts
        self.participants.add(envelope.sender)
        if len(self.envelopes) < _MAX_ENVELOPES:
            self.envelopes.append(envelope.id)
        match Kind.parse(envelope.kind).family:
            case kinds.REQUEST:
                calls = self.calls.setdefault(envelope.sender, {})
                calls[envelope.id] = set((envelope.to or ())[:_MAX_ADDRESSEES]) - {envelope.sender}
                if len(calls) > _MAX_CALLS:
                    del calls[next(iter(calls))]
            case kinds.RESPONSE:
                self._add_response(envelope)

    def add_subject(self, sender: str, name: str, value: object) -> None:
        """Record a member of the creator's metadata as a line about the subject (M-38)."""
        if text := subject_text(name, value):
            self.subject[name] = attribute_lines(sender, text)[:_MAX_SUBJECT_CHARS]

    def add_turn(self, envelope: Envelope) -> str:
        """Record what an envelope says, if it says anything, and return it."""
        text = kept_text(envelope)[:MAX_TURN_CHARS]
        if text:
            self.turns.append(SpokenTurn(envelope.sender, text))
            self._keep_turns(_MAX_TURNS)
        return text

    @property
    def turn_chars(self) -> int:
        """The length of what is kept of the conversation."""
        return sum(len(turn.text) for turn in self.turns)

    def drop_turns(self) -> int:
        """Keep the first and the last turns only, and return how many characters were dropped."""
        before = self.turn_chars
        self._keep_turns(_KEPT_TURNS)
        self.rolling.clear()  # it refers to the same texts
        return before - self.turn_chars

    def _keep_turns(self, number: int) -> None:
        del self.turns[1:-number]  # keep the first one, which often is the question

    def forget_conversation(self) -> None:
        """Drop what was said: it is stored already, or must not be."""
        self.began = None
        self.turns.clear()
        self.rolling.clear()
        self.creator_failures.clear()
        self.other_failures.clear()

    def _add_response(self, response: Envelope) -> None:
        """Record a failure, if the response is the first one to a call addressed to its sender.

        Other responses could be forged, and the failures of the creator's calls have their own
        limit so that others cannot crowd them out (M-32).
        """
        id = response.correlation_id or ""
        caller = next((each for each, calls in self.calls.items() if id in calls), None)
        if caller is None or response.sender not in self.calls[caller][id]:
            return
        self.calls[caller][id].remove(response.sender)
        failures = self.creator_failures if caller == self.creator else self.other_failures
        if len(failures) < MAX_GOTCHAS and (text := failure_text(response)):
            failures.setdefault(text, FailedCall(EnvelopeRef.of(response), caller))
