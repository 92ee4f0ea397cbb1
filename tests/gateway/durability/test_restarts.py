"""A gateway with a file log is killed and restarted under load: a restart is a pause."""

import random
import signal
from pathlib import Path

import anyio
import pytest

from tests.gateway.durability.workload import DurableProcess, check, load, read_log

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def restart_often(folder: Path, clients: int, signals: list[signal.Signals]) -> int:
    """Restart a gateway under load with each of these signals; return how much was acknowledged."""
    choices = random.Random(7)
    gateway = DurableProcess(folder, clients)
    gateway.start()
    try:
        async with load(gateway, gateway.names) as witnesses:
            for each in signals:
                for _ in range(choices.randint(1, 3)):
                    await witnesses[choices.randrange(clients)].next_echo()
                await anyio.to_thread.run_sync(gateway.end, each)
                await anyio.to_thread.run_sync(gateway.start)
        check(witnesses, await read_log(gateway))
    finally:
        gateway.close()
    return sum(len(witness.acknowledged) for witness in witnesses)


@pytest.mark.rule("G-50", "G-51", "G-42")
async def test_twenty_kills_and_twenty_graceful_restarts_lose_nothing(tmp_path: Path) -> None:
    signals = [signal.SIGKILL, signal.SIGTERM] * 20
    assert await restart_often(tmp_path, 10, signals) > len(signals)


@pytest.mark.torture
@pytest.mark.timeout(1800)
async def test_two_hundred_kills_with_twenty_clients_lose_nothing(tmp_path: Path) -> None:
    assert await restart_often(tmp_path, 20, [signal.SIGKILL] * 200) > 4000
