"""Finding by words in FTS5, as BM25 should be.

FTS5's own `bm25()` gives every word that stands in half of the rows or more a weight of nothing,
which in a small store is most words. So each term is scored by itself, FTS5's weight is divided
out again, and Lucene's, which never reaches zero, is put in its place.

Reading the rows of a term takes 0.1 µs a row, scoring them 1 µs and more, so that common words
alone could cost a pack its 50 ms. Hence the rarest terms choose the candidates, as many as a
budget of rows allows, and the commoner ones are scored among these only; the commonest just count
as present, which is what BM25 says of one mention in a row of average length. While all rows fit
the budget, as in most files, nothing is lost.
"""

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

from .engine import Evidence, Matches, PairMatch
from .terms import Pair, Query

# Rows scored to find candidates: about 5 ms.
_SCORED_ROWS: Final = 2_500
# Scoring reads all rows of a term twice; from here on that takes too long.
_COMMON_ROWS: Final = 5_000
# Weights of title, content, keys, near, grams: a title says what an item is about, a neighbour
# only what was being talked about.
_WEIGHTS: Final = "2.0, 1.0, 2.0, 0.15, 1.0"
_OWN: Final = "{title content keys grams}"
# What FTS5 takes for the weight of a term in half of the rows or more.
_LEAST_WEIGHT: Final = 1e-6

# A condition on `memory m` that keeps a query inside a view, and its values.
Within = tuple[str, Sequence[Any]]


class WordIndex:
    """The table `memory_index` of a connection, which its owner guards with a lock."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

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

    def match(self, query: Query, within: Within, limit: int, *, whole: bool) -> Matches:
        """The best rows inside a view, which may be the whole file.

        What is rare is counted in the view: by a word's weight one could else tell whether others
        have it among their own.
        """
        total = self._all("SELECT items FROM tally")[0][0]
        counts = {term: self._count(_quoted(term)) for term in query.terms}
        seen, seen_total = counts, total
        if not whole:
            seen = {t: self._count_within(_quoted(t), within) for t, n in counts.items() if n}
            where, values = within
            seen_total = self._all(f"SELECT count(*) FROM memory m WHERE TRUE{where}", *values)[0][
                0
            ]
        rarity = {term: _rarity(seen_total, count) for term, count in seen.items() if count}
        ordered = sorted(rarity, key=counts.__getitem__)
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
            affordable = _affordable([counts[term] for term in ordered], budget)
            for term in ordered[scored:affordable]:
                take(term, self._bm25(_quoted(term), within), weights[term])
            scored = max(scored, affordable)
            budget *= 8  # too few of those rows were inside the view
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
            pairs=self._pairs(known, best, seen_total, None if whole else within),
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
        self, pairs: Sequence[Pair], seqs: Sequence[int], total: int, within: Within | None
    ) -> list[PairMatch]:
        sql = "SELECT rowid FROM memory_index WHERE memory_index MATCH ?"
        values: Sequence[Any] = ()
        if within is not None:
            where, values = within
            sql = (
                "SELECT m.seq FROM memory_index JOIN memory m ON m.seq = memory_index.rowid"
                f" WHERE memory_index MATCH ?{where}"
            )
        found = []
        for pair in pairs:
            expression = _quoted(f"{pair.first} {pair.second}")
            rows = {row[0] for row in self._all(sql, expression, *values)}
            found.append(PairMatch(pair, _rarity(total, len(rows)), rows.intersection(seqs)))
        return found

    def _count(self, expression: str) -> int:
        sql = "SELECT count(*) FROM memory_index WHERE memory_index MATCH ?"
        return int(self._all(sql, expression)[0][0])

    def _count_within(self, expression: str, within: Within) -> int:
        where, values = within
        sql = (
            "SELECT count(*) FROM memory_index JOIN memory m ON m.seq = memory_index.rowid"
            f" WHERE memory_index MATCH ?{where}"
        )
        return int(self._all(sql, expression, *values)[0][0])

    def _bm25(self, expression: str, within: Within) -> list[Any]:
        where, values = within
        return self._all(
            f"SELECT m.seq, -bm25(memory_index, {_WEIGHTS})"
            " FROM memory_index JOIN memory m ON m.seq = memory_index.rowid"
            f" WHERE memory_index MATCH ? AND m.superseded = 0{where}",
            expression,
            *values,
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
