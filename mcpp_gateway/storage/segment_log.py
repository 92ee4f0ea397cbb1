"""A log as a folder of segments: writing, rolling, retention and reading.

Synchronous, and without a clock or a thread of its own: one thread writes, and others may read.
What is written counts only after `sync`. See `recovery` for the rules that writing keeps.
"""

import errno
import os
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mcpp_gateway.storage import erasure, recovery, segments
from mcpp_gateway.storage.disk import Disk, DiskFile
from mcpp_gateway.storage.recovery import END_BYTES, Recovery
from mcpp_gateway.storage.segment_files import Segment, SegmentFiles, heads_since, read_batches
from mcpp_gateway.storage.segments import (
    BATCH,
    HEADER_BYTES,
    MARK,
    SEAL,
    DamagedError,
    NewRecord,
    Record,
    SegmentHeader,
)

__all__ = ["Recovery", "SegmentLog", "SegmentOptions"]

_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions:
    """Sizes of segments and of the space that is reserved ahead."""

    segment_bytes: int = 64 << 20  # a larger segment is followed by a new one
    chunk_bytes: int = 4 << 20  # allocated at a time
    reserve_bytes: int = 16 << 20  # allocated beyond what participants may fill
    # Whether space is synced before it is used. If not, the newest segment may be damaged by a
    # power failure, and has to be written again.
    sync_growth: bool = True


class SegmentView(NamedTuple):
    """A segment, for a reader in another process."""

    name: str
    salt: int
    position: int
    created: float
    size_bytes: int
    end: int | None  # of the newest, what is written


class LogView(NamedTuple):
    """A log, for a reader in another process."""

    folder: str
    start: int
    end_position: int
    segments: list[SegmentView]


class SegmentLog:
    """The segments of one log. Owns the files of its folder."""

    def __init__(self, disk: Disk, options: SegmentOptions | None = None) -> None:
        self.start = 0  # the oldest position that may be read
        self.syncs = 0
        self.sync_seconds = 0.0
        self._files = SegmentFiles(disk)
        self._options = options or SegmentOptions()
        self._segments: tuple[Segment, ...] = ()
        self._unserved: list[tuple[str, int]] = []
        self._writing: DiskFile
        self._offset = 0
        self._allocated = 0
        self._durable = 0
        self._marked = 0  # the offset of the last mark
        self._mark_is_synced = True
        self._end_position = 0
        self._state_time = 0.0
        self._state_end = 0  # where the batches of the newest segment begin

    # --- opening --------------------------------------------------------------------------------

    def recover(self) -> Recovery:
        """Open the log for writing and return what it holds.

        Raises DamagedError where acknowledged records cannot be read, LogFormatError for another
        version, and OSError.
        """
        erasure.finish(self._files.disk)
        found = recovery.recover(self._files)
        if found.segments:
            newest = found.segments[-1]
            self._segments = tuple(found.segments)
            self._unserved = found.unserved
            self.start = found.segments[0].header.position
            self._writing = self._files[newest.name]
            self._offset = self._durable = found.end_offset
            self._allocated = newest.size_bytes
            self._end_position = found.end_position
            assert found.result.state is not None
            self._state_time = found.result.state.time
            self._state_end = found.result.state.end
        return found.result

    def create(self, state: NewRecord, salt: int) -> None:
        """Begin a new log with its first state. Raises OSError where there is no space."""
        assert not self._segments
        self._begin_segment(state, salt)
        self.start = state.position

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    # --- writing --------------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """The allocated bytes that are not yet written."""
        return self._allocated - self._offset - END_BYTES

    @property
    def disk_bytes(self) -> int:
        """The bytes that all segments take on the disk."""
        segment_bytes = sum(segment.size_bytes for segment in self._segments)
        return segment_bytes + sum(size for _, size in self._unserved)

    @property
    def held_bytes(self) -> int:
        """The bytes that all segments take, without the space that is only reserved."""
        return self.disk_bytes - (self._allocated - self._offset)

    @property
    def written_bytes(self) -> int:
        """The length of what is written in the newest segment."""
        return self._offset

    @property
    def is_full(self) -> bool:
        """Whether the newest segment holds enough that a new one should follow.

        What counts are the batches behind its state, and at least as much as the state takes: a
        large state would otherwise be followed by another one after every batch.
        """
        return self.batch_bytes >= max(self._options.segment_bytes, self._state_end)

    @property
    def batch_bytes(self) -> int:
        """The length of the batches behind the newest state, which recovery has to read."""
        return self._offset - self._state_end

    @property
    def newest_created(self) -> float:
        """The time of the newest segment's state."""
        return self._state_time

    @property
    def newest_is_empty(self) -> bool:
        """Whether the newest segment holds no batch, so that there is no reason to roll."""
        return self._end_position == self._segments[-1].header.position

    def write(self, records: Sequence[NewRecord]) -> None:
        """Write records behind the last one, in one write. They count after `sync`."""
        segment = self._segments[-1]
        salt = segment.header.salt
        parts: list[bytes] = []
        offset, position = self._offset, self._end_position
        for record in records:
            data = segments.encode_record(record, salt=salt, offset=offset, durable=self._durable)
            if record.kind == BATCH:
                segment.note(record.position, record.time, offset)
            assert record.position == position
            position += record.entries
            parts.append(data)
            offset += len(data)
        if offset + END_BYTES > self._allocated and not self._allocate_if_possible(
            offset + END_BYTES
        ):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._writing.write(self._offset, b"".join(parts))
        self._offset = segment.end = offset
        self._end_position = position

    def sync(self) -> None:
        """Return when everything written is on stable storage."""
        began = time.monotonic()
        self._writing.sync()
        self.sync_seconds += time.monotonic() - began
        self.syncs += 1
        self._durable = self._offset
        self._mark_is_synced = True

    @property
    def needs_mark(self) -> bool:
        """Whether everything written is synced, and nothing on the disk says so."""
        return self._durable == self._offset != self._marked

    def mark(self) -> None:
        """State behind the last record that it is synced. The next record overwrites this.

        Damage to the last record then differs from an interrupted write. The mark itself does not
        have to be synced for that, except against a power failure.
        """
        salt = self._segments[-1].header.salt
        record = NewRecord(MARK, self._end_position, self._state_time, b"")
        offset = self._offset
        data = segments.encode_record(record, salt=salt, offset=offset, durable=offset)
        self._writing.write(offset, data)
        self._marked, self._mark_is_synced = offset, False

    def sync_mark(self) -> None:
        """Return when the last mark is on stable storage. Nothing is synced twice."""
        if not self._mark_is_synced and self._marked == self._offset:
            self.sync()

    def grow(self) -> bool:
        """Allocate ahead what the reserve and the next writes need; False if the disk is full."""
        options = self._options
        if self.room_bytes >= options.reserve_bytes + options.chunk_bytes // 2:
            return True
        needed = self._offset + END_BYTES + options.reserve_bytes
        for part in (1, 4, 16):  # where a whole chunk does not fit, a part of one may
            if self._allocate_if_possible(needed + options.chunk_bytes // part):
                break
        return self.room_bytes > options.reserve_bytes

    def roll(self, state: NewRecord, salt: int) -> bool:
        """Begin a new segment with a state; False if the disk is full, and then nothing changes.

        Everything written before has to be synced. In a newest segment without batches the new
        state takes the place of the old one.
        """
        assert self._durable == self._offset
        if self.newest_is_empty:
            return self._replace_state(state)
        old, old_file = self._segments[-1], self._writing
        try:
            self._begin_segment(state, salt)
        except _NoSpaceError:
            return False
        recovery.seal(old_file, old, self._segments[-1].header)
        return True

    def stop(self, position: int, time: float) -> None:
        """Sync, and write the seal of an orderly stop if there is room for it."""
        self.sync()
        seal = NewRecord(SEAL, position, time, segments.STOPPED)
        size = self._offset + segments.record_bytes(len(seal.payload)) + END_BYTES
        if size <= self._allocated or self._allocate_if_possible(size):
            self.write([seal])
            self.sync()

    def retain(self, *, since: float | None, max_bytes: int | None) -> int:
        """Delete the oldest segments that are too old or too many; return how many.

        What is too old in the segments that stay is not served any more.
        """
        removed = self._remove_unserved(since, max_bytes)
        while len(self._segments) > 1:
            # All records of a segment are older than the next segment.
            too_old = since is not None and self._segments[1].header.created < since
            if not (too_old or self._exceeds(max_bytes)):
                break
            name = self._segments[0].name
            self._segments = self._segments[1:]
            self.start = max(self.start, self._segments[0].header.position)
            # Each is gone for good before the next: a crash must not leave a hole.
            self._files.remove(name)
            removed += 1
        if since is not None:
            self._hide(since)
        return removed

    # --- reading --------------------------------------------------------------------------------

    def read(self, position: int) -> Iterator[Record]:
        """Yield the batches from the one that holds a position on.

        Raises DamagedError.
        """
        found = self._segments
        at = max(0, bisect_right([each.header.position for each in found], position) - 1)
        for segment in found[at:]:
            try:
                file = self._files[segment.name]
                end = self._end(segment, file)
                yield from read_batches(file, segment, position, end)
            except FileNotFoundError:
                # Not skipped: what follows would be taken for what was asked for.
                reason = "is missing" if segment in self._segments else "was deleted by retention"
                raise DamagedError(segment.name, 0, f"the file {reason}") from None
            except OSError as error:
                reason = error.strerror or str(error)
                raise DamagedError(segment.name, 0, f"it cannot be read: {reason}") from error

    def position_at(self, time: float) -> int:
        """Return the position of the first batch that is not older than a time, or the end.

        Raises DamagedError and OSError.
        """
        found = self._segments
        for at, segment in enumerate(found):
            if at + 1 < len(found) and found[at + 1].header.created < time:
                continue
            file = self._files[segment.name]
            for head in heads_since(file, segment, time, self._end(segment, file)):
                return head.position
        return self._end_position

    def view(self) -> LogView:
        """Return what `follow` needs in another process."""
        segments, newest = self._segments, len(self._segments) - 1
        shown = [
            SegmentView(
                each.name, *each.header, each.size_bytes, each.end if at == newest else None
            )
            for at, each in enumerate(segments)
        ]
        return LogView(self._files.disk.location, self.start, self._end_position, shown)

    def follow(self, view: LogView) -> None:
        """Read what another process writes, as it describes it. Nothing is written here."""
        known = {each.name: each for each in self._segments}
        found: list[Segment] = []
        for name, salt, position, created, size_bytes, end in view.segments:
            segment = known.get(name)
            header = SegmentHeader(salt, position, created)
            if segment is None or segment.header != header:
                segment = Segment(name, header)
            segment.size_bytes = size_bytes
            if end is not None:
                segment.follow(self._files[name], end)
            elif segment.follows:
                segment = Segment(name, header)  # it was the newest, and has its seal now
            found.append(segment)
        self._segments = tuple(found)
        self.start, self._end_position = view.start, view.end_position

    def position_before_end(self, size_bytes: int) -> int:
        """Return a position at most so many bytes and one segment before the end."""
        found = self._segments
        for segment in reversed(found):
            size_bytes -= segment.size_bytes
            if size_bytes < 0:
                return segment.header.position
        return found[0].header.position

    def next_segment(self, position: int) -> int:
        """Return where the segment begins that follows the one that holds a position, or the end.

        Reading goes on there behind damage.
        """
        starts = [each.header.position for each in self._segments]
        at = bisect_right(starts, position)
        return starts[at] if at < len(starts) else self._end_position

    # --- private --------------------------------------------------------------------------------

    def _end(self, segment: Segment, file: DiskFile) -> int:
        """Return where a segment's last record ends."""
        end = segment.end
        if segment is self._segments[-1] and end is not None:
            return end
        return segment.index(file)

    def _hide(self, since: float) -> None:
        try:
            self.start = max(self.start, self.position_at(since))
        except (DamagedError, OSError):
            # The whole segment stays visible; readers find out that it cannot be read.
            return

    def _exceeds(self, max_bytes: int | None) -> bool:
        return max_bytes is not None and self.held_bytes > max_bytes

    def _remove_unserved(self, since: float | None, max_bytes: int | None) -> int:
        """Delete segments that are not served because of damage, by the same rule."""
        removed = 0
        while self._unserved:
            too_old = since is not None and self._segments[0].header.created < since
            if not (too_old or self._exceeds(max_bytes)):
                break
            self._files.remove(self._unserved.pop(0)[0])
            removed += 1
        return removed

    def _begin_segment(self, state: NewRecord, salt: int) -> None:
        """Create a segment with its first state. Raises _NoSpaceError if that left nothing."""
        header = SegmentHeader(salt, state.position, state.time)
        name = segments.segment_name(state.position)
        record = segments.encode_record(state, salt=salt, offset=HEADER_BYTES, durable=0)
        data = segments.encode_header(header) + record
        size = len(data) + END_BYTES + self._options.reserve_bytes + self._options.chunk_bytes
        try:
            file = self._files.create(name)
        except OSError as error:
            raise _no_space(error) from None
        try:
            file.allocate(size)
            file.write(0, data)
            file.sync()
            self._files.disk.sync()
        except OSError as error:
            # Durably: if it came back after a crash, it would be taken for the newest segment.
            self._files.remove(name)
            raise _no_space(error) from None
        segment = Segment(name, header)
        segment.end = len(data)
        segment.size_bytes = size
        self._writing = file
        self._offset = self._durable = self._state_end = len(data)
        self._marked = 0  # an equal offset of the old segment does not count
        self._allocated = size
        self._end_position = state.position
        self._state_time = state.time
        self._segments = (*self._segments, segment)

    def _replace_state(self, state: NewRecord) -> bool:
        size = self._offset + segments.record_bytes(len(state.payload)) + END_BYTES
        if size > self._allocated and not self._allocate_if_possible(size):
            return False
        self.write([state])
        self.sync()
        self._state_time = state.time
        self._state_end = self._offset
        return True

    def _allocate_if_possible(self, size: int) -> bool:
        try:
            self._writing.allocate(size)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            return False
        # Before a record uses the space: a record beyond the end of the file is taken for damage.
        # Outside of `try`: a sync that fails may lose records, whatever its reason.
        if self._options.sync_growth:
            self._writing.sync()
        self._allocated = max(self._allocated, size)
        self._segments[-1].size_bytes = self._allocated
        return True


class _NoSpaceError(OSError):
    """There is no space for a new segment, and nothing has changed."""


def _no_space(error: OSError) -> OSError:
    """Return an error as a _NoSpaceError if it is one."""
    return _NoSpaceError(error.errno, error.strerror) if error.errno in _NO_SPACE else error
