"""Search by words in the table `posting`, with the BM25 of FTS5 and the rarity of a file's engine.

A term's postings are adjacent in the index, for each scope. The rarest terms, as many as a budget
of postings allows, select the candidates; the others are added up among the best of these. If these
are too few, the newest items with the next term are candidates too, and those that also contain the
term after it. In a view that fits the budget, as most do, the result is exact. How common a term
is, is counted in the view (M-12), or in a large one estimated from its newest items.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from mcpp_agents.memory.search.terms import Pair, Query
from mcpp_agents.memory.storage.engine import Evidence, Matches, PairMatch
from mcpp_agents.memory.storage.postgres.database import PostgresDatabase
from mcpp_agents.memory.storage.postgres.reach import Reach
from mcpp_agents.memory.storage.postgres.words import Tokenizer, pair_number, word_number
from mcpp_agents.memory.storage.word_index import rarity_of

# As in FTS5's bm25(): the saturation of frequency, and the weight of length.
_K1: Final = 1.2
_B: Final = 0.75


@dataclass(frozen=True)
class PostingBudget:
    """Limits on the postings read for one goal."""

    scored: int = 5_000  # to select candidates
    counted: int = 10_000  # items in which terms are counted exactly; more are sampled
    sampled: int = 5_000  # newest items from which frequencies are estimated
    min_sample: int = 30  # matching items that make an estimate good enough
    joined: int = 20_000  # postings of two common terms that are joined
    paired: int = 500  # items of a pair's rarer word in which the pair is counted


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a goal with its number, its count and its rarity in the view."""

    text: str
    number: int
    count: int
    rarity: float


class PostingSearch:
    """Searches by words, inside a transaction."""

    def __init__(
        self,
        database: PostgresDatabase,
        tokenizer: Tokenizer,
        budget: PostingBudget | None = None,
    ) -> None:
        self._database = database
        self._tokenizer = tokenizer
        self._budget = budget or PostingBudget()

    def match(self, query: Query, reach: Reach, limit: int) -> Matches:
        """Return the best items of a view."""
        visible = self._visible(reach)
        terms = self._known_terms(query.terms, reach, visible)
        if not terms:
            return Matches({}, {}, [], {}, visible)
        average = reach.tokens / max(reach.items, 1)
        leading = self._affordable(terms)
        rest = terms[leading:]
        wanted = limit * 2 if rest else limit
        candidates = self._best(terms[:leading], reach, average, wanted)
        if len(candidates) < limit and rest:
            since = self._newest_since(rest[0], reach, visible)
            candidates += self._best(terms, reach, average, wanted, since)
            candidates += self._with_both(rest, reach, wanted)
            candidates = list(dict.fromkeys(candidates))
        points, holders = self._score(terms, candidates, average)
        best = sorted(points, key=lambda seq: (-points[seq], -seq))[:limit]
        chosen = set(best)
        holders = {term: seqs & chosen for term, seqs in holders.items()}
        pairs = self._pairs(query.pairs, {term.text: term for term in terms}, holders, reach)
        matched = [PairMatch(pair, rarity_of(visible, count), seqs) for pair, count, seqs in pairs]
        rarity = {term.text: term.rarity for term in terms}
        return Matches({seq: points[seq] for seq in best}, holders, matched, rarity, visible)

    def evidence(self, terms: Iterable[str], seqs: Sequence[int]) -> dict[int, Evidence]:
        """Return which terms these items contain, and which only their neighbours contain."""
        found = {seq: Evidence() for seq in seqs}
        numbers = self._numbers(list(terms))
        rows = self._postings("p.seq, p.word, p.own", numbers.values(), seqs)
        own = {(seq, word): is_own for seq, word, is_own in rows}
        for term, number in numbers.items():
            for seq, evidence in found.items():
                if (seq, number) in own:
                    (evidence.terms if own[seq, number] else evidence.nearby).append(term)
        return found

    # Terms and how common they are

    def _numbers(self, terms: Sequence[str]) -> dict[str, int]:
        """Return the number of each term that has one."""
        split = self._tokenizer.split(terms)
        return {
            # A word that FTS5 splits is a phrase there.
            term: word_number(words[0]) if len(words) == 1 else pair_number(*words[:2])
            for term, words in zip(terms, split, strict=True)
            if words
        }

    def _visible(self, reach: Reach) -> int:
        if reach.domain is None:
            return reach.items
        where, values = reach.condition("m")
        sql = f"SELECT count(*) FROM memory m WHERE m.superseded = 0{where}"
        return int(self._database.one(sql, *values)[0])

    def _known_terms(self, terms: Sequence[str], reach: Reach, visible: int) -> list[_Term]:
        """Return the terms that occur in the view, rarest first."""
        numbers = self._numbers(terms)
        counts = self._counts(sorted(set(numbers.values())), reach, visible)
        known = [
            _Term(text, number, counts[number], rarity_of(visible, counts[number]))
            for text, number in numbers.items()
            if counts[number]
        ]
        return sorted(known, key=lambda term: term.count)

    def _counts(self, numbers: Sequence[int], reach: Reach, visible: int) -> dict[int, int]:
        """Return how many items contain each word; a large number is estimated."""
        if visible <= self._budget.counted:
            return self._count(numbers, reach, 0)
        since = self._since(self._budget.sampled, reach, visible)
        where, values = reach.condition("m")
        sql = f"SELECT count(*) FROM memory m WHERE m.seq > ? AND m.superseded = 0{where}"
        sampled = int(self._database.one(sql, since, *values)[0])
        counts = self._count(numbers, reach, since)
        rare = [number for number, count in counts.items() if count < self._budget.min_sample]
        ratio = visible / max(sampled, 1)
        estimates = {number: round(count * ratio) for number, count in counts.items()}
        return estimates | self._count(rare, reach, 0)

    def _count(self, numbers: Sequence[int], reach: Reach, since: int) -> dict[int, int]:
        where, values = reach.posting_condition()
        rows = self._database.all(
            "SELECT word, (SELECT count(*) FROM posting p"
            f" WHERE p.word = wanted.word AND p.seq > ?{where}) FROM unnest(?::bigint[])"
            " AS wanted (word)",
            since,
            *values,
            list(numbers),
        )
        return {word: int(count) for word, count in rows}

    def _since(self, items: int, reach: Reach, visible: int) -> int:
        """Return a number after which about so many items of the view follow."""
        if visible <= items:
            return 0
        [first, last] = self._database.one(
            "SELECT coalesce(min(ends.first), 0), coalesce(max(ends.last), 0)"
            " FROM unnest(?::int[]) AS wanted (scope), LATERAL ("
            "  SELECT min(seq) AS first, max(seq) AS last FROM memory"
            "  WHERE memory.scope = wanted.scope AND superseded = 0) ends",
            reach.scopes,
        )
        return int(last - (last - first) * items / visible)

    def _affordable(self, terms: Sequence[_Term]) -> int:
        """Return how many of the terms, rarest first, fit the budget."""
        total = 0
        for position, term in enumerate(terms):
            total += term.count
            if total > self._budget.scored:
                return position
        return len(terms)

    def _newest_since(self, term: _Term, reach: Reach, visible: int) -> int:
        share = min(1.0, term.count / max(visible, 1))
        return self._since(round(self._budget.scored / max(share, 1e-9)), reach, visible)

    # Scores

    def _best(
        self, terms: Sequence[_Term], reach: Reach, average: float, limit: int, since: int = 0
    ) -> list[int]:
        """Return the best items by these terms, among those after a number."""
        if not terms:
            return []
        where, values = reach.posting_condition()
        rows = self._database.all(
            f"SELECT p.seq FROM unnest(?::bigint[], ?::float8[]) AS wanted (word, rarity)"
            f" JOIN posting p ON p.word = wanted.word WHERE p.seq > ?{where}"
            " GROUP BY p.seq ORDER BY sum(wanted.rarity * p.frequency"
            f" / (p.frequency + {_K1} * ({1 - _B} + {_B} * p.length / ?::float8))) DESC, p.seq DESC"
            " LIMIT ?",
            [term.number for term in terms],
            [term.rarity for term in terms],
            since,
            *values,
            max(average, 1e-9),
            limit,
        )
        return [row[0] for row in rows]

    def _with_both(self, terms: Sequence[_Term], reach: Reach, limit: int) -> list[int]:
        """Return items that contain the two rarest of these terms, unless these are too common."""
        if len(terms) < 2 or terms[0].count + terms[1].count > self._budget.joined:
            return []
        where, values = reach.posting_condition()
        rows = self._database.all(
            "SELECT p.seq FROM posting p JOIN posting other USING (scope, seq)"
            f" WHERE p.word = ? AND other.word = ? AND other.scope = ANY (?){where} LIMIT ?",
            terms[0].number,
            terms[1].number,
            reach.scopes,
            *values,
            limit,
        )
        return [row[0] for row in rows]

    def _score(
        self, terms: Sequence[_Term], seqs: Sequence[int], average: float
    ) -> tuple[dict[int, float], dict[str, set[int]]]:
        """Return the points of each item, and which items contain each term."""
        numbers = [term.number for term in terms]
        rows = self._postings("p.word, p.seq, p.frequency, p.length", numbers, seqs)
        points = dict.fromkeys(seqs, 0.0)
        holders: dict[str, set[int]] = {}
        for term in terms:
            holders[term.text] = set()
            for word, seq, frequency, length in rows:
                if word == term.number:
                    damping = _K1 * (1 - _B + _B * length / max(average, 1e-9))
                    points[seq] += term.rarity * frequency * (_K1 + 1) / (frequency + damping)
                    holders[term.text].add(seq)
        return points, holders

    def _postings(self, columns: str, numbers: Iterable[int], seqs: Sequence[int]) -> list[Any]:
        """Return the postings of words in items, each found by the item's own scope."""
        return self._database.all(
            f"SELECT {columns} FROM word_list w, unnest(?::bigint[]) AS wanted (word), posting p"
            " WHERE w.seq = ANY (?)"
            " AND p.scope = w.scope AND p.word = wanted.word AND p.seq = w.seq",
            sorted(set(numbers)),
            list(seqs),
        )

    # Pairs of adjacent words

    def _pairs(
        self,
        pairs: Sequence[Pair],
        terms: Mapping[str, _Term],
        holders: Mapping[str, AbstractSet[int]],
        reach: Reach,
    ) -> list[tuple[Pair, int, frozenset[int]]]:
        """Return the pairs that the best items contain, with their counts in the view."""
        known = [pair for pair in pairs if pair.first in terms and pair.second in terms]
        split = self._tokenizer.split([f"{pair.first} {pair.second}" for pair in known])
        numbers = {
            pair_number(*words[:2]): pair
            for pair, words in zip(known, split, strict=True)
            if len(words) > 1 and holders[pair.first] & holders[pair.second]
        }
        if not numbers:
            return []
        seqs = set().union(*(holders[p.first] & holders[p.second] for p in numbers.values()))
        rows = self._database.all(
            "SELECT w.seq, wanted.pair FROM word_list w, unnest(?::bigint[]) AS wanted (pair)"
            " WHERE w.seq = ANY (?) AND wanted.pair = ANY (w.pairs)",
            list(numbers),
            sorted(seqs),
        )
        found: dict[int, set[int]] = {}
        for seq, number in rows:
            found.setdefault(number, set()).add(seq)
        rarer = {
            number: min(terms[pair.first], terms[pair.second], key=lambda term: term.count)
            for number, pair in numbers.items()
            if number in found
        }
        counts = self._pair_counts(rarer, reach)
        return [
            (numbers[number], max(counts[number], len(seqs)), frozenset(seqs))
            for number, seqs in found.items()
        ]

    def _pair_counts(self, rarer: Mapping[int, _Term], reach: Reach) -> dict[int, int]:
        """Return how many items contain each pair, counted among those with its rarer word."""
        where, values = reach.posting_condition()
        rows: list[Any] = self._database.all(
            "SELECT wanted.pair, sample.read, sample.found"
            " FROM unnest(?::bigint[], ?::bigint[]) AS wanted (pair, word), LATERAL ("
            "  SELECT count(*) AS read,"
            "  count(*) FILTER (WHERE wanted.pair = ANY (w.pairs)) AS found"
            "  FROM (SELECT p.seq FROM posting p"
            f"  WHERE p.word = wanted.word{where} LIMIT {self._budget.paired}) AS part"
            "  JOIN word_list w USING (seq)) sample",
            list(rarer),
            [term.number for term in rarer.values()],
            *values,
        )
        return {
            pair: round(found * max(rarer[pair].count, read) / max(read, 1))
            for pair, read, found in rows
        }
