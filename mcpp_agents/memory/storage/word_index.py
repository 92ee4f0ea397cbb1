"""Search by words in FTS5, with corrected BM25 weights.

FTS5's own `bm25()` gives a weight near zero to every term that occurs in half of the rows or more,
which in a small store is most terms; and it takes the weight, and the average length, from the
whole file. So each term is scored on its own, the frequency is computed from FTS5's score, and
scored again: with Lucene's weight, which never reaches zero, and the average length of the view.

Reading the rows of a term takes 0.1 µs per row, scoring them 1 µs and more, so common words alone
could use up a pack's 50 ms. Hence the rarest terms select the candidates, as many as a budget of
rows allows. The others are looked for in the word lists of the best candidates, and so are pairs.
If even the rarest term is common, only those of its rows are scored that other terms also match,
and the newest ones. How common such a term is, is estimated from the newest rows. While all rows
fit the budget, as in most files, the result is exact.

What is found, in which order and with which points, depends only on rows that the view shows
(M-12): counts, samples and the average length are of these rows. Other rows only cost time.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import Final

from mcpp_agents.memory.search.terms import Pair, Query
from mcpp_agents.memory.storage.engine import Evidence, Matches, PairMatch
from mcpp_agents.memory.storage.fts_table import (
    FtsTable,
    WordList,
    frequency_in,
    is_own,
    length_of,
    quoted,
)
from mcpp_agents.memory.storage.view_masks import Mask, mask_of, newest_start

# Other terms that help to select the rows of a common term.
_MAX_OTHER_TERMS: Final = 4
_TITLE_COLUMNS: Final = "{title keys}"
_OWN_COLUMNS: Final = "{title content keys grams}"
# As in FTS5's bm25(): the saturation of frequency, and the weight of length.
K1: Final = 1.2
B: Final = 0.75
_SHORT: Final = K1 * (1 - B)
# The weight that FTS5 gives to a term in half of the rows or more.
_MIN_FTS_WEIGHT: Final = 1e-6


@dataclass(frozen=True)
class RowBudget:
    """Limits on the rows read for one goal."""

    scored_rows: int = 1_000  # to select candidates: about 3 ms
    common_rows: int = 5_000  # terms with more rows are too slow to score in full
    sampled_rows: int = 2_000  # newest rows, from which frequencies are estimated
    min_sample: int = 30  # matching rows that make an estimate good enough


_BUDGET: Final = RowBudget()


@dataclass(frozen=True, slots=True)
class _Frequencies:
    """How often the terms of a query occur in the view, and how long its rows are."""

    visible: int  # rows in the view
    average: float  # words of a row in the view
    file_average: float  # words of a row in the file
    total: int  # rows in the file
    counts: Mapping[str, int]
    rarity: Mapping[str, float]  # of the terms that occur


class WordIndex:
    """Search by words in one file. The connection's owner holds the lock during every call."""

    def __init__(self, table: FtsTable, budget: RowBudget = _BUDGET) -> None:
        self._table = table
        self._budget = budget

    def match(self, query: Query, mask: Mask, average: float, limit: int) -> Matches:
        """Return the best rows that a mask shows; `average` is the length of its rows."""
        frequencies = self._frequencies(query.terms, mask, average)
        search = _WordSearch(self._table, self._budget, frequencies, mask)
        best = search.refine(search.select_candidates(limit), limit)
        pairs = []
        for pair, seqs in self._rows_with_pairs(query.pairs, search, best).items():
            count = max(len(seqs), self._estimate_pair(pair, mask, frequencies))
            pairs.append(PairMatch(pair, rarity_of(frequencies.visible, count), seqs))
        words = {seq: search.points[seq] for seq in best}
        return Matches(words, search.holders, pairs, frequencies.rarity, frequencies.visible)

    def _frequencies(self, terms: Sequence[str], mask: Mask, average: float) -> _Frequencies:
        """Count the terms in the view.

        Otherwise scores would reveal whether a word occurs in rows that the caller may not see, as
        lengths of other rows would reveal how long they are (M-12).
        """
        total, words = self._table.totals()
        visible = mask.count(1)
        start_of = cache(partial(newest_start, mask))
        counts = {t: self._estimate(quoted(t), mask, visible, start_of) for t in terms}
        rarity = {term: rarity_of(visible, count) for term, count in counts.items() if count}
        file_average = max(words, 1) / max(total, 1)
        return _Frequencies(visible, average, file_average, total, counts, rarity)

    def evidence(self, matches: Matches, seqs: Sequence[int]) -> dict[int, Evidence]:
        """Return which terms these rows contain, and which only their neighbours contain."""
        found = {seq: Evidence() for seq in seqs}
        terms = list(matches.rarity)
        codes = list(zip(terms, self._table.codes(terms), strict=True))
        for seq, words in self._table.word_lists(seqs).items():
            for term, code in codes:
                if code in words:
                    own, nearby = found[seq].terms, found[seq].nearby
                    (own if is_own(words, code) else nearby).append(term)
        return found

    def _rows_with_pairs(
        self, pairs: Sequence[Pair], search: "_WordSearch", best: Sequence[int]
    ) -> dict[Pair, frozenset[int]]:
        """Return which of the best rows contain each pair, of the pairs that any contains."""
        both = {pair: search.rows_with_both(pair).intersection(best) for pair in pairs}
        lists = search.word_lists(set().union(*both.values()))
        codes = self._table.codes([f"{pair.first} {pair.second}" for pair in pairs])
        found = {
            pair: frozenset(seq for seq in seqs if seq in lists and is_own(lists[seq], code))
            for (pair, seqs), code in zip(both.items(), codes, strict=True)
        }
        return {pair: seqs for pair, seqs in found.items() if seqs}

    def _estimate(
        self, expression: str, mask: Mask, visible: int, start_of: Callable[[int], int]
    ) -> int:
        """Return how many rows match; a large number is estimated from the newest rows."""
        sampled = self._budget.sampled_rows
        while 2 * sampled < visible:
            found = self._table.count(expression, mask, start_of(sampled))
            if found >= self._budget.min_sample:
                return round(found * visible / sampled)
            sampled *= 4
        return self._table.count(expression, mask)

    def _estimate_pair(self, pair: Pair, mask: Mask, of: _Frequencies) -> int:
        """Return how many rows contain a pair; in a large view, an estimate.

        A pair is rare, but both of its words may be common: counting it in all rows takes several
        milliseconds.
        """
        sampled = 2 * self._budget.sampled_rows
        if of.visible <= 2 * sampled:
            return self._table.count(_paired(pair), mask)
        found = self._table.count(_paired(pair), mask, newest_start(mask, sampled))
        return round(found * of.visible / sampled)


class _WordSearch:
    """One search, in two passes.

    1. The rarest terms, as many as the budget allows, are scored in all rows: their rows are the
       candidates. While these are too few, the next term is scored as well; one that is too common
       to be scored in full, only among the candidates and its most promising rows.
    2. The other terms are scored among the best of these, four times as many as wanted.

    Owns the points of each row, and the rows in which each term was found.
    """

    def __init__(
        self, table: FtsTable, budget: RowBudget, frequencies: _Frequencies, mask: Mask
    ) -> None:
        self._table = table
        self._budget = budget
        self._frequencies = frequencies
        self._mask = mask
        self._lists: dict[int, WordList] = {}
        self.terms = sorted(frequencies.rarity, key=frequencies.counts.__getitem__)
        self.points: defaultdict[int, float] = defaultdict(float)
        self.holders: dict[str, set[int]] = {}

    def select_candidates(self, limit: int) -> int:
        """Run pass 1 and return how many terms have been scored, the rarest ones."""
        counts = [self._frequencies.counts[term] for term in self.terms]
        leading = _affordable(counts, self._budget.scored_rows)
        for term in self.terms[:leading]:
            self._score(term, self._mask)
        while len(self.points) < limit and leading < len(self.terms):
            among = self._mask
            if counts[leading] > self._budget.common_rows:
                promising = self._promising_rows(self.terms[leading:])
                among = mask_of(self.points.keys() | promising)
            self._score(self.terms[leading], among)
            leading += 1
        return leading

    def refine(self, leading: int, limit: int) -> list[int]:
        """Run pass 2 with the remaining terms, and return the best rows."""
        rest = self.terms[leading:]
        if not rest:
            return _best(self.points, limit)
        close = _best(self.points, limit * 4)
        average = self._frequencies.average
        lists = [
            (seq, words, K1 * (1 - B + B * length_of(words) / average))
            for seq, words in self.word_lists(close).items()
        ]
        for term, code in zip(rest, self._table.codes(rest), strict=True):
            first = code[0]  # found in half the time; most lists do not have it
            found = [
                (seq, frequency * (K1 + 1) / (frequency + damping))
                for seq, words, damping in lists
                if first in words and (frequency := frequency_in(words, code))
            ]
            self._add(term, found, self._frequencies.rarity[term])
        return _best({seq: self.points[seq] for seq in close}, limit)

    def rows_with_both(self, pair: Pair) -> set[int]:
        """Return the rows in which both words of a pair were found."""
        return self.holders.get(pair.first, set()) & self.holders.get(pair.second, set())

    def word_lists(self, seqs: Collection[int]) -> dict[int, WordList]:
        """Return the word lists of these rows; each is read once."""
        unknown = [seq for seq in seqs if seq not in self._lists]
        if unknown:
            self._lists |= self._table.word_lists(unknown)
        return {seq: self._lists[seq] for seq in seqs if seq in self._lists}

    def _score(self, term: str, among: Mask) -> None:
        of = self._frequencies
        weight = _fts_weight(of.total, self._table.count_all(quoted(term)))
        long, fts_long = K1 * B / of.average, K1 * B / of.file_average
        # FTS5's score is weight * saturation, where frequency / (frequency + damping) is
        # saturation / (K1 + 1). A frequency is a multiple of the lowest column's weight: rounding
        # leaves no trace of other rows.
        found = []
        for seq, points, length in self._table.bm25(quoted(term), among):
            saturation = points / weight
            exact = saturation * (_SHORT + fts_long * length) / (K1 + 1 - saturation)
            frequency = max(round(2 * exact), 1) / 2
            found.append((seq, frequency * (K1 + 1) / (frequency + _SHORT + long * length)))
        self._add(term, found, of.rarity[term])

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
        return self._table.newest(expression, self._mask, self._budget.scored_rows)


def _best(points: Mapping[int, float], limit: int) -> list[int]:
    newest_first = sorted(points, reverse=True)
    return sorted(newest_first, key=points.__getitem__, reverse=True)[:limit]


def rarity_of(total: int, count: int) -> float:
    """Return the weight of a term by Lucene's formula."""
    return math.log1p((max(total - count, 0) + 0.5) / (count + 0.5))


def _fts_weight(total: int, count: int) -> float:
    weight = math.log((total - count + 0.5) / (count + 0.5))
    return weight if weight > 0 else _MIN_FTS_WEIGHT


def _affordable(counts: Sequence[int], budget: int) -> int:
    """Return how many of the terms, rarest first, fit the budget."""
    return sum(spent <= budget for spent in accumulate(counts))


def _paired(pair: Pair) -> str:
    # A pair counts only in the item's own text, not in its neighbours'.
    return f"{_OWN_COLUMNS} : {quoted(f'{pair.first} {pair.second}')}"
