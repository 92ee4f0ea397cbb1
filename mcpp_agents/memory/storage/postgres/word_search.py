"""Search by words in the table `posting`, with the BM25 of FTS5 and the rarity of a file's engine.

A term's postings are adjacent in the index, by scope, so that a view of thousands of scopes reads
them in one pass. The rarest terms, as many as a budget of postings allows, select the candidates;
the others are added up among the best of these. If these are too few, the newest items with the
next terms are candidates too, again within a budget, and those that contain the next two. In a view
that fits the budget, as most do, the result is exact.
How common a term is, is counted in the view (M-12), or in a large one estimated from its newest
items.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple

from mcpp_agents.memory.search.terms import Pair, Query
from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.engine import Evidence, Matches, PairMatch
from mcpp_agents.memory.storage.postgres.database import PostgresDatabase, sql_array
from mcpp_agents.memory.storage.postgres.reach import Reach
from mcpp_agents.memory.storage.postgres.words import pair_number, word_number
from mcpp_agents.memory.storage.word_index import K1, B, rarity_of

# The points of a posting `p` for a term; a placeholder is the average length. Without the casts,
# it would be computed with decimal numbers, which is slow.
_POINTS: Final = (
    f"wanted.rarity * {K1 + 1}::float8 * p.frequency"
    f" / (p.frequency + {K1 * (1 - B)}::float8 + {K1 * B}::float8 * p.length / ?::float8)"
)
# The terms of a goal, each with a bit for its place among them.
_WANTED: Final = "unnest(?::bigint[], ?::float8[], ?::bigint[]) AS wanted (word, rarity, place)"


@dataclass(frozen=True)
class PostingBudget:
    """Limits on the postings read for one goal."""

    scored: int = 5_000  # to select candidates
    counted: int = 10_000  # items in which terms are counted exactly; more are sampled
    sampled: int = 5_000  # newest items from which frequencies are estimated
    min_sample: int = 30  # matching items that make an estimate good enough
    newest: int = 30_000  # of common terms in the newest items
    joined: int = 20_000  # of two common terms that are joined
    paired: int = 500  # items of a pair's rarer word in which the pair is counted


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a goal with its number, its count and its rarity in the view."""

    text: str
    number: int
    count: int
    rarity: float


class _Scored(NamedTuple):
    """The points of an item, and which terms it contains: a bit for the place of each."""

    points: float
    held: int


class _Scoring(NamedTuple):
    """The terms of a goal, rarest first, and the average length of an item."""

    terms: Sequence[_Term]
    average: float

    def wanted(self, start: int, end: int | None = None) -> tuple[str, ...]:
        """Return the columns of `_WANTED` for some of the terms."""
        chosen = range(len(self.terms))[start:end]
        return (
            sql_array(self.terms[place].number for place in chosen),
            sql_array(self.terms[place].rarity for place in chosen),
            sql_array(1 << place for place in chosen),
        )


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
        visible = reach.visible
        terms = self._known_terms(query.terms, reach)
        if not terms:
            return Matches({}, {}, [], {}, visible)
        scoring = _Scoring(terms, reach.tokens / max(visible, 1))
        leading = _affordable(terms, self._budget.scored)
        found = self._best(scoring, leading, reach, limit)
        if len(found) < limit and leading < len(terms):
            share = min(1.0, self._budget.scored / terms[leading].count)  # of the items, the newest
            since = reach.after(share) if share < 1 else 0
            read = max(leading + 1, _affordable(terms, self._budget.newest / share))
            found |= self._best(scoring, read, reach, limit, since)
            found |= self._with_both(scoring, leading, reach, limit)
        best = sorted(found, key=lambda seq: (-found[seq].points, -seq))[:limit]
        holders = {
            term.text: {seq for seq in best if found[seq].held & 1 << place}
            for place, term in enumerate(terms)
        }
        pairs = self._pairs(query.pairs, {term.text: term for term in terms}, holders, reach)
        matched = [PairMatch(pair, rarity_of(visible, count), seqs) for pair, count, seqs in pairs]
        rarities = {term.text: term.rarity for term in terms}
        rarity = {text: rarities[text] for text in query.terms if text in rarities}
        return Matches({seq: found[seq].points for seq in best}, holders, matched, rarity, visible)

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

    def _known_terms(self, terms: Sequence[str], reach: Reach) -> list[_Term]:
        """Return the terms that occur in the view, rarest first."""
        numbers = self._numbers(terms)
        counts = self._counts(sorted(set(numbers.values())), reach)
        known = [
            _Term(text, number, counts[number], rarity_of(reach.visible, counts[number]))
            for text, number in numbers.items()
            if counts[number]
        ]
        return sorted(known, key=lambda term: term.count)

    def _counts(self, numbers: Sequence[int], reach: Reach) -> dict[int, int]:
        """Return how many items contain each word; a large number is estimated."""
        visible = reach.visible
        where, values = reach.posting_condition()
        count = f"SELECT count(*) AS items FROM posting p WHERE p.word = wanted.word{where}"
        if visible <= self._budget.counted:
            rows = self._database.all(
                f"SELECT word, ({count}) FROM unnest(?::bigint[]) AS wanted (word)",
                *values,
                sql_array(numbers),
            )
            return {word: int(items) for word, items in rows}
        inside, inside_values = reach.condition("m", by_scope=True)
        start = reach.after(self._budget.sampled / visible)
        rows = self._database.all(
            "WITH sample AS MATERIALIZED (SELECT greatest(count(*), 1) AS items FROM memory m"
            f" WHERE m.seq > ? AND m.superseded = 0{inside})"
            " SELECT word, CASE WHEN newest.items >= ? THEN"
            " newest.items * ?::float8 / (SELECT items FROM sample)"
            # A word that is rare among the newest may be common among the older ones.
            f" ELSE (SELECT count(*) FROM (SELECT FROM posting p WHERE p.word = wanted.word{where}"
            " LIMIT ?) AS read) END FROM unnest(?::bigint[]) AS wanted (word),"
            f" LATERAL ({count} AND p.seq > ?) AS newest",
            start,
            *inside_values,
            self._budget.min_sample,
            visible,
            *values,
            max(
                self._budget.counted,
                round(self._budget.min_sample * visible / self._budget.sampled),
            ),
            sql_array(numbers),
            *values,
            start,
        )
        return {word: round(items) for word, items in rows}

    # Scores

    def _best(
        self, scoring: "_Scoring", leading: int, reach: Reach, limit: int, since: int = 0
    ) -> dict[int, _Scored]:
        """Return the best items by the leading terms, of those after a number, fully scored."""
        if not leading:
            return {}
        where, values = reach.posting_condition()
        # The other terms may change the order: they are added up among twice as many.
        wanted = limit if leading == len(scoring.terms) else limit * 2
        return self._scored(
            f"SELECT p.scope, p.seq, sum({_POINTS}) AS points, bit_or(wanted.place) AS held"
            # The offset keeps this from becoming a join that reads all postings of the scopes.
            f" FROM {_WANTED}, LATERAL (SELECT p.scope, p.seq, p.frequency, p.length FROM posting p"
            f"  WHERE p.word = wanted.word AND p.seq > ?{where} OFFSET 0) AS p"
            " GROUP BY p.scope, p.seq ORDER BY points DESC, p.seq DESC LIMIT ?",
            [scoring.average, *scoring.wanted(0, leading), since, *values, wanted],
            scoring,
            leading,
        )

    def _with_both(
        self, scoring: "_Scoring", leading: int, reach: Reach, limit: int
    ) -> dict[int, _Scored]:
        """Return items that contain the next two terms, unless these are too common."""
        two = scoring.terms[leading : leading + 2]
        if len(two) < 2 or two[0].count + two[1].count > self._budget.joined:
            return {}
        where, values = reach.posting_condition()
        return self._scored(
            "SELECT p.scope, p.seq, 0 AS points, 0 AS held"
            " FROM posting p JOIN posting other USING (scope, seq)"
            f" WHERE p.word = ? AND other.word = ? AND other.scope = ANY (?){where} LIMIT ?",
            [two[0].number, two[1].number, reach.scopes, *values, limit * 2],
            scoring,
            0,
        )

    def _scored(
        self, candidates: str, values: Sequence[Any], scoring: "_Scoring", leading: int
    ) -> dict[int, _Scored]:
        """Return candidates, which a query selects by the leading terms, scored by all terms.

        An item contains few of the other terms. The list of its words says which, in one look-up.
        """
        rows = self._database.all(
            "SELECT c.seq, c.points + coalesce(rest.points, 0), c.held | coalesce(rest.held, 0)"
            # The empty array is added to read a long list once, not for each term.
            f" FROM ({candidates}) AS c, LATERAL (SELECT w.words || '{{}}'::bigint[] AS words"
            "  FROM word_list w WHERE w.seq = c.seq OFFSET 0) AS list, LATERAL ("
            f"  SELECT sum({_POINTS}) AS points, bit_or(wanted.place) AS held"
            f"  FROM {_WANTED} JOIN posting p"
            "  ON p.scope = c.scope AND p.word = wanted.word AND p.seq = c.seq"
            "  WHERE wanted.word = ANY (list.words)) AS rest",
            *values,
            scoring.average,
            *scoring.wanted(leading),
        )
        return {seq: _Scored(points, held) for seq, points, held in rows}

    def _postings(self, columns: str, numbers: Iterable[int], seqs: Sequence[int]) -> list[Any]:
        """Return the postings of words in items, each found by the item's own scope."""
        return self._database.all(
            f"SELECT {columns} FROM word_list w, unnest(?::bigint[]) AS wanted (word), posting p"
            " WHERE w.seq = ANY (?)"
            " AND p.scope = w.scope AND p.word = wanted.word AND p.seq = w.seq",
            sql_array(sorted(set(numbers))),
            sql_array(seqs),
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
            sql_array(numbers),
            sql_array(sorted(seqs)),
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
            sql_array(rarer),
            sql_array(term.number for term in rarer.values()),
            *values,
        )
        return {
            pair: round(found * max(rarer[pair].count, read) / max(read, 1))
            for pair, read, found in rows
        }


def _affordable(terms: Sequence[_Term], budget: float) -> int:
    """Return how many of the terms, rarest first, fit a budget of postings."""
    return sum(spent <= budget for spent in accumulate(term.count for term in terms))
