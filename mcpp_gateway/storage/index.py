"""A rebuildable index of a log in SQLite: positions by id, context, sender, kind and time.

The segments are the truth; the index is written behind them by a thread of its own and is on no
commit path. It records how far it has read, in the same transaction as what it has read, so it goes
on from there after any end. Deleted, it is built again. A lookup also searches the part of the log
that is not yet indexed.
"""

import logging
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Final

from mcpp_gateway.core.records import decode_batch
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import DamagedError

logger = logging.getLogger("mcpp.gateway")

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    time REAL NOT NULL,
    sender TEXT NOT NULL,
    kind TEXT NOT NULL,
    context TEXT
);
CREATE INDEX entries_id ON entries (id);
CREATE INDEX entries_time ON entries (time);
CREATE INDEX entries_sender ON entries (sender);
CREATE INDEX entries_kind ON entries (kind);
CREATE INDEX entries_context ON entries (context) WHERE context IS NOT NULL;
"""
_INSERT: Final = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?)"
# A transaction holds this many entries. Between two the thread rests, so that it takes a quarter of
# one core at most and the gateway's own thread is not kept waiting for the interpreter's lock.
_ENTRIES_AT_ONCE: Final = 1000
_REST_FACTOR: Final = 3.0
_PROGRESS_SECONDS: Final = 2.0
_PROGRESS_ENTRIES: Final = 100_000


class LogIndex:
    """The index of one log. Owns its database file and the thread that writes it."""

    def __init__(self, path: Path, log: SegmentLog, epoch: str) -> None:
        self._path = path
        self._log = log
        self._epoch = epoch
        self._committed = 0
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._reader = _open(path, epoch)
        self.indexed_to = _indexed_to(self._reader)

    def start(self, committed: int) -> None:
        """Start to index what is committed."""
        self._committed = committed
        if self.indexed_to > committed:  # of a log that has lost its end since
            self._reader.executescript("DELETE FROM entries; DELETE FROM meta WHERE key = 'to';")
            self.indexed_to = 0
        self._thread = threading.Thread(target=self._run, name="log index", daemon=True)
        self._thread.start()
        self._wake.set()

    def advance(self, committed: int) -> None:
        """Take note that the log is committed up to a position."""
        self._committed = committed
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """Stop the thread and close the database."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._reader.close()

    def find(self, id: str) -> int | None:
        """Return the position of an envelope id."""
        indexed_to = self.indexed_to
        row = self._reader.execute("SELECT position FROM entries WHERE id = ?", (id,)).fetchone()
        if row is not None:
            return int(row[0])
        key = id.encode()
        for record in self._log.read(indexed_to):
            # Searched as bytes first: that is a hundred times faster than decoding.
            if key in record.payload:
                for at, entry in enumerate(decode_batch(record.payload).entries):
                    if entry.id == id:
                        return record.position + at
        return None

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with closing(sqlite3.connect(self._path)) as database:
                while not self._stopping:
                    self._wake.wait()
                    self._wake.clear()
                    self._catch_up(database)
        except (sqlite3.Error, DamagedError, OSError):
            # Nothing depends on the index but the speed of lookups.
            logger.exception("the log index stopped; delete %s to build it again", self._path.name)

    def _catch_up(self, database: sqlite3.Connection) -> None:
        behind = self._committed - self.indexed_to
        told = time.monotonic()
        while self.indexed_to < self._committed and not self._stopping:
            began = time.monotonic()
            self._index_some(database)
            now = time.monotonic()
            if behind > _PROGRESS_ENTRIES and now - told > _PROGRESS_SECONDS:
                told = now
                logger.info("indexing the log: %d of %d", self.indexed_to, self._committed)
            time.sleep((now - began) * _REST_FACTOR)

    def _index_some(self, database: sqlite3.Connection) -> None:
        start = end = max(self.indexed_to, self._log.start)
        rows: list[tuple[object, ...]] = []
        for record in self._log.read(start):
            if record.position >= self._committed or len(rows) >= _ENTRIES_AT_ONCE:
                break
            batch = decode_batch(record.payload)
            for position, entry in enumerate(batch.entries, batch.position):
                context = None if entry.lineage is None else entry.lineage.id
                rows.append((position, entry.id, batch.time, entry.sender, entry.kind, context))
            end = batch.position + len(batch.entries)
        with database:
            database.executemany(_INSERT, rows)
            database.execute("DELETE FROM entries WHERE position < ?", (self._log.start,))
            database.execute("INSERT OR REPLACE INTO meta VALUES ('to', ?)", (str(end),))
        self.indexed_to = end if rows else self._committed


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
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    database = _connect(path)
    database.executescript(_SCHEMA)
    with database:
        rows = [("version", str(_VERSION)), ("epoch", epoch)]
        database.executemany("INSERT INTO meta VALUES (?, ?)", rows)
    return database


def _connect(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    return database


def _indexed_to(database: sqlite3.Connection) -> int:
    row = database.execute("SELECT value FROM meta WHERE key = 'to'").fetchone()
    return 0 if row is None else int(row[0])
