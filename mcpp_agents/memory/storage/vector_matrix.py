"""Vector search by brute force: all vectors in one matrix, milliseconds for 100,000 rows."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mcpp_agents.memory.storage.engine import (
    CONTRASTED,
    LEAST_DISTANCE,
    WIDER,
    Closeness,
    Similarity,
)
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

    def previous_of(self, seqs: Iterable[int]) -> dict[int, int | None]:
        """Return the neighbour before each of these items."""


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
        self._held = np.zeros(0, np.bool_)  # whether the item still exists
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
            if not len(rows):
                return {}
            cosines = self._cosines(rows, query)
            # At least twice as many as contrasts are to: they contain all of these.
            wide = WIDER * max(limit, CONTRASTED)
            near = _highest(self._best_cosines(cosines), rows, wide)
            kept = {self._rows[seq] for seq in also if seq in self._rows}
            similar = self._similarities(near, kept, cosines, query)
            found = {row: self._closeness(row, similar) for row in kept.union(near.tolist())}
            others = sorted(found.keys() - kept, key=lambda row: -found[row].best)
            return {int(self._seqs[row]): found[row] for row in (*kept, *others[:limit])}

    def _similarities(
        self, near: NDArray[np.intp], also: Iterable[int], cosines: Vectors, query: Vectors
    ) -> dict[int, Similarity]:
        """Return the similarities of these rows and of their predecessors."""
        mean = self._matrix[_highest(cosines, near, CONTRASTED)].mean(axis=0)
        rows = np.union1d(near, np.fromiter(also, np.intp))
        previous = self._previous[rows]
        rows = np.union1d(rows, previous[previous >= 0])
        contrasts = _contrasts(self._matrix[rows], query, mean, cosines[rows])
        values = zip(rows.tolist(), cosines[rows].tolist(), contrasts.tolist(), strict=True)
        return {row: Similarity(cosine, contrast) for row, cosine, contrast in values}

    def _closeness(self, row: int, similar: Mapping[int, Similarity]) -> Closeness:
        previous = int(self._previous[row])
        if previous < 0:
            return Closeness(similar[row])
        return Closeness(similar[row], int(self._seqs[previous]), similar[previous])

    def _visible_rows(self, mask: bytes | None) -> NDArray[np.intp]:
        """Return the rows of items in the view; those that are removed are in none."""
        if mask is None:
            return np.flatnonzero(self._held[: self._count])
        seqs = self._seqs[: self._count]
        # Another process may have added rows since the mask was made.
        flags = np.zeros(max(int(seqs.max()), len(mask)) + 1, np.bool_)
        flags[1 : len(mask) + 1] = np.frombuffer(mask, np.bool_)
        return np.flatnonzero(flags[seqs] & self._held[: self._count])

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
        following: set[int] = set()
        for removed in self._source.removals_since(self._removals_applied):
            self._removals_applied = removed.mark
            # A zero row matches nothing; reading all the others again takes half a second.
            if (row := self._rows.pop(removed.seq, None)) is not None:
                self._matrix[row] = 0
                self._held[row] = False
                following.update(np.flatnonzero(self._previous[: self._count] == row).tolist())
        if following:
            self._replace_previous(following)
        added = self._source.vectors_since(self._model, self._mark)
        if not added:
            return
        self._mark = added[-1].mark
        vectors = np.stack([np.frombuffer(each.vector, _STORED) for each in added])
        end = self._count + len(added)
        self._reserve(end, vectors.shape[1])
        self._matrix[self._count : end] = vectors.astype(np.float32)
        self._seqs[self._count : end] = [each.seq for each in added]
        self._held[self._count : end] = True
        self._rows.update((each.seq, self._count + i) for i, each in enumerate(added))
        self._previous[self._count : end] = [
            -1 if each.previous_seq is None else self._rows.get(each.previous_seq, -1)
            for each in added
        ]
        self._count = end

    def _replace_previous(self, following: Iterable[int]) -> None:
        """Read again which items these rows follow, after the removal of those before them."""
        rows = {int(self._seqs[row]): row for row in following}
        self._previous[list(rows.values())] = -1
        for seq, previous in self._source.previous_of(rows).items():
            if previous is not None:
                self._previous[rows[seq]] = self._rows.get(previous, -1)

    def _reserve(self, rows: int, width: int) -> None:
        if rows <= len(self._matrix):
            return
        room = max(rows, 2 * len(self._matrix), 1024)
        matrix = np.zeros((room, width), np.float32)
        numbers = np.zeros((2, room), np.int64)
        held = np.zeros(room, np.bool_)
        if self._count:
            matrix[: self._count] = self._matrix[: self._count]
            held[: self._count] = self._held[: self._count]
            for new, old in zip(numbers, (self._seqs, self._previous), strict=True):
                new[: self._count] = old[: self._count]
        self._matrix, self._held = matrix, held
        self._seqs, self._previous = numbers


def _highest(values: Vectors, rows: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return the rows with the highest values."""
    if len(rows) <= count:
        return rows
    return rows[np.argpartition(values[rows], -count)[-count:]]


def _contrasts(rows: Vectors, query: Vectors, mean: Vectors, cosines: Vectors) -> Vectors:
    """Return the cosines after the mean was subtracted; those of the mean itself as they are."""
    apart, wanted = rows - mean, query - mean
    lengths = np.linalg.norm(apart, axis=1)
    is_apart = (lengths > LEAST_DISTANCE) & (np.linalg.norm(wanted) > LEAST_DISTANCE)
    products = apart @ wanted / np.maximum(lengths * np.linalg.norm(wanted), LEAST_DISTANCE**2)
    contrasts: Vectors = np.where(is_apart, products, cosines)
    return contrasts


def _products(rows: Vectors, query: Vectors) -> Vectors:
    # Memory bandwidth dominates. The threads that `@` starts wait for each other: einsum takes half
    # as long or less, and leaves the other cores free.
    products: Vectors = np.einsum("ij,j->i", rows, query)
    return products
