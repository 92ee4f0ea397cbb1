"""From people's text to what the index is asked for: words, pairs of words, character pairs.

Words are what the engine's tokenizer sees too. Pairs of neighbouring words ("boundary layer") are
evidence of their own. Chinese, Japanese, Korean, Thai and their like put no spaces between words,
so their runs are cut into overlapping pairs of characters, in the text and in the goal alike.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

# A page of text as a goal costs no more than a paragraph.
MAX_TERMS: Final = 48

_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u3040-\u30ff\u31f0-\u31ff"  # Hiragana, Katakana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Han
    "\uac00-\ud7af\u1100-\u11ff"  # Hangul
    "\U00020000-\U0003ffff"  # rarer Han
)
_RUN = re.compile(f"[{_UNSPACED}]+")
_WORD = re.compile(rf"[^\W_{_UNSPACED}]+")
# What an apostrophe leaves of "it's", "don't" and "we'll" is no word.
_CLITIC = re.compile(r"(?<=\w['\u2019])(?:s|t|d|m|re|ve|ll)\Z", re.IGNORECASE)
_MIXED = re.compile(rf"(?:[^\W_]*[{_UNSPACED}][^\W_]*)+")

# Words that say nothing about a goal's subject. Other languages are left to the rarity weights.
_STOP_WORDS: Final = """
    a about an and any are as at be been being but by can could did do does for from had has have
    he her his how i if in into is it its me my no not of on or our should she so some such than
    that the their them then there these they this to us was we were what when where which who
    whom why will with would you your
"""
_STOP: Final = frozenset(_STOP_WORDS.split())


@dataclass(frozen=True)
class Pair:
    """Two neighbouring words, with the goal's own way to write them."""

    first: str
    second: str
    shown: str


@dataclass(frozen=True)
class Query:
    """A goal as the index is asked for it."""

    terms: tuple[str, ...]
    pairs: tuple[Pair, ...]
    runs: tuple[str, ...] = ()  # of unspaced scripts, whose terms are pairs of characters

    def __str__(self) -> str:
        return " ".join(self.terms)


def parse(goal: str) -> Query:
    """The words and pairs of a goal, the first of each kept."""
    text = unicodedata.normalize("NFKC", goal)
    found = [
        (m[0].lower(), m.start(), m.end())
        for m in _WORD.finditer(text)
        if not _CLITIC.match(text, m.start(), m.end())
    ]
    telling = [each for each in found if each[0] not in _STOP] or found
    kept = {start for _, start, _ in telling}
    pairs = {
        (a, b): Pair(a, b, text[start:end])
        for (a, start, between), (b, after, end) in pairwise(found)
        if start in kept and after in kept and len(text[between:after]) <= 2
    }
    terms = dict.fromkeys([word for word, _, _ in telling] + _grams(text, single=False))
    runs = tuple(dict.fromkeys(_RUN.findall(text)))
    return Query(tuple(terms)[:MAX_TERMS], tuple(pairs.values())[:MAX_TERMS], runs[:MAX_TERMS])


def words(text: str) -> dict[str, int]:
    """The words of a text that say something about its subject, and how often it has them."""
    found = Counter(_WORD.findall(text.lower()))
    return {word: count for word, count in found.items() if word not in _STOP}


def spans(run: str, held: Container[str]) -> list[str]:
    """The longest parts of a run whose pairs of characters are all held."""
    found: list[str] = []
    last = None  # the place of the pair that the latest part ends with
    for place in range(len(run) - 1):
        if run[place : place + 2] in held:
            if last == place - 1:
                found[-1] += run[place + 1]
            else:
                found.append(run[place : place + 2])
            last = place
    return found


def grams(text: str) -> str:
    """What the tokenizer cannot make of a text, for the index: the pairs of unspaced scripts,
    the words written into them (`用户auth服务` is one word to it), and those in other forms."""
    if text.isascii():
        return ""
    plain = unicodedata.normalize("NFKC", text)
    inside = [word for mixed in _MIXED.findall(plain) for word in _WORD.findall(mixed)]
    reformed = set(_WORD.findall(plain)).difference(_WORD.findall(text), inside)
    return " ".join([*_grams(plain, single=True), *inside, *sorted(reformed)])


def _grams(text: str, *, single: bool) -> list[str]:
    """Pairs of each run; single characters too where asked, or where a run has no more."""
    found: list[str] = []
    for run in _RUN.findall(text):
        found += [run[i : i + 2] for i in range(len(run) - 1)]
        if single or len(run) == 1:
            found += run
    return found
