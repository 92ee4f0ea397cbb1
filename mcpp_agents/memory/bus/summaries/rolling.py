"""Rolling summaries of long contexts that are still open (M-53).

A summary covers the messages of a context from the first one to one that is not among the newest.
Each is made from the one before and from what was said since, so the work for a context grows with
its length, and each step is bounded. The digest shows a reader whether it has received exactly the
messages that are covered.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec

from mcpp import Envelope
from mcpp.prompts import KEPT_NEWEST, ContextSummary, digest_of
from mcpp_agents.memory.bus.summaries.extractive_summary import SpokenTurn, select
from mcpp_agents.memory.requests import MemoryDraft

MAX_ROLLING_CHARS: Final = 2_000
# Of the new messages, however many a summary covers already: several sentences.
_LEAST_NEW_SHARE: Final = 1 / 8


@dataclass(frozen=True, kw_only=True)
class RollingPolicy:
    """When a rolling summary is made: after so many messages or characters since the last one."""

    messages: int = 50
    chars: int = 16_000


class Cover(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that a summary is made from: ids of the first and the last, and a digest."""

    first: str
    last: str
    digest: str
    messages: int
    began: str  # the timestamp of the first


class RollingStep(NamedTuple):
    """What one summary is made from: the sentences of the last one, and what was said since."""

    cover: Cover
    base: str  # the last message that the summary before covers; empty for the first one
    sentences: tuple[SpokenTurn, ...]
    turns: tuple[SpokenTurn, ...]
    chosen: tuple[SpokenTurn, ...]


class _Uncovered(NamedTuple):
    id: str
    ts: str
    turn: SpokenTurn | None  # None if it says nothing


@dataclass
class RollingState:
    """What is summarized of one context, and what is not yet. It owns both."""

    cover: Cover | None = None
    sentences: tuple[SpokenTurn, ...] = ()
    uncovered: deque[_Uncovered] = field(default_factory=deque)
    chars: int = 0  # of what is not covered

    def add(self, envelope: Envelope, text: str, policy: RollingPolicy) -> RollingStep | None:
        """Add the next message; return the step of a summary if one is due."""
        turn = SpokenTurn(envelope.sender, text) if text else None
        self.uncovered.append(_Uncovered(envelope.id, envelope.ts, turn))
        self.chars += len(text)
        due = len(self.uncovered) - KEPT_NEWEST
        if due < 1 or (due < policy.messages and self.chars < policy.chars):
            return None
        return self._advance([self.uncovered.popleft() for _ in range(due)])

    def clear(self) -> None:
        """Forget everything; the next summary begins with the next message."""
        self.cover, self.sentences, self.chars = None, (), 0
        self.uncovered.clear()

    def _advance(self, covered: Sequence[_Uncovered]) -> RollingStep:
        before = self.cover
        digest = before.digest if before else ""
        for one in covered:
            digest = digest_of(one.id, digest)
        self.cover = Cover(
            first=before.first if before else covered[0].id,
            last=covered[-1].id,
            digest=digest,
            messages=(before.messages if before else 0) + len(covered),
            began=before.began if before else covered[0].ts,
        )
        sentences = self.sentences
        turns = tuple(
            one.turn._replace(place=place)
            for place, one in enumerate(covered, self.cover.messages - len(covered))
            if one.turn
        )
        chosen = select(
            turns,
            max_chars=MAX_ROLLING_CHARS,
            before=sentences,
            share=1 - max(len(covered) / self.cover.messages, _LEAST_NEW_SHARE),
        )
        self.sentences = tuple(chosen)
        self.chars -= sum(len(turn.text) for turn in turns)
        return RollingStep(
            self.cover, before.last if before else "", sentences, turns, self.sentences
        )


@dataclass(frozen=True)
class RollingSummary:
    """A summary of an open context, to be stored in the place of the one before."""

    context: str
    draft: MemoryDraft
    metadata: Mapping[str, Any]
    step: RollingStep

    def for_prompts(self) -> ContextSummary:
        """Return the summary as prompts take it."""
        cover = self.step.cover
        return ContextSummary(
            context=self.context,
            first=cover.first,
            last=cover.last,
            digest=cover.digest,
            text=self.draft.content,
            author=self.metadata.get("summarized_by", "memory"),
        )

    def turns_after(self, previous: str | None, author: str) -> list[SpokenTurn]:
        """Return what a model summarizes: its own summary before, if known, and what followed."""
        before = [SpokenTurn(author, previous)] if previous else self.step.sentences
        return [*before, *self.step.turns]

    def with_model_summary(self, summary: str, model: str) -> "RollingSummary":
        """Return a copy with a model's summary, attributed to the model (M-37)."""
        draft = msgspec.structs.replace(self.draft, content=summary)
        return replace(self, draft=draft, metadata={**self.metadata, "summarized_by": model})


class EndedSummary(NamedTuple):
    """The context of a summary has ended or opted out: the summary is dropped."""

    context: str
