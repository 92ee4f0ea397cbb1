"""What was sent and is not yet settled: an envelope stays here until its echo or its refusal.

One queue serves every reason to wait: no connection, a replay still running, a rate limit. What is
refused goes back to its place in the queue, but what is in flight behind it may be let through and
so overtake it. Therefore only as much is in flight as the limit surely allows, and beyond that one
envelope at a time: a thousand refused ones sent again at once would be refused again but for one.

A context's limit is shared with others. By what it has let through one knows how much is left, but
not what others have on their way: so from the middle on, one envelope at a time there too.
"""

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mcpp.payloads import Error
from mcpp.protocol.envelope import Envelope

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
    _flying: Counter[str] = field(default_factory=Counter)  # in flight, by context
    _context_rate: float = 0.0
    _context_burst: float = math.inf
    _restored_at: dict[str, float] = field(default_factory=dict)  # when a context allows all again

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    @property
    def waiting(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._queue)

    def pace(self, limits: Mapping[str, object]) -> None:
        """Learn the gateway's limits: so many a second, and so many at once."""
        self._rate, self._burst = _read_limit(limits, "messages_per_second", "burst")
        self._allowance = min(self._allowance, self._burst)
        self._context_rate, self._context_burst = _read_limit(
            limits, "context_messages_per_second", "context_burst"
        )
        self._restored_at.clear()

    def count(self, context: str, now: float) -> None:
        """Count an envelope that a context's limit has let through, ours or another's."""
        if self._context_rate:
            restored_at = max(self._restored_at.get(context, now), now) + 1 / self._context_rate
            longest = self._context_burst / self._context_rate
            self._restored_at[context] = min(restored_at, now + longest)

    def forget(self, context: str) -> None:
        """Forget what was counted in a context that is no more."""
        self._restored_at.pop(context, None)

    def add(self, envelope: Envelope, text: bytes, *, give_up_at: float) -> None:
        """Take an envelope on. A rate limit is waited out only while that ends by `give_up_at`."""
        self._given += 1
        entry = _Entry(envelope, text, give_up_at, self._given)
        self._entries[envelope.id] = entry
        self._queue.append(entry)

    def add_first(self, envelope: Envelope, text: bytes) -> None:
        """Take an envelope on before all others, for the next line, with all patience."""
        entry = _Entry(envelope, text, math.inf, 0)
        self._entries = {envelope.id: entry, **self._entries}
        self._queue.appendleft(entry)

    def transmit(self, now: float) -> list[bytes]:
        """Return the texts to write now."""
        if not self._queue or now < self._not_before:
            return []
        if not self._in_flight:
            self._refill(now)
        texts: list[bytes] = []
        kept: list[_Entry] = []
        while self._queue and self._has_room:
            entry = self._queue.popleft()
            context = entry.context
            if context is not None:
                if self._is_busy(context, now) or now < self._held.get(context, now):
                    kept.append(entry)
                    continue
                self._flying[context] += 1
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
            contexts = {entry.context for entry in self._queue}
            free = (name for name in contexts if name is None or not self._is_busy(name, now))
            due = max(due, min((self._held.get(name, due) for name in free), default=now))
        return due if due > now else None

    def seconds_needed(self, now: float) -> float:
        """Return how long the known limits make what is here take, if the line is quick."""
        longest = len(self._entries) / self._rate if self._rate else 0.0
        if self._context_rate:
            contexts = Counter(entry.context for entry in self._entries.values() if entry.context)
            longest = max(longest, *(n / self._context_rate for n in contexts.values()), 0.0)
        held = (due - now for due in (self._not_before, *self._held.values()))
        return longest + max(0.0, *held)

    def unsettled(self) -> list[str]:
        """Return the ids of those that somebody still wants to be sent."""
        return [id for id, entry in self._entries.items() if entry.give_up_at > -math.inf]

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
        self._flying.clear()
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

    def _is_busy(self, context: str, now: float) -> bool:
        """Whether what is in flight in a context must settle before the next may follow."""
        flying = self._flying[context]
        if not flying or context in self._held:
            return flying > 0
        spent = max(0.0, self._restored_at.get(context, now) - now) * self._context_rate
        return 2 * (spent + flying) > self._context_burst

    def _land(self, entry: _Entry) -> None:
        entry.in_flight = False
        self._in_flight -= 1
        if entry.context is not None:
            self._flying[entry.context] -= 1
            if not self._flying[entry.context]:
                del self._flying[entry.context]

    def _postpone(self, entry: _Entry, due: float, now: float, *, alone: bool) -> None:
        if entry.in_flight:
            self._land(entry)
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
            self._land(entry)
        else:
            self._queue.remove(entry)
        if not self._queue and not self._rate:
            self._allowance = math.inf
        if self._held and all(other.context != entry.context for other in self._entries.values()):
            self._held.pop(entry.context, None)
        return entry


def _read_limit(limits: Mapping[str, object], rate: str, burst: str) -> tuple[float, float]:
    """Return a limit a second and at once, 0 and infinite where there is none."""
    match limits.get(rate), limits.get(burst):
        case int() | float() as a_second, int() | float() as at_once if a_second > 0:
            return float(a_second), float(at_once)
    return 0.0, math.inf


def _number(entry: _Entry) -> int:
    return entry.number
