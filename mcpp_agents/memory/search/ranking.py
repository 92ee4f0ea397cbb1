"""How a pack is chosen: relevance from words and meaning, shaped by intent, layer and age.

Relevance is a convex combination of two scores, each relative to the best candidate: BM25 of the
words (with a part for neighbouring pairs of them) and the cosine. A convex combination, because
fusing by rank threw away how much better the first is than the second, and did worse on
dialogues than words alone.

Relative scores say who is best, not whether the best is any good. So all of a pack's scores are
scaled by its `strength`: how much of the goal its best item covers, by the rarity of the words it
holds or by its cosine. A score of 1 then means: all words of the goal, best in words and meaning,
of a facet that the intent stresses, and new.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from mcpp_agents.memory.search.terms import Query
from mcpp_agents.memory.storage.engine import Evidence, Matches, Outline
from mcpp_agents.memory.vocabulary import Intent, Layer, emphasis, facet_of

if TYPE_CHECKING:
    from mcpp_agents.memory.search.vectors import Closeness

# How much of its meaning an item of a thread owes to the one before it.
_BEFORE_SHARE: Final = 0.3
# What a pair of neighbouring words adds to the words by themselves.
_PAIR_WEIGHT: Final = 0.4
# After this time age has taken half of what it can take.
_HALF_LIFE_SECONDS: Final = 30 * 86_400.0
# A facet's share is held for items at least this good beside the best one.
_SHARE_FLOOR: Final = 0.35
# The score of something that does not match but is the newest of the work at hand.
_NEWEST_RELEVANCE: Final = 0.25
_LEAST_STRENGTH: Final = 0.1
# Below it, a cosine is no evidence: any two texts have some.
MEANINGFUL_COSINE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Relevance:
    """How well an item answers a goal, relative to the best; the cosines are absolute."""

    fused: float
    words: float
    cosine: float | None = None
    before: float | None = None  # the cosine of the item before it in its thread


@dataclass(frozen=True, slots=True)
class Candidate:
    """An item on its way into a pack. Its score still lacks the pack's strength."""

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
    """Whether a word or the meaning speaks for an item, its own or of what it follows."""
    close = max(relevance.cosine or 0.0, relevance.before or 0.0)
    return relevance.words > 0 or close >= MEANINGFUL_COSINE


def fuse(
    matches: Matches, close: "Mapping[int, Closeness] | None", lexical_share: float
) -> dict[int, Relevance]:
    """Relevance of everything that words or meaning found."""
    raw = dict(matches.words)
    for match in matches.pairs:
        for seq in match.seqs:
            raw[seq] += _PAIR_WEIGHT * match.rarity
    most = max(raw.values(), default=0.0)
    words = {seq: score / most for seq, score in raw.items()} if most > 0 else {}
    if not close:
        return {seq: Relevance(score, score) for seq, score in words.items()}
    cosines = {seq: _blended(each) for seq, each in close.items()}
    high = max(cosines.values())
    # With few candidates the lowest of them may be good too: half of the best is the least zero.
    low = min(*cosines.values(), high / 2)
    share = lexical_share if words else 0.0
    found = {}
    for seq in words.keys() | cosines.keys():
        word, cosine = words.get(seq, 0.0), cosines.get(seq)
        if cosine is None:  # not embedded yet: the words speak for it alone
            found[seq] = Relevance(word, word)
        else:
            meaning = (cosine - low) / (high - low) if high > low else 0.0
            fused = share * word + (1 - share) * meaning
            found[seq] = Relevance(fused, word, close[seq].cosine, close[seq].before)
    return found


def _blended(close: "Closeness") -> float:
    if close.before is None:
        return close.cosine
    return (1 - _BEFORE_SHARE) * close.cosine + _BEFORE_SHARE * close.before


def shape(
    outline: Outline, relevance: Relevance, *, intent: Intent, layer: Layer, now: float
) -> float:
    """The score of an item: relevance, with the intent's factor and age's, each once."""
    age = max(0.0, now - outline.since)
    faded: float = 1 - 0.5 ** (age / _HALF_LIFE_SECONDS)
    factor = emphasis(intent, facet_of(outline.kind)).factor
    return relevance.fused * factor * (1 - layer.recency * faded)


def newest_relevance() -> Relevance:
    """The relevance of what is there only because it is new."""
    return Relevance(_NEWEST_RELEVANCE, 0.0)


def choose(candidates: Iterable[Candidate], *, intent: Intent, limit: int) -> list[Candidate]:
    """The items of a pack, best first.

    Each facet first fills its share with good items; what room is left goes to the best of the
    rest, so that a store of one facet fills the pack as a plain ranking would.
    """
    ranked = sorted(candidates, key=lambda c: (-c.score, -c.seq))
    if len(ranked) <= limit:
        return ranked
    good = [c for c in ranked if c.score >= _SHARE_FLOOR * ranked[0].score]
    shares = {facet: emphasis(intent, facet).share for facet in {c.facet for c in good}}
    # More than there is cannot be held, so that each gives way alike.
    whole = max(1.0, math.fsum(shares.values()))
    held = {facet: int(limit * share / whole) for facet, share in shares.items()}
    taken: set[int] = set()
    for candidate in good:
        if held[candidate.facet]:
            held[candidate.facet] -= 1
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
    """How much of the goal the best item covers, 0 to 1."""
    # A word that no item holds says little by itself: it counts like an average one that some do.
    average = sum(rarity.values()) / len(rarity) if rarity else 1.0
    whole = sum(rarity.get(term, average) for term in query.terms) or 1.0
    best = 0.0
    for candidate in chosen:
        held = evidence[candidate.seq].terms
        covered = sum(rarity.get(term, average) for term in held) / whole
        best = max(best, covered, candidate.relevance.cosine or 0.0)
    # What only stands beside a match, or is only new, is weak but not nothing.
    return min(1.0, max(best, _LEAST_STRENGTH))
