"""Erasures in an in-memory pod: announced as a gateway does after its log was erased."""

import time
from typing import Any

import pytest

from mcpp.session import resumption
from mcpp.testing import MemoryPod

_HELD = 30  # entries of the log
_REPLAYED = 10  # of what was missed

# Of a pod in which a participant can miss an erasure.
SHORT_LOG = {"history_messages": _HELD}


def erase(pod: MemoryPod, **what: Any) -> None:
    """Announce an erasure, which comes after everything that was said so far."""
    _broadcast(pod, "system/erased", {"entries": 1, **what})


def miss_erasure(pod: MemoryPod, reader: str, monkeypatch: pytest.MonkeyPatch, **what: Any) -> None:
    """Have a participant of a pod with a `SHORT_LOG` miss an erasure while it reconnects.

    The log has lost the place up to which it had read, and it is replayed only what came after the
    announcement. That the client asks for 10,000 envelopes would only make the test slower.
    """
    monkeypatch.setattr(resumption, "MISSED_MESSAGES", _REPLAYED)
    pod.cut(reader)
    _go_on(pod)
    erase(pod, **what)
    _go_on(pod)


def _go_on(pod: MemoryPod) -> None:
    for _ in range(_HELD * 2 // 3):
        _broadcast(pod, "system/other", {})


def _broadcast(pod: MemoryPod, kind: str, payload: dict[str, Any]) -> None:
    gateway: Any = pod.gateway
    gateway._hub.perform_all(gateway._pod._broadcast(kind, payload, time.time()))
    gateway._deliver()
