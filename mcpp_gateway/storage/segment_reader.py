"""Reading entries that are no longer in memory from the segments, a bounded piece at a time.

Mostly that comes out of the page cache, so it is done on the event loop.
"""

import logging
from collections.abc import Generator
from typing import Final

import msgspec

from mcpp_gateway.core.journal import reading_cost
from mcpp_gateway.core.records import LogEntry, decode_batch
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import DamagedError

logger = logging.getLogger("mcpp.gateway")

# Read from the segments at a time, and one record more: about a millisecond.
_READ_BYTES: Final = 262_144


class SegmentReader:
    """Entries of a log in files, by position and by id."""

    def __init__(self, log: SegmentLog) -> None:
        self.index: LogIndex | None = None
        self._log = log
        self._readable_from = 0  # behind what was found to be damaged

    @property
    def start(self) -> int:
        """The oldest position that can still be read."""
        return max(self._log.start, self._readable_from)

    def seek(self, id: str, end: int) -> Generator[int, None, int | None]:
        """Return the latest position of an id before `end`, if it can still be read.

        What is not indexed is searched, a bounded piece at a time.
        """
        indexed_to, position = 0, None
        if self.index is not None:
            indexed_to = self.index.indexed_to  # first: it may grow meanwhile
            position = self.index.lookup(id)
        later = yield from self._search(id, max(indexed_to, self.start), end)
        position = position if later is None else later
        return None if position is None or position < self.start else position

    def read(self, position: int, stop: int) -> list[LogEntry]:
        """Return some entries between two positions. Raises DamagedError."""
        try:
            return self._decode(position, stop)
        except DamagedError as error:
            if position < self._log.start:  # deleted by retention meanwhile
                raise
            logger.error("a part of the log cannot be read", extra={"reason": str(error)})  # noqa: TRY400
            self._readable_from = max(self._readable_from, stop)
            raise

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

    def _decode(self, position: int, stop: int) -> list[LogEntry]:
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
