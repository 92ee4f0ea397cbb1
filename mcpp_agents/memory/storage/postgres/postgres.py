"""The PostgreSQL engine: a database that many processes and machines share."""

import hashlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

from mcpp_agents.memory.access import View, organization_and_project
from mcpp_agents.memory.errors import StoreUnavailable
from mcpp_agents.memory.search.terms import Query
from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.audit_log import AuditLog
from mcpp_agents.memory.storage.engine import (
    AuditEntry,
    Closeness,
    Evidence,
    Item,
    ItemLink,
    Matches,
)
from mcpp_agents.memory.storage.item_queries import Condition, Dialect, ItemQueries
from mcpp_agents.memory.storage.item_writer import ItemWriter
from mcpp_agents.memory.storage.postgres.database import ALL, PostgresDatabase, sql_array
from mcpp_agents.memory.storage.postgres.reach import reach_of_view
from mcpp_agents.memory.storage.postgres.vector_search import (
    EXACT_ITEMS,
    StoredModel,
    VectorTable,
    dimensions_of,
)
from mcpp_agents.memory.storage.postgres.word_search import PostingBudget, PostingSearch
from mcpp_agents.memory.storage.postgres.word_table import PostingTable

logger = logging.getLogger("mcpp.memory")

_DIALECT: Final = Dialect(
    "= ANY (?)", lambda values: sql_array(values) if _are_numbers(values) else values
)


class PostgresItemWriter(ItemWriter):
    """Writes items; the counts of a scope are kept with its words."""

    def _reserve(self, count: int) -> int:
        sql = "SELECT setval('memory_number', nextval('memory_number') + ? - 1)"
        return int(self._connection.one(sql, count)[0]) - count + 1

    def _scope_id(self, name: str) -> int:
        rows = self._connection.all("SELECT id FROM scope WHERE name = ?", name)
        if not rows:
            rows = self._connection.all(
                "INSERT INTO scope (name, organization, project) VALUES (?, ?, ?) RETURNING id",
                name,
                *organization_and_project(name),
            )
        return int(rows[0][0])

    def _neighbourhood(self, item: Item) -> str:
        # The text may be longer than an entry of an index.
        found = super()._neighbourhood(item)
        return found and hashlib.sha256(found.encode()).hexdigest()[:32]

    def _remove_derived(self, seq: int) -> None:
        pass  # foreign keys do

    def _note_change(self, seq: int) -> None:
        self._connection.execute(
            "UPDATE embedding v SET current = NOT v.current FROM memory m"
            " WHERE m.seq = v.seq AND v.seq = ? AND v.current <> (m.superseded = 0)",
            [seq],
        )


class PostgresEngine(ItemQueries):
    """An open database. It owns the connections."""

    def __init__(
        self,
        url: str,
        *,
        budget: PostingBudget | None = None,
        exact_items: int = EXACT_ITEMS,
        **options: Any,
    ) -> None:
        self._database = PostgresDatabase(url, **options)
        super().__init__(self._database, _DIALECT)
        self._tokenizer = Tokenizer()
        self._items = PostgresItemWriter(
            self._database, PostingTable(self._database, self._tokenizer)
        )
        self._words = PostingSearch(self._database, self._tokenizer, budget)
        self._vectors = VectorTable(self._database, exact_items=exact_items)
        self._audit_log = AuditLog(self._database)

    def close(self) -> None:
        if self._audit_log.pending:
            with (
                suppress(StoreUnavailable),
                self._waiting_audit() as waiting,
                self._database.appending(),
            ):
                self._audit_log.insert(waiting)
            self._audit_log.log_pending()
        self._database.close()
        self._tokenizer.close()

    # Writes

    def reading(self) -> AbstractContextManager[None]:
        return self._database.reading()

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._waiting_audit() as waiting, self._database.writing():
            self._audit_log.insert(waiting)
            yield

    def add(self, items: Sequence[Item], links: Iterable[ItemLink] = ()) -> None:
        self._database.see(ALL)
        self._database.facts.clear()
        self._items.add(items, links)

    def remove(self, seq: int) -> None:
        self._database.see(ALL)
        self._database.facts.clear()
        self._items.remove(seq)

    def charge_quota(
        self, principal: str, author: str, *, items: int, at: float, expired_at: float
    ) -> None:
        self._database.see(ALL)
        super().charge_quota(principal, author, items=items, at=at, expired_at=expired_at)

    def opt_out(self, principal: str, added: Iterable[str], removed: Iterable[str]) -> None:
        self._database.see(ALL)
        super().opt_out(principal, added, removed)

    def audit(self, entry: AuditEntry) -> None:
        if self._database.is_writing:
            self._database.see(ALL)
            self._audit_log.insert([entry])
            return
        # A call that got no connection has waited for one: its entry does not wait again.
        may_wait = entry.details.get("refused") != StoreUnavailable.__name__
        try:
            with self._waiting_audit() as waiting, self._database.appending(may_wait=may_wait):
                self._audit_log.insert([*waiting, entry])
        except StoreUnavailable as error:
            self._audit_log.defer(entry)
            if self._audit_log.pending == 1:
                logger.warning("audit entries wait for the database: %s", error.__cause__)

    @contextmanager
    def _waiting_audit(self) -> Iterator[list[AuditEntry]]:
        """Yield the waiting entries to a write; they wait on if it fails."""
        waiting = self._audit_log.take()
        try:
            yield waiting
        except BaseException:
            self._audit_log.put_back(waiting)
            raise

    def add_vectors(self, model: str, vectors: Mapping[int, bytes], *, indexed: bool = True) -> int:
        if not vectors:
            return 0
        with self._database.reading():
            known = self._vectors.model(model)
        if known is None:
            with self._database.writing():
                self._vectors.register(model, dimensions_of(vectors), indexed=indexed)
        with self._database.appending():
            known = self._vectors.model(model)
            if known is None:
                return 0
            added = self._vectors.add(known, vectors)
            large = self._vectors.unindexed_scopes(known, list(vectors)) if indexed else []
        self._build_scope_indexes(known, large)
        return added

    def _build_scope_indexes(self, model: StoredModel, scopes: Iterable[int]) -> None:
        """Build indexes of large scopes, unless another process does; no vectors meanwhile."""
        for scope in scopes:
            with self._database.appending():
                if self._database.all(
                    "SELECT name FROM lock WHERE name = 'index' FOR UPDATE SKIP LOCKED"
                ):
                    self._database.all("SET LOCAL statement_timeout = 0")
                    self._vectors.build_scope_index(model, scope)

    # For copies of files

    def add_links(self, links: Iterable[ItemLink]) -> int:
        """Store relations between stored items; return how many are new. Only in `writing`."""
        self._database.see(ALL)
        return self._items.add_links(links)

    def build_index(self, model: str) -> None:
        """Build the vector indexes of a model that it lacks, however long that takes."""
        with self._database.writing():
            self._database.all("SET LOCAL statement_timeout = 0")
            self._vectors.build_index(model)
            known = self._vectors.model(model)
            large = self._vectors.unindexed_scopes(known) if known else []
        if known is not None:
            self._build_scope_indexes(known, large)

    def erased(self) -> frozenset[str]:
        """Return the ids of the items that were forgotten or replaced, as the audit has them."""
        with self._database.reading():
            self._database.see(ALL)
            return self._audit_log.erased()

    def audit_copied(self, source: str) -> int:
        """Return the number of the last audit row copied from a file, given by a digest."""
        with self._database.reading():
            self._database.see(ALL)
            rows = self._database.all("SELECT last_audit FROM copied WHERE source = ?", source)
        return int(rows[0][0]) if rows else 0

    def copy_audit(self, source: str, rows: Sequence[Sequence[Any]]) -> int:
        """Store those audit rows of a file, each with its number there first, that are new.

        Return how many. Another copy may be under way: what is new is known inside the write only.
        """
        with self._database.writing():
            last = self.audit_copied(source)
            new = [row[1:] for row in rows if row[0] > last]
            if new:
                self._database.execute_many(
                    "INSERT INTO audit (at, principal, author, tool, details)"
                    " VALUES (?, ?, ?, ?, ?)",
                    new,
                )
                self._database.execute(
                    "INSERT INTO copied (source, last_audit) VALUES (?, ?)"
                    " ON CONFLICT (source) DO UPDATE SET last_audit = excluded.last_audit",
                    [source, rows[-1][0]],
                )
        return len(new)

    def refresh_statistics(self) -> None:
        """Let the database count its rows anew, so that it plans queries well."""
        with self._database.appending():
            self._database.all("SET LOCAL statement_timeout = 0")
            self._database.all("ANALYZE scope, memory, word_list, posting, embedding, relation")

    # Reads

    def audit_entries(self, last: int) -> list[AuditEntry]:
        with self._database.reading():
            self._database.see(ALL)
            return self._audit_log.read(last)

    def find(self, ids: Sequence[str], view: View | None) -> dict[str, Item]:
        # The database refuses such text; no item has such an id.
        return super().find([id_ for id_ in ids if _is_text(id_)], view)

    def match(self, query: Query, view: View, limit: int) -> Matches:
        with self._database.reading():
            return self._words.match(query, reach_of_view(self._database, view), limit)

    def evidence(self, matches: Matches, seqs: Sequence[int], view: View) -> dict[int, Evidence]:
        with self._database.reading():
            reach_of_view(self._database, view)
            return self._words.evidence(matches.rarity, seqs)

    def nearest(
        self, model: str, vector: bytes, view: View, *, limit: int, also: Iterable[int]
    ) -> dict[int, Closeness]:
        with self._database.reading():
            known = self._vectors.model(model)
            if known is None:
                return {}
            self._vectors.find_indexes(known)
            reach = reach_of_view(self._database, view)
            return self._vectors.nearest(known, vector, reach, limit=limit, also=also)

    @property
    def _vector_of_item(self) -> str:
        return (
            "SELECT FROM embedding v JOIN model ON model.id = v.model"
            " WHERE model.name = ? AND v.seq = m.seq"
        )

    def _condition(self, view: View | None, *, by_scope: bool = False) -> Condition:
        if view is None:
            self._database.see(ALL)
            return "", []
        return reach_of_view(self._database, view).condition("m", by_scope=by_scope)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) for value in values)


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False
