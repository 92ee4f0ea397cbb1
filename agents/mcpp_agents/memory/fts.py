"""Finding by words in FTS5, as BM25 should be.

FTS5's own `bm25()` gives every word that stands in half of the rows or more a weight of nothing,
which in a small store is most words. So each term is scored by itself, FTS5's weight is divided
out again, and Lucene's, which never reaches zero, is put in its place.

Reading the rows of a term takes 0.1 µs a row, scoring them 1 µs and more, so that common words
alone could cost a pack its 50 ms. Hence the rarest terms choose the candidates, as many as a
budget of rows allows, and the commoner ones are scored among these only; the commonest just count
as present, which is what BM25 says of one mention in a row of average length. While all rows fit
the budget, as in most files, nothing is lost.

Looking up the scope of each row would cost several times as much as reading the rows. So what a
view shows is kept as one byte a row, and FTS5's rows are tested against that. Neither scope nor
domain of a row ever changes, and no number is used twice: such a mask only grows, and loses what is
forgotten.
"""

import json
import math
import sqlite3
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .engine import Evidence, Matches, PairMatch
from .terms import Pair, Query

# Rows scored to find candidates: about 5 ms.
_SCORED_ROWS: Final = 2_500
# Scoring reads all rows of a term twice; from here on that takes too long.
_COMMON_ROWS: Final = 5_000
# Passing over a row that the view does not show costs this part of scoring one.
_PASSED_OVER: Final = 0.1
# Weights of title, content, keys, near, grams: a title says what an item is about, a neighbour
# only what was being talked about.
_WEIGHTS: Final = "2.0, 1.0, 2.0, 0.15, 1.0"
_OWN: Final = "{title content keys grams}"
# What FTS5 takes for the weight of a term in half of the rows or more.
_LEAST_WEIGHT: Final = 1e-6

# Views whose masks are kept, each a byte a row.
_MAX_MASKS: Final = 16

# A condition on `memory m` that keeps a query inside a view, and its values.
Within = tuple[str, Sequence[Any]]
# One byte for each number of a row, 1 where a view shows it.
Mask = bytes


@dataclass(slots=True)
class _GrowingMask:
    """What a view shows as far as it was looked at, and which forgettings it has heard of."""

    shown: bytearray = field(default_factory=bytearray)
    marked: int = 0


class WordIndex:
    """The table `memory_index` of a connection, which its owner guards with a lock."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._masks: OrderedDict[tuple[Any, ...], _GrowingMask] = OrderedDict()

    def add(self, first: int, last: int) -> None:
        """Index the rows of `memory` between two numbers."""
        self._connection.execute(
            "INSERT INTO memory_index (rowid, title, content, keys, near, grams)"
            " SELECT seq, title, content, keys, near, grams FROM memory WHERE seq BETWEEN ? AND ?",
            [first, last],
        )

    def remove(self, seq: int) -> None:
        """Forget a row; before it changes, because the index must be told its very text."""
        self._connection.execute(
            "INSERT INTO memory_index (memory_index, rowid, title, content, keys, near, grams)"
            " SELECT 'delete', seq, title, content, keys, near, grams FROM memory WHERE seq = ?",
            [seq],
        )

    def match(self, query: Query, mask: Mask | None, limit: int) -> Matches:
        """The best rows that a mask shows; without one, of the whole file.

        What is rare is counted in the view: by a word's weight one could else tell whether others
        have it among their own.
        """
        total = self._all("SELECT items FROM tally")[0][0]
        counts = {term: self._count(_quoted(term)) for term in query.terms}
        seen, seen_total = counts, total
        if mask is not None:
            seen = {t: self._count(_quoted(t), mask) for t, count in counts.items() if count}
            seen_total = mask.count(1)
        rarity = {term: _rarity(seen_total, count) for term, count in seen.items() if count}
        cost = {t: seen[t] + int(_PASSED_OVER * (counts[t] - seen[t])) for t in rarity}
        ordered = sorted(rarity, key=cost.__getitem__)
        weights = {t: rarity[t] / _fts_weight(total, counts[t]) for t in ordered}
        words: defaultdict[int, float] = defaultdict(float)
        holders: dict[str, set[int]] = {}

        def take(term: str, rows: Iterable[tuple[int, float]], weight: float) -> None:
            holders[term] = set()
            for seq, points in rows:
                words[seq] += weight * points
                holders[term].add(seq)

        budget, scored = _SCORED_ROWS, 0
        while scored < len(ordered) and len(words) < limit:
            affordable = _affordable([cost[term] for term in ordered], budget)
            for term in ordered[scored:affordable]:
                take(term, self._bm25(_quoted(term), mask), weights[term])
            scored = max(scored, affordable)
            budget *= 8  # too few of those rows were left
        chosen = sorted(words, key=lambda seq: (-words[seq], -seq))[: limit * 2]
        for term in ordered[scored:]:
            if counts[term] > _COMMON_ROWS:
                present = [(seq, 1.0) for seq in self._holding(_quoted(term), chosen)]
                take(term, present, rarity[term])
            else:
                take(term, self._bm25_among(_quoted(term), chosen), weights[term])
        best = sorted(chosen, key=lambda seq: (-words[seq], -seq))[:limit]
        known = [p for p in query.pairs if p.first in rarity and p.second in rarity]
        return Matches(
            words={seq: words[seq] for seq in best},
            holders=holders,
            pairs=self._pairs(known, best, seen_total, mask),
            rarity=rarity,
        )

    def evidence(self, matches: Matches, seqs: Sequence[int]) -> dict[int, Evidence]:
        """Which terms these rows hold, and which stand only beside them."""
        found = {seq: Evidence() for seq in seqs}
        unmatched = [seq for seq in seqs if seq not in matches.words]
        lent = set(self._with_neighbours(seqs))
        for term, holders in matches.holders.items():
            holding = set(seqs) & holders
            if unmatched:
                holding.update(self._looked_up(_quoted(term), unmatched))
            doubtful = sorted(lent & holding)
            own = self._looked_up(f"{_OWN} : {_quoted(term)}", doubtful) if doubtful else []
            for seq in holding:
                held = seq not in lent or seq in own
                (found[seq].terms if held else found[seq].nearby).append(term)
        return found

    def _with_neighbours(self, seqs: Sequence[int]) -> list[int]:
        sql = "SELECT seq FROM memory WHERE near != '' AND seq IN (SELECT value FROM json_each(?))"
        return [row[0] for row in self._all(sql, json.dumps(list(seqs)))]

    def _pairs(
        self, pairs: Sequence[Pair], seqs: Sequence[int], total: int, mask: Mask | None
    ) -> list[PairMatch]:
        sql = f"SELECT rowid FROM memory_index WHERE memory_index MATCH ?{_shown(mask)}"
        found = []
        for pair in pairs:
            # What a neighbour says in one breath is not said here.
            expression = f"{_OWN} : {_quoted(f'{pair.first} {pair.second}')}"
            rows = {row[0] for row in self._all(sql, expression, *_values(mask))}
            found.append(PairMatch(pair, _rarity(total, len(rows)), rows.intersection(seqs)))
        return found

    def mask(self, within: Within) -> Mask:
        """What a view shows of the rows there are by now."""
        where, values = within
        key = (where, *values)
        mask = self._masks.setdefault(key, _GrowingMask())
        self._masks.move_to_end(key)
        if len(self._masks) > _MAX_MASKS:
            self._masks.popitem(last=False)
        known = len(mask.shown)
        for mark, seq in self._all("SELECT mark, seq FROM forgotten WHERE mark > ?", mask.marked):
            mask.marked = mark
            if seq <= known:
                mask.shown[seq - 1] = 0
        last = self._all("SELECT coalesce(max(seq), 0) FROM memory")[0][0]
        if last > known:
            # Few rows are new, but in which scope they are no index knows by their numbers.
            how = "NOT INDEXED" if known else ""
            rows = self._all(
                f"SELECT m.seq FROM memory m {how} WHERE m.seq BETWEEN ? AND ?{where}",
                known + 1,
                last,
                *values,
            )
            mask.shown.extend(bytes(last - known))
            for (seq,) in rows:
                mask.shown[seq - 1] = 1
        return bytes(mask.shown)  # it may grow while others still look at it

    def _count(self, expression: str, mask: Mask | None = None) -> int:
        sql = f"SELECT count(*) FROM memory_index WHERE memory_index MATCH ?{_shown(mask)}"
        return int(self._all(sql, expression, *_values(mask))[0][0])

    def _bm25(self, expression: str, mask: Mask | None) -> list[Any]:
        return self._all(
            f"SELECT m.seq, -bm25(memory_index, {_WEIGHTS})"
            " FROM memory_index JOIN memory m ON m.seq = memory_index.rowid"
            f" WHERE memory_index MATCH ?{_shown(mask)} AND m.superseded = 0",
            expression,
            *_values(mask),
        )

    def _bm25_among(self, expression: str, seqs: Sequence[int]) -> list[Any]:
        # The plus keeps SQLite from looking up each row by itself, which is slower.
        return self._all(
            f"SELECT rowid, -bm25(memory_index, {_WEIGHTS}) FROM memory_index"
            " WHERE memory_index MATCH ? AND +rowid IN (SELECT value FROM json_each(?))",
            expression,
            json.dumps(list(seqs)),
        )

    def _holding(self, expression: str, seqs: Sequence[int]) -> list[int]:
        """Which of many rows match."""
        rows = self._all(
            "SELECT rowid FROM memory_index WHERE memory_index MATCH ?"
            " AND +rowid IN (SELECT value FROM json_each(?))",
            expression,
            json.dumps(list(seqs)),
        )
        return [row[0] for row in rows]

    def _looked_up(self, expression: str, seqs: Sequence[int]) -> list[int]:
        """The same for a few rows, each found by itself."""
        rows = self._all(
            "SELECT rowid FROM memory_index WHERE memory_index MATCH ?"
            " AND rowid IN (SELECT value FROM json_each(?))",
            expression,
            json.dumps(list(seqs)),
        )
        return [row[0] for row in rows]

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()


def _shown(mask: Mask | None) -> str:
    return "" if mask is None else " AND substr(?, memory_index.rowid, 1) = x'01'"


def _values(mask: Mask | None) -> Sequence[Mask]:
    return () if mask is None else (mask,)


def _rarity(total: int, count: int) -> float:
    return math.log1p((max(total - count, 0) + 0.5) / (count + 0.5))


def _fts_weight(total: int, count: int) -> float:
    # Another process may add rows between the two counts.
    weight = math.log((max(total - count, 0) + 0.5) / (count + 0.5))
    return weight if weight > 0 else _LEAST_WEIGHT


def _affordable(counts: Sequence[int], budget: int) -> int:
    """How many of the terms, rarest first, keep within the budget; at least one."""
    spent = 0
    for index, count in enumerate(counts):
        spent += count
        if index and spent > budget:
            return index
    return len(counts)


def _quoted(term: str) -> str:
    """A term as FTS5 reads it: in quotes nothing is an operator or a column."""
    return '"' + term.replace('"', '""') + '"'
