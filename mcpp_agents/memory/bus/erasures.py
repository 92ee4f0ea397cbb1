"""Erasures from a pod's log (H-14): receiving them, finding those that were missed, applying them.

An erasure covers what precedes it in the log. The clocks of senders do not tell what that is, and
messages arrive without their positions. But whoever reads a log in order knows the last erasure so
far: what is stored names it, and neither that one nor an earlier one covers it.
"""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

import anyio.to_thread

from mcpp import Gap, McppError, Message, Pod, Refused, kinds
from mcpp_agents.memory.auditing import LogPlace
from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.requests import LogErasure
from mcpp_agents.memory.store import MemoryStore

logger = logging.getLogger("mcpp.memory")

T = TypeVar("T")


class PodErasures:
    """The erasures of one pod that its participant has received. Owns the time of the last one."""

    def __init__(self, pod: Pod, store: MemoryStore | None) -> None:
        """Describe whose erasures these are; a participant without a store has nothing to erase.

        Args:
            pod: the pod.
            store: the memory, acting as the pod.
        """
        self.last: float | None = None
        self._pod = pod
        self._store = store
        self._applied: list[LogErasure] = []
        # Before the first message there may be more than is replayed.
        self._may_have_missed = store is not None

    async def find(self, item: Message | Gap) -> list[LogErasure]:
        """Return the erasures that precede an item and were not applied, and what it announces.

        Call it with everything that is received, in order, and then `apply`. Those that were not
        received are looked for in the history, with the first message after joining and after a
        gap. An error is logged, and the next message tries again.
        """
        if isinstance(item, Gap):
            self._may_have_missed = True
            return []
        found = await self._missed(item.id) if self._may_have_missed else []
        if item.kind == kinds.ERASED:
            found.append(LogErasure.of(item.envelope))
        return found

    async def apply(self, erasures: Iterable[LogErasure]) -> None:
        """Erase what erasures cover. What is stored from now on follows them."""
        new = list(erasures)
        self._applied += new
        self.last = max((each.at for each in self._applied), default=None)
        await self._erase(new)

    async def store(self, write: Callable[[], T], *, after: float | None) -> T:
        """Call a function in a thread that stores something received when `after` was the last.

        An erasure may have come meanwhile: it covers what was stored.
        """
        result = await anyio.to_thread.run_sync(write)
        if self.last != after:
            await self._erase([one for one in self._applied if after is None or one.at > after])
        return result

    def place(self, context: str | None) -> LogPlace:
        """Return the place in the log of what is received now, in a live context or in none."""
        lineage: list[str] = []
        while context is not None and context not in lineage:
            lineage.append(context)
            known = self._pod.contexts.get(context)
            context = None if known is None else known.parent
        return LogPlace(self.last, tuple(reversed(lineage)))

    async def _missed(self, before: str) -> list[LogErasure]:
        past = self._pod.history({"kind": kinds.ERASED}, before=before)
        try:
            found = [LogErasure.of(message.envelope) async for message in past]
        except McppError as error:
            # The gateway sends some messages that are in no log: the next one tells.
            if not (isinstance(error, Refused) and error.code == "invalid_history"):
                logger.warning("cannot read which entries of the log were erased: %s", error)
            return []
        self._may_have_missed = False
        return [each for each in found if self.last is None or each.at > self.last]

    async def _erase(self, erasures: list[LogErasure]) -> None:
        if self._store is None or not erasures:
            return
        try:
            count = await anyio.to_thread.run_sync(self._store.erase_recorded, erasures)
        except MemoryStoreError as error:
            logger.error("cannot erase what the log has erased: %s", error)  # noqa: TRY400
        else:
            if count:
                logger.info("erased %d memories of what the log has erased", count)
