"""The Python examples in docs/memory.md run unchanged."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import mcpp
from mcpp.cli import main as command_line
from mcpp.testing import MemoryPod
from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.bus.participant import MemoryAgent

DOCS = Path(__file__).parents[3] / "docs" / "memory.md"
LIBRARY, DIARY, WIRING = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
[COMMANDS] = re.findall(r"## Command line\n\n```\n(.*?)```", DOCS.read_text(), re.DOTALL)


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    return names


def test_the_library_example_prints_a_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(LIBRARY)
    printed = capsys.readouterr().out
    assert "### Refresh tokens rotate" in printed
    assert "cookies" not in printed  # it is superseded


@pytest.mark.parametrize("command", ["context", "plan"])
def test_the_commands_find_what_they_have_remembered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MCPP_MEMORY", raising=False)
    monkeypatch.delenv("MCPP_MEMORY_DATABASE", raising=False)
    lines = [shlex.split(line, comments=True) for line in COMMANDS.splitlines()]
    for wanted, options in (("remember", ()), (command, ("--embedder", "none"))):
        [arguments] = (line[1:] for line in lines if line[:3] == ["mcpp", "memory", wanted])
        assert command_line.main([*arguments, *options]) == 0
    assert "Each use makes a new one" in capsys.readouterr().out


@pytest.mark.anyio
async def test_the_diary_example_returns_what_it_has_written(store: MemoryStore) -> None:
    pod = MemoryPod()
    async with pod.run(MemoryAgent(store).participant), pod.connect("ann") as ann:
        await ann.wait_for_presence("memory", 20)
        assert "On Fridays nobody answers." in (await run(DIARY)["keep_a_diary"](ann)).text


def test_the_wiring_example_records_and_answers(store: MemoryStore) -> None:
    receive, call = run(WIRING)["memory_of"](store, "demo", "memory")
    said = mcpp.new_envelope("conclusion", {"text": "Use zebras."}, sender="ann", context="c1")
    receive(said)
    assert call("context", {"goal": "zebras"}, "bob").value["total_items"] == 1
