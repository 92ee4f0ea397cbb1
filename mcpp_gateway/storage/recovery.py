"""Recovery: what a log's segments hold after any end of the process or of the machine.

It relies on these rules of writing:

- A segment's header and its state are synced before the segment that it follows is sealed, and
  that is sealed before the first batch is written to the new one.
- Space is allocated ahead, so the file never ends where its last record does. A newest segment
  without zeros behind its last record was truncated.
- A segment that has a successor ends with a seal that names it.
- A record says how far its file was synced when it was written. So an invalid record in front of
  one that was written after it was synced is damage, and no interrupted write. Where no record
  follows, a mark says so.

Recovery itself may be interrupted anywhere: it writes what is already there, or zeros over what was
never acknowledged. Nothing is deleted before everything that decides about it was read.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import DiskFile
from mcpp_gateway.storage.segment_files import BAD_CHECKSUM, Segment, SegmentFiles
from mcpp_gateway.storage.segments import (
    BATCH,
    HEADER_BYTES,
    SEAL,
    STATE,
    DamagedError,
    LogFormatError,
    NewRecord,
    Record,
    SegmentHeader,
)

# Behind the last record there are always zeros, with room for a seal.
END_BYTES: Final = segments.ROLL_SEAL_BYTES
_CHUNK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Recovery:
    """What a log held when it was opened."""

    state: Record | None = None  # None: the log is new
    batches: list[Record] = field(default_factory=list)  # after the state, oldest first
    dropped_bytes: int = 0  # of an interrupted write, never acknowledged
    stopped: bool = False  # whether the last writer stopped in an orderly way
    unreadable: list[str] = field(default_factory=list)  # older segments that cannot be read


@dataclass(slots=True)
class Recovered:
    """The segments of a log, oldest first, and what recovery found in them."""

    result: Recovery = field(default_factory=Recovery)
    segments: list[Segment] = field(default_factory=list)
    # The names and sizes of older segments that are not served, for retention.
    unserved: list[tuple[str, int]] = field(default_factory=list)
    end_position: int = 0
    end_offset: int = 0  # of the newest segment's last record


def recover(files: SegmentFiles) -> Recovered:
    """Repair what an interruption left, and return what the log holds.

    Raises DamagedError where acknowledged records of the newest segment cannot be read,
    LogFormatError for another version, and OSError.
    """
    found = Recovered()
    # What was removed before the last end must not come back after the next one.
    files.disk.sync()
    names = files.names()
    newest = _open_newest(files, names)
    if newest is None:
        return found
    found.segments = [newest]
    last = _read_newest(files[newest.name], newest, found)
    _open_older(files, names, found)
    _rewrite_tail(files[newest.name], newest, last, found)
    return found


def seal(file: DiskFile, segment: Segment, following: SegmentHeader) -> None:
    """Close a segment behind its last record. Written again, it does not change."""
    end = segment.end
    assert end is not None
    record = NewRecord(SEAL, following.position, following.created, segments.rolled(following.salt))
    data = segments.encode_record(record, salt=segment.header.salt, offset=end, durable=end)
    file.write(end, data)
    file.truncate(end + len(data))
    file.sync()
    segment.end = segment.size_bytes = end + len(data)


# --- the newest segment ---------------------------------------------------------------------------


def _open_newest(files: SegmentFiles, names: list[str]) -> Segment | None:
    """Return the newest segment that was completely created, and delete one that was not."""
    if not names:
        return None
    name = names[-1]
    newest = _complete_segment(files, name)
    if newest is not None:
        return newest
    # The crash came while it was being created: nothing in it was acknowledged. Then there was no
    # other one, or that is complete and not sealed yet.
    before = None if len(names) == 1 else _complete_segment(files, names[-2])
    if len(names) > 1:
        if before is None or _is_sealed(files[before.name], before):
            raise DamagedError(name, 0, "the segment's beginning is unreadable")
        names.pop()
    files.remove(name)
    return before


def _complete_segment(files: SegmentFiles, name: str) -> Segment | None:
    """Return a segment if its header and its state are there.

    Raises DamagedError if they are not, and more than they was written.
    """
    file = files[name]
    header = segments.decode_header(name, file.read(0, HEADER_BYTES))
    if header is not None:
        state = segments.read_record(file, header.salt, HEADER_BYTES)
        if state is not None and state.kind == STATE:
            segment = Segment(name, header)
            segment.size_bytes = file.size
            return segment
    if any(head.kind != STATE for head in _possible_heads(file)):
        raise DamagedError(name, 0, "the segment's beginning is unreadable, and batches follow")
    return None


def _possible_heads(file: DiskFile) -> Iterator[segments.RecordHead]:
    """Yield what looks like a record's header, wherever it stands."""
    offset = 0
    end = segments.used_bytes(file)
    while (found := segments.find_magic(file, offset, end)) is not None:
        yield from list(segments.read_heads(file, found, found + segments.RECORD_HEADER_BYTES))[:1]
        offset = found + 8


def _read_newest(file: DiskFile, segment: Segment, found: Recovered) -> Record:
    """Read the newest segment up to its last valid record, and return that."""
    result = found.result
    offset, last, expected = HEADER_BYTES, None, segment.header.position
    while (record := segments.read_record(file, segment.header.salt, offset)) is not None:
        last = record
        if record.position != expected:
            raise DamagedError(segment.name, offset, "a record is out of order")
        expected = record.position + record.entries
        offset = record.end
        if record.kind == STATE:
            result.state = record
            result.batches.clear()
        elif record.kind == BATCH:
            result.batches.append(record)
            segment.note(record.position, record.time, record.offset)
        elif record.kind != SEAL:
            raise LogFormatError(f"{segment.name} has a record of unknown kind {record.kind}")
    assert last is not None
    result.stopped = last.kind == SEAL and last.payload == segments.STOPPED
    if last.kind == SEAL and not result.stopped:
        raise DamagedError(segment.name, offset, "the segment that follows it is missing")
    result.dropped_bytes = check_end(segment, file, offset)
    found.end_position = expected
    found.end_offset = segment.end = offset
    return last


def check_end(segment: Segment, file: DiskFile, end: int) -> int:
    """Return how much of an interrupted write follows the last valid record and its mark.

    Raises DamagedError if something else follows.
    """
    size = file.size
    if size < end + segments.RECORD_HEADER_BYTES:
        raise DamagedError(segment.name, size, "the file is truncated")
    for head in segments.read_heads(file, end, end + segments.RECORD_HEADER_BYTES):
        if head.end > size:
            raise DamagedError(segment.name, size, "the file is truncated within a record")
    used = segments.used_bytes(file)
    for record in segments.find_records(file, segment.header.salt, end, used):
        if record.durable > end:
            raise DamagedError(segment.name, end, BAD_CHECKSUM)
    return max(0, used - _behind_mark(segment, file, end))


def _behind_mark(segment: Segment, file: DiskFile, end: int) -> int:
    """Return where a mark ends that stands behind the last record, or where that ends."""
    is_marked = segments.is_marked(file, segment.header.salt, end)
    return end + segments.MARK_BYTES if is_marked else end


def _rewrite_tail(file: DiskFile, segment: Segment, last: Record, found: Recovered) -> None:
    """Clear what an interrupted write left, and write the last records again.

    After a failed sync the page cache may hold what the disk does not: read back, it would be
    served and then lost at the next power failure. Written again, it is synced or fails.
    """
    end = found.end_offset
    # Zeros, not a truncation: that would give up the reserved space, and a crash right behind it
    # would leave a file that ends with its last record.
    clear_from = _behind_mark(segment, file, end)
    clear_to = clear_from + found.result.dropped_bytes
    for offset in range(clear_from, clear_to, _CHUNK_BYTES):
        file.write(offset, bytes(min(_CHUNK_BYTES, clear_to - offset)))
    start = max(last.durable, HEADER_BYTES)
    for offset in range(start, end, _CHUNK_BYTES):
        file.write(offset, file.read(offset, min(_CHUNK_BYTES, end - offset)))
    file.sync()
    segment.size_bytes = file.size


# --- older segments -------------------------------------------------------------------------------


def _open_older(files: SegmentFiles, names: list[str], found: Recovered) -> None:
    """Open the older segments, the youngest first, up to one that cannot be served."""
    older = names[:-1]
    while older:
        name, following = older[-1], found.segments[0].header
        try:
            segment = _open_closed(files, name, following, repair=len(found.segments) == 1)
        except DamagedError as error:
            # A log with a hole is not served beyond it.
            found.result.unreadable.append(str(error))
            found.unserved = [(each, files[each].size) for each in older]
            return
        found.segments.insert(0, segment)
        older.pop()


def _open_closed(
    files: SegmentFiles, name: str, following: SegmentHeader, *, repair: bool
) -> Segment:
    file = files[name]
    header = segments.decode_header(name, file.read(0, HEADER_BYTES))
    if header is None:
        raise DamagedError(name, 0, "the segment's header does not match its checksum")
    segment = Segment(name, header)
    segment.size_bytes = file.size
    if repair:
        _finish_roll(file, segment, following)
    check_seal(file, segment, following)
    return segment


def check_seal(file: DiskFile, segment: Segment, following: SegmentHeader) -> None:
    """Raise DamagedError if a closed segment does not end with the seal that it must have."""
    record = _last_seal(file, segment)
    if record is None:
        raise DamagedError(segment.name, file.size, "the segment ends without its seal")
    expected = segments.rolled(following.salt)
    if (record.position, record.payload) != (following.position, expected):
        raise DamagedError(segment.name, record.offset, "the segment that follows it is missing")


def _last_seal(file: DiskFile, segment: Segment) -> Record | None:
    """Return the seal at the very end of a closed segment's file."""
    offset = max(file.size - segments.ROLL_SEAL_BYTES, HEADER_BYTES)
    record = segments.read_record(file, segment.header.salt, offset)
    return record if record is not None and record.kind == SEAL else None


def _is_sealed(file: DiskFile, segment: Segment) -> bool:
    """Return whether a segment has a successor."""
    last = _last_valid(file, segment)
    return last is not None and last.kind == SEAL and last.payload != segments.STOPPED


def _last_valid(file: DiskFile, segment: Segment) -> Record | None:
    last, end = None, HEADER_BYTES
    while (record := segments.read_record(file, segment.header.salt, end)) is not None:
        last, end = record, record.end
    return last


def _finish_roll(file: DiskFile, old: Segment, following: SegmentHeader) -> None:
    """Seal the segment before the newest if a crash came between creating and sealing.

    A seal that is there is written again, for the reason that `_rewrite_tail` has.
    """
    last = _last_seal(file, old) or _last_valid(file, old)
    if last is None or last.position + last.entries != following.position:
        return  # it is damaged, and has no seal
    if last.kind == SEAL and last.payload != segments.STOPPED:
        if last.payload != segments.rolled(following.salt):
            return
        old.end = last.offset
    else:
        old.end = last.end
        check_end(old, file, last.end)
    seal(file, old, following)
    old.end = None  # until it is indexed
