"""Parsing of text into search terms: words, pairs of adjacent words, and character pairs.

Words are split as the engine's tokenizer splits them. Pairs of adjacent words ("boundary layer")
are evidence of their own. Chinese, Japanese, Korean, Thai and similar scripts put no spaces between
words, so their runs are cut into overlapping pairs of characters, in the text and in the goal.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Final, TypeVar

from mcpp.scripts import UNSPACED
from mcpp_agents.memory.search.times import NamedTime, named_times

_Found = TypeVar("_Found", bound=Hashable)

# Bounds the cost of a long goal.
MAX_TERMS: Final = 48

_RUN = re.compile(f"[{UNSPACED}]+")
_WORD = re.compile(rf"[^\W_{UNSPACED}]+")
# What is no word in ASCII becomes a space.
_WORDS_ONLY = {code: " " for code in range(128) if not chr(code).isalnum()}
# The ends of "it's", "don't" and "we'll" are not words.
_CLITIC = re.compile(r"(?<=\w['\u2019])(?:s|t|d|m|re|ve|ll)\Z", re.IGNORECASE)
# Two linear patterns: one for runs that contain such a character takes the square of their length.
_LETTERS = re.compile(rf"(?:[^\W_]|[{UNSPACED}])+")
_UNSPACED_CHARACTER = re.compile(f"[{UNSPACED}]")

# English words without information. In other languages the rarity weights take care of them.
_STOP_WORDS: Final = """
    a about an and any are as at be been being but by can could did do does for from had has have
    he her his how i if in into is it its me my no not of on or our should she so some such than
    that the their them then there these they this to us was we were what when where which who
    whom why will with would you your
"""
_STOP: Final = frozenset(_STOP_WORDS.split())


@dataclass(frozen=True)
class Pair:
    """Two adjacent words, and how the goal spells them."""

    first: str
    second: str
    shown: str


@dataclass(frozen=True)
class Query:
    """The search terms of a goal: its words, with those of the times that its dates mean."""

    terms: tuple[str, ...]
    pairs: tuple[Pair, ...]
    runs: tuple[str, ...] = ()  # of scripts without spaces, whose terms are character pairs
    dates: tuple[NamedTime, ...] = ()
    words: tuple[str, ...] = ()  # as the goal spells them, also those of its dates

    def __str__(self) -> str:
        return " ".join(self.words)

    @property
    def plain_words(self) -> tuple[str, ...]:
        """The terms that are words, of no date and no run."""
        dated = {term for one in self.dates for term in one.time.terms}
        words = (term for term in self.terms if not _UNSPACED_CHARACTER.match(term))
        return tuple(word for word in words if word not in dated)


def parse(goal: str) -> Query:
    """Return the terms and pairs of a goal, without duplicates."""
    text = unicodedata.normalize("NFKC", goal)
    found = [
        (m[0].lower(), m.start(), m.end())
        for m in _WORD.finditer(text)
        if not _CLITIC.match(text, m.start(), m.end())
    ]
    # In a heading, or in capitals, every word has one.
    has_names = any(text[start].islower() for _, start, _ in found)
    significant = [
        (word, start, end)
        for word, start, end in found
        if word not in _STOP or (has_names and _is_name(text, start, end))
    ] or found
    dates = named_times(text)
    kept = {start for _, start, _ in significant}.difference(*(one.places for one in dates))
    pairs = {
        (a, b): Pair(a, b, text[start:end])
        for (a, start, between), (b, after, end) in pairwise(found)
        if start in kept and after in kept and len(text[between:after]) <= 2
    }
    characters = _gram_list(text, single=False)
    terms = [term for one in dates for term in one.time.terms]
    terms += [word for word, start, _ in significant if start in kept]
    return Query(
        _bounded(terms + characters),
        _bounded(pairs.values()),
        _bounded(_RUN.findall(text)),
        _bounded(dates),
        _bounded([word for word, _, _ in significant] + characters),
    )


def _bounded(found: Iterable[_Found]) -> tuple[_Found, ...]:
    return tuple(dict.fromkeys(found))[:MAX_TERMS]


def _is_name(text: str, start: int, end: int) -> bool:
    """Return whether a word has a capital though it begins no sentence: "What did Will buy?"."""
    before = text[max(start - 2, 0) : start].rstrip(" ")[-1:]
    return text[start:end].istitle() and end > start + 1 and (before.isalnum() or before == ",")


def words(text: str, letters: int | None = None) -> dict[str, int]:
    """Return the significant words of a text, or their first letters, with their counts."""
    text = text.lower()
    # Most texts are ASCII, and splitting them at spaces takes a fifth of the time.
    found = text.translate(_WORDS_ONLY).split() if text.isascii() else _WORD.findall(text)
    return Counter([word[:letters] for word in found if word not in _STOP])


def spans(run: str, held: Container[str]) -> list[str]:
    """Return the longest parts of a run whose character pairs are all in `held`."""
    found: list[str] = []
    last = None  # position of the last pair of the latest part
    for position in range(len(run) - 1):
        if run[position : position + 2] in held:
            if last == position - 1:
                found[-1] += run[position + 1]
            else:
                found.append(run[position : position + 2])
            last = position
    return found


def uncovered(run: str, asked: Container[str], held: Container[str]) -> list[str]:
    """Return the parts of a run, longer than a character, of which no pair in `asked` is in `held`.

    A pair across two words that are held is no part: both of its characters are covered.
    """
    if len(run) == 1:
        return [run] if run in asked and run not in held else []
    pairs = [run[i : i + 2] for i in range(len(run) - 1)]
    is_missing = [pair in asked and pair not in held for pair in pairs]
    # The first and the last character are in one pair only.
    bare = [all(is_missing[max(0, i - 1) : i + 1]) for i in range(len(run))]
    parts = (
        "".join(c for c, _ in part)
        for is_bare, part in groupby(zip(run, bare, strict=True), key=itemgetter(1))
        if is_bare
    )
    return [part for part in parts if len(part) > 1]


def grams(text: str) -> str:
    """Return additional index terms that FTS5's tokenizer does not produce.

    They are the character pairs of scripts without spaces, words embedded in them (the tokenizer
    reads `用户auth服务` as one word), and words that NFKC normalization changes.
    """
    if text.isascii():
        return ""
    plain = unicodedata.normalize("NFKC", text)
    mixed = filter(_UNSPACED_CHARACTER.search, _LETTERS.findall(plain))
    inside = [word for run in mixed for word in _WORD.findall(run)]
    normalized = set(_WORD.findall(plain)).difference(_WORD.findall(text), inside)
    return " ".join([*_gram_list(plain, single=True), *inside, *sorted(normalized)])


def _gram_list(text: str, *, single: bool) -> list[str]:
    """Return the pairs of each run; single characters too if asked for or if it has only one."""
    found: list[str] = []
    for run in _RUN.findall(text):
        found += [run[i : i + 2] for i in range(len(run) - 1)]
        if single or len(run) == 1:
            found += run
    return found
