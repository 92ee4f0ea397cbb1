"""The read quota: how much the gateway reads in a tick, and from one participant in a second.

A participant that exceeds a quota is not disconnected. Its connection is paused: what it sends
waits in the system's buffers and then at the sender, and nothing is lost. Three rules:

- A tick reads `tick_bytes` over all connections. The rest waits for its turn in the next tick, so
  that the writes of one tick never fill the outbox of a reader that keeps up (G-38).
- A participant may send 500 frames a second that cost it no rate token: texts refused for the rate,
  control frames and fragments (C-16). Above that it is not read until the next second.
- CPU time above a free share is charged as such frames (G-47), so that a participant has a quarter
  of each second for expensive texts; and a tenth of that once all together have used as much. (A
  small envelope takes 6 µs; a megabyte of records 8 ms, of the costliest numbers to check 200.)
"""

import time
from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from mcpp_gateway.core.sessions import Member

_FREE_FRAMES_PER_SECOND: Final = 500
_FREE_SECONDS_PER_TEXT: Final = 100e-6
_FREE_SECONDS_PER_BYTE: Final = 4e-9
_EXCESS_SECONDS: Final = 0.25
_FRAMES_PER_EXCESS_SECOND: Final = _FREE_FRAMES_PER_SECOND / _EXCESS_SECONDS
_BUSY_FACTOR: Final = 10


class Scheduler(Protocol):
    """The part of an event loop that the hub and the quota need."""

    def call_soon(self, callback: Any, *args: Any) -> object:
        """Call back in the next tick."""

    def call_later(self, delay: float, callback: Any, *args: Any) -> object:
        """Call back after `delay` seconds."""


class PausableConnection(Protocol):
    """A connection that can stop reading for a while."""

    def pause_reading(self) -> None:
        """Read no more until `resume_reading`."""

    def resume_reading(self) -> None:
        """Read on, starting with what was received and not yet parsed."""


class ReadAccount:
    """What one participant has left of this second's quota, over all of its connections.

    Texts refused for the rate are counted by the pod; everything else is charged here.
    """

    __slots__ = ("limit", "second")

    def __init__(self, member: Member, second: int) -> None:
        self.renew(member, second)

    def renew(self, member: Member, second: int) -> None:
        """Start a new second with a full quota."""
        self.second = second
        self.limit: float = member.rate_limited + _FREE_FRAMES_PER_SECOND

    def is_exhausted(self, member: Member) -> bool:
        """Whether the participant has used up its quota of this second."""
        return member.rate_limited > self.limit

    def charge_frame(self) -> None:
        """Charge a frame that costs no rate token."""
        self.limit -= 1


class ReadQuota:
    """Decides how much is read. Owns the counters and the connections that are paused."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        *,
        tick_bytes: int,
        unwritten_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.clock = clock
        self.cpu_clock = time.thread_time  # elapsed time depends on the load of the machine
        self.tick_bytes = tick_bytes
        self.tick_read_bytes = 0
        self.read_bytes = 0  # since the start
        self.second = 0  # number of the present second; accounts of an older one are renewed
        self._scheduler = scheduler
        self._unwritten_bytes = unwritten_bytes
        self._accounts: WeakKeyDictionary[Member, ReadAccount] = WeakKeyDictionary()
        self._excess_seconds = 0.0  # in this second, of all participants
        self._until_next_second: set[PausableConnection] = set()
        self._turns: dict[PausableConnection, None] = {}  # in order
        self._turns_scheduled = False

    def account(self, member: Member) -> ReadAccount:
        """Return the account that all connections of a participant share."""
        account = self._accounts.get(member)
        if account is None:
            account = self._accounts[member] = ReadAccount(member, self.second)
        return account

    def renew(self, account: ReadAccount, member: Member) -> None:
        """Start a new second of an account if it has begun since."""
        if account.second != self.second:
            account.renew(member, self.second)

    @property
    def room_bytes(self) -> int:
        """How much may still be read in this tick; negative if it was exceeded."""
        return self.tick_bytes - self.tick_read_bytes

    def charge(
        self, account: ReadAccount, now: float, cpu_now: float, texts: int, size: int
    ) -> None:
        """Charge a chunk: its texts, its bytes and the CPU time since it was received.

        `now` and `cpu_now` are the readings of both clocks when it was received. CPU time is never
        more than elapsed time, which is cheaper to read and almost always short enough.
        """
        self.tick_read_bytes += size
        self.read_bytes += size
        free = texts * _FREE_SECONDS_PER_TEXT + size * _FREE_SECONDS_PER_BYTE
        if self.clock() - now <= free:
            return
        excess = self.cpu_clock() - cpu_now - free
        if excess > 0:
            self._excess_seconds += excess
            factor = _BUSY_FACTOR if self._excess_seconds > _EXCESS_SECONDS else 1
            account.limit -= excess * _FRAMES_PER_EXCESS_SECOND * factor

    def pause_for_turn(self, connection: PausableConnection) -> None:
        """Stop reading from a connection until its turn in the next tick."""
        connection.pause_reading()
        self._turns[connection] = None
        self.resume_turns()

    def pause_for_second(self, connection: PausableConnection) -> None:
        """Stop reading from a connection until the next second."""
        connection.pause_reading()
        self._until_next_second.add(connection)

    def forget(self, connection: PausableConnection) -> None:
        """Forget a connection that is closed."""
        self._until_next_second.discard(connection)
        self._turns.pop(connection, None)

    def start_tick(self) -> None:
        """Start a new tick: its quota of bytes is full again, less what the log has to write."""
        self.tick_read_bytes = self._unwritten_bytes()

    def start_second(self) -> None:
        """Start a new second: renew every account and resume the connections that wait for it."""
        self.second += 1
        self._excess_seconds = 0.0
        waiting, self._until_next_second = self._until_next_second, set()
        for connection in waiting:
            connection.resume_reading()

    def _give_turns(self) -> None:
        """Resume connections in order until the tick is full; the rest keep their place."""
        self.start_tick()
        self._turns_scheduled = False
        for connection in list(self._turns):
            if self.tick_read_bytes > self.tick_bytes:
                break
            self._turns.pop(connection, None)
            connection.resume_reading()
        self.resume_turns()

    def resume_turns(self) -> None:
        """Let paused connections have their turns soon, unless the log has too much to write."""
        if self._unwritten_bytes() <= self.tick_bytes:
            self._schedule_turns()

    def _schedule_turns(self) -> None:
        if self._turns and not self._turns_scheduled:
            self._turns_scheduled = True
            self._scheduler.call_soon(self._give_turns)
