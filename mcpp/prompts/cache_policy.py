"""Collapsing when it pays: a prompt cache loses everything after the first changed message.

A token read from the cache costs a tenth; one that has to be written anew costs 1.25, so 1.15 more.
To take `saved` tokens out of every further call is worth `0.1 × saved × calls`; it costs
`1.15 × tokens after` once. Several candidates share that cost, so they are judged together: all
from some place on, or none. A result behind them that still waits for its consumer counts twice: it
will be rewritten again when its own turn comes, and by then both could have gone at once.

The decision is made when a result becomes collapsible and never taken back, so it depends on the
log alone: waiting only adds tokens after it, and the next candidate brings the question up again.
"""

from bisect import bisect, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mcpp.prompts.entries import PromptEntry
from mcpp.tokens import Counter

MAX_CANDIDATES: Final = 128
"""Older ones wait for the budget; with this bound a decision costs the same in any log."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """What a cache's tokens cost, in prices of an uncached one, and how often it will be read."""

    read: float = 0.1
    rewrite: float = 1.15
    further_calls: float = 10

    def gain(self, saved: int, after: int) -> float:
        """Return what a collapse brings: positive if it pays."""
        return self.read * saved * self.further_calls - self.rewrite * after


class Collapses:
    """What has been collapsed so far, and what could be. Owns both."""

    def __init__(self, policy: CachePolicy | None) -> None:
        self._policy = policy
        self._candidates: list[tuple[int, int, PromptEntry]] = []  # place, saved, entry
        self._pending: dict[int, PromptEntry] = {}  # results that wait for a consumer, in order
        self._done: list[int] = []  # places, in order
        self._saved = [0]  # what the first so many of them save
        self.collapsed: set[int] = set()  # places among the entries

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits: no candidate, no pending result."""
        return not self._candidates and not self._pending

    def expect(self, entry: PromptEntry) -> None:
        """Take note of a result that a later call will probably consume."""
        self._pending[entry.at] = entry
        if len(self._pending) > MAX_CANDIDATES:
            del self._pending[next(iter(self._pending))]

    def settle(self, entry: PromptEntry) -> None:
        """Take note that a result has been consumed or superseded."""
        self._pending.pop(entry.at, None)

    def consider(
        self,
        offered: list[tuple[PromptEntry, int]],
        after: Callable[[PromptEntry], int],
        count: Counter,
    ) -> None:
        """Take in new candidates with what each would save, and collapse what pays."""
        for entry, saved in offered:
            if saved > 0:
                insort(self._candidates, (entry.at, saved, entry), key=lambda one: one[0])
        del self._candidates[:-MAX_CANDIDATES]
        first = self._first_paying(after, count)
        if first is None:
            return
        for at, saved, _ in self._candidates[first:]:
            self.collapsed.add(at)
            self._finish(at, saved)
        del self._candidates[first:]

    def _first_paying(self, after: Callable[[PromptEntry], int], count: Counter) -> int | None:
        if self._policy is None:
            return 0 if self._candidates else None
        best, best_gain = None, 0.0
        saved_from_here = 0
        pending = list(self._pending.values())
        twice = 0
        for i in range(len(self._candidates) - 1, -1, -1):
            at, saved, entry = self._candidates[i]
            while pending and pending[-1].at > at:
                twice += pending.pop().tokens(count)
            rewritten = after(entry) + twice - self._saved_after(at) - saved_from_here
            saved_from_here += saved
            gain = self._policy.gain(saved_from_here, rewritten)
            if gain > best_gain:
                best, best_gain = i, gain
        return best

    def _finish(self, at: int, saved: int) -> None:
        place = bisect(self._done, at)
        self._done.insert(place, at)
        self._saved.insert(place + 1, self._saved[place])
        for later in range(place + 1, len(self._saved)):  # mostly the last alone
            self._saved[later] += saved

    def _saved_after(self, at: int) -> int:
        return self._saved[-1] - self._saved[bisect(self._done, at)]
