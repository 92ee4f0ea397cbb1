"""The audit rows in the database, and those that still wait for a write."""

import json
import logging
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from mcpp_agents.memory.storage.engine import AuditEntry
from mcpp_agents.memory.storage.item_queries import SqlConnection

logger = logging.getLogger("mcpp.memory")

_MAX_PENDING: Final = 10_000


class AuditLog:
    """Reads and writes the table `audit`. It owns the entries that are not written yet (M-43).

    A write takes these and inserts them before its own, or puts them back if it fails.
    """

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection
        self._pending: deque[AuditEntry] = deque()
        self._lock = threading.Lock()

    @property
    def pending(self) -> int:
        """The number of entries that wait for a write."""
        return len(self._pending)

    def defer(self, entry: AuditEntry) -> None:
        """Keep an entry for the next write."""
        with self._lock:
            self._pending.append(entry)
            self._drop_excess()

    def take(self) -> list[AuditEntry]:
        """Return the waiting entries to a write."""
        with self._lock:
            taken = list(self._pending)
            self._pending.clear()
        return taken

    def put_back(self, taken: Sequence[AuditEntry]) -> None:
        """Keep entries of a write that failed for the next one, before those that wait already."""
        with self._lock:
            self._pending.extendleft(reversed(taken))
            self._drop_excess()

    def insert(self, entries: Iterable[AuditEntry]) -> None:
        """Insert entries inside a transaction."""
        self._connection.execute_many(
            "INSERT INTO audit (at, principal, author, tool, details) VALUES (?, ?, ?, ?, ?)",
            [(e.at, e.principal, e.author, e.tool, json.dumps(e.details)) for e in entries],
        )

    def log_pending(self) -> None:
        """Log the entries that could not be written before closing."""
        for entry in self._pending:
            self._log_lost(entry)

    def read(self, last: int) -> list[AuditEntry]:
        """Return the latest entries, oldest first."""
        rows = self._connection.all(
            "SELECT at, principal, tool, details, author FROM audit ORDER BY id DESC LIMIT ?", last
        )
        return [AuditEntry(at, who, tool, json.loads(d), by) for at, who, tool, d, by in rows][::-1]

    def erased(self) -> frozenset[str]:
        """Return the ids of all items that were forgotten or replaced."""
        rows = self._connection.all(
            "SELECT tool, details FROM audit"
            " WHERE tool = 'forget' OR tool = 'remember' AND details LIKE '%\"replaced\"%'"
        )
        names = {"forget": "ids", "remember": "replaced"}
        return frozenset(
            id for tool, details in rows for id in json.loads(details).get(names[tool], ())
        )

    def _drop_excess(self) -> None:
        """Bound the number of waiting entries; the oldest go to the log."""
        while len(self._pending) > _MAX_PENDING:
            self._log_lost(self._pending.popleft())

    @staticmethod
    def _log_lost(entry: AuditEntry) -> None:
        logger.error("audit entry lost: %s", entry)
