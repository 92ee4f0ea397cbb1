"""Failures of one agent do not affect the pod and the other agents."""

import signal
import sys
from typing import Any

import anyio
import pytest

from mcpp import Participant
from mcpp.agent.tools import ToolCall
from mcpp.errors import NoAnswerError, RemoteError
from tests.agents.bridge.test_bridge import ODD_SERVER
from tests.agents.processes import BOUND, Commands
from tests.interaction.conftest import SocketPod

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def good() -> Participant:
    agent = Participant("good")

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return agent


async def test_a_crash_a_hang_and_invalid_answers_leave_the_others_working(
    sockets: SocketPod, commands: Commands
) -> None:
    hanging, lying, raising = Participant("hanging"), Participant("lying"), Participant("raising")

    @hanging.tool
    async def wait() -> None:
        await anyio.sleep_forever()

    @lying.method("tools/call")
    async def lie(params: dict[str, Any], call: ToolCall) -> Any:
        return {"content": "not even a list", "isError": "perhaps"}

    @lying.method("tools/list")
    async def list(params: dict[str, Any], call: ToolCall) -> Any:
        return ["no", "object"]

    @raising.method("tools/call")
    async def fail(params: dict[str, Any], call: ToolCall) -> Any:
        raise RuntimeError("a secret of ours")

    async with (
        sockets.run(good()),
        sockets.run(hanging),
        sockets.run(lying),
        sockets.run(raising),
        commands.start("odd", "bridge", "odd", "--", *ODD_SERVER) as bridge,
        commands.start("tail", "tail", "--json") as tail,
        sockets.connect("alice") as alice,
    ):
        with anyio.fail_after(BOUND):
            await bridge.line_with("odd is in the pod")
            while not {"odd", "tail"} <= set(alice.participants):
                await anext(alice)
            with pytest.raises(NoAnswerError):
                await alice.call("hanging", "wait", timeout=0.2)
            assert "not even a list" in (await alice.call("lying", "anything")).text
            with pytest.raises(RemoteError, match="internal error") as raised:
                await alice.call("raising", "anything")
            assert "secret" not in str(raised.value)
            bridge.process.send_signal(signal.SIGKILL)
            while "odd" in alice.participants:
                await anext(alice)
            await alice.send("chat", {"text": "\u0000\ud7ff\uffff \x1b[2J" + "x" * 100_000})
            await alice.send("mcp/response:tools/call:add", [None], correlation_id="nothing")
            assert (await alice.call("good", "add", a=2, b=3)).value == 5
            await alice.send("chat", {"text": "still here"})
            await tail.line_with("still here")


async def test_a_server_that_writes_noise_to_standard_output_still_answers(
    sockets: SocketPod, commands: Commands
) -> None:
    noise = "print('noise\\n' * 1000, flush=True); "
    program = f"{noise}import runpy; runpy.run_path({ODD_SERVER[1]!r}, run_name='__main__')"
    async with (
        commands.start("odd", "bridge", "odd", "--", sys.executable, "-c", program) as bridge,
        sockets.connect("alice") as alice,
    ):
        with anyio.fail_after(BOUND):
            await bridge.line_with("odd is in the pod")
            while "odd" not in alice.participants:
                await anext(alice)
            assert (await alice.call("odd", "was_cancelled")).value == "false"
