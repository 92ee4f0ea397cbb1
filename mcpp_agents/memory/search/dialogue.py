"""Re-ranking of the turns of dialogues: who spoke, and whether a time is told (M-50).

A question about a person is usually answered by that person: "What did Mia buy?" by a turn of
Mia's, not by those that say "Wow, Mia!". A question for a time is answered by a turn that tells
one. Both are weak evidence, so they only move a turn within its neighbourhood of the ranking.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mcpp_agents.memory.search.neighbours import is_turn, speaker_of
from mcpp_agents.memory.search.ranking import Relevance
from mcpp_agents.memory.search.terms import Query
from mcpp_agents.memory.search.times import asks_when, tells_when
from mcpp_agents.memory.storage.engine import Item

# What a turn by another speaker than the named person loses, and one without a time.
OTHER_SPEAKER: Final = 0.3
NO_TIME: Final = 0.15


def named_speakers(query: Query, turns: Iterable[Item]) -> frozenset[str]:
    """Return the speakers among these turns that a goal names by a part of their name."""
    words = frozenset(query.terms)
    speakers = {speaker_of(turn) for turn in turns}
    return frozenset(one for one in speakers if one and words & frozenset(one.split()))


def adjust(
    relevances: Mapping[int, Relevance], goal: str, query: Query, items: Sequence[Item]
) -> dict[int, Relevance]:
    """Return the relevances with turns of others, and without a time, moved down.

    The best of the turns keeps the relevance of their best, so that items that are not turns
    neither gain nor lose.
    """
    turns = [item for item in items if is_turn(item)]
    named = named_speakers(query, turns)
    wants_time = asks_when(goal)
    if not turns or not (named or wants_time):
        return dict(relevances)
    moved = {}
    for turn in turns:
        factor = 1.0
        if named and speaker_of(turn) not in named:
            factor -= OTHER_SPEAKER
        if wants_time and not tells_when(turn.content):
            factor *= 1 - NO_TIME
        moved[turn.seq] = relevances[turn.seq].fused * factor
    best = max(relevances[turn.seq].fused for turn in turns)
    scale = best / max(moved.values()) if best > 0 else 1.0
    return dict(relevances) | {
        seq: replace(relevances[seq], fused=fused * scale) for seq, fused in moved.items()
    }
