"""The demo does something real, collapses what it has used, and waits for a person."""

import os
import signal
import socket
from pathlib import Path
from subprocess import DEVNULL, STDOUT

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

import mcpp
from mcpp import ContextTree, Envelope, local
from mcpp.prompts import PromptBuilder
from mcpp.testing import MemoryPod
from mcpp_agents.demo import analyst, records, reviewer
from tests.agents.processes import BOUND, MCPP

pytestmark = pytest.mark.anyio


async def at_once() -> None:
    await anyio.lowlevel.checkpoint()


@pytest.fixture
def limits() -> dict[str, object]:
    return {"messages_per_second": 0, "context_messages_per_second": 0}


async def test_a_month_is_read_reviewed_and_its_correction_waits_for_a_person(
    pod: MemoryPod,
) -> None:
    log: list[Envelope] = []
    async with (
        pod.connect("watcher", own=True) as watcher,
        pod.run(records.agent()),
        pod.run(reviewer.agent(at_once)),
        pod.run(analyst.agent(at_once, rest_seconds=3600)),
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
    assert len(prompt.handles) >= len(pages) - 1  # every page that was noted has collapsed
    assert prompt.report.tokens_after < 0.7 * prompt.report.tokens_before


async def test_the_analyst_answers_a_person(pod: MemoryPod) -> None:
    async with pod.run(analyst.agent(at_once)), pod.connect("alice") as alice:
        await alice.send("chat", {"text": "How is it going?"}, to=["analyst"])
        with anyio.fail_after(BOUND):
            answer = await anext(message async for message in alice if message.kind == "chat")
        assert answer.text == "I read the time sheet, a month at a time. I have only just begun."


async def test_the_reviewer_finds_the_slip_of_every_month(pod: MemoryPod) -> None:
    async with (
        pod.run(records.agent()),
        pod.run(reviewer.agent(at_once)),
        pod.connect("alice") as alice,
    ):
        for month in range(1, 13):
            found = await analyst.go_through(alice, month, at_once)
            assert len(found["wrong"]) == 1, month


@pytest.mark.slow
async def test_the_demo_runs_as_people_start_it_and_ctrl_c_ends_all_of_it(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environ = {name: value for name, value in os.environ.items() if name[:5] != "MCPP_"}
    process = await anyio.open_process(
        [MCPP, "up", "--demo", "--port", str(port)],
        cwd=tmp_path,
        env=environ,
        stdin=DEVNULL,
        stderr=STDOUT,
    )
    output = BufferedByteReceiveStream(process.stdout) if process.stdout else None
    assert output is not None
    try:
        with anyio.fail_after(3 * BOUND):
            await output.receive_until(b"Stop with Ctrl-C.", 65536)
            pod = local.find(tmp_path)
            assert pod is not None
            address = local.Address(pod.url, pod.add("tester"), fresh=True)
            seen = set()
            async with mcpp.connect(address, last=1000) as tester:
                async for message in tester:
                    seen.add(message.sender)
                    if {"analyst", "records"} <= seen and "memory" in tester.participants:
                        break
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
