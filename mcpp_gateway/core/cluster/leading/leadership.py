"""Leadership: which gateway decides for a pod, and when another one claims it.

The log itself says who leads: the last claim with a term higher than all before it. A batch counts
only if its term is that of the last claim and its index is the next; otherwise it is void for
everybody. Two integers, no lease and no compare-and-set: a record of a leader that was replaced, a
repeated one, and one behind a record that was lost are all recognised from the log alone.
"""

from hashlib import blake2b
from typing import Any, TypeVar

from mcpp_gateway.core.cluster.records import BareBatch, Claim, ClusterBatch, shows_loss
from mcpp_gateway.core.records import Batch, BatchHead

R = TypeVar("R", BareBatch | Claim, ClusterBatch | Claim)


class Fence:
    """Which records of the log count. Changed by those that do."""

    def __init__(self, term: int = 0, index: int = 0, leader: str | None = None) -> None:
        self.term = term
        self.index = index  # of the next batch
        self.leader = leader

    def admits(self, batch: Batch | BatchHead) -> bool:
        """Return whether a batch counts; if so, the one after it is expected next."""
        if batch.term != self.term or batch.index != self.index:
            return False
        self.index += 1
        return True

    def admits_claim(self, claim: Claim) -> bool:
        """Return whether a claim counts; if so, its gateway leads from here on."""
        if claim.term <= self.term:
            return False
        self.term, self.leader = claim.term, claim.gateway
        return True


class StreamFence:
    """Which records of a stream count, if its beginning may have been deleted (N-11).

    A batch says what its leader knew about the records before it. Until the first one that does,
    records are kept and not judged.
    """

    def __init__(self, first: int = 1, fence: Fence | None = None) -> None:
        # What came before a stream's first record is unknown, unless it is the very first.
        self.fence = fence or (Fence() if first == 1 else None)
        self._first = first
        self._unjudged: list[tuple[int, Any]] = []

    def take(self, sequence: int, record: R) -> list[R]:
        """Take the next record; return those that count: this one, or some before it, too."""
        if self.fence is not None:
            return [record] if _admits(self.fence, record) else []
        self._unjudged.append((sequence, record))
        if isinstance(record, Claim) or record.applied < self._first - 1:
            return []
        if shows_loss(sequence, record):
            return []  # its leader knew records that are not in this stream (N-14)
        fence = self.fence = Fence(record.batch.term, record.expected)
        waiting, self._unjudged = self._unjudged, []
        return [each for at, each in waiting if at > record.applied and _admits(fence, each)]


def _admits(fence: Fence, record: BareBatch | ClusterBatch | Claim) -> bool:
    return fence.admits_claim(record) if isinstance(record, Claim) else fence.admits(record.batch)


class Silence:
    """How long gateways have not been heard of, in time that this gateway itself was running.

    A gateway that was suspended for a while must not suspect all others when it goes on.
    """

    def __init__(self, longest_step_seconds: float = 0.25) -> None:
        self._longest_step = longest_step_seconds
        self._last: float | None = None
        self._now = 0.0
        self._heard: dict[str, float] = {}
        self._followers: set[str] = set()  # those that never lead

    def advance(self, now: float) -> None:
        """Let time pass."""
        if self._last is not None:
            self._now += min(max(0.0, now - self._last), self._longest_step)
        self._last = now

    def hear(self, gateway: str, *, may_lead: bool = True) -> None:
        """Take note of a sign of life. A gateway of an older version does not lead (N-09)."""
        self._heard[gateway] = self._now
        if may_lead:
            self._followers.discard(gateway)
        else:
            self._followers.add(gateway)

    def end(self, gateway: str) -> None:
        """Take note that a gateway is not reachable."""
        self._heard[gateway] = float("-inf")

    def seconds(self, gateway: str) -> float:
        """Return for how long a gateway has been silent; it is counted from the first question."""
        return self._now - self._heard.setdefault(gateway, self._now)

    def alive(self, within_seconds: float) -> list[str]:
        """Return the gateways that were heard of lately."""
        limit = self._now - within_seconds
        return [gateway for gateway, heard in self._heard.items() if heard >= limit]

    def candidates(self, within_seconds: float) -> list[str]:
        """Return those of them that may lead."""
        return [each for each in self.alive(within_seconds) if each not in self._followers]

    def forget(self, before_seconds: float) -> None:
        """Forget the gateways that have been silent for very long."""
        limit = self._now - before_seconds
        for gateway in [each for each, heard in self._heard.items() if heard < limit]:
            del self._heard[gateway]
            self._followers.discard(gateway)


def ranking(pod: str, gateways: list[str]) -> list[str]:
    """Return gateways in the order in which they should lead a pod: a different one for each pod.

    It only avoids that several claim at once, and spreads the pods; any order would be safe.
    """
    return sorted(set(gateways), key=lambda each: blake2b(f"{pod} {each}".encode()).digest())
