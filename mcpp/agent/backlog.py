"""What waits for an agent's handlers, which run one after another and may take their time.

Whoever reads the log never waits here: behind it come the requests, the cancellations and the
answers that a handler may itself be waiting for.
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
    """What is to be done, in the log's order. Owns a bounded queue."""

    max_messages: int = _MAX_MESSAGES
    max_bytes: int = _MAX_BYTES
    behind: bool = False  # whether there was no room for the last message
    _waiting: deque[tuple[T, int]] = field(default_factory=deque)
    _bytes: int = 0
    _event: anyio.Event = field(default_factory=anyio.Event)

    def put(self, work: T, size_bytes: int) -> bool:
        """Add what is to be done with a message, or return False where there is no room for it."""
        self.behind = (
            len(self._waiting) >= self.max_messages or self._bytes + size_bytes > self.max_bytes
        )
        if not self.behind:
            self._append(work, size_bytes)
        return not self.behind

    def mark(self, work: T) -> None:
        """Add what is to be done where messages are missing. For that there is always room."""
        self._append(work, 0)

    async def take(self) -> T:
        """Return what comes next, waiting for it."""
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
