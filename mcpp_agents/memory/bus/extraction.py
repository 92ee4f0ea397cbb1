"""Extraction of memories from the record of a context (M-31, M-32, M-38)."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcpp import Envelope
from mcpp.outcomes import outcome_of
from mcpp.protocol.contexts import Lineage
from mcpp_agents.memory.bus.context_record import MAX_TURN_CHARS, ContextRecord, EnvelopeRef
from mcpp_agents.memory.bus.envelope_text import (
    attribute_lines,
    confidence,
    is_model_answer,
    kept_text,
    valid_time,
)
from mcpp_agents.memory.bus.extracted_memory import (
    ExtractedMemory,
    join_content,
    join_own_text,
)
from mcpp_agents.memory.bus.summaries.extractive_summary import (
    SpokenTurn,
    as_text,
    headline,
    summarize,
)
from mcpp_agents.memory.bus.summaries.rolling import RollingStep, RollingSummary
from mcpp_agents.memory.bus.summaries.summary_store import (
    SUMMARIES_DIARY,
    SUMMARY_KIND,
    summary_key,
)
from mcpp_agents.memory.redaction import redact
from mcpp_agents.memory.requests import BUS_SCHEME, MemoryDraft, clean
from mcpp_agents.memory.vocabulary import DEFAULT_KIND

# The kind of memory that a conclusion becomes, by the type of its context.
KINDS_BY_TYPE: Final = {
    "reasoning": "decision",
    "decision": "decision",
    "plan": "plan",
    "planning": "plan",
    "research": "fact",
    "workflow": "summary",
    "task": "summary",
}

# What did not come to an end teaches something else than a decision.
KINDS_BY_OUTCOME: Final = {"failed": "gotcha", "cancelled": "session"}


@dataclass(frozen=True)
class MemoryExtractor:
    """Turns the record of one context into memories."""

    pod: str
    lineage: Lineage
    record: ContextRecord
    parent_generation: int

    def conclude(self, conclusion: Envelope) -> list[ExtractedMemory]:
        """Return the memories of a context that its creator concludes."""
        text, ref = kept_text(conclusion), EnvelopeRef.of(conclusion)
        if not text:
            return self.end(ref)
        # A conclusion is kept in full, so it needs no place in the summary.
        turns = tuple(t for t in self.record.turns if t.text != text[:MAX_TURN_CHARS])
        outcome = outcome_of(conclusion)
        kind = KINDS_BY_OUTCOME.get(outcome) or KINDS_BY_TYPE.get(
            self.lineage.type or "", "summary"
        )
        if kind == "decision" and is_model_answer(conclusion):
            kind = DEFAULT_KIND
        own_text = join_own_text(attribute_lines(conclusion.sender, text), self.record.subject_text)
        named = text if self.lineage.title is None else f"{clean(self.lineage.title)}: {text}"
        memory = self._memory(ref, kind, headline(redact(named)), own_text, turns=turns)
        if outcome != "concluded":
            memory = memory.with_metadata(outcome=outcome)
        sure = confidence(conclusion)
        if sure is not None:
            memory = memory.with_metadata(confidence=sure)
        return [memory, *self._gotchas()]

    def end(self, ref: EnvelopeRef) -> list[ExtractedMemory]:
        """Return the memories of a context that ends, with its conversation if unconcluded."""
        if self.record.concluded or not self.record.turns:
            return self._gotchas()
        is_plan = KINDS_BY_TYPE.get(self.lineage.type or "") == "plan"
        turns = tuple(self.record.turns)
        title = headline(f"{self.lineage.type or 'context'}: {turns[0].text}")
        own_text = self.record.subject_text
        kind = "plan" if is_plan else "session"
        return [self._memory(ref, kind, title, own_text, turns=turns), *self._gotchas()]

    def roll(self, step: RollingStep) -> RollingSummary:
        """Return the summary of a context that is still open (M-53)."""
        id, cover = self.lineage.id, step.cover
        first = step.chosen[0].text if step.chosen else id
        draft = MemoryDraft(
            title=headline(f"{self.lineage.type or 'context'}: {first}"),
            content=as_text(step.chosen) or first,
            kind=SUMMARY_KIND,
            agent_id=SUMMARIES_DIARY,
            source=f"{BUS_SCHEME}{self.pod}/{id}#{cover.last}",
            # The earliest of what it contains: what is erased before a time includes it (H-14).
            valid_at=valid_time(cover.began),
            idempotency_key=summary_key(id),
        )
        metadata = {**self._metadata(), "rolling": msgspec.to_builtins(cover)}
        return RollingSummary(id, draft, metadata, step)

    def _metadata(self) -> dict[str, Any]:
        return {
            "pod": self.pod,
            "context": self.lineage.id,
            "context_type": self.lineage.type,
            "lineage": [self.lineage.id, *self.lineage.ancestors][::-1],
            "envelopes": list(self.record.envelopes),
            "participants": sorted(self.record.participants),
            "began": self.record.began and valid_time(self.record.began),
        }

    def _gotchas(self) -> list[ExtractedMemory]:
        return [
            self._memory(failed.response, "gotcha", headline(text), text, author=failed.caller)
            for text, failed in self.record.failures.items()
        ]

    def _memory(
        self,
        ref: EnvelopeRef,
        kind: str,
        title: str,
        own_text: str,
        *,
        turns: tuple[SpokenTurn, ...] = (),
        author: str | None = None,
    ) -> ExtractedMemory:
        author = author or self.record.creator
        assert author is not None
        draft = MemoryDraft(
            title=title,
            content=join_content(own_text, summarize(turns)),
            kind=kind,
            source=f"{BUS_SCHEME}{self.pod}/{self.lineage.id}#{ref.id}",
            valid_at=valid_time(ref.ts),
            # M-34: a log that is read again, such as after a restart, is stored once.
            idempotency_key=f"bus:{ref.id}",
        )
        generations = (self.record.generation, self.parent_generation)
        return ExtractedMemory(draft, author, self._metadata(), own_text, turns, generations)
