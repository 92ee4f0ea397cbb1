"""Group commit: batches are written and synced on a thread, in groups.

The event loop collects what a tick accepts into one batch. While one group is being synced, the
batches of further ticks wait and become the next group, so the cost of a sync is shared by all that
arrived during the one before. Nothing is committed before its sync has returned. A write or a sync
that fails is never retried: after a failed sync the kernel may have dropped the data, and reports
that only once. The process ends instead, and recovery finds out what there is. When nothing waits
any more, a mark behind the last group says that it is synced.
"""

import asyncio
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, NamedTuple

from mcpp_gateway.core.records import Batch, LogEntry, State, encode_batch, encode_state
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import BATCH, STATE, NewRecord

# What a batch takes beyond its entries' texts, estimated generously: lists, names and headers.
_ENTRY_BYTES: Final = 512
# Where there is no space for a new segment, the old one goes on; a state is not made for nothing.
_ROLL_RETRY_SECONDS: Final = 10.0
_MUCH_TO_READ_BYTES: Final = 1 << 20  # about 20 ms of recovery


class _Job(NamedTuple):
    """One batch or state for the writing thread; without one, it looks after space and age.

    A state is encoded there, because that takes long.
    """

    record: NewRecord | State | None = None
    size_bytes: int = 0  # as counted when the entries were appended


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """When the writer syncs, rolls and deletes segments."""

    # None: every group is synced before it is committed. Otherwise groups are committed once they
    # are written, and a power failure may lose what was committed in this time and one sync.
    sync_interval_seconds: float | None = None
    segment_seconds: float = 86_400.0
    reserve_bytes: int = 16 << 20
    max_age_seconds: float | None = None
    max_bytes: int | None = None


class Unwritten:
    """The batches that wait to be written, over all logs.

    The gateway reads no more while this is large.
    """

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes = 0


class GroupWriter:
    """Makes the entries of one pod durable. Owns the batches that wait to be written.

    Methods are called on the event loop's thread; `_write_group` and below run on the executor's,
    one call at a time.
    """

    def __init__(
        self,
        log: SegmentLog,
        options: WriterOptions,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        clock: Callable[[], float],
        on_failure: Callable[[BaseException], None],
        unwritten: Unwritten,
    ) -> None:
        self._log = log
        self._options = options
        self._loop = loop
        self._executor = executor
        self._clock = clock
        self._on_failure = on_failure
        self._unwritten = unwritten
        self._on_commit: Callable[[int], None]
        self._snapshot: Callable[[int], State]
        self._term = 0
        self._index = 0
        self._end = 0
        self._entries: list[LogEntry] = []
        self.unwritten_bytes = 0  # of what was appended and is not yet known to be written
        self._sealed_bytes = 0  # of them, those in batches
        self.room_bytes = 0  # that participants may fill, as of the last group
        self._roll_due = False
        self._roll_not_before = 0.0  # after one that found no space
        self._sync_timer: asyncio.TimerHandle | None = None
        self._stopped = False
        # Shared with the writing thread, under the lock.
        self._lock = threading.Lock()
        self._queue: list[_Job] = []
        self._writing = False
        self._idle = threading.Condition(self._lock)

    def begin(
        self,
        *,
        term: int,
        index: int,
        end: int,
        on_commit: Callable[[int], None],
        snapshot: Callable[[int], State],
        first: State | None = None,
    ) -> None:
        """Start to take entries behind what was recovered, and behind a first state if given.

        `on_commit` is given the end of the committed log, and `snapshot` the next batch's index.
        Raises OSError.
        """
        self._term, self._index, self._end = term, index, end
        self._on_commit = on_commit
        self._snapshot = snapshot
        self._retain()
        if first is not None:
            self._log.write([state_record(first)])
            self._log.sync()
        self._log.mark()
        self._log.grow()
        self.room_bytes = self._log.room_bytes - self._options.reserve_bytes

    # --- on the event loop ----------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        """Whether there is room for participants' envelopes."""
        return self.room_bytes > self.unwritten_bytes

    @property
    def admitting(self) -> bool:
        """Whether there is room for the gateway's own envelopes, which may use the reserve."""
        reserve = self._options.reserve_bytes
        return self.room_bytes + reserve // 2 > self.unwritten_bytes

    def append(self, entry: LogEntry) -> None:
        """Take one entry into the batch of this tick."""
        if not self._entries:
            self._loop.call_soon(self._seal)
        self._entries.append(entry)
        self.unwritten_bytes += len(entry.text) + _ENTRY_BYTES

    def check(self) -> None:
        """Look after space, age and retention. Called about once a second."""
        jobs = [_Job()]
        if self._roll_due and not self._entries and not self._log.newest_is_empty:
            # A quiet pod begins new segments, too, so that retention can delete the old ones.
            self._roll_due = False
            jobs.append(_Job(self._snapshot(self._index)))
        self._submit(jobs)

    def prepare_stop(self) -> None:
        """Begin a new segment, if the next start would have much to read without one (L-29)."""
        if self._log.batch_bytes > _MUCH_TO_READ_BYTES:
            self._seal()
            self._submit([_Job(self._snapshot(self._index))])

    def stop(self) -> None:
        """Write what waits and the seal of an orderly stop. Blocks until both are synced."""
        self._stopped = True
        if self._sync_timer is not None:
            self._sync_timer.cancel()
        self._seal()
        with self._idle:
            while self._writing:
                self._idle.wait()
        self._log.sync()
        self._log.stop(self._end, self._clock())
        self._log.close()

    def _seal(self) -> None:
        entries, self._entries = self._entries, []
        if not entries:
            return
        now = self._clock()
        batch = Batch(self._term, self._index, self._end, now, entries)
        size_bytes = self.unwritten_bytes - self._sealed_bytes
        self._sealed_bytes = self.unwritten_bytes
        self._unwritten.bytes += size_bytes
        self._index += 1
        self._end += len(entries)
        record = NewRecord(BATCH, batch.position, now, encode_batch(batch), len(entries))
        jobs = [_Job(record, size_bytes)]
        if self._roll_due:
            self._roll_due = False
            jobs.append(_Job(self._snapshot(self._index)))
        self._submit(jobs)

    def _submit(self, jobs: list[_Job]) -> None:
        with self._lock:
            self._queue += jobs
            if self._writing:
                return
            self._writing = True
        self._executor.submit(self._write_groups)

    def _report(self, end: int, written_bytes: int, room_bytes: int, roll_due: bool) -> None:
        self.unwritten_bytes -= written_bytes
        self._sealed_bytes -= written_bytes
        self._unwritten.bytes -= written_bytes
        self.room_bytes = room_bytes - self._options.reserve_bytes
        self._roll_due = roll_due
        interval = self._options.sync_interval_seconds
        if interval is not None and end and self._sync_timer is None and not self._stopped:
            self._sync_timer = self._loop.call_later(interval, self._sync_later)
        if end:
            self._on_commit(end)

    def _sync_later(self) -> None:
        self._sync_timer = None
        self.check()

    # --- on the executor ------------------------------------------------------------------------

    def _write_groups(self) -> None:
        try:
            while True:
                with self._lock:
                    group, self._queue = self._queue, []
                    if not group and not self._log.needs_mark:
                        self._writing = False
                        self._idle.notify_all()
                        return
                if group:
                    self._write_group(group)
                else:
                    self._log.mark()
        except BaseException as error:  # whatever it is: nothing more can be committed
            self._on_failure(error)

    def _write_group(self, group: list[_Job]) -> None:
        batches: list[_Job] = []
        for job in group:
            record = job.record
            if record is None:
                self._keep_house()
            elif isinstance(record, NewRecord):
                batches.append(job)
            else:
                self._commit(batches, rolling=True)
                batches = []
                self._log.sync()
                if not self._log.roll(state_record(record), secrets.randbits(32)):
                    self._roll_not_before = self._clock() + _ROLL_RETRY_SECONDS
        self._commit(batches)

    def _commit(self, batches: list[_Job], *, rolling: bool = False) -> None:
        log, options = self._log, self._options
        end = 0
        if batches:
            records = [job.record for job in batches if isinstance(job.record, NewRecord)]
            log.write(records)
            if options.sync_interval_seconds is None:
                log.sync()
            end = records[-1].position + records[-1].entries
        now = self._clock()
        is_old = now - log.newest_created >= options.segment_seconds
        roll_due = not rolling and now >= self._roll_not_before and (log.is_full or is_old)
        log.grow()
        written_bytes = sum(job.size_bytes for job in batches)
        self._loop.call_soon_threadsafe(self._report, end, written_bytes, log.room_bytes, roll_due)

    def _keep_house(self) -> None:
        if self._options.sync_interval_seconds is not None:
            self._log.sync()
        self._log.sync_mark()
        self._retain()

    def _retain(self) -> None:
        max_age = self._options.max_age_seconds
        since = None if max_age is None else self._clock() - max_age
        self._log.retain(since=since, max_bytes=self._options.max_bytes)


def state_record(state: State) -> NewRecord:
    """Return a state as a record of its position."""
    return NewRecord(STATE, state.position, state.time, encode_state(state))
