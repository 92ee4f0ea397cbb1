"""Fixtures: a store in its own file, searched by words alone unless a test asks for more."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mcpp_agents.memory import MemoryStore

DAY = 86_400.0


def rows(path: Path, sql: str) -> list[Any]:
    """Return rows as another program reads them in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


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


@pytest.fixture
def store(path: Path, clock: ManualClock) -> Iterator[MemoryStore]:
    with MemoryStore.open(path, embedder=None, clock=clock) as opened:
        yield opened
