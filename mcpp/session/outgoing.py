"""The queue of outgoing envelopes: each stays here until its echo or its refusal.

One queue serves every reason to wait: no connection, a running replay, a rate limit. An envelope
that was refused for its rate returns to its place in the queue, but envelopes in flight behind it
may be accepted and so overtake it. Therefore no more are in flight than the limit certainly allows,
and beyond that one at a time: of a thousand resent at once, all but one would be refused again.

A context's limit is shared with other participants. Its accepted envelopes show how much of
it is left, but not what others have in flight: so once half is used, one envelope at a time.
"""

import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from mcpp.payloads import Error
from mcpp.protocol.envelope import Envelope

# Used where a refusal does not say when to retry.
_DEFAULT_RETRY_SECONDS: Final = 1.0
# Contexts whose use is counted; they are told by others.
_MAX_COUNTED_CONTEXTS: Final = 10_000
# Refusals after which the envelope is sent again.
_TEMPORARY: Final = ("rate_limited", "unavailable")


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
    """The unsettled envelopes, in the order they were added. Owns their retries."""

    size_bytes: int = 0  # of the texts
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _queue: deque[_Entry] = field(default_factory=deque)
    _added: int = 0
    _in_flight: int = 0
    _not_before: float = 0.0
    _rate: float = 0.0  # the gateway's limit per second, 0 if unknown
    _burst: float = math.inf
    _allowance: float = math.inf  # how many more the gateway certainly accepts
    _allowed_at: float = -math.inf
    _probing: bool = False  # after a refusal, until the next echo (P-06)
    _retry_at: dict[str | None, float] = field(default_factory=dict)  # contexts at their limit
    _in_flight_by_context: Counter[str] = field(default_factory=Counter)
    _context_rate: float = 0.0
    _context_burst: float = math.inf
    _full_at: dict[str, float] = field(default_factory=dict)  # when a context's burst is full

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    @property
    def waiting(self) -> bool:
        """Whether any envelope waits to be written."""
        return bool(self._queue)

    def set_limits(self, limits: Mapping[str, object]) -> None:
        """Set the gateway's rate limits, from its welcome."""
        self._rate, self._burst = _read_limit(limits, "messages_per_second", "burst")
        self._allowance = min(self._allowance, self._burst)
        self._context_rate, self._context_burst = _read_limit(
            limits, "context_messages_per_second", "context_burst"
        )
        self._full_at.clear()

    def count_accepted(self, context: str, now: float) -> None:
        """Count an envelope that was accepted in a context, from any sender."""
        if self._context_rate:
            full_at = max(self._full_at.get(context, now), now) + 1 / self._context_rate
            longest = self._context_burst / self._context_rate
            if len(self._full_at) >= _MAX_COUNTED_CONTEXTS:
                self._forget_full_contexts(now)
            self._full_at[context] = min(full_at, now + longest)

    def _forget_full_contexts(self, now: float) -> None:
        # P-42. Of those that were used just now, a full count is assumed: a refusal corrects it.
        self._full_at = {id: at for id, at in self._full_at.items() if at > now}
        if len(self._full_at) >= _MAX_COUNTED_CONTEXTS:
            self._full_at.clear()

    def forget_context(self, context: str) -> None:
        """Drop an expired context's count."""
        self._full_at.pop(context, None)

    def add(self, envelope: Envelope, text: bytes, *, give_up_at: float) -> None:
        """Add an envelope. It waits for a rate limit only if that ends by `give_up_at`."""
        self._added += 1
        entry = _Entry(envelope, text, give_up_at, self._added)
        self._entries[envelope.id] = entry
        self.size_bytes += len(text)
        self._queue.append(entry)

    def add_first(self, envelope: Envelope, text: bytes) -> None:
        """Add an envelope before all others, for the next connection, without a deadline."""
        entry = _Entry(envelope, text, math.inf, 0)
        self._entries = {envelope.id: entry, **self._entries}
        self.size_bytes += len(text)
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
                if self._is_busy(context, now) or now < self._retry_at.get(context, now):
                    kept.append(entry)
                    continue
                self._in_flight_by_context[context] += 1
            entry.in_flight = True
            entry.times_sent += 1
            self._in_flight += 1
            self._allowance = max(0.0, self._allowance - 1)
            texts.append(entry.text)
        self._queue.extendleft(reversed(kept))
        return texts

    def spend_spare(self, now: float) -> bool:
        """Return whether a text without an echo may be written now, and count it if so.

        It may if nothing waits to be sent and more than half of the burst is left.
        """
        if self._queue or self._probing or now < self._not_before:
            return False
        if not self._in_flight:
            self._refill(now)
        if 2 * self._allowance < self._burst:
            return False
        self._allowance -= 1
        return True

    def slow_down(self, details: Error, now: float) -> None:
        """Take note that a text without an echo was refused for its rate."""
        self._not_before = now + (details.retry_after_seconds or _DEFAULT_RETRY_SECONDS)
        self._allowance, self._allowed_at = 0.0, now

    def wake_at(self, now: float) -> float | None:
        """Return when `transmit` returns texts again, if it only has to wait for time to pass."""
        if not self._queue or not self._has_room:
            return None
        due = self._not_before
        if self._retry_at:
            contexts = {entry.context for entry in self._queue}
            free = (name for name in contexts if name is None or not self._is_busy(name, now))
            due = max(due, min((self._retry_at.get(name, due) for name in free), default=now))
        return due if due > now else None

    def seconds_needed(self, now: float) -> float:
        """Return how long the known rate limits delay the envelopes in this queue."""
        longest = len(self._entries) / self._rate if self._rate else 0.0
        if self._context_rate:
            contexts = Counter(entry.context for entry in self._entries.values() if entry.context)
            longest = max(longest, *(n / self._context_rate for n in contexts.values()), 0.0)
        waits = (due - now for due in (self._not_before, *self._retry_at.values()))
        return longest + max(0.0, *waits)

    def unsettled(self) -> list[str]:
        """Return the ids of envelopes for the pod that were neither echoed nor discarded."""
        return [
            id
            for id, entry in self._entries.items()
            if entry.give_up_at > -math.inf and not entry.envelope.kind.startswith("pod/")
        ]

    def settle(self, id: str) -> tuple[Envelope, int] | None:
        """Remove an echoed envelope; return it and how often it was sent."""
        entry = self._remove(id)
        if entry is None:
            return None
        self._probing = False
        return entry.envelope, entry.times_sent

    def refuse(self, id: str, details: Error, now: float) -> Envelope | None:
        """Remove a refused envelope and return it, or return None if it will be resent."""
        entry = self._entries.get(id)
        if entry is None:
            return None
        if details.error in _TEMPORARY:
            due = now + (details.retry_after_seconds or _DEFAULT_RETRY_SECONDS)
            if due <= entry.give_up_at:
                self._postpone(entry, due, now, context_only=details.scope == "context")
                return None
        self._remove(id)
        return entry.envelope

    def discard(self, id: str) -> bool:
        """Cancel an envelope: do not send it, or do not resend it.

        Return whether the gateway certainly has not accepted it.
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
        """Remove the envelopes that are longer than this; return each with its length."""
        longer = [entry for entry in self._entries.values() if len(entry.text) > max_bytes]
        for entry in longer:
            self._remove(entry.envelope.id)
        return [(entry.envelope, len(entry.text)) for entry in longer]

    def requeue(self) -> None:
        """Queue all unsettled envelopes again in their order, for a new connection."""
        for entry in list(self._entries.values()):
            if entry.give_up_at == -math.inf:
                self._remove(entry.envelope.id)
            entry.in_flight = False
        self._in_flight = 0
        self._in_flight_by_context.clear()
        self._queue = deque(self._entries.values())

    @property
    def _has_room(self) -> bool:
        return not self._in_flight or (self._allowance >= 1 and not self._probing)

    def _refill(self, now: float) -> None:
        # Only while nothing is in flight: those envelopes may arrive late and close together.
        if self._rate:
            grown = self._allowance + self._rate * (now - self._allowed_at)
            self._allowance = min(self._burst, grown)
            self._allowed_at = now

    def _is_busy(self, context: str, now: float) -> bool:
        """Whether envelopes in flight in a context must settle before the next is sent."""
        in_flight = self._in_flight_by_context[context]
        if not in_flight or context in self._retry_at:
            return in_flight > 0
        spent = max(0.0, self._full_at.get(context, now) - now) * self._context_rate
        return 2 * (spent + in_flight) > self._context_burst

    def _clear_in_flight(self, entry: _Entry) -> None:
        entry.in_flight = False
        self._in_flight -= 1
        if entry.context is not None:
            self._in_flight_by_context[entry.context] -= 1
            if not self._in_flight_by_context[entry.context]:
                del self._in_flight_by_context[entry.context]

    def _postpone(self, entry: _Entry, due: float, now: float, *, context_only: bool) -> None:
        if entry.in_flight:
            self._clear_in_flight(entry)
            insort(self._queue, entry, key=_number)
        if context_only:
            self._retry_at[entry.context] = due
        else:
            self._not_before = due
            self._probing = True
            self._allowance, self._allowed_at = 0.0, now

    def _remove(self, id: str) -> _Entry | None:
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        self.size_bytes -= len(entry.text)
        if entry.in_flight:
            self._clear_in_flight(entry)
        else:
            self._queue.remove(entry)
        if not self._queue and not self._rate:
            self._allowance = math.inf
        if self._retry_at and all(
            other.context != entry.context for other in self._entries.values()
        ):
            self._retry_at.pop(entry.context, None)
        return entry


def _read_limit(limits: Mapping[str, object], rate: str, burst: str) -> tuple[float, float]:
    """Return a rate per second and its burst, 0 and infinity where there is no limit."""
    match limits.get(rate), limits.get(burst):
        case int() | float() as per_second, int() | float() as at_once if per_second > 0:
            return float(per_second), float(at_once)
    return 0.0, math.inf


def _number(entry: _Entry) -> int:
    return entry.number
