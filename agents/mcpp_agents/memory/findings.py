"""What a listener finds worth remembering, and in whose name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from .drafts import Draft
from .speech import in_ones_own_name
from .summary import Turn

_MAX_CONTENT_CHARS: Final = 8_000


@dataclass(frozen=True)
class Finding:
    """Something to remember, in the name of the participant that said it.

    The draft's content is what that participant concluded, if it did, and an extractive summary of
    the turns, if there are any. `lives` tells one life of a context from the next that has its id:
    a number each of the context's own and that of the one above it, 0 where it was not heard.
    """

    draft: Draft
    author: str
    metadata: Mapping[str, Any]
    concluded: str = ""
    turns: tuple[Turn, ...] = ()
    lives: tuple[int, int] = (0, 0)

    def retold(self, summary: str, narrator: str) -> "Finding":
        """The same with another's summary of the turns, told in that one's name."""
        told = f"Summarised by {narrator}:\n{in_ones_own_name(narrator, summary)}"
        draft = msgspec.structs.replace(self.draft, content=content(self.concluded, told))
        return replace(self, draft=draft, metadata={**self.metadata, "summarized_by": narrator})


def content(concluded: str, summary: str) -> str:
    """A memory's text: what was concluded, and beside it what led there."""
    return "\n\n".join(part for part in (concluded, summary) if part)[:_MAX_CONTENT_CHARS]
