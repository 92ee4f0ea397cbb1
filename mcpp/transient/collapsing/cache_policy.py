"""Decides when collapsing a result is worth invalidating the prompt cache behind it.

A cached token costs 0.1 of an uncached one; a token that has to be written again costs 1.25, so
1.15 more. Removing `saved` tokens from every further call is worth `0.1 × saved × calls`; it costs
`1.15 × tokens after` once. Candidates share that cost, so they are evaluated together: all from
some position on, or none. A pending result behind them counts twice: it will be rewritten again
when it is consumed, and by then both could have been collapsed at once.

The decision is made when a result becomes collapsible and is never reversed, so it depends on the
log alone. A rejected candidate is evaluated again together with the next one.
"""

from bisect import bisect, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from mcpp.tokens import Counter

MAX_CANDIDATES: Final = 128
"""Bounds the cost of a decision. Older candidates collapse only when the budget requires it."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Prices of a prompt cache, relative to an uncached token, and the number of calls to come."""

    read: float = 0.1
    rewrite: float = 1.15
    further_calls: float = 10

    def gain(self, saved: int, after: int) -> float:
        """Return the gain of a collapse; positive if it is worthwhile."""
        return self.read * saved * self.further_calls - self.rewrite * after


class PlacedResult(Protocol):
    """A result with its position in the prompt."""

    @property
    def position(self) -> int:
        """Its place among the messages."""

    def tokens(self, count: Counter, /) -> int:
        """Return the tokens of the complete result."""


PlacedT = TypeVar("PlacedT", bound=PlacedResult)


class CollapsePlanner(Generic[PlacedT]):
    """Chooses the results to collapse. Owns the collapsed positions and the candidates."""

    def __init__(self, policy: CachePolicy | None) -> None:
        self._policy = policy
        self._candidates: list[tuple[int, int, PlacedT]] = []  # position, saved, entry
        self._pending: dict[int, PlacedT] = {}  # results without a consumer yet, in order
        self._done: list[int] = []  # collapsed positions, in order
        self._saved = [0]  # cumulative tokens saved by them
        self.collapsed: set[int] = set()  # positions

    @property
    def is_idle(self) -> bool:
        """Whether there is neither a candidate nor a pending result."""
        return not self._candidates and not self._pending

    def expect(self, entry: PlacedT) -> None:
        """Record a result that a later call is expected to consume."""
        self._pending[entry.position] = entry
        if len(self._pending) > MAX_CANDIDATES:
            del self._pending[next(iter(self._pending))]

    def settle(self, entry: PlacedT) -> None:
        """Record that a result has been consumed or superseded."""
        self._pending.pop(entry.position, None)

    def consider(
        self,
        offered: list[tuple[PlacedT, int]],
        after: Callable[[PlacedT], int],
        count: Counter,
    ) -> None:
        """Add candidates, each with the tokens it would save, and collapse what is worthwhile."""
        for entry, saved in offered:
            if saved > 0:
                insort(self._candidates, (entry.position, saved, entry), key=lambda one: one[0])
        del self._candidates[:-MAX_CANDIDATES]
        first = self._first_worthwhile(after, count)
        if first is None:
            return
        for position, saved, _ in self._candidates[first:]:
            self.collapsed.add(position)
            self._record_collapse(position, saved)
        del self._candidates[first:]

    def _first_worthwhile(self, after: Callable[[PlacedT], int], count: Counter) -> int | None:
        if self._policy is None:
            return 0 if self._candidates else None
        best, best_gain = None, 0.0
        saved_from_here = 0
        pending = list(self._pending.values())
        pending_tokens = 0
        for i in range(len(self._candidates) - 1, -1, -1):
            position, saved, entry = self._candidates[i]
            while pending and pending[-1].position > position:
                pending_tokens += pending.pop().tokens(count)
            rewritten = after(entry) + pending_tokens
            rewritten -= self._saved_after(position) + saved_from_here
            saved_from_here += saved
            gain = self._policy.gain(saved_from_here, rewritten)
            if gain > best_gain:
                best, best_gain = i, gain
        return best

    def _record_collapse(self, position: int, saved: int) -> None:
        i = bisect(self._done, position)
        self._done.insert(i, position)
        self._saved.insert(i + 1, self._saved[i])
        for later in range(i + 1, len(self._saved)):  # usually only the last one
            self._saved[later] += saved

    def _saved_after(self, position: int) -> int:
        return self._saved[-1] - self._saved[bisect(self._done, position)]
