"""The SQLite engine: one memory file, with FTS5 as its word index."""

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from mcpp_agents.memory.access import View
from mcpp_agents.memory.errors import StoreUnavailable
from mcpp_agents.memory.search.terms import Query
from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.audit_log import AuditLog
from mcpp_agents.memory.storage.connection import SqliteConnection
from mcpp_agents.memory.storage.engine import (
    AuditEntry,
    Closeness,
    Evidence,
    Item,
    ItemLink,
    Matches,
)
from mcpp_agents.memory.storage.fts_table import FtsTable
from mcpp_agents.memory.storage.item_queries import Condition, Dialect, ItemQueries
from mcpp_agents.memory.storage.item_writer import ItemWriter
from mcpp_agents.memory.storage.rows import ChangedRow, StoredVector
from mcpp_agents.memory.storage.schema import BUSY_SECONDS
from mcpp_agents.memory.storage.view_masks import Mask, ViewMasks
from mcpp_agents.memory.storage.word_index import WordIndex

if TYPE_CHECKING:
    from mcpp_agents.memory.storage.vector_matrix import VectorMatrix

logger = logging.getLogger("mcpp.memory")

# A pack takes about 50 ms. Its audit row may double that; otherwise it goes with the next write.
_AUDIT_WAIT_SECONDS: Final = 0.05
_CLOSE_WAIT_SECONDS: Final = 2.0
# With so many items the word index is rewritten in about 0.1 s.
_PURGED_AT_ONCE: Final = 10_000


_DIALECT: Final = Dialect("IN (SELECT value FROM json_each(?))", json.dumps)


class SqliteItemWriter(ItemWriter):
    """Writes items, and what only a file has: the list of changed rows."""

    def _reserve(self, count: int) -> int:
        row = self._connection.one(
            "SELECT coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = 'memory'"
        )
        return int(row[0])

    def _scope_id(self, name: str) -> int:
        self._connection.execute("INSERT OR IGNORE INTO scope (name) VALUES (?)", [name])
        return int(self._connection.one("SELECT id FROM scope WHERE name = ?", name)[0])

    def _remove_derived(self, seq: int) -> None:
        self._connection.execute("DELETE FROM vector WHERE seq = ?", [seq])
        self._note_change(seq)

    def _note_change(self, seq: int) -> None:
        self._connection.execute("INSERT INTO changed (seq) VALUES (?)", [seq])


class SqliteEngine(ItemQueries):
    """An open memory file. It owns the connection."""

    def __init__(
        self,
        path: str,
        *,
        busy_seconds: float = BUSY_SECONDS,
        purged_at_once: int = _PURGED_AT_ONCE,
    ) -> None:
        self._connection = SqliteConnection(path)
        super().__init__(self._connection, _DIALECT)
        self._busy_seconds = busy_seconds
        self._purged_at_once = purged_at_once
        self._masks = ViewMasks(self._connection.raw)
        self._tokenizer = Tokenizer()
        self._table = FtsTable(self._connection.raw, self._tokenizer)
        self._words = WordIndex(self._table)
        self._items = SqliteItemWriter(self._connection, self._table)
        self._audit_log = AuditLog(self._connection)
        self._vectors: dict[str, VectorMatrix] = {}
        self._has_removed = False  # in the current write
        self._needs_purge = False  # the index still contains words of removed items

    def close(self) -> None:
        with self._connection.exclusive():
            if self._needs_purge:
                self._purge()
            self._write_pending_audit(_CLOSE_WAIT_SECONDS)
            self._audit_log.log_pending()
            self._connection.raw.close()
        self._tokenizer.close()

    # Writes

    def reading(self) -> AbstractContextManager[None]:
        return self._connection.reading()

    @contextmanager
    def writing(self, *, wait_seconds: float | None = None) -> Iterator[None]:
        wait = self._busy_seconds if wait_seconds is None else wait_seconds
        with self._connection.begin(wait):
            waiting = self._audit_log.take()
            try:
                self._audit_log.insert(waiting)
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                self._audit_log.put_back(waiting)
                if self._connection.raw.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            else:
                if self._has_removed:
                    self._truncate_wal()
            finally:
                self._has_removed = False

    def add(self, items: Sequence[Item], links: Iterable[ItemLink] = ()) -> None:
        self._items.add(items, links)

    def remove(self, seq: int) -> None:
        self._items.remove(seq)
        self._has_removed = True
        if self._table.totals()[0] <= self._purged_at_once:
            self._table.purge()
        else:
            self._needs_purge = True

    def audit(self, entry: AuditEntry) -> None:
        with self._connection.exclusive():
            if self._connection.raw.in_transaction:
                self._audit_log.insert([entry])
            else:
                self._audit_log.defer(entry)
                self._write_pending_audit(_AUDIT_WAIT_SECONDS)

    def add_vectors(self, model: str, vectors: Mapping[int, bytes]) -> int:
        with self.writing():
            # An item may have been forgotten while its vector was computed.
            return self._connection.execute_many(
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
            if self._audit_log.pending == 1:
                logger.warning("audit entries wait for the next write: %s", error.__cause__)

    # Reads

    def audit_entries(self, last: int) -> list[AuditEntry]:
        return self._audit_log.read(last)

    def match(self, query: Query, view: View, limit: int) -> Matches:
        with self.reading():
            shown = self._condition(view)
            average = self._table.average_length(shown)
            return self._words.match(query, self._masks.mask(shown), average, limit)

    def evidence(self, matches: Matches, seqs: Sequence[int], view: View) -> dict[int, Evidence]:
        with self.reading():
            return self._words.evidence(matches, seqs)

    def nearest(
        self, model: str, vector: bytes, view: View, *, limit: int, also: Iterable[int]
    ) -> dict[int, Closeness]:
        # Needs NumPy, as embedders do.
        from mcpp_agents.memory.storage.vector_matrix import VectorMatrix

        with self.reading():
            matrix = self._vectors.setdefault(model, VectorMatrix(self, model))
            return matrix.nearest(vector, mask=self._mask(view), limit=limit, also=also)

    def vectors_since(self, model: str, mark: int) -> list[StoredVector]:
        """Return the vectors added after a mark."""
        rows = self._connection.all(
            "SELECT v.mark, v.seq, m.before, v.data"
            " FROM vector v JOIN memory m ON m.seq = v.seq"
            " WHERE v.mark > ? AND +v.model = ? ORDER BY v.mark",  # + : search by mark, few are new
            mark,
            model,
        )
        return [StoredVector(*row) for row in rows]

    def changes_since(self, mark: int) -> list[ChangedRow]:
        """Return the changes after a mark, by any process."""
        rows = self._connection.all(
            "SELECT mark, seq FROM changed WHERE mark > ? ORDER BY mark", mark
        )
        return [ChangedRow(*row) for row in rows]

    def previous_of(self, seqs: Iterable[int]) -> dict[int, int | None]:
        """Return the neighbour before each of these items."""
        rows = self._connection.all(
            "SELECT seq, before FROM memory WHERE seq IN (SELECT value FROM json_each(?))",
            json.dumps(list(seqs)),
        )
        return dict(rows)

    def _mask(self, view: View) -> Mask:
        return self._masks.mask(self._condition(view))

    @property
    def _vector_of_item(self) -> str:
        return "SELECT 1 FROM vector v WHERE v.model = ? AND v.seq = m.seq"

    def _condition(self, view: View | None, *, by_scope: bool = False) -> Condition:
        if view is None:
            return "", []
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
