"""The words of items as the database knows them: a hash of 64 bits for each.

It needs no table of words, and a `forget` leaves none behind.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise, starmap
from typing import Final

from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.fts_table import COLUMN_WEIGHTS

_NEAR: Final = "near"


@dataclass(slots=True)
class WordCounts:
    """The words of one item: weighted frequencies, its own words, and pairs of adjacent ones."""

    frequencies: dict[int, float] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)
    pairs: set[int] = field(default_factory=set)
    length: int = 0


def count_words(tokenizer: Tokenizer, rows: Iterable[Sequence[str]]) -> list[WordCounts]:
    """Return the words of rows, each with a text for every column of the word index."""
    texts = [text for row in rows for text in row]
    split = iter(tokenizer.split(texts))
    return [
        _counted(dict(zip(COLUMN_WEIGHTS, columns, strict=True)))
        for columns in zip(*[split] * len(COLUMN_WEIGHTS), strict=True)
    ]


def _counted(columns: Mapping[str, Sequence[str]]) -> WordCounts:
    counts = WordCounts()
    for column, words in columns.items():
        numbers = list(map(word_number, words))
        weight = COLUMN_WEIGHTS[column]
        for number in numbers:
            counts.frequencies[number] = counts.frequencies.get(number, 0.0) + weight
        counts.length += len(numbers)
        if column != _NEAR:
            counts.own.update(numbers)
            counts.pairs.update(starmap(pair_number, pairwise(words)))
    return counts


@lru_cache(maxsize=100_000)
def word_number(word: str) -> int:
    """Return the number by which the database knows a word."""
    return _number(word)


def pair_number(first: str, second: str) -> int:
    """Return the number of a pair of adjacent words."""
    return _number(f"{first} {second}")


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)
