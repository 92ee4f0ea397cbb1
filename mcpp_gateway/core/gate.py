"""The gate: nothing leaves before the log holds what it follows (G-50).

Decisions run ahead of the journal: a pod accepts further envelopes while earlier ones are still
being written. Whatever it would send meanwhile waits here in its order, an envelope until it is
committed and a direct answer until everything accepted before it is (G-30). Recipients are chosen
when something is released, not when it was decided: a session that joined in between reads the
envelope from the log or receives it live, but never both.
"""

from collections import deque
from typing import Generic, TypeVar

E = TypeVar("E")
A = TypeVar("A")


class Gate(Generic[E, A]):
    """What waits for the log. Owns its queues; everything is released in the order it came in."""

    __slots__ = ("_answers", "committed", "entries")

    def __init__(self, committed: int) -> None:
        self.committed = committed
        # Every entry from position `committed` on. A list to append to: no call, no tuple.
        self.entries: list[E] = []
        self._answers: deque[tuple[int, A]] = deque()

    def is_open(self, end: int) -> bool:
        """Whether something that follows position `end` may leave now."""
        return not self._answers and end <= self.committed

    def hold(self, answer: A, end: int) -> None:
        """Keep an answer until everything before position `end` is committed."""
        self._answers.append((end, answer))

    def release(self, committed: int) -> list[tuple[list[E], A | None]]:
        """Return what may leave now that everything before a position is committed.

        These are entries in their order, each list followed by an answer or by the end.
        """
        first, self.committed = self.committed, committed
        entries, answers = self.entries[: committed - first], self._answers
        del self.entries[: committed - first]
        released: list[tuple[list[E], A | None]] = []
        at = first
        while answers and answers[0][0] <= committed:
            end, answer = answers.popleft()
            released.append((entries[at - first : end - first], answer))
            at = end
        released.append((entries[at - first :], None))
        return released
