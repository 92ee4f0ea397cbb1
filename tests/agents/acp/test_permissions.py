"""Permissions: an agent's request is a proposal in the pod, and its outcome the agent's option."""

from collections.abc import Collection

import pytest

import mcpp
from mcpp import Message, Pod
from mcpp.payloads import Proposal
from mcpp.testing import MemoryPod
from mcpp_agents.acp.limits import AcpLimits
from tests.agents.acp.bridges import Folders, coding_agent, said

pytestmark = pytest.mark.anyio

PROPOSAL = "mcp/proposal:tools/call:allow"


async def ask_for_a_file(person: Pod) -> Message:
    """Have the agent ask for permission to write `notes`, and return the proposal."""
    await person.send("chat", "ask notes: two", to="coder")
    return await said(person, PROPOSAL)


async def test_an_approval_is_the_option_to_allow_once(pod: MemoryPod, folders: Folders) -> None:
    (folders.work / "notes").write_text("one")
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        proposal = await ask_for_a_file(alice)
        shown = proposal.payload_as(Proposal)
        assert shown.shown_reason == "coder asks: edit notes"
        preview = shown.shown_preview
        assert preview is not None
        assert (preview.before, preview.after) == ("one", "two")
        assert proposal.context is not None
        assert proposal.context.type == "reasoning"
        assert (folders.work / "notes").read_text() == "one"
        await alice.approve(proposal)
        assert (await said(alice, "chat")).text == "chose o1"
        assert (folders.work / "notes").read_text() == "two"
        assert await alice.open_proposals() == []
        thoughts = [m.text async for m in alice.history(mcpp.filters.kind("reflection"))]
    assert thoughts[-2] == "@alice allowed it (once): edit notes"
    assert thoughts[-1] == "Done: edit notes\nnotes:\n- one\n+ two"


async def test_a_rejection_is_the_option_to_reject(pod: MemoryPod, folders: Folders) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        proposal = await ask_for_a_file(alice)
        assert proposal.payload["reason"] == "coder asks: edit notes"
        await alice.reject(proposal, "policy", "not today")
        withdrawn = await said(alice, "mcp/withdraw")
        assert withdrawn.correlation_id == proposal.id
        decision = await said(alice, "reflection", "rejected")
        assert decision.text == "@alice rejected it (not today): edit notes"
        assert (await said(alice, "chat")).text == "chose o3"
        assert not (folders.work / "notes").exists()
        with pytest.raises(mcpp.RemoteError):
            await alice.fulfil(proposal, timeout=10)


async def test_an_agent_that_stops_after_a_rejection_says_so(
    pod: MemoryPod, folders: Folders
) -> None:
    """Codex cancels its turn when a change is rejected."""
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        await alice.send("chat", "ask notes: two\nthink no\nstop cancelled", to="coder")
        await alice.reject(await said(alice, PROPOSAL), "policy", "not today")
        ended = await said(alice, "conclusion")
        assert ended.payload.get("outcome", "concluded") == "concluded"
        reply = await said(alice, "chat")
    assert reply.text == "I stopped. @alice rejected it (not today): edit notes"


async def test_files_that_the_title_does_not_name_are_named(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        await alice.send("chat", "title Edit files\nask a/notes: two", to="coder")
        proposal = await said(alice, PROPOSAL)
        assert proposal.payload["reason"] == "coder asks: Edit files\nFiles: a/notes"
        await alice.reject(proposal, "no")
        await said(alice, "chat")


async def test_an_edited_call_allows_it_always(pod: MemoryPod, folders: Folders) -> None:
    """The inspector sends the call with other arguments, then rejects the proposal as edited."""
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        proposal = await ask_for_a_file(alice)
        arguments = {**proposal.payload["params"]["arguments"], "option": "always"}
        with pytest.raises(mcpp.RemoteError, match="one of: once, always"):
            await alice.call("coder", "allow", {**arguments, "option": "o3"})
        await alice.call("coder", "allow", arguments)
        await alice.reject(proposal, "edited")
        assert (await said(alice, "chat")).text == "chose o2"
        with pytest.raises(mcpp.RemoteError, match="no such request"):
            await alice.call("coder", "allow", arguments)
        assert await alice.open_proposals() == []


@pytest.mark.parametrize(
    ("approvers", "stranger"), [(None, "coder-tools"), (["alice"], "eve")], ids=["own", "others"]
)
async def test_an_agent_cannot_allow_its_own_actions_nor_others_that_are_not_named(
    pod: MemoryPod, folders: Folders, approvers: Collection[str] | None, stranger: str
) -> None:
    async with (
        coding_agent(pod, folders, approvers=approvers),
        pod.connect("alice") as alice,
        pod.connect(stranger) as other,
    ):
        proposal = await ask_for_a_file(alice)
        with pytest.raises(mcpp.RemoteError, match="cannot decide"):
            await other.call("coder", "allow", proposal.payload["params"]["arguments"])
        await other.reject(proposal, "no")
        arguments = proposal.payload["params"]["arguments"]
        await alice.call("coder", "allow", arguments)
        assert (await said(alice, "chat")).text == "chose o1"


async def test_without_a_decision_in_time_it_is_rejected(pod: MemoryPod, folders: Folders) -> None:
    limits = AcpLimits(approval_seconds=0.05)
    async with coding_agent(pod, folders, limits=limits), pod.connect("alice") as alice:
        proposal = await ask_for_a_file(alice)
        assert (await said(alice, "mcp/withdraw")).correlation_id == proposal.id
        assert (await said(alice, "chat")).text == "chose o3"


async def test_cancelled_work_withdraws_its_proposal(pod: MemoryPod, folders: Folders) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        question = await alice.send("chat", "ask notes: two\nwait", to="coder")
        proposal = await said(alice, PROPOSAL)
        await alice.cancel(question)
        assert (await said(alice, "mcp/withdraw")).correlation_id == proposal.id
        assert await alice.open_proposals() == []
        # The agent was told, so it has stopped, and its session goes on.
        assert "ask notes" in (await alice.ask("coder", "remember")).text


async def test_a_killed_bridge_withdraws_its_proposals_when_it_is_back(
    pod: MemoryPod, folders: Folders
) -> None:
    async with pod.connect("alice") as alice:
        async with pod.connect("coder") as before:  # as a bridge that ends without any cleaning up
            await before.propose("coder", "allow", {"request": "1", "option": "once"})
        async with coding_agent(pod, folders):
            await said(alice, "mcp/withdraw")
            assert await alice.open_proposals() == []


async def test_an_agent_without_the_right_to_propose_is_not_allowed_anything(
    pod: MemoryPod, folders: Folders
) -> None:
    pod.add("coder", [{"kind": ["chat", "reflection", "conclusion", "mcp/notification:*"]}])
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        assert (await alice.ask("coder", "ask notes: two")).text == "chose o3"
        assert not (folders.work / "notes").exists()


async def test_so_many_requests_at_once_are_rejected(pod: MemoryPod, folders: Folders) -> None:
    limits = AcpLimits(approval_seconds=0.5)
    async with coding_agent(pod, folders, limits=limits), pod.connect("alice") as alice:
        reply = await alice.ask("coder", "many 100")
        assert reply.text.count('"o3"') + reply.text.count("too many requests") == 100
        log = await alice.history().all()
    assert len([message for message in log if message.kind == PROPOSAL]) == 16


async def test_what_lies_outside_of_the_folder_is_named(pod: MemoryPod, folders: Folders) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        await alice.send("chat", "ask ../secret: two", to="coder")
        proposal = await said(alice, PROPOSAL)
        reason = proposal.payload_as(Proposal).shown_reason or ""
        assert reason.splitlines()[1] == f"Outside of its folder: {folders.work}/../secret"
        await alice.reject(proposal, "no")
        await said(alice, "chat")
