"""Tools for testing agents: an in-memory pod, a pytest fixture and Hypothesis strategies."""

from mcpp.testing.pod import MemoryPod

__all__ = ["MemoryPod"]
