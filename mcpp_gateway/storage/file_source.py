"""The committed part of a log in files, as queries read it: by the index, and from the segments."""

import sqlite3
from collections.abc import Iterator
from typing import Final

import msgspec

from mcpp_gateway.core.history.pages import Found
from mcpp_gateway.core.history.plan import Plan, plan
from mcpp_gateway.core.history.query import HistoryQuery
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.core.records import Batch, decode_batch
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import DamagedError, Record

_READ_AT_ONCE: Final = 256


class FileSource:
    """The committed part of a log in files, for one query."""

    def __init__(self, log: SegmentLog, index: LogIndex, committed: int, start: int = 0) -> None:
        self.end = committed
        self.indexed_to = min(index.text.indexed_to, committed)
        self.start = max(start, log.start)
        self._log = log
        self._index = index
        self._batch: Batch | None = None  # the last one that was read

    def find(self, id: str) -> int | None:
        """Return the position of an envelope."""
        position = self._index.find(id)
        return None if position is None or position >= self.end else position

    def position_at(self, time: float) -> int:
        """Return the position of the first entry that is not older than a time, or the end."""
        try:
            return min(self._log.position_at(time), self.end)
        except OSError as error:
            raise UnreadableError(str(error)) from None

    def scan(self, query: HistoryQuery, start: int, end: int) -> Iterator[Found]:
        """Yield every entry between two positions that may match, in the query's order."""
        wanted = plan(query)
        indexed_to = start if wanted is None else max(start, min(end, self.indexed_to))
        if query.newest_first:
            yield from self._backward(indexed_to, end)
        if wanted is not None and start < indexed_to:
            yield from self._indexed(wanted, start, indexed_to, query.newest_first)
        if not query.newest_first:
            yield from self._forward(indexed_to, end)

    def _indexed(self, wanted: Plan, start: int, end: int, newest_first: bool) -> Iterator[Found]:
        """Yield what the index finds between two positions."""
        at = end if newest_first else start
        try:
            for found in self._index.text.candidates(wanted, start, end, newest_first=newest_first):
                for position in found.positions:
                    yield self._entry(position)
                    at = position if newest_first else position + 1
                yield Found(found.looked_to, 0.0, None)
                at = found.looked_to if newest_first else found.looked_to + 1
        except sqlite3.Error as error:
            self._index.text.report(error)
            if newest_first:
                yield from self._backward(start, at)
            else:
                yield from self._forward(at, end)

    def _entry(self, position: int) -> Found:
        """Return what stands at a position; without an entry where it cannot be read."""
        batch = self._batch
        if batch is None or not 0 <= position - batch.position < len(batch.entries):
            try:
                batch = self._batch = next(self._batches(position, position + 1), None)
            except DamagedError:
                batch = None
            if batch is None:
                return Found(position, 0.0, None)
        return Found(position, batch.time, batch.entries[position - batch.position])

    def _forward(self, start: int, end: int) -> Iterator[Found]:
        position = start
        while position < end:
            try:
                for batch in self._batches(position, end):
                    yield from _found(batch, position, end)
                    position = batch.position + len(batch.entries)
            except DamagedError:
                # What cannot be read is left out, and the page says that the log begins behind it.
                self.start = position = max(self._log.next_segment(position), self._log.start)

    def _backward(self, start: int, end: int) -> Iterator[Found]:
        while end > start:
            first = max(start, end - _READ_AT_ONCE)
            try:
                batches = list(self._batches(first, end))
            except DamagedError:
                self.start = min(self._log.next_segment(first), self.end)
                return
            for batch in reversed(batches):
                yield from reversed(_found(batch, start, end))
            end = batches[0].position

    def _batches(self, start: int, end: int) -> Iterator[Batch]:
        """Yield the batches that hold the positions between two. Raises DamagedError."""
        for record in self._log.read(start):
            if record.position >= end:
                return
            yield _decode(record)


def _decode(record: Record) -> Batch:
    try:
        return decode_batch(record.payload)
    except msgspec.DecodeError as error:
        raise DamagedError("a segment", record.offset, str(error)) from None


def _found(batch: Batch, start: int, end: int) -> list[Found]:
    """Return the entries of a batch between two positions, oldest first."""
    first, time = batch.position, batch.time
    return [
        Found(position, time, entry)
        for position, entry in enumerate(batch.entries, first)
        if start <= position < end
    ]
