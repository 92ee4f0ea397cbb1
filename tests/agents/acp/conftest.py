"""Fixtures for the tests of coding agents."""

from pathlib import Path

import pytest

from tests.agents.acp.bridges import Folders


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    (tmp_path / "work").mkdir()
    (tmp_path / "state").mkdir()
    return Folders(tmp_path / "work", tmp_path / "state")
