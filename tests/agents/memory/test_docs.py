"""The Python examples in docs/memory.md run unchanged."""

import re
from pathlib import Path
from typing import Any

import pytest

import mcpp
from mcpp.testing import MemoryPod
from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.bus.participant import MemoryAgent

DOCS = Path(__file__).parents[3] / "docs" / "memory.md"
LIBRARY, DIARY, WIRING = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)


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
