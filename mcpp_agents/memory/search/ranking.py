"""Ranking: relevance from words and vectors, weighted by intent, layer and age.

Relevance is a convex combination of two scores, each relative to the best candidate: BM25 of the
words (plus a part for pairs of adjacent words) and the cosine. Fusion by rank was tried and
rejected: it discards how much better the first is than the second, and did worse on dialogues than
words alone.

Relative scores say which item is best, not how good it is. So all scores of a pack are scaled by
its `strength`: how much of the goal its best item covers, by the rarity of the words it contains or
by its cosine. A score of 1 means: all words of the goal, best in words and vectors, of a facet that
the intent emphasizes, and new.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mcpp_agents.memory.search.terms import Query
from mcpp_agents.memory.storage.engine import Closeness, Evidence, Matches, Outline, Similarity
from mcpp_agents.memory.vocabulary import Intent, Layer, emphasis, facet_of

# The part of an item's cosine that comes from its predecessor in its neighbourhood.
_PREVIOUS_SHARE: Final = 0.3
# The part of a turn's relevance by words that its meaning replaces.
_TURN_MEANING: Final = 0.25
# What a pair of adjacent words adds to the single words.
_PAIR_WEIGHT: Final = 0.4
# One word that occurs in a single item counts as this much of a complete match.
_ENOUGH: Final = 1.4
# At this age, age has taken half of what it can take.
_HALF_LIFE_SECONDS: Final = 30 * 86_400.0
# A facet's share is reserved for items with at least this fraction of the best score.
_SHARE_FLOOR: Final = 0.35
# The relevance of current work that does not match but is the newest.
_NEWEST_RELEVANCE: Final = 0.25
_MIN_STRENGTH: Final = 0.1
# Below it, a cosine is not evidence: any two texts have some.
MEANINGFUL_COSINE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Relevance:
    """How well an item matches a goal, relative to the best; the cosines are absolute."""

    fused: float
    words: float
    cosine: float | None = None
    previous_cosine: float | None = None  # of its predecessor in its neighbourhood
    as_turn: float | None = None  # if it is a turn of a dialogue, and has a vector


@dataclass(frozen=True, slots=True)
class Candidate:
    """An item considered for a pack. Its score is not yet scaled by the pack's strength."""

    outline: Outline
    relevance: Relevance
    score: float
    newest: bool = False

    @property
    def seq(self) -> int:
        return self.outline.seq

    @property
    def facet(self) -> str:
        return facet_of(self.outline.kind)


def has_evidence(relevance: Relevance) -> bool:
    """Return whether words or a cosine, its own or its predecessor's, support an item."""
    close = max(relevance.cosine or 0.0, relevance.previous_cosine or 0.0)
    return relevance.words > 0 or close >= MEANINGFUL_COSINE


def turn_relevance(relevance: Relevance) -> float:
    """Return the relevance that an item has if it is a turn of a dialogue."""
    return relevance.fused if relevance.as_turn is None else relevance.as_turn


def fuse(
    matches: Matches,
    close: Mapping[int, Closeness] | None,
    lexical_share: float,
) -> dict[int, Relevance]:
    """Return the relevance of every item found by words or vectors."""
    raw = dict(matches.words)
    for match in matches.pairs:
        for seq in match.seqs:
            raw[seq] += _PAIR_WEIGHT * match.rarity
    most = max(raw.values(), default=0.0)
    words = {seq: score / most for seq, score in raw.items()} if most > 0 else {}
    if not close:
        return {seq: Relevance(score, score) for seq, score in words.items()}
    meanings = _relative({seq: _blended(each, _cosine) for seq, each in close.items()})
    turns = _relative({seq: _blended(each, _contrasted) for seq, each in close.items()})
    share = lexical_share * _information(most, matches.visible) if words else 0.0
    turn_share = (1 - _TURN_MEANING) * share
    found = {}
    for seq in words.keys() | meanings.keys():
        word, each = words.get(seq, 0.0), close.get(seq)
        if each is None:  # not embedded yet: words alone
            found[seq] = Relevance(word, word)
        else:
            found[seq] = Relevance(
                fused=share * word + (1 - share) * meanings[seq],
                words=word,
                cosine=each.own.cosine,
                previous_cosine=each.previous and each.previous.cosine,
                as_turn=turn_share * word + (1 - turn_share) * turns[seq],
            )
    return found


def _relative(values: Mapping[int, float]) -> dict[int, float]:
    """Return the values relative to the best one."""
    high = max(values.values())
    # With few candidates even the lowest may be good: zero is at most half of the best.
    low = min(*values.values(), high / 2)
    return {
        seq: (value - low) / (high - low) if high > low else 0.0 for seq, value in values.items()
    }


def _information(most: float, visible: int) -> float:
    """Return how much the best match by words tells, 0 to 1.

    Scores are relative to the best. If that contains only a word that half of the items contain,
    such as a speaker's name, being best by words means little, and the meaning has to decide.
    """
    return min(1.0, _ENOUGH * most / math.log1p(visible + 1))


def _blended(close: Closeness, of: Callable[[Similarity], float]) -> float:
    own = of(close.own)
    if close.previous is None:
        return own
    return (1 - _PREVIOUS_SHARE) * own + _PREVIOUS_SHARE * of(close.previous)


def _cosine(similarity: Similarity) -> float:
    return similarity.cosine


def _contrasted(similarity: Similarity) -> float:
    return similarity.mean


def score(
    outline: Outline, relevance: Relevance, *, intent: Intent, layer: Layer, now: float
) -> float:
    """Return the score of an item: relevance times the factors of intent and age, each once."""
    age = max(0.0, now - outline.since)
    faded: float = 1 - 0.5 ** (age / _HALF_LIFE_SECONDS)
    factor = emphasis(intent, facet_of(outline.kind)).factor
    return relevance.fused * factor * (1 - layer.recency * faded)


def newest_relevance() -> Relevance:
    """Return the relevance of an item that is included only because it is new."""
    return Relevance(_NEWEST_RELEVANCE, 0.0)


def choose(candidates: Iterable[Candidate], *, intent: Intent, limit: int) -> list[Candidate]:
    """Return the items of a pack, best first.

    Each facet first fills its share with good items; the remaining places go to the best of the
    rest, so a store with only one facet fills the pack like a plain ranking.
    """
    ranked = sorted(candidates, key=lambda c: (-c.score, -c.seq))
    if len(ranked) <= limit:
        return ranked
    least = _SHARE_FLOOR * ranked[0].score
    good = [(c, c.facet) for c in ranked if c.score >= least]
    shares = {facet: emphasis(intent, facet).share for facet in {facet for _, facet in good}}
    # Shares that sum to more than the pack are reduced in proportion.
    total = max(1.0, math.fsum(shares.values()))
    reserved = {facet: int(limit * share / total) for facet, share in shares.items()}
    taken: set[int] = set()
    for candidate, facet in good:
        if reserved[facet]:
            reserved[facet] -= 1
            taken.add(candidate.seq)
    left = (c.seq for c in ranked if c.seq not in taken)
    taken.update(islice(left, limit - len(taken)))
    return [c for c in ranked if c.seq in taken]


def strength(
    chosen: Iterable[Candidate],
    evidence: Mapping[int, Evidence],
    query: Query,
    rarity: Mapping[str, float],
) -> float:
    """Return how much of the goal the best item covers, 0 to 1."""
    # A word that no item contains says little: it counts like an average one.
    average = sum(rarity.values()) / len(rarity) if rarity else 1.0
    total = sum(rarity.get(term, average) for term in query.terms) or 1.0
    best = 0.0
    for candidate in chosen:
        terms = evidence[candidate.seq].terms
        covered = sum(rarity.get(term, average) for term in terms) / total
        best = max(best, covered, candidate.relevance.cosine or 0.0)
    # An item that is only next to a match, or only new, is weak evidence but not none.
    return min(1.0, max(best, _MIN_STRENGTH))
