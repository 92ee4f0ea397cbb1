"""The interface between the store and a database, and the rows that cross it.

An engine stores rows, finds them by words and vectors inside a view, and reports how well they
match. Superseded items are in no view. It does not decide what a pack contains: weights, fusion,
recency and facets are shared Python (`ranking`), independent of the engine. There are two: `sqlite`
and `postgres`.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Final, NamedTuple, Protocol

from mcpp_agents.memory.access import OWNER, View
from mcpp_agents.memory.requests import BUS_SCHEME, to_seconds
from mcpp_agents.memory.search.terms import Pair, Query


@dataclass(frozen=True, slots=True)
class Item:
    """A stored memory.

    `principal` is an account (`Principal.account`), here and below. `seq` numbers items in the
    order of storing; it is 0 before that.
    """

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
    def is_about_envelope(self) -> bool:
        """Return whether the source is the address of an envelope in a pod (M-34)."""
        return self.source is not None and self.source.startswith(BUS_SCHEME)

    @property
    def is_from_pod(self) -> bool:
        """Return whether its text was said or stored in a pod, and is quoted (M-26)."""
        return self.origin == "bus" or self.is_about_envelope

    def author_for(self, reader: str) -> str | None:
        """Return who wrote it: a participant, or another account than the reader's (M-26).

        None means the reader, or the file's owner, who could write anything into the file.
        """
        if self.author is None and self.principal not in (reader, OWNER.account):
            return self.principal
        return self.author

    @property
    def since(self) -> float:
        """The time at which the item became true, else at which it was stored."""
        return to_seconds(self.valid_at) if self.valid_at else self.created_at

    @property
    def day(self) -> date | None:
        """The day at which the item became true, by its own clock, if its author says when."""
        return datetime.fromisoformat(self.valid_at).date() if self.valid_at else None


class Outline(NamedTuple):
    """The part of an item that is needed to rank it."""

    seq: int
    kind: str
    since: float  # when it became true, or was stored


class ItemLink(NamedTuple):
    """A relation between two stored items, by their ids."""

    source: str
    relationship: str
    target: str


class LinkedItem(NamedTuple):
    """An item that is one relation away from the item numbered `of`."""

    of: int
    item: Item
    relationship: str
    outgoing: bool
    alike: int  # how many relations of that type and direction the item `of` has


class PairMatch(NamedTuple):
    """A pair of adjacent words, its rarity, and the items that contain it."""

    pair: Pair
    rarity: float
    seqs: AbstractSet[int]


@dataclass(frozen=True, slots=True)
class Matches:
    """The items found by words, with BM25 scores: rarity times term weight, summed over terms."""

    words: Mapping[int, float]
    holders: Mapping[str, AbstractSet[int]]  # the scored items that contain each known term
    pairs: Sequence[PairMatch]
    rarity: Mapping[str, float]  # of each term that some item contains, in the goal's order
    visible: int = 0  # items in the view


@dataclass(slots=True)
class Evidence:
    """The terms of a query that an item contains, and those only its neighbours contain."""

    terms: list[str] = field(default_factory=list)
    nearby: list[str] = field(default_factory=list)


# How many of the nearest vectors a contrast is to, and how many times as many are compared.
CONTRASTED: Final = 50
WIDER: Final = 2
# A vector no farther from the mean of the nearest is the mean: its contrast is its cosine.
LEAST_DISTANCE: Final = 0.001


class Similarity(NamedTuple):
    """How similar a vector is to that of a goal.

    The contrast is the cosine after the mean of the nearest vectors of the view was subtracted from
    both: it leaves out what the item shares with the others that are near, such as the subject of
    all of them, or the name of a speaker.
    """

    cosine: float
    contrast: float

    @property
    def mean(self) -> float:
        """The mean of both, by which items are ranked."""
        return (self.cosine + self.contrast) / 2


class Closeness(NamedTuple):
    """How similar an item and its predecessor in its neighbourhood are to a goal.

    An answer is relevant to a goal if the question before it is ("Which port?" "8787.").
    """

    own: Similarity
    previous: Similarity | None = None

    @property
    def best(self) -> float:
        """The higher one of both means."""
        return self.own.mean if self.previous is None else max(self.own.mean, self.previous.mean)


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """The audit row of one call. It contains lengths and ids, never goals or content (M-14)."""

    at: float
    principal: str
    tool: str
    details: Mapping[str, Any]
    author: str | None = None


class Engine(Protocol):
    """A database of items. Its methods are thread-safe and raise StoreUnavailable."""

    def reading(self) -> AbstractContextManager[None]:
        """Run the block's reads on one snapshot; inside another transaction, as part of it."""

    def writing(self) -> AbstractContextManager[None]:
        """Run the block as one atomic write, exclusive in the database."""

    def add(self, items: Sequence[Item], links: Iterable[ItemLink] = ()) -> None:
        """Store items, searchable at once. Only inside `writing`."""

    def remove(self, seq: int) -> None:
        """Erase an item, its relations and its vectors. Only inside `writing`."""

    def audit(self, entry: AuditEntry) -> None:
        """Store an audit row: in the current write, else soon, without a long wait for a lock."""

    def audit_entries(self, last: int) -> list[AuditEntry]:
        """Return the latest audit rows, oldest first."""

    def quota_used(self, principal: str, author: str, since: float) -> int:
        """Return how many items an author has been charged for after a time."""

    def charge_quota(
        self, principal: str, author: str, *, items: int, at: float, expired_at: float
    ) -> None:
        """Charge an author for items, and drop charges up to `expired_at`. Only in `writing`."""

    def find(self, ids: Sequence[str], view: View | None) -> dict[str, Item]:
        """Return items by id, superseded ones included; a view of None sees everything."""

    def find_by_key(self, principal: str, author: str | None, key: str) -> Item | None:
        """Return the item stored under an idempotency key."""

    def stored_by(self, principal: str) -> list[Item]:
        """Return everything that a principal stored."""

    def outline(self, seqs: Sequence[int], view: View) -> list[Outline]:
        """Return the outlines of those items that are in the view."""

    def fetch(self, seqs: Sequence[int], view: View) -> dict[int, Item]:
        """Return the complete items that are in the view."""

    def opted_out(self, principal: str) -> frozenset[str]:
        """Return the contexts of a pod that have opted out of memory (M-33)."""

    def opt_out(self, principal: str, added: Iterable[str], removed: Iterable[str]) -> None:
        """Add and remove contexts that have opted out. Only inside `writing`."""

    def match(self, query: Query, view: View, limit: int) -> Matches:
        """Return the best matches by words inside the view."""

    def evidence(self, matches: Matches, seqs: Sequence[int], view: View) -> dict[int, Evidence]:
        """Return which terms matched in these items, which need not be in `matches`."""

    def newest(self, view: View, kinds: Sequence[str], limit: int) -> list[Outline]:
        """Return the latest items of these kinds inside the view."""

    def linked(self, seqs: Sequence[int], view: View, limit: int) -> list[LinkedItem]:
        """Return items in the view that are one relation away, in either direction.

        These are, for each item, as many as the limit, outgoing ones first, then the newest; and as
        many of those that contradict it.
        """

    def items_without_vector(self, model: str, after: int, limit: int) -> list[Item]:
        """Return items after a number that have no vector of the model yet, in order."""

    def add_vectors(self, model: str, vectors: Mapping[int, bytes]) -> int:
        """Store vectors of items, as 16-bit floats, in one write; return how many are new."""

    def nearest(
        self, model: str, vector: bytes, view: View, *, limit: int, also: Iterable[int]
    ) -> dict[int, Closeness]:
        """Return the items of the view whose vectors are nearest, and those in `also`.

        `vector` is a unit vector of 32-bit floats. Contrasts are to the `CONTRASTED` nearest of the
        view. `WIDER` times as many as wanted are compared, so that those with a high contrast are
        among them.
        """

    def close(self) -> None:
        """Close the database."""
