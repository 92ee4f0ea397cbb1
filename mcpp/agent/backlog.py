"""Bounded queue of messages waiting for an agent's handlers.

The task that reads the log never waits here: behind the message come the requests, cancellations
and responses that a handler may itself be waiting for.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import anyio

T = TypeVar("T")

# As much as a gateway's log holds by default: an agent further behind has missed some anyway.
_MAX_MESSAGES: Final = 10_000
_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class Backlog(Generic[T]):
    """Work for handlers in the log's order. Owns a bounded queue."""

    max_messages: int = _MAX_MESSAGES
    max_bytes: int = _MAX_BYTES
    full: bool = False  # whether the last message was rejected
    _waiting: deque[tuple[T, int]] = field(default_factory=deque)
    _bytes: int = 0
    _event: anyio.Event = field(default_factory=anyio.Event)

    def put(self, work: T, size_bytes: int) -> bool:
        """Queue work for a message and return True, or return False if the queue is full."""
        self.full = (
            len(self._waiting) >= self.max_messages or self._bytes + size_bytes > self.max_bytes
        )
        if not self.full:
            self._append(work, size_bytes)
        return not self.full

    def put_unbounded(self, work: T) -> None:
        """Queue work even if the queue is full; used to report missed messages."""
        self._append(work, 0)

    async def take(self) -> T:
        """Remove and return the next work, waiting for it if there is none."""
        while not self._waiting:
            self._event = anyio.Event()
            await self._event.wait()
        work, size_bytes = self._waiting.popleft()
        self._bytes -= size_bytes
        return work

    def _append(self, work: T, size_bytes: int) -> None:
        self._waiting.append((work, size_bytes))
        self._bytes += size_bytes
        self._event.set()
