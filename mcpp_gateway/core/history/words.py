"""Words: what of an envelope can be searched, and whether it contains the words of a query.

A text is folded (compatibility forms, case, accents) and cut into units: a word, or one character
of a script that puts no spaces between words (Chinese, Japanese, Korean, Thai, Lao, Burmese,
Khmer). A part of a query is a sequence of units that have to be adjacent; the last may be a prefix.
So `退款` is found within `我要退款了`, and `re-fund` where the two words follow each other.

An index needs terms. Those of a text are its units and the pairs of adjacent single characters;
`Words.terms` are the terms that every text has which matches. An index that uses them finds too
much at most, and `Words.match` decides.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import msgspec

from mcpp.scripts import UNSPACED

# Of one envelope, this much can be searched: folding more would take too long at once.
MAX_CHARACTERS: Final = 32_768
# Folding makes up to eighteen characters of one; of the result no more is searched.
_MAX_FOLDED: Final = 2 * MAX_CHARACTERS
MAX_QUERY_UNITS: Final = 64

# Signs that are part of a word but no letters: those of Indic scripts and Tibetan, and combining
# marks that folding keeps.
_SIGNS: Final = "\u0900-\u0963\u0966-\u0df3\u0f18-\u0f39\u0f71-\u0f84\u0f90-\u0fbc\u1ab0-\u1aff"
_SEPARATOR: Final = "\x1f"  # between the strings of a payload: no sequence crosses it
_UNIT: Final = re.compile(rf"(?:[^\W_{UNSPACED}]|[{_SIGNS}])+|[{UNSPACED}]|{_SEPARATOR}")
_ACCENTS: Final = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
_IS_UNSPACED: Final = re.compile(f"[{UNSPACED}]")
_PART: Final = re.compile(r'"([^"]*)(?:"(\*?)|\Z)|([^\s"]+)')


class _SearchedEnvelope(msgspec.Struct):
    payload: Any = None
    context: Any = None


# Floats are not searched, and some take msgspec 8 µs each to convert (P-41).
_decode: Final = msgspec.json.Decoder(_SearchedEnvelope, float_hook=bool).decode


def searchable(text: bytes) -> str:
    """Return what of an envelope can be searched: its payload, and the title of its context.

    Of the payload these are the strings and the whole numbers.
    """
    try:
        found = _decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return ""
    title = _title(found.context)
    if title is None and type(found.payload) is str:
        return found.payload[:MAX_CHARACTERS]
    return _SEPARATOR.join(_strings(found.payload if title is None else [title, found.payload]))


def _title(context: object) -> str | None:
    """Return the title that an envelope gives its context (C-20)."""
    metadata = context.get("metadata") if type(context) is dict else None
    title = metadata.get("title") if type(metadata) is dict else None
    return title if type(title) is str else None


def _strings(payload: object) -> Iterator[str]:
    """Yield the strings and whole numbers of a JSON value in their order."""
    room = MAX_CHARACTERS
    waiting: list[object] = [payload]
    while waiting and room > 0:
        value = waiting.pop()
        if type(value) is str:
            yield value[:room]
            room -= len(value) + 1
        elif type(value) is dict:
            waiting += reversed(value.values())
        elif type(value) is list:
            waiting += reversed(value)
        elif type(value) is int:
            yield str(value)
            room -= 20


def units(text: str) -> list[str]:
    """Return the units of a text, folded, in their order."""
    return _UNIT.findall(text.lower() if text.isascii() else _fold(text))


def index_terms(text: str) -> str:
    """Return the terms of a text, separated by what is neither a letter nor a digit.

    An ASCII text is returned as it is: its reader cuts and folds it.
    """
    if text.isascii():
        return text
    found = units(text)
    pairs = [a + b for a, b in pairwise(found) if _is_single(a) and _is_single(b)]
    return " ".join([*found, *pairs])


@dataclass(frozen=True, slots=True)
class _Part:
    """Adjacent units; if `prefix`, the last is only the beginning of a word."""

    units: tuple[str, ...]
    prefix: bool

    def needle(self) -> str:
        return f" {' '.join(self.units)}{'' if self.prefix else ' '}"

    def terms(self) -> Iterator[tuple[str, bool]]:
        *whole, last = self.units
        if self.prefix and not _is_single(last):
            yield last, True
        else:
            whole.append(last)
        pairs = [a + b for a, b in pairwise(whole) if _is_single(a) and _is_single(b)]
        covered = set("".join(pairs))
        yield from ((unit, False) for unit in (*whole, *pairs) if unit not in covered)


@dataclass(frozen=True, slots=True)
class Words:
    """The parts of a query, all of which have to occur. Without parts nothing matches."""

    parts: tuple[_Part, ...]

    @classmethod
    def parse(cls, query: str) -> "Words":
        """Parse words, "quoted phrases" and prefixes*. Everything else separates words.

        Raises ValueError if there are too many.
        """
        parts = []
        for found in _PART.finditer(query):
            quoted, star, bare = found.groups()
            several = units(bare if quoted is None else quoted)
            several = [unit for unit in several if unit != _SEPARATOR]
            if several:
                prefix = bare.endswith("*") if quoted is None else star == "*"
                parts.append(_Part(tuple(several), prefix))
        if sum(len(part.units) for part in parts) > MAX_QUERY_UNITS:
            raise ValueError(f"has more than {MAX_QUERY_UNITS} words")
        return cls(tuple(dict.fromkeys(parts)))

    def match(self, text: bytes) -> bool:
        """Return whether an envelope contains all parts."""
        if not self.parts:
            return False
        line = f" {' '.join(units(searchable(text)))} "
        return all(part.needle() in line for part in self.parts)

    def terms(self) -> tuple[tuple[str, bool], ...]:
        """Return the terms that every matching text has, each with whether it is a prefix."""
        return tuple(dict.fromkeys(term for part in self.parts for term in part.terms()))


def _fold(text: str) -> str:
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text)[:_MAX_FOLDED])
    return unicodedata.normalize("NFKC", plain).casefold()


def _is_single(unit: str) -> bool:
    return len(unit) == 1 and _IS_UNSPACED.match(unit) is not None
