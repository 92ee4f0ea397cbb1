"""A histogram of delivery times: from a text's arrival to the last write of it."""

from bisect import bisect_left
from typing import Final

BOUNDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class LatencyHistogram:
    """Counts durations by bucket."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the buckets as Prometheus wants them: each with those below it."""
        names = [*map(str, BOUNDS), "+Inf"]
        total, found = 0, []
        for name, count in zip(names, self.counts, strict=True):
            total += count
            found.append((name, float(total)))
        return found
