"""A rebuildable database: an SQLite file that says of which log it is and how far it has read.

The segments are the truth. A database that is missing, damaged, of another log or version is
replaced by an empty one, and filled again. What it has read is noted in the same transaction as
what it found there, so it goes on from there after any end.

Its entries are in parts, a range of positions each: what retention deletes is dropped as a whole.
"""

import logging
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

logger = logging.getLogger("mcpp.gateway")

# Not the database's fault: it stays.
_OF_THE_DISK: Final = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_BUSY,
)
_META: Final = "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"


class DatabaseView(NamedTuple):
    """How far a database is, for another process."""

    indexed_to: int
    last_id: str
    parts: tuple[int, ...]
    generation: int


class IndexViews(NamedTuple):
    """How far both databases of a log's index are, for another process."""

    ids: DatabaseView
    text: DatabaseView


class IndexDatabase:
    """One file. One thread writes; readers of one other thread at a time use `reader`."""

    version: int
    part_bits: int  # a part holds the positions that agree in all higher bits

    def __init__(self, path: Path, epoch: str) -> None:
        self.path = path
        self.indexed_to = 0
        self.last_id = ""  # of the last entry that is indexed
        self.parts: tuple[int, ...] = ()
        self.damaged = False  # as found by a reader; the thread that writes replaces it
        self._epoch = epoch
        self.generation = 0  # grows when the file is replaced
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._reader_generation = 0

    def view(self) -> DatabaseView:
        """Return how far the database is."""
        return DatabaseView(self.indexed_to, self.last_id, self.parts, self.generation)

    def show(self, view: DatabaseView) -> None:
        """Take note of how far another process has come."""
        self.parts, self.generation, self.last_id = view.parts, view.generation, view.last_id
        self.indexed_to = view.indexed_to  # last: what is before it is looked for in the parts

    # --- writing --------------------------------------------------------------------------------

    def open(self) -> sqlite3.Connection:
        """Return the connection that writes; opens or creates it. Raises sqlite3.Error, OSError."""
        if self._writer is not None:
            return self._writer
        database = None
        try:
            database = _connect(self.path)
            self._read_meta(database)
        except (sqlite3.DatabaseError, ValueError) as error:
            if database is not None:
                database.close()
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in _OF_THE_DISK:
                raise
            self.reset()
            database = _connect(self.path)
            with database:
                database.execute(_META)
                rows = [("version", str(self.version)), ("epoch", self._epoch), ("to", "0")]
                database.executemany("INSERT INTO meta VALUES (?, ?)", rows)
            self._read_meta(database)
        self._writer = database
        return database

    def reset(self) -> None:
        """Delete the file; the next `open` begins a new one. Raises OSError."""
        self.close()
        self.indexed_to, self.last_id, self.parts = 0, "", ()
        self.generation += 1
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        self.damaged = False

    def note(self, end: int, last_id: str) -> None:
        """Note how far the log is indexed, within the transaction that indexes it."""
        database = self.open()
        rows = [("to", str(end)), ("last", last_id)]
        database.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", rows)

    def take_note(self, end: int, last_id: str, parts: Iterable[int]) -> None:
        """Make known what was committed."""
        self.parts = tuple(sorted({*self.parts, *parts}))
        self.indexed_to, self.last_id = end, last_id

    def drop_before(self, position: int) -> bool:
        """Drop a part that retention has cut off; return whether there was one."""
        if not self.parts or self.parts[0] >= position >> self.part_bits:
            return False
        part = self.parts[0]
        self.parts = self.parts[1:]
        with self.open() as database:
            database.execute(f"DROP TABLE IF EXISTS part_{part}")
        return True

    @property
    def size_bytes(self) -> int:
        """The bytes that the files of the database take."""
        names = (self.path.name, f"{self.path.name}-wal")
        paths = [self.path.with_name(name) for name in names]
        return sum(path.stat().st_size for path in paths if path.exists())

    @property
    def first_position(self) -> int:
        """A position before which it holds no entries."""
        return self.parts[0] << self.part_bits if self.parts else self.indexed_to

    def close(self) -> None:
        """Close the connection that writes."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # --- reading --------------------------------------------------------------------------------

    def reader(self) -> sqlite3.Connection:
        """Return a connection that reads the present file. Raises sqlite3.Error."""
        if self._reader is not None and self._reader_generation != self.generation:
            self.close_reader()
        if self._reader is None:
            generation = self.generation
            uri = f"{self.path.absolute().as_uri()}?mode=ro"
            self._reader = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self._reader_generation = generation
        return self._reader

    def report(self, error: sqlite3.Error) -> None:
        """Note that reading failed; where the file is damaged it will be replaced."""
        logger.warning("the log index cannot be read", extra={"reason": str(error)})
        self.close_reader()
        if not isinstance(error, sqlite3.OperationalError):
            self.damaged = True

    def close_reader(self) -> None:
        """Close the connection that reads."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- private --------------------------------------------------------------------------------

    def _read_meta(self, database: sqlite3.Connection) -> None:
        """Read what the file says of itself. Raises ValueError if it is not of this log."""
        known = dict(database.execute("SELECT key, value FROM meta"))
        if (known.get("version"), known.get("epoch")) != (str(self.version), self._epoch):
            raise ValueError("another log or version")
        query = "SELECT substr(name, 6) FROM sqlite_schema WHERE name GLOB 'part_[0-9]*'"
        names = [name for (name,) in database.execute(query)]
        self.parts = tuple(sorted(int(name) for name in names if name.isdecimal()))
        self.indexed_to = int(known["to"])
        self.last_id = known.get("last", "")


def _connect(path: Path) -> sqlite3.Connection:
    # As private as the segments: it holds their words. SQLite's other files get the same mode.
    path.touch(0o600)
    path.chmod(0o600)
    # Opened at the start and used by a thread afterwards.
    database = sqlite3.connect(path, check_same_thread=False)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error:
        with suppress(sqlite3.Error):
            database.close()
        raise
    return database
