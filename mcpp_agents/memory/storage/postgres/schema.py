"""Migrations: numbered SQL files, applied once each, in order, by one process at a time.

The table `migration` is also what a process locks meanwhile. Not an advisory lock: any role that
can connect could hold that, and so stop every start (M-61).
"""

import logging
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from mcpp_agents.memory.errors import MemoryStoreError

if TYPE_CHECKING:
    from psycopg import Connection

logger = logging.getLogger("mcpp.memory")

SCHEMA: Final = "mcpp_memory"
_NAME: Final = re.compile(r"(\d{4})_\w+\.sql")
_ATTEMPTS: Final = 5
_MIN_PGVECTOR: Final = (0, 8)  # the first with filtered search that continues until it has enough


def migrations() -> dict[int, str]:
    """Return the SQL of each version."""
    folder = files(__package__) / "migrations"
    found = {
        int(match[1]): file.read_text(encoding="utf-8")
        for file in folder.iterdir()
        if (match := _NAME.fullmatch(file.name))
    }
    return dict(sorted(found.items()))


def prepare(connection: "Connection[Any]", *, wait_seconds: float = 30.0) -> None:
    """Bring the schema to the version of this program.

    Raises:
        MemoryStoreError: the schema is newer, the role may not use, create or migrate it, or
            another program holds a lock for longer than `wait_seconds`.
    """
    import psycopg

    steps = migrations()
    try:
        _check_encoding(connection)
        connection.execute(f"SET lock_timeout = {max(1, round(wait_seconds * 1000))}")
        if _checked_version(connection, max(steps)) == max(steps):
            return  # no rights and no lock are needed for this
        _create_table(connection)
        with connection.transaction():
            # It conflicts with itself, but not with what a role that may only read can lock.
            connection.execute(f"LOCK TABLE {SCHEMA}.migration IN SHARE ROW EXCLUSIVE MODE")
            version = _checked_version(connection, max(steps))
            use_schema(connection)
            _check_vectors(connection)
            for number, sql in steps.items():
                if number > version:
                    connection.execute(sql)
                    connection.execute(
                        f"INSERT INTO {SCHEMA}.migration (version) VALUES (%s)", [number]
                    )
            connection.execute(f"GRANT SELECT ON {SCHEMA}.role_access TO PUBLIC")
    except psycopg.errors.LockNotAvailable as error:
        raise MemoryStoreError(
            f"Another program holds a lock on the memory's tables: {_first_line(error)};"
            " try again later"
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise MemoryStoreError(
            "The database role may not use, create or migrate the memory's tables:"
            f" {_first_line(error)}"
        ) from error


def _create_table(connection: "Connection[Any]") -> None:
    """Create the table of versions, in which a process sees whether another one was first."""
    import psycopg

    for attempt in range(_ATTEMPTS):
        try:
            with connection.transaction():
                _create_extension(connection)
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {SCHEMA}.migration"
                    " (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
                )
        except (
            psycopg.errors.UniqueViolation,
            psycopg.errors.DuplicateObject,
            psycopg.errors.DuplicateTable,
        ):
            # Another process has just created it, while this one waited.
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return


def use_schema(connection: "Connection[Any]") -> None:
    """Put the schema first in the search path, and that of pgvector last."""
    connection.execute(
        "SELECT set_config('search_path', concat_ws(', ', %s::text,"
        " nullif(current_setting('search_path'), ''), (SELECT quote_ident(n.nspname)"
        "  FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
        "  WHERE e.extname = 'vector')), false)",
        [SCHEMA],
    )


def _check_encoding(connection: "Connection[Any]") -> None:
    [encoding] = connection.execute("SHOW server_encoding").fetchone() or [None]
    if encoding != "UTF8":
        raise MemoryStoreError(f"The database must have the encoding UTF8, not {encoding}")


def _version(connection: "Connection[Any]") -> int:
    # Not by to_regclass(), which may not see a table that was created during the transaction.
    row = connection.execute(
        "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'migration'", [SCHEMA]
    ).fetchone()
    if row is None:
        return 0
    found = connection.execute(f"SELECT coalesce(max(version), 0) FROM {SCHEMA}.migration")
    return int((found.fetchone() or [0])[0])


def _checked_version(connection: "Connection[Any]", newest: int) -> int:
    """Return the version of the tables, unless this program is too old for them."""
    version = _version(connection)
    if version > newest:
        raise MemoryStoreError(
            f"The database has version {version}; this program supports up to version {newest}"
        )
    return version


def _create_extension(connection: "Connection[Any]") -> None:
    import psycopg

    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except psycopg.errors.InsufficientPrivilege:
        raise MemoryStoreError(
            "The database lacks pgvector, and this role may not add it: as a superuser,"
            " CREATE EXTENSION vector"
        ) from None
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported):
        raise MemoryStoreError("The PostgreSQL server has no pgvector; install it there") from None
    [version] = connection.execute(
        "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
    ).fetchone() or ["0"]
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _MIN_PGVECTOR:
        wanted = ".".join(map(str, _MIN_PGVECTOR))
        raise MemoryStoreError(f"The database has pgvector {version}; {wanted} or newer is needed")


def _check_vectors(connection: "Connection[Any]") -> None:
    [found] = connection.execute("SELECT to_regtype('halfvec')").fetchone() or [None]
    if found is None:
        raise MemoryStoreError(
            "The database role may not use the schema that pgvector is in: as its owner,"
            " GRANT USAGE ON SCHEMA"
        )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
