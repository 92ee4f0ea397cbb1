"""Tools for testing agents: a pod in memory, and Hypothesis strategies for all that travels."""

from mcpp.testing.pod import MemoryPod

__all__ = ["MemoryPod"]
