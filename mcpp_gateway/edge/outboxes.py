"""Bounds on the unsent data of all connections together (G-68)."""

import asyncio
import ctypes
import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from mcpp_gateway.config import Config
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.edge.connection import ServerConnection
from mcpp_gateway.edge.session_log import log_session

_RETURNED_BYTES: Final = 33_554_432
_RETURN_SECONDS: Final = 1.0


class Outboxes:
    """Closes the connections with the most unsent data where there is too much."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._held_bytes = 0  # when last looked at

    def check(self, connections: Iterable[ServerConnection], config: Config) -> None:
        """Close connections until each pod and all pods together are within their limits."""
        outboxes = {each: each.waiting_bytes for each in connections}
        by_pod: dict[PodCore, dict[ServerConnection, int]] = {}
        for connection, size in outboxes.items():
            if connection.peer is not None and size:
                by_pod.setdefault(connection.peer.pod, {})[connection] = size
        for pod, some in by_pod.items():
            for closed in _close_largest(some, pod.limits.pod_outbox_bytes):
                del outboxes[closed]
        for closed in _close_largest(outboxes, config.gateway.max_outbox_bytes):
            del outboxes[closed]
        held, self._held_bytes = self._held_bytes, sum(outboxes.values())
        if held - self._held_bytes > _RETURNED_BYTES:
            self._loop.call_later(_RETURN_SECONDS, return_memory)  # once they are closed


def _close_largest(outboxes: dict[ServerConnection, int], limit: int) -> Iterator[ServerConnection]:
    total = sum(outboxes.values())
    for connection, size in sorted(outboxes.items(), key=lambda item: -item[1]):
        if total <= limit:
            return
        total -= size
        event = "outboxes hold too much; largest closed"
        log_session(event, connection, logging.WARNING, unsent_bytes=size)
        connection.abort()
        yield connection


def return_memory() -> None:
    """Return freed memory to the system, where the C library keeps it otherwise."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
