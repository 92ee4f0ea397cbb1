"""What a listener finds worth remembering, and in whose name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from mcpp_agents.memory.bus.speech import in_ones_own_name
from mcpp_agents.memory.bus.summary import Turn, headline
from mcpp_agents.memory.requests import MemoryDraft

_MAX_CONTENT_CHARS: Final = 8_000
_GAP: Final = "\n\n"


@dataclass(frozen=True)
class Finding:
    """Something to remember, in the name of the participant that said it.

    The draft's content is what that participant itself tells, and an extractive summary of the
    turns, if there are any. `lives` tells one life of a context from the next that has its id:
    a number each of the context's own and that of the one above it, 0 where it was not heard.
    """

    draft: MemoryDraft
    author: str
    metadata: Mapping[str, Any]
    told: str = ""
    turns: tuple[Turn, ...] = ()
    lives: tuple[int, int] = (0, 0)

    def retold(self, summary: str, narrator: str) -> "Finding":
        """The same with another's summary of the turns, told in that one's name.

        How the talk began stays beside it: of a long one the narrator hears only the end.
        """
        first = self.turns[0]
        begun = f"{first.speaker}: {headline(first.text)}"
        retold = f"{begun}\n\nSummarised by {narrator}:\n{in_ones_own_name(narrator, summary)}"
        draft = msgspec.structs.replace(self.draft, content=content(self.told, retold))
        return replace(self, draft=draft).with_facts(summarized_by=narrator)

    def with_facts(self, **facts: Any) -> "Finding":
        """The same with more metadata."""
        return replace(self, metadata={**self.metadata, **facts})


def content(told: str, summary: str) -> str:
    """A memory's text: what its author tells, and beside it what led there."""
    return _joined(told, summary)[:_MAX_CONTENT_CHARS]


def telling(concluded: str, about: str) -> str:
    """What an author concluded, cut so that what it is about has room beside it."""
    room = _MAX_CONTENT_CHARS - (len(about) + len(_GAP) if about else 0)
    return _joined(concluded[:room], about)


def _joined(*parts: str) -> str:
    return _GAP.join(filter(None, parts))
