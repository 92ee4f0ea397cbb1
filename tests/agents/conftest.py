"""What the agents' tests share: a pod in memory, a gateway on a socket, commands."""

from collections.abc import Iterator
from typing import Any

import pytest

from mcpp.testing import MemoryPod
from tests.agents.processes import Commands
from tests.interaction.conftest import SocketVenue


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
def sockets(limits: dict[str, Any]) -> Iterator[SocketVenue]:
    venue = SocketVenue(limits)
    yield venue
    venue.close()


@pytest.fixture
def commands(sockets: SocketVenue) -> Commands:
    return Commands(sockets)
