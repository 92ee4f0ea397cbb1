"""A real cluster whose NATS server is put back to older files while gateways run."""

import shutil
import signal
from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp import Gap
from tests.gateway.cluster.faults.processes import ClusterProcesses
from tests.gateway.durability.workload import QUICK
from tests.gateway.sockets import token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

_EXIT_IO_ERROR = 74


async def texts_at(cluster: ClusterProcesses, number: int) -> list[str]:
    """Return all chat texts that a gateway has."""
    url = cluster.urls[number]
    async with mcpp.connect(url, token=token("reader"), last=999_999, options=QUICK) as pod:
        found = [await anext(pod) for _ in range(pod.replayed)]
    return [each.text for each in found if each.kind == "chat"]


async def wait_for_ends(cluster: ClusterProcesses) -> list[int]:
    """Wait until all gateways have ended by themselves, and return their exit codes."""
    processes = [each for each in cluster.gateways if each is not None]
    with anyio.fail_after(60):
        while any(each.poll() is None for each in processes):  # noqa: ASYNC110  (processes)
            await anyio.sleep(0.02)
    return [each.returncode for each in processes]


@pytest.mark.rule("G-16", "N-14")
async def test_a_log_that_lost_its_end_ends_its_gateways_and_has_a_new_epoch(
    tmp_path: Path,
) -> None:
    cluster = ClusterProcesses(tmp_path, 1, servers=1)
    files, older = cluster.nats.folder, tmp_path / "older"
    gaps: list[Gap] = []
    try:
        await anyio.to_thread.run_sync(cluster.start)
        for number in range(3):
            await cluster.wait_for_gateway(number)
        async with mcpp.connect(
            cluster.url, token=token("p0"), own=True, on_gap=gaps.append, options=QUICK
        ) as pod:
            await pod.send("chat", "kept")
            cluster.end_server(0, signal.SIGKILL)
            shutil.copytree(files, older)
            cluster.nats.start_one(0)
            for number in range(20):
                await pod.send("chat", f"lost {number}")
            cluster.end_server(0, signal.SIGKILL)
            shutil.rmtree(files)
            shutil.move(older, files)
            cluster.nats.start_one(0)
            await pod.send("chat", "unheard", wait=False)  # the first record at an old place
            assert await wait_for_ends(cluster) == [_EXIT_IO_ERROR] * 3
            for number in range(3):
                cluster.start_gateway(number)
            with anyio.fail_after(60):
                await pod.send("chat", "later")
                while (await anext(pod)).text != "later":
                    pass
        assert [each.lost_log for each in gaps] == [True]
        for number in range(3):
            found = await texts_at(cluster, number)
            assert found == ["kept", "unheard", "later"], number
    finally:
        await anyio.to_thread.run_sync(cluster.close)
