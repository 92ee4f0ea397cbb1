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

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from mcpp_agents.memory.search.terms import Pair, Query
from mcpp_agents.memory.storage.engine import Evidence, Matches, PairMatch
from mcpp_agents.memory.storage.fts_table import FtsTable, quoted
from mcpp_agents.memory.storage.view_masks import Mask, mask_of

# Other terms that help to select the rows of a common term.
_MAX_OTHER_TERMS: Final = 4
# The cost of skipping a row that the view does not show, as a fraction of scoring it.
_SKIP_COST: Final = 0.3
# Up to this many rows, single lookups are as fast as reading all rows that match.
_FEW_ROWS: Final = 8
_TITLE_COLUMNS: Final = "{title keys}"
_OWN_COLUMNS: Final = "{title content keys grams}"
# The weight that FTS5 gives to a term in half of the rows or more.
_MIN_FTS_WEIGHT: Final = 1e-6


@dataclass(frozen=True)
class RowBudget:
    """Limits on the rows read for one goal."""

    scored_rows: int = 2_500  # to select candidates: about 5 ms
    common_rows: int = 5_000  # terms with more rows are too slow to score in full
    sampled_rows: int = 4_000  # newest rows, from which frequencies are estimated
    min_sample: int = 30  # matching rows that make an estimate good enough
    paired_rows: int = 10_000  # newest rows, in which pairs are counted


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
    """Search by words in one file. The connection's owner holds the lock during every call."""

    def __init__(self, table: FtsTable, budget: RowBudget = _BUDGET) -> None:
        self._table = table
        self._budget = budget

    def match(self, query: Query, mask: Mask | None, limit: int) -> Matches:
        """Return the best rows that a mask shows; a mask of None shows the whole file."""
        frequencies = self._frequencies(query.terms, mask)
        search = _WordSearch(self._table, self._budget, frequencies, self._without_superseded(mask))
        leading = search.select_candidates(limit)
        best = search.refine(leading, limit)
        leaders = " OR ".join(map(quoted, search.terms[:leading]))
        both = {pair: search.rows_with_both(pair).intersection(best) for pair in query.pairs}
        pairs = []
        for pair, seqs in self._rows_with_pairs(both, leaders).items():
            count = self._estimate_pair(pair, mask, frequencies.last, len(seqs))
            pairs.append(PairMatch(pair, rarity_of(frequencies.visible, count), seqs))
        words = {seq: search.points[seq] for seq in best}
        return Matches(words, search.holders, pairs, frequencies.rarity, frequencies.visible)

    def _frequencies(self, terms: Sequence[str], mask: Mask | None) -> _Frequencies:
        """Count the terms.

        Rarity is counted in the view: otherwise the weight of a word would reveal whether it occurs
        in rows that the caller may not see (M-12).
        """
        [(total, last)] = self._table.all(
            "SELECT items, (SELECT coalesce(max(seq), 0) FROM memory) FROM tally"
        )
        visible = total if mask is None else mask.count(1)
        if 2 * visible >= total:  # what most of the file contains, tells about all of it
            seen = {term: self._estimate(quoted(term), mask, last) for term in terms}
            counts = {term: round(count * total / max(visible, 1)) for term, count in seen.items()}
        else:
            counts = {term: self._estimate(quoted(term), None, last) for term in terms}
            found = [term for term, count in counts.items() if count]
            seen = {term: self._estimate(quoted(term), mask, last) for term in found}
        rarity = {term: rarity_of(visible, count) for term, count in seen.items() if count}
        cost = {t: seen[t] + int(_SKIP_COST * (counts[t] - seen[t])) for t in rarity}
        return _Frequencies(total, visible, last, counts, rarity, cost)

    def evidence(self, matches: Matches, seqs: Sequence[int]) -> dict[int, Evidence]:
        """Return which terms these rows contain, and which only their neighbours contain."""
        found = {seq: Evidence() for seq in seqs}
        unmatched = [seq for seq in seqs if seq not in matches.words]
        shared = set(self._table.rows_with_neighbours(seqs))
        for term, holders in matches.holders.items():
            holding = set(seqs) & holders
            if unmatched:
                holding.update(self._table.look_up(quoted(term), unmatched))
            uncertain = sorted(shared & holding)
            own = (
                self._table.look_up(f"{_OWN_COLUMNS} : {quoted(term)}", uncertain)
                if uncertain
                else []
            )
            for seq in holding:
                is_own = seq not in shared or seq in own
                (found[seq].terms if is_own else found[seq].nearby).append(term)
        return found

    def _rows_with_pairs(
        self, both: Mapping[Pair, AbstractSet[int]], leaders: str
    ) -> dict[Pair, frozenset[int]]:
        """Return which rows, of those with both words of a pair, contain the pair.

        All rows are matched by the leading terms. Most contain no pair: finding those that contain
        any takes two thirds of the time of asking for each pair.
        """
        likely: AbstractSet[int] = set().union(*both.values())
        if len(likely) > _FEW_ROWS:
            any_pair = " OR ".join(_paired(pair) for pair, seqs in both.items() if seqs)
            likely = set(self._table.rows(f"({leaders}) AND ({any_pair})", mask_of(likely)))
        found = {
            pair: self._rows_with_pair(pair, seqs & likely, leaders) for pair, seqs in both.items()
        }
        return {pair: seqs for pair, seqs in found.items() if seqs}

    def _rows_with_pair(self, pair: Pair, seqs: AbstractSet[int], leaders: str) -> frozenset[int]:
        if len(seqs) <= _FEW_ROWS:
            return frozenset(self._table.look_up(_paired(pair), list(seqs)) if seqs else ())
        return frozenset(self._table.rows(f"({leaders}) AND {_paired(pair)}", mask_of(seqs)))

    def _without_superseded(self, mask: Mask | None) -> Mask | None:
        """Return a mask without the superseded rows."""
        superseded = self._table.all("SELECT seq FROM memory WHERE superseded > 0")
        if not superseded:
            return mask
        if mask is None:
            last = self._table.all("SELECT max(seq) FROM memory")[0][0]
            mask = b"\x01" * last
        visible = bytearray(mask)
        for (seq,) in superseded:
            if seq <= len(visible):
                visible[seq - 1] = 0
        return bytes(visible)

    def _estimate(self, expression: str, mask: Mask | None, last: int) -> int:
        """Return how many rows match; a large number is estimated from the newest rows."""
        since = last - self._budget.sampled_rows
        if since > self._budget.sampled_rows:
            sample = self._table.count(expression, mask, since)
            if sample >= self._budget.min_sample:
                return round(sample * _ratio(mask, since, last))
        return self._table.count(expression, mask)

    def _estimate_pair(self, pair: Pair, mask: Mask | None, last: int, known: int) -> int:
        """Return how many rows contain a pair; in a large file, an estimate.

        A pair is rare, but both of its words may be common: counting it in all rows takes several
        milliseconds.
        """
        since = last - self._budget.paired_rows
        if since <= self._budget.paired_rows:
            return self._table.count(_paired(pair), mask)
        sample = self._table.count(_paired(pair), mask, since)
        return max(known, round(sample * _ratio(mask, since, last)))


class _WordSearch:
    """One search, in passes over fewer and fewer rows.

    1. The rarest terms, as many as the budget allows, are scored in all rows: their rows are the
       candidates. While these are too few, the next term is scored as well; one that is too common
       to be scored in full, only among the candidates and its most promising rows.
    2. Of the remaining terms, those too common to be scored add a constant to the best candidates
       that contain them, four times as many as wanted.
    3. The others are scored among the best of these, twice as many as wanted.

    Owns the points of each row, and the rows in which each term was found.
    """

    def __init__(
        self, table: FtsTable, budget: RowBudget, frequencies: _Frequencies, current: Mask | None
    ) -> None:
        self._table = table
        self._budget = budget
        self._frequencies = frequencies
        self._current = current
        self.terms = sorted(frequencies.rarity, key=frequencies.cost.__getitem__)
        self.points: defaultdict[int, float] = defaultdict(float)
        self.holders: dict[str, set[int]] = {}

    def select_candidates(self, limit: int) -> int:
        """Run pass 1 and return how many terms have been scored, the rarest ones."""
        costs = [self._frequencies.cost[term] for term in self.terms]
        leading = _affordable(costs, self._budget.scored_rows)
        for term in self.terms[:leading]:
            self._score(term, self._current)
        while len(self.points) < limit and leading < len(self.terms):
            among = self._current
            if costs[leading] > self._budget.common_rows:
                promising = self._promising_rows(self.terms[leading:])
                among = mask_of(self.points.keys() | promising)
            self._score(self.terms[leading], among)
            leading += 1
        return leading

    def refine(self, leading: int, limit: int) -> list[int]:
        """Run passes 2 and 3 with the remaining terms, and return the best rows."""
        leaders = " OR ".join(map(quoted, self.terms[:leading]))
        rest = self.terms[leading:]
        close = _best(self.points, limit * 4)
        for term in filter(self._is_common, rest):
            present = self._table.rows(f"({leaders}) AND {quoted(term)}", mask_of(close))
            self._add(term, [(seq, 1.0) for seq in present], self._frequencies.rarity[term])
        chosen = _best({seq: self.points[seq] for seq in close}, limit * 2)
        for term in rest:
            if not self._is_common(term):
                self._score(term, mask_of(chosen))
        return _best({seq: self.points[seq] for seq in chosen}, limit)

    def rows_with_both(self, pair: Pair) -> set[int]:
        """Return the rows in which both words of a pair were found."""
        return self.holders.get(pair.first, set()) & self.holders.get(pair.second, set())

    def _is_common(self, term: str) -> bool:
        return self._frequencies.counts[term] >= self._budget.common_rows

    def _score(self, term: str, among: Mask | None) -> None:
        count = self._table.count(quoted(term))
        weight = self._frequencies.rarity[term] / _fts_weight(self._frequencies.total, count)
        self._add(term, self._table.bm25(quoted(term), among), weight)

    def _add(self, term: str, rows: Sequence[tuple[int, float]], weight: float) -> None:
        self.holders[term] = {seq for seq, _ in rows}
        for seq, points in rows:
            self.points[seq] += weight * points

    def _promising_rows(self, terms: Sequence[str]) -> list[int]:
        """Select rows of the first term, which has many.

        Rows that contain other terms, or this one in their title or keys, come first; among
        equals, the newest.
        """
        expression = quoted(terms[0])
        points = dict.fromkeys(self._newest(expression), 0.0)
        in_title = f"{_TITLE_COLUMNS} : {expression}"
        others = [(term, quoted(term)) for term in terms[1 : 1 + _MAX_OTHER_TERMS]]
        for term, held in ((terms[0], in_title), *others):
            rows = self._newest(f"{expression} AND {held}")
            for seq in rows:
                points[seq] = points.get(seq, 0.0) + self._frequencies.rarity[term]
            # If enough rows contain both, the remaining terms select among those.
            if len(rows) == self._budget.scored_rows and held != in_title:
                expression += f" AND {held}"
        return _best(points, self._budget.scored_rows)

    def _newest(self, expression: str) -> list[int]:
        return self._table.newest(expression, self._current, self._budget.scored_rows)


def _best(points: Mapping[int, float], limit: int) -> list[int]:
    newest_first = sorted(points, reverse=True)
    return sorted(newest_first, key=points.__getitem__, reverse=True)[:limit]


def rarity_of(total: int, count: int) -> float:
    """Return the weight of a term by Lucene's formula."""
    return math.log1p((max(total - count, 0) + 0.5) / (count + 0.5))


def _fts_weight(total: int, count: int) -> float:
    # Another process may add rows between the two counts.
    weight = math.log((max(total - count, 0) + 0.5) / (count + 0.5))
    return weight if weight > 0 else _MIN_FTS_WEIGHT


def _ratio(mask: Mask | None, since: int, last: int) -> float:
    """Return how many times as many rows a view has as it has after a row."""
    if mask is None:
        return last / (last - since)
    return mask.count(1) / max(mask.count(1, since), 1)


def _affordable(counts: Sequence[int], budget: int) -> int:
    """Return how many of the terms, rarest first, fit the budget."""
    return sum(spent <= budget for spent in accumulate(counts))


def _paired(pair: Pair) -> str:
    # A pair counts only in the item's own text, not in its neighbours'.
    return f"{_OWN_COLUMNS} : {quoted(f'{pair.first} {pair.second}')}"
