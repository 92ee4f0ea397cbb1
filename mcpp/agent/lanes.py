"""Messages that wait for an agent's handlers, and how many handlers run at once.

Work with the same key runs in order, one after another; work with different keys runs at the same
time, up to the lane's limit. Keys take turns, so that a long queue of one does not delay the rest.

The task that reads the log never waits here: behind the message come the requests, cancellations
and responses that a handler may itself be waiting for.
"""

from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from mcpp.buffers import MAX_BUFFER_BYTES

T = TypeVar("T")

# As much as a gateway's log holds by default: an agent further behind has missed some anyway.
_MAX_MESSAGES: Final = 10_000


class Lane(Generic[T]):
    """Work in the log's order, within bounds of number and bytes. Owns what waits."""

    __slots__ = (
        "_bytes",
        "_count",
        "_limit",
        "_max_bytes",
        "_max_messages",
        "_queues",
        "_ready",
        "_running",
        "full",
    )

    def __init__(
        self,
        limit: int = 1,
        *,
        max_messages: int = _MAX_MESSAGES,
        max_bytes: int = MAX_BUFFER_BYTES,
    ) -> None:
        self.full = False  # whether the last message was rejected
        self._limit = limit
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._queues: dict[Hashable, deque[tuple[T, int]]] = {}  # of keys that run or wait
        self._ready: deque[Hashable] = deque()  # keys whose next work may run
        self._running = 0
        self._count = 0
        self._bytes = 0

    def put(self, key: Hashable, work: T, size_bytes: int) -> bool:
        """Add work and return True, or return False if too much waits.

        Work that is larger than the limit is accepted if none waits: it would never pass otherwise.
        """
        fits = self._count < self._max_messages and self._bytes + size_bytes <= self._max_bytes
        self.full = self._count > 0 and not fits
        if self.full:
            return False
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._ready.append(key)
        queue.append((work, size_bytes))
        self._count += 1
        self._bytes += size_bytes
        return True

    def take(self) -> tuple[Hashable, T] | None:
        """Return the next work to run and its key, or None; `finish` has to follow."""
        if self._running >= self._limit or not self._ready:
            return None
        key = self._ready.popleft()
        work, size_bytes = self._queues[key].popleft()
        self._running += 1
        self._count -= 1
        self._bytes -= size_bytes
        return key, work

    def finish(self, key: Hashable) -> None:
        """Note that work has ended: the next with its key may run."""
        self._running -= 1
        if self._queues[key]:
            self._ready.append(key)
        else:
            del self._queues[key]
