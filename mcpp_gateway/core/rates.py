"""Token buckets, each kept as one float (GCRA).

The float is the time at which the bucket will be full again. Taking a token adds one interval; a
bucket whose time is more than its depth ahead is empty. Nothing is refilled, so an idle bucket
costs nothing.

An interval is a whole number of 2⁻²¹ seconds, because floats near the present Unix time are: their
sums are then exact, and a burst of 400 is 400 (with 0.005 s it was 399).
"""

from dataclasses import dataclass
from typing import Final

_GRAIN_SECONDS: Final = 2.0**-21


@dataclass(frozen=True, slots=True)
class Rate:
    """The fill rate and the capacity of a bucket."""

    interval: float  # seconds per token; 0 for no limit
    depth: float  # seconds from empty to full

    @classmethod
    def per_second(cls, rate: float, burst: int) -> "Rate":
        """Return a rate of `rate` tokens per second and a capacity of `burst`; 0 is no limit."""
        if not rate:
            return cls(0.0, 0.0)
        interval = max(1, round(1 / rate / _GRAIN_SECONDS)) * _GRAIN_SECONDS
        return cls(interval, burst * interval)


class Bucket:
    """A token bucket. Times are passed in."""

    __slots__ = ("__weakref__", "_depth", "_full_at", "_interval")

    def __init__(self, rate: Rate) -> None:
        self._interval = rate.interval
        self._depth = rate.depth
        self._full_at = 0.0

    def change(self, rate: Rate, now: float) -> None:
        """Apply another rate. As many tokens are missing as before."""
        missing = (self._full_at - now) / self._interval if self._interval else 0.0
        self._interval = rate.interval
        self._depth = rate.depth
        self._full_at = now + max(0.0, missing) * rate.interval

    def take(self, now: float) -> float:
        """Take a token and return 0, or return the seconds until one is available."""
        full_at = self._full_at
        if full_at < now:
            full_at = now
        full_at += self._interval
        wait = full_at - now - self._depth
        # A nanosecond of tolerance: at small times, as in tests, sums of floats are not exact.
        if wait > 1e-9:
            return wait
        self._full_at = full_at
        return 0.0

    def charge(self, tokens: float, now: float) -> None:
        """Take tokens even if there are too few; the debt delays the next `take`."""
        self._full_at = max(self._full_at, now) + tokens * self._interval

    def wait(self, now: float) -> float:
        """Return the seconds until a token is available, without taking it."""
        return max(0.0, self._full_at + self._interval - now - self._depth - 1e-9)
