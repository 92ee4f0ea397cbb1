"""What the adapters of all frameworks have in common, without a framework."""

import pytest

from mcpp.testing import MemoryPod
from mcpp_agents.adapters import FrameworkAgent
from mcpp_agents.adapters.turn import FrameworkTurn

pytestmark = pytest.mark.anyio


class FixedAgent(FrameworkAgent):
    """Answers everything with the same text."""

    async def run(self, turn: FrameworkTurn) -> str:
        return "yes"


async def test_a_restarted_agent_withdraws_what_it_had_proposed(pod: MemoryPod) -> None:
    async with pod.connect("alice") as alice:
        async with pod.connect("helper") as before:  # as an agent that was killed
            proposal = await before.propose("helper", "shred", {"file": "x"})
        async with pod.run(FixedAgent().participant("helper")):
            async for message in alice:
                if message.kind == "mcp/withdraw":
                    break
            assert message.correlation_id == proposal.id
            assert await alice.open_proposals() == []
            assert (await alice.ask("helper", "Are you there?")).text == "yes"
