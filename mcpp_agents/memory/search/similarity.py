"""Re-ranking by similarity to the best matches (M-29).

Good matches resemble each other, so a text similar to the best ones is more likely to be relevant.
Measured, and tuned on half of the questions: a fifth of the relevance by similarity to the best
five helps with abstracts, whatever the embedder. Among turns of a dialogue it did harm: one of them
contains the answer, and they share their few words by chance. So turns, and texts with few distinct
words, are neither compared with nor re-ranked.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from mcpp_agents.memory.search.ranking import Relevance
from mcpp_agents.memory.search.terms import words

# How many of the best items are compared, and with how many leaders.
COMPARED: Final = 50
READ: Final = 200
_LEADERS: Final = 5
_SHARE: Final = 0.2
# Distinct words below which similarity is chance.
_MIN_WORDS: Final = 30
# The lowest cosine of the words of two texts on one subject.
_MIN_COSINE: Final = 0.1
# Enough to show what a text is about.
_MAX_CHARS: Final = 1_200


def leading(relevances: Mapping[int, Relevance]) -> list[int]:
    """Return the items whose texts are read, best first."""
    return sorted(relevances, key=lambda seq: (-relevances[seq].fused, -seq))[:READ]


def rerank(relevances: Mapping[int, Relevance], texts: Mapping[int, str]) -> dict[int, Relevance]:
    """Return the relevances adjusted by similarity, among the items with comparable texts.

    The best of these keeps the relevance of their best: items outside the comparison neither gain
    nor lose.

    Args:
        texts: texts of the leading items, best first.
    """
    counts = {seq: words(text[:_MAX_CHARS]) for seq, text in texts.items()}
    vectors = _vectors({seq: each for seq, each in counts.items() if len(each) >= _MIN_WORDS})
    leaders = {seq: relevances[seq].fused for seq in list(texts)[:_LEADERS] if seq in vectors}
    centre: defaultdict[str, float] = defaultdict(float)
    for seq, weight in leaders.items():
        for word, value in vectors[seq].items():
            centre[word] += weight * value
    similarity = {
        seq: sum(value * centre.get(word, 0.0) for word, value in vector.items())
        for seq, vector in vectors.items()
    }
    for seq, weight in leaders.items():
        similarity[seq] -= weight  # an item does not support itself
    weight = sum(leaders.values())
    if weight <= 0:
        return dict(relevances)
    # If nothing is similar, the most similar must not count as similar.
    most = max(*similarity.values(), _MIN_COSINE * weight)
    before = {seq: relevances[seq].fused for seq in similarity}
    moved = {seq: before[seq] + _SHARE * (similarity[seq] / most - before[seq]) for seq in before}
    scale = max(before.values()) / max(moved.values())
    return dict(relevances) | {
        seq: replace(relevances[seq], fused=fused * scale) for seq, fused in moved.items()
    }


def _vectors(counts: Mapping[int, Mapping[str, int]]) -> dict[int, dict[str, float]]:
    """Return a unit TF-IDF vector for each text."""
    holders = Counter(chain.from_iterable(counts.values()))
    by_holders = [
        math.log1p((len(counts) - held + 0.5) / (held + 0.5)) for held in range(len(counts) + 1)
    ]
    found = {}
    for seq, each in counts.items():
        vector = {
            word: by_holders[holders[word]] * (1 + math.log(count) if count > 1 else 1.0)
            for word, count in each.items()
        }
        length = math.hypot(*vector.values())
        found[seq] = {word: value / length for word, value in vector.items()}
    return found
