"""Vector search by brute force: all vectors in one matrix, milliseconds for 100,000 rows."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mcpp_agents.memory.storage.engine import Closeness
from mcpp_agents.memory.storage.rows import Removal, StoredVector

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mcpp_agents.memory.search.embedding import Vectors

# Half precision halves the file and moves a cosine by less than 0.001.
_STORED = np.float16
# Gathering single rows costs this many times as much as reading consecutive ones.
_GATHER_COST = 4


class VectorSource(Protocol):
    """Where the vectors of a file are read from."""

    def vectors_since(self, model: str, mark: int) -> list[StoredVector]:
        """Return the vectors added after a mark."""

    def removals_since(self, mark: int) -> list[Removal]:
        """Return the removals after a mark, by any process."""


class VectorMatrix:
    """The vectors of one model, read from the file incrementally."""

    def __init__(self, source: VectorSource, model: str) -> None:
        self._source = source
        self._model = model
        self._lock = threading.Lock()
        self._removals_applied = 0
        self._mark = 0
        self._count = 0
        self._matrix = np.zeros((0, 0), np.float32)
        self._seqs = np.zeros(0, np.int64)
        self._previous = np.zeros(0, np.int64)  # row of the predecessor, -1 if there is none
        self._rows: dict[int, int] = {}

    def nearest(
        self, vector: bytes, *, mask: bytes | None, limit: int, also: Iterable[int]
    ) -> dict[int, Closeness]:
        """Return the nearest items that a view mask shows, and the items in `also`."""
        query = np.frombuffer(vector, np.float32)
        with self._lock:
            self._refresh()
            if not self._count:
                return {}
            rows = self._visible_rows(mask)
            cosines = self._cosines(rows, query)
            if len(rows) > limit:
                best = np.argpartition(self._best_cosines(cosines)[rows], -limit)[-limit:]
                rows = rows[best]
            chosen = {int(row) for row in rows}
            chosen.update(self._rows[seq] for seq in also if seq in self._rows)
            return {int(self._seqs[row]): self._closeness(row, cosines) for row in chosen}

    def _closeness(self, row: int, cosines: Vectors) -> Closeness:
        previous = int(self._previous[row])
        if previous < 0:
            return Closeness(float(cosines[row]), None, None)
        return Closeness(float(cosines[row]), int(self._seqs[previous]), float(cosines[previous]))

    def _visible_rows(self, mask: bytes | None) -> NDArray[np.intp]:
        if mask is None:
            return np.arange(self._count)
        seqs = self._seqs[: self._count]
        # Another process may have added rows since the mask was made.
        flags = np.zeros(max(int(seqs.max()), len(mask)) + 1, np.uint8)
        flags[1 : len(mask) + 1] = np.frombuffer(mask, np.uint8)
        return np.flatnonzero(flags[seqs])

    def _cosines(self, rows: NDArray[np.intp], query: Vectors) -> Vectors:
        """Return an array for all rows that is correct at least for the given ones."""
        if _GATHER_COST * len(rows) > self._count:
            return _products(self._matrix[: self._count], query)
        cosines = np.zeros(self._count, np.float32)
        cosines[rows] = _products(self._matrix[rows], query)
        return cosines

    def _best_cosines(self, cosines: Vectors) -> Vectors:
        """Return the larger of each item's cosine and its predecessor's."""
        best = cosines.copy()
        following = np.flatnonzero(self._previous[: self._count] >= 0)
        best[following] = np.maximum(best[following], cosines[self._previous[following]])
        return best

    def _refresh(self) -> None:
        for removed in self._source.removals_since(self._removals_applied):
            self._removals_applied = removed.mark
            # A zero row matches nothing; reading all the others again takes half a second.
            if (row := self._rows.pop(removed.seq, None)) is not None:
                self._matrix[row] = 0
        added = self._source.vectors_since(self._model, self._mark)
        if not added:
            return
        self._mark = added[-1].mark
        vectors = np.stack([np.frombuffer(each.vector, _STORED) for each in added])
        end = self._count + len(added)
        self._reserve(end, vectors.shape[1])
        self._matrix[self._count : end] = vectors.astype(np.float32)
        self._seqs[self._count : end] = [each.seq for each in added]
        self._rows.update((each.seq, self._count + i) for i, each in enumerate(added))
        self._previous[self._count : end] = [
            -1 if each.previous_seq is None else self._rows.get(each.previous_seq, -1)
            for each in added
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
            for new, old in zip(numbers, (self._seqs, self._previous), strict=True):
                new[: self._count] = old[: self._count]
        self._matrix = matrix
        self._seqs, self._previous = numbers


def _products(rows: Vectors, query: Vectors) -> Vectors:
    # Memory bandwidth dominates. The threads that `@` starts wait for each other: einsum takes half
    # as long or less, and leaves the other cores free.
    products: Vectors = np.einsum("ij,j->i", rows, query)
    return products
