"""What waits for an agent's handlers, which run one after another and may take their time.

Whoever reads the log never waits here: behind it come the requests, the cancellations and the
answers that a handler may itself be waiting for.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import anyio

from mcpp.message import Message

T = TypeVar("T")

# As much as a gateway's log holds by default: an agent further behind has missed some anyway.
_MAX_MESSAGES: Final = 10_000
_MAX_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class Backlog(Generic[T]):
    """Messages in the log's order, each with who is to handle it. Owns a bounded queue."""

    max_messages: int = _MAX_MESSAGES
    max_bytes: int = _MAX_BYTES
    _waiting: deque[tuple[T, Message]] = field(default_factory=deque)
    _bytes: int = 0
    _event: anyio.Event = field(default_factory=anyio.Event)

    def put(self, handler: T, message: Message) -> bool:
        """Add a message, or return False where there is no room for it."""
        size = len(message.envelope.raw_payload)
        if len(self._waiting) >= self.max_messages or self._bytes + size > self.max_bytes:
            return False
        self._waiting.append((handler, message))
        self._bytes += size
        self._event.set()
        return True

    async def take(self) -> tuple[T, Message]:
        """Return what comes next, waiting for it."""
        while not self._waiting:
            self._event = anyio.Event()
            await self._event.wait()
        handler, message = self._waiting.popleft()
        self._bytes -= len(message.envelope.raw_payload)
        return handler, message
