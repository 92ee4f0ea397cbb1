"""Names as links between turns: the second step of a question that needs two (M-51).

"Where does the person who gave Nora the kayak live?" finds "Ines gave me a kayak"; that Ines moved
to Bergen is said elsewhere, in words that the question lacks. So the names in the best turns are
looked up too, with a low weight.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from mcpp_agents.memory.search.neighbours import is_turn, speaker_of
from mcpp_agents.memory.search.ranking import Relevance, has_evidence
from mcpp_agents.memory.search.terms import Query, words
from mcpp_agents.memory.storage.engine import Item, Matches

# The best turns whose names are followed, how good they must be, and how many names.
_LEADERS: Final = 3
_MIN_RELATIVE: Final = 0.5
_MAX_NAMES: Final = 3
WEIGHT: Final = 0.2
FOUND: Final = 30

_CAPITALISED: Final = re.compile(r"(?<![\w'])[A-Z][a-z]{2,}(?![\w'])")
_WORD: Final = re.compile(r"(?<![\w'])[a-z]{3,}")


def names_in_best(
    relevances: Mapping[int, Relevance], query: Query, items: Sequence[Item]
) -> tuple[str, ...]:
    """Return names in the best turns that the goal does not contain.

    A name is a word that none of the turns spells in lower case, and no speaker's: those are
    everywhere.
    """
    turns = [item for item in items if is_turn(item)]
    if not turns:
        return ()
    ranked = sorted(turns, key=lambda turn: -relevances[turn.seq].fused)
    leaders = [turn for turn in ranked[:_LEADERS] if has_evidence(relevances[turn.seq])]
    floor = _MIN_RELATIVE * relevances[ranked[0].seq].fused
    usual = set(query.terms)
    for turn in turns:
        usual.update(_WORD.findall(turn.content))
        usual.update(speaker_of(turn).split())
    found: dict[str, None] = {}
    for turn in leaders:
        if relevances[turn.seq].fused >= floor:
            for name in _CAPITALISED.findall(turn.content):
                if words(name) and name.lower() not in usual:
                    found[name.lower()] = None
    return tuple(found)[:_MAX_NAMES]


def follow(
    relevances: Mapping[int, Relevance], names: Sequence[str], matches: Matches
) -> dict[int, Relevance]:
    """Return the relevances with those of items that contain the names."""
    most = max(matches.words.values(), default=0.0)
    best = max((each.fused for each in relevances.values()), default=0.0)
    if most <= 0:
        return dict(relevances)
    moved = dict(relevances)
    for seq, points in matches.words.items():
        held = [name for name in names if seq in matches.holders.get(name, ())]
        known = moved.get(seq, Relevance(0.0, 0.0))
        gain = WEIGHT * best * points / most
        moved[seq] = replace(known, fused=min(best, known.fused + gain), shared=tuple(held))
    return moved
