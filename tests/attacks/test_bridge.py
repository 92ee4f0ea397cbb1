"""A hostile MCP server against its bridge, and the pod behind it."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp.client.tasks import background
from mcpp.errors import RemoteError
from mcpp.testing import MemoryPod
from mcpp_agents.bridge.agent import bridge
from mcpp_agents.bridge.openers import over_stdio
from mcpp_agents.bridge.upstream import Upstream
from mcpp_agents.lines import Lines
from tests.agents.processes import Commands
from tests.attacks.conftest import at_most
from tests.interaction.conftest import SocketPod

pytestmark = pytest.mark.anyio
SERVER = [sys.executable, str(Path(__file__).with_name("hostile_server.py"))]
SHORT_AND_LONG = [1, pytest.param(10, marks=pytest.mark.torture)]


@asynccontextmanager
async def bridged(pod: MemoryPod) -> AsyncIterator[mcpp.Pod]:
    upstream = Upstream(over_stdio(SERVER), backoff=lambda attempt: 0.0, name="hostile")
    async with background() as tasks:
        await tasks.start(upstream.keep_running)
        async with pod.run(bridge("hostile", upstream)), pod.connect("alice") as alice:
            with anyio.fail_after(60):
                yield alice


@pytest.mark.rule("P-44")
@pytest.mark.parametrize("times", SHORT_AND_LONG)
async def test_a_flood_of_progress_does_not_hold_the_answer_back(times: int) -> None:
    pod = MemoryPod(limits={"messages_per_second": 50, "burst": 50})
    async with bridged(pod) as alice:
        received: list[mcpp.Progress] = []
        with at_most(1.5 * times, "progress"):  # 20 s for each 1,000 at 50 per second
            result = await alice.call(
                "hostile", "progress", {"amount": 1000 * times}, on_progress=received.append
            )
        assert result.text == "done"
        assert 1 <= len(received) <= 100 + 200 * times


async def test_a_long_message_of_progress_is_cut() -> None:
    received: list[mcpp.Progress] = []
    async with bridged(MemoryPod()) as alice:
        arguments = {"amount": 1, "message": 3_000_000}
        await alice.call("hostile", "progress", arguments, on_progress=received.append)
    assert [len(each.message or "") for each in received] == [1000]


@pytest.mark.rule("P-46")
@pytest.mark.parametrize("times", SHORT_AND_LONG)
@pytest.mark.parametrize("name", ["noise", "babble"])
async def test_noise_of_a_server_is_left_out(
    times: int, name: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with bridged(MemoryPod()) as alice:
        await alice.call("hostile", name, {"amount": 5_000_000 * times})
    written = capfd.readouterr().err
    assert len(written) + len(caplog.text) < 200_000 + 40_000 * times
    assert "left out" in written or "not JSON-RPC" in caplog.text


@pytest.mark.rule("P-46")
@pytest.mark.parametrize("name", ["long", "long_id_last"])
@pytest.mark.parametrize("times", SHORT_AND_LONG)
async def test_a_line_that_is_too_long_is_refused_while_others_are_answered(
    times: int, name: str
) -> None:
    async with bridged(MemoryPod()) as alice:
        with at_most(2 * times, "a long line"), pytest.raises(RemoteError, match="too long"):
            await alice.call("hostile", name, {"amount": 10_000_000 * times})
        assert (await alice.call("hostile", "other")).text == "done"


@pytest.mark.rule("P-46")
@pytest.mark.parametrize("depth", [70, 300, 3000, 100_000])
async def test_a_result_nested_too_deeply_is_answered_with_an_error(depth: int) -> None:
    async with bridged(MemoryPod()) as alice:
        with pytest.raises(RemoteError):
            await alice.call("hostile", "deep", {"amount": depth}, timeout=5)
        assert (await alice.call("hostile", "other")).text == "done"


@pytest.mark.rule("P-46")
async def test_a_server_that_ignores_the_end_of_its_input_does_not_outlive_its_bridge(
    tmp_path: Path,
) -> None:
    sockets = SocketPod({})
    pids = tmp_path / "pids"
    try:
        command = ["bridge", "hostile", "--", *SERVER, str(pids)]
        async with Commands(sockets).start("hostile", *command) as running:
            await running.line_with("hostile is in the pod")
            server, child = map(int, pids.read_text().split())
            running.process.kill()
            await running.wait()
            with anyio.fail_after(20):
                while _is_running(server) or _is_running(child):  # noqa: ASYNC110
                    await anyio.sleep(0.05)
    finally:
        sockets.close()


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_lines_are_those_of_the_bytes_however_they_arrive() -> None:
    text = b"one\n" + b"x" * 100 + b"\n\nlast\nrest"
    for size in range(1, len(text) + 1):
        lines = Lines(max_bytes=50)
        found = [
            item
            for start in range(0, len(text), size)
            for item in lines.split(text[start : start + size])
        ]
        assert [(line, length) for line, length in found if length != 100] == [
            (b"one", 3), (b"", 0), (b"last", 4),
        ]  # fmt: skip
        assert [length for _, length in found] == [3, 100, 0, 4]
