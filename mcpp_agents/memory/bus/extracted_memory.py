"""A memory extracted from a pod's conversation, ready to be stored in its author's name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from mcpp_agents.memory.bus.envelope_text import attribute_lines
from mcpp_agents.memory.bus.summaries.extractive_summary import SpokenTurn, headline
from mcpp_agents.memory.requests import MemoryDraft

_MAX_MEMORY_CHARS: Final = 8_000
_GAP: Final = "\n\n"


@dataclass(frozen=True)
class ExtractedMemory:
    """A draft with its author and the conversation it summarizes.

    The draft's content is the author's own text, followed by an extractive summary of the turns, if
    there are any. `generations` distinguish contexts that reuse an id: one number for the context
    and one for its parent, 0 if the parent is unknown.
    """

    draft: MemoryDraft
    author: str
    metadata: Mapping[str, Any]
    own_text: str = ""
    turns: tuple[SpokenTurn, ...] = ()
    generations: tuple[int, int] = (0, 0)

    def with_model_summary(self, summary: str, model: str) -> "ExtractedMemory":
        """Return a copy with a model's summary of the turns, attributed to the model (M-37).

        The first sentence of the conversation stays: of a long one the model sees only the end.
        """
        first = self.turns[0]
        opening = f"{first.speaker}: {headline(first.text)}"
        attributed = f"{opening}\n\nSummarised by {model}:\n{attribute_lines(model, summary)}"
        draft = msgspec.structs.replace(self.draft, content=join_content(self.own_text, attributed))
        return replace(self, draft=draft).with_metadata(summarized_by=model)

    def with_metadata(self, **metadata: Any) -> "ExtractedMemory":
        """Return a copy with more metadata."""
        return replace(self, metadata={**self.metadata, **metadata})


def join_content(own_text: str, summary: str) -> str:
    """Return the content of a memory: the author's own text and the summary, within the limit."""
    return _join_parts(own_text, summary)[:_MAX_MEMORY_CHARS]


def join_own_text(conclusion: str, subject: str) -> str:
    """Return a conclusion and its context's subject; the conclusion is cut to leave room."""
    room = _MAX_MEMORY_CHARS - (len(subject) + len(_GAP) if subject else 0)
    return _join_parts(conclusion[:room], subject)


def _join_parts(*parts: str) -> str:
    return _GAP.join(filter(None, parts))
