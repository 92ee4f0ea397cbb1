"""Schema of the memory file: its tables, its word index, and opening it."""

import os
import sqlite3
import time
from typing import Final

from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.search.tokenizer import TOKENIZER

VERSION: Final = 4
BUSY_SECONDS: Final = 30.0
# Tables that tell a memory file from another program's; the version number alone proves nothing.
_OUR_TABLES: Final = frozenset({"memory", "memory_index", "audit"})

# The index is external-content: it keeps no second copy of the text. Its columns must match the
# weights in fts_table.py. Every search reads all segments of the index, so they are merged earlier
# than by default: half as many segments save about a tenth of a pack's time, and storing in
# bulk takes about 17 µs more per item.
#
#   neighbourhood      the group of items within which some are neighbours
#   before             the previous neighbour, whose vector counts too
#   near               text of the neighbours
#   grams              character pairs of scripts without spaces
#   since              when the item became true
#   more               fields that no query selects by, as JSON
#   word_list          the words of an item, in order, as codes (see FtsTable)
#   tally              the number of current items and of their words in each scope and domain
#                      ('' without one): the average length of a view, without reading its items
#   changed            rows that processes which cache them must read again: forgotten, superseded,
#                      restored, or after another neighbour
#   vector_seq         without it, every removal would scan all vectors
#   memory_superseded  superseded items, which every view leaves out, are few
#   quota              what each author stored over the bus in the last hour (M-35)
_TABLES: Final = f"""
CREATE TABLE scope (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);
CREATE TABLE memory (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    scope INTEGER NOT NULL REFERENCES scope,
    neighbourhood TEXT NOT NULL,
    before INTEGER,
    kind TEXT NOT NULL,
    title TEXT NOT NULL,
    content TEXT NOT NULL,
    keys TEXT NOT NULL,
    near TEXT NOT NULL,
    grams TEXT NOT NULL,
    domain TEXT,
    created_at REAL NOT NULL,
    since REAL NOT NULL,
    principal TEXT NOT NULL,
    author TEXT,
    origin TEXT NOT NULL,
    idempotency_key TEXT,
    superseded INTEGER NOT NULL DEFAULT 0,
    more TEXT NOT NULL
);
CREATE INDEX memory_neighbourhood ON memory (scope, neighbourhood, seq);
CREATE INDEX memory_kind ON memory (kind, seq);
CREATE UNIQUE INDEX memory_key ON memory (principal, coalesce(author, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE VIRTUAL TABLE memory_index USING fts5 (
    title, content, keys, near, grams,
    content = 'memory', content_rowid = 'seq',
    {TOKENIZER}
);
INSERT INTO memory_index (memory_index, rank) VALUES ('automerge', 2);
INSERT INTO memory_index (memory_index, rank) VALUES ('crisismerge', 4);
CREATE TABLE word_list (
    seq INTEGER PRIMARY KEY REFERENCES memory,
    words TEXT NOT NULL
);
CREATE TABLE relation (
    source INTEGER NOT NULL REFERENCES memory,
    relationship TEXT NOT NULL,
    target INTEGER NOT NULL REFERENCES memory,
    PRIMARY KEY (source, relationship, target)
) WITHOUT ROWID;
CREATE INDEX relation_target ON relation (target);
CREATE TABLE vector (
    mark INTEGER PRIMARY KEY AUTOINCREMENT,
    seq INTEGER NOT NULL REFERENCES memory,
    model TEXT NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (model, seq)
);
CREATE TABLE tally (
    scope INTEGER NOT NULL REFERENCES scope,
    domain TEXT NOT NULL,
    items INTEGER NOT NULL,
    words INTEGER NOT NULL,
    PRIMARY KEY (scope, domain)
) WITHOUT ROWID;
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    principal TEXT NOT NULL,
    author TEXT,
    tool TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE TABLE opt_out (
    principal TEXT NOT NULL,
    context TEXT NOT NULL,
    PRIMARY KEY (principal, context)
) WITHOUT ROWID;
CREATE TABLE changed (
    mark INTEGER PRIMARY KEY AUTOINCREMENT,
    seq INTEGER NOT NULL
);
CREATE INDEX vector_seq ON vector (seq);
CREATE INDEX memory_superseded ON memory (seq) WHERE superseded > 0;
CREATE TABLE quota (
    principal TEXT NOT NULL,
    author TEXT NOT NULL,
    at REAL NOT NULL,
    items INTEGER NOT NULL,
    PRIMARY KEY (principal, author, at)
) WITHOUT ROWID;
"""


def connect(path: str) -> sqlite3.Connection:
    """Open or create a memory file.

    Raises:
        MemoryStoreError: it is not a memory file, or one of another version.
    """
    try:
        if path != ":memory:":
            # Only the owner may read it (M-41); SQLite gives its other files the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
        )
    except (OSError, sqlite3.Error) as error:
        raise MemoryStoreError(f"Cannot open {path}: {error}") from error
    try:
        _check_version(connection)  # before anything is written
        # WAL lets readers and one writer of several processes work at once. FULL makes an
        # answered write survive a crash of the machine, not only of the process.
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # M-07: overwrite freed space
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA mmap_size = 1073741824")
        _prepare(connection)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise MemoryStoreError(f"Cannot open {path}: {error}") from error
    except MemoryStoreError:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging, and retry while it is busy.

    Processes that create a file together may deadlock; SQLite then fails at once, whatever its
    timeout is.
    """
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _check_version(connection: sqlite3.Connection) -> bool:
    """Return whether the file has its tables; False if it is empty.

    Raises:
        MemoryStoreError: the file belongs to another program or another version.
    """
    # In this order, because another process may be creating the file meanwhile.
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if names and not (version and names >= _OUR_TABLES):
        raise MemoryStoreError("The file is a database of another program")
    if version not in (0, VERSION):
        raise MemoryStoreError(
            f"The file has version {version}; this program supports version {VERSION} only"
        )
    return version == VERSION


def _prepare(connection: sqlite3.Connection) -> None:
    if _check_version(connection):
        return
    connection.execute("BEGIN IMMEDIATE")  # two processes may be first at the same time
    try:
        if not _check_version(connection):
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
