"""Keeps the copy of a pod's log up to date, and lets the pod's journal read from it."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final
from zlib import crc32

from mcpp_gateway.cluster.log_copy import LogCopy
from mcpp_gateway.cluster.nats_link import LinkError
from mcpp_gateway.cluster.streams import Streams
from mcpp_gateway.core.cluster.journal import ClusterJournal
from mcpp_gateway.storage.segments import DamagedError

logger = logging.getLogger("mcpp.gateway")

_RETAIN_SECONDS: Final = 60.0
_PROGRESS_RECORDS: Final = 20_000  # for a line


class PodArchive:
    """The archive of one pod. Owns the copy and the tasks that write it.

    What takes time runs on the executor. A record that comes live is taken at once; what is missing
    before it is read from the stream.
    """

    def __init__(
        self,
        pod: str,
        copy: LogCopy,
        streams: Streams,
        *,
        journal: ClusterJournal,
        executor: Executor,
        retain: Callable[[LogCopy], None],
    ) -> None:
        self.copy = copy
        self._pod = pod
        self._streams = streams
        self._journal = journal
        self._executor = executor
        self._retain = retain
        self._epoch: str | None = None  # with which the copy of an earlier run was read
        self._retained_at = 0.0
        self._is_open = False  # takes records
        self._is_complete = False  # has taken those from before it was opened
        self._task: asyncio.Task[None] | None = None

    async def recover(self, epoch: str) -> None:
        """Read the copy of an earlier run; one of another log is dropped."""
        if epoch != self._epoch and not self._is_open:
            self._epoch = epoch
            try:
                await self._run(self.copy.open, epoch)
            except OSError as error:
                self.copy.fail(str(error))

    def shows_loss(self) -> bool:
        """Return whether the copy of an earlier run ends with an entry that the log does not hold.

        Of an entry that is not in memory, this is not known.
        """
        copy, journal = self.copy, self._journal
        last = copy.end - 1
        if copy.has_failed or not copy.start <= last or last < journal.start:
            return False
        if last >= journal.end:
            return True
        try:
            return copy.read(last, last + 1)[0].id != journal.read(last, 1)[0].id
        except DamagedError:
            return False

    async def open(self, end: int) -> None:
        """Go on with the copy that was recovered, up to a record of the stream. Raises LinkError.

        If it is not of this stream, it is begun again.
        """
        copy = self.copy
        try:
            if not self._is_open and (self.shows_loss() or not await self._is_of_stream()):
                await self._run(copy.reset, self._epoch, await self._streams.first(self._pod))
            self._is_open = True
            await self._catch_up(end)
        except OSError as error:
            copy.fail(str(error))
        self._is_complete = True

    def take(self, sequence: int, record: bytes) -> None:
        """Take a record that was applied."""
        if self._is_open:
            self.copy.take(sequence, record)

    def has(self, end: int) -> bool:
        """Return whether everything up to a record is written."""
        return self.copy.sequence >= end and not self.copy.is_waiting

    def step(self, end: int, now: float) -> None:
        """Do what is due, about ten times a second. `end` is the last record that was applied."""
        copy = self.copy
        if copy.has_failed:
            self._journal.archive = None
        elif self._is_complete and self._task is None:
            is_old = now - self._retained_at >= _RETAIN_SECONDS
            if copy.is_waiting or is_old or copy.sequence < end:
                self._retained_at = now if is_old else self._retained_at
                self._task = asyncio.ensure_future(self._work(end, is_old=is_old))

    async def close(self) -> None:
        """Write what waits, and close the files."""
        if self._task is not None:
            await asyncio.wait([self._task])
        self._journal.archive = None
        if self._is_open:
            await self._run(self.copy.close)

    # --- private --------------------------------------------------------------------------------

    async def _work(self, end: int, *, is_old: bool) -> None:
        try:
            await self._catch_up(end)
            if is_old:
                await self._run(self._retain, self.copy)
        except (LinkError, OSError) as error:
            logger.warning("cannot copy the log", extra={"pod": self._pod, "reason": str(error)})
        finally:
            self._task = None

    async def _catch_up(self, end: int) -> None:
        copy = self.copy
        begun_at = copy.sequence
        while copy.sequence < end and not copy.has_failed:
            found = await self._streams.read(self._pod, copy.sequence + 1)
            if not found:
                break
            if found[0][0] > copy.sequence + 1:  # deleted before it was copied
                self._journal.archive = None
                await self._run(copy.reset, self._epoch, found[0][0])
            before = copy.sequence
            for sequence, data in found:
                copy.take(sequence, data)
            await self._run(copy.write)
            if copy.sequence // _PROGRESS_RECORDS > before // _PROGRESS_RECORDS:
                done = (copy.sequence - begun_at) / (end - begun_at)
                logger.info("copying the log of pod %s: %d %%", self._pod, 100 * done)
        await self._run(copy.write)
        if not copy.has_failed:
            self._journal.archive = copy

    async def _is_of_stream(self) -> bool:
        """Return whether the stream holds the last record that was copied, at its place."""
        copy = self.copy
        if not copy.sequence:
            return await self._streams.first(self._pod) <= 1
        stream = self._streams.log_stream(self._pod)
        found = await self._streams.stored(stream, seq=copy.sequence)
        return found is not None and crc32(found[1]) == copy.checksum

    async def _run(self, function: Callable[..., None], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
