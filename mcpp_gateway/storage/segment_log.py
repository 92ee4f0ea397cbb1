"""A log as a folder of segments: recovery, writing, rolling, retention and reading.

Synchronous, and without a clock or a thread of its own: one thread writes, and others may read.
What is written counts only after `sync`. The rules that recovery relies on:

- A segment's header and its state are synced before the first batch is written to it.
- Space is allocated ahead, so the file never ends where its last record does. A newest segment
  without zeros behind its last record was truncated.
- A segment that has a successor ends with a seal, and so does a newest one after an orderly stop.
  What a seal follows was synced, so an invalid record in front of one is damage, not a torn write.
"""

import errno
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import Disk, DiskFile
from mcpp_gateway.storage.segments import (
    BATCH,
    HEADER_BYTES,
    SEAL,
    STATE,
    DamagedError,
    NewRecord,
    Record,
    SegmentHeader,
)

_SUFFIX: Final = ".seg"
_ROLLED: Final = b"rolled"
_STOPPED: Final = b"stopped"
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
# One place in this many bytes of a segment is kept in memory, to find positions by.
_INDEX_BYTES: Final = 32_768
_OPEN_FILES: Final = 16
# Behind the last record there are always zeros, where the next one's header would be.
_END_BYTES: Final = segments.RECORD_HEADER_BYTES
_BAD_CHECKSUM: Final = "the record does not match its checksum"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOptions:
    """Sizes of segments and of the space that is reserved ahead."""

    segment_bytes: int = 64 << 20  # a larger segment is followed by a new one
    chunk_bytes: int = 4 << 20  # allocated at a time
    reserve_bytes: int = 16 << 20  # allocated beyond what participants may fill


@dataclass(slots=True)
class Recovery:
    """What a log held when it was opened."""

    state: Record | None = None  # None: the log is new
    batches: list[Record] = field(default_factory=list)  # after the state, oldest first
    dropped_bytes: int = 0  # of an interrupted write, never acknowledged
    stopped: bool = False  # whether the last writer stopped in an orderly way
    unreadable: list[str] = field(default_factory=list)  # older segments that cannot be read


class _Segment:
    """One segment. Owns its sparse index; the log owns its file."""

    __slots__ = ("end", "header", "name", "offsets", "positions", "times")

    def __init__(self, name: str, header: SegmentHeader) -> None:
        self.name = name
        self.header = header
        self.end: int | None = None  # None: not read yet
        self.positions: list[int] = []
        self.offsets: list[int] = []
        self.times: list[float] = []

    def note(self, position: int, time: float, offset: int) -> None:
        """Take a batch into the index if the last one there is far enough behind."""
        if not self.offsets or offset - self.offsets[-1] >= _INDEX_BYTES:
            self.times.append(time)
            self.positions.append(position)
            self.offsets.append(offset)


class SegmentLog:
    """The segments of one log. Owns the files of its folder."""

    def __init__(self, disk: Disk, options: SegmentOptions | None = None) -> None:
        self._disk = disk
        self._options = options or SegmentOptions()
        self._segments: tuple[_Segment, ...] = ()
        self._files: dict[str, DiskFile] = {}
        self._writing: DiskFile
        self._offset = 0
        self._allocated = 0
        self._durable = 0

    # --- opening --------------------------------------------------------------------------------

    def recover(self) -> Recovery:
        """Open the log for writing and return what it holds.

        Raises DamagedError where acknowledged records cannot be read.
        """
        names = [name for name in self._disk.names() if name.endswith(_SUFFIX)]
        recovery = Recovery()
        while names and (newest := self._open_newest(names[-1])) is None:
            # The crash came while this segment was being created: nothing in it was acknowledged.
            name = names.pop()
            self._close_file(name)
            self._disk.remove(name)
            self._disk.sync()
        if not names:
            return recovery
        assert newest is not None
        self._segments = (newest,)
        self._read_newest(newest, recovery)
        self._open_older(names[:-1], recovery)
        self._rewrite_tail(newest, recovery)
        return recovery

    def open_to_read(self) -> None:
        """Open the log without writing, beside a gateway that may be writing to it."""
        names = [name for name in self._disk.names() if name.endswith(_SUFFIX)]
        self._segments = tuple(self._header(name) for name in names)

    def create(self, state: NewRecord, salt: int) -> None:
        """Begin a new log with its first state. Raises OSError where there is no space."""
        assert not self._segments
        self._begin_segment(state, salt)

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    # --- writing --------------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """The allocated bytes that are not yet written."""
        return self._allocated - self._offset - _END_BYTES

    @property
    def disk_bytes(self) -> int:
        """The bytes that all segments take on the disk."""
        return sum(self._file(segment.name).size for segment in self._segments)

    @property
    def written_bytes(self) -> int:
        """The length of what is written in the newest segment."""
        return self._offset

    @property
    def newest_created(self) -> float:
        """The time at which the newest segment was begun."""
        return self._segments[-1].header.created

    @property
    def start(self) -> int:
        """The oldest position that a segment holds."""
        return self._segments[0].header.position if self._segments else 0

    def write(self, records: Sequence[NewRecord]) -> None:
        """Write records behind the last one, in one write. They count after `sync`."""
        segment = self._segments[-1]
        salt = segment.header.salt
        parts: list[bytes] = []
        offset = self._offset
        for record in records:
            data = segments.encode_record(record, salt=salt, offset=offset, durable=self._durable)
            if record.kind == BATCH:
                segment.note(record.position, record.time, offset)
            parts.append(data)
            offset += len(data)
        if offset + _END_BYTES > self._allocated:
            self._allocate(offset + _END_BYTES)
        self._writing.write(self._offset, b"".join(parts))
        self._offset = segment.end = offset

    def sync(self) -> None:
        """Return when everything written is on stable storage."""
        self._writing.sync()
        self._durable = self._offset

    def grow(self) -> bool:
        """Allocate ahead what the reserve and the next writes need; False if the disk is full."""
        options = self._options
        if self.room_bytes >= options.reserve_bytes + options.chunk_bytes // 2:
            return True
        needed = self._offset + _END_BYTES + options.reserve_bytes
        for part in (1, 4, 16):  # where a whole chunk does not fit, a part of one may
            try:
                self._allocate(needed + options.chunk_bytes // part)
            except OSError as error:
                if error.errno not in _NO_SPACE:
                    raise
            else:
                break
        return self.room_bytes > options.reserve_bytes

    def roll(self, state: NewRecord, salt: int) -> bool:
        """Begin a new segment with a state; False if the disk is full, and then nothing changes.

        Everything written before has to be synced.
        """
        assert self._durable == self._offset
        old, old_file = self._segments[-1], self._writing
        try:
            self._begin_segment(state, salt)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            return False
        self._seal(old, old_file, state.position, state.time)
        return True

    def stop(self, position: int, time: float) -> None:
        """Write the seal of an orderly stop."""
        self.write([NewRecord(SEAL, position, time, _STOPPED)])
        self.sync()

    def retain(self, *, since: float | None, max_bytes: int | None) -> int:
        """Delete the oldest segments that are too old or too many; return how many."""
        keep = list(self._segments)
        sizes = {segment.name: self._file(segment.name).size for segment in keep}
        total = sum(sizes.values())
        dropped: list[_Segment] = []
        while len(keep) > 1:
            # A segment is as young as its last record, which is no younger than its successor.
            too_old = since is not None and keep[1].header.created < since
            too_many = max_bytes is not None and total > max_bytes
            if not (too_old or too_many):
                break
            dropped.append(keep.pop(0))
            total -= sizes[dropped[-1].name]
        if dropped:
            self._segments = tuple(keep)
            for segment in dropped:
                self._disk.remove(segment.name)
                self._close_file(segment.name)
            self._disk.sync()
        return len(dropped)

    # --- reading --------------------------------------------------------------------------------

    def read(self, position: int) -> Iterator[Record]:
        """Yield the batches from the one that holds a position on.

        Raises DamagedError.
        """
        found = self._segments
        at = max(0, bisect_right([each.header.position for each in found], position) - 1)
        for segment in found[at:]:
            yield from self._read_segment(segment, position)

    def position_at(self, time: float) -> int | None:
        """Return the position of the first batch that is not older than a time."""
        for at, segment in enumerate(self._segments):
            following = self._segments[at + 1 : at + 2]
            if following and following[0].header.created < time:
                continue
            self._read_index(segment)
            place = max(0, bisect_right(segment.times, time) - 1)
            start = segment.offsets[place] if segment.offsets else HEADER_BYTES
            for head in segments.read_heads(self._file(segment.name), start, self._end(segment)):
                if head.kind == BATCH and head.time >= time:
                    return head.position
        return None

    def records(self) -> Iterator[tuple[str, Record]]:
        """Yield every record of every segment with the segment's name, states and seals too."""
        for segment in self._segments:
            file = self._file(segment.name)
            offset, end = HEADER_BYTES, self._end(segment)
            while offset < end:
                record = segments.read_record(file, segment.header.salt, offset)
                if record is None:
                    raise DamagedError(
                        segment.name, offset, "the record does not match its checksum"
                    )
                yield segment.name, record
                offset = record.end

    # --- private: recovery ----------------------------------------------------------------------

    def _open_newest(self, name: str) -> _Segment | None:
        """Return the newest segment if its state is there; None if its creation was interrupted."""
        file = self._file(name)
        header = segments.decode_header(name, file.read(0, HEADER_BYTES))
        if header is not None:
            state = segments.read_record(file, header.salt, HEADER_BYTES)
            if state is not None and state.kind == STATE:
                return _Segment(name, header)
        if any(head.kind != STATE for head in _possible_heads(file)):
            raise DamagedError(name, 0, "the segment's beginning is unreadable, and batches follow")
        return None

    def _header(self, name: str) -> _Segment:
        header = segments.decode_header(name, self._file(name).read(0, HEADER_BYTES))
        if header is None:
            raise DamagedError(name, 0, "the segment's header does not match its checksum")
        return _Segment(name, header)

    def _open_older(self, names: list[str], recovery: Recovery) -> None:
        """Open the older segments, the youngest first, up to one that cannot be served."""
        for name in reversed(names):
            following = self._segments[0]
            try:
                segment = self._header(name)
                if len(self._segments) == 1:
                    self._finish_roll(segment, following.header)
                self._check_seal(segment, following.header)
            except DamagedError as error:
                recovery.unreadable.append(str(error))
                return  # a log with a hole is not served beyond it
            self._segments = (segment, *self._segments)

    def _check_seal(self, segment: _Segment, following: SegmentHeader) -> None:
        file = self._file(segment.name)
        offset = file.size - segments.record_bytes(len(_ROLLED))
        seal = segments.read_record(file, segment.header.salt, max(offset, HEADER_BYTES))
        if seal is None or seal.kind != SEAL:
            raise DamagedError(segment.name, file.size, "the segment ends without its seal")
        if seal.position != following.position:
            raise DamagedError(segment.name, file.size, "the segment that follows it is missing")

    def _read_newest(self, segment: _Segment, recovery: Recovery) -> None:
        file, salt = self._file(segment.name), segment.header.salt
        offset, last, expected = HEADER_BYTES, None, segment.header.position
        while (record := segments.read_record(file, salt, offset)) is not None:
            last = record
            offset = record.end
            if record.kind == STATE:
                recovery.state = record
                recovery.batches.clear()
            elif record.kind == BATCH:
                recovery.batches.append(record)
                segment.note(record.position, record.time, record.offset)
            if record.position != expected:
                raise DamagedError(segment.name, record.offset, "a record is out of order")
            expected = record.position + record.entries
        assert last is not None
        segment.end = offset
        recovery.stopped = last.kind == SEAL and last.payload == _STOPPED
        if last.kind == SEAL and last.payload == _ROLLED:
            raise DamagedError(segment.name, offset, "the segment that follows it is missing")
        self._check_end(segment, file, offset)
        rest = file.read(offset, file.size - offset)
        recovery.dropped_bytes = len(rest.rstrip(b"\0"))

    def _check_end(self, segment: _Segment, file: DiskFile, end: int) -> None:
        """Raise DamagedError if what follows the last valid record is no interrupted write."""
        size = file.size
        if size < end + _END_BYTES:
            raise DamagedError(segment.name, size, "the file is truncated")
        for head in segments.read_heads(file, end, end + segments.RECORD_HEADER_BYTES):
            if head.end > size:
                raise DamagedError(segment.name, size, "the file is truncated within a record")
        for record in segments.find_records(file, segment.header.salt, end):
            if record.durable > end:
                raise DamagedError(segment.name, end, _BAD_CHECKSUM)

    def _finish_roll(self, old: _Segment, following: SegmentHeader) -> None:
        """Seal the segment before the newest if a crash came between creating and sealing."""
        file = self._file(old.name)
        last, end = None, HEADER_BYTES
        while (record := segments.read_record(file, old.header.salt, end)) is not None:
            last, end = record, record.end
        sealed = last is not None and last.kind == SEAL and last.payload == _ROLLED
        complete = last is not None and last.position + last.entries == following.position
        if complete and not sealed:
            old.end = end
            self._check_end(old, file, end)
            self._seal(old, file, following.position, following.created)

    def _rewrite_tail(self, segment: _Segment, recovery: Recovery) -> None:
        """Clear what an interrupted write left, and write the last records again.

        After a failed sync the page cache may hold what the disk does not: read back, it would be
        served and then lost at the next power failure. Written again, it is synced or fails.
        """
        file = self._writing = self._file(segment.name)
        end = self._end(segment)
        last = max((record.durable for record in recovery.batches[-1:]), default=HEADER_BYTES)
        start = min(last or HEADER_BYTES, end)
        if recovery.dropped_bytes:
            file.truncate(end)
        file.allocate(max(file.size, end + _END_BYTES))
        file.write(start, file.read(start, end - start))
        file.sync()
        self._offset = self._durable = end
        self._allocated = file.size

    # --- private: files -------------------------------------------------------------------------

    def _begin_segment(self, state: NewRecord, salt: int) -> None:
        options = self._options
        header = SegmentHeader(salt, state.position, state.time)
        name = f"{state.position:020}{_SUFFIX}"
        record = segments.encode_record(state, salt=salt, offset=HEADER_BYTES, durable=0)
        data = segments.encode_header(header) + record
        file = self._disk.open(name, create=True)
        try:
            size = len(data) + _END_BYTES + options.reserve_bytes + options.chunk_bytes
            file.allocate(size)
            file.write(0, data)
            file.sync()
            self._disk.sync()
        except OSError:
            file.close()
            self._disk.remove(name)
            raise
        segment = _Segment(name, header)
        segment.end = len(data)
        self._files[name] = self._writing = file
        self._segments = (*self._segments, segment)
        self._offset = self._durable = len(data)
        self._allocated = size

    def _seal(self, old: _Segment, file: DiskFile, position: int, time: float) -> None:
        end = old.end
        assert end is not None
        record = NewRecord(SEAL, position, time, _ROLLED)
        seal = segments.encode_record(record, salt=old.header.salt, offset=end, durable=end)
        file.write(end, seal)
        file.truncate(end + len(seal))
        file.sync()
        old.end = end + len(seal)

    def _allocate(self, size: int) -> None:
        self._writing.allocate(size)
        # Before a record uses the space: a record beyond the end of the file is taken for damage.
        self._writing.sync()
        self._allocated = max(self._allocated, size)

    def _file(self, name: str) -> DiskFile:
        file = self._files.get(name)
        if file is None:
            file = self._files[name] = self._disk.open(name)
        return file

    def _close_file(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None:
            file.close()

    # --- private: reading -----------------------------------------------------------------------

    def _end(self, segment: _Segment) -> int:
        self._read_index(segment)
        assert segment.end is not None
        return segment.end

    def _read_index(self, segment: _Segment) -> None:
        if segment.end is not None and (segment.offsets or segment is self._segments[-1]):
            return
        file = self._file(segment.name)
        last, end = None, HEADER_BYTES
        for head in segments.read_heads(file, HEADER_BYTES, file.size):
            last, end = head, head.end
            if head.kind == BATCH:
                segment.note(head.position, head.time, head.offset)
        if segment is not self._segments[-1] and (last is None or last.kind != SEAL):
            raise DamagedError(segment.name, end, "a record's header is unreadable")
        segment.end = end

    def _read_segment(self, segment: _Segment, position: int) -> Iterator[Record]:
        end = self._end(segment)
        file = self._file(segment.name)
        place = bisect_right(segment.positions, position) - 1
        offset = segment.offsets[place] if place >= 0 else HEADER_BYTES
        skipped: int | None = None  # the last batch that begins at or before the position
        for head in segments.read_heads(file, offset, end):
            if head.kind == BATCH:
                if head.position > position:
                    break
                skipped = head.offset
        offset = offset if skipped is None else skipped
        while offset < end:
            record = segments.read_record(file, segment.header.salt, offset)
            if record is None:
                raise DamagedError(segment.name, offset, _BAD_CHECKSUM)
            offset = record.end
            if record.kind == BATCH:
                yield record


def _possible_heads(file: DiskFile) -> Iterator[segments.RecordHead]:
    """Yield what looks like a record's header, wherever it stands."""
    offset = 0
    while (found := segments.find_magic(file, offset)) is not None:
        yield from list(segments.read_heads(file, found, found + segments.RECORD_HEADER_BYTES))[:1]
        offset = found + 8
