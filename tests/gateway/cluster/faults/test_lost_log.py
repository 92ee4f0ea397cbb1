"""A real cluster whose NATS server is put back to older files."""

import asyncio
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

import mcpp
from mcpp import Gap
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.config import Config
from mcpp_gateway.edge.server import Gateway
from tests.gateway.cluster.faults.processes import ClusterProcesses
from tests.gateway.cluster.test_gateways import configure, eventually, gateways, url
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


class OlderFiles:
    """The files of a stopped NATS server, kept to be put back later."""

    def __init__(self, nats: NatsServers, kept: Path) -> None:
        self._nats, self._kept = nats, kept
        self._exchange(lambda: shutil.copytree(nats.folder, kept))

    def put_back(self) -> None:
        def put_back() -> None:
            shutil.rmtree(self._nats.folder)
            shutil.move(self._kept, self._nats.folder)

        self._exchange(put_back)

    def _exchange(self, work: Callable[[], object]) -> None:
        process = self._nats.processes[0]
        assert process is not None
        process.terminate()
        process.wait()
        work()
        self._nats.start_one(0)
        self._nats.wait(0)


def with_copies(nats: NatsServers, path: Path) -> Config:
    found = configure(nats)
    return replace(found, log=replace(found.log, path=str(path)))


async def send(gateway: Gateway, count: int) -> None:
    async with mcpp.connect(url(gateway), token=token("a"), options=QUICK) as a:
        for number in range(count):
            await a.send("chat", f"text {number}")


@pytest.mark.rule("G-16", "N-14")
async def test_gateways_that_start_together_with_copies_begin_one_epoch(
    nats: NatsServers, tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in ("one", "two", "three")]

    @asynccontextmanager
    async def all_gateways() -> AsyncIterator[list[Gateway]]:
        loop = asyncio.get_running_loop()
        running = [Gateway(with_copies(nats, path), loop) for path in paths]
        await asyncio.gather(*(each.listen() for each in running))
        try:
            yield running
        finally:
            await asyncio.gather(*(each.drain() for each in running))

    async with all_gateways() as (first, *_):
        await send(first, 5)
    older = OlderFiles(nats, tmp_path / "older")
    async with all_gateways() as running:
        await send(running[0], 10)
        end = running[0].pods["demo"].journal.end
        await eventually(lambda: {each.pods["demo"].journal.end for each in running} == {end})
        epoch = running[0].pods["demo"].epoch
    older.put_back()
    with anyio.fail_after(20):
        async with all_gateways() as running:
            await send(running[2], 1)
            epochs = {each.pods["demo"].epoch for each in running}
            assert len(epochs) == 1
            assert epoch not in epochs


@pytest.mark.rule("G-16", "N-14")
@pytest.mark.parametrize("grown_by", [0, 3, 30])
async def test_a_gateway_that_starts_knows_by_its_copy_that_the_log_lost_its_end(
    nats: NatsServers, tmp_path: Path, grown_by: int
) -> None:
    """Also where a gateway without a copy has let the log grow again, and goes on doing so."""

    def at(path: str) -> Config:
        return with_copies(nats, tmp_path / path)

    async with gateways(at("one"), 1) as (only,):
        await send(only, 5)
    older = OlderFiles(nats, tmp_path / "older")
    async with gateways(at("one"), 1) as (only,):
        await send(only, 10)
        epoch = only.pods["demo"].epoch
    older.put_back()
    async with AsyncExitStack() as stack:
        if grown_by:
            (other,) = await stack.enter_async_context(gateways(at("two"), 1))
            await send(other, grown_by)
            assert other.pods["demo"].epoch == epoch
        (again,) = await stack.enter_async_context(gateways(at("one"), 1))
        after = again.pods["demo"].epoch
        assert after != epoch
        if grown_by:
            await eventually(lambda: other.pods["demo"].epoch == after)
        await send(again, 1)
    async with (
        gateways(at("one"), 1) as (again,),
        mcpp.connect(url(again), token=token("b"), last=999, options=QUICK) as b,
    ):
        assert again.pods["demo"].epoch == after  # once
        chats = [
            each for each in [await anext(b) for _ in range(b.replayed)] if each.kind == "chat"
        ]
        assert len(chats) == 5 + grown_by + 1
