"""What was sent and is not yet settled: an envelope stays here until its echo or its refusal.

One queue serves every reason to wait: no connection, a replay still running, a rate limit. What is
refused goes back to its place in the queue, but what is in flight behind it may be let through and
so overtake it. Therefore only as much is in flight as the limit surely allows, and beyond that one
envelope at a time: a thousand refused ones sent again at once would be refused again but for one.
"""

import math
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from mcpp.envelope import Envelope
from mcpp.payloads import Error

# A gateway that says nothing of when to try again is asked after this long.
_DEFAULT_RETRY_SECONDS: Final = 1.0


@dataclass(slots=True, eq=False)
class _Entry:
    envelope: Envelope
    text: bytes
    give_up_at: float
    number: int
    times_sent: int = 0
    in_flight: bool = False

    @property
    def context(self) -> str | None:
        return None if self.envelope.context is None else self.envelope.context.id


@dataclass(slots=True)
class Outgoing:
    """The envelopes on their way, in the order they were given. Owns their retries."""

    _entries: dict[str, _Entry] = field(default_factory=dict)
    _queue: deque[_Entry] = field(default_factory=deque)
    _given: int = 0
    _in_flight: int = 0
    _not_before: float = 0.0
    _rate: float = 0.0  # of the gateway, 0 where it is not known
    _burst: float = math.inf
    _allowance: float = math.inf  # how many more the gateway lets through for certain
    _allowed_at: float = -math.inf
    _probing: bool = False  # after a refusal, until an echo comes (P-06)
    _held: dict[str | None, float] = field(default_factory=dict)  # contexts at their limit

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    @property
    def waiting(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._queue)

    def pace(self, rate: object, burst: object) -> None:
        """Learn the gateway's limit: so many a second, and so many at once."""
        if isinstance(rate, int | float) and isinstance(burst, int | float) and rate > 0:
            self._rate, self._burst = float(rate), float(burst)
        else:
            self._rate, self._burst = 0.0, math.inf
        self._allowance = min(self._allowance, self._burst)

    def add(self, envelope: Envelope, text: bytes, *, give_up_at: float) -> None:
        """Take an envelope on. A rate limit is waited out only while that ends by `give_up_at`."""
        self._given += 1
        entry = _Entry(envelope, text, give_up_at, self._given)
        self._entries[envelope.id] = entry
        self._queue.append(entry)

    def transmit(self, now: float) -> list[bytes]:
        """Return the texts to write now."""
        if not self._queue or now < self._not_before:
            return []
        if not self._in_flight:
            self._refill(now)
        busy = self._busy_contexts()
        texts: list[bytes] = []
        kept: list[_Entry] = []
        while self._queue and self._has_room:
            entry = self._queue.popleft()
            if self._held:
                if entry.context in busy or now < self._held.get(entry.context, now):
                    kept.append(entry)
                    continue
                if entry.context in self._held:
                    busy.add(entry.context)
            entry.in_flight = True
            entry.times_sent += 1
            self._in_flight += 1
            self._allowance = max(0.0, self._allowance - 1)
            texts.append(entry.text)
        self._queue.extendleft(reversed(kept))
        return texts

    def wake_at(self, now: float) -> float | None:
        """Return when `transmit` will have something to say again, if only time is in its way."""
        if not self._queue or not self._has_room:
            return None
        due = self._not_before
        if self._held:
            busy = self._busy_contexts()
            free = (entry.context for entry in self._queue if entry.context not in busy)
            due = max(due, min((self._held.get(context, due) for context in free), default=now))
        return due if due > now else None

    def settle(self, id: str) -> tuple[Envelope, int] | None:
        """Take out what has been echoed; return it and how often it was sent."""
        entry = self._remove(id)
        if entry is None:
            return None
        self._probing = False
        return entry.envelope, entry.times_sent

    def refuse(self, id: str, details: Error, now: float) -> Envelope | None:
        """Take out what has been refused and return it, or keep it to be sent again later."""
        entry = self._entries.get(id)
        if entry is None:
            return None
        if details.error == "rate_limited":
            due = now + (details.retry_after_seconds or _DEFAULT_RETRY_SECONDS)
            if due <= entry.give_up_at:
                self._postpone(entry, due, now, alone=details.scope == "context")
                return None
        self._remove(id)
        return entry.envelope

    def discard(self, id: str) -> bool:
        """Nobody waits for an envelope any more: if it is not let through now, it never is.

        Return whether it is certain that it was not let through.
        """
        entry = self._entries.get(id)
        if entry is None:
            return True
        if entry.in_flight:
            entry.give_up_at = -math.inf
        else:
            self._remove(id)
        return not entry.times_sent

    def drop_longer(self, max_bytes: int) -> list[tuple[Envelope, int]]:
        """Take out what is longer than this; return each with its length."""
        longer = [entry for entry in self._entries.values() if len(entry.text) > max_bytes]
        for entry in longer:
            self._remove(entry.envelope.id)
        return [(entry.envelope, len(entry.text)) for entry in longer]

    def requeue(self) -> None:
        """The line is new: queue everything that is not settled again, in its order."""
        for entry in list(self._entries.values()):
            if entry.give_up_at == -math.inf:
                self._remove(entry.envelope.id)
            entry.in_flight = False
        self._in_flight = 0
        self._queue = deque(self._entries.values())

    @property
    def _has_room(self) -> bool:
        return not self._in_flight or (self._allowance >= 1 and not self._probing)

    def _refill(self, now: float) -> None:
        # Only while nothing is in flight: what is may come late, and then close behind each other.
        if self._rate:
            grown = self._allowance + self._rate * (now - self._allowed_at)
            self._allowance = min(self._burst, grown)
            self._allowed_at = now

    def _busy_contexts(self) -> set[str | None]:
        if not self._held:
            return set()
        flying = {entry.context for entry in self._entries.values() if entry.in_flight}
        return flying & self._held.keys()

    def _postpone(self, entry: _Entry, due: float, now: float, *, alone: bool) -> None:
        if entry.in_flight:
            entry.in_flight = False
            self._in_flight -= 1
            insort(self._queue, entry, key=_number)
        if alone:
            self._held[entry.context] = due
        else:
            self._not_before = due
            self._probing = True
            self._allowance, self._allowed_at = 0.0, now

    def _remove(self, id: str) -> _Entry | None:
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        if entry.in_flight:
            self._in_flight -= 1
        else:
            self._queue.remove(entry)
        if not self._queue and not self._rate:
            self._allowance = math.inf
        if self._held and all(other.context != entry.context for other in self._entries.values()):
            self._held.pop(entry.context, None)
        return entry


def _number(entry: _Entry) -> int:
    return entry.number
