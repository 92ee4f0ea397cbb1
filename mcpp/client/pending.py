"""What tasks wait for: a sent envelope's echo, or the response to a request."""

import copy
from dataclasses import dataclass, field
from typing import ClassVar, Final

import anyio

from mcpp.buffers import BoundedQueue
from mcpp.errors import McppError
from mcpp.protocol.envelope import Envelope

# Unread updates on a request (progress, rejections) beyond these push out the oldest.
_MAX_UPDATES: Final = 64
_MAX_UPDATES_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class PendingEcho:
    """A sent envelope that waits for its echo or refusal."""

    _event: anyio.Event = field(default_factory=anyio.Event)
    _outcome: Envelope | McppError | None = None

    @property
    def echoed(self) -> bool:
        """Whether the echo has arrived."""
        return isinstance(self._outcome, Envelope)

    def settle(self, outcome: Envelope | McppError) -> None:
        """Set the outcome and wake the waiting task."""
        self._outcome = outcome
        self._event.set()

    async def wait(self) -> Envelope:
        """Return the echo, or raise the error that came instead."""
        await self._event.wait()
        assert self._outcome is not None
        if isinstance(self._outcome, McppError):
            raise self._outcome
        return self._outcome


@dataclass(slots=True)
class PendingResponse:
    """A request that waits for its response, with the updates that arrive first."""

    is_lost_with_log: ClassVar = False  # the participant asked may still answer

    _updates: BoundedQueue[Envelope] = field(
        default_factory=lambda: BoundedQueue(_MAX_UPDATES, _MAX_UPDATES_BYTES)
    )
    _response: Envelope | McppError | None = None
    _event: anyio.Event = field(default_factory=anyio.Event)

    def add_update(self, envelope: Envelope) -> None:
        """Add an update, such as progress."""
        self._updates.push(envelope, envelope.size_bytes)
        self._event.set()

    def settle(self, response: Envelope | McppError) -> None:
        """Set the response, or the error that ended the wait."""
        self._response = response
        self._event.set()

    @property
    def response(self) -> Envelope | None:
        """The response, None before it arrives. Raises the error that ended the wait."""
        if isinstance(self._response, McppError):
            raise copy.copy(self._response)
        return self._response

    async def next(self) -> tuple[Envelope, bool]:
        """Return the next update and False, or the response and True.

        Several tasks may wait: each update goes to one of them, the response to all.
        """
        while not self._updates:
            response = self.response
            if response is not None:
                return response, True
            await self.wait_for_change()
        return self._updates.take(), False

    async def wait_for_change(self) -> None:
        """Wait for an update or the response."""
        if self._event.is_set():
            self._event = anyio.Event()
        await self._event.wait()
