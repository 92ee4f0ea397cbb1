"""What was sent and is not yet settled: an envelope stays here until its echo or its refusal.

One queue serves every reason to wait: no connection, a replay still running, a rate limit. After a
rate limit only one envelope is in flight, and each echo doubles that: a thousand refused envelopes
sent again at once would be refused again but for one.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from mcpp.envelope import Envelope
from mcpp.payloads import Error

# A gateway that says nothing of when to try again is asked after this long.
_DEFAULT_RETRY_SECONDS: Final = 1.0
# With this many in flight and nothing refused, the limit is out of sight.
_WIDE_WINDOW: Final = 64.0


@dataclass(slots=True, eq=False)
class _Entry:
    envelope: Envelope
    text: bytes
    give_up_at: float
    not_before: float = 0.0
    times_sent: int = 0
    in_flight: bool = False


@dataclass(slots=True)
class Outgoing:
    """The envelopes on their way, in the order they were given. Owns their retries."""

    _entries: dict[str, _Entry] = field(default_factory=dict)
    _queue: deque[_Entry] = field(default_factory=deque)
    _in_flight: int = 0
    _window: float = math.inf
    _not_before: float = 0.0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    @property
    def waiting(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._queue)

    def add(self, envelope: Envelope, text: bytes, *, give_up_at: float) -> None:
        """Take an envelope on. A rate limit is waited out only while that ends by `give_up_at`."""
        entry = _Entry(envelope, text, give_up_at)
        self._entries[envelope.id] = entry
        self._queue.append(entry)

    def transmit(self, now: float) -> list[bytes]:
        """Return the texts to write now."""
        if not self._queue or now < self._not_before:
            return []
        texts: list[bytes] = []
        held: list[_Entry] = []
        while self._queue and self._in_flight < self._window:
            entry = self._queue.popleft()
            if entry.not_before > now:
                held.append(entry)
                continue
            entry.in_flight = True
            entry.times_sent += 1
            self._in_flight += 1
            texts.append(entry.text)
        self._queue.extendleft(reversed(held))
        return texts

    def wake_at(self, now: float) -> float | None:
        """Return when `transmit` will have something to say again, if only time is in its way."""
        if not self._queue or self._in_flight >= self._window:
            return None
        due = max(self._not_before, min(entry.not_before for entry in self._queue))
        return due if due > now else None

    def settle(self, id: str) -> tuple[Envelope, int] | None:
        """Take out what has been echoed; return it and how often it was sent."""
        entry = self._remove(id)
        if entry is None:
            return None
        if self._window != math.inf:
            self._window = math.inf if self._window >= _WIDE_WINDOW else self._window * 2
        return entry.envelope, entry.times_sent

    def refuse(self, id: str, details: Error, now: float) -> Envelope | None:
        """Take out what has been refused and return it, or keep it to be sent again later."""
        entry = self._entries.get(id)
        if entry is None:
            return None
        if details.error == "rate_limited":
            due = now + (details.retry_after_seconds or _DEFAULT_RETRY_SECONDS)
            if due <= entry.give_up_at:
                self._postpone(entry, due, alone=details.scope == "context")
                return None
        self._remove(id)
        return entry.envelope

    def discard(self, id: str) -> None:
        """Forget an envelope that nobody waits for any more and that was never written."""
        entry = self._entries.get(id)
        if entry is not None and not entry.times_sent:
            self._remove(id)

    def requeue(self) -> None:
        """The line is new: queue everything that is not settled again, in its order."""
        for entry in self._entries.values():
            entry.in_flight = False
        self._in_flight = 0
        self._queue = deque(self._entries.values())

    def _postpone(self, entry: _Entry, due: float, *, alone: bool) -> None:
        if entry.in_flight:
            entry.in_flight = False
            self._in_flight -= 1
            self._queue.appendleft(entry)
        if alone:
            entry.not_before = due
        else:
            self._not_before = due
            self._window = 1

    def _remove(self, id: str) -> _Entry | None:
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        if entry.in_flight:
            self._in_flight -= 1
        else:
            self._queue.remove(entry)
        return entry
