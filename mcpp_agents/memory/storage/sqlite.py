"""The embedded engine: one SQLite file. Its words are found by `fts`."""

import json
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, Final

from mcpp_agents.memory.access import View
from mcpp_agents.memory.errors import Unavailable
from mcpp_agents.memory.search.neighbours import adjoin, thread_of
from mcpp_agents.memory.search.terms import Query, grams
from mcpp_agents.memory.search.word_index import Within, WordIndex
from mcpp_agents.memory.storage.engine import (
    AuditEntry,
    Embedded,
    Evidence,
    Item,
    ItemLink,
    Matches,
    Neighbour,
    Outline,
    Removed,
)
from mcpp_agents.memory.storage.schema import BUSY_SECONDS, connect

_log = logging.getLogger(__name__)

_BUSY_CODES: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_RETRY_SECONDS: Final = 0.01
# A pack takes some 50 ms; its row in the audit may double that, and else goes with the next write.
_AUDIT_WAIT_SECONDS: Final = 0.05
_LAST_WAIT_SECONDS: Final = 2.0
_MAX_UNAUDITED: Final = 10_000
# Items whose index is written anew in a tenth of a second.
_PURGED_AT_ONCE: Final = 10_000

_COLUMNS: Final = (
    "m.seq, m.id, s.name, m.kind, m.title, m.content, m.principal, m.origin, m.created_at,"
    " m.author, m.idempotency_key, m.more"
)
_FROM: Final = "FROM memory m JOIN scope s ON s.id = m.scope"
_MORE: Final = (
    "updated_at",
    "domain",
    "project",
    "agent_id",
    "tags",
    "retrieval_keys",
    "source",
    "url",
    "valid_at",
    "metadata",
)


class SqliteEngine:
    """An open memory file; it owns its connection and the lock around it."""

    def __init__(
        self,
        path: str,
        *,
        busy_seconds: float = BUSY_SECONDS,
        purged_at_once: int = _PURGED_AT_ONCE,
    ) -> None:
        self._connection = connect(path)
        self._busy_seconds = busy_seconds
        self._purged_at_once = purged_at_once
        self._words = WordIndex(self._connection)
        self._lock = threading.RLock()
        self._unaudited: deque[AuditEntry] = deque()
        self._removed = False  # in this write
        self._unpurged = False  # the index still has words of what was removed

    @contextmanager
    def writing(self, *, wait_seconds: float | None = None) -> Iterator[None]:
        with self._begun(self._busy_seconds if wait_seconds is None else wait_seconds):
            try:
                yield
                for entry in self._unaudited:
                    self._audit(entry)
                self._connection.execute("COMMIT")
                self._unaudited.clear()
                if self._removed:
                    self._empty_log()
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._removed = False

    def close(self) -> None:
        with self._using():
            if self._unpurged:
                self._purge()
            self._write_audit(_LAST_WAIT_SECONDS)
            for entry in self._unaudited:
                _log.error("lost for the audit: %s", entry)
            self._connection.close()

    # Writing

    def add(self, items: Sequence[Item], links: Iterable[ItemLink] = ()) -> None:
        scopes = {name: self._scope(name) for name in {item.scope for item in items}}
        threads: dict[tuple[int, str], tuple[int, Item]] = {}  # each one's latest item
        near: dict[int, list[str]] = {}
        rows: list[tuple[Any, ...]] = []
        first = seq = self._one("SELECT coalesce(max(seq), 0) FROM sqlite_sequence"
                                " WHERE name = 'memory'")[0] + 1  # fmt: skip
        for seq, item in enumerate(items, first):
            scope, thread = scopes[item.scope], thread_of(item)
            before = threads.get((scope, thread)) or self._latest(scope, thread)
            near[seq] = []
            if before and adjoin(before[1], item):
                near[seq].append(before[1].content)
                near.setdefault(before[0], []).append(item.content)
            else:
                before = None
            threads[scope, thread] = seq, item
            rows.append((seq, scope, thread, before and before[0], item))
        for older in sorted(near.keys() - range(first, seq + 1)):
            self._reindex(older, near.pop(older))
        self._connection.executemany(
            f"INSERT INTO memory (seq, scope, thread, before, near, {', '.join(_STORED)})"
            f" VALUES (?, ?, ?, ?, ?{', ?' * len(_STORED)})",
            [
                (seq, scope, thread, before, "\n".join(near[seq]), *_stored(item))
                for seq, scope, thread, before, item in rows
            ],
        )
        self._words.add(first, seq)
        self._connection.execute("UPDATE tally SET items = items + ?", [len(rows)])
        for link in links:
            self._link(link)

    def remove(self, seq: int) -> None:
        scope, thread = self._one("SELECT scope, thread FROM memory WHERE seq = ?", seq)
        self._words.remove(seq)
        superseded = self._bequeath(seq)
        self._connection.execute("DELETE FROM relation WHERE ? IN (source, target)", [seq])
        self._connection.execute("DELETE FROM vector WHERE seq = ?", [seq])
        self._connection.execute("DELETE FROM memory WHERE seq = ?", [seq])
        self._connection.execute("INSERT INTO forgotten (seq) VALUES (?)", [seq])
        self._connection.execute("UPDATE tally SET items = items - 1")
        if thread:  # else it has no neighbours
            self._relend(scope, thread, seq)
            # The one behind it had it before itself, if they adjoined; now it has nothing.
            self._connection.execute(
                "UPDATE memory SET before = NULL WHERE scope = ? AND thread = ? AND before = ?",
                [scope, thread, seq],
            )
        for target in superseded:
            self._count_superseding(target)
        self._removed = True
        if self._one("SELECT items FROM tally")[0] <= self._purged_at_once:
            self._words.purge()
        else:
            self._unpurged = True

    def opt_out(self, principal: str, begun: Iterable[str], ended: Iterable[str]) -> None:
        self._connection.executemany(
            "DELETE FROM opt_out WHERE principal = ? AND context = ?",
            [(principal, context) for context in ended],
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO opt_out (principal, context) VALUES (?, ?)",
            [(principal, context) for context in begun],
        )

    def audit(self, entry: AuditEntry) -> None:
        with self._using():
            if self._connection.in_transaction:
                self._audit(entry)
                return
            self._unaudited.append(entry)
            self._write_audit(_AUDIT_WAIT_SECONDS)
            while len(self._unaudited) > _MAX_UNAUDITED:
                _log.error("lost for the audit: %s", self._unaudited.popleft())

    def _purge(self) -> None:
        try:
            with self.writing(wait_seconds=_LAST_WAIT_SECONDS):
                self._words.purge()
                self._removed = True
        except Unavailable as fault:
            _log.warning("words of what was forgotten stay in the index: %s", fault.__cause__)

    def _empty_log(self) -> None:
        """Move the log of writes into the file, if no reader needs it: it holds what was erased."""
        with self._at_once(), suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def _write_audit(self, wait_seconds: float) -> None:
        """Write what no write has taken along; a reader does not wait for long for that."""
        if not self._unaudited:
            return
        try:
            with self.writing(wait_seconds=wait_seconds):
                pass
        except Unavailable as fault:
            _log.warning("%d rows of the audit wait: %s", len(self._unaudited), fault.__cause__)

    def _audit(self, entry: AuditEntry) -> None:
        self._connection.execute(
            "INSERT INTO audit (at, principal, author, tool, details) VALUES (?, ?, ?, ?, ?)",
            [entry.at, entry.principal, entry.author, entry.tool, json.dumps(entry.details)],
        )

    # Reading

    def audited(self, last: int) -> list[AuditEntry]:
        rows = self._all(
            "SELECT at, principal, tool, details, author FROM audit ORDER BY id DESC LIMIT ?", last
        )
        return [AuditEntry(at, who, tool, json.loads(d), by) for at, who, tool, d, by in rows][::-1]

    def find(self, ids: Sequence[str], view: View | None) -> dict[str, Item]:
        where, values = self._within(view) if view else ("", [])
        rows = self._all(
            f"SELECT {_COLUMNS} {_FROM} WHERE m.id IN (SELECT value FROM json_each(?)){where}",
            json.dumps(list(ids)),
            *values,
        )
        return {item.id: item for item in map(_item, rows)}

    def fetch(self, seqs: Sequence[int], view: View) -> dict[int, Item]:
        where, values = self._within(view)
        rows = self._all(
            f"SELECT {_COLUMNS} {_FROM} WHERE m.seq IN (SELECT value FROM json_each(?))"
            f" AND m.superseded = 0{where}",
            json.dumps(list(seqs)),
            *values,
        )
        return {item.seq: item for item in map(_item, rows)}

    def outline(self, seqs: Sequence[int], view: View) -> list[Outline]:
        where, values = self._within(view)
        rows = self._all(
            "SELECT m.seq, m.kind, m.since FROM memory m WHERE m.seq IN"
            f" (SELECT value FROM json_each(?)) AND m.superseded = 0{where}",
            json.dumps(list(seqs)),
            *values,
        )
        return [Outline(*row) for row in rows]

    def keyed(self, principal: str, author: str | None, key: str) -> Item | None:
        rows = self._all(
            f"SELECT {_COLUMNS} {_FROM} WHERE m.principal = ? AND coalesce(m.author, '') = ?"
            " AND m.idempotency_key = ?",
            principal,
            author or "",
            key,
        )
        return _item(rows[0]) if rows else None

    def opted_out(self, principal: str) -> frozenset[str]:
        rows = self._all("SELECT context FROM opt_out WHERE principal = ?", principal)
        return frozenset(row[0] for row in rows)

    def count_since(self, principal: str, author: str, since: float) -> int:
        row = self._one(
            "SELECT coalesce(sum(json_extract(details, '$.created')), 0) FROM audit"
            " WHERE principal = ? AND author = ? AND at > ? AND tool = 'remember'",
            principal,
            author,
            since,
        )
        return int(row[0])

    def newest(self, view: View, kinds: Sequence[str], limit: int) -> list[Outline]:
        where, values = self._within(view)
        rows = self._all(
            "SELECT m.seq, m.kind, m.since FROM memory m WHERE m.kind IN"
            f" (SELECT value FROM json_each(?)) AND m.superseded = 0{where}"
            " ORDER BY m.seq DESC LIMIT ?",
            json.dumps(list(kinds)),
            *values,
            limit,
        )
        return [Outline(*row) for row in rows]

    def neighbours(self, seqs: Sequence[int], view: View) -> list[Neighbour]:
        where, values = self._within(view)
        found: list[Neighbour] = []
        for here, there in (("source", "target"), ("target", "source")):
            rows = self._all(
                f"SELECT r.{here}, r.relationship, {_COLUMNS} FROM relation r"
                f" JOIN memory m ON m.seq = r.{there} JOIN scope s ON s.id = m.scope"
                f" WHERE r.{here} IN (SELECT value FROM json_each(?)) AND m.superseded = 0{where}"
                " ORDER BY m.seq DESC",
                json.dumps(list(seqs)),
                *values,
            )
            found += [Neighbour(of, _item(row), how, here == "source") for of, how, *row in rows]
        return found

    def _scopes(self, view: View) -> frozenset[int]:
        found = self._all(
            "SELECT id FROM scope WHERE name IN (SELECT value FROM json_each(?))",
            json.dumps(sorted(view.scopes)),
        )
        for prefix in view.prefixes:
            found += self._all(
                "SELECT id FROM scope WHERE name >= ? AND name < ?", prefix, f"{prefix}\U0010ffff"
            )
        return frozenset(row[0] for row in found)

    # Finding by words

    def match(self, query: Query, view: View, limit: int) -> Matches:
        with self._using():
            return self._words.match(query, self.shown(view), limit)

    def shown(self, view: View) -> bytes | None:
        with self._using():
            scopes = self._one("SELECT count(*) FROM scope")[0]
            if view.domain is None and len(self._scopes(view)) == scopes:
                return None
            return self._words.mask(self._within(view))

    def evidence(self, matches: Matches, seqs: Sequence[int]) -> dict[int, Evidence]:
        with self._using():
            return self._words.evidence(matches, seqs)

    # Vectors

    def unembedded(self, model: str, after: int, limit: int) -> list[Item]:
        rows = self._all(
            f"SELECT {_COLUMNS} {_FROM} WHERE m.seq > ? AND NOT EXISTS"
            " (SELECT 1 FROM vector v WHERE v.model = ? AND v.seq = m.seq)"
            " ORDER BY m.seq LIMIT ?",
            after,
            model,
            limit,
        )
        return [_item(row) for row in rows]

    def embed(self, model: str, vectors: Mapping[int, bytes]) -> None:
        with self.writing():
            # An item may have been forgotten while its vector was made.
            self._connection.executemany(
                "INSERT OR IGNORE INTO vector (seq, model, data)"
                " SELECT seq, ?, ? FROM memory WHERE seq = ?",
                [(model, data, seq) for seq, data in vectors.items()],
            )

    def embedded(self, model: str, after: int) -> list[Embedded]:
        rows = self._all(
            "SELECT v.mark, v.seq, m.before, v.data"
            " FROM vector v JOIN memory m ON m.seq = v.seq"
            " WHERE v.mark > ? AND +v.model = ? ORDER BY v.mark",  # by the mark: few are new
            after,
            model,
        )
        return [Embedded(*row) for row in rows]

    def forgotten(self, after: int) -> list[Removed]:
        rows = self._all("SELECT mark, seq FROM forgotten WHERE mark > ? ORDER BY mark", after)
        return [Removed(*row) for row in rows]

    # Inside

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Alone with the connection; what SQLite cannot do is a fault of ours from here on."""
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                busy = getattr(error, "sqlite_errorcode", None) in _BUSY_CODES
                raise Unavailable(busy=busy) from error

    @contextmanager
    def _begun(self, wait_seconds: float) -> Iterator[None]:
        """Inside a transaction. Until another process lets us begin, our other threads may read."""
        deadline = time.monotonic() + wait_seconds
        while True:
            with self._using():
                try:
                    self._begin()
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode not in _BUSY_CODES or time.monotonic() > deadline:
                        raise
                else:
                    yield
                    return
            time.sleep(_RETRY_SECONDS)

    def _begin(self) -> None:
        with self._at_once():
            self._connection.execute("BEGIN IMMEDIATE")

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """Without waiting for others."""
        self._connection.execute("PRAGMA busy_timeout = 0")
        try:
            yield
        finally:
            self._connection.execute(f"PRAGMA busy_timeout = {round(BUSY_SECONDS * 1000)}")

    def _all(self, sql: str, *values: Any) -> list[Any]:
        with self._using():
            return self._connection.execute(sql, values).fetchall()

    def _one(self, sql: str, *values: Any) -> tuple[Any, ...]:
        with self._using():
            row: tuple[Any, ...] = self._connection.execute(sql, values).fetchone()
            return row

    def _within(self, view: View) -> Within:
        """The condition that keeps a query inside a view, and its values."""
        where = " AND m.scope IN (SELECT value FROM json_each(?))"
        values: list[Any] = [json.dumps(sorted(self._scopes(view)))]
        if view.domain is not None:
            where += " AND m.domain = ?"
            values.append(view.domain.casefold())
        return where, values

    def _scope(self, name: str) -> int:
        self._connection.execute("INSERT OR IGNORE INTO scope (name) VALUES (?)", [name])
        return int(self._one("SELECT id FROM scope WHERE name = ?", name)[0])

    def _latest(self, scope: int, thread: str) -> tuple[int, Item] | None:
        rows = self._all(
            f"SELECT {_COLUMNS} {_FROM} WHERE m.scope = ? AND m.thread = ?"
            " AND m.superseded = 0 ORDER BY m.seq DESC LIMIT 1",
            scope,
            thread,
        )
        return (rows[0][0], _item(rows[0])) if rows else None

    def _relend(self, scope: int, thread: str, seq: int) -> None:
        """Where an item came or went, it and those beside it hold each other's words anew.

        What it lent must go with it, or it would still be found there.
        """
        if not thread:
            return
        found = set()
        for order, side in (("DESC", "<"), ("ASC", ">="), ("ASC", ">")):
            found |= set(
                self._all(
                    f"SELECT seq FROM memory WHERE scope = ? AND thread = ? AND seq {side} ?"
                    f" AND superseded = 0 ORDER BY seq {order} LIMIT 1",
                    scope,
                    thread,
                    seq,
                )
            )
        for (each,) in sorted(found):
            self._reindex(each, self._beside(scope, thread, each), replace=True)

    def _beside(self, scope: int, thread: str, seq: int) -> list[str]:
        """The texts of the items before and after one, as far as they adjoin it."""
        rows = []
        for order, side, count in (("DESC", "<=", 2), ("ASC", ">", 1)):
            rows += self._all(
                f"SELECT {_COLUMNS} {_FROM} WHERE m.scope = ? AND m.thread = ? AND m.seq {side} ?"
                f" AND m.superseded = 0 ORDER BY m.seq {order} LIMIT {count}",
                scope,
                thread,
                seq,
            )
        items = sorted(map(_item, rows), key=lambda item: item.seq)
        adjoining = [(a, b) for a, b in pairwise(items) if adjoin(a, b)]
        return [(b if a.seq == seq else a).content for a, b in adjoining]

    def _reindex(self, seq: int, texts: list[str], *, replace: bool = False) -> None:
        self._words.remove(seq)
        near = "\n".join(texts)
        self._connection.execute(
            "UPDATE memory SET near = ? WHERE seq = ?"
            if replace
            else "UPDATE memory SET near = near || char(10) || ? WHERE seq = ?",
            [near, seq],
        )
        self._words.add(seq, seq)

    def _link(self, link: ItemLink) -> None:
        done = self._connection.execute(
            "INSERT OR IGNORE INTO relation (source, relationship, target)"
            " SELECT a.seq, ?, b.seq FROM memory a, memory b WHERE a.id = ? AND b.id = ?",
            [link.relationship, link.source, link.target],
        )
        if done.rowcount and link.relationship == "supersedes":
            self._count_superseding(
                self._one("SELECT seq FROM memory WHERE id = ?", link.target)[0]
            )

    def _bequeath(self, seq: int) -> list[int]:
        """What an item superseded, by now superseded by whatever has superseded the item."""
        self._connection.execute(
            "INSERT OR IGNORE INTO relation (source, relationship, target)"
            " SELECT later.source, 'supersedes', earlier.target"
            " FROM relation later, relation earlier"
            " WHERE later.target = ?1 AND later.relationship = 'supersedes'"
            " AND earlier.source = ?1 AND earlier.relationship = 'supersedes'",
            [seq],
        )
        rows = self._all(
            "SELECT target FROM relation WHERE source = ? AND relationship = 'supersedes'", seq
        )
        return [row[0] for row in rows]

    def _count_superseding(self, seq: int) -> None:
        """By how many an item is superseded; it lends its words only as long as by none."""
        self._connection.execute(
            "UPDATE memory SET superseded = (SELECT count(*) FROM relation"
            " WHERE target = memory.seq AND relationship = 'supersedes') WHERE seq = ?",
            [seq],
        )
        scope, thread = self._one("SELECT scope, thread FROM memory WHERE seq = ?", seq)
        self._relend(scope, thread, seq)


_STORED: Final = (
    "id", "kind", "title", "content", "keys", "grams", "domain", "created_at", "since", "principal",
    "author", "origin", "idempotency_key", "more",
)  # fmt: skip


def _stored(item: Item) -> tuple[Any, ...]:
    keys = " ".join(filter(None, (*item.retrieval_keys, *item.tags, item.domain)))
    return (
        item.id,
        item.kind,
        item.title,
        item.content,
        keys,
        grams(f"{item.title}\n{item.content}\n{keys}"),
        item.domain and item.domain.casefold(),
        item.created_at,
        item.since,
        item.principal,
        item.author,
        item.origin,
        item.idempotency_key,
        json.dumps({name: getattr(item, name) for name in _MORE}, ensure_ascii=False),
    )


def _item(row: Sequence[Any]) -> Item:
    seq, id_, scope, kind, title, content, principal, origin, created_at, author, key, more = row
    fields = json.loads(more)
    for name in ("tags", "retrieval_keys"):
        fields[name] = tuple(fields[name])
    return Item(
        seq=seq, id=id_, scope=scope, kind=kind, title=title, content=content, principal=principal,
        origin=origin, created_at=created_at, author=author, idempotency_key=key, **fields,
    )  # fmt: skip
