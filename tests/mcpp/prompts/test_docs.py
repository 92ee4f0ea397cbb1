"""Runs the examples of docs/prompts.md."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "prompts.md"


def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 5
    names: dict[str, object] = {}
    for block in blocks:
        if "from mcp." in block and find_spec("mcp") is None:
            continue  # the SDK alone
        exec(block, names)
    assert "How many invoices are open?" in capsys.readouterr().out
