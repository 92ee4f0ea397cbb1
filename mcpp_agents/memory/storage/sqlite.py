"""The SQLite engine: one memory file, with FTS5 as its word index."""

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from mcpp_agents.memory.access import View
from mcpp_agents.memory.errors import StoreUnavailable
from mcpp_agents.memory.search.terms import Query
from mcpp_agents.memory.storage.audit_log import AuditLog
from mcpp_agents.memory.storage.connection import SqliteConnection
from mcpp_agents.memory.storage.engine import (
    AuditEntry,
    Evidence,
    Item,
    ItemLink,
    LinkedItem,
    Matches,
    Outline,
    Removal,
    StoredVector,
)
from mcpp_agents.memory.storage.fts_table import FtsTable
from mcpp_agents.memory.storage.item_writer import ItemWriter
from mcpp_agents.memory.storage.rows import FROM_ITEMS, ITEM_COLUMNS, item_from_row
from mcpp_agents.memory.storage.schema import BUSY_SECONDS
from mcpp_agents.memory.storage.view_masks import Condition, ViewMasks
from mcpp_agents.memory.storage.word_index import WordIndex

logger = logging.getLogger("mcpp.memory")

# A pack takes about 50 ms. Its audit row may double that; otherwise it goes with the next write.
_AUDIT_WAIT_SECONDS: Final = 0.05
_CLOSE_WAIT_SECONDS: Final = 2.0
# With so many items the word index is rewritten in about 0.1 s.
_PURGED_AT_ONCE: Final = 10_000


class SqliteEngine:
    """An open memory file. It owns the connection."""

    def __init__(
        self,
        path: str,
        *,
        busy_seconds: float = BUSY_SECONDS,
        purged_at_once: int = _PURGED_AT_ONCE,
    ) -> None:
        self._connection = SqliteConnection(path)
        self._busy_seconds = busy_seconds
        self._purged_at_once = purged_at_once
        self._masks = ViewMasks(self._connection.raw)
        self._table = FtsTable(self._connection.raw)
        self._words = WordIndex(self._table)
        self._items = ItemWriter(self._connection, self._table)
        self._audit_log = AuditLog(self._connection)
        self._has_removed = False  # in the current write
        self._needs_purge = False  # the index still contains words of removed items

    def close(self) -> None:
        with self._connection.exclusive():
            if self._needs_purge:
                self._purge()
            self._write_pending_audit(_CLOSE_WAIT_SECONDS)
            self._audit_log.log_pending()
            self._connection.raw.close()

    # Writes

    @contextmanager
    def writing(self, *, wait_seconds: float | None = None) -> Iterator[None]:
        wait = self._busy_seconds if wait_seconds is None else wait_seconds
        with self._connection.begin(wait):
            try:
                yield
                self._audit_log.insert_pending()
                self._connection.execute("COMMIT")
                self._audit_log.clear_pending()
                if self._has_removed:
                    self._truncate_wal()
            except BaseException:
                if self._connection.raw.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._has_removed = False

    def add(self, items: Sequence[Item], links: Iterable[ItemLink] = ()) -> None:
        self._items.add(items, links)

    def remove(self, seq: int) -> None:
        self._items.remove(seq)
        self._has_removed = True
        if self._connection.one("SELECT items FROM tally")[0] <= self._purged_at_once:
            self._table.purge()
        else:
            self._needs_purge = True

    def charge_quota(
        self, principal: str, author: str, *, items: int, at: float, expired_at: float
    ) -> None:
        self._connection.execute("DELETE FROM quota WHERE at <= ?", [expired_at])
        self._connection.execute(
            "INSERT INTO quota (principal, author, at, items) VALUES (?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET items = items + excluded.items",
            [principal, author, at, items],
        )

    def opt_out(self, principal: str, added: Iterable[str], removed: Iterable[str]) -> None:
        self._connection.raw.executemany(
            "DELETE FROM opt_out WHERE principal = ? AND context = ?",
            [(principal, context) for context in removed],
        )
        self._connection.raw.executemany(
            "INSERT OR IGNORE INTO opt_out (principal, context) VALUES (?, ?)",
            [(principal, context) for context in added],
        )

    def audit(self, entry: AuditEntry) -> None:
        with self._connection.exclusive():
            if self._connection.raw.in_transaction:
                self._audit_log.insert(entry)
            else:
                self._audit_log.defer(entry)
                self._write_pending_audit(_AUDIT_WAIT_SECONDS)
                self._audit_log.drop_excess()

    def add_vectors(self, model: str, vectors: Mapping[int, bytes]) -> None:
        with self.writing():
            # An item may have been forgotten while its vector was computed.
            self._connection.raw.executemany(
                "INSERT OR IGNORE INTO vector (seq, model, data)"
                " SELECT seq, ?, ? FROM memory WHERE seq = ?",
                [(model, data, seq) for seq, data in vectors.items()],
            )

    def _purge(self) -> None:
        try:
            with self.writing(wait_seconds=_CLOSE_WAIT_SECONDS):
                self._table.purge()
                self._has_removed = True
        except StoreUnavailable as error:
            logger.warning("words of forgotten items stay in the index: %s", error.__cause__)

    def _truncate_wal(self) -> None:
        """Move the write-ahead log into the file if no reader needs it: it holds erased text."""
        with self._connection.without_waiting(), suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _write_pending_audit(self, wait_seconds: float) -> None:
        if not self._audit_log.pending:
            return
        try:
            with self.writing(wait_seconds=wait_seconds):
                pass
        except StoreUnavailable as error:
            count = self._audit_log.pending
            logger.warning("%d audit entries wait for the next write: %s", count, error.__cause__)

    # Reads

    def audit_entries(self, last: int) -> list[AuditEntry]:
        return self._audit_log.read(last)

    def quota_used(self, principal: str, author: str, since: float) -> int:
        row = self._connection.one(
            "SELECT coalesce(sum(items), 0) FROM quota"
            " WHERE principal = ? AND author = ? AND at > ?",
            principal,
            author,
            since,
        )
        return int(row[0])

    def find(self, ids: Sequence[str], view: View | None) -> dict[str, Item]:
        where, values = self._condition(view) if view else ("", [])
        items = self._select(
            f"WHERE m.id IN (SELECT value FROM json_each(?)){where}", json.dumps(list(ids)), *values
        )
        return {item.id: item for item in items}

    def find_by_key(self, principal: str, author: str | None, key: str) -> Item | None:
        items = self._select(
            "WHERE m.principal = ? AND coalesce(m.author, '') = ? AND m.idempotency_key = ?",
            principal,
            author or "",
            key,
        )
        return items[0] if items else None

    def recorded(self, principal: str) -> list[Item]:
        return self._select("WHERE m.principal = ? AND m.origin = 'bus'", principal)

    def fetch(self, seqs: Sequence[int], view: View) -> dict[int, Item]:
        where, values = self._condition(view)
        items = self._select(
            f"WHERE m.seq IN (SELECT value FROM json_each(?)) AND m.superseded = 0{where}",
            json.dumps(list(seqs)),
            *values,
        )
        return {item.seq: item for item in items}

    def outline(self, seqs: Sequence[int], view: View) -> list[Outline]:
        where, values = self._condition(view)
        rows = self._connection.all(
            "SELECT m.seq, m.kind, m.since FROM memory m WHERE m.seq IN"
            f" (SELECT value FROM json_each(?)) AND m.superseded = 0{where}",
            json.dumps(list(seqs)),
            *values,
        )
        return [Outline(*row) for row in rows]

    def newest(self, view: View, kinds: Sequence[str], limit: int) -> list[Outline]:
        where, values = self._condition(view)
        rows = self._connection.all(
            "SELECT m.seq, m.kind, m.since FROM memory m WHERE m.kind IN"
            f" (SELECT value FROM json_each(?)) AND m.superseded = 0{where}"
            " ORDER BY m.seq DESC LIMIT ?",
            json.dumps(list(kinds)),
            *values,
            limit,
        )
        return [Outline(*row) for row in rows]

    def linked(self, seqs: Sequence[int], view: View) -> list[LinkedItem]:
        where, values = self._condition(view)
        found: list[LinkedItem] = []
        for here, there in (("source", "target"), ("target", "source")):
            rows = self._connection.all(
                f"SELECT r.{here}, r.relationship, {ITEM_COLUMNS} FROM relation r"
                f" JOIN memory m ON m.seq = r.{there} JOIN scope s ON s.id = m.scope"
                f" WHERE r.{here} IN (SELECT value FROM json_each(?)) AND m.superseded = 0{where}"
                " ORDER BY m.seq DESC",
                json.dumps(list(seqs)),
                *values,
            )
            found += [
                LinkedItem(of, item_from_row(row), relationship, here == "source")
                for of, relationship, *row in rows
            ]
        return found

    def opted_out(self, principal: str) -> frozenset[str]:
        rows = self._connection.all("SELECT context FROM opt_out WHERE principal = ?", principal)
        return frozenset(row[0] for row in rows)

    def match(self, query: Query, view: View, limit: int) -> Matches:
        with self._connection.exclusive():
            return self._words.match(query, self.view_mask(view), limit)

    def evidence(self, matches: Matches, seqs: Sequence[int]) -> dict[int, Evidence]:
        with self._connection.exclusive():
            return self._words.evidence(matches, seqs)

    def view_mask(self, view: View) -> bytes | None:
        with self._connection.exclusive():
            scopes = self._connection.one("SELECT count(*) FROM scope")[0]
            if view.domain is None and len(self._scope_ids(view)) == scopes:
                return None
            return self._masks.mask(self._condition(view))

    def items_without_vector(self, model: str, after: int, limit: int) -> list[Item]:
        return self._select(
            "WHERE m.seq > ? AND NOT EXISTS"
            " (SELECT 1 FROM vector v WHERE v.model = ? AND v.seq = m.seq)"
            " ORDER BY m.seq LIMIT ?",
            after,
            model,
            limit,
        )

    def vectors_since(self, model: str, mark: int) -> list[StoredVector]:
        rows = self._connection.all(
            "SELECT v.mark, v.seq, m.before, v.data"
            " FROM vector v JOIN memory m ON m.seq = v.seq"
            " WHERE v.mark > ? AND +v.model = ? ORDER BY v.mark",  # + : search by mark, few are new
            mark,
            model,
        )
        return [StoredVector(*row) for row in rows]

    def removals_since(self, mark: int) -> list[Removal]:
        rows = self._connection.all(
            "SELECT mark, seq FROM forgotten WHERE mark > ? ORDER BY mark", mark
        )
        return [Removal(*row) for row in rows]

    def _select(self, where: str, *values: Any) -> list[Item]:
        rows = self._connection.all(f"SELECT {ITEM_COLUMNS} {FROM_ITEMS} {where}", *values)
        return [item_from_row(row) for row in rows]

    def _condition(self, view: View) -> Condition:
        """Return the SQL condition that keeps a query inside a view, and its values."""
        where = " AND m.scope IN (SELECT value FROM json_each(?))"
        values: list[Any] = [json.dumps(sorted(self._scope_ids(view)))]
        if view.domain is not None:
            where += " AND m.domain = ?"
            values.append(view.domain.casefold())
        return where, values

    def _scope_ids(self, view: View) -> frozenset[int]:
        found = self._connection.all(
            "SELECT id FROM scope WHERE name IN (SELECT value FROM json_each(?))",
            json.dumps(sorted(view.scopes)),
        )
        for prefix in view.prefixes:
            found += self._connection.all(
                "SELECT id FROM scope WHERE name >= ? AND name < ?", prefix, f"{prefix}\U0010ffff"
            )
        return frozenset(row[0] for row in found)
