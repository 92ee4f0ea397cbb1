"""Tools for testing agents: an in-memory pod, recordings, fixtures and Hypothesis strategies."""

from mcpp.testing.pod import MemoryPod
from mcpp.testing.recording import DivergedError, Divergence, Recording, RecordingError

__all__ = ["DivergedError", "Divergence", "MemoryPod", "Recording", "RecordingError"]
