"""What is in flight when a gateway ends goes on when it is back: calls and proposals."""

import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import pytest

import mcpp
from tests.gateway.durability.workload import QUICK, DurableProcess
from tests.gateway.sockets import token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.rule("G-51")
@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM])
async def test_calls_and_proposals_survive_a_restart(
    tmp_path: Path, ended_by: signal.Signals
) -> None:
    gateway = DurableProcess(tmp_path, 3)
    gateway.start()
    called, go_on = anyio.Event(), anyio.Event()
    tools = mcpp.Participant("p0")

    @tools.tool
    async def slow() -> str:
        called.set()
        await go_on.wait()
        return "answered after the restart"

    @tools.tool
    def quick() -> str:
        return "approved after the restart"

    def connect(name: str, *, own: bool = False) -> AbstractAsyncContextManager[mcpp.Pod]:
        return mcpp.connect(gateway.url, token=token(name), own=own, options=QUICK)

    results: list[str] = []

    async def call(pod: mcpp.Pod) -> None:
        results.append((await pod.call("p0", "slow")).text)

    try:
        with anyio.fail_after(60):
            async with (
                tools.run_in_background(connect("p0", own=True)),
                connect("p1") as caller,
                connect("p2") as approver,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(call, caller)
                proposal = await caller.propose("p0", "quick")
                await called.wait()
                await anyio.to_thread.run_sync(gateway.end, ended_by)
                go_on.set()
                await anyio.to_thread.run_sync(gateway.start)
                await approver.fulfil(proposal.envelope)
                results.append((await proposal.result()).text)
        assert sorted(results) == ["answered after the restart", "approved after the restart"]
    finally:
        gateway.close()
