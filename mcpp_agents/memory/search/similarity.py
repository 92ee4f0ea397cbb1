"""Re-ranking by the relevance of similar texts (M-29).

Good matches resemble each other, so a text whose most similar candidates are relevant is likely to
be relevant too, and a text among irrelevant ones is less likely. Half of the relevance of a text is
therefore the mean of its ten nearest neighbours', weighted by the squares of their similarities.
Measured on abstracts and cross-validated, this helps whatever the embedder, more than similarity to
the best five (docs/memory.md). Among turns of a dialogue similarity did harm: one of them contains
the answer, and they share their few words by chance. So turns, and texts with few distinct words,
are neither compared with nor re-ranked.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from mcpp_agents.memory.search.ranking import Relevance
from mcpp_agents.memory.search.terms import words

# How many of the best items are compared; how many are read if most are turns of dialogues.
COMPARED: Final = 50
READ: Final = 400
_NEIGHBOURS: Final = 10
_SHARE: Final = 0.5
# The sum of the squares at which the neighbours count in full, such as ten similarities of 0.055.
# If nothing is similar, the relevance stays.
_ENOUGH: Final = 0.03
# Distinct words below which similarity is chance.
_MIN_WORDS: Final = 20
# Forms of a word mostly have their first letters in common.
_STEM_CHARS: Final = 6
_FEW_TEXTS: Final = 20
# Enough to show what a text is about.
_MAX_CHARS: Final = 1_200


def leading(relevances: Mapping[int, Relevance]) -> list[int]:
    """Return the items whose texts are read, best first."""
    return sorted(relevances, key=lambda seq: (-relevances[seq].fused, -seq))[:READ]


def rerank(relevances: Mapping[int, Relevance], texts: Mapping[int, str]) -> dict[int, Relevance]:
    """Return the relevances adjusted by those of similar texts, among the comparable ones.

    The best of these keeps the relevance of their best: items outside the comparison neither gain
    nor lose.

    Args:
        texts: texts of the leading items.
    """
    counts = {seq: words(text[:_MAX_CHARS], _STEM_CHARS) for seq, text in texts.items()}
    compared = {seq: each for seq, each in counts.items() if len(each) >= _MIN_WORDS}
    before = [relevances[seq].fused for seq in compared]
    if max(before, default=0.0) <= 0:
        return dict(relevances)
    rows = _similarities(list(compared.values()))
    after = [own + _pull(own, row, before) for own, row in zip(before, rows, strict=True)]
    scale = max(before) / max(after)
    return dict(relevances) | {
        seq: replace(relevances[seq], fused=fused * scale)
        for seq, fused in zip(compared, after, strict=True)
    }


def _pull(own: float, row: Sequence[float], before: Sequence[float]) -> float:
    """Return by how much the nearest texts change the relevance of a text."""
    least = sorted(row)[-_NEIGHBOURS:][0]
    near = [(each * each, other) for each, other in zip(row, before, strict=True) if each >= least]
    weight = sum(each for each, _ in near)
    difference = sum(each * other for each, other in near) - weight * own
    return _SHARE * difference / max(weight, _ENOUGH)


def _similarities(texts: Sequence[Mapping[str, int]]) -> list[list[float]]:
    """Return the TF-IDF cosine of each text with each other one; with itself, 0."""
    # More common stems tell little, and cost most: the square of their number.
    common = max(_FEW_TEXTS, len(texts) // 2)
    held = Counter(chain.from_iterable(texts))
    most = min(common, len(texts))
    # By the number of texts that hold a stem.
    rarity = [math.log1p((len(texts) - n + 0.5) / (n + 0.5)) for n in range(most + 1)]
    holders: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    rows = []
    for text, counts in enumerate(texts):
        vector = [
            (stem, rarity[held[stem]] * (1 + math.log(count) if count > 1 else 1.0))
            for stem, count in counts.items()
            if held[stem] <= common
        ]
        length = math.hypot(*[value for _, value in vector])
        row = [0.0] * len(texts)
        for stem, value in vector:
            if held[stem] > 1:
                share = value / length
                earlier = holders[stem]
                for other, also in earlier:
                    row[other] += share * also
                earlier.append((text, share))
        rows.append(row)
    for one, row in enumerate(rows):
        for other in range(one):
            rows[other][one] = row[other]
    return rows
