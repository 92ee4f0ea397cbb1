"""The pytest fixture `pod`. Load it with `pytest_plugins = ["mcpp.testing.plugin"]`."""

import pytest

from mcpp.testing.pod import MemoryPod


@pytest.fixture
def pod() -> MemoryPod:
    """A fresh pod in memory, in which everybody may do everything."""
    return MemoryPod()
