"""`mcpp bridge --acp` as a process: its options, its end, and the tokens of a local pod."""

import os
from pathlib import Path

import anyio
import pytest

from mcpp.client import local_pod
from mcpp_agents.acp.pod_tools import tools_token
from tests.agents.acp.bridges import SCRIPTED, Folders, said
from tests.agents.processes import BOUND, Commands
from tests.interaction.conftest import SocketPod

RECORDING = Path(__file__).parents[3] / "docs" / "agents-demo.jsonl"


@pytest.mark.anyio
async def test_a_killed_bridge_leaves_no_agent_behind(
    commands: Commands, sockets: SocketPod, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folders.state))
    monkeypatch.setenv("GIVEN", "passed on")
    monkeypatch.setenv("SECRET", "x")
    command = ["bridge", "coder", "--acp", "--cwd", str(folders.work), "--env", "GIVEN"]
    async with (
        commands.start("coder", *command, "--", *SCRIPTED) as bridge,
        sockets.connect("alice") as alice,
    ):
        await bridge.line_with("without MCPP_TOOLS_TOKEN")
        await bridge.line_with("coder is in the pod")
        assert (await alice.ask("coder", "env GIVEN", wait_for_presence=BOUND)).text == "passed on"
        assert (await alice.ask("coder", "env SECRET")).text == "not set"
        started = (await alice.ask("coder", "pid")).text
        assert len(list((folders.state / "mcpp" / "acp").iterdir())) == 1
        bridge.process.kill()
        with anyio.fail_after(BOUND):
            while _is_running(started):  # noqa: ASYNC110
                await anyio.sleep(0.01)


@pytest.mark.anyio
async def test_a_bridge_that_is_stopped_tells_the_asker_and_later_goes_on_with_the_session(
    commands: Commands, sockets: SocketPod, folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folders.state))
    monkeypatch.setenv("KEPT", str(folders.state / "kept.json"))
    command = ["bridge", "coder", "--acp", "--cwd", str(folders.work), "--env", "KEPT"]
    async with sockets.connect("alice") as alice:
        async with commands.start("coder", *command, "--", *SCRIPTED) as bridge:
            await alice.wait_for_presence("coder", BOUND)
            asked = await alice.send("chat", "ask notes.md: text", to="coder")
            proposal = await said(alice, "mcp/proposal")
            assert await bridge.interrupt() == 0
        withdrawn = await said(alice, "mcp/withdraw")
        assert withdrawn.correlation_id == proposal.id
        ended = await said(alice, "conclusion")
        assert ended.context is not None
        assert proposal.context is not None
        assert ended.context.id == proposal.context.id
        assert ended.payload["outcome"] == "cancelled"
        told = await said(alice, "chat")
        assert told.text == "I was stopped before I had an answer."
        assert told.correlation_id == asked.id
        async with commands.start("coder", *command, "--", *SCRIPTED):
            known = await alice.ask("coder", "remember", wait_for_presence=BOUND)
        assert known.text == "ask notes.md: text"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--acp", "--http", "http://localhost/"], "--acp is for `-- COMMAND ...`"),
        (["--terminal", "--", "x"], "--terminal is for --acp"),
        (["--acp"], "give either `-- COMMAND ...` or `--http URL`"),
        (["--acp", "--cwd", "/nonexistent", "--", "x"], "/nonexistent is not a folder"),
        (["--acp", "--env", "NO_SUCH", "--", "x"], "the environment has no NO_SUCH"),
        (["--acp", "--", "/nonexistent/x"], "/nonexistent/x cannot be run: No such file"),
    ],
)
async def test_wrong_arguments_are_named(
    commands: Commands, arguments: list[str], problem: str
) -> None:
    code, _, errors = await commands.run("coder", "bridge", "coder", *arguments)
    assert code != 0
    assert problem in errors


def test_the_tools_of_an_agent_in_a_local_pod_may_not_allow_what_agents_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tools_token("coder", {}) is None
    pod = local_pod.create(tmp_path)
    token = tools_token("coder", {})
    assert token == pod.token("coder-tools") == tools_token("coder", {})
    assert tools_token("coder", {"MCPP_URL": "ws://x", "MCPP_TOKEN": "t"}) is None
    assert tools_token("coder", {"MCPP_URL": "ws://x", "MCPP_TOOLS_TOKEN": "t"}) == "t"
    text = pod.path.read_text()
    assert '"!mcp/request:tools/call:allow"' in text
    assert "multiple = true" in text


def test_the_recording_of_the_demo_has_what_its_page_describes() -> None:
    texts = RECORDING.read_text()
    assert texts.count('"kind":"mcp/request:tools/call:allow"') == 2
    assert "Decided: greet refuses an empty name." in texts


def _is_running(number: str) -> bool:
    return os.path.exists(f"/proc/{number}")  # noqa: PTH110
