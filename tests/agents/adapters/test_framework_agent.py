"""What the adapters of all frameworks have in common, without a framework."""

from typing import Any

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


async def test_a_proposal_that_cannot_be_withdrawn_keeps_no_other_open(pod: MemoryPod) -> None:
    may: list[dict[str, Any]] = [
        {"kind": ["mcp/*", "!mcp/withdraw"]},
        {"kind": "mcp/withdraw", "to": "alice"},
    ]
    pod.add("helper", may)
    async with pod.connect("alice") as alice:
        async with pod.connect("helper") as before:
            kept = await before.propose("helper", "shred", {"file": "x"})
            await before.propose("alice", "shred", {"file": "y"})
        async with pod.run(FixedAgent().participant("helper")):
            async for message in alice:
                if message.kind == "mcp/withdraw":
                    break
            assert [each.id for each in await alice.open_proposals()] == [kept.id]
