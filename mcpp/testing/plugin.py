"""The pytest fixtures `pod` and `recording`.

Load them with `pytest_plugins = ["mcpp.testing.plugin"]`.
"""

from collections.abc import Callable

import pytest

from mcpp.testing.pod import MemoryPod
from mcpp.testing.recording import Recording

__all__ = ["pod", "recording"]


@pytest.fixture
def pod() -> MemoryPod:
    """A new in-memory pod in which every participant has all capabilities."""
    return MemoryPod()


@pytest.fixture
def recording(request: pytest.FixtureRequest) -> Callable[[str], Recording]:
    """Read a recording from the folder of the test: `recording("incident.jsonl")`."""
    return lambda name: Recording(request.path.parent / name)
