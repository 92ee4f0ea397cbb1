"""The audit rows in the database, and those that still wait for the write lock."""

import json
import logging
from collections import deque
from typing import Final

from mcpp_agents.memory.storage.engine import AuditEntry
from mcpp_agents.memory.storage.item_queries import SqlConnection

logger = logging.getLogger("mcpp.memory")

_MAX_PENDING: Final = 10_000


class AuditLog:
    """Reads and writes the table `audit`. It owns the entries that are not written yet (M-43)."""

    def __init__(self, connection: SqlConnection) -> None:
        self._connection = connection
        self._pending: deque[AuditEntry] = deque()

    @property
    def pending(self) -> int:
        """The number of entries that wait for a write."""
        return len(self._pending)

    def defer(self, entry: AuditEntry) -> None:
        """Keep an entry for the next write."""
        self._pending.append(entry)

    def drop_excess(self) -> None:
        """Bound the number of waiting entries; the oldest go to the log."""
        while len(self._pending) > _MAX_PENDING:
            self._log_lost(self._pending.popleft())

    def insert(self, entry: AuditEntry) -> None:
        """Insert one entry inside a transaction."""
        self._connection.execute(
            "INSERT INTO audit (at, principal, author, tool, details) VALUES (?, ?, ?, ?, ?)",
            [entry.at, entry.principal, entry.author, entry.tool, json.dumps(entry.details)],
        )

    def insert_pending(self) -> None:
        """Insert the waiting entries inside a transaction."""
        for entry in self._pending:
            self.insert(entry)

    def clear_pending(self) -> None:
        """Drop the waiting entries, once a transaction with them is committed."""
        self._pending.clear()

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

    @staticmethod
    def _log_lost(entry: AuditEntry) -> None:
        logger.error("audit entry lost: %s", entry)
