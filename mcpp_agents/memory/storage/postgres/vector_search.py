"""Vectors in pgvector: HNSW indexes, and exact search in small views.

Vectors have half precision, as in a file. Each model has an index of all its vectors, created with
the first ones. A scan of it skips what is outside of the view: in one project of ten it took 30 ms
and found 74 % of the nearest 100. So a scope with many items, which are less than half of all, gets
an index of its own: 9 ms, 98 %. A view of a few such scopes, and of others that are small, is
searched by these. The vectors of a small view are all compared.
"""

import logging
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

from mcpp_agents.memory.storage.engine import (
    CONTRASTED,
    LEAST_DISTANCE,
    WIDER,
    Closeness,
    Similarity,
)
from mcpp_agents.memory.storage.postgres.database import (
    ALL,
    DEFAULT_EF,
    PostgresDatabase,
    sql_array,
)
from mcpp_agents.memory.storage.postgres.reach import Reach

logger = logging.getLogger("mcpp.memory")

# Up to this many items, all vectors of a view are compared: about 10 ms. A scope with more may get
# an index of its own.
EXACT_ITEMS: Final = 10_000
_MAX_INDEXED_DIMENSIONS: Final = 4_000  # of pgvector's HNSW index on half precision
# Candidates that an index scan keeps: as many as are wanted, at most these, at least DEFAULT_EF.
_MAX_EF: Final = 1_000
# How long a process may not know of an index that another one has built.
_KNOWN_SECONDS: Final = 60.0
_BYTES: Final = 2
_IS_OWNER: Final = (
    "(SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'embedding'::regclass)"
)
_INDEX_NAMES: Final = (
    "SELECT c.relname::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " WHERE i.indrelid = 'embedding'::regclass"
)


class StoredModel(NamedTuple):
    """An embedding model in the database."""

    id: int
    dimensions: int


class _Indexes(NamedTuple):
    """The scopes with an index of their own, and the items in all scopes; known since a time."""

    scopes: frozenset[int]
    items: int
    since: float


class _Selection(NamedTuple):
    """A query, and its values."""

    sql: str
    values: list[Any]


class VectorTable:
    """Adds vectors and finds the nearest, inside a transaction."""

    def __init__(self, database: PostgresDatabase, *, exact_items: int = EXACT_ITEMS) -> None:
        self._database = database
        self._exact_items = exact_items
        self._models: dict[str, StoredModel] = {}
        self._indexes: dict[int, _Indexes] = {}

    def model(self, name: str) -> StoredModel | None:
        """Return a model that has vectors."""
        if name not in self._models:
            rows = self._database.all("SELECT id, dimensions FROM model WHERE name = ?", name)
            if rows:
                self._models[name] = StoredModel(*rows[0])
        return self._models.get(name)

    def register(self, name: str, dimensions: int, *, indexed: bool = True) -> None:
        """Add a model, and its index unless that is built later. Only inside `writing`."""
        if self.model(name) is None:
            self._database.execute(
                "INSERT INTO model (name, dimensions) VALUES (?, ?)", [name, dimensions]
            )
            if indexed:
                self.build_index(name)
            self._models.pop(name, None)  # not before it is committed

    def build_index(self, name: str) -> None:
        """Build the index of a model, if it has none; only the tables' owner can."""
        [id_, dimensions] = self._database.one(
            "SELECT id, dimensions FROM model WHERE name = ?", name
        )
        [is_owner] = self._database.one(f"SELECT {_IS_OWNER}")
        model = StoredModel(id_, dimensions)
        if not is_owner or dimensions > _MAX_INDEXED_DIMENSIONS:
            logger.warning("the vectors of %s have no index: large searches are slow", name)
        else:
            self._build(model, f"embedding_hnsw_{model.id}", "")

    def build_scope_index(self, model: StoredModel, scope: int) -> None:
        """Build the index of a large scope, if it has none."""
        self._build(model, _index_name(model, scope), f" AND scope = {int(scope)}")
        self._indexes.pop(model.id, None)

    def _build(self, model: StoredModel, name: str, where: str) -> None:
        self._database.execute(
            f"CREATE INDEX IF NOT EXISTS {name} ON embedding"
            f" USING hnsw ((data::halfvec({int(model.dimensions)})) halfvec_ip_ops)"
            f" WHERE model = {int(model.id)}{where}"
        )

    def unindexed_scopes(self, model: StoredModel, among: Sequence[int] | None = None) -> list[int]:
        """Return the large scopes, of some items or of all, that should get an index."""
        if model.dimensions > _MAX_INDEXED_DIMENSIONS:
            return []
        some = "" if among is None else " AND id IN (SELECT scope FROM memory WHERE seq = ANY (?))"
        rows = self._database.all(
            f"SELECT id FROM scope WHERE {_IS_OWNER} AND items > ?{some}"
            " AND items * 2 <= (SELECT sum(items) FROM scope) AND NOT EXISTS ("
            f"  {_INDEX_NAMES} AND c.relname = ? || scope.id) ORDER BY id",
            self._exact_items,
            *([] if among is None else [list(among)]),
            _index_name(model, ""),
        )
        return [row[0] for row in rows]

    def find_indexes(self, model: StoredModel) -> None:
        """Find out which scopes have an index, if that is not known. It sees all scopes."""
        known = self._indexes.get(model.id)
        if known is None or time.monotonic() - known.since > _KNOWN_SECONDS:
            self._database.see(ALL)
            start = _index_name(model, "")
            rows = self._database.all(f"{_INDEX_NAMES} AND starts_with(c.relname, ?)", start)
            numbers = (row[0].removeprefix(start) for row in rows)
            scopes = frozenset(int(number) for number in numbers if number.isdecimal())
            [items] = self._database.one("SELECT coalesce(sum(items), 0) FROM scope")
            self._indexes[model.id] = _Indexes(scopes, int(items), time.monotonic())

    def add(self, model: StoredModel, vectors: Mapping[int, bytes]) -> int:
        """Add the vectors of items that still exist, and return how many are new."""
        return self._database.execute(
            "INSERT INTO embedding (seq, model, scope, domain, current, data)"
            " SELECT m.seq, ?, m.scope, m.domain, m.superseded = 0, given.data::halfvec"
            " FROM unnest(?::bigint[], ?::text[]) AS given (seq, data) JOIN memory m USING (seq)"
            " ON CONFLICT DO NOTHING",
            [model.id, sql_array(vectors), [_text(data) for data in vectors.values()]],
        ).rowcount

    def nearest(
        self, model: StoredModel, vector: bytes, reach: Reach, *, limit: int, also: Iterable[int]
    ) -> dict[int, Closeness]:
        """Return the items that are most similar, or the item before them is."""
        query = "[" + ",".join(map(str, struct.unpack(f"{model.dimensions}f", vector))) + "]"
        top = self._top(model, query, reach, WIDER * max(limit, CONTRASTED))
        kept = set(also)
        found = self._compare(model, query, reach, top, kept)
        best = sorted(found.keys() - kept, key=lambda seq: -found[seq].best)[:limit]
        return {seq: found[seq] for seq in (*best, *(kept & found.keys()))}

    def _compare(
        self, model: StoredModel, query: str, reach: Reach, top: list[int], also: AbstractSet[int]
    ) -> dict[int, Closeness]:
        """Return how similar items are, and those that come after one of the nearest.

        The cosines are exact: the query is not rounded to half precision.

        Args:
            top: the nearest items, in order.
        """
        where, values = reach.condition("v")
        where_before, values_before = reach.condition("b")
        kind = f"vector({model.dimensions})"
        own, previous = (f"{name}.data::{kind}" for name in "vb")
        rows: list[Any] = self._database.all(
            f"WITH query AS MATERIALIZED (SELECT ?::{kind} AS data),"
            f" mean AS MATERIALIZED (SELECT avg(e.data::{kind}) AS data FROM embedding e"
            f"  WHERE e.model = {model.id} AND e.seq = ANY (?)),"
            " goal AS MATERIALIZED (SELECT query.data, mean.data AS mean,"
            "  query.data - mean.data AS apart, query.data <-> mean.data AS distance"
            "  FROM query, mean)"
            f" SELECT m.seq, -({own} <#> goal.data), {_contrast(own)},"
            f" -({previous} <#> goal.data), {_contrast(previous)}"
            " FROM goal, (SELECT unnest(?::bigint[]) AS seq"
            "  UNION SELECT m.seq FROM memory m WHERE m.before = ANY (?)) AS wanted"
            " JOIN memory m USING (seq)"
            f" JOIN embedding v ON v.seq = m.seq AND v.model = {model.id} AND v.current{where}"
            f" LEFT JOIN embedding b ON b.seq = m.before AND b.model = {model.id}{where_before}",
            query,
            sql_array(top[:CONTRASTED]),
            sql_array({*top, *also}),
            sql_array(top),
            *values,
            *values_before,
        )
        return {
            seq: Closeness(
                _similarity(cosine, contrast),
                None if before is None else _similarity(before, before_contrast),
            )
            for seq, cosine, contrast, before, before_contrast in rows
        }

    def _top(self, model: StoredModel, query: str, reach: Reach, limit: int) -> list[int]:
        """Return the nearest items of a view, the nearest first, in one of three ways."""
        ef = min(_MAX_EF, max(DEFAULT_EF, limit))
        if reach.items <= self._exact_items:
            parts = [_part(model, reach, limit, is_exact=True)]
        elif own := self._own_scopes(model, reach):
            ef = max(limit // WIDER, limit // len(own))
            parts = [_part(model, reach.within([scope]), ef, own=scope) for scope in own]
            if rest := [scope for scope in reach.counts if scope not in own]:
                parts.append(_part(model, reach.within(rest), limit, is_exact=True))
        else:
            parts = [_part(model, reach, limit)]
        if ef != DEFAULT_EF:
            self._database.all("SELECT set_config('hnsw.ef_search', ?, true)", str(ef))
        rows = self._database.all(
            f"SELECT seq FROM ({' UNION ALL '.join(part.sql for part in parts)}) AS near"
            f" ORDER BY distance LIMIT {int(limit)}",
            *(value for part in parts for value in (query, *part.values)),
        )
        return [row[0] for row in rows]

    def _own_scopes(self, model: StoredModel, reach: Reach) -> list[int]:
        """Return the scopes whose own indexes to use; none if the index of all is better."""
        known = self._indexes.get(model.id)
        if known is None:
            return []
        own = [scope for scope in reach.counts if scope in known.scopes]
        rest = reach.items - sum(reach.counts[scope] for scope in own)
        # The index of all reads as many more items as the database is larger than the view.
        is_better = len(own) * reach.items < known.items
        return own if is_better and rest <= self._exact_items else []


def _part(
    model: StoredModel, reach: Reach, limit: int, *, own: int | None = None, is_exact: bool = False
) -> _Selection:
    """Return the query of the nearest items in a reach; its first value is the vector."""
    kind = f"halfvec({model.dimensions})"
    distance = f"v.data::{kind} <#> ?::{kind}"
    if is_exact:
        distance = f"({distance}) + 0"  # an expression that no index has
    where, values = reach.condition("v", by_scope=is_exact)
    if own is not None:  # as in the condition of its index
        where += f" AND v.scope = {int(own)}"
    # The limit is no placeholder: the plan depends on it.
    sql = (
        f"(SELECT v.seq, {distance} AS distance FROM embedding v"
        f" WHERE v.model = {model.id} AND v.current{where} ORDER BY distance LIMIT {int(limit)})"
    )
    return _Selection(sql, values)


def dimensions_of(vectors: Mapping[int, bytes]) -> int:
    """Return the number of dimensions of stored vectors."""
    return len(next(iter(vectors.values()))) // _BYTES


def _index_name(model: StoredModel, scope: int | str) -> str:
    return f"embedding_hnsw_{int(model.id)}_{scope}"


def _contrast(vector: str) -> str:
    """Return the contrast of a vector in a query of `goal`; null for what is the mean itself."""
    distance = f"least({vector} <-> goal.mean, goal.distance)"
    return (
        f"CASE WHEN {distance} > {LEAST_DISTANCE}"
        f" THEN 1 - (({vector} - goal.mean) <=> goal.apart) END"
    )


def _similarity(cosine: float, contrast: float | None) -> Similarity:
    return Similarity(cosine, cosine if contrast is None else contrast)


def _text(data: bytes) -> str:
    values = struct.unpack(f"{len(data) // _BYTES}e", data)
    return "[" + ",".join(map(str, values)) + "]"
