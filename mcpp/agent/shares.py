"""Places that requesters share fairly: none of them can take all (P-43).

A requester may hold as many places as it leaves free. A single one gets half of them, the next one
half of the rest, and so on: a first request always finds a place. Nothing is reserved, and
there is no number of requesters to configure.
"""

import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import anyio

__all__ = ["AnswerRoom", "FairLimiter", "Shares"]

# The ten minutes, and some for the way to the gateway and its clock.
_KEPT_SECONDS: Final = 630.0
_LIMITS: Final = ("max_blob_bytes_per_participant", "max_blob_bytes_per_pod")


class Shares:
    """A number of places, or of bytes, and who holds them."""

    __slots__ = ("_held", "_used", "places")

    def __init__(self, places: int) -> None:
        self.places = places
        self._used = 0
        self._held: dict[str, int] = {}

    def held(self, requester: str) -> int:
        """Return how many places a requester holds."""
        return self._held.get(requester, 0)

    def take(self, requester: str, amount: int = 1) -> bool:
        """Take places for a requester and return True, or return False if it must wait."""
        free, held = self.places - self._used, self._held.get(requester, 0)
        if amount > free or (held and held + amount > free):
            return False
        self._used += amount
        self._held[requester] = held + amount
        return True

    def release(self, requester: str, amount: int = 1) -> None:
        """Give places back."""
        self._used -= amount
        self._held[requester] -= amount
        if not self._held[requester]:
            del self._held[requester]


class FairLimiter:
    """Limits how much runs at once. Requesters wait in queues of their own, served in turn."""

    __slots__ = ("_shares", "_waiting")

    def __init__(self, places: int) -> None:
        self._shares = Shares(places)
        self._waiting: OrderedDict[str, deque[anyio.Event]] = OrderedDict()

    @asynccontextmanager
    async def place(self, requester: str) -> AsyncIterator[None]:
        """Hold a place while the block runs; cancelling gives it back, or leaves the queue."""
        await self._acquire(requester)
        try:
            yield
        finally:
            self._release(requester)

    async def _acquire(self, requester: str) -> None:
        if requester not in self._waiting and self._shares.take(requester):
            return
        turn = anyio.Event()
        self._waiting.setdefault(requester, deque()).append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self._release(requester)
            else:
                self._waiting[requester].remove(turn)
                if not self._waiting[requester]:
                    del self._waiting[requester]
            raise

    def _release(self, requester: str) -> None:
        self._shares.release(requester)
        for waiting in list(self._waiting):
            if self._shares.take(waiting):
                queue = self._waiting[waiting]
                queue.popleft().set()
                if queue:
                    self._waiting.move_to_end(waiting)
                else:
                    del self._waiting[waiting]


class AnswerRoom:
    """Room at the gateway for private answers, shared by those who ask for them (P-47).

    A private answer is an attachment of the one that answers, which the gateway keeps for ten
    minutes (A-15) and counts for its `max_blob_bytes_per_participant`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shares = Shares(0)
        self._taken: deque[tuple[float, str, int]] = deque()  # until when, oldest first

    def take(self, requester: str, size: int, limits: Mapping[str, object]) -> bool:
        """Take room for an answer and return True, or return False if there is none.

        Args:
            requester: who asks for it.
            size: its bytes.
            limits: the gateway's; one that does not state these keeps what it likes.
        """
        stated = [limit for name in _LIMITS if isinstance(limit := limits.get(name), int)]
        if not stated or size <= 0:
            return True
        now = self._clock()
        while self._taken and self._taken[0][0] <= now:
            _, holder, amount = self._taken.popleft()
            self._shares.release(holder, amount)
        self._shares.places = min(stated)
        if not self._shares.take(requester, size):
            return False
        self._taken.append((now + _KEPT_SECONDS, requester, size))
        return True
