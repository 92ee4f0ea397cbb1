"""Pages of history that are read from memory, in turns.

Reading a page may take milliseconds, and a request for one is short. So requests wait here, in
order, and a tick reads for a few milliseconds. A page ends early when that time is over and says
where to go on. The time is charged to the participant that asked (G-65).
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from mcpp_gateway.core.effects import Effect, ReadHistory
from mcpp_gateway.edge.peer import Peer
from mcpp_gateway.edge.read_quota import ReadQuota, Scheduler

_TURN_SECONDS: Final = 0.003  # in one tick
_FREE_SECONDS: Final = 0.0005  # for one page


class PageTurns:
    """Reads pages and lets pods answer with them. Owns the requests that wait."""

    def __init__(
        self, scheduler: Scheduler, quota: ReadQuota, perform: Callable[[Iterable[Effect]], None]
    ) -> None:
        self._scheduler = scheduler
        self._quota = quota
        self._perform = perform
        self._waiting: deque[ReadHistory] = deque()
        self._is_soon = False
        self._is_later = False

    def add(self, request: ReadHistory) -> None:
        """Have the page of a request read when its turn comes."""
        self._waiting.append(request)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_soon:
            self._is_soon = True
            self._scheduler.call_soon(self._read)

    def _schedule_later(self, wait: float) -> None:
        if not self._is_later:
            self._is_later = True
            self._scheduler.call_later(wait, self._read_later)

    def _read_later(self) -> None:
        self._is_later = False
        self._schedule()

    def _read(self) -> None:
        """Read for a part of a tick; who owes processor time waits until it is repaid."""
        self._is_soon = False
        budget = self._quota.budget
        now = budget.clock()
        until = now + _TURN_SECONDS
        waits: list[float] = []
        for _ in range(len(self._waiting)):
            request = self._waiting.popleft()
            peer: Peer = request.session.peer
            wait = budget.wait(peer.account, now)
            if request.query.words is not None:  # one long text may take longer than a tick
                wait = max(wait, budget.long_repaid_at - now)
            if wait > 0 and not peer.closed:
                waits.append(wait)
                self._waiting.append(request)
                continue
            self._read_page(request, peer, now)
            now = budget.clock()
            if now >= until:
                break
        if waits:
            self._schedule_later(min(waits))
        if len(waits) < len(self._waiting):
            self._schedule()

    def _read_page(self, request: ReadHistory, peer: Peer, began: float) -> None:
        budget = self._quota.budget
        cpu_clock, cpu_began = budget.cpu_clock, budget.cpu_clock()
        until = cpu_began + _TURN_SECONDS  # of work: other processes must not make pages short
        effects = peer.pod.history.read(request, began, lambda: cpu_clock() < until)
        excess = budget.measure(began, cpu_began, _FREE_SECONDS)
        if excess:
            budget.charge(peer.account, excess, began)
        self._perform(effects)
