"""A real coding agent, opencode, on the fake model of `examples/coding`, without a network."""

import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcpp.testing import MemoryPod
from tests.agents.acp.bridges import Folders, coding_agent, said
from tests.gateway.ports import free_port

CODING = Path(__file__).parents[3] / "examples" / "coding"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"coding_{name}", CODING / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


model, opencode = example("model"), example("opencode")
PROGRAM = opencode.program()

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="opencode is not installed: make setup-agents"),
]


def test_the_demo_ends_with_its_terminal_and_so_does_all_that_it_has_started(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "demo"
    command = [sys.executable, str(CODING / "demo.py"), "--folder", str(folder)]
    with subprocess.Popen(
        [*command, "--port", str(free_port())], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as demo:
        try:
            assert demo.stdout is not None
            assert any("is running" in line for line in demo.stdout)
            gateway = int((folder / ".mcpp" / "gateway.pid").read_text().split()[0])
            demo.send_signal(signal.SIGHUP)
            # The end of its output: no process that it has started holds it open.
            demo.stdout.read()
            assert demo.wait(60) == 0
        finally:
            demo.terminate()  # if it still runs, the block would wait for its end without a limit
    assert not Path(f"/proc/{gateway}").exists()


def test_one_agent_writes_one_reviews_and_a_person_approves(tmp_path: Path) -> None:
    """The demo: two processes of opencode, the pod's tools, two approvals, and memory."""
    folder = tmp_path / "demo"
    command = [sys.executable, str(CODING / "demo.py"), "--approve", "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--port", str(free_port())],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.partition(":")[0] for line in done.stdout.splitlines() if ": " in line]
    agents = [name for name in names if name in ("writer", "reviewer", "reviewer-tools")]
    assert agents[:2] == ["writer", "reviewer-tools"]
    assert agents.count("reviewer") >= 2
    assert done.stdout.count("* writer asks: edit greet.py") == 2
    assert "This is right now. Decided: greet refuses an empty name." in done.stdout
    assert "needs a name" in (folder / "project" / "greet.py").read_text()
    memory = done.stdout.partition("What memory has kept")[2]
    assert "Decided: greet refuses an empty name." in memory


@pytest.mark.anyio
async def test_work_is_cancelled_rejected_resumed_and_approved(
    pod: MemoryPod, folders: Folders
) -> None:
    file, kept = folders.work / "greet.py", folders.state / "coder-sessions.json"
    with model.serving() as url:
        own = opencode.environment(url, folders.state)
        agent = {"command": [str(PROGRAM), "acp"], "environment": own}
        async with pod.connect("alice") as alice:
            async with coding_agent(pod, folders, **agent):
                question = await alice.send("chat", "Please write greet.py.", to="coder")
                proposal = await said(alice, "mcp/proposal")
                assert proposal.payload["preview"]["after"] == model.FIRST.strip()
                before = json.loads(kept.read_text())
                await alice.cancel(question)
                assert (await said(alice, "mcp/withdraw")).correlation_id == proposal.id
                await alice.send("chat", "Please write greet.py now.", to="coder")
                await alice.reject(await said(alice, "mcp/proposal"), "no", "not yet")
                reply = await said(alice, "chat")
                assert reply.text == "I stopped. @alice rejected it (not yet): edit greet.py"
                assert not await anyio.Path(file).exists()
            async with coding_agent(pod, folders, **agent):
                await alice.send("chat", "Please write greet.py after all.", to="coder")
                await alice.approve(await said(alice, "mcp/proposal"))
                reply = await said(alice, "chat")
                assert reply.text.strip() == "I wrote greet.py. @reviewer, please look at it."
            assert json.loads(kept.read_text()) == before  # the same session
    assert file.read_text() == model.FIRST
