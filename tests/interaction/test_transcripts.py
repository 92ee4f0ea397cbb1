"""The specification's transcripts, run against this gateway and a participant of this SDK."""

import re
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcpp import Participant
from mcpp.agent.tools import ToolCall
from tests import transcripts
from tests.interaction.conftest import SocketPod

TRANSCRIPTS = transcripts.load()
SPEC = Path(transcripts.__file__).parent.parent / "spec"


def subject() -> Participant:
    """The participant that the transcripts drive, as their README describes it."""
    agent = Participant("subject")
    waiting: list[anyio.Event] = []

    @agent.tool
    async def echo(text: str) -> str:
        return text

    @agent.tool
    async def fail() -> str:
        raise ValueError("it failed")

    @agent.tool
    async def wait(call: ToolCall) -> str:
        waiting.append(anyio.Event())
        await call.progress(1, 2)
        await waiting[-1].wait()
        return "finished"

    @agent.tool
    async def finish() -> str:
        for event in waiting:
            event.set()
        return "done"

    return agent


@pytest.mark.rule("P-63")
@pytest.mark.rule("P-64")
@pytest.mark.rule("P-65")
@pytest.mark.rule("P-66")
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_is_followed(name: str) -> None:
    given = TRANSCRIPTS[name]
    pod = SocketPod(given["setup"].get("limits"))
    try:
        for participant, capabilities in given["setup"]["participants"].items():
            pod.add(participant, capabilities)
        anyio.run(_follow, pod, given)
    finally:
        pod.close()


async def _follow(pod: SocketPod, given: dict[str, Any]) -> None:
    driver = transcripts.Driver(pod.url, pod.token)
    if given["drives"] == "gateway":
        await anyio.to_thread.run_sync(driver.run, given["steps"])
        return
    async with pod.run(subject()):
        await anyio.to_thread.run_sync(driver.run, given["steps"])


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_transcript_names_rules_that_exist(name: str) -> None:
    written = "".join(path.read_text() for path in SPEC.glob("*.md"))
    known = set(re.findall(r"^\*\*([A-Z]-[0-9]{2})\*\*", written, re.MULTILINE))
    assert TRANSCRIPTS[name]["rules"]
    assert set(TRANSCRIPTS[name]["rules"]) <= known


def test_a_transcript_that_is_not_followed_fails() -> None:
    pod = SocketPod()
    pod.add("alice")
    welcome = {"receive": "alice", "envelope": {"kind": "system/goodbye"}}
    try:
        driver = transcripts.Driver(pod.url, pod.token)
        with pytest.raises(transcripts.TranscriptError, match=r"step 2 .*system/goodbye"):
            driver.run([{"join": "alice"}, welcome])
    finally:
        pod.close()
