"""Buffers bounded by bytes as well as by number (P-40).

A number alone bounds nothing: an envelope may be a megabyte long. Whatever holds envelopes for
later is a `BoundedQueue`, and counts the bytes of their whole texts (`Envelope.size_bytes`).
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

__all__ = ["MAX_BUFFER_BYTES", "MAX_LOG_BYTES", "BoundedQueue"]

T = TypeVar("T")

# For one buffer of envelopes: 64 of the largest that a gateway accepts by default.
MAX_BUFFER_BYTES: Final = 64 * 1024 * 1024
# For a log whose payloads are parsed: a value may take 24 times the bytes of its text (`{},{},`).
MAX_LOG_BYTES: Final = 16 * 1024 * 1024


class BoundedQueue(Generic[T]):
    """A first-in, first-out queue with a limit on its items and on their bytes.

    A full queue either rejects what is new (`put`) or drops what is oldest (`push`). An item that
    is larger than the limit is accepted into an empty queue: otherwise it would never pass.
    """

    __slots__ = ("_items", "max_bytes", "max_items", "size_bytes")

    def __init__(self, max_items: int | None = None, max_bytes: int = MAX_BUFFER_BYTES) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._items: deque[tuple[T, int]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return (item for item, _ in self._items)

    def has_room(self, size_bytes: int) -> bool:
        """Return whether `put` would accept an item of this size."""
        items = self._items
        if not items:
            return True
        if self.max_items is not None and len(items) >= self.max_items:
            return False
        return self.size_bytes + size_bytes <= self.max_bytes

    def is_filled(self, share: float) -> bool:
        """Return whether more than this share of the items or of the bytes is used."""
        if self.size_bytes > self.max_bytes * share:
            return True
        return self.max_items is not None and len(self._items) > int(self.max_items * share)

    def put(self, item: T, size_bytes: int) -> bool:
        """Append an item and return True, or return False if the queue is full."""
        if not self.has_room(size_bytes):
            return False
        self.put_anyway(item, size_bytes)
        return True

    def put_anyway(self, item: T, size_bytes: int = 0) -> None:
        """Append an item even if the queue is full: a small one, such as a notice of a gap."""
        self._items.append((item, size_bytes))
        self.size_bytes += size_bytes

    def push(self, item: T, size_bytes: int) -> int:
        """Append an item, drop the oldest ones until it fits, and return how many were dropped."""
        dropped = 0
        while not self.has_room(size_bytes):
            self.take()
            dropped += 1
        self.put_anyway(item, size_bytes)
        return dropped

    def take(self) -> T:
        """Remove and return the oldest item. Raises IndexError if there is none."""
        item, size_bytes = self._items.popleft()
        self.size_bytes -= size_bytes
        return item

    def shrink(self, share: float) -> None:
        """Drop the oldest items until no more than this share is used, or one is left."""
        while self.is_filled(share) and len(self._items) > 1:
            self.take()

    def clear(self) -> None:
        """Remove all items."""
        self._items.clear()
        self.size_bytes = 0
