"""A locked SQLite connection that can start a transaction without blocking readers."""

import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from mcpp_agents.memory.errors import StoreUnavailable
from mcpp_agents.memory.storage.schema import BUSY_SECONDS, connect

_BUSY_CODES: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_RETRY_SECONDS: Final = 0.01


class SqliteConnection:
    """The connection to one memory file. It owns the lock that serializes threads."""

    def __init__(self, path: str) -> None:
        self.raw = connect(path)
        self._lock = threading.RLock()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock, and raise errors of SQLite as StoreUnavailable."""
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                busy = getattr(error, "sqlite_errorcode", None) in _BUSY_CODES
                raise StoreUnavailable(busy=busy) from error

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Run the block's reads on one snapshot; inside another transaction, as part of it."""
        with self.exclusive():
            if self.raw.in_transaction:
                yield
                return
            self.raw.execute("BEGIN")
            try:
                yield
            finally:
                if self.raw.in_transaction:  # some errors end it
                    self.raw.execute("COMMIT")

    @contextmanager
    def begin(self, wait_seconds: float) -> Iterator[None]:
        """Run the block inside a new transaction, which the block commits or rolls back.

        While another process holds the write lock, other threads of this one can read.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            with self.exclusive():
                try:
                    with self.without_waiting():
                        self.raw.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode not in _BUSY_CODES or time.monotonic() > deadline:
                        raise
                else:
                    yield
                    return
            time.sleep(_RETRY_SECONDS)

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Fail at once if another process holds a lock that the block needs."""
        self.raw.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            self.raw.execute(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1000)}")

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute a statement of a write."""
        return self.raw.execute(sql, values)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement of a write for each row of values; return how many rows changed."""
        return self.raw.executemany(sql, rows).rowcount

    def all(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows of a query."""
        with self.exclusive():
            return self.raw.execute(sql, values).fetchall()

    def one(self, sql: str, *values: Any) -> tuple[Any, ...]:
        """Return the first row of a query that has one."""
        with self.exclusive():
            row: tuple[Any, ...] = self.raw.execute(sql, values).fetchone()
            return row
