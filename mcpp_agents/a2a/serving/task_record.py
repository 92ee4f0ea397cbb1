"""A task of an A2A client, as the pod's log tells it.

A task is a context of type `task`, made by the participant that serves A2A. Everything about it is
in the log: our chat in it is the client's message, the reply to it is the answer, an open proposal
or a question to us below it is what it waits for, and our conclusion ends it. So a record is made
from envelopes, whether they have just arrived or are read back after a restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

import msgspec

from mcpp import DecodeError, Envelope, Kind, kinds
from mcpp.outcomes import outcome_of
from mcpp.payloads import Proposal, text_of
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure

# The member of a context's metadata that makes it a task of an A2A client.
METADATA: Final = "a2a"
CONTEXT_TYPE: Final = "task"
ELICIT: Final = "elicitation/create"
_QUESTION: Final = str(Kind(kinds.REQUEST, ELICIT))
_MAX_MESSAGES: Final = 1000
_MAX_OPEN: Final = 64
_MAX_SHOWN_CHARS: Final = 4_000  # of a proposal's arguments and of its preview, as text

Phase: TypeAlias = Literal["working", "waiting", "concluded", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Said:
    """A message of a task: of the client, or of the participant."""

    id: str
    text: str
    is_client: bool


@dataclass(slots=True)
class TaskRecord:
    """The state of one task. Owns what waits for a decision."""

    id: str
    me: str  # the participant that serves A2A
    participant: str  # the one that is asked
    context_id: str  # A2A's: which tasks belong together
    said: list[Said] = field(default_factory=list)
    pending: str | None = None  # our chat that was not answered yet
    answer: Said | None = None
    waiting: dict[str, Envelope] = field(default_factory=dict)  # proposals and questions, by id
    conclusion: Envelope | None = None
    updated: str = ""  # time of the last envelope that changed it

    @classmethod
    def from_first(cls, envelope: Envelope, me: str) -> "TaskRecord | None":
        """Return the task that an envelope of ours begins, None if it begins none."""
        context = envelope.context
        if context is None or envelope.sender != me or context.type != CONTEXT_TYPE:
            return None
        about = context.metadata.get(METADATA) if context.metadata else None
        if not isinstance(about, Mapping):
            return None
        participant, context_id = about.get("participant"), about.get("context")
        if not isinstance(participant, str) or not isinstance(context_id, str):
            return None
        return cls(context.id, me, participant, context_id)

    @property
    def phase(self) -> Phase:
        """How far it is."""
        if self.conclusion is not None:
            return outcome_of(self.conclusion)
        return "waiting" if self.waiting else "working"

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.conclusion is not None

    @property
    def first_waiting(self) -> Envelope | None:
        """The proposal or question that has waited longest."""
        return next(iter(self.waiting.values()), None)

    @property
    def ending(self) -> str:
        """What the conclusion says."""
        return "" if self.conclusion is None else text_of(self.conclusion) or ""

    def observe(self, envelope: Envelope) -> bool:
        """Take an envelope of the context or of one below it; return whether it changes the task.

        An envelope that was taken before changes nothing, or what later ones change back.
        """
        if self.is_over:
            return False
        changed = self._observe(envelope)
        if changed:
            self.updated = envelope.ts
        return changed

    def _observe(self, envelope: Envelope) -> bool:
        kind = Kind.parse(envelope.kind)
        is_here = envelope.context is not None and envelope.context.id == self.id
        if kind.family == kinds.PROPOSAL or envelope.kind == _QUESTION:
            return self._wait_for(envelope, kind)
        if envelope.correlation_id in self.waiting:
            return self._decide(envelope)
        if not is_here:
            return False
        if envelope.sender == self.me and envelope.kind == kinds.CONCLUSION:
            self.conclusion = envelope
            self.waiting.clear()
            return True
        if envelope.kind == kinds.CHAT:
            return self._hear(envelope)
        return False

    def _hear(self, envelope: Envelope) -> bool:
        if any(each.id == envelope.id for each in self.said) or len(self.said) >= _MAX_MESSAGES:
            return False
        said = Said(envelope.id, text_of(envelope) or "", envelope.sender == self.me)
        if said.is_client:
            self.pending, self.answer = envelope.id, None
        elif envelope.sender == self.participant and envelope.correlation_id == self.pending:
            self.pending, self.answer = None, said
        else:
            return False  # of others, or about something else
        self.said.append(said)
        return True

    def _wait_for(self, envelope: Envelope, kind: Kind) -> bool:
        is_for_us = kind.family == kinds.PROPOSAL or envelope.to == (self.me,)
        if not is_for_us or envelope.id in self.waiting or len(self.waiting) >= _MAX_OPEN:
            return False
        try:
            if kind.family == kinds.PROPOSAL:
                rpc.read_proposal(envelope)
            else:
                rpc.read_request(envelope)
        except (DecodeError, Failure):
            return False  # no participant can fulfil or answer it
        self.waiting[envelope.id] = envelope
        return True

    def _decide(self, envelope: Envelope) -> bool:
        open = self.waiting[envelope.correlation_id or ""]
        if not _settles(envelope, open):
            return False
        del self.waiting[open.id]
        return True


def _settles(envelope: Envelope, open: Envelope) -> bool:
    """Return whether an envelope ends the waiting for a proposal or a question."""
    if is_question(open):
        is_answer = envelope.kind.startswith(kinds.RESPONSE) and envelope.sender in (open.to or ())
        is_given_up = envelope.kind == rpc.CANCELLED_KIND and envelope.sender == open.sender
        return is_answer or is_given_up
    if envelope.kind == kinds.WITHDRAW:
        return envelope.sender == open.sender
    return envelope.kind == kinds.REJECT or rpc.fulfils(envelope, open)


def is_question(envelope: Envelope) -> bool:
    """Return whether an envelope is a question to us, and not a proposal."""
    return envelope.kind == _QUESTION


def describe_waiting(envelope: Envelope) -> tuple[str, dict[str, Any]]:
    """Return what a proposal or a question says, for people and as JSON."""
    if is_question(envelope):
        params = rpc.read_request(envelope).params
        schema = params.get("requestedSchema", {})
        return str(params.get("message", "")), {"question": envelope.id, "requestedSchema": schema}
    proposal = envelope.payload_as(Proposal)
    tool = proposal.params.get("name", proposal.method)
    data: dict[str, Any] = {
        "proposal": envelope.id,
        "participant": envelope.sender,
        "owner": (envelope.to or ("",))[0],
        "tool": tool,
        "arguments": proposal.params.get("arguments", {}),
    }
    arguments = msgspec.json.encode(data["arguments"]).decode()
    lines = [f"{envelope.sender} proposes to call {tool}({_cut(arguments)}) of {data['owner']}."]
    if proposal.shown_reason:
        lines[0] += f" Reason: {proposal.shown_reason}"
    preview = proposal.shown_preview
    if preview is not None:
        shown = {"before": preview.before, "after": preview.after}
        data["preview"] = {name: side for name, side in shown.items() if side is not None}
        lines += [f"{name.capitalize()}:\n{_cut(side)}" for name, side in data["preview"].items()]
    separator = " " if preview is None else "\n"
    return separator.join([*lines, 'Answer "approve", or "reject" with a reason.']), data


def _cut(text: str) -> str:
    if len(text) <= _MAX_SHOWN_CHARS:
        return text
    return f"{text[:_MAX_SHOWN_CHARS]}… (cut; the data has all of it)"
