"""Extractive summaries: the most representative sentences of a conversation, in order."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from mcpp_agents.memory.packing.passages import sentences
from mcpp_agents.memory.search.terms import parse

MAX_SUMMARY_CHARS: Final = 1_200
_MAX_SENTENCES: Final = 200
_MAX_SENTENCE_CHARS: Final = 400
# The weight of a word is divided by this each time a chosen sentence contains it.
_REPETITION_DIVISOR: Final = 4.0


class SpokenTurn(NamedTuple):
    """A text and the participant who said it."""

    speaker: str
    text: str


def summarize(turns: Sequence[SpokenTurn], *, max_chars: int = MAX_SUMMARY_CHARS) -> str:
    """Return the most representative sentences of a conversation, each with its speaker."""
    return as_text(select(turns, max_chars=max_chars))


def as_text(chosen: Iterable[SpokenTurn]) -> str:
    """Return sentences as lines, each with its speaker."""
    return "\n".join(f"{turn.speaker}: {turn.text}" for turn in chosen)


def select(turns: Sequence[SpokenTurn], *, max_chars: int, keep: int = 1) -> list[SpokenTurn]:
    """Return the most representative sentences of a conversation, in order.

    A sentence is representative if its words are frequent in the conversation and not yet covered
    by a chosen sentence. The first sentence is always chosen: it usually states the subject. Of a
    conversation with too many sentences the first `keep` and the last ones are considered.
    """
    said = [
        SpokenTurn(turn.speaker, sentence[:_MAX_SENTENCE_CHARS])
        for turn in turns
        for sentence in sentences(turn.text)
    ]
    said = list(dict.fromkeys(said))
    del said[max(1, keep) : -_MAX_SENTENCES]
    words = [parse(turn.text).words for turn in said]
    weight = {word: float(n) for word, n in Counter(w for each in words for w in each).items()}

    def rank(index: int) -> tuple[bool, float, int]:
        own = words[index]
        worth = sum(weight[word] for word in own) / math.sqrt(len(own) or 1)
        return index > 0, -worth, index

    left, chosen, room = set(range(len(said))), set[int](), max_chars
    while left:
        best = min(left, key=rank)
        left.remove(best)
        cost = len(said[best].speaker) + len(said[best].text) + 3
        if cost > room:
            continue
        chosen.add(best)
        room -= cost
        for word in words[best]:
            weight[word] /= _REPETITION_DIVISOR
    return [said[i] for i in sorted(chosen)]


def headline(text: str, *, max_chars: int = 120) -> str:
    """Return the first sentence of a text, for use as a title."""
    first = next(iter(sentences(text)), "")
    return first if len(first) <= max_chars else first[: max_chars - 1] + "…"
