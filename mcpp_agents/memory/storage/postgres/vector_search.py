"""Vectors in pgvector: one HNSW index per model, and exact search in small views.

Vectors have half precision, as in a file. An index is created with a model's first vectors. In a
view that is much smaller than the database, an index scan would skip most of what it finds, so such
a view is searched exactly.
"""

import logging
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mcpp_agents.memory.storage.engine import Closeness
from mcpp_agents.memory.storage.postgres.database import PostgresDatabase
from mcpp_agents.memory.storage.postgres.reach import Reach

logger = logging.getLogger("mcpp.memory")

# Up to this many items, all vectors of a view are compared: about 10 ms.
_EXACT_ITEMS: Final = 10_000
_MAX_INDEXED_DIMENSIONS: Final = 4_000  # of pgvector's HNSW index on half precision
# Candidates that an index scan keeps, for each one wanted, and at most.
_EF_FACTOR: Final = 4
_MAX_EF: Final = 1_000
_BYTES: Final = 2


class StoredModel(NamedTuple):
    """An embedding model in the database."""

    id: int
    dimensions: int


class VectorTable:
    """Adds vectors and finds the nearest, inside a transaction."""

    def __init__(self, database: PostgresDatabase, *, exact_items: int = _EXACT_ITEMS) -> None:
        self._database = database
        self._exact_items = exact_items
        self._models: dict[str, StoredModel] = {}

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
        [is_owner] = self._database.one(
            "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'embedding'::regclass"
        )
        if not is_owner or dimensions > _MAX_INDEXED_DIMENSIONS:
            logger.warning("the vectors of %s have no index: large searches are slow", name)
        else:
            self._database.execute(
                f"CREATE INDEX IF NOT EXISTS embedding_hnsw_{int(id_)} ON embedding"
                f" USING hnsw ((data::halfvec({int(dimensions)})) halfvec_ip_ops)"
                f" WHERE model = {int(id_)}"
            )

    def add(self, model: StoredModel, vectors: Mapping[int, bytes]) -> int:
        """Add the vectors of items that still exist, and return how many are new."""
        return self._database.execute(
            "INSERT INTO embedding (seq, model, scope, domain, data)"
            " SELECT m.seq, ?, m.scope, m.domain, given.data::halfvec"
            " FROM unnest(?::bigint[], ?::text[]) AS given (seq, data) JOIN memory m USING (seq)"
            " ON CONFLICT DO NOTHING",
            [model.id, list(vectors), [_text(data) for data in vectors.values()]],
        ).rowcount

    def nearest(
        self, model: StoredModel, vector: bytes, reach: Reach, *, limit: int, also: Iterable[int]
    ) -> dict[int, Closeness]:
        """Return the items whose cosine, or that of the item before them, is highest."""
        query = "[" + ",".join(map(str, struct.unpack(f"{model.dimensions}f", vector))) + "]"
        top = self._top(model, query, reach, limit)
        where, values = reach.condition("m")
        # An item may be among the nearest because of the one before it.
        rows = self._database.all(
            "SELECT m.seq, m.before FROM memory m WHERE m.seq = ANY (?)"
            f" UNION SELECT m.seq, m.before FROM memory m WHERE m.before = ANY (?){where}",
            [*top, *also],
            top,
            *values,
        )
        before: dict[int, int | None] = dict(rows)
        wanted = before.keys() | {seq for seq in before.values() if seq is not None}
        cosines = self._cosines(model, query, sorted(wanted))
        close = {
            seq: Closeness(cosines[seq], previous, cosines[previous])
            if previous is not None and previous in cosines
            else Closeness(cosines[seq], None, None)
            for seq, previous in before.items()
            if seq in cosines
        }
        kept = set(also)
        best = sorted(close.keys() - kept, key=lambda seq: -_best(close[seq]))[:limit]
        return {seq: close[seq] for seq in (*best, *(kept & close.keys()))}

    def _top(self, model: StoredModel, query: str, reach: Reach, limit: int) -> list[int]:
        where, values = reach.condition("v")
        kind = f"halfvec({model.dimensions})"
        order = f"v.data::{kind} <#> ?::{kind}"
        if reach.items <= self._exact_items:
            order = f"({order}) + 0"  # an expression that no index has
        else:
            ef = min(_MAX_EF, max(_EF_FACTOR * limit, 100))
            self._database.all("SELECT set_config('hnsw.ef_search', ?, true)", str(ef))
        rows = self._database.all(
            f"SELECT v.seq FROM embedding v WHERE v.model = {model.id}{where}"
            f" ORDER BY {order} LIMIT ?",
            *values,
            query,
            limit,
        )
        return [row[0] for row in rows]

    def _cosines(self, model: StoredModel, query: str, seqs: Sequence[int]) -> dict[int, float]:
        """Return exact cosines: the query is not rounded to half precision."""
        kind = f"vector({model.dimensions})"
        rows: list[Any] = self._database.all(
            f"SELECT v.seq, -(v.data::{kind} <#> ?::{kind}) FROM embedding v"
            f" WHERE v.model = {model.id} AND v.seq = ANY (?)",
            query,
            list(seqs),
        )
        return dict(rows)


def dimensions_of(vectors: Mapping[int, bytes]) -> int:
    """Return the number of dimensions of stored vectors."""
    return len(next(iter(vectors.values()))) // _BYTES


def _best(close: Closeness) -> float:
    return max(close.cosine, close.previous_cosine or close.cosine)


def _text(data: bytes) -> str:
    values = struct.unpack(f"{len(data) // _BYTES}e", data)
    return "[" + ",".join(map(str, values)) + "]"
