"""A rebuildable index of a log in SQLite: positions by id, sender, kind and context.

The segments are the truth; the index is written behind them by a thread of its own and is on no
commit path. It records how far it has read, in the same transaction as what it has read, so it goes
on from there after any end. Deleted, damaged or of another log, it is built again. A lookup also
searches the part of the log that is not yet indexed. Times need no index: positions are in their
order, see `SegmentLog.position_at`.
"""

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import DamagedError

logger = logging.getLogger("mcpp.gateway")

_VERSION: Final = 2
_TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    sender TEXT NOT NULL,
    kind TEXT NOT NULL,
    context TEXT
);
"""
# Created behind a rebuild, which is faster than keeping them up to date meanwhile.
_INDEXES: Final = """
CREATE INDEX IF NOT EXISTS entries_id ON entries (id);
CREATE INDEX IF NOT EXISTS entries_sender ON entries (sender);
CREATE INDEX IF NOT EXISTS entries_kind ON entries (kind);
CREATE INDEX IF NOT EXISTS entries_context ON entries (context) WHERE context IS NOT NULL;
"""
_INSERT: Final = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)"
# A transaction holds this many entries. Between two the thread rests, so that it takes a quarter of
# one core at most and the gateway's own thread is not kept waiting for the interpreter's lock; and
# for this long at least, so that a busy log is not a transaction for every commit.
_ENTRIES_AT_ONCE: Final = 1000
_REST_FACTOR: Final = 3.0
_REST_SECONDS: Final = 0.1
# Deleted in one transaction, so that retention of a day's segment holds up nothing.
_DELETE_AT_ONCE: Final = 5000
# Further behind than this at the start, the index is brought up to date first: a lookup that reads
# so much of the log would hold up the gateway for longer than that.
_MAX_BEHIND: Final = 20_000
_REBUILD_AT_ONCE: Final = 50_000
_PROGRESS_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 30.0


class _IndexedEntry(msgspec.Struct, array_like=True, gc=False):
    """What the index needs of an entry; see `records` for the format."""

    id: str
    sender: str
    to: msgspec.Raw
    kind: str
    context: tuple[str, msgspec.Raw, msgspec.Raw] | None


class _IndexedBatch(msgspec.Struct, array_like=True, gc=False):
    term: int
    index: int
    position: int
    time: float
    entries: list[_IndexedEntry]


_decode = msgspec.msgpack.Decoder(_IndexedBatch).decode
_Row = tuple[int, str, str, str, str | None]


class LogIndex:
    """The index of one log. Owns its database file and the thread that writes it."""

    def __init__(self, path: Path, log: SegmentLog, epoch: str) -> None:
        """Open the index, or create it. Raises OSError."""
        self._path = path
        self._log = log
        self._epoch = epoch
        self._committed = 0
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # held while the reader is used or replaced
        self._reader = _open(path, epoch)
        self.indexed_to = _indexed_to(self._reader)

    def start(self, committed: int) -> None:
        """Catch up if the index is far behind, then index what is committed in a thread."""
        self._committed = committed
        try:
            if not self._fits_log():
                self._reset()
            behind = committed - max(self.indexed_to, self._log.start)
            if behind > _MAX_BEHIND:
                # From scratch it is written without a journal, which takes a third of the time.
                if behind > (committed - self._log.start) // 3:
                    self._reset()
                self._catch_up()
        except sqlite3.Error as error:
            logger.warning("the log index is not up to date", extra={"reason": str(error)})
            with suppress(sqlite3.Error):
                self._reset()
        self._thread = threading.Thread(target=self._run, name="log index", daemon=True)
        self._thread.start()
        self._wake.set()

    def advance(self, committed: int) -> None:
        """Take note that the log is committed up to a position."""
        self._committed = committed
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """Stop the thread and close the database. Takes as long as one transaction."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._reader.close()

    # --- lookups --------------------------------------------------------------------------------

    def find(self, id: str) -> int | None:
        """Return the latest position of an envelope id that may still be read."""
        indexed_to = self.indexed_to
        found = [row[0] for row in self._unindexed(indexed_to, id.encode()) if row[1] == id]
        return found[-1] if found else self.lookup(id)

    def lookup(self, id: str) -> int | None:
        """Return the latest indexed position of an envelope id that may still be read."""
        query = "SELECT max(position) FROM entries WHERE id = ? AND position >= ?"
        rows = self._query(query, (id, self._log.start))
        return rows[0][0] if rows else None

    def search(
        self,
        *,
        sender: str | None = None,
        kind: str | None = None,
        context: str | None = None,
        start: int = 0,
        limit: int = 100,
    ) -> list[int]:
        """Return the first positions from `start` on of entries with all the given properties."""
        indexed_to = self.indexed_to
        start = max(start, self._log.start)
        wanted = {"sender": sender, "kind": kind, "context": context}
        given = {name: value for name, value in wanted.items() if value is not None}
        clauses = " AND ".join(["position >= ?", *(f"{name} = ?" for name in given)])
        query = f"SELECT position FROM entries WHERE {clauses} ORDER BY position LIMIT ?"
        found = [row[0] for row in self._query(query, (start, *given.values(), limit))]
        if len(found) < limit:
            known = found[-1] if found else -1
            for position, _, *properties in self._unindexed(max(indexed_to, start)):
                row = dict(zip(wanted, properties, strict=True))
                if position > known and all(row[name] == given[name] for name in given):
                    found.append(position)
        return found[:limit]

    def _query(self, query: str, values: tuple[object, ...]) -> list[Any]:
        try:
            with self._lock:
                return self._reader.execute(query, values).fetchall()
        except sqlite3.Error as error:
            # The thread finds the same and repairs it.
            logger.warning("the log index cannot be read", extra={"reason": str(error)})
            return []

    def _unindexed(self, position: int, key: bytes = b"") -> Iterator[_Row]:
        """Yield the committed rows from a position on, of batches that contain a key."""
        position = max(position, self._log.start)
        committed = self._committed
        try:
            for record in self._log.read(position) if position < committed else ():
                if record.position >= committed:
                    return
                # Searched as bytes first: that is a hundred times faster than decoding.
                if key in record.payload:
                    yield from (row for row in _rows(record.payload) if row[0] >= position)
        except (DamagedError, msgspec.DecodeError):
            return  # what cannot be read cannot be found; the thread reports it

    # --- writing --------------------------------------------------------------------------------

    def _fits_log(self) -> bool:
        """Return whether the last indexed entry is the one that the log has there."""
        last = self.indexed_to - 1
        if last < self._log.start:
            return True
        row = self._reader.execute("SELECT id FROM entries WHERE position = ?", (last,)).fetchone()
        found = next(self._unindexed(last), None)
        return row is not None and found is not None and row[0] == found[1]

    def _catch_up(self) -> None:
        began = told = time.monotonic()
        first = max(self.indexed_to, self._log.start)
        database = self._reader
        rebuild = self.indexed_to <= self._log.start
        if rebuild:
            database = self._begin_rebuild()
        while self.indexed_to < self._committed:
            self._index_some(database, _REBUILD_AT_ONCE)
            now = time.monotonic()
            if now - told > _PROGRESS_SECONDS:
                told = now
                done = (self.indexed_to - first) / (self._committed - first)
                logger.info("indexing the log: %d %%", 100 * done)
        if rebuild:
            self._end_rebuild(database)
        facts = {"entries": self._committed - first, "seconds": round(time.monotonic() - began, 1)}
        logger.info("indexed the log", extra=facts)

    def _begin_rebuild(self) -> sqlite3.Connection:
        """Return a new database without protection against crashes, which is written once.

        Until the end it does not say of which log it is, so it is not used after a crash.
        """
        self._reader.close()
        _remove(self._path)
        database = sqlite3.connect(self._path)
        database.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_TABLES}")
        return database

    def _end_rebuild(self, database: sqlite3.Connection) -> None:
        database.executescript(_INDEXES)
        database.close()
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
        self._reader = _connect(self._path)
        _identify(self._reader, self._epoch)

    def _reset(self) -> None:
        """Replace the database by an empty one."""
        with self._lock:
            self.indexed_to = 0  # first: if there is no space for another one, all is searched
            self._reader.close()
            self._reader = _create(self._path, self._epoch)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(_connect(self._path)) as database:
                    self._follow(database)
            except sqlite3.OperationalError as error:  # such as a full disk
                logger.warning("the log index cannot be written", extra={"reason": str(error)})
                self._stopping.wait(_RETRY_SECONDS)
            except sqlite3.DatabaseError as error:
                logger.warning("building the log index again", extra={"reason": str(error)})
                self._reset()

    def _follow(self, database: sqlite3.Connection) -> None:
        database.executescript(_INDEXES)
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            while not self._stopping.is_set():
                began = time.monotonic()
                busy = self._delete_some(database)
                if self.indexed_to < self._committed:
                    self._index_some(database, _ENTRIES_AT_ONCE)
                elif not busy:
                    break
                spent = time.monotonic() - began
                self._stopping.wait(max(spent * _REST_FACTOR, _REST_SECONDS))

    def _index_some(self, database: sqlite3.Connection, limit: int) -> None:
        rows, end = self._read_some(max(self.indexed_to, self._log.start), limit)
        with database:
            database.executemany(_INSERT, rows)
            database.execute("INSERT OR REPLACE INTO meta VALUES ('to', ?)", (str(end),))
        self.indexed_to = end

    def _read_some(self, end: int, limit: int) -> tuple[list[_Row], int]:
        """Return the rows of some batches from a position on, and where they end."""
        committed = self._committed
        rows: list[_Row] = []
        try:
            for record in self._log.read(end) if end < committed else ():
                if record.position >= committed or len(rows) >= limit:
                    break
                rows += _rows(record.payload)
                end = record.position + record.entries
        except (DamagedError, msgspec.DecodeError) as error:
            if not rows:
                end = min(self._log.next_segment(end), committed)
                if end > self._log.start:  # otherwise retention was faster
                    logger.warning("cannot index a part of the log", extra={"reason": str(error)})
        return rows, end

    def _delete_some(self, database: sqlite3.Connection) -> bool:
        """Delete some of the rows that retention has cut off; return whether there were any."""
        (first,) = database.execute("SELECT min(position) FROM entries").fetchone()
        start = self._log.start
        if first is None or first >= start:
            return False
        with database:
            below = min(start, first + _DELETE_AT_ONCE)
            database.execute("DELETE FROM entries WHERE position < ?", (below,))
        return True


def _rows(payload: bytes) -> list[_Row]:
    batch = _decode(payload)
    return [
        (at, entry.id, entry.sender, entry.kind, entry.context and entry.context[0])
        for at, entry in enumerate(batch.entries, batch.position)
    ]


def _open(path: Path, epoch: str) -> sqlite3.Connection:
    """Open the database, replacing one that is of another log or version, or is damaged."""
    try:
        database = _connect(path)
        known = dict(database.execute("SELECT key, value FROM meta"))
        if (known.get("version"), known.get("epoch")) == (str(_VERSION), epoch):
            return database
        database.close()
    except sqlite3.DatabaseError:
        pass
    try:
        return _create(path, epoch)
    except sqlite3.Error as error:
        raise OSError(f"{path.name}: {error}") from error


def _create(path: Path, epoch: str) -> sqlite3.Connection:
    _remove(path)
    database = _connect(path)
    database.executescript(_TABLES)
    _identify(database, epoch)
    return database


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _identify(database: sqlite3.Connection, epoch: str) -> None:
    """Note of which log and version a database is."""
    with database:
        rows = [("version", str(_VERSION)), ("epoch", epoch)]
        database.executemany("INSERT INTO meta VALUES (?, ?)", rows)


def _connect(path: Path) -> sqlite3.Connection:
    # After damage, the thread closes and replaces the connection of lookups.
    database = sqlite3.connect(path, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    return database


def _indexed_to(database: sqlite3.Connection) -> int:
    row = database.execute("SELECT value FROM meta WHERE key = 'to'").fetchone()
    return 0 if row is None else int(row[0])
