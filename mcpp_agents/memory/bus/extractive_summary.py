"""A summary without a model: the sentences that speak for the rest, in their order."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from mcpp_agents.memory.search.terms import parse

MAX_SUMMARY_CHARS: Final = 1_200
_MAX_SENTENCES: Final = 200
_MAX_SENTENCE_CHARS: Final = 400
# By how much less a word counts each time that a chosen sentence holds it.
_SAID_ONCE: Final = 4.0

_SENTENCE_END: Final = re.compile(r"(?<=[.!?。！？])\s+|\n+")


class Turn(NamedTuple):
    """Something that a participant said."""

    speaker: str
    text: str


def summarize(turns: Sequence[Turn], *, max_chars: int = MAX_SUMMARY_CHARS) -> str:
    """The most telling sentences of a talk, each with its speaker, within a length.

    A sentence is telling when its words are those that the talk keeps coming back to, and have
    not been told yet. The first one is always told: there people say what it is about.
    """
    said = [
        Turn(turn.speaker, sentence[:_MAX_SENTENCE_CHARS])
        for turn in turns
        for sentence in sentences(turn.text)
    ]
    said = list(dict.fromkeys(said))
    del said[1:-_MAX_SENTENCES]
    words = [parse(turn.text).terms for turn in said]
    weight = {word: float(n) for word, n in Counter(w for each in words for w in each).items()}

    def telling(index: int) -> tuple[bool, float, int]:
        own = words[index]
        worth = sum(weight[word] for word in own) / math.sqrt(len(own) or 1)
        return index > 0, -worth, index

    left, chosen, room = set(range(len(said))), set[int](), max_chars
    while left:
        best = min(left, key=telling)
        left.remove(best)
        cost = len(said[best].speaker) + len(said[best].text) + 3
        if cost > room:
            continue
        chosen.add(best)
        room -= cost
        for word in words[best]:
            weight[word] /= _SAID_ONCE
    return "\n".join(f"{said[i].speaker}: {said[i].text}" for i in sorted(chosen))


def sentences(text: str) -> list[str]:
    """A text's sentences, without the space around them."""
    return [clean for part in _SENTENCE_END.split(text) if (clean := " ".join(part.split()))]


def headline(text: str, *, max_chars: int = 120) -> str:
    """The first sentence of a text, as a title."""
    first = next(iter(sentences(text)), "")
    return first if len(first) <= max_chars else first[: max_chars - 1] + "…"
