"""The demo agents: their work, their use of transient results and memory, start and shutdown."""

import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp import ContextTree, Envelope, Message
from mcpp.client import local_pod
from mcpp.prompts import PromptBuilder
from mcpp.testing import MemoryPod
from mcpp_agents.demo import analyst, records, reviewer
from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.bus.participant import MemoryAgent
from mcpp_agents.memory.store import BUS_HOURLY_CAP
from tests.agents.processes import BOUND, MCPP

pytestmark = pytest.mark.anyio


async def no_pause() -> None:
    await anyio.lowlevel.checkpoint()


@pytest.fixture
def limits() -> dict[str, object]:
    return {"messages_per_second": 0, "context_messages_per_second": 0}


async def test_a_month_is_checked_reviewed_and_its_correction_waits_for_approval(
    pod: MemoryPod,
) -> None:
    log: list[Envelope] = []
    async with (
        pod.connect("watcher", own=True) as watcher,
        pod.run(records.agent()),
        pod.run(reviewer.agent(no_pause)),
        pod.run(analyst.agent(no_pause, rest_seconds=3600)),
    ):
        with anyio.fail_after(BOUND):
            async for message in watcher:
                log.append(message.envelope)
                if message.kind.startswith("mcp/proposal:"):
                    break
            await watcher.fulfil(message)
            async for message in watcher:
                log.append(message.envelope)
                if "Thank you, watcher" in message.text:
                    break
    tree = ContextTree(log)
    (workflow,) = tree.roots
    (thinking,) = workflow.children
    assert (workflow.type, workflow.state) == ("workflow", "concluded")
    assert (thinking.type, thinking.creator, thinking.state) == (
        "reasoning",
        "reviewer",
        "concluded",
    )
    assert [child.type for child in thinking.children] == ["comparison", "hypothesis"]
    assert all(child.state == "concluded" for child in thinking.children)
    builder = PromptBuilder("analyst", cache=None)
    for envelope in log:
        builder.add(envelope)
    prompt = builder.build()
    pages = [one for one in log if one.kind == "mcp/response:tools/call:search_activities"]
    assert len(pages) >= 4
    assert len(prompt.handles) >= len(pages) - 1  # every noted page is collapsed
    assert prompt.report.tokens_after < 0.7 * prompt.report.tokens_before


async def test_the_analyst_answers_a_person(pod: MemoryPod) -> None:
    async with pod.run(analyst.agent(no_pause)), pod.connect("alice") as alice:
        await alice.send("chat", {"text": "How is it going?"}, to=["analyst"])
        with anyio.fail_after(BOUND):
            answer = await anext(message async for message in alice if message.kind == "chat")
        assert answer.text == "I read the time sheet, a month at a time. I have only just begun."


def test_a_typing_error_is_attributed_to_its_cause() -> None:
    for wrote in range(60, 181):
        for factor in reviewer.TYPING_ERRORS:
            for usual in range(15, 181, 5):
                found = (
                    one
                    for one in reviewer.TYPING_ERRORS
                    if reviewer.explains(one, wrote * factor, usual)
                )
                assert next(found, 1) == factor, (wrote, usual)


async def test_the_reviewer_finds_the_typing_error_of_every_month(pod: MemoryPod) -> None:
    async with (
        pod.run(records.agent()),
        pod.run(reviewer.agent(no_pause)),
        pod.connect("alice") as alice,
    ):
        for month in range(1, 13):
            found = await analyst.check_month(alice, month, no_pause)
            assert len(found["wrong"]) == 1, month


async def test_the_analyst_reports_what_memory_returns_and_its_conclusions_are_stored(
    pod: MemoryPod, tmp_path: Path
) -> None:
    async with (
        pod.run(records.agent()),
        pod.run(reviewer.agent(no_pause)),
        pod.connect("alice") as alice,
        pod.connect("watcher") as watcher,
    ):
        with MemoryStore.open(tmp_path / "memory.db", embedder="none") as store:
            async with pod.run(MemoryAgent(store).participant):
                with anyio.fail_after(BOUND):
                    await analyst.wait_for_participants(alice, "memory")
                    checks = [await analyst.check_month(alice, n, no_pause) for n in (1, 2)]
                    messages = [m async for m in _until(watcher, "I remember")]
                found = await alice.call("memory", "context", {"goal": "Check the time sheet"})
    texts = [check["text"] for check in checks]
    thoughts = [m.payload["thought"] for m in messages if m.kind == "reflection"]
    assert thoughts[0] == "Memory has nothing about this yet."
    assert texts[0] in thoughts[-1]
    names = [item["name"] for part in found.value["sections"] for item in part["items"]]
    assert set(texts) <= set(names)
    assert [name for name in names if name.startswith("Activity ")]  # the reviewer's verdicts


async def test_a_long_demo_stays_below_the_hourly_limit_of_memory(
    pod: MemoryPod, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pauses = 0

    async def count_pause() -> None:
        nonlocal pauses
        pauses += 1

    months = range(1, 13)
    async with (
        pod.run(records.agent()),
        pod.run(reviewer.agent(count_pause)),
        pod.connect("alice") as alice,
    ):
        # Exactly one memory a month for each of the two agents.
        path = tmp_path / "memory.db"
        with MemoryStore.open(path, embedder="none", bus_hourly_cap=len(months)) as store:
            async with pod.run(MemoryAgent(store).participant):
                with anyio.fail_after(BOUND):
                    await analyst.wait_for_participants(alice, "memory")
                    checks = [await analyst.check_month(alice, n, count_pause) for n in months]
                    texts = [check["text"] for check in checks]
                    found = await alice.call("memory", "context", {"goal": texts[-1]})
    assert texts[-1] in found.text
    assert not [one.getMessage() for one in caplog.records if "this hour" in one.getMessage()]
    month_seconds = analyst.REST_SECONDS + pauses / len(months) * reviewer.PAUSE_SECONDS
    assert 3600 / month_seconds < 0.9 * BUS_HOURLY_CAP


async def test_the_analyst_continues_when_memory_returns_an_invalid_result(pod: MemoryPod) -> None:
    odd = mcpp.Participant("memory")

    @odd.tool
    async def context(goal: str, limit: int) -> str:
        return "Everything you have ever wanted to know."

    async with (
        pod.run(odd),
        pod.run(records.agent()),
        pod.run(reviewer.agent(no_pause)),
        pod.connect("alice") as alice,
    ):
        assert (await analyst.check_month(alice, 1, no_pause))["wrong"]


async def test_the_reviewer_claims_no_usual_time_for_a_person_without_history(
    pod: MemoryPod,
) -> None:
    async with (
        pod.run(records.agent()),
        pod.run(reviewer.agent(no_pause)),
        pod.connect("alice") as alice,
    ):
        new = {"month": 1, "id": 1, "who": "Ida", "work": "flying", "minutes": 900}
        assert (await alice.call("reviewer", "review", new)).value["minutes"] == 90
        with anyio.fail_after(BOUND):
            texts = [str(m.payload) async for m in _until(alice, "no other flying of Ida's")]
        assert not any("usually" in text for text in texts)


async def test_a_rejected_correction_is_withdrawn_and_few_proposals_are_open_at_once(
    pod: MemoryPod,
) -> None:
    async with (
        pod.connect("watcher", own=True) as watcher,
        pod.run(records.agent()),
        pod.run(reviewer.agent(no_pause)),
        pod.run(analyst.agent(no_pause, rest_seconds=0)),
    ):
        proposals: list[Message] = []
        with anyio.fail_after(BOUND):
            async for message in watcher:
                if message.kind.startswith("mcp/proposal:"):
                    proposals.append(message)
                if "3 corrections are already waiting for a person" in message.text:
                    break
            assert len({message.payload["params"]["arguments"]["id"] for message in proposals}) == 3
            await watcher.reject(proposals[0], "no", "Ada did work that long")
            messages = [message async for message in _until(watcher, "stays as it is")]
        assert "rejected by @watcher: Ada did work that long" in messages[-1].text
        withdrawn = [one.correlation_id for one in messages if one.kind == "mcp/withdraw"]
        assert withdrawn == [proposals[0].id]
        # As the inspector does for an edited proposal.
        await watcher.reject(proposals[1], "edited", "asked for with other arguments")
        with anyio.fail_after(BOUND):
            async for _ in _until(watcher, "is corrected differently. Thank you, watcher"):
                pass


async def test_a_restarted_analyst_withdraws_its_open_proposals(pod: MemoryPod) -> None:
    async with pod.run(records.agent()), pod.connect("watcher", own=True) as watcher:
        async with pod.connect("analyst", own=True) as before:
            wrong = {"month": 1, "id": 1001, "minutes": 60}
            for _ in range(3):
                await before.propose("records", "correct_activity", wrong)
            seen = (m async for m in watcher if m.kind.startswith("mcp/proposal:"))
            fulfilled, withdrawn, open = [await anext(seen) for _ in range(3)]
            await watcher.fulfil(fulfilled)
            # Only the proposer can withdraw it.
            await watcher.send("mcp/withdraw", {}, to=["records"], correlation_id=open.id)
            await before.send("mcp/withdraw", {}, to=["records"], correlation_id=withdrawn.id)
        withdrawals = (
            m async for m in watcher if m.kind == "mcp/withdraw" and m.sender != watcher.me
        )
        async with pod.run(analyst.agent(no_pause)):
            with anyio.fail_after(BOUND):
                sent = [await anext(withdrawals) for _ in range(2)]
                await watcher.request("analyst", "ping")
        await watcher.send("end")
        with anyio.fail_after(BOUND):
            sent += [m async for m in _until_kind(watcher, "end") if m.kind == "mcp/withdraw"]
    assert [m.correlation_id for m in sent] == [withdrawn.id, open.id]


async def _until_kind(pod: mcpp.Pod, kind: str) -> AsyncIterator[Message]:
    async for message in pod:
        yield message
        if message.kind == kind:
            return


async def _until(pod: mcpp.Pod, text: str) -> AsyncIterator[Message]:
    async for message in pod:
        yield message
        if text in str(message.payload):
            return


@pytest.mark.slow
@pytest.mark.parametrize("end", ["Ctrl-C", "the terminal is closed", "the gateway is killed"])
async def test_the_demo_runs_in_a_terminal_and_all_its_processes_end(
    tmp_path: Path, end: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {name: value for name, value in os.environ.items() if name[:5] != "MCPP_"}
    command = [MCPP, "up", "--demo", "--port", str(port)]
    terminal, process = start_in_terminal(command, tmp_path, environ)
    try:
        with anyio.fail_after(3 * BOUND):
            seen = b""
            while b"Stop with Ctrl-C." not in seen:
                await anyio.wait_readable(terminal)
                seen += os.read(terminal, 65536)
            pod = local_pod.find(tmp_path)
            assert pod is not None
            address = local_pod.Address(pod.url, pod.add("tester"))
            async with mcpp.connect(address, last=1000) as tester:
                while not {"analyst", "records", "reviewer", "memory"} <= set(tester.participants):
                    await anext(tester)
                assert (pod.folder / "memory.db").is_file()  # where `mcpp memory` looks
                # An agent that is killed is started again and continues.
                agents = await children(process.pid)
                os.kill(agents["analyst"], signal.SIGKILL)
                joined = [one async for one in _presence(tester, "analyst", "leave", "join")]
                assert len(joined) == 2
                await anext(m async for m in tester if m.sender == "analyst")
            agents = await children(process.pid)
            # And the process that reads the history, which memory has asked for.
            assert {"analyst", "records", "reviewer", "memory"} < agents.keys()
            if end == "Ctrl-C":
                os.write(terminal, b"\x03")
            elif end == "the terminal is closed":
                os.close(terminal)
                terminal = -1
            else:
                process.kill()
            # Abandon the thread on a timeout: the default would wait for `process.wait` without a
            # bound, and the process would never be killed below.
            code = await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
            assert code == (-signal.SIGKILL if end == "the gateway is killed" else 0)
            for agent in agents.values():
                await process_ended(agent)
    finally:
        process.kill()
        process.wait(BOUND)
        if terminal >= 0:
            os.close(terminal)


async def test_an_agent_that_ignores_sigterm_is_killed_when_the_gateway_ends() -> None:
    program = (
        "import signal, time\n"
        "from mcpp_gateway.demo import end_with_parent\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "end_with_parent(stop_seconds=0)\n"
        "time.sleep(3600)\n"
    )
    with anyio.fail_after(BOUND):
        done = await anyio.run_process([sys.executable, "-c", program], input=b"", check=False)
    assert done.returncode == -signal.SIGKILL


def start_in_terminal(
    command: list[str], folder: Path, environ: dict[str, str]
) -> tuple[int, subprocess.Popen[bytes]]:
    """Start a command in a new pseudoterminal; return the controlling end and the process.

    The signals that a terminal sends are reset to their defaults. Under `nohup` the command would
    inherit an ignored SIGHUP, and a gateway that ignores it outlives its terminal by design.
    """
    ours, its = pty.openpty()

    def prepare() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for name in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(name, signal.SIG_DFL)

    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
        preexec_fn=prepare,
    )
    os.close(its)
    return ours, process


async def children(parent: int) -> dict[str, int]:
    """Return the process ids of the demo's agents, by name, and of other children."""
    listed = await anyio.run_process(["ps", "-A", "-ww", "-o", "pid=,ppid=,args="])
    rows = [line.split(maxsplit=2) for line in listed.stdout.decode().splitlines()]
    return {
        row[2].rpartition("demo.")[2].partition(" ")[0]: int(row[0])
        for row in rows
        if row[1] == str(parent)
    }


async def process_ended(process: int) -> None:
    """Poll until a process has ended; it is not our child, so we cannot wait for it."""
    while True:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        await anyio.sleep(0.05)


async def _presence(pod: mcpp.Pod, who: str, *events: str) -> AsyncIterator[Message]:
    awaited = list(events)
    async for message in pod:
        about = message.payload if message.kind == "system/presence" else None
        if about and (about["participant"]["id"], about["event"]) == (who, awaited[0]):
            awaited.pop(0)
            yield message
            if not awaited:
                return
