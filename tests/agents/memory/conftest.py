"""Fixtures: a store of its own, searched by words alone unless a test asks for more.

Tests that take `location` or `store` run on both engines; those that take `path` are about files.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.storage.postgres.address import is_database

if TYPE_CHECKING:
    from tests.agents.memory.postgres_server import PostgresServer

DAY = 86_400.0


def rows(location: str | Path, sql: str) -> list[Any]:
    """Execute a statement as another program does in the file or database; return its rows."""
    if is_database(str(location)):
        import psycopg

        with psycopg.connect(str(location), options="-c search_path=mcpp_memory,public") as other:
            other.execute("SELECT set_config('mcpp.scopes', 'all', false)")
            cursor = other.execute(sql)
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(location, isolation_level=None)) as connection:
        return connection.execute(sql).fetchall()


def prepare_older(url: str, version: int) -> None:
    """Create the tables of an earlier version of the schema in a database."""
    import psycopg

    from mcpp_agents.memory.storage.postgres import schema

    older = {number: sql for number, sql in schema.migrations().items() if number <= version}
    with pytest.MonkeyPatch.context() as earlier, psycopg.connect(url, autocommit=True) as database:
        earlier.setattr(schema, "migrations", lambda: older)
        schema.prepare(database)


def option_for(location: str) -> list[str]:
    """Return the command-line option that names a file or a database."""
    return ["--database" if is_database(location) else "--file", location]


def audited(location: str | Path) -> list[tuple[str, str | None]]:
    """Return the tool and the refusal of each audit row."""
    found = rows(location, "SELECT tool, details FROM audit ORDER BY id")
    return [(tool, json.loads(details).get("refused")) for tool, details in found]


def holds(location: str, text: str) -> bool:
    """Return whether a file, or any row of a database, contains a text."""
    if not is_database(location):
        files = Path(location).parent.iterdir()
        return any(text.encode() in file.read_bytes() for file in files)
    tables = rows(location, "SELECT relname FROM pg_stat_user_tables")
    return any(text in str(rows(location, f"SELECT t::text FROM {name} t")) for (name,) in tables)


class ManualClock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_790_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "memory.db"


@pytest.fixture(scope="session")
def postgres() -> "Iterator[PostgresServer]":
    """A server for all tests of a worker."""
    pytest.importorskip("psycopg_pool")
    from tests.agents.memory.postgres_server import installed_programs, running_server

    programs = installed_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: `make setup-postgres`")
    with running_server(programs) as server:
        server.add_role()
        yield server


@pytest.fixture
def database_url(postgres: "PostgresServer") -> "Iterator[str]":
    """The address of an empty database with the memory's tables."""
    with postgres.database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is opened: a file, or a database."""
    if request.param == "sqlite":
        return str(tmp_path / "memory.db")
    found: str = request.getfixturevalue("database_url")
    return found


@pytest.fixture
def store(location: str, clock: ManualClock) -> Iterator[MemoryStore]:
    with MemoryStore.open(location, embedder=None, clock=clock) as opened:
        yield opened


@pytest.fixture
def file_store(path: Path, clock: ManualClock) -> Iterator[MemoryStore]:
    """A store in a file, for tests that do not depend on the engine or only on this one."""
    with MemoryStore.open(path, embedder=None, clock=clock) as opened:
        yield opened
