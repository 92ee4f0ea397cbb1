"""Vector search by brute force: all vectors in one matrix, milliseconds for 100,000 rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mcpp_agents.memory.storage.engine import (
    CONTRASTED,
    LEAST_DISTANCE,
    WIDER,
    Closeness,
    Similarity,
)
from mcpp_agents.memory.storage.rows import ChangedRow, StoredVector
from mcpp_agents.memory.storage.view_masks import Mask

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

    def changes_since(self, mark: int) -> list[ChangedRow]:
        """Return the changes after a mark, by any process."""

    def previous_of(self, seqs: Iterable[int]) -> dict[int, int | None]:
        """Return the neighbour before each of these items that still exists."""


class VectorMatrix:
    """The vectors of one model, read from the file incrementally.

    The source holds its lock during every call, and shows one state of the file meanwhile.
    """

    def __init__(self, source: VectorSource, model: str) -> None:
        self._source = source
        self._model = model
        self._changes_applied = 0
        self._mark = 0
        self._count = 0
        self._matrix = np.zeros((0, 0), np.float32)
        self._seqs = np.zeros(0, np.int64)
        self._previous_seqs = np.zeros(0, np.int64)  # 0 if there is none
        self._rows = np.full(1, -1, np.int64)  # of each item; -1 if it has no vector

    def nearest(
        self, vector: bytes, *, mask: Mask, limit: int, also: Iterable[int]
    ) -> dict[int, Closeness]:
        """Return the nearest items that a view mask shows, and the items in `also`."""
        self._refresh()
        # Those at the end may be forgotten, and the mask end before them.
        shown = np.frombuffer(mask.ljust(len(self._rows), b"\0"), np.bool_)
        is_visible = shown[self._seqs[: self._count] - 1]
        rows = np.flatnonzero(is_visible)
        if not len(rows):
            return {}
        query = np.frombuffer(vector, np.float32)
        cosines = self._cosines(rows, query)
        previous = self._visible_previous(is_visible)
        # At least twice as many as contrasts are to: they contain all of these.
        wide = WIDER * max(limit, CONTRASTED)
        near = _highest(_best_cosines(cosines, previous), rows, wide)
        mean = self._matrix[_highest(cosines, near, CONTRASTED)].mean(axis=0)
        wanted = self._rows_of(np.fromiter(also, np.int64))
        kept = wanted[wanted >= 0]
        compared = np.union1d(near, kept)
        before = previous[compared]
        both = np.union1d(compared, before[before >= 0])
        contrasts = _contrasts(self._matrix[both], query, mean, cosines[both])
        values = zip(both.tolist(), cosines[both].tolist(), contrasts.tolist(), strict=True)
        similar = {row: Similarity(cosine, contrast) for row, cosine, contrast in values}
        found = {
            row: Closeness(similar[row], similar[earlier] if earlier >= 0 else None)
            for row, earlier in zip(compared.tolist(), before.tolist(), strict=True)
        }
        first = dict.fromkeys(kept.tolist())
        others = sorted(found.keys() - first.keys(), key=lambda row: -found[row].best)
        return {int(self._seqs[row]): found[row] for row in (*first, *others[:limit])}

    def _cosines(self, rows: NDArray[np.intp], query: Vectors) -> Vectors:
        """Return an array for all rows that is correct at least for the given ones."""
        if _GATHER_COST * len(rows) > self._count:
            return _products(self._matrix[: self._count], query)
        cosines = np.zeros(self._count, np.float32)
        cosines[rows] = _products(self._matrix[rows], query)
        return cosines

    def _visible_previous(self, is_visible: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the row of each item's predecessor; -1 if there is none in the view."""
        previous = self._rows_of(self._previous_seqs[: self._count])
        return np.where(is_visible[previous], previous, -1)

    def _rows_of(self, seqs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of items, -1 of those without a vector."""
        return self._rows[np.where(seqs < len(self._rows), seqs, 0)]

    # Reading the file

    def _refresh(self) -> None:
        changes = self._source.changes_since(self._changes_applied)
        if changes:
            self._changes_applied = changes[-1].mark
            self._read_again({change.seq for change in changes})
        added = self._source.vectors_since(self._model, self._mark)
        if added:
            self._mark = added[-1].mark
            self._append(added)

    def _read_again(self, seqs: Iterable[int]) -> None:
        """Read again which items these follow; a forgotten one is in no view."""
        changed = np.fromiter(seqs, np.int64)
        rows = self._rows_of(changed)
        previous = self._source.previous_of(changed[rows >= 0].tolist())
        for seq, row in zip(changed.tolist(), rows.tolist(), strict=True):
            if seq in previous:
                self._previous_seqs[row] = previous[seq] or 0

    def _append(self, added: Sequence[StoredVector]) -> None:
        vectors = np.stack([np.frombuffer(each.vector, _STORED) for each in added])
        start, end = self._count, self._count + len(added)
        self._reserve(end, vectors.shape[1])
        self._matrix[start:end] = vectors.astype(np.float32)
        self._seqs[start:end] = [each.seq for each in added]
        self._previous_seqs[start:end] = [each.previous_seq or 0 for each in added]
        last = int(self._seqs[start:end].max())
        if last >= len(self._rows):
            self._rows = np.pad(self._rows, (0, 2 * last - len(self._rows)), constant_values=-1)
        self._rows[self._seqs[start:end]] = np.arange(start, end)
        self._count = end

    def _reserve(self, rows: int, width: int) -> None:
        if rows <= len(self._matrix):
            return
        room = max(rows, 2 * len(self._matrix), 1024)
        matrix = np.zeros((room, width), np.float32)
        numbers = np.zeros((2, room), np.int64)
        if self._count:
            matrix[: self._count] = self._matrix[: self._count]
            for new, old in zip(numbers, (self._seqs, self._previous_seqs), strict=True):
                new[: self._count] = old[: self._count]
        self._matrix = matrix
        self._seqs, self._previous_seqs = numbers


def _best_cosines(cosines: Vectors, previous: NDArray[np.int64]) -> Vectors:
    """Return the larger of each item's cosine and its predecessor's."""
    best = cosines.copy()
    following = np.flatnonzero(previous >= 0)
    best[following] = np.maximum(best[following], cosines[previous[following]])
    return best


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
