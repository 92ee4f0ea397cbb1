"""A real cluster under load while its gateways and NATS servers are killed, paused and restarted.

The checker reads only what clients saw: every message acknowledged is in the log once, and all
clients received the same order without a gap.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import anyio
import pytest

from tests.gateway.cluster.faults.processes import ClusterProcesses
from tests.gateway.durability.workload import Witness, check, load, read_log

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Fault = Callable[[ClusterProcesses, Random], Awaitable[None]]


@asynccontextmanager
async def cluster_under_load(cluster: ClusterProcesses) -> AsyncIterator[list[Witness]]:
    """Run a cluster with clients; when the block ends, let them finish and check what they saw."""
    try:
        await anyio.to_thread.run_sync(cluster.start)
        await cluster.wait_for_leader()
        async with load(cluster, cluster.names) as witnesses:
            await progress(witnesses)
            yield witnesses
        check(witnesses, await read_log(cluster))
    finally:
        await anyio.to_thread.run_sync(cluster.close)


async def progress(witnesses: list[Witness]) -> None:
    """Wait until every client has had another message acknowledged."""
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for witness in witnesses:
                tasks.start_soon(witness.next_echo)


async def kill_leader(cluster: ClusterProcesses, random: Random) -> None:
    number = await cluster.wait_for_leader()
    await anyio.to_thread.run_sync(cluster.end_gateway, number, signal.SIGKILL)
    cluster.start_gateway(number)


async def kill_any_gateway(cluster: ClusterProcesses, random: Random) -> None:
    number = random.randrange(3)
    await anyio.to_thread.run_sync(cluster.end_gateway, number, signal.SIGKILL)
    cluster.start_gateway(number)


async def restart_any_gateway(cluster: ClusterProcesses, random: Random) -> None:
    number = random.randrange(3)
    await anyio.to_thread.run_sync(cluster.end_gateway, number, signal.SIGTERM)
    cluster.start_gateway(number)


async def pause_any_gateway(cluster: ClusterProcesses, random: Random) -> None:
    number = random.randrange(3)
    cluster.signal_gateway(number, signal.SIGSTOP)
    await anyio.sleep(random.uniform(1.0, 10.0))  # the fault itself, not a wait for something
    cluster.signal_gateway(number, signal.SIGCONT)


async def kill_any_server(cluster: ClusterProcesses, random: Random) -> None:
    number = random.randrange(3)
    await anyio.to_thread.run_sync(cluster.end_server, number, signal.SIGKILL)
    cluster.nats.start_one(number)


async def kill_two_servers(cluster: ClusterProcesses, random: Random) -> None:
    for number in random.sample(range(3), 2):
        await anyio.to_thread.run_sync(cluster.end_server, number, signal.SIGKILL)
    for number, process in enumerate(cluster.nats.processes):
        if process is None:
            cluster.nats.start_one(number)


async def kill_all_servers(cluster: ClusterProcesses, random: Random) -> None:
    for number in range(3):
        await anyio.to_thread.run_sync(cluster.end_server, number, signal.SIGKILL)
    for number in range(3):
        cluster.nats.start_one(number)


async def pause_any_server(cluster: ClusterProcesses, random: Random) -> None:
    number = random.randrange(3)
    cluster.signal_server(number, signal.SIGSTOP)
    await anyio.sleep(random.uniform(1.0, 10.0))
    cluster.signal_server(number, signal.SIGCONT)


async def restart_any_server(cluster: ClusterProcesses, random: Random) -> None:
    number = random.randrange(3)
    await anyio.to_thread.run_sync(cluster.end_server, number, signal.SIGTERM)
    cluster.nats.start_one(number)


async def restart_all_gateways(cluster: ClusterProcesses, random: Random) -> None:
    for number in range(3):
        await anyio.to_thread.run_sync(cluster.end_gateway, number, signal.SIGTERM)
        cluster.start_gateway(number)
        await cluster.wait_for_gateway(number)


async def restart_all_servers(cluster: ClusterProcesses, random: Random) -> None:
    for number in range(3):
        await anyio.to_thread.run_sync(cluster.end_server, number, signal.SIGTERM)
        cluster.nats.start_one(number)
        await anyio.to_thread.run_sync(cluster.nats.wait, number)


@pytest.mark.rule("G-52", "N-01", "N-02", "N-05")
@pytest.mark.parametrize(
    "fault", [kill_leader, pause_any_gateway, kill_any_server, restart_any_gateway]
)
async def test_a_fault_under_load_loses_and_repeats_nothing(tmp_path: Path, fault: Fault) -> None:
    cluster = ClusterProcesses(tmp_path, 4)
    async with cluster_under_load(cluster) as witnesses:
        await fault(cluster, Random(fault.__name__))
        await progress(witnesses)


@pytest.mark.rule("N-05")
async def test_a_pod_in_which_nothing_happens_gets_another_leader(tmp_path: Path) -> None:
    """No command waits, so only the silence of the leader shows that it is gone."""
    cluster = ClusterProcesses(tmp_path, 0, servers=1)
    try:
        await anyio.to_thread.run_sync(cluster.start)
        for number in range(3):
            await cluster.wait_for_gateway(number)
        for _ in range(2):  # then the last one leads
            number = await cluster.wait_for_leader()
            await anyio.to_thread.run_sync(cluster.end_gateway, number, signal.SIGKILL)
        await cluster.wait_for_leader()
    finally:
        await anyio.to_thread.run_sync(cluster.close)


GATEWAY_FAULTS = [
    *(kill_leader, kill_any_gateway, restart_any_gateway, restart_all_gateways, pause_any_gateway),
]
SERVER_FAULTS = [
    *(kill_any_server, kill_two_servers, kill_all_servers, pause_any_server, restart_any_server),
    restart_all_servers,
]


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(10))
async def test_two_hundred_faults_under_load_lose_and_repeat_nothing(
    tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    cluster = ClusterProcesses(tmp_path, 6)
    async with cluster_under_load(cluster) as witnesses:
        for _ in range(20):
            fault = random.choice(random.choice((GATEWAY_FAULTS, SERVER_FAULTS)))
            await fault(cluster, random)
            await progress(witnesses)
