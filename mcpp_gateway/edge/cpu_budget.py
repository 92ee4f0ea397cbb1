"""The CPU budget: what participants may take of the process's time beyond what is free (G-65).

Every paid text and every byte has a free allowance, which ordinary envelopes never use up. Time
beyond it is excess, and one participant may take an eighth of the process's time as excess, all
together a quarter. Both are kept as the time at which the excess will be repaid, as in
`core/rates`. A participant that owes nothing is never delayed; one that does has to wait for its
turn, and one that owes too much is not read until it has repaid. The more all together owe, the
longer it takes one to repay the same excess: so those who take the most wait the longest.

A single text may take longer than everything else in a tick, and that cannot be interrupted. So
such texts of all participants share a sixteenth of the time, newcomers too: while it is used up, a
large text waits unless its shape shows that it is cheap.

Time that filters take is charged to the participants whose filters they are, not to the sender. But
the sender's texts caused it: while they do, they wait for their turns behind those of others.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

FREE_SECONDS_PER_TEXT: Final = 100e-6
FREE_SECONDS_PER_BYTE: Final = 4e-9
_SHARE_OF_ONE: Final = 0.125
_SHARE_OF_ALL: Final = 0.25
_BURST_SECONDS: Final = 0.02  # of excess that is allowed at once
# Excess costs one more time as much for each of these that all together owe, up to so many times.
_CONTENTION_SECONDS: Final = 0.1
_MOST: Final = 1000.0
# Work in one tick of the event loop; then only those who owe nothing and send little go on.
_TICK_SECONDS: Final = 0.004
# Work after which nothing more is read in a tick: many who send little may still cause much.
_FULL_TICK_SECONDS: Final = 0.012
# Of the time, for texts that take longer than that: of those of 60 ms, one a second.
_SHARE_OF_LONG: Final = 0.0625
# A text with this many bytes may be one of them. What a value of JSON takes at most.
LARGE_BYTES: Final = 65_536
_SECONDS_PER_VALUE: Final = 0.5e-6
# What evaluating a part of a filter takes at most; see `FilterWork`.
_SECONDS_PER_PART: Final = 0.3e-6
_SHARED_OUT_SECONDS: Final = 0.002


class CpuAccount:
    """What one participant owes: the time at which its excess is repaid.

    `caused_seconds` is the excess of its texts that evaluated filters lately, also where others owe
    it.
    """

    __slots__ = ("caused_seconds", "repaid_at")

    def __init__(self) -> None:
        self.repaid_at = 0.0
        self.caused_seconds = 0.0


class CpuBudget:
    """Excess of all participants. Owns the sums; accounts are the caller's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.cpu_clock = time.thread_time  # elapsed time depends on the load of the machine
        self.excess_seconds = 0.0  # since the start
        self._repaid_at = 0.0
        self.long_repaid_at = 0.0  # when the next text may take longer than a tick
        self.tick_is_used = False  # whether it has no more time for those who owe or send much
        self.tick_is_full = False  # whether it has no more time for any
        self._tick_seconds = 0.0
        self._filter_seconds = 0.0  # not yet charged to the filters' owners

    def start_tick(self) -> None:
        """Start a new tick of the event loop."""
        self._tick_seconds = 0.0
        self.tick_is_used = self.tick_is_full = False

    def wait(self, account: CpuAccount, now: float) -> float:
        """Return the seconds until a participant may be read again, 0 if it may now."""
        return max(0.0, account.repaid_at - now - _BURST_SECONDS / _SHARE_OF_ONE)

    def measure(self, began: float, cpu_began: float, free: float) -> float:
        """Return the CPU time since two clocks were read, beyond what is free.

        CPU time is never more than elapsed time, which is cheaper to read and almost always short
        enough.
        """
        elapsed = self.clock() - began
        self._tick_seconds += elapsed
        if self._tick_seconds >= _TICK_SECONDS:
            self.tick_is_used = True
            self.tick_is_full = self._tick_seconds >= _FULL_TICK_SECONDS
        return 0.0 if elapsed <= free else max(0.0, self.cpu_clock() - cpu_began - free)

    def charge(self, account: CpuAccount, excess: float, now: float) -> None:
        """Charge a participant for excess."""
        self.excess_seconds += excess
        if excess > _TICK_SECONDS:
            self.long_repaid_at = max(self.long_repaid_at, now) + excess / _SHARE_OF_LONG
        owed_by_all = max(0.0, self._repaid_at - now)
        factor = min(_MOST, 1 + owed_by_all / _CONTENTION_SECONDS)
        account.repaid_at = max(account.repaid_at, now) + excess / _SHARE_OF_ONE * factor
        self._repaid_at = now + owed_by_all + excess / _SHARE_OF_ALL

    def charge_filters(
        self,
        excess: float,
        evaluated: int,
        owners: Callable[[], Iterable[tuple[CpuAccount, float]]],
        now: float,
    ) -> float:
        """Charge filters' owners with their part of an excess; return what is the sender's.

        `owners` returns each owner's account with its share.
        """
        filters = min(excess, evaluated * _SECONDS_PER_PART)
        self._filter_seconds += filters
        if self._filter_seconds >= _SHARED_OUT_SECONDS:
            seconds, self._filter_seconds = self._filter_seconds, 0.0
            for account, share in owners():
                self.charge(account, seconds * share, now)
        return excess - filters


def may_be_long(text: bytes) -> bool:
    """Return whether deciding on a text may take longer than a tick, from the values in it."""
    values = sum(map(text.count, (b",", b"[", b"{")))
    return values * _SECONDS_PER_VALUE > _TICK_SECONDS
