"""The pytest fixture `pod`. Load it with `pytest_plugins = ["mcpp.testing.plugin"]`."""

import pytest

from mcpp.testing.pod import MemoryPod

__all__ = ["pod"]


@pytest.fixture
def pod() -> MemoryPod:
    """A new in-memory pod in which every participant has all capabilities."""
    return MemoryPod()
