"""Fixtures for the agents' tests: a pod in memory, a gateway on a socket, commands."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any, Final

import anyio
import pytest

from mcpp.testing import MemoryPod
from tests.agents.processes import Commands
from tests.interaction.conftest import SocketPod

# For a whole test, in case one of its waits has no bound of its own.
_TEST_SECONDS: Final = 120.0


def pytest_itemcollected(item: pytest.Item) -> None:
    """Fail every asynchronous test in this folder that takes longer than `_TEST_SECONDS`."""
    if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
        test = item.obj

        @functools.wraps(test)
        async def bounded(*args: Any, **kwargs: Any) -> None:
            with anyio.fail_after(_TEST_SECONDS):
                await test(*args, **kwargs)

        item.obj = bounded


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def limits() -> dict[str, Any]:
    return {}


@pytest.fixture
def pod(limits: dict[str, Any]) -> MemoryPod:
    return MemoryPod(limits=limits)


@pytest.fixture
def sockets(limits: dict[str, Any]) -> Iterator[SocketPod]:
    pod = SocketPod(limits)
    yield pod
    pod.close()


@pytest.fixture
def commands(sockets: SocketPod) -> Commands:
    return Commands(sockets)
