"""Every Python block of the guide runs, in the order in which it stands there."""

import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from mcpp.testing import MemoryPod, Recording
from tests.interaction.conftest import SocketPod

pytest_plugins = ["mcpp.testing.plugin"]

GUIDE = Path(__file__).parent.parent / "docs" / "guide.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def read() -> dict[str, Any]:
    """Run the blocks as one module and return its names."""
    text = GUIDE.read_text()
    names: dict[str, Any] = {"__name__": "guide"}
    for block in BLOCK.finditer(text):
        # Line numbers in a traceback are those of the page.
        above = "\n" * text[: block.start(1)].count("\n")
        exec(compile(above + block[1], str(GUIDE), "exec"), names)
    return names


NAMES = read()
TESTS = {name: value for name, value in NAMES.items() if name.startswith("test_")}


@pytest.mark.anyio
@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
async def test_a_test_of_the_guide_passes(
    test: Callable[..., Any],
    pod: MemoryPod,
    recording: Callable[[str], Recording],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    fixtures = {"pod": pod, "recording": recording}
    with anyio.fail_after(10):
        await test(**{name: fixtures[name] for name in inspect.signature(test).parameters})


@pytest.mark.anyio
async def test_the_script_of_the_guide_finds_the_pod_by_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = SocketPod()
    try:
        pod.add("alice")
        monkeypatch.setenv("MCPP_URL", pod.url)
        monkeypatch.setenv("MCPP_TOKEN", pod.token("alice"))
        with anyio.fail_after(10):
            async with pod.run(NAMES["agent"]):
                await NAMES["main"]()
    finally:
        pod.close()
    assert capsys.readouterr().out == "['alice', 'parrot'] good morning, good morning!\n"


def test_an_incident_is_a_test_as_the_guide_writes_it(tmp_path: Path) -> None:
    agent, *_ = blocks = BLOCK.findall(GUIDE.read_text())
    (test,) = [block for block in blocks if "incident_of_monday" in block]
    (tmp_path / "test_incident.py").write_text(agent + test)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["mcpp.testing.plugin"]\n')
    shutil.copy(Path(__file__).parent / "incident.jsonl", tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-k", "asyncio", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_every_example_with_assertions_is_run() -> None:
    asserting = [
        block
        for block in BLOCK.findall(GUIDE.read_text())
        if "assert" in block or ".check(" in block
    ]
    assert len(asserting) == len(TESTS)
    assert all(inspect.iscoroutinefunction(test) for test in TESTS.values())
