"""Measures of a ranking, and their uncertainty."""

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

_RESAMPLES: Final = 2_000


def ndcg(ids: Sequence[str], gains: Mapping[str, int], depth: int = 10) -> float:
    """Return the normalised discounted cumulative gain of the first `depth`."""
    ideal = sorted(gains.values(), reverse=True)[:depth]
    return _dcg([gains.get(each, 0) for each in ids[:depth]]) / _dcg(ideal)


def recall(ids: Sequence[str], gains: Mapping[str, int], depth: int) -> float:
    """Return the part of the relevant documents that is among the first `depth`."""
    return len(gains.keys() & set(ids[:depth])) / len(gains)


def bootstrap(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over resampled questions."""
    chance = random.Random(1)
    means = sorted(
        fmean(chance.choices(differences, k=len(differences))) for _ in range(_RESAMPLES)
    )
    return means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES)]


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(place + 2) for place, gain in enumerate(gains))
