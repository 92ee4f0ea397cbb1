"""A server's notifications that wait to be forwarded to the pod."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

LIST_CHANGES: Final = (
    "notifications/tools/list_changed",
    "notifications/resources/list_changed",
    "notifications/prompts/list_changed",
)
RESOURCE_UPDATED: Final = "notifications/resources/updated"
# Bounds the memory that a server can use by announcing ever new resources or tasks.
_MAX_PENDING: Final = 1000
_MAX_ID_CHARS: Final = 4096


@dataclass(slots=True)
class Notifications:
    """The notifications that are pending. Owns them.

    Equal ones are merged: however often a list has changed, only its last state can be read.
    """

    _pending: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    _added: anyio.Event = field(default_factory=anyio.Event)

    def add(self, method: str, about: str = "", params: Mapping[str, Any] | None = None) -> None:
        """Add a notification about a list, or about a resource or task with this id."""
        if len(about) > _MAX_ID_CHARS:
            return
        self._pending[method, about] = {} if params is None else params
        if len(self._pending) > _MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        self._added.set()

    def add_list_changes(self) -> None:
        """Add all changes of lists: a restarted server may offer something else."""
        for method in LIST_CHANGES:
            self.add(method)

    async def next(self) -> tuple[str, Mapping[str, Any]]:
        """Wait for the next notification and return its method and params."""
        while not self._pending:
            self._added = anyio.Event()
            await self._added.wait()
        first = next(iter(self._pending))
        return first[0], self._pending.pop(first)
