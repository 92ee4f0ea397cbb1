"""Approvals that survive breaks and crashes: open proposals, resuming, lost logs, reasons."""

from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp.errors import LostProposalError
from mcpp.payloads import Preview, Proposal
from mcpp.testing import MemoryPod
from tests.interaction.conftest import AnyPod, SocketPod

pytestmark = pytest.mark.anyio

WAIT = 20


def files() -> mcpp.Participant:
    agent = mcpp.Participant("files")

    @agent.tool
    async def write(path: str) -> str:
        return f"wrote {path}"

    return agent


@pytest.mark.rule("P-51")
async def test_a_proposal_carries_a_reason_and_a_preview(harness: AnyPod) -> None:
    async with (
        harness.run(files()),
        harness.connect("ada") as ada,
        harness.connect("bob") as bob,
    ):
        proposal = await bob.propose(
            "files", "write", path="a.txt", reason="the date is wrong", preview=("1926", "2026")
        )
        with anyio.fail_after(WAIT):
            while not (seen := await anext(ada)).kind.startswith("mcp/proposal"):
                pass
        read = seen.payload_as(Proposal)
        assert proposal.reason == read.shown_reason == "the date is wrong"
        assert read.shown_preview == Preview(before="1926", after="2026")
        # They are not part of the call: a request without them fulfils the proposal.
        await ada.approve(seen)
        assert (await proposal.result(WAIT)).text == "wrote a.txt"


@pytest.mark.rule("P-51")
@pytest.mark.parametrize("payload", [{"reason": 5, "preview": "x"}, {"preview": {"after": 3}}])
async def test_a_reason_of_another_form_does_not_make_a_proposal_invalid(payload: object) -> None:
    proposal = mcpp.new_envelope(
        "mcp/proposal:tools/call:write",
        {"method": "tools/call", "params": {"name": "write"}, **dict(payload)},  # type: ignore[call-overload]
        sender="bob",
        to="files",
    ).payload_as(Proposal)
    assert (proposal.shown_reason, proposal.shown_preview) == (None, None)


@pytest.mark.rule("P-51")
async def test_a_policy_decides_on_what_was_open_before_it_joined(harness: AnyPod) -> None:
    approver = mcpp.Participant("approver")
    asked: list[str] = []

    @approver.policy
    async def decide(message: mcpp.Message) -> bool | str:
        asked.append(message.id)
        return True

    async with harness.run(files()), harness.connect("bob") as bob:
        first = await bob.propose("files", "write", path="a.txt")
        withdrawn = await bob.propose("files", "write", path="b.txt")
        await withdrawn.withdraw()
        async with harness.run(approver):
            second = await bob.propose("files", "write", path="c.txt")
            assert (await first.result(WAIT)).text == "wrote a.txt"
            assert (await second.result(WAIT)).text == "wrote c.txt"
        assert sorted(asked) == sorted([first.id, second.id])


def planner(found: list[list[str]], done: anyio.Event) -> mcpp.Participant:
    agent = mcpp.Participant("planner")

    @agent.on_resume
    async def resume(proposals: list[mcpp.OpenProposal]) -> None:
        outcomes = [(await proposal.result(WAIT)).text for proposal in proposals]
        found.append(outcomes)
        done.set()

    return agent


@pytest.mark.rule("P-53")
async def test_a_proposer_that_restarts_finds_its_proposals_and_their_outcomes(
    harness: AnyPod,
) -> None:
    found: list[list[str]] = []
    done = anyio.Event()
    async with harness.run(files()), harness.connect("ada") as ada:
        async with harness.connect("planner") as planning:
            answered = await planning.propose("files", "write", path="before.txt")
            decided = await planning.propose("files", "write", path="meanwhile.txt")
            waiting = await planning.propose("files", "write", path="later.txt")
            gone = await planning.propose("files", "write", path="gone.txt")
            await gone.withdraw()
            await ada.approve(answered.envelope)
            await answered.result(WAIT)
            await planning.send("chat", "before.txt is written")
        await ada.fulfil(decided.envelope)
        with anyio.fail_after(WAIT):
            async with harness.run(planner(found, done)):
                open_ones = await ada.open_proposals()
                assert [message.id for message in open_ones] == [waiting.id]
                await ada.approve(open_ones[0])
                await done.wait()
    assert found == [["wrote meanwhile.txt", "wrote later.txt"]]


@pytest.mark.rule("P-53")
async def test_a_proposal_that_is_being_worked_on_is_resumed(harness: AnyPod) -> None:
    slow = mcpp.Participant("files")
    go_on = anyio.Event()

    @slow.tool
    async def write(path: str) -> str:
        await go_on.wait()
        return path

    found: list[list[str]] = []
    done = anyio.Event()
    async with harness.run(slow), harness.connect("ada") as ada:
        async with harness.connect("planner") as planning:
            proposal = await planning.propose("files", "write", path="a.txt")
            await ada.approve(proposal.envelope)
        with anyio.fail_after(WAIT):
            async with harness.run(planner(found, done)):
                go_on.set()
                await done.wait()
    assert found == [["a.txt"]]


@pytest.mark.rule("P-54")
async def test_a_lost_log_ends_every_waiting_result(harness: AnyPod) -> None:
    errors: list[Exception] = []

    async with harness.run(files()), harness.connect("bob") as bob:
        proposals = [await bob.propose("files", "write", path=name) for name in ("a", "b")]

        async def wait(proposal: mcpp.OpenProposal) -> None:
            try:
                await proposal.result(WAIT)
            except mcpp.CallError as error:
                errors.append(error)

        with anyio.fail_after(WAIT):
            async with anyio.create_task_group() as tasks:
                for proposal in proposals:
                    tasks.start_soon(wait, proposal)
                await anyio.lowlevel.checkpoint()
                harness.restart()
        assert [type(error) for error in errors] == [LostProposalError, LostProposalError]
        assert str(errors[0]) == "write of 'files': the gateway has lost its log, and this proposal"
        with pytest.raises(LostProposalError):
            await proposals[0].result(WAIT)


@pytest.mark.rule("P-54")
async def test_a_log_that_survives_a_restart_ends_nothing(tmp_path: Path) -> None:
    sockets = SocketPod(log=tmp_path / "log")
    try:
        async with sockets.run(files()), sockets.connect("bob") as bob:
            proposal = await bob.propose("files", "write", path="a.txt")
            async with sockets.connect("ada") as ada:
                sockets.restart()
                (waiting,) = await ada.open_proposals()
                await ada.approve(waiting)
                assert (await proposal.result(WAIT)).text == "wrote a.txt"
    finally:
        sockets.close()


async def test_an_agent_without_proposals_is_not_resumed() -> None:
    pod, found = MemoryPod(), list[list[str]]()
    async with pod.run(planner(found, anyio.Event())), pod.connect("ada") as ada:
        await ada.send("chat", "hello")
    assert found == []
