"""Agents that flood, lie, hang or break the protocol, and programs that do not end."""

from pathlib import Path

import anyio
import pytest

from mcpp.testing import MemoryPod
from mcpp_agents.acp.limits import AcpLimits
from tests.agents.acp.bridges import Folders, coding_agent, said

pytestmark = pytest.mark.anyio


async def test_a_flood_of_updates_is_bounded_and_said_to_be(
    pod: MemoryPod, folders: Folders
) -> None:
    limits = AcpLimits(entries=20, text_chars=5_000)
    async with coding_agent(pod, folders, limits=limits), pod.connect("alice") as alice:
        reply = await alice.ask("coder", "flood 500")
        assert reply.text == "x" * 5_000
        thoughts = [m.text async for m in alice.history() if m.kind == "reflection"]
    assert len(thoughts) == 21
    assert thoughts[-1] == "… and 480 more updates, left out"


async def test_messages_that_break_the_protocol_are_ignored(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        assert (await alice.ask("coder", "strange")).text == "cancelled"
        assert (await alice.ask("coder", "say still here")).text == "still here"


async def test_half_a_character_is_replaced(pod: MemoryPod, folders: Folders) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        reply = await alice.ask("coder", f"half {folders.work}/")
    assert (
        reply.text
        == "cut \ufffd: cannot read " + f"{folders.work}/\ufffd: No such file or directory"
    )


async def test_a_request_that_cannot_be_read_is_refused(pod: MemoryPod, folders: Folders) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        reply = await alice.ask("coder", f"huge {folders.work}/huge")
    assert reply.text == "the message is not JSON-RPC, or too long"


async def test_an_agent_that_says_nothing_is_given_up(pod: MemoryPod, folders: Folders) -> None:
    limits = AcpLimits(silence_seconds=0.3, cancel_seconds=0.1)
    async with coding_agent(pod, folders, limits=limits), pod.connect("alice") as alice:
        await alice.ask("coder", "say hello")
        failed = await alice.ask("coder", "hang")
        assert "took too long" in failed.text
        # Its session is given up, too: it does not answer there.
        assert (await alice.ask("coder", "remember")).text == "nothing"


async def test_the_asker_is_told_that_the_bridge_ends_while_the_agent_does_not_stop(
    pod: MemoryPod, folders: Folders
) -> None:
    async with pod.connect("alice") as alice:
        async with coding_agent(pod, folders, limits=AcpLimits(end_seconds=2.0)) as bridge:
            asked = await alice.send("chat", "plan work\nhang", to="coder")
            await said(alice, "reflection")
            await bridge.end_questions()
            chats = [each async for each in alice.history() if each.kind == "chat"]
        assert [(each.correlation_id, each.text) for each in chats[1:]] == [
            (asked.id, "I was stopped before I had an answer.")
        ]
        async with coding_agent(pod, folders):
            assert (await alice.ask("coder", "remember")).text == "plan work\nhang"


async def test_a_program_that_is_no_agent_is_reported_to_those_who_ask(
    pod: MemoryPod, folders: Folders
) -> None:
    limits = AcpLimits(start_seconds=0.5)
    command = ["/bin/sh", "-c", "while true; do echo hello; sleep 0.1; done"]
    async with (
        coding_agent(pod, folders, command=command, limits=limits),
        pod.connect("alice") as alice,
    ):
        assert "is not running" in (await alice.ask("coder", "say hello")).text


async def test_questions_in_other_contexts_are_answered_while_one_hangs(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        await alice.send("chat", "plan work\nwait", to="coder")
        await said(alice, "reflection")
        async with alice.context("task") as task:
            assert (await task.ask("coder", "say hello")).text == "hello"


async def test_a_program_runs_in_the_folder_and_its_output_is_kept(
    pod: MemoryPod, folders: Folders
) -> None:
    limits = AcpLimits(terminal_bytes=100)
    async with (
        coding_agent(pod, folders, limits=limits, offers_terminals=True),
        pod.connect("alice") as alice,
    ):
        shown = await alice.ask("coder", "run basename $PWD; echo wrong >&2; exit 3")
        assert shown.text == "3 work\nwrong\n"
        much = await alice.ask("coder", "run yes é | head -n 1000")
        assert much.text.startswith(("0 é\n", "0 \né"))
        assert len(much.text.encode()) <= 102


async def test_output_that_is_no_text_does_not_delay_the_bridge(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders, offers_terminals=True), pod.connect("alice") as alice:
        command = r"head -c 3000000 /dev/zero | tr '\0' '\200'"
        with anyio.fail_after(30):  # it took minutes, in which the bridge did nothing else
            shown = await alice.ask("coder", f"run {command}")
        assert shown.text.startswith("0 \ufffd")


async def test_a_program_that_ends_by_a_signal_without_a_name_is_reported(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders, offers_terminals=True), pod.connect("alice") as alice:
        assert (await alice.ask("coder", "run echo begun; kill -35 $$")).text == "SIG35 begun\n"


async def test_programs_end_at_their_limit_and_with_the_question(
    pod: MemoryPod, folders: Folders
) -> None:
    limits = AcpLimits(terminal_seconds=2)
    async with (
        coding_agent(pod, folders, limits=limits, offers_terminals=True),
        pod.connect("alice") as alice,
    ):
        shown = await alice.ask("coder", "run sleep 1000 & echo $! > pid; sleep 1000")
        assert "its time limit" in shown.text
        await _until_it_ends(folders.work / "pid")
    async with coding_agent(pod, folders, offers_terminals=True), pod.connect("alice") as alice:
        begin = "start echo $$ > pid2; sleep 1000"
        await alice.ask("coder", f"{begin}\nrun until test -s pid2; do sleep 0.1; done")
        await _until_it_ends(folders.work / "pid2")


async def _until_it_ends(file: Path) -> None:
    """Wait until the process whose number is in a file has ended."""
    with anyio.fail_after(20):
        while _is_running(file):  # noqa: ASYNC110
            await anyio.sleep(0.01)


def _is_running(file: Path) -> bool:
    return Path(f"/proc/{file.read_text().strip()}").exists()
