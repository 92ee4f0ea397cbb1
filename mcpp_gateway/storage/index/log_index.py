"""The index of a log, written behind it by a thread of its own and on no commit path.

Ids come first: a lookup that is not indexed reads the log. Words and facts follow; a query reads
what is not indexed yet from the log itself (`history_reader`). Times need no index: positions are
in their order, see `SegmentLog.position_at`. Nothing here is fatal: without an index everything is
found by reading, more slowly, and the thread tries again.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

import msgspec

from mcpp_gateway.core.records import Batch, decode_batch
from mcpp_gateway.storage.index.database import IndexDatabase, IndexViews
from mcpp_gateway.storage.index.ids import IdIndex
from mcpp_gateway.storage.index.progress import IndexProgress
from mcpp_gateway.storage.index.text import TextIndex
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import DamagedError, Record

logger = logging.getLogger("mcpp.gateway")

IDS: Final = "index.sqlite"
TEXT: Final = "text.sqlite"
# Indexed in one transaction.
_IDS_AT_ONCE: Final = 5000
_TEXT_AT_ONCE: Final = 500
# If more entries than this wait, another process indexes them: a thread would take too much of the
# event loop's time. SQLite takes the interpreter's lock twice for each row.
_MANY_ENTRIES: Final = 3000
# While more than this wait, there is no rest between two pieces of work (L-27).
_MAX_WAITING_ENTRIES: Final = 100_000
# Further behind than this at the start, ids are indexed first: a lookup that reads so much of the
# log would hold up the gateway for longer than that.
_MAX_BEHIND: Final = 20_000
_REBUILD_AT_ONCE: Final = 100_000
# `find` reads this much of what is not indexed, from its end: 60 ms.
_MAX_SCAN_BYTES: Final = 64 << 20
# What is deleted from the log leaves the index in parts of many entries. If it takes this much, and
# as much again as the log, it is built anew from what the log still holds.
_MAX_STALE_BYTES: Final = 64 << 20
_RETRY_SECONDS: Final = 30.0
_ERRORS: Final = (sqlite3.Error, OSError)


class _IdRow(msgspec.Struct, array_like=True, gc=False):
    """What the index of ids needs of an entry; see `records` for the format."""

    id: str


class _IdBatch(msgspec.Struct, array_like=True, gc=False):
    term: int
    index: int
    position: int
    time: float
    entries: list[_IdRow]


_decode_ids = msgspec.msgpack.Decoder(_IdBatch).decode


class Indexer(Protocol):
    """Indexes logs elsewhere."""

    def __call__(
        self, log: SegmentLog, epoch: str, ids_generation: int, text_generation: int, committed: int
    ) -> IndexViews | None:
        """Index a part of a log; return how far it is indexed, or None if that was impossible."""


class LogIndex:
    """The index of one log. Owns its databases and the thread that writes them."""

    # After a piece of work with which nothing is left, the thread rests at least this long, so that
    # a busy log is not a transaction for every commit.
    rest_seconds = 0.1

    def __init__(
        self, folder: Path, log: SegmentLog, epoch: str, index_elsewhere: Indexer | None = None
    ) -> None:
        self.text = TextIndex(folder / TEXT, epoch)
        self.ids = IdIndex(folder / IDS, epoch)
        self._log = log
        self._epoch = epoch
        self._index_elsewhere = index_elsewhere
        self._works_elsewhere = False  # whether the last piece of work was done there
        self._built_from: dict[IndexDatabase, int] = {}  # those that were built anew
        self._ids_progress = IndexProgress("ids", folder.name)
        self._text_progress = IndexProgress("texts", folder.name)
        self.committed = 0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # held while ids are looked up, which two threads do

    def start(self, committed: int) -> None:
        """Catch up if ids are far behind, then index what is committed in a thread."""
        self.committed = committed
        for each in (self.ids, self.text):
            try:
                each.open()
                if not self._fits_log(each):
                    each.reset()
                    each.open()
            except _ERRORS as error:
                _warn("the log index cannot be opened", error)
        try:
            self._catch_up()
        except _ERRORS as error:
            _warn("the log index is not up to date", error)
            with suppress(*_ERRORS):
                self.ids.reset()
        self._thread = threading.Thread(target=self._run, name="log index", daemon=True)
        self._thread.start()
        self._wake.set()

    def advance(self, committed: int) -> None:
        """Take note that the log is committed up to a position."""
        self.committed = committed
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """Stop the thread and close the databases. Takes as long as one transaction."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self.close()
        for each in (self.ids, self.text):
            each.close_reader()

    @property
    def indexed_to(self) -> int:
        """The position up to which ids are indexed."""
        return self.ids.indexed_to

    def find(self, id: str) -> int | None:
        """Return the latest position of an envelope id that may still be read.

        Of what is not indexed, a bounded part is read; so it is not for the event loop.
        """
        found = self._scan(id, self.ids.indexed_to, self.committed)
        return self.lookup(id) if found is None else found

    def lookup(self, id: str) -> int | None:
        """Return the latest indexed position of an envelope id that may still be read."""
        with self._lock:
            try:
                return self.ids.find(id, self._log.start)
            except sqlite3.Error as error:
                self.ids.report(error)
        return None

    # --- in a process that does nothing else ------------------------------------------------------

    def index_here(self, seconds: float) -> None:
        """Index for some time, ids first. Raises sqlite3.Error and OSError."""
        until = time.monotonic() + seconds
        for each in (self.ids, self.text):
            each.open()
            if not self._fits_log(each):
                each.reset()
        while self.ids.indexed_to < self.committed and time.monotonic() < until:
            self._index_ids(_IDS_AT_ONCE)
        while self.text.indexed_to < self.committed and time.monotonic() < until:
            self._index_text()

    def views(self) -> IndexViews:
        """Return how far the log is indexed."""
        return IndexViews(self.ids.view(), self.text.view())

    def close(self) -> None:
        """Close the connections that write."""
        self.ids.close()
        self.text.close()

    # --- private --------------------------------------------------------------------------------

    def _scan(self, id: str, start: int, end: int) -> int | None:
        """Return the latest position of an id in a part of the log that is not indexed."""
        start = max(start, self._log.start, self._log.position_before_end(_MAX_SCAN_BYTES))
        key = id.encode()
        found = None
        with suppress(DamagedError, msgspec.DecodeError):  # the thread reports it
            for record in self._records(start, end):
                # Searched as bytes first: that is a hundred times faster than decoding.
                if key in record.payload:
                    for position, row in enumerate(_decode_ids(record.payload).entries):
                        if row.id == id and record.position + position < end:
                            found = record.position + position
        return found

    def _records(self, start: int, end: int) -> Iterator[Record]:
        """Yield the batches that hold the positions between two. Raises DamagedError."""
        if start < end:
            for record in self._log.read(start):
                if record.position >= end:
                    return
                yield record

    def _fits_log(self, index: IndexDatabase) -> bool:
        """Return whether the last indexed entry is the one that the log has there."""
        last = index.indexed_to - 1
        if last < self._log.start:
            return True
        with suppress(DamagedError, msgspec.DecodeError):
            for record in self._records(last, min(last + 1, self.committed)):
                batch = _decode_ids(record.payload)
                return batch.entries[last - batch.position].id == index.last_id
        return False

    def _catch_up(self) -> None:
        first = max(self.ids.indexed_to, self._log.start)
        if self.committed - first <= _MAX_BEHIND:
            return
        self._ids_progress.update(first, self.committed)
        while self.ids.indexed_to < self.committed:
            self._index_ids(_REBUILD_AT_ONCE)
            self._ids_progress.update(self.ids.indexed_to, self.committed)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                self._follow()
            except sqlite3.OperationalError as error:  # such as a full disk
                _warn("the log index cannot be written", error)
                self._wait_to_retry()
            except sqlite3.DatabaseError as error:
                _warn("building the log index again", error)
                self.ids.damaged = self.text.damaged = True
                self._wake.set()
            except OSError as error:
                _warn("the log index cannot be written", error)
                self._wait_to_retry()

    def _wait_to_retry(self) -> None:
        self._stopping.wait(_RETRY_SECONDS)
        self._wake.set()

    def _follow(self) -> None:
        """Index until nothing is left to do."""
        while not self._stopping.is_set():
            began = time.monotonic()
            behind = self._step()
            if behind is None:
                return
            self._stopping.wait(self._rest(time.monotonic() - began, behind))

    def _rest(self, spent: float, behind: int) -> float:
        """Return how long to rest after a piece of work: as long as it took, if not much waits."""
        if behind > _MAX_WAITING_ENTRIES and self._works_elsewhere:
            return 0.0
        return spent if behind else max(spent, self.rest_seconds)

    def _step(self) -> int | None:
        """Do one piece of work; return how many entries wait, or None if there was none."""
        for each in (self.ids, self.text):
            if each.damaged or self._is_oversized(each):
                each.reset()
            each.open()
        if self.text.indexed_to < self.committed or self.ids.indexed_to < self.committed:
            self._drop()
            self._works_elsewhere = self._have_indexed()
            if not self._works_elsewhere:
                if self.ids.indexed_to < self.committed:
                    self._index_ids(_IDS_AT_ONCE)
                if self.ids.indexed_to >= self.committed:
                    self._index_text()
            indexed_to = max(self.text.indexed_to, self._log.start)
            self._text_progress.update(indexed_to, self.committed)
            return max(0, self.committed - indexed_to)
        return 1 if self._drop() else None

    def _drop(self) -> bool:
        """Drop a part that retention has cut off; return whether there was one."""
        start = self._log.start
        return self.ids.drop_before(start) or self.text.drop_before(start)

    def _is_oversized(self, index: IndexDatabase) -> bool:
        """Return whether an index is too large, and at least half of it is of no use any more."""
        start = self._log.start
        stale = start - max(index.first_position, self._built_from.get(index, 0))
        if stale <= 0 or stale < index.indexed_to - start:
            return False
        if index.size_bytes <= _MAX_STALE_BYTES + self._log.held_bytes:
            return False
        self._built_from[index] = start
        return True

    def _index_ids(self, limit: int) -> None:
        start = max(self.ids.indexed_to, self._log.start)
        ids: list[str] = []
        end = start
        try:
            for record in self._records(start, self.committed):
                rows = _decode_ids(record.payload).entries
                ids += [row.id for row in rows[max(0, start - record.position) :]]
                end = record.position + record.entries
                if len(ids) >= limit:
                    break
        except (DamagedError, msgspec.DecodeError) as error:
            end = end if ids else self._skip(start, error)
        self.ids.write(ids, start, end)

    def _have_indexed(self) -> bool:
        """Return whether another process has indexed some entries, of which many wait."""
        behind = self.committed - max(
            min(self.ids.indexed_to, self.text.indexed_to), self._log.start
        )
        if self._index_elsewhere is None or behind < _MANY_ENTRIES:
            return False
        self.close()  # one process writes at a time
        found = self._index_elsewhere(
            self._log, self._epoch, self.ids.generation, self.text.generation, self.committed
        )
        if found is None:
            return False
        self.ids.show(found.ids)
        self.text.show(found.text)
        return True

    def _index_text(self) -> None:
        start = end = max(self.text.indexed_to, self._log.start)
        batches: list[Batch] = []
        count = 0
        try:
            for record in self._records(start, self.committed):
                batches.append(decode_batch(record.payload))
                count += record.entries
                end = record.position + record.entries
                if count >= _TEXT_AT_ONCE:
                    break
        except (DamagedError, msgspec.DecodeError) as error:
            end = end if batches else self._skip(start, error)
        self.text.write(batches, start, end)

    def _skip(self, position: int, error: Exception) -> int:
        """Return where to go on behind a part that cannot be read."""
        end = min(self._log.next_segment(position), self.committed)
        if end > self._log.start:  # otherwise retention was faster
            _warn("cannot index a part of the log", error)
        return end


def _warn(message: str, error: Exception) -> None:
    logger.warning(message, extra={"reason": str(error)})
