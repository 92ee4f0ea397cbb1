"""Rewriting segments without what is erased: the log is the old one or the new one, never both.

Each segment that changes is written beside the old one, under its name and `.new`, and synced. Then
one small file, the decision, is written and synced. From then on the new segments count: they are
renamed over the old ones, and the decision is removed. An end before the decision leaves the old
log, and one behind it the new log, because opening a log begins with `finish`.

A new segment has the position, the salt and the records of the old one, so the seals still fit.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import msgspec

from mcpp.errors import McppError
from mcpp.protocol.contexts import Lineage
from mcpp_gateway.core.history.erasing import Erasure, tombstone
from mcpp_gateway.core.records import (
    Batch,
    LogEntry,
    State,
    decode_batch,
    decode_state,
    encode_batch,
    encode_state,
)
from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import Disk, DiskFile
from mcpp_gateway.storage.recovery import END_BYTES
from mcpp_gateway.storage.segments import (
    BATCH,
    HEADER_BYTES,
    SEAL,
    STATE,
    STOPPED,
    DamagedError,
    NewRecord,
    SegmentHeader,
)

logger = logging.getLogger("mcpp.gateway")

NEW: Final = ".new"
DECISION: Final = "erasure"
_DECIDED: Final = b"MCPP erasure decided\n"
_WRITE_BYTES: Final = 1 << 20


class ErasureError(McppError):
    """Nothing was erased, for a reason that is described in one line."""


class _End(NamedTuple):
    """Where a log ends: what the next batch has to have."""

    term: int
    batch_index: int
    position: int
    time: float


def finish(disk: Disk) -> None:
    """Complete an erasure that was decided; remove what another one left. Raises OSError."""
    names = disk.names()
    if not any(name == DECISION or _is_new(name) for name in names):
        return
    decided = is_decided(disk)
    if decided:
        # Written again: after a failed sync the page cache may hold what the disk does not.
        _decide(disk.open(DECISION))
    disk.sync()
    for name in filter(_is_new, names):
        if decided:
            disk.rename(name, name.removesuffix(NEW))
        else:
            disk.remove(name)
    disk.sync()
    if DECISION in names:
        disk.remove(DECISION)
        disk.sync()
    logger.info("an interrupted erasure was %s", "completed" if decided else "undone")


def is_decided(disk: Disk) -> bool:
    """Return whether new segments count that have not taken their places yet."""
    try:
        return disk.open(DECISION, write=False).read(0, 1024) == _DECIDED
    except FileNotFoundError:
        return False


def count_entries(disk: Disk, erasure: Erasure) -> int:
    """Return how many entries an erasure would change. Raises DamagedError and OSError."""
    names = filter(segments.is_segment_name, disk.names())
    return sum(len(_affected(disk, name, erasure)) for name in names)


def erase(
    disk: Disk,
    erasure: Erasure,
    *,
    new_id: Callable[[], str],
    now: float,
    before_decision: Callable[[], None],
    remove_blobs: Callable[[frozenset[str], frozenset[str]], None] = lambda gone, kept: None,
) -> int:
    """Erase entries of a log that is in order and that no gateway uses; return how many.

    `before_decision` removes copies of the texts, such as an index; `remove_blobs` is called at the
    end with the hashes of those that only erased entries named, and of those that others name.
    Raises DamagedError, ErasureError and OSError.
    """
    names = [name for name in disk.names() if segments.is_segment_name(name)]
    contexts: dict[tuple[object, ...], Lineage] = {}  # as it was at different times
    counts: dict[str, int] = {}
    erased_blobs, kept_blobs = _BlobNames(), _BlobNames()
    for name in names:
        affected = _affected(disk, name, erasure, kept_blobs)
        counts[name] = len(affected)
        for entry in affected:
            erased_blobs.add(entry)
        for context in filter(None, map(erasure.erased_context, affected)):
            contexts[context.id, context.type, context.ancestors] = context
    changes = _StateChanges(
        erasure,
        frozenset(erased_blobs.public - kept_blobs.public),
        frozenset(erased_blobs.private - kept_blobs.private),
    )
    kept = frozenset(kept_blobs.all())
    gone = frozenset(erased_blobs.all() - kept)
    with_states = {name for name in names if _has_state(disk, name, changes)}
    total = sum(counts.values())
    if not total and not with_states:
        remove_blobs(gone, kept)
        return 0
    try:
        for name in names[:-1]:
            if counts[name] or name in with_states:
                _Rewriting(disk, name, changes).finish(b"")
        rewriting = _Rewriting(disk, names[-1], changes)
        known = tuple(contexts.values())
        rewriting.announce(lambda time: erasure.announcement(new_id(), total, time, known), now)
        rewriting.finish(bytes(END_BYTES))
    except (OSError, DamagedError):
        finish(disk)
        raise
    disk.sync()
    before_decision()
    _decide(disk.open(DECISION, create=True))
    finish(disk)
    remove_blobs(gone, kept)
    return total


def _decide(file: DiskFile) -> None:
    file.write(0, _DECIDED)
    file.sync()


def _is_new(name: str) -> bool:
    return name.endswith(NEW) and segments.is_segment_name(name.removesuffix(NEW))


def _records(file: DiskFile, name: str, header: SegmentHeader) -> Iterator[segments.Record]:
    offset = HEADER_BYTES
    while (record := segments.read_record(file, header.salt, offset)) is not None:
        yield record
        offset = record.end


def _open(disk: Disk, name: str) -> tuple[DiskFile, SegmentHeader]:
    file = disk.open(name, write=False)
    header = segments.decode_header(name, file.read(0, HEADER_BYTES))
    if header is None:
        raise DamagedError(name, 0, "the segment's header does not match its checksum")
    return file, header


class _StateChanges(NamedTuple):
    """What an erasure changes in states: cards, and the names of blobs."""

    erasure: Erasure
    public: frozenset[str]  # the blobs that are no longer named for all
    private: frozenset[str]  # and those no longer named for addressees

    def apply(self, state: State) -> State:
        without_cards = self.erasure.without_cards(state)
        return self.erasure.without_names(without_cards, self.public, self.private)


class _BlobNames:
    """The blobs that entries name, for all and for their addressees."""

    def __init__(self) -> None:
        self.public: set[str] = set()
        self.private: set[str] = set()

    def add(self, entry: LogEntry) -> None:
        self.public.update(entry.public_attachments)
        self.private.update(entry.private)

    def all(self) -> set[str]:
        return self.public | self.private


def _affected(
    disk: Disk, name: str, erasure: Erasure, kept_blobs: _BlobNames | None = None
) -> list[LogEntry]:
    """Return the entries of a segment that an erasure changes, without their texts.

    Adds what all others name to `kept_blobs`.
    """
    file, header = _open(disk, name)
    found: list[LogEntry] = []
    for record in _records(file, name, header):
        if record.kind == BATCH:
            batch = _decode(name, record)
            found += [
                msgspec.structs.replace(entry, text=b"")
                for entry in batch.entries
                if erasure.includes(entry, batch.time)
            ]
            if kept_blobs is not None:
                for entry in batch.entries:
                    if entry.attachments and not erasure.includes(entry, batch.time):
                        kept_blobs.add(entry)
    return found


def _has_state(disk: Disk, name: str, changes: _StateChanges) -> bool:
    """Return whether a state of a segment has a card or a name of a blob that is removed."""
    file, header = _open(disk, name)
    states = [
        decode_state(one.payload) for one in _records(file, name, header) if one.kind == STATE
    ]
    return any(changes.apply(state) is not state for state in states)


def _decode(name: str, record: segments.Record) -> Batch:
    try:
        return decode_batch(record.payload)
    except msgspec.DecodeError as error:
        raise DamagedError(name, record.offset, str(error)) from None


class _Rewriting:
    """One segment, copied without what is erased. Owns the new file."""

    def __init__(self, disk: Disk, name: str, changes: _StateChanges) -> None:
        old, self._header = _open(disk, name)
        self._file = disk.open(name + NEW, create=True)
        self._offset = HEADER_BYTES
        self._written = 0
        self._parts = [segments.encode_header(self._header)]
        self._end = _End(0, 0, self._header.position, self._header.created)
        self._stopped = False
        for record in _records(old, name, self._header):
            payload = record.payload
            if record.kind == BATCH:
                payload = self._rewrite(_decode(name, record), changes.erasure)
            elif record.kind == STATE:
                state = decode_state(payload)
                payload = encode_state(changes.apply(state))
                self._end = _End(state.term, state.index, record.position, record.time)
            self._stopped = record.kind == SEAL and payload == STOPPED
            self._add(NewRecord(record.kind, record.position, record.time, payload, record.entries))

    def announce(self, announcement: Callable[[float], LogEntry], now: float) -> None:
        """Add the announcement at the end of the log, which is this segment's."""
        end = self._end
        time = max(now, end.time)
        entries = [announcement(time)]
        batch = Batch(end.term, end.batch_index, end.position, time, entries)
        self._add(NewRecord(BATCH, end.position, time, encode_batch(batch), 1))
        if self._stopped:
            self._add(NewRecord(SEAL, end.position + 1, time, STOPPED))

    def finish(self, tail: bytes) -> None:
        """Write the rest and a tail, and return when all of it is on stable storage."""
        self._parts.append(tail)
        self._write()
        self._file.sync()
        self._file.close()

    def _rewrite(self, batch: Batch, erasure: Erasure) -> bytes:
        entries = [
            tombstone(entry, batch.time) if erasure.includes(entry, batch.time) else entry
            for entry in batch.entries
        ]
        end = batch.position + len(entries)
        self._end = _End(batch.term, batch.index + 1, end, batch.time)
        return encode_batch(msgspec.structs.replace(batch, entries=entries))

    def _add(self, record: NewRecord) -> None:
        # Everything before it counts as synced: the file is used only once all of it is.
        offset = self._offset
        data = segments.encode_record(record, salt=self._header.salt, offset=offset, durable=offset)
        self._parts.append(data)
        self._offset += len(data)
        if self._offset - self._written > _WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        data = b"".join(self._parts)
        self._file.write(self._written, data)
        self._written += len(data)
        self._parts = []
