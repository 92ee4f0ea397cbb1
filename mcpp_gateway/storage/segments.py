"""The format of a segment: a header, then records that can each be checked alone.

All numbers are little-endian. Records begin at multiples of 8 bytes.

    segment header (32 bytes)
        magic     8 bytes   "MCPPSEG" and the format version
        salt      u32       random; part of every checksum, so that no record of another file fits
        checksum  u32       CRC-32 of the header with this field 0
        position  u64       the log position that the first batch of the segment has
        created   f64       Unix time

    record header (40 bytes), then the payload, then zeros up to a multiple of 8
        magic     u32       marks the beginning of a record, for the search behind damage
        kind      u8        state, batch, seal or mark
        count     u24       the number of entries (batch)
        length    u32       of the payload
        checksum  u32       CRC-32 of salt, offset, the other fields and the payload
        position  u64       the log position of the first entry (batch), or the end so far
        time      f64       Unix time at which the record was made
        durable   u64       the length of this file that was synced when this record was written

A mark has no payload. It stands behind the last record, says that everything before it is synced,
and is overwritten by the next record. So it is no part of the log: only the search for damage reads
it.

The payload of a state is a MessagePack `State`, that of a batch a `Batch`, and that of a seal
"stopped", or "rolled" and the salt of the segment that follows as u32.

`durable` tells a torn write from damage. An invalid record may be the remains of a write that a
crash interrupted, and nothing in it was ever acknowledged; unless a valid record behind it says
that the file was synced beyond its offset. Then something acknowledged is damaged.
"""

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from mcpp.errors import McppError
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.storage.disk import DiskFile

VERSION: Final = 1
_MAGIC: Final = b"MCPPSEG"
_SEGMENT: Final = struct.Struct("<8sIIQd")
_RECORD: Final = struct.Struct("<IIIIQdQ")
_RECORD_MAGIC: Final = 0xE10C5EA1
_RECORD_MAGIC_BYTES: Final = _RECORD_MAGIC.to_bytes(4, "little")
HEADER_BYTES: Final = _SEGMENT.size
RECORD_HEADER_BYTES: Final = _RECORD.size
# No batch is near this: a tick takes in 256 KiB and one message more. A state may be 20 MB.
MAX_PAYLOAD_BYTES: Final = 1 << 28
_READ_BYTES: Final = 1 << 18
_ZEROS: Final = bytes(_READ_BYTES)
_HEADS_BYTES: Final = 1 << 17  # a lookup reads this much

STATE: Final = 1
BATCH: Final = 2
SEAL: Final = 3  # the segment is continued by another one, or the gateway stopped
MARK: Final = 4  # everything before it is synced
KINDS: Final = (STATE, BATCH, SEAL)
STOPPED: Final = b"stopped"
_ROLLED: Final = b"rolled"
_NAME: Final = re.compile(r"([0-9]{20})\.seg")


class LogFormatError(McppError):
    """The log was written by a newer version, or is no log."""


class DamagedError(UnreadableError):
    """Something in the log that was acknowledged is damaged."""

    def __init__(self, name: str, offset: int, reason: str) -> None:
        super().__init__(name, offset, reason)
        self.name = name
        self.offset = offset
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.name} is damaged at byte {self.offset}: {self.reason}"


class SegmentHeader(NamedTuple):
    """What a segment says of itself."""

    salt: int
    position: int
    created: float


class NewRecord(NamedTuple):
    """A record to be written."""

    kind: int
    position: int
    time: float
    payload: bytes
    entries: int = 0


class Record(NamedTuple):
    """One record as it was read; `offset` and `end` are its place in the file."""

    kind: int
    position: int
    time: float
    payload: bytes
    entries: int
    offset: int
    end: int
    durable: int


class RecordHead(NamedTuple):
    """A record's header, read without its payload and without checking it."""

    kind: int
    position: int
    time: float
    offset: int
    end: int


def segment_name(position: int) -> str:
    """Return the name of the segment whose first batch has this position."""
    return f"{position:020}.seg"


def is_segment_name(name: str) -> bool:
    """Return whether a file of this name is a segment. All others are left alone."""
    return _NAME.fullmatch(name) is not None


def rolled(salt: int) -> bytes:
    """Return the payload of the seal of a segment that is followed by the one with this salt."""
    return _ROLLED + salt.to_bytes(4, "little")


ROLL_SEAL_BYTES: Final = RECORD_HEADER_BYTES + 16
MARK_BYTES: Final = RECORD_HEADER_BYTES


def encode_header(header: SegmentHeader, version: int = VERSION) -> bytes:
    """Return the first bytes of a segment."""
    magic = _MAGIC + bytes((version,))
    bare = _SEGMENT.pack(magic, header.salt, 0, header.position, header.created)
    return _SEGMENT.pack(magic, header.salt, crc32(bare), header.position, header.created)


def decode_header(name: str, data: bytes) -> SegmentHeader | None:
    """Return a segment's header; None where it was never completely written.

    Raises LogFormatError for a version that this program does not know, DamagedError for the header
    of another file.
    """
    if len(data) < HEADER_BYTES:
        return None
    magic, salt, checksum, position, created = _SEGMENT.unpack(data[:HEADER_BYTES])
    if magic[:7] != _MAGIC:
        return None
    if magic[7] != VERSION:  # before the checksum, which may be another one there
        raise LogFormatError(
            f"{name} has format version {magic[7]}; this program reads version {VERSION}"
        )
    if crc32(_SEGMENT.pack(magic, salt, 0, position, created)) != checksum:
        return None
    if name != segment_name(position):
        raise DamagedError(name, 0, f"its header is that of {segment_name(position)}")
    return SegmentHeader(salt, position, created)


def encode_record(record: NewRecord, *, salt: int, offset: int, durable: int) -> bytes:
    """Return a record as it stands at an offset of a segment."""
    kind, position, time, payload, entries = record
    tag = entries << 8 | kind
    checksum = _checksum(tag, position, time, durable, payload, salt, offset)
    head = _RECORD.pack(_RECORD_MAGIC, tag, len(payload), checksum, position, time, durable)
    return b"".join((head, payload, bytes(-len(payload) % 8)))


def record_bytes(payload_bytes: int) -> int:
    """Return the room that a record with a payload of this size takes."""
    return RECORD_HEADER_BYTES + payload_bytes + -payload_bytes % 8


def read_record(file: DiskFile, salt: int, offset: int) -> Record | None:
    """Return the record of the log at an offset if a valid one begins there."""
    record = _read(file, salt, offset)
    return None if record is None or record.kind == MARK else record


def is_marked(file: DiskFile, salt: int, offset: int) -> bool:
    """Return whether a valid mark stands at an offset."""
    record = _read(file, salt, offset)
    return record is not None and record.kind == MARK


def _read(file: DiskFile, salt: int, offset: int) -> Record | None:
    head = file.read(offset, RECORD_HEADER_BYTES)
    if len(head) < RECORD_HEADER_BYTES:
        return None
    magic, tag, length, checksum, position, time, durable = _RECORD.unpack(head)
    if magic != _RECORD_MAGIC or length > MAX_PAYLOAD_BYTES:
        return None
    payload = file.read(offset + RECORD_HEADER_BYTES, length)
    if len(payload) < length:
        return None
    if _checksum(tag, position, time, durable, payload, salt, offset) != checksum:
        return None
    end = offset + record_bytes(length)
    return Record(tag & 0xFF, position, time, payload, tag >> 8, offset, end, durable)


def read_heads(file: DiskFile, offset: int, end: int) -> Iterator[RecordHead]:
    """Yield the headers of the records between two offsets, hopping over the payloads."""
    window, start = b"", offset
    while offset + RECORD_HEADER_BYTES <= end:
        at = offset - start
        if at + RECORD_HEADER_BYTES > len(window):
            window, start, at = file.read(offset, _HEADS_BYTES), offset, 0
            if len(window) < RECORD_HEADER_BYTES:
                return
        magic, tag, length, _, position, time, _ = _RECORD.unpack_from(window, at)
        if magic != _RECORD_MAGIC or length > MAX_PAYLOAD_BYTES:
            return
        behind = offset + record_bytes(length)
        yield RecordHead(tag & 0xFF, position, time, offset, behind)
        offset = behind


def used_bytes(file: DiskFile) -> int:
    """Return where the zeros begin with which a file ends.

    Reserved space is compared with zeros a piece at a time, which takes a fifth of a millisecond
    for each megabyte.
    """
    end = file.size
    while end > 0:
        start = max(0, end - _READ_BYTES)
        window = file.read(start, end - start)
        if window != _ZEROS[: len(window)]:
            return start + len(window.rstrip(b"\0"))
        end = start
    return 0


def find_records(file: DiskFile, salt: int, offset: int, end: int) -> Iterator[Record]:
    """Yield every valid record or mark that begins between two offsets, behind invalid ones too."""
    while (found := find_magic(file, offset, end)) is not None:
        record = _read(file, salt, found)
        if record is None:
            offset = found + 8
        else:
            yield record
            offset = record.end


def find_magic(file: DiskFile, offset: int, end: int) -> int | None:
    """Return the next offset below an end at which a record could begin."""
    while offset < end:
        window = file.read(offset, min(_READ_BYTES, end - offset))
        at = window.find(_RECORD_MAGIC_BYTES)
        while at >= 0:
            if (offset + at) % 8 == 0:
                return offset + at
            at = window.find(_RECORD_MAGIC_BYTES, at + 1)
        if len(window) < _READ_BYTES:
            return None
        offset += _READ_BYTES - 8
    return None


def _checksum(
    tag: int, position: int, time: float, durable: int, payload: bytes, salt: int, offset: int
) -> int:
    place = _RECORD.pack(salt, tag, len(payload), 0, position, time, durable)
    return crc32(payload, crc32(place, offset & 0xFFFFFFFF))
