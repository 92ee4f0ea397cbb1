"""Attack programs: each has a short form in `make test` and a long one in `make torture`.

The figures are goals: what an honest participant may notice, or what an attack may cost.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def at_most(seconds: float, what: str) -> Iterator[None]:
    """Fail if the block takes more than this much of the processor, or ten times as long."""
    began, spent = time.monotonic(), time.process_time()
    yield
    spent, took = time.process_time() - spent, time.monotonic() - began
    assert spent <= seconds, f"{what}: {spent:.2f} s of processor time"
    assert took <= 10 * seconds, f"{what}: {took:.2f} s"


def resident_bytes(pid: int | None = None) -> int:
    """Return how much memory a process has."""
    pages = Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
