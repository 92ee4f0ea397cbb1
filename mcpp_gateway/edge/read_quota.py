"""The read quota: how much the gateway reads in a tick, and from one participant in a second.

A participant that exceeds a quota is not disconnected. Its connection is paused: what it sends
waits in the system's buffers and then at the sender, and nothing is lost. Three rules:

- A tick reads `tick_bytes` over all connections. The rest waits for its turn in the next tick, so
  that the writes of one tick never fill the outbox of a reader that keeps up (G-38).
- A participant may send 500 frames a second that cost it no rate token: texts refused for the rate,
  control frames and fragments (C-16). Above that it is not read until the next second.
- CPU time is limited by `CpuBudget`: who owes waits for a turn, or until it has repaid (G-65).
  Those who owe nothing and send little have their turns first. Texts that may take long are read
  one after the other, as the budget allows, from those who have used the least of it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.rates import Bucket
from mcpp_gateway.core.sessions import Member
from mcpp_gateway.edge.cpu_budget import CpuAccount, CpuBudget

_FREE_FRAMES_PER_SECOND: Final = 500
SMALL_BYTES: Final = 1024
_SHORTEST_WAIT_SECONDS: Final = 0.005
# Who has caused more excess with filters lately has its turn behind others. Half of it is
# forgotten each second. Other excess is the sender's own debt.
_CAUSED_SECONDS: Final = 0.0003


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


class ReadAccount(CpuAccount):
    """What one participant has left of this second's quota, over all of its connections.

    Texts refused for the rate are counted by the pod; everything else is charged here.
    """

    __slots__ = ("limit", "second")

    def __init__(self, member: Member, second: int) -> None:
        super().__init__()
        self.second = second
        self.renew(member, second)

    def renew(self, member: Member, second: int) -> None:
        """Start a new second with a full quota."""
        self.caused_seconds *= 0.5 ** min(second - self.second, 64)
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
        self.budget = CpuBudget(clock)
        self.tick_bytes = tick_bytes
        self.tick_read_bytes = 0
        self.read_bytes = 0  # since the start
        self.second = 0  # number of the present second; accounts of an older one are renewed
        self._scheduler = scheduler
        self._unwritten_bytes = unwritten_bytes
        # By the participants' buckets, which outlive their sessions.
        self._accounts: WeakKeyDictionary[Bucket, ReadAccount] = WeakKeyDictionary()
        self._in_debt: dict[PausableConnection, CpuAccount] = {}
        self._debts_scheduled = False
        self._until_next_second: set[PausableConnection] = set()
        self._turns: dict[PausableConnection, None] = {}  # in order
        self._first_turns: dict[PausableConnection, None] = {}  # of those who send little
        self._turns_scheduled = False
        self._with_large_texts: dict[PausableConnection, CpuAccount] = {}  # by arrival
        self._large_scheduled = False

    def account(self, member: Member) -> ReadAccount:
        """Return the account that all connections of a participant share."""
        account = self._accounts.get(member.bucket)
        if account is None:
            account = self._accounts[member.bucket] = ReadAccount(member, self.second)
        return account

    def join_wait(self, bucket: Bucket | None) -> float:
        """Return the seconds until the participant of a bucket may cause more work."""
        account = None if bucket is None else self._accounts.get(bucket)
        return 0.0 if account is None else self.budget.wait(account, self.budget.clock())

    def renew(self, account: ReadAccount, member: Member) -> None:
        """Start a new second of an account if it has begun since."""
        if account.second != self.second:
            account.renew(member, self.second)

    @property
    def room_bytes(self) -> int:
        """How much may still be read in this tick; negative if it was exceeded."""
        return self.tick_bytes - self.tick_read_bytes

    def count_read(self, size: int) -> None:
        """Count the bytes of a chunk."""
        self.tick_read_bytes += size
        self.read_bytes += size

    def charge(
        self, pod: PodCore, account: ReadAccount, excess: float, evaluated: int, now: float
    ) -> None:
        """Charge excess CPU time to a sender, and what filters took of it to their owners."""
        if evaluated:
            account.caused_seconds += excess
            owners = partial(self._filter_owners, pod)
            excess = self.budget.charge_filters(excess, evaluated, owners, now)
        if excess:
            self.budget.charge(account, excess, now)

    def _filter_owners(self, pod: PodCore) -> Iterator[tuple[CpuAccount, float]]:
        """Yield the accounts of those whose filters a pod evaluates, with their shares."""
        owners = pod.filter_owners()
        total = sum(owners.values())
        for member, weight in owners.items():
            yield self.account(member), weight / total

    def has_turn(self, account: ReadAccount, size: int, now: float) -> bool:
        """Whether a chunk may be read now: there is time, or it is small and its sender owes none.

        So who sends one envelope does not wait for those who send many, or expensive ones (G-65).
        In a tick that has read enough bytes there is no turn for any. A chunk that waits for that
        costs its sender nothing, so it comes first in the next tick if it is small.
        """
        if account.repaid_at > now and self.budget.wait(account, now):
            return False
        if self.tick_read_bytes > self.tick_bytes:
            return False
        if not self.budget.tick_is_used:
            return True
        return not self.budget.tick_is_full and _comes_first(account, size, now)

    def pause_for_debt(self, connection: PausableConnection, account: CpuAccount) -> None:
        """Stop reading from a connection until its participant has repaid enough."""
        connection.pause_reading()
        self._in_debt[connection] = account
        if not self._debts_scheduled:
            self._debts_scheduled = True
            self._scheduler.call_later(_SHORTEST_WAIT_SECONDS, self._resume_repaid)

    def pause_for_turn(
        self, connection: PausableConnection, account: CpuAccount, size: int, now: float
    ) -> None:
        """Stop reading from a connection until its turn in the next tick, for so many bytes."""
        connection.pause_reading()
        is_first = _comes_first(account, size, now)
        (self._first_turns if is_first else self._turns)[connection] = None
        self.resume_turns()

    def pause_for_large_text(self, connection: PausableConnection, account: CpuAccount) -> None:
        """Stop reading from a connection until its large text may take long."""
        connection.pause_reading()
        self._with_large_texts[connection] = account
        self._schedule_large_text()

    def pause_for_second(self, connection: PausableConnection) -> None:
        """Stop reading from a connection until the next second."""
        connection.pause_reading()
        self._until_next_second.add(connection)

    def forget(self, connection: PausableConnection) -> None:
        """Forget a connection that is closed."""
        self._until_next_second.discard(connection)
        self._turns.pop(connection, None)
        self._first_turns.pop(connection, None)
        self._in_debt.pop(connection, None)
        self._with_large_texts.pop(connection, None)

    def start_tick(self) -> None:
        """Start a new tick: its quota of bytes is full again, less what the log has to write."""
        self.tick_read_bytes = self._unwritten_bytes()
        self.budget.start_tick()

    def start_second(self) -> None:
        """Start a new second: renew every account and resume the connections that wait for it."""
        self.second += 1
        waiting, self._until_next_second = self._until_next_second, set()
        for connection in waiting:
            connection.resume_reading()

    def _give_turns(self) -> None:
        """Resume connections in order until the tick is full; the rest keep their place."""
        self.start_tick()
        self._turns_scheduled = False
        budget = self.budget
        for turns in (self._first_turns, self._turns):
            for connection in list(turns):
                is_used = budget.tick_is_full if turns is self._first_turns else budget.tick_is_used
                if is_used or self.tick_read_bytes > self.tick_bytes:
                    break
                turns.pop(connection, None)
                connection.resume_reading()
        self.resume_turns()

    def _schedule_large_text(self) -> None:
        if self._with_large_texts and not self._large_scheduled:
            self._large_scheduled = True
            wait = self.budget.long_repaid_at - self.budget.clock()
            self._scheduler.call_later(max(0.0, wait), self._resume_large_text)

    def _resume_large_text(self) -> None:
        """Read the large text of the participant that has used the least, if it may take long."""
        self._large_scheduled = False
        waiting = self._with_large_texts
        if waiting and self.budget.long_repaid_at <= self.budget.clock():
            connection = min(waiting, key=lambda each: waiting[each].repaid_at)
            del waiting[connection]
            connection.resume_reading()
        self._schedule_large_text()

    def _resume_repaid(self) -> None:
        """Give those a turn that have repaid, and look at the others again when the first has."""
        self._debts_scheduled = False
        now = self.budget.clock()
        waits = {each: self.budget.wait(owed, now) for each, owed in self._in_debt.items()}
        for connection, wait in waits.items():
            if not wait:
                del self._in_debt[connection]
                self._turns[connection] = None
        self.resume_turns()
        if self._in_debt:
            self._debts_scheduled = True
            soonest = min(waits[each] for each in self._in_debt)
            wait = max(_SHORTEST_WAIT_SECONDS, soonest)
            self._scheduler.call_later(wait, self._resume_repaid)

    def resume_turns(self) -> None:
        """Let paused connections have their turns soon, unless the log has too much to write."""
        if self._unwritten_bytes() <= self.tick_bytes:
            self._schedule_turns()

    def _schedule_turns(self) -> None:
        if (self._turns or self._first_turns) and not self._turns_scheduled:
            self._turns_scheduled = True
            self._scheduler.call_soon(self._give_turns)


def _comes_first(account: CpuAccount, size: int, now: float) -> bool:
    """Return whether a participant sends little, owes nothing, and has not caused much work."""
    return (
        size <= SMALL_BYTES
        and account.repaid_at <= now
        and account.caused_seconds <= _CAUSED_SECONDS
    )
