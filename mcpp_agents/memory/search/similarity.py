"""Good matches resemble each other: what is like the best of them is likelier to answer too.

Found by measuring, and fixed on half of the questions: a fifth of the relevance by likeness to the
best five helps with abstracts, whatever the embedder. Among turns of a dialogue it did harm: the
answer stands in one of them, and they share their few words by chance. So turns, and texts of few
different words, neither lend nor borrow.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Final

from mcpp_agents.memory.search.ranking import Relevance
from mcpp_agents.memory.search.terms import words

# How many are compared, the best first, and with how many of these.
COMPARED: Final = 50
_LEADERS: Final = 5
_SHARE: Final = 0.2
# Different words that a text must have to be like another one for a reason.
_LEAST_WORDS: Final = 30
# How alike texts on one subject are at least, as the cosine of their words.
_LIKE: Final = 0.1
# Enough to tell what it is about.
_MAX_CHARS: Final = 1_200


def leading(relevances: Mapping[int, Relevance]) -> list[int]:
    """The items whose texts are worth comparing, best first."""
    return sorted(relevances, key=lambda seq: (-relevances[seq].fused, -seq))[:COMPARED]


def shift(relevances: Mapping[int, Relevance], texts: Mapping[int, str]) -> dict[int, Relevance]:
    """The relevances moved by likeness, among the items that can be like each other.

    The best of these keeps the height that their best had: others neither gain nor lose by it.

    Args:
        texts: of the leading items, best first.
    """
    counts = {seq: words(text[:_MAX_CHARS]) for seq, text in texts.items()}
    vectors = _vectors({seq: each for seq, each in counts.items() if len(each) >= _LEAST_WORDS})
    leaders = {seq: relevances[seq].fused for seq in list(texts)[:_LEADERS] if seq in vectors}
    centre: defaultdict[str, float] = defaultdict(float)
    for seq, weight in leaders.items():
        for word, value in vectors[seq].items():
            centre[word] += weight * value
    likeness = {
        seq: sum(value * centre.get(word, 0.0) for word, value in vector.items())
        for seq, vector in vectors.items()
    }
    for seq, weight in leaders.items():
        likeness[seq] -= weight  # nothing speaks for itself
    weight = sum(leaders.values())
    if weight <= 0:
        return dict(relevances)
    # Where hardly anything is alike, the most alike is still hardly so.
    most = max(*likeness.values(), _LIKE * weight)
    before = {seq: relevances[seq].fused for seq in likeness}
    moved = {seq: before[seq] + _SHARE * (likeness[seq] / most - before[seq]) for seq in before}
    scale = max(before.values()) / max(moved.values())
    return dict(relevances) | {
        seq: replace(relevances[seq], fused=fused * scale) for seq, fused in moved.items()
    }


def _vectors(counts: Mapping[int, Mapping[str, int]]) -> dict[int, dict[str, float]]:
    """Each text's words by how often it has them and how few others do, of length 1."""
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
