"""A pod's journal in files: the latest entries in memory, all of them in segments.

Reads of what is no longer in memory come from the segments, a bounded piece at a time, mostly out
of the page cache.
"""

import logging
from collections.abc import Generator, Sequence
from typing import Final

import msgspec

from mcpp_gateway.core.journal import Window, reading_cost
from mcpp_gateway.core.records import LogEntry, WindowEntry, decode_batch
from mcpp_gateway.storage.group_writer import GroupWriter
from mcpp_gateway.storage.index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import DamagedError

logger = logging.getLogger("mcpp.gateway")

# Read from the segments at a time, and one record more: about a millisecond.
_READ_BYTES: Final = 262_144


class FileJournal:
    """The log of one pod, kept in a folder. Owns the window of the latest entries."""

    kind: Final = "file"

    def __init__(self, log: SegmentLog, writer: GroupWriter, window: Window) -> None:
        self.committed = window.end
        self.end = window.end  # the position that the next entry will have
        self._log = log
        self._writer = writer
        self._window = window
        self._index: LogIndex | None = None
        self._readable_from = 0  # behind what was found to be damaged

    @property
    def start(self) -> int:
        """The oldest position that can still be read."""
        return max(self._log.start, self._readable_from)

    @property
    def accepting(self) -> bool:
        """Whether participants' envelopes can be taken."""
        writer = self._writer  # `GroupWriter.accepting` without a call: this is asked every time
        return writer.room_bytes > writer.unwritten_bytes

    @property
    def admitting(self) -> bool:
        """Whether the gateway's own envelopes can be taken."""
        return self._writer.admitting

    @property
    def disk_bytes(self) -> int:
        """The bytes that the segments take on the disk."""
        return self._log.disk_bytes

    def use_index(self, index: LogIndex) -> None:
        """Look up ids that are not in the window in this index."""
        self._index = index

    def append(self, entry: LogEntry) -> None:
        """Add an entry at the end. It is committed later."""
        self._window.append(entry)
        self._writer.append(entry)
        self.end += 1

    def find(self, id: str) -> LogEntry | None:
        """Return the entry of an envelope id of the dedupe window.

        Its text is empty if retention has deleted it.
        """
        position = self._window.position(id)
        if position is None:
            return None
        entry = self._window[position]
        if isinstance(entry, LogEntry):
            return entry
        try:
            found = self.read(position, 1) if position >= self.start else []
        except DamagedError:
            found = []
        return found[0] if found else LogEntry(entry.id, entry.sender, None, "", None, b"")

    def seek(self, id: str) -> Generator[int, None, int | None]:
        """Return the position that follows an envelope, if it can still be read.

        What is neither in the window nor indexed is searched, a bounded piece at a time.
        """
        start = self._window.start
        position = self._window.position(id)
        if position is None:
            indexed_to = 0
            if self._index is not None:
                indexed_to = self._index.indexed_to  # first: it may grow meanwhile
                position = self._index.lookup(id)
            later = yield from self._search(id, max(indexed_to, self.start), start)
            position = position if later is None else later
        return None if position is None or position < self.start else position + 1

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return some entries from a position on, at most `limit`.

        Raises DamagedError where the segments cannot be read.
        """
        position = max(position, self.start)
        stop = min(position + limit, self.end)
        found: list[LogEntry] = []
        for at in range(position, stop) if position >= self._window.start else ():
            entry = self._window[at]
            if not isinstance(entry, LogEntry):
                break
            found.append(entry)
        return found or self._read_segments(position, min(stop, self.committed))

    def commit(self, end: int) -> None:
        """Take note that everything before a position is durable."""
        self.committed = end
        self._window.trim(end)

    def window(self) -> Sequence[WindowEntry]:
        """Return the dedupe window for a state."""
        return self._window.snapshot()

    def _search(self, id: str, start: int, end: int) -> Generator[int, None, int | None]:
        """Return the latest position of an id between two positions."""
        key, found, size = id.encode(), None, 0
        try:
            for record in self._log.read(start) if start < end else ():
                if record.position >= end:
                    break
                # Searched as bytes first: that is a hundred times faster than decoding.
                if key in record.payload:
                    entries = decode_batch(record.payload).entries
                    found = next(
                        (
                            record.position + at
                            for at in reversed(range(len(entries)))
                            if entries[at].id == id
                        ),
                        found,
                    )
                size += len(record.payload)
                if size >= _READ_BYTES:
                    yield reading_cost(0, size)
                    size = 0
        except (DamagedError, msgspec.DecodeError):
            pass  # what cannot be read cannot be found; readers report it
        return found

    def _read_segments(self, position: int, stop: int) -> list[LogEntry]:
        try:
            return self._decode_segments(position, stop)
        except DamagedError as error:
            if position < self._log.start:  # deleted by retention meanwhile
                raise
            logger.error("a part of the log cannot be read", extra={"reason": str(error)})  # noqa: TRY400
            self._readable_from = max(self._readable_from, stop)
            raise

    def _decode_segments(self, position: int, stop: int) -> list[LogEntry]:
        found: list[LogEntry] = []
        size = 0
        for record in self._log.read(position):
            if record.position >= stop or size >= _READ_BYTES:
                break
            size += len(record.payload)
            try:
                batch = decode_batch(record.payload)
            except msgspec.DecodeError as error:
                raise DamagedError("a segment", record.offset, str(error)) from None
            first = max(0, position - batch.position)
            found += batch.entries[first : stop - batch.position]
            if len(found) >= stop - position:
                break
        return found
