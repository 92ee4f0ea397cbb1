"""Finding by words in FTS5, as BM25 should be.

FTS5's own `bm25()` gives every word that stands in half of the rows or more a weight of nothing,
which in a small store is most words. So each term is scored by itself, FTS5's weight is divided
out again, and Lucene's, which never reaches zero, is put in its place.

Reading the rows of a term takes 0.1 µs a row, scoring them 1 µs and more, so that common words
alone could cost a pack its 50 ms. Hence the rarest terms choose the candidates, as many as a
budget of rows allows, and the commoner ones are scored among these only; the commonest just count
as present, which is what BM25 says of one mention in a row of average length. Where even the rarest
is common, those of its rows are scored that the other terms speak for, and the newest of them; and
how common a common term is, is told by the newest rows. All this is of what the view shows. While
all rows fit the budget, as in most files, nothing is lost.

Looking up the scope of each row would cost several times as much as reading the rows. So what a
view shows is kept as one byte a row, and FTS5's rows are tested against that. Neither scope nor
domain of a row ever changes, and no number is used twice: such a mask only grows, and loses what is
forgotten.
"""

import json
import math
import sqlite3
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final

from mcpp_agents.memory.search.terms import Pair, Query
from mcpp_agents.memory.storage.engine import Evidence, Matches, PairMatch

# Other terms that are asked which of a common one's rows are worth scoring.
_OTHERS: Final = 4
# Passing over a row that the view does not show, again for each other term, costs this part of
# scoring one.
_PASSED_OVER: Final = 0.3
# So many rows are looked up one by one as fast as by reading all that match.
_FEW: Final = 8
# Weights of title, content, keys, near, grams: a title says what an item is about, a neighbour
# only what was being talked about.
_WEIGHTS: Final = "2.0, 1.0, 2.0, 0.15, 1.0"
_NAMING: Final = "{title keys}"
_OWN: Final = "{title content keys grams}"
# What FTS5 takes for the weight of a term in half of the rows or more.
_LEAST_WEIGHT: Final = 1e-6

# Views whose masks are kept, each a byte a row.
_MAX_MASKS: Final = 16

# A condition on `memory m` that keeps a query inside a view, and its values.
Within = tuple[str, Sequence[Any]]
# One byte for each number of a row, 1 where a view shows it.
Mask = bytes


@dataclass(frozen=True)
class Budget:
    """How many rows may be looked at for a goal."""

    scored_rows: int = 2_500  # to find candidates: about 5 ms
    common_rows: int = 5_000  # scoring reads all rows of a term; from here on that takes too long
    sampled_rows: int = 10_000  # the newest rows, which tell how common a term is
    enough: int = 30  # if so many of them hold it


_BUDGET: Final = Budget()


@dataclass(slots=True)
class _GrowingMask:
    """What a view shows as far as it was looked at, and which forgettings it has heard of."""

    shown: bytearray = field(default_factory=bytearray)
    marked: int = 0


class WordIndex:
    """The table `memory_index` of a connection, which its owner guards with a lock."""

    def __init__(self, connection: sqlite3.Connection, budget: Budget = _BUDGET) -> None:
        self._connection = connection
        self._budget = budget
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

    def purge(self) -> None:
        """Leave no word of removed rows in the index, by writing all of it anew."""
        self._connection.execute("INSERT INTO memory_index (memory_index) VALUES ('optimize')")

    def match(self, query: Query, mask: Mask | None, limit: int) -> Matches:
        """The best rows that a mask shows; without one, of the whole file.

        What is rare is counted in the view: by a word's weight one could else tell whether others
        have it among their own.
        """
        [(total, last)] = self._all(
            "SELECT items, (SELECT coalesce(max(seq), 0) FROM memory) FROM tally"
        )
        seen_total = total if mask is None else mask.count(1)
        counts = {term: self._estimate(_quoted(term), None, last) for term in query.terms}
        seen = counts
        if mask is not None:
            found = [term for term, count in counts.items() if count]
            seen = {term: self._estimate(_quoted(term), mask, last) for term in found}
        rarity = {term: _rarity(seen_total, count) for term, count in seen.items() if count}
        cost = {t: seen[t] + int(_PASSED_OVER * (counts[t] - seen[t])) for t in rarity}
        ordered = sorted(rarity, key=cost.__getitem__)
        standing = self._standing(mask)
        words: defaultdict[int, float] = defaultdict(float)
        holders: dict[str, set[int]] = {}

        def take(term: str, rows: Sequence[tuple[int, float]], weight: float) -> None:
            holders[term] = {seq for seq, _ in rows}
            for seq, points in rows:
                words[seq] += weight * points

        def score(term: str, among: Mask | None) -> None:
            weight = rarity[term] / _fts_weight(total, self._count(_quoted(term)))
            take(term, self._bm25(_quoted(term), among), weight)

        leading = _affordable([cost[term] for term in ordered], self._budget.scored_rows)
        for term in ordered[:leading]:
            score(term, standing)
        while len(words) < limit and leading < len(ordered):
            among = standing
            if cost[ordered[leading]] > self._budget.common_rows:
                likeliest = self._likeliest(ordered[leading:], rarity, standing)
                among = _mask(words.keys() | likeliest)
            score(ordered[leading], among)
            leading += 1
        rest = ordered[leading:]
        leaders = " OR ".join(map(_quoted, ordered[:leading]))
        close = _best(words, limit * 4)
        for term in rest:
            if counts[term] >= self._budget.common_rows:
                present = self._rows(f"({leaders}) AND {_quoted(term)}", _mask(close))
                take(term, [(seq, 1.0) for seq in present], rarity[term])
        chosen = _best({seq: words[seq] for seq in close}, limit * 2)
        for term in rest:
            if counts[term] < self._budget.common_rows:
                score(term, _mask(chosen))
        best = _best({seq: words[seq] for seq in chosen}, limit)
        pairs = []
        for pair in query.pairs:
            both = holders.get(pair.first, set()) & holders.get(pair.second, set()) & set(best)
            if seqs := self._saying(pair, both, leaders):
                count = self._estimate(_paired(pair), mask, last)
                pairs.append(PairMatch(pair, _rarity(seen_total, count), seqs))
        return Matches({seq: words[seq] for seq in best}, holders, pairs, rarity)

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

    def _likeliest(
        self, terms: Sequence[str], rarity: Mapping[str, float], standing: Mask | None
    ) -> list[int]:
        """Of the rows of the first term, which are many, those that the other terms speak for, or
        that have it in their title or keys; among equals the newest."""
        expression = _quoted(terms[0])
        points = dict.fromkeys(self._newest(expression, standing), 0.0)
        named = f"{_NAMING} : {expression}"
        others = [(term, _quoted(term)) for term in terms[1 : 1 + _OTHERS]]
        for term, held in ((terms[0], named), *others):
            rows = self._newest(f"{expression} AND {held}", standing)
            for seq in rows:
                points[seq] = points.get(seq, 0.0) + rarity[term]
            # Where enough rows hold both, the other terms are asked about those.
            if len(rows) == self._budget.scored_rows and held != named:
                expression += f" AND {held}"
        return _best(points, self._budget.scored_rows)

    def _saying(self, pair: Pair, seqs: AbstractSet[int], leaders: str) -> frozenset[int]:
        """Which of these rows, all found by the leaders, hold a pair."""
        if len(seqs) <= _FEW:
            return frozenset(self._looked_up(_paired(pair), list(seqs)) if seqs else ())
        return frozenset(self._rows(f"({leaders}) AND {_paired(pair)}", _mask(seqs)))

    def _standing(self, mask: Mask | None) -> Mask | None:
        """What a mask shows without the superseded."""
        superseded = self._all("SELECT seq FROM memory WHERE superseded > 0")
        if not superseded:
            return mask
        if mask is None:
            last = self._all("SELECT max(seq) FROM memory")[0][0]
            mask = b"\x01" * last
        shown = bytearray(mask)
        for (seq,) in superseded:
            if seq <= len(shown):
                shown[seq - 1] = 0
        return bytes(shown)

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

    def _count(self, expression: str, mask: Mask | None = None, since: int = 0) -> int:
        where, values = _shown(mask, since)
        sql = f"SELECT count(*) FROM memory_index WHERE memory_index MATCH ?{where}"
        return int(self._all(sql, expression, *values)[0][0])

    def _estimate(self, expression: str, mask: Mask | None, last: int) -> int:
        """How many rows match; where they are many, as the newest rows tell."""
        since = last - self._budget.sampled_rows
        if since > self._budget.sampled_rows:
            sample = self._count(expression, mask, since)
            if sample >= self._budget.enough:
                ratio = last / self._budget.sampled_rows
                if mask is not None:
                    ratio = mask.count(1) / mask.count(1, since)
                return round(sample * ratio)
        return self._count(expression, mask)

    def _bm25(self, expression: str, mask: Mask | None) -> list[Any]:
        where, values = _shown(mask)
        return self._all(
            f"SELECT rowid, -bm25(memory_index, {_WEIGHTS})"
            f" FROM memory_index WHERE memory_index MATCH ?{where}",
            expression,
            *values,
        )

    def _rows(self, expression: str, mask: Mask | None) -> list[int]:
        where, values = _shown(mask)
        sql = f"SELECT rowid FROM memory_index WHERE memory_index MATCH ?{where}"
        return [row[0] for row in self._all(sql, expression, *values)]

    def _newest(self, expression: str, mask: Mask | None) -> list[int]:
        where, values = _shown(mask)
        rows = self._all(
            f"SELECT rowid FROM memory_index WHERE memory_index MATCH ?{where}"
            " ORDER BY rowid DESC LIMIT ?",
            expression,
            *values,
            self._budget.scored_rows,
        )
        return [row[0] for row in rows]

    def _looked_up(self, expression: str, seqs: Sequence[int]) -> list[int]:
        """Which of a few rows match, each found by itself."""
        rows = self._all(
            "SELECT rowid FROM memory_index WHERE memory_index MATCH ?"
            " AND rowid IN (SELECT value FROM json_each(?))",
            expression,
            json.dumps(list(seqs)),
        )
        return [row[0] for row in rows]

    def _all(self, sql: str, *values: Any) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()


def _mask(seqs: Collection[int]) -> Mask:
    shown = bytearray(max(seqs, default=0))
    for seq in seqs:
        shown[seq - 1] = 1
    return bytes(shown)


def _shown(mask: Mask | None, since: int = 0) -> tuple[str, Sequence[Any]]:
    """The condition that keeps a query to what a mask shows after a row, and its values."""
    if mask is None:
        return (" AND rowid > ?", [since]) if since else ("", [])
    first, last = max(since, mask.find(1)) + 1, mask.rfind(1) + 1
    where = " AND rowid BETWEEN ? AND ? AND substr(?, memory_index.rowid, 1) = x'01'"
    return where, [first, last, mask]


def _best(points: Mapping[int, float], limit: int) -> list[int]:
    newest_first = sorted(points, reverse=True)
    return sorted(newest_first, key=points.__getitem__, reverse=True)[:limit]


def _rarity(total: int, count: int) -> float:
    return math.log1p((max(total - count, 0) + 0.5) / (count + 0.5))


def _fts_weight(total: int, count: int) -> float:
    # Another process may add rows between the two counts.
    weight = math.log((max(total - count, 0) + 0.5) / (count + 0.5))
    return weight if weight > 0 else _LEAST_WEIGHT


def _affordable(counts: Sequence[int], budget: int) -> int:
    """How many of the terms, rarest first, keep within the budget."""
    return sum(spent <= budget for spent in accumulate(counts))


def _paired(pair: Pair) -> str:
    # What a neighbour says in one breath is not said here.
    return f"{_OWN} : {_quoted(f'{pair.first} {pair.second}')}"


def _quoted(term: str) -> str:
    """A term as FTS5 reads it: in quotes nothing is an operator or a column."""
    return '"' + term.replace('"', '""') + '"'
