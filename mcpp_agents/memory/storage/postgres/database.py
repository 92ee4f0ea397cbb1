"""Connections to PostgreSQL: a pool, one transaction per thread, and the reach of each.

A thread inside `reading` or `writing` has a connection of its own. Every transaction states which
scopes it may see (row-level security): none until `see` is called.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from mcpp_agents.memory.errors import MemoryStoreError, StoreUnavailable
from mcpp_agents.memory.storage.postgres.address import connection_options, shown
from mcpp_agents.memory.storage.postgres.schema import prepare, use_schema

logger = logging.getLogger("mcpp.memory")

_CONNECT_SECONDS: Final = 10
# A server that vanishes from the network answers nothing: the kernel would try for 15 minutes to
# send to it, and wait for hours for its answer. These end that after about 30 seconds.
_TCP_OPTIONS: Final = {
    "tcp_user_timeout": "30000",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
}
_STATEMENT_SECONDS: Final = 30.0
_POOL_SECONDS: Final = 10.0
# After an attempt to connect has failed, the pool makes the next one for a new request only, so a
# call that waits for a connection asks again. Not often: it then waits behind all others.
_RETRY_SECONDS: Final = 2.0
_NO_WAIT_SECONDS: Final = 0.1  # to take a connection that is free, and to check it
_MAX_CONNECTIONS: Final = 10
# One write runs at a time. One more of this process waits in the database, so that it can begin at
# once; all others wait without a connection, which is left to reads.
_MAX_WRITERS: Final = 2
# Another attempt later may succeed after these.
_BUSY_ERRORS: Final = (
    errors.QueryCanceled,
    errors.LockNotAvailable,
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.TooManyConnections,
    TooManyRequests,
)
ALL: Final = "all"
# How many candidates a scan of an HNSW index keeps, unless a search sets another number.
DEFAULT_EF: Final = 400


@dataclass
class _Transaction:
    """The transaction of a thread, and what it may see."""

    connection: "psycopg.Connection[Any]"
    begin: str  # what begins it, with its first statement; empty after that
    is_write: bool
    reach: str = ""
    facts: dict[Any, Any] = field(default_factory=dict)  # what was read once for all its queries


class PostgresDatabase:
    """A pool of connections to one database. It owns them."""

    def __init__(
        self,
        url: str,
        *,
        statement_seconds: float = _STATEMENT_SECONDS,
        max_connections: int = _MAX_CONNECTIONS,
    ) -> None:
        self._timeout_ms = max(1, round(statement_seconds * 1000))
        self._threads = threading.local()
        self._writers = threading.BoundedSemaphore(max(1, min(_MAX_WRITERS, max_connections - 1)))
        self._outage_lock = threading.Lock()
        self._down_at = 0.0  # when a call last found the server down; 0 once one got a connection
        options = {
            "connect_timeout": str(_CONNECT_SECONDS),
            "application_name": "mcpp memory",
            **_TCP_OPTIONS,
            **connection_options(url),
        }
        self._options = options
        try:
            with psycopg.connect(**options, autocommit=True) as connection:  # type: ignore[arg-type]
                prepare(connection, wait_seconds=statement_seconds)
                _warn_of_bypass(connection)
        except psycopg.Error as error:
            raise MemoryStoreError(f"Cannot use the {shown(options)}: {_reason(error)}") from error
        self._pool = ConnectionPool(
            kwargs={**options, "autocommit": True},
            min_size=1,
            max_size=max_connections,
            timeout=min(statement_seconds, _POOL_SECONDS),
            reconnect_timeout=0,  # the next request tries again: no long waits after an outage
            configure=self._configure,
            name="mcpp-memory",
            open=True,
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    # Transactions

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Run the block's reads on one snapshot; inside another transaction, as part of it."""
        if self._current is not None:
            with _translated():
                yield
            return
        with self._transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", is_write=False):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Run the block as one write; only one runs at a time in the database."""
        with self._turn() as wait_ms:
            begin = f"BEGIN; SET LOCAL lock_timeout = {wait_ms}"
            with self._transaction(begin, is_write=True):
                self.see(ALL)
                self.one("SELECT name FROM lock WHERE name = 'write' FOR UPDATE")
                yield

    @contextmanager
    def _turn(self) -> Iterator[int]:
        """Wait until few writes of this process are under way; yield how long to wait on, in ms."""
        began = time.monotonic()
        if not self._writers.acquire(timeout=self._timeout_ms / 1000):
            raise StoreUnavailable(busy=True)
        try:
            if self._down_at > began:  # others have waited for a connection meanwhile
                raise StoreUnavailable(busy=False)
            yield max(1, self._timeout_ms - round((time.monotonic() - began) * 1000))
        finally:
            self._writers.release()

    @contextmanager
    def appending(self, *, may_wait: bool = True) -> Iterator[None]:
        """Run the block as one write beside others, which must not depend on what it adds.

        If it may not wait, it fails at once where no connection is free.
        """
        with self._transaction("BEGIN", is_write=True, may_wait=may_wait):
            self.see(ALL)
            yield

    @property
    def is_writing(self) -> bool:
        """Whether this thread is inside a write."""
        return self._current is not None and self._current.is_write

    @contextmanager
    def _transaction(self, begin: str, *, is_write: bool, may_wait: bool = True) -> Iterator[None]:
        with _translated(), self._connection(may_wait) as connection:
            current = _Transaction(connection, begin, is_write)
            outer, self._threads.current = self._current, current
            try:
                yield
                if not current.begin:
                    connection.execute("COMMIT")
            except BaseException:
                if not current.begin and not connection.broken:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._threads.current = outer

    @contextmanager
    def _connection(self, may_wait: bool) -> "Iterator[psycopg.Connection[Any]]":
        try:
            connection = self._take(self._pool.timeout if may_wait else _NO_WAIT_SECONDS)
        except PoolTimeout as error:
            if may_wait:
                self._check_server()
            raise StoreUnavailable(busy=True) from error
        self._end_outage()
        try:
            yield connection
        finally:
            self._pool.putconn(connection)

    def _take(self, seconds: float) -> "psycopg.Connection[Any]":
        """Return a connection that works.

        The pool's own check pauses after each broken connection, longer each time: after the server
        has ended ten of them, the next call waited six seconds.
        """
        deadline = time.monotonic() + seconds
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                connection = self._pool.getconn(min(left, _RETRY_SECONDS))
            except PoolTimeout:
                if left <= _RETRY_SECONDS:
                    raise
                continue
            if _works(connection):
                return connection
            self._pool.putconn(connection)  # which replaces it, since it is closed

    def _check_server(self) -> None:
        """Raise an error if the server is down, rather than all connections in use."""
        options = self._options | {"connect_timeout": "2"}  # the least: the call has waited before
        try:
            psycopg.connect(**options).close()  # type: ignore[arg-type]
        except psycopg.Error as error:
            self._begin_outage(error)
            raise

    def _begin_outage(self, error: psycopg.Error) -> None:
        with self._outage_lock:
            if not self._down_at:
                logger.warning("the database cannot be reached: %s", _reason(error))
            self._down_at = time.monotonic()

    def _end_outage(self) -> None:
        with self._outage_lock:
            if self._down_at:
                logger.warning("the database is reached again")
            self._down_at = 0.0

    @property
    def _current(self) -> _Transaction | None:
        return getattr(self._threads, "current", None)

    @property
    def _required(self) -> _Transaction:
        if self._current is None:
            raise RuntimeError("not inside a transaction")
        return self._current

    # Statements, inside a transaction

    def see(self, scopes: str) -> None:
        """Let the transaction see these scopes: ALL, or an array of ids in SQL's notation."""
        current = self._required
        if current.reach != scopes:
            self._send(current, f"SET LOCAL mcpp.scopes = '{scopes}'")
            current.reach = scopes

    def _send(self, current: _Transaction, sql: str = "") -> None:
        """Begin a transaction that has not begun, and execute a statement without values."""
        if texts := [text for text in (current.begin, sql) if text]:
            current.begin = ""
            current.connection.execute("; ".join(texts), prepare=False)

    @property
    def _begun(self) -> "psycopg.Connection[Any]":
        """The connection of the transaction."""
        self._send(self._required)
        return self._required.connection

    @property
    def facts(self) -> dict[Any, Any]:
        """What the transaction keeps for its later queries."""
        return self._required.facts

    def execute(self, sql: str, values: Sequence[Any] = ()) -> "psycopg.Cursor[Any]":
        """Execute a statement of a write."""
        return self._begun.execute(_translated_sql(sql), values)

    def execute_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> int:
        """Execute a statement of a write for each row of values; return how many rows changed."""
        with self._begun.cursor() as cursor:
            cursor.executemany(_translated_sql(sql), list(rows))
            return cursor.rowcount

    def all(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows of a query."""
        cursor = self._begun.execute(_translated_sql(sql), values)
        return cursor.fetchall() if cursor.description else []

    def one(self, sql: str, *values: Any) -> tuple[Any, ...]:
        """Return the first row of a query that has one."""
        row: tuple[Any, ...] = self.all(sql, *values)[0]
        return row

    def _configure(self, connection: "psycopg.Connection[Any]") -> None:
        use_schema(connection)
        connection.execute(f"SET statement_timeout = {self._timeout_ms}")
        connection.execute("SET idle_in_transaction_session_timeout = 600000")
        # Every query has an index; without current statistics a scan could be chosen instead.
        connection.execute("SET enable_seqscan = off")
        connection.execute("SET jit = off")
        # Planning takes as long as many of the queries. Every one is prepared, and planned once.
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.prepare_threshold = 0
        connection.execute("SET hnsw.iterative_scan = relaxed_order")
        connection.execute(f"SET hnsw.ef_search = {DEFAULT_EF}")


def sql_array(values: Iterable[float]) -> str:
    """Return numbers as an array in SQL's notation, which is faster than a list of them."""
    return "{" + ",".join(map(str, values)) + "}"


def _works(connection: "psycopg.Connection[Any]") -> bool:
    """Return whether a connection works; close it otherwise."""
    try:
        ConnectionPool.check_connection(connection)
    except psycopg.Error:
        connection.close()
        return False
    return True


@contextmanager
def _translated() -> Iterator[None]:
    """Raise errors of the database as StoreUnavailable."""
    try:
        yield
    except _BUSY_ERRORS as error:
        raise StoreUnavailable(busy=True) from error
    except (psycopg.Error, PoolClosed) as error:
        raise StoreUnavailable(busy=False) from error


def _reason(error: psycopg.Error) -> str:
    """Return the first line of an error."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@lru_cache(maxsize=256)
def _translated_sql(sql: str) -> str:
    """Return shared SQL with psycopg's placeholders."""
    return sql.replace("%", "%%").replace("?", "%s")


def _warn_of_bypass(connection: "psycopg.Connection[Any]") -> None:
    row = connection.execute(
        "SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user"
    ).fetchone()
    if row is not None and row[0]:
        logger.warning("row-level security does not apply to this database role: use another one")
