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
    """A text, the participant who said it, and its place in the conversation, if that counts."""

    speaker: str
    text: str
    place: int = 0


def summarize(turns: Sequence[SpokenTurn], *, max_chars: int = MAX_SUMMARY_CHARS) -> str:
    """Return the most representative sentences of a conversation, each with its speaker."""
    placed = [turn._replace(place=place) for place, turn in enumerate(turns)]
    return as_text(select(placed, max_chars=max_chars))


def as_text(chosen: Iterable[SpokenTurn]) -> str:
    """Return sentences as lines, each with its speaker."""
    return "\n".join(f"{turn.speaker}: {turn.text}" for turn in chosen)


def select(
    turns: Sequence[SpokenTurn],
    *,
    max_chars: int,
    before: Sequence[SpokenTurn] = (),
    share: float = 0.0,
) -> list[SpokenTurn]:
    """Return the most representative sentences of a conversation, in order.

    A sentence is representative if its words are frequent in the conversation and not yet covered
    by a chosen sentence; among equal ones, the one whose place is farthest from those. The first
    sentence is always chosen: it usually states the subject. Of turns with too many sentences, the
    first and the last ones are considered.

    Args:
        turns: the conversation.
        max_chars: the length of all chosen sentences.
        before: sentences that were chosen from what precedes it.
        share: the part of the length that is theirs; they get more if the turns leave it.
    """
    early = _sentences(before)
    known = {turn[:2] for turn in early}
    late = [turn for turn in _sentences(turns) if turn[:2] not in known]
    del late[0 if early else 1 : -_MAX_SENTENCES]
    said = early + late
    costs = [len(turn.speaker) + len(turn.text) + 3 for turn in said]
    needed_early, needed_late = sum(costs[: len(early)]), sum(costs[len(early) :])
    room_early = min(needed_early, max(int(share * max_chars), max_chars - needed_late))
    room_early = max(room_early, min(costs[0], max_chars)) if early else 0
    rooms = {True: room_early, False: max_chars - room_early}
    ranking, left, chosen = _Ranking(said), list(range(len(said))), list[int]()
    while left := [i for i in left if costs[i] <= rooms[i < len(early)]]:
        best = min(left, key=ranking.rank)
        left.remove(best)
        rooms[best < len(early)] -= costs[best]
        chosen.append(best)
        ranking.choose(best)
    return [said[i] for i in sorted(chosen)]


def _sentences(turns: Iterable[SpokenTurn]) -> list[SpokenTurn]:
    """Return the different sentences of turns, each with its speaker."""
    found: dict[tuple[str, ...], SpokenTurn] = {}
    for turn in turns:
        for sentence in sentences(turn.text):
            said = turn._replace(text=sentence[:_MAX_SENTENCE_CHARS])
            found.setdefault(said[:2], said)
    return list(found.values())


class _Ranking:
    """Ranks sentences after those that were chosen. Owns weights of words, and distances."""

    def __init__(self, said: Sequence[SpokenTurn]) -> None:
        self._places = [turn.place for turn in said]
        self._words = [parse(turn.text).words for turn in said]
        counts = Counter(word for words in self._words for word in words)
        self._weights = {word: float(count) for word, count in counts.items()}
        self._distances = [math.inf] * len(said)  # from the nearest chosen one

    def rank(self, index: int) -> tuple[bool, float, float, int]:
        """Return a key that is least for the best sentence."""
        words = self._words[index]
        worth = sum(self._weights[word] for word in words) / math.sqrt(len(words) or 1)
        return index > 0, -worth, -self._distances[index], index

    def choose(self, index: int) -> None:
        """Note that a sentence was chosen."""
        for word in self._words[index]:
            self._weights[word] /= _REPETITION_DIVISOR
        place = self._places[index]
        self._distances = [
            min(distance, abs(other - place))
            for other, distance in zip(self._places, self._distances, strict=True)
        ]


def headline(text: str, *, max_chars: int = 120) -> str:
    """Return the first sentence of a text, for use as a title."""
    first = next(iter(sentences(text)), "")
    return first if len(first) <= max_chars else first[: max_chars - 1] + "…"
