"""The gate: nothing leaves before the log holds what it follows (G-50).

Decisions run ahead of the journal: a pod accepts further envelopes while earlier ones are still
being written. Whatever it would send meanwhile waits here in its order, an envelope until it is
committed and a direct answer until everything accepted before it is (G-30). Recipients are chosen
when something is released, not when it was decided: a session that joined in between reads the
envelope from the log or receives it live, but never both.
"""

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Gate(Generic[T]):
    """What waits for the log. Owns the queue; items are released in the order they came in."""

    __slots__ = ("_items", "committed")

    def __init__(self, committed: int) -> None:
        self.committed = committed
        self._items: deque[tuple[int, T]] = deque()

    def is_open(self, end: int) -> bool:
        """Whether something that follows position `end` may leave now."""
        return not self._items and end <= self.committed

    def hold(self, item: T, end: int) -> None:
        """Keep an item until everything before position `end` is committed."""
        self._items.append((end, item))

    def release(self, committed: int) -> list[T]:
        """Return what may leave now that everything before a position is committed."""
        self.committed = committed
        items = self._items
        released: list[T] = []
        while items and items[0][0] <= committed:
            released.append(items.popleft()[1])
        return released
