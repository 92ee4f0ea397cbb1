"""The SQLite file: tables, the word index beside them, and what opening one takes."""

import os
import sqlite3
import time
from typing import Final

from mcpp_agents.memory.errors import MemoryFault
from mcpp_agents.memory.requests import digest_key

VERSION: Final = 5
BUSY_SECONDS: Final = 30.0
# By which every version of a memory file is known; a version's number may be anybody's.
_OURS: Final = frozenset({"memory", "memory_index", "audit"})

# The index is external-content: it keeps no second copy of the text. Its columns and their weights
# (fts.py) go together. `near` holds the neighbours' text, `grams` the unspaced scripts' pairs.
# `before` is the neighbour before, which lends its meaning; `since` is when an item became true;
# `tally` counts the items, which SQLite would do by reading all of them; `more` holds what no query
# asks for.
_TABLES: Final = """
CREATE TABLE scope (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);
CREATE TABLE memory (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    scope INTEGER NOT NULL REFERENCES scope,
    thread TEXT NOT NULL,
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
CREATE INDEX memory_thread ON memory (scope, thread, seq);
CREATE INDEX memory_kind ON memory (kind, seq);
CREATE UNIQUE INDEX memory_key ON memory (principal, coalesce(author, ''), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE VIRTUAL TABLE memory_index USING fts5 (
    title, content, keys, near, grams,
    content = 'memory', content_rowid = 'seq',
    tokenize = 'porter unicode61 remove_diacritics 2'
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
    items INTEGER NOT NULL
);
INSERT INTO tally (items) VALUES (0);
CREATE TABLE audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    principal TEXT NOT NULL,
    author TEXT,
    tool TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX audit_author ON audit (principal, author, at) WHERE author IS NOT NULL;
"""
_OPT_OUT: Final = """
CREATE TABLE opt_out (
    principal TEXT NOT NULL,
    context TEXT NOT NULL,
    PRIMARY KEY (principal, context)
) WITHOUT ROWID
"""


# By `forgotten` whoever keeps something of the rows in memory knows which are gone.
_FORGOTTEN: Final = """
CREATE TABLE forgotten (
    mark INTEGER PRIMARY KEY AUTOINCREMENT,
    seq INTEGER NOT NULL
)
"""
# Without it, whatever is forgotten would be sought in all vectors.
_VECTOR_SEQ: Final = "CREATE INDEX vector_seq ON vector (seq)"
# The superseded, which every pack leaves out, are few.
_SUPERSEDED: Final = "CREATE INDEX memory_superseded ON memory (seq) WHERE superseded > 0"


def connect(path: str) -> sqlite3.Connection:
    """Open or make a file of this version.

    Raises:
        MemoryFault: it is no memory file, or one of a newer version.
    """
    try:
        if path != ":memory:":
            # What agents remember is nobody else's business; SQLite's other files follow suit.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
        )
    except (OSError, sqlite3.Error) as error:
        raise MemoryFault(f"Cannot open {path}: {error}") from error
    try:
        _check(connection)  # before anything is written
        # WAL lets readers and a writer of several processes work at once; FULL makes an answered
        # write survive the machine's fall too, not only the process's.
        _use_wal(connection)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # M-07: what is freed is overwritten
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA mmap_size = 1073741824")
        _prepare(connection)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise MemoryFault(f"Cannot open {path}: {error}") from error
    except MemoryFault:
        connection.close()
        raise
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch the journal, once in a file's life.

    Processes that make a file together may each hold what the other waits for; SQLite then gives
    up at once, whatever its timeout is.
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


def _check(connection: sqlite3.Connection) -> int:
    """The file's version, 0 where it is empty; raises MemoryFault where it is not ours."""
    # In this order, because another process may be making the file in between.
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if names and not (version and names >= _OURS):
        raise MemoryFault("The file holds another program's database")
    if version > VERSION:
        raise MemoryFault(f"The file is of version {version}; this program knows {VERSION}")
    return version


def _prepare(connection: sqlite3.Connection) -> None:
    if _check(connection) == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")  # two processes may be the first at once
    try:
        _make(connection)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _make(connection: sqlite3.Connection) -> None:
    version = _check(connection)
    if version == VERSION:
        return
    if version == 0:
        for statement in _TABLES.split(";"):
            connection.execute(statement)
    if version == 1:
        _upgrade_from_1(connection)
    if version < 3:
        connection.execute(_OPT_OUT)
    if version < 4:
        connection.execute(_FORGOTTEN)
        connection.execute(_VECTOR_SEQ)
    connection.execute(_SUPERSEDED)  # new in version 5
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _upgrade_from_1(connection: sqlite3.Connection) -> None:
    """Version 1 began with idempotency keys as they were given, and ended with digests."""
    connection.execute("ALTER TABLE memory ADD COLUMN before INTEGER")
    connection.create_function("digest_key", 1, digest_key, deterministic=True)
    # Where the same key was stored in both forms, its digest names the later item.
    connection.execute(
        "UPDATE OR IGNORE memory SET idempotency_key = digest_key(idempotency_key)"
        " WHERE length(idempotency_key) != 64 OR idempotency_key GLOB '*[^0-9a-f]*'"
    )
    connection.execute("DROP INDEX IF EXISTS memory_author")
    connection.execute(
        "CREATE INDEX IF NOT EXISTS audit_author ON audit (principal, author, at)"
        " WHERE author IS NOT NULL"
    )
