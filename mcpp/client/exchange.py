"""Those who wait: for the echo of what they sent, or for what comes back on a request."""

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import anyio

from mcpp.errors import McppError
from mcpp.protocol.envelope import Envelope

# Notes on a request (progress, opinions) beyond this many unread ones push out the oldest.
_KEPT_NOTES: Final = 64


@dataclass(slots=True)
class Waiter:
    """One who waits for an echo."""

    _event: anyio.Event = field(default_factory=anyio.Event)
    _outcome: Envelope | McppError | None = None

    @property
    def echoed(self) -> bool:
        return isinstance(self._outcome, Envelope)

    def settle(self, outcome: Envelope | McppError) -> None:
        self._outcome = outcome
        self._event.set()

    async def wait(self) -> Envelope:
        await self._event.wait()
        assert self._outcome is not None
        if isinstance(self._outcome, McppError):
            raise self._outcome
        return self._outcome


@dataclass(slots=True)
class Exchange:
    """What comes back on a request: notes on the way, then the answer."""

    _notes: deque[Envelope] = field(default_factory=lambda: deque(maxlen=_KEPT_NOTES))
    _answer: Envelope | McppError | None = None
    _event: anyio.Event = field(default_factory=anyio.Event)

    def note(self, envelope: Envelope) -> None:
        """Add a note."""
        self._notes.append(envelope)
        self._event.set()

    def settle(self, answer: Envelope | McppError) -> None:
        """End the exchange with an answer or an error."""
        self._answer = answer
        self._event.set()

    @property
    def answer(self) -> Envelope | None:
        """The answer, once there is one. Raises the error that ended the exchange instead of it."""
        if isinstance(self._answer, McppError):
            raise copy.copy(self._answer)
        return self._answer

    async def next(self) -> tuple[Envelope, bool]:
        """Return the next note, or the answer with True. Several may wait: all get the answer."""
        while not self._notes:
            answer = self.answer
            if answer is not None:
                return answer, True
            await self.change()
        return self._notes.popleft(), False

    async def change(self) -> None:
        """Wait for a note or the answer."""
        if self._event.is_set():
            self._event = anyio.Event()
        await self._event.wait()
