"""The trip of `examples/`, against a real gateway: crashes, restarts, and a person who is away."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

import mcpp
from tests.interaction.conftest import SocketPod

TRIP = Path(__file__).parents[3] / "examples" / "trip"
WAIT = 60

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def script(
    sockets: SocketPod, name: str, program: str, *arguments: str
) -> AsyncIterator[Process]:
    sockets.add(name)
    environ = {"MCPP_URL": sockets.url, "MCPP_TOKEN": sockets.token(name), "SEARCH_SECONDS": "1"}
    process = await anyio.open_process(
        [sys.executable, str(TRIP / program), *arguments],
        env=os.environ | environ,
        stdout=subprocess.DEVNULL,
        stderr=None,
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def next_of(pod: mcpp.Pod, kind: str, sender: str | None = None) -> mcpp.Message:
    async for message in pod:
        if message.kind.startswith(kind) and sender in (None, message.sender):
            return message
    raise AssertionError("the pod has ended")


async def test_a_trip_survives_crashes_restarts_and_a_long_lunch(tmp_path: Path) -> None:
    # A context expires when it is idle for a second, as after the hour that a person is away.
    sockets = SocketPod({"context_idle_seconds": 1.0}, log=tmp_path / "log")
    try:
        with anyio.fail_after(WAIT):
            await travel(sockets)
    finally:
        sockets.close()


async def travel(sockets: SocketPod) -> None:
    async with AsyncExitStack() as stack:
        ada = await stack.enter_async_context(sockets.connect("ada"))
        processes = {
            name: await stack.enter_async_context(script(sockets, name, program, name))
            for name, program in (
                ("bookings", "bookings.py"),
                ("worker-1", "worker.py"),
                ("worker-2", "worker.py"),
                ("planner", "planner.py"),
            )
        }
        for name in processes:
            await ada.wait_for_presence(name, WAIT)
        await ada.send("chat", "@planner Paris", to="planner")
        # A worker is killed while it works: the other one takes over.
        claim = await next_of(ada, "claim:")
        processes[claim.sender].send_signal(signal.SIGKILL)
        first = await next_of(ada, "result")
        assert first.sender != claim.sender
        # The planner is killed while it waits for the person, and the gateway is restarted.
        proposal = await next_of(ada, "mcp/proposal:")
        processes["planner"].send_signal(signal.SIGKILL)
        assert proposal.context is not None
        trip = proposal.context.id
        while not any(each.get("id") == trip for each in await expired(ada)):
            pass
        sockets.restart()
        await stack.enter_async_context(script(sockets, "planner", "planner.py"))
        await ada.wait_for_presence("planner", WAIT)
        # The person comes back.
        sockets.add("person")
        environ = {"MCPP_URL": sockets.url, "MCPP_TOKEN": sockets.token("person")}
        done = await anyio.run_process(
            [sys.executable, str(TRIP / "approve.py")], input=b"y\n", env=os.environ | environ
        )
        assert b"ada wants to go to Paris." in done.stdout
        answer = await next_of(ada, "chat", "planner")
        assert answer.text == "Booked: hotel for Paris, train for Paris."
        found = await ada.context_of(trip)
        assert (found.title, found.state) == ("Trip to Paris", "concluded")
        assert found.node.progress == "3 of 3"


async def expired(pod: mcpp.Pod) -> list[dict[str, str]]:
    """Return the contexts that have expired, as the next announcement names them."""
    payload = (await next_of(pod, "system/context")).payload
    if payload["event"] != "expired":
        return []
    return [payload["context"]] if "context" in payload else list(payload["contexts"])
