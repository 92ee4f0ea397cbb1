"""Commands whose connection the gateway closes for good report the reason in one line."""

import pytest

from tests.agents.model.model_server import model_server
from tests.agents.processes import Commands
from tests.interaction.conftest import SocketPod

REPLACED = "replaced by a newer connection"
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.mark.parametrize("command", ["agent", "mcp"])
async def test_a_replaced_agent_reports_it_in_one_line(
    sockets: SocketPod, commands: Commands, command: str
) -> None:
    with model_server([]) as server:
        options = {
            "agent": ("--model", "openai:m", "--base-url", f"{server.url}/v1", "--as", "ide"),
            "mcp": (),
        }
        async with (
            sockets.connect("alice", own=True) as alice,
            commands.start("ide", command, *options[command]) as running,
        ):
            while "ide" not in alice.participants:
                await anext(alice)
            async with sockets.connect("ide"):
                while (line := await running.line()).endswith("is in the pod"):
                    pass
                assert line == f"mcpp {command}: the connection is closed (4500): {REPLACED}"
                assert await running.wait() == 1
