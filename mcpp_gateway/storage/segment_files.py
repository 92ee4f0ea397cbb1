"""The segments of a folder as open files, and reading the batches of one segment.

Reads may come from any thread. Errors of the operating system become DamagedError: a reader is told
that a part of the log cannot be read, and everything else goes on.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import Disk, DiskFile
from mcpp_gateway.storage.segments import (
    BATCH,
    HEADER_BYTES,
    SEAL,
    DamagedError,
    Record,
    RecordHead,
    SegmentHeader,
)

BAD_CHECKSUM: Final = "the record does not match its checksum"
# One place in this many bytes of a segment is kept in memory, to find positions by.
_INDEX_BYTES: Final = 32_768
_OPEN_FILES: Final = 16


class _Places(NamedTuple):
    """A sparse index: where every n-th batch of a segment begins. The lists have equal lengths."""

    offsets: list[int]
    positions: list[int]
    times: list[float]


class Segment:
    """One segment. Owns its sparse index."""

    __slots__ = ("_places", "end", "follows", "header", "name", "size_bytes")

    def __init__(self, name: str, header: SegmentHeader) -> None:
        self.name = name
        self.header = header
        self.end: int | None = None  # of the last record; None: not read yet
        self.size_bytes = 0  # of the file; changes in the newest segment only
        self.follows = False  # whether another process writes it
        self._places: _Places | None = None

    def follow(self, file: DiskFile, end: int) -> None:
        """Index what another process has written since the last call, up to an end."""
        self.follows = True
        for head in segments.read_heads(file, self.end or HEADER_BYTES, end):
            if head.kind == BATCH:
                self.note(head.position, head.time, head.offset)
        self.end = end

    def note(self, position: int, time: float, offset: int) -> None:
        """Take a batch into the index if the last one there is far enough behind."""
        if self._places is None:
            self._places = _Places([], [], [])
        _note(self._places, position, time, offset)

    def before_position(self, position: int) -> int:
        """Return the offset of a record at or before the batch that holds a position."""
        offsets, positions, _ = self._places or _NO_PLACES
        place = bisect_right(positions, position) - 1
        return offsets[place] if place >= 0 else HEADER_BYTES

    def before_time(self, time: float) -> int:
        """Return the offset of a record before the first batch that is not older than a time."""
        offsets, _, times = self._places or _NO_PLACES
        place = bisect_left(times, time) - 1
        return offsets[place] if place >= 0 else HEADER_BYTES

    def index(self, file: DiskFile) -> int:
        """Read the headers of a closed segment unless that was done; return its end.

        Raises DamagedError.
        """
        if self.end is not None and self._places is not None:
            return self.end
        # Built apart, then assigned: two threads may do this at the same time.
        places = _Places([], [], [])
        last, end = None, HEADER_BYTES
        for head in segments.read_heads(file, HEADER_BYTES, file.size):
            last, end = head, head.end
            if head.kind == BATCH:
                _note(places, head.position, head.time, head.offset)
        if last is None or last.kind != SEAL or end != file.size:
            raise DamagedError(self.name, end, "a record's header is unreadable")
        self._places, self.end = places, end
        return end


_NO_PLACES: Final = _Places([], [], [])


def _note(places: _Places, position: int, time: float, offset: int) -> None:
    if not places.offsets or offset - places.offsets[-1] >= _INDEX_BYTES:
        # The offset first: readers on other threads search the other two.
        places.offsets.append(offset)
        places.positions.append(position)
        places.times.append(time)


class SegmentFiles:
    """The files of a log. Owns those that are open, a bounded number of them."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._open: dict[str, DiskFile] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of the segments, oldest first."""
        return [name for name in self.disk.names() if segments.is_segment_name(name)]

    def __getitem__(self, name: str) -> DiskFile:
        """Return a segment's file, opening it if necessary. Raises OSError."""
        with self._lock:
            file = self._open.pop(name, None)
            if file is None:
                file = self.disk.open(name)
            self._keep(name, file)
            return file

    def create(self, name: str) -> DiskFile:
        """Create a segment's file. Raises OSError."""
        file = self.disk.open(name, create=True)
        with self._lock:
            self._keep(name, file)
        return file

    def remove(self, name: str) -> None:
        """Delete a segment, durably. Raises OSError."""
        with self._lock:
            self._open.pop(name, None)
        self.disk.remove(name)
        self.disk.sync()

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for file in self._open.values():
                file.close()
            self._open.clear()

    def _keep(self, name: str, file: DiskFile) -> None:
        self._open[name] = file
        if len(self._open) > _OPEN_FILES:
            oldest = next(iter(self._open))
            self._open.pop(oldest).close()


def read_batches(file: DiskFile, segment: Segment, position: int, end: int) -> Iterator[Record]:
    """Yield a segment's batches up to an end, from the one that holds a position on.

    Raises DamagedError.
    """
    start = offset = segment.before_position(position)
    for head in segments.read_heads(file, start, end):
        if head.kind == BATCH:
            if head.position > position:
                break
            offset = head.offset
    expected: int | None = None
    while offset < end:
        record = segments.read_record(file, segment.header.salt, offset)
        if record is None:
            raise DamagedError(segment.name, offset, BAD_CHECKSUM)
        offset = record.end
        if record.kind == BATCH:
            if expected is not None and record.position != expected:
                raise DamagedError(segment.name, record.offset, "a record is out of order")
            expected = record.position + record.entries
            if expected > position:
                yield record


def heads_since(file: DiskFile, segment: Segment, time: float, end: int) -> Iterator[RecordHead]:
    """Yield the headers of a segment's batches that are not older than a time."""
    for head in segments.read_heads(file, segment.before_time(time), end):
        if head.kind == BATCH and head.time >= time:
            yield head
