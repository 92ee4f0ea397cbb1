import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpp_gateway.cluster.nats_servers import NatsServers
from tests.gateway.ports import free_ports


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Run the socket tests on both event loops: their transports differ."""
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServers]:
    """Run one NATS server with JetStream. A test may end or pause it."""
    servers = NatsServers(tmp_path / "nats", 1, free_ports(2))
    servers.start()
    yield servers
    for process in servers.processes:
        if process is not None:
            process.send_signal(signal.SIGCONT)
    servers.stop()
