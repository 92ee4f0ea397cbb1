"""Re-ranking of the turns of dialogues: who spoke, how much is told, and of which time (M-50).

A question about a person is usually answered by that person: "What did Mia buy?" by a turn of
Mia's, not by those that say "Wow, Mia!". Answers are in turns that tell something: a question, or
an exclamation of three words, repeats the words of the topic and answers nothing. A question for a
time is answered by a turn that tells one, and a question about a day by a turn of that day. All of
this is weak evidence, so it only moves a turn within its neighbourhood of the ranking.

Turns have few words, so a match of words is more often chance than in a longer text: the meaning
counts more.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mcpp.scripts import UNSPACED
from mcpp_agents.memory.search.neighbours import is_turn, speaker_of, spoken_text
from mcpp_agents.memory.search.ranking import Relevance, turn_relevance
from mcpp_agents.memory.search.terms import Query
from mcpp_agents.memory.search.times import asks_when, meant_times, tells_when
from mcpp_agents.memory.storage.engine import Item

# What a turn by another speaker than the named person loses, one about another time than the named
# date, one without a time, and one that tells nothing; turns with fewer words than enough lose a
# part of the last.
OTHER_SPEAKER: Final = 0.2
OTHER_TIME: Final = 0.5
NO_TIME: Final = 0.3
NOTHING_TOLD: Final = 0.5
_ENOUGH_WORDS: Final = 16

_SENTENCE: Final = re.compile(r"[^.!?…。！？؟]+[.!?…。！？؟]*")
_QUESTION_MARKS: Final = frozenset("?？؟")
# Two characters of a script without spaces are about a word.
_WORD: Final = re.compile(rf"[{UNSPACED}]{{1,2}}|[^\W_{UNSPACED}]+(?:['\u2019]\w+)?")
_MAX_CHARS: Final = 1_200


def named_speakers(query: Query, turns: Iterable[Item]) -> frozenset[str]:
    """Return the speakers among these turns that a goal names by a part of their name."""
    words = frozenset(query.terms)
    speakers = {speaker_of(turn) for turn in turns}
    return frozenset(one for one in speakers if one and words & frozenset(one.split()))


def told_words(text: str) -> int:
    """Return the number of words in the sentences of a text that are not questions."""
    return sum(
        len(_WORD.findall(sentence))
        for sentence in _SENTENCE.findall(text[:_MAX_CHARS])
        if not _QUESTION_MARKS.intersection(sentence[-2:])
    )


def _is_about(query: Query, turn: Item) -> bool:
    """Return whether a turn means a time that the query names."""
    meant = meant_times(turn.content, turn.day)
    return any(named.time.includes(time) for named in query.dates for time in meant)


def adjust(
    relevances: Mapping[int, Relevance], goal: str, query: Query, items: Sequence[Item]
) -> dict[int, Relevance]:
    """Return the relevances with turns moved down that are less likely to answer the goal.

    The best of the turns keeps the relevance of their best, so that items that are not turns
    neither gain nor lose.
    """
    turns = [item for item in items if is_turn(item)]
    named = named_speakers(query, turns)
    wants_time = asks_when(goal)
    moved = {}
    for turn in turns:
        factor = 1 - NOTHING_TOLD * max(0.0, 1 - told_words(spoken_text(turn)) / _ENOUGH_WORDS)
        if named and speaker_of(turn) not in named:
            factor *= 1 - OTHER_SPEAKER
        if query.dates and not _is_about(query, turn):
            factor *= 1 - OTHER_TIME
        if wants_time and not tells_when(turn.content):
            factor *= 1 - NO_TIME
        moved[turn.seq] = turn_relevance(relevances[turn.seq]) * factor
    if max(moved.values(), default=0.0) <= 0:
        return dict(relevances)
    scale = max(relevances[seq].fused for seq in moved) / max(moved.values())
    return dict(relevances) | {
        seq: replace(relevances[seq], fused=fused * scale) for seq, fused in moved.items()
    }
