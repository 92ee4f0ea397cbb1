"""Copying a memory file into a database: items, relations, vectors, audit and opt-outs.

The copy reads and writes in batches, so its need of memory is bounded. Each batch is one write, and
what the database has already is left out: after an interruption, the same command continues. What
was forgotten in the database does not come back, and what was forgotten in the file since an
earlier copy is erased. At the end, every item is compared.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mcpp_agents.memory.errors import InvalidMemory, MemoryStoreError
from mcpp_agents.memory.storage.audit_log import AuditLog
from mcpp_agents.memory.storage.connection import SqliteConnection
from mcpp_agents.memory.storage.engine import Item, ItemLink
from mcpp_agents.memory.storage.postgres.postgres import PostgresEngine
from mcpp_agents.memory.storage.rows import FROM_ITEMS, ITEM_COLUMNS, item_from_row

_BATCH: Final = 500
# Progress is reported after so many items.
_REPORT: Final = 10_000


@dataclass(slots=True)
class CopyReport:
    """What a copy added, and what the file contains."""

    items: int = 0
    relations: int = 0
    vectors: int = 0
    audit: int = 0
    verified: int = 0
    forgotten: int = 0  # in the database
    erased: int = 0  # because they were forgotten in the file

    def __str__(self) -> str:
        left_out = (
            f"; left out {self.forgotten} that were forgotten there" if self.forgotten else ""
        )
        erased = f"; erased {self.erased} that were forgotten in the file" if self.erased else ""
        return (
            f"copied {self.items} items, {self.relations} relations, {self.vectors} vectors and"
            f" {self.audit} audit rows; verified {self.verified} items{left_out}{erased}"
        )


def copy_file(
    source: Path, target: str, *, progress: Callable[[str], object] = lambda text: None
) -> CopyReport:
    """Copy a memory file into a database, and compare the two.

    Raises:
        MemoryStoreError: one of them cannot be used, or an item differs in the database.
    """
    if not source.exists():
        raise MemoryStoreError(f"{source} does not exist")
    connection = SqliteConnection(str(source))
    try:
        engine = PostgresEngine(target)
        try:
            return _Copy(connection, engine, progress).run()
        finally:
            engine.close()
    finally:
        connection.raw.close()


class _Copy:
    """One copy, step by step. It owns the report."""

    def __init__(
        self,
        source: SqliteConnection,
        target: PostgresEngine,
        progress: Callable[[str], object],
    ) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._report = CopyReport()
        self._forgotten = target.erased()

    def run(self) -> CopyReport:
        self._erase()  # first: a replaced item has the idempotency key of its successor
        self._copy_items()
        self._copy_relations()
        self._copy_vectors()
        self._copy_audit()
        self._copy_small_tables()
        self._verify()
        self._target.refresh_statistics()
        return self._report

    def _erase(self) -> None:
        """Erase what was forgotten or replaced in the file after it was copied."""
        gone = sorted(AuditLog(self._source).erased() - self._forgotten)
        for start in range(0, len(gone), _BATCH):
            with self._target.writing():
                found = self._target.find(gone[start : start + _BATCH], None)
                for item in found.values():
                    self._target.remove(item.seq)
            self._report.erased += len(found)

    def _copy_items(self) -> None:
        self._report.forgotten = self._source.one(
            "SELECT count(*) FROM memory WHERE id IN (SELECT value FROM json_each(?))",
            json.dumps(sorted(self._forgotten)),
        )[0]
        for batch in self._batches():
            with self._target.writing():
                known = self._target.find([item.id for item in batch], None)
                new = [item for item in batch if item.id not in known]
                for item in new:
                    self._check_key(item)
                self._target.add(new)
            before = self._report.items
            self._report.items += len(new)
            if before // _REPORT != self._report.items // _REPORT:
                self._progress(f"mcpp memory: {self._report.items} items copied\n")

    def _check_key(self, item: Item) -> None:
        if item.idempotency_key is None:
            return
        other = self._target.find_by_key(item.principal, item.author, item.idempotency_key)
        if other is not None:
            raise InvalidMemory(
                f"The database has another memory with the idempotency key of {item.id}:"
                f" {other.id}. Forget one of the two and repeat the copy"
            )

    def _copy_relations(self) -> None:
        rows = self._pages(  # of some items, with all that these refer to
            "SELECT r.source, a.id, r.relationship, b.id FROM"
            " (SELECT DISTINCT source FROM relation WHERE source > ? ORDER BY source LIMIT ?)"
            " JOIN relation r USING (source) JOIN memory a ON a.seq = r.source"
            " JOIN memory b ON b.seq = r.target ORDER BY r.source"
        )
        for page in rows:
            with self._target.writing():
                links = [ItemLink(*row[1:]) for row in page]
                self._report.relations += self._target.add_links(links)

    def _copy_vectors(self) -> None:
        models = [row[0] for row in self._source.all("SELECT DISTINCT model FROM vector")]
        for model in models:
            sql = (
                "SELECT v.seq, m.id, v.data FROM vector v JOIN memory m ON m.seq = v.seq"
                " WHERE v.seq > ? AND v.model = ? ORDER BY v.seq LIMIT ?"
            )
            for page in self._pages(sql, model):
                found = self._target.find([id_ for _, id_, _ in page], None)
                vectors = {found[id_].seq: data for _, id_, data in page if id_ in found}
                # An index is built much faster after its vectors are there.
                self._report.vectors += self._target.add_vectors(model, vectors, indexed=False)
            self._progress(f"mcpp memory: building the index of {model}\n")
            self._target.build_index(model)

    def _copy_audit(self) -> None:
        first = self._source.all("SELECT at, tool, details FROM audit ORDER BY id LIMIT 1")
        if not first:
            return
        name = hashlib.sha256(json.dumps(first).encode()).hexdigest()
        sql = (
            "SELECT id, at, principal, author, tool, details FROM audit"
            " WHERE id > ? ORDER BY id LIMIT ?"
        )
        for page in self._pages(sql, start=self._target.audit_copied(name)):
            self._report.audit += self._target.copy_audit(name, page)

    def _copy_small_tables(self) -> None:
        opted_out: dict[str, set[str]] = {}
        for principal, context in self._source.all("SELECT principal, context FROM opt_out"):
            opted_out.setdefault(principal, set()).add(context)
        with self._target.writing():
            for principal, contexts in opted_out.items():
                self._target.opt_out(principal, contexts, ())

    def _verify(self) -> None:
        """Compare every item."""
        for batch in self._batches():
            found = self._target.find([item.id for item in batch], None)
            for item in batch:
                copied = found.get(item.id)
                if copied is None or replace(copied, seq=item.seq) != item:
                    raise MemoryStoreError(f"The copy of {item.id} differs from the file")
            self._report.verified += len(batch)

    def _batches(self) -> Iterator[list[Item]]:
        sql = f"SELECT {ITEM_COLUMNS} {FROM_ITEMS} WHERE m.seq > ? ORDER BY m.seq LIMIT ?"
        for page in self._pages(sql):
            items = [item_from_row(row) for row in page]
            yield [item for item in items if item.id not in self._forgotten]

    def _pages(self, sql: str, *values: Any, start: int = 0) -> Iterator[list[Any]]:
        """Yield rows in batches; the first column orders them, the first placeholder is after."""
        last = start
        while page := self._source.all(sql, last, *values, _BATCH):
            yield page
            last = page[-1][0]
