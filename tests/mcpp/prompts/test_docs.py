"""Runs the examples of docs/prompts.md."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "prompts.md"


def test_every_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert "How many invoices are open?" in capsys.readouterr().out
