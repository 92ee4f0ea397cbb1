"""The seam behind the store: what a database must do, and the rows it deals in.

An engine keeps rows, finds them by words inside a view, and says how well they match. It never
decides what a pack holds: weights, fusion, recency and facets are shared Python (`ranking`), the
same whatever the engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from mcpp_agents.memory.access import View
from mcpp_agents.memory.requests import seconds_of
from mcpp_agents.memory.search.terms import Pair, Query


@dataclass(frozen=True, slots=True)
class Item:
    """A memory as it is stored. `seq` is its place in the order of remembering, 0 before that."""

    id: str
    scope: str
    kind: str
    title: str
    content: str
    principal: str
    origin: str
    created_at: float
    updated_at: float
    author: str | None = None
    domain: str | None = None
    project: str | None = None
    agent_id: str | None = None
    tags: tuple[str, ...] = ()
    retrieval_keys: tuple[str, ...] = ()
    source: str | None = None
    url: str | None = None
    valid_at: str | None = None
    idempotency_key: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    seq: int = 0

    @property
    def since(self) -> float:
        """When it became true, or was stored."""
        return seconds_of(self.valid_at) if self.valid_at else self.created_at


class Outline(NamedTuple):
    """As much of an item as choosing takes."""

    seq: int
    kind: str
    since: float  # when it became true, or was stored


class ItemLink(NamedTuple):
    """A relation between two stored items, by their ids."""

    source: str
    relationship: str
    target: str


class Neighbour(NamedTuple):
    """An item one relation away from another."""

    of: int
    item: Item
    relationship: str
    outgoing: bool


class PairMatch(NamedTuple):
    """A pair of neighbouring words: its rarity, and who holds it."""

    pair: Pair
    rarity: float
    seqs: AbstractSet[int]


@dataclass(frozen=True, slots=True)
class Matches:
    """What the words found. The points are BM25's: the sum of rarities, each times how much an
    item makes of the word."""

    words: Mapping[int, float]
    holders: Mapping[str, AbstractSet[int]]  # of each known term, as far as they matter
    pairs: Sequence[PairMatch]
    rarity: Mapping[str, float]  # of each term that some item holds


@dataclass(slots=True)
class Evidence:
    """Which of a query's terms an item holds, and which others stand beside it."""

    terms: list[str] = field(default_factory=list)
    nearby: list[str] = field(default_factory=list)


class Embedded(NamedTuple):
    """A vector as it is stored: `mark` grows with each that is added, whoever adds it."""

    mark: int
    seq: int
    before: int | None  # the item before it in its thread, which it adjoins
    vector: bytes


class Removed(NamedTuple):
    """That an item was removed: `mark` grows with each."""

    mark: int
    seq: int


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One call, without a word of what was said: lengths and ids only."""

    at: float
    principal: str
    tool: str
    details: Mapping[str, Any]
    author: str | None = None


class Engine(Protocol):
    """One database. Its methods may be called from several threads, and raise Unavailable."""

    def writing(self) -> AbstractContextManager[None]:
        """One atomic write, alone in the database: all of it is kept or nothing."""

    def add(self, items: Sequence[Item], links: Iterable[ItemLink] = ()) -> None:
        """Store items, searchable at once. Only inside `writing`."""

    def remove(self, seq: int) -> None:
        """Erase an item, its relations and vectors. Only inside `writing`."""

    def audit(self, entry: AuditEntry) -> None:
        """Keep a row about a call: with the write, or soon, without waiting long for others."""

    def audited(self, last: int) -> list[AuditEntry]:
        """The latest of these rows, in their order."""

    def find(self, ids: Sequence[str], view: View | None) -> dict[str, Item]:
        """Items by id, superseded ones too; a view of None sees all."""

    def outline(self, seqs: Sequence[int], view: View) -> list[Outline]:
        """Those of the items that are in the view and not superseded."""

    def fetch(self, seqs: Sequence[int], view: View) -> dict[int, Item]:
        """The same, whole."""

    def keyed(self, principal: str, author: str | None, key: str) -> Item | None:
        """What was stored under an idempotency key."""

    def opted_out(self, principal: str) -> frozenset[str]:
        """The contexts of which a pod's memory is to keep nothing."""

    def opt_out(self, principal: str, begun: Iterable[str], ended: Iterable[str]) -> None:
        """Add contexts to these, and take others from them. Only inside `writing`."""

    def count_since(self, principal: str, author: str, since: float) -> int:
        """How many items an author has stored for a principal, whether or not they still exist."""

    def match(self, query: Query, view: View, limit: int) -> Matches:
        """The best matches by words, inside the view."""

    def evidence(self, matches: Matches, seqs: Sequence[int]) -> dict[int, Evidence]:
        """What in these items matched, which may be others than those in `matches`."""

    def newest(self, view: View, kinds: Sequence[str], limit: int) -> list[Outline]:
        """The latest items of these kinds, inside the view."""

    def neighbours(self, seqs: Sequence[int], view: View) -> list[Neighbour]:
        """Everything in the view that is one relation away, in either direction."""

    def shown(self, view: View) -> bytes | None:
        """What a view shows: a byte for each `seq` from 1 on, 1 or 0; None where it is all."""

    def unembedded(self, model: str, after: int, limit: int) -> list[Item]:
        """Items later than one that have no vector of the model yet, in their order."""

    def embed(self, model: str, vectors: Mapping[int, bytes]) -> None:
        """Store vectors of items, in one write."""

    def embedded(self, model: str, after: int) -> list[Embedded]:
        """The vectors added since a mark."""

    def forgotten(self, after: int) -> list[Removed]:
        """The items removed since a mark, by whomever."""

    def close(self) -> None:
        """Let go of the database."""
