"""Bounded queue of messages waiting for an agent's handlers.

The task that reads the log never waits here: behind the message come the requests, cancellations
and responses that a handler may itself be waiting for.
"""

from typing import Final, Generic, TypeVar

import anyio

from mcpp.buffers import MAX_BUFFER_BYTES, BoundedQueue

T = TypeVar("T")

# As much as a gateway's log holds by default: an agent further behind has missed some anyway.
_MAX_MESSAGES: Final = 10_000


class Backlog(Generic[T]):
    """Work for handlers in the log's order. Owns a bounded queue."""

    __slots__ = ("_event", "_queue", "full")

    def __init__(
        self, *, max_messages: int = _MAX_MESSAGES, max_bytes: int = MAX_BUFFER_BYTES
    ) -> None:
        self.full = False  # whether the last message was rejected
        self._queue = BoundedQueue[T](max_messages, max_bytes)
        self._event = anyio.Event()

    def put(self, work: T, size_bytes: int) -> bool:
        """Queue work for a message and return True, or return False if the queue is full."""
        self.full = not self._queue.put(work, size_bytes)
        self._event.set()
        return not self.full

    def put_anyway(self, work: T) -> None:
        """Queue work even if the queue is full; used to report missed messages."""
        self._queue.put_anyway(work)
        self._event.set()

    async def take(self) -> T:
        """Remove and return the next work, waiting for it if there is none."""
        while not self._queue:
            self._event = anyio.Event()
            await self._event.wait()
        return self._queue.take()
