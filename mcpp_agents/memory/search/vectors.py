"""All vectors of a store in one matrix: brute force, which at 100,000 rows takes milliseconds.

An answer is close to a goal in meaning where the question before it is ("Which port?" "8787."). So
besides its own cosine an item of a thread has that of the one before it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mcpp_agents.memory.search.embedding import Embedder
from mcpp_agents.memory.storage.engine import Engine, Item

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mcpp_agents.memory.search.embedding import Vectors

# Half precision halves the file and moves a cosine by less than 0.001.
_STORED = np.float16
# Rows picked one by one cost this many times as much as rows in a line.
_GATHERING = 4


class Closeness(NamedTuple):
    """How close in meaning an item is to a goal, and the one that it follows in its thread."""

    cosine: float
    follows: int | None
    before: float | None  # that one's cosine


class VectorIndex:
    """The vectors of one model, read from the engine as they are added. It never writes text."""

    def __init__(self, engine: Engine, embedder: Embedder) -> None:
        self._engine = engine
        self._embedder = embedder
        self._lock = threading.Lock()
        self._embedded_to = 0
        self._forgotten_to = 0
        self._mark = 0
        self._count = 0
        self._matrix = np.zeros((0, 0), np.float32)
        self._seqs = np.zeros(0, np.int64)
        self._before = np.zeros(0, np.int64)  # places, -1 where there is none
        self._places: dict[int, int] = {}

    @property
    def embedder(self) -> Embedder:
        return self._embedder

    def embed_some(self, limit: int = 64) -> int:
        """Embed items that have no vector yet, in their order; how many there were."""
        items = self._engine.unembedded(self._embedder.model, self._embedded_to, limit)
        if items:
            made = self._embedder.embed([_text(item) for item in items])
            vectors = {
                item.seq: vector.astype(_STORED).tobytes()
                for item, vector in zip(items, made, strict=True)
            }
            self._engine.embed(self._embedder.model, vectors)
            self._embedded_to = items[-1].seq
        return len(items)

    def nearest(
        self, goal: str, *, shown: bytes | None, limit: int, beside: Iterable[int]
    ) -> dict[int, Closeness]:
        """The nearest of the items that a view shows, and those named beside them."""
        query = self._embedder.embed([goal])[0]
        with self._lock:
            self._refresh()
            if not self._count:
                return {}
            places = self._shown(shown)
            cosines = self._cosines(places, query)
            if len(places) > limit:
                best = np.argpartition(self._reach(cosines)[places], -limit)[-limit:]
                places = places[best]
            chosen = {int(place) for place in places}
            chosen.update(self._places[seq] for seq in beside if seq in self._places)
            return {int(self._seqs[place]): self._closeness(place, cosines) for place in chosen}

    def _closeness(self, place: int, cosines: Vectors) -> Closeness:
        before = int(self._before[place])
        if before < 0:
            return Closeness(float(cosines[place]), None, None)
        return Closeness(float(cosines[place]), int(self._seqs[before]), float(cosines[before]))

    def _shown(self, shown: bytes | None) -> NDArray[np.intp]:
        if shown is None:
            return np.arange(self._count)
        seqs = self._seqs[: self._count]
        # Another process may have added rows since the view was looked at.
        flags = np.zeros(max(int(seqs.max()), len(shown)) + 1, np.uint8)
        flags[1 : len(shown) + 1] = np.frombuffer(shown, np.uint8)
        return np.flatnonzero(flags[seqs])

    def _cosines(self, places: NDArray[np.intp], query: Vectors) -> Vectors:
        """Of all rows, right at least in these places."""
        if _GATHERING * len(places) > self._count:
            return _products(self._matrix[: self._count], query)
        cosines = np.zeros(self._count, np.float32)
        cosines[places] = _products(self._matrix[places], query)
        return cosines

    def _reach(self, cosines: Vectors) -> Vectors:
        """The better of an item's cosine and that of the one before it."""
        reach = cosines.copy()
        following = np.flatnonzero(self._before[: self._count] >= 0)
        reach[following] = np.maximum(reach[following], cosines[self._before[following]])
        return reach

    def _refresh(self) -> None:
        for removed in self._engine.forgotten(self._forgotten_to):
            self._forgotten_to = removed.mark
            # A blank row is like nothing; to read all the others anew takes half a second.
            if (place := self._places.pop(removed.seq, None)) is not None:
                self._matrix[place] = 0
        rows = self._engine.embedded(self._embedder.model, self._mark)
        if not rows:
            return
        self._mark = rows[-1].mark
        added = np.stack([np.frombuffer(row.vector, _STORED) for row in rows]).astype(np.float32)
        self._reserve(self._count + len(rows), added.shape[1])
        end = self._count + len(rows)
        self._matrix[self._count : end] = added
        self._seqs[self._count : end] = [row.seq for row in rows]
        self._places.update((row.seq, self._count + i) for i, row in enumerate(rows))
        self._before[self._count : end] = [
            -1 if row.before is None else self._places.get(row.before, -1) for row in rows
        ]
        self._count = end

    def _reserve(self, rows: int, width: int) -> None:
        if rows <= len(self._matrix):
            return
        room = max(rows, 2 * len(self._matrix), 1024)
        matrix = np.zeros((room, width), np.float32)
        numbers = np.zeros((2, room), np.int64)
        if self._count:
            matrix[: self._count] = self._matrix[: self._count]
            for new, old in zip(numbers, (self._seqs, self._before), strict=True):
                new[: self._count] = old[: self._count]
        self._matrix = matrix
        self._seqs, self._before = numbers


def _products(rows: Vectors, query: Vectors) -> Vectors:
    # Reading the matrix takes the time, not the sums. The threads that `@` starts for it wait for
    # each other: this way it takes half as long or less, and leaves other cores to others.
    products: Vectors = np.einsum("ij,j->i", rows, query)
    return products


def _text(item: Item) -> str:
    return f"{item.title}\n{item.content}"
