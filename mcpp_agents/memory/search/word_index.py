"""Search by words in FTS5, with corrected BM25 weights.

FTS5's own `bm25()` gives a weight near zero to every term that occurs in half of the rows or more,
which in a small store is most terms. So each term is scored on its own, FTS5's weight is divided
out, and Lucene's formula, which never reaches zero, replaces it.

Reading the rows of a term takes 0.1 µs per row, scoring them 1 µs and more, so common words alone
could use up a pack's 50 ms. Hence the rarest terms select the candidates, as many as a budget of
rows allows. More common terms are scored among these candidates only, and the most common just
count as present, which is what BM25 gives for one occurrence in a row of average length. If even
the rarest term is common, only those of its rows are scored that other terms also match, and the
newest ones. How common such a term is, is estimated from the newest rows. All counts are of rows
that the view shows. While all rows fit the budget, as in most files, the result is exact.
"""

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from mcpp_agents.memory.search.terms import Pair, Query
from mcpp_agents.memory.search.view_masks import Mask, mask_condition, mask_of
from mcpp_agents.memory.storage.engine import Evidence, Matches, PairMatch

# Other terms that help to select the rows of a common term.
_MAX_OTHER_TERMS: Final = 4
# The cost of skipping a row that the view does not show, as a fraction of scoring it.
_SKIP_COST: Final = 0.3
# Up to this many rows, single lookups are as fast as reading all rows that match.
_FEW_ROWS: Final = 8
# Weights of title, content, keys, near, grams: a title names the subject of an item, a neighbour's
# text only its surroundings.
_WEIGHTS: Final = "2.0, 1.0, 2.0, 0.15, 1.0"
_TITLE_COLUMNS: Final = "{title keys}"
_OWN_COLUMNS: Final = "{title content keys grams}"
# The weight that FTS5 gives to a term in half of the rows or more.
_MIN_FTS_WEIGHT: Final = 1e-6


@dataclass(frozen=True)
class RowBudget:
    """Limits on the rows read for one goal."""

    scored_rows: int = 2_500  # to select candidates: about 5 ms
    common_rows: int = 5_000  # terms with more rows are too slow to score in full
    sampled_rows: int = 10_000  # newest rows, from which frequencies are estimated
    min_sample: int = 30  # matching rows that make an estimate good enough


_BUDGET: Final = RowBudget()


@dataclass(frozen=True, slots=True)
class _Frequencies:
    """How often the terms of a query occur, and what it costs to score them."""

    total: int  # rows in the file
    visible: int  # rows in the view
    last: int  # highest row number
    counts: Mapping[str, int]  # in the file
    rarity: Mapping[str, float]  # in the view, of the terms that occur there
    cost: Mapping[str, int]


class WordIndex:
    """The table `memory_index`. The connection's owner holds the lock during every call."""

    def __init__(self, connection: sqlite3.Connection, budget: RowBudget = _BUDGET) -> None:
        self._connection = connection
        self._budget = budget

    def add(self, first: int, last: int) -> None:
        """Index the rows of `memory` in a range of numbers, both included."""
        self._connection.execute(
            "INSERT INTO memory_index (rowid, title, content, keys, near, grams)"
            " SELECT seq, title, content, keys, near, grams FROM memory WHERE seq BETWEEN ? AND ?",
            [first, last],
        )

    def remove(self, seq: int) -> None:
        """Remove a row from the index, before the row changes: FTS5 needs its indexed text."""
        self._connection.execute(
            "INSERT INTO memory_index (memory_index, rowid, title, content, keys, near, grams)"
            " SELECT 'delete', seq, title, content, keys, near, grams FROM memory WHERE seq = ?",
            [seq],
        )

    def purge(self) -> None:
        """Rewrite the index, so that no word of a removed row remains in it."""
        self._connection.execute("INSERT INTO memory_index (memory_index) VALUES ('optimize')")

    def match(self, query: Query, mask: Mask | None, limit: int) -> Matches:
        """Return the best rows that a mask shows; a mask of None shows the whole file."""
        frequencies = self._frequencies(query.terms, mask)
        counts, rarity, cost = frequencies.counts, frequencies.rarity, frequencies.cost
        ordered = sorted(rarity, key=cost.__getitem__)
        current = self._without_superseded(mask)
        words: defaultdict[int, float] = defaultdict(float)
        holders: dict[str, set[int]] = {}

        def take(term: str, rows: Sequence[tuple[int, float]], weight: float) -> None:
            holders[term] = {seq for seq, _ in rows}
            for seq, points in rows:
                words[seq] += weight * points

        def score(term: str, among: Mask | None) -> None:
            weight = rarity[term] / _fts_weight(frequencies.total, self._count(_quoted(term)))
            take(term, self._bm25(_quoted(term), among), weight)

        leading = _affordable([cost[term] for term in ordered], self._budget.scored_rows)
        for term in ordered[:leading]:
            score(term, current)
        while len(words) < limit and leading < len(ordered):
            among = current
            if cost[ordered[leading]] > self._budget.common_rows:
                promising = self._promising_rows(ordered[leading:], rarity, current)
                among = mask_of(words.keys() | promising)
            score(ordered[leading], among)
            leading += 1
        rest = ordered[leading:]
        leaders = " OR ".join(map(_quoted, ordered[:leading]))
        close = _best(words, limit * 4)
        for term in rest:
            if counts[term] >= self._budget.common_rows:
                present = self._rows(f"({leaders}) AND {_quoted(term)}", mask_of(close))
                take(term, [(seq, 1.0) for seq in present], rarity[term])
        chosen = _best({seq: words[seq] for seq in close}, limit * 2)
        for term in rest:
            if counts[term] < self._budget.common_rows:
                score(term, mask_of(chosen))
        best = _best({seq: words[seq] for seq in chosen}, limit)
        pairs = []
        for pair in query.pairs:
            both = holders.get(pair.first, set()) & holders.get(pair.second, set()) & set(best)
            if seqs := self._rows_with_pair(pair, both, leaders):
                count = self._estimate(_paired(pair), mask, frequencies.last)
                pairs.append(PairMatch(pair, _rarity(frequencies.visible, count), seqs))
        return Matches({seq: words[seq] for seq in best}, holders, pairs, rarity)

    def _frequencies(self, terms: Sequence[str], mask: Mask | None) -> _Frequencies:
        """Count the terms.

        Rarity is counted in the view: otherwise the weight of a word would reveal whether it occurs
        in rows that the caller may not see (M-12).
        """
        [(total, last)] = self._all(
            "SELECT items, (SELECT coalesce(max(seq), 0) FROM memory) FROM tally"
        )
        visible = total if mask is None else mask.count(1)
        counts = {term: self._estimate(_quoted(term), None, last) for term in terms}
        seen = counts
        if mask is not None:
            found = [term for term, count in counts.items() if count]
            seen = {term: self._estimate(_quoted(term), mask, last) for term in found}
        rarity = {term: _rarity(visible, count) for term, count in seen.items() if count}
        cost = {t: seen[t] + int(_SKIP_COST * (counts[t] - seen[t])) for t in rarity}
        return _Frequencies(total, visible, last, counts, rarity, cost)

    def evidence(self, matches: Matches, seqs: Sequence[int]) -> dict[int, Evidence]:
        """Return which terms these rows contain, and which only their neighbours contain."""
        found = {seq: Evidence() for seq in seqs}
        unmatched = [seq for seq in seqs if seq not in matches.words]
        shared = set(self._rows_with_neighbours(seqs))
        for term, holders in matches.holders.items():
            holding = set(seqs) & holders
            if unmatched:
                holding.update(self._look_up(_quoted(term), unmatched))
            uncertain = sorted(shared & holding)
            own = self._look_up(f"{_OWN_COLUMNS} : {_quoted(term)}", uncertain) if uncertain else []
            for seq in holding:
                is_own = seq not in shared or seq in own
                (found[seq].terms if is_own else found[seq].nearby).append(term)
        return found

    def _rows_with_neighbours(self, seqs: Sequence[int]) -> list[int]:
        sql = "SELECT seq FROM memory WHERE near != '' AND seq IN (SELECT value FROM json_each(?))"
        return [row[0] for row in self._all(sql, json.dumps(list(seqs)))]

    def _promising_rows(
        self, terms: Sequence[str], rarity: Mapping[str, float], current: Mask | None
    ) -> list[int]:
        """Select rows of the first term, which has many.

        Rows that contain other terms, or this one in their title or keys, come first; among
        equals, the newest.
        """
        expression = _quoted(terms[0])
        points = dict.fromkeys(self._newest(expression, current), 0.0)
        in_title = f"{_TITLE_COLUMNS} : {expression}"
        others = [(term, _quoted(term)) for term in terms[1 : 1 + _MAX_OTHER_TERMS]]
        for term, held in ((terms[0], in_title), *others):
            rows = self._newest(f"{expression} AND {held}", current)
            for seq in rows:
                points[seq] = points.get(seq, 0.0) + rarity[term]
            # If enough rows contain both, the remaining terms select among those.
            if len(rows) == self._budget.scored_rows and held != in_title:
                expression += f" AND {held}"
        return _best(points, self._budget.scored_rows)

    def _rows_with_pair(self, pair: Pair, seqs: AbstractSet[int], leaders: str) -> frozenset[int]:
        """Return which of these rows, all matched by the leading terms, contain a pair."""
        if len(seqs) <= _FEW_ROWS:
            return frozenset(self._look_up(_paired(pair), list(seqs)) if seqs else ())
        return frozenset(self._rows(f"({leaders}) AND {_paired(pair)}", mask_of(seqs)))

    def _without_superseded(self, mask: Mask | None) -> Mask | None:
        """Return a mask without the superseded rows."""
        superseded = self._all("SELECT seq FROM memory WHERE superseded > 0")
        if not superseded:
            return mask
        if mask is None:
            last = self._all("SELECT max(seq) FROM memory")[0][0]
            mask = b"\x01" * last
        visible = bytearray(mask)
        for (seq,) in superseded:
            if seq <= len(visible):
                visible[seq - 1] = 0
        return bytes(visible)

    def _count(self, expression: str, mask: Mask | None = None, since: int = 0) -> int:
        where, values = mask_condition(mask, since)
        sql = f"SELECT count(*) FROM memory_index WHERE memory_index MATCH ?{where}"
        return int(self._all(sql, expression, *values)[0][0])

    def _estimate(self, expression: str, mask: Mask | None, last: int) -> int:
        """Return how many rows match; a large number is estimated from the newest rows."""
        since = last - self._budget.sampled_rows
        if since > self._budget.sampled_rows:
            sample = self._count(expression, mask, since)
            if sample >= self._budget.min_sample:
                ratio = last / self._budget.sampled_rows
                if mask is not None:
                    ratio = mask.count(1) / mask.count(1, since)
                return round(sample * ratio)
        return self._count(expression, mask)

    def _bm25(self, expression: str, mask: Mask | None) -> list[Any]:
        where, values = mask_condition(mask)
        return self._all(
            f"SELECT rowid, -bm25(memory_index, {_WEIGHTS})"
            f" FROM memory_index WHERE memory_index MATCH ?{where}",
            expression,
            *values,
        )

    def _rows(self, expression: str, mask: Mask | None) -> list[int]:
        where, values = mask_condition(mask)
        sql = f"SELECT rowid FROM memory_index WHERE memory_index MATCH ?{where}"
        return [row[0] for row in self._all(sql, expression, *values)]

    def _newest(self, expression: str, mask: Mask | None) -> list[int]:
        where, values = mask_condition(mask)
        rows = self._all(
            f"SELECT rowid FROM memory_index WHERE memory_index MATCH ?{where}"
            " ORDER BY rowid DESC LIMIT ?",
            expression,
            *values,
            self._budget.scored_rows,
        )
        return [row[0] for row in rows]

    def _look_up(self, expression: str, seqs: Sequence[int]) -> list[int]:
        """Return which of a few rows match, by one lookup each."""
        rows = self._all(
            "SELECT rowid FROM memory_index WHERE memory_index MATCH ?"
            " AND rowid IN (SELECT value FROM json_each(?))",
            expression,
            json.dumps(list(seqs)),
        )
        return [row[0] for row in rows]

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()


def _best(points: Mapping[int, float], limit: int) -> list[int]:
    newest_first = sorted(points, reverse=True)
    return sorted(newest_first, key=points.__getitem__, reverse=True)[:limit]


def _rarity(total: int, count: int) -> float:
    return math.log1p((max(total - count, 0) + 0.5) / (count + 0.5))


def _fts_weight(total: int, count: int) -> float:
    # Another process may add rows between the two counts.
    weight = math.log((max(total - count, 0) + 0.5) / (count + 0.5))
    return weight if weight > 0 else _MIN_FTS_WEIGHT


def _affordable(counts: Sequence[int], budget: int) -> int:
    """Return how many of the terms, rarest first, fit the budget."""
    return sum(spent <= budget for spent in accumulate(counts))


def _paired(pair: Pair) -> str:
    # A pair counts only in the item's own text, not in its neighbours'.
    return f"{_OWN_COLUMNS} : {_quoted(f'{pair.first} {pair.second}')}"


def _quoted(term: str) -> str:
    """Quote a term for FTS5, so that nothing in it is an operator or a column."""
    return '"' + term.replace('"', '""') + '"'
