"""Token counts: an estimate without dependencies, or exact ones with the extra `tokens`.

The estimate assigns a class to every byte (vowel, consonant, capital, digit, space, …) and adds up
a price for each transition from one class to the next. This approximates a byte-pair vocabulary: a
word costs about one token and more if it is unusual, a digit about a third, and a change between
digits and letters starts a new token. The text is treated as one large integer: combined with
itself shifted by one byte, it contains every transition, so a message takes a microsecond or two.
Runs of one character, such as a rule or a progress bar, are found in the same way, because
vocabularies have long tokens for them. Characters beyond ASCII also have a price by script.

The prices are fitted to o200k over chat, articles and interface texts in thirty languages, code,
JSON, logs, identifiers, base64 and emoji. The total is mostly within 10 % and rarely off by more
than 20 %: classes do not show how well a vocabulary covers a language, and random letters look like
words. Traditional Chinese and LaTeX are underestimated by 30 %. Use it for budgets with some
margin; for a hard limit, count exactly.
"""

import base64
import binascii
import warnings
from collections.abc import Callable
from itertools import compress
from typing import Final
from zlib import adler32

__all__ = [
    "DEFAULT_IMAGE_TOKENS",
    "Counter",
    "chunks",
    "estimate",
    "exact",
    "image_size",
    "image_tokens",
]

Counter = Callable[[str], int]
"""A function that counts the tokens in a text. It must be pure."""

MAX_CHUNK_CHARS: Final = 50_000
"""bpe-openai rejects texts over 1 M characters and over 200,000 tokens; a character has at most
four bytes and a token at least one, so this many characters satisfy both."""

DEFAULT_IMAGE_TOKENS: Final = 1600
"""The maximum cost of an image after the API has scaled it down; used if its size is unknown."""

_PIXELS_PER_TOKEN: Final = 750
_MAX_SEGMENTS: Final = 256  # more than any accepted picture has: a segment may have 64 KiB
_SUMMED: Final = 256  # few enough bytes to stay below the modulus: five times as fast as `sum`


def estimate(text: str) -> int:
    """Return the approximate number of tokens in a text; at least one if it is not empty."""
    if not text:
        return 0
    data = text.encode("utf-8", "replace")
    steps = int.from_bytes(data.translate(_CLASSES), "big")
    steps |= (steps >> 8) << 4  # per byte, the previous class and its own, four bits each
    runs = _unlike(int.from_bytes(data, "big"), 8).to_bytes(len(data), "big")
    if 0 in runs:
        steps |= int.from_bytes(runs.translate(_RUNS), "big")
    price = _sum(steps.to_bytes(len(data), "big").translate(_PRICES))
    if len(data) > len(text):
        price += _script_price(text.encode("utf-16-be", "replace"))
    return max(1, round(price / 100))


def _script_price(units: bytes) -> int:
    """Return the price of characters by script, which is the first byte of each UTF-16 unit."""
    scripts = units[::2]
    prices = scripts.translate(_SCRIPT_PRICES, _FREE)
    unlike = _unlike(int.from_bytes(units, "big"), 16)
    runs = (unlike | unlike >> 8).to_bytes(len(units), "big")[1::2]  # both bytes of a unit
    if 0 not in runs:
        return _sum(prices)
    once = bytes(compress(scripts, runs)).translate(_SCRIPT_PRICES, _FREE)
    return _sum(once) + (len(prices) - len(once)) * _SCRIPT_RUN_PRICE


def _unlike(units: int, bits: int) -> int:
    """Return `units` with each unit of `bits` bits set to zero if it equals the four before it.

    The other units become any value except zero.
    """
    units ^= units >> bits  # equals the one before it,
    units |= units >> bits  # the two before it,
    return units | units >> 2 * bits  # the four before it


def _sum(prices: bytes) -> int:
    """Return the sum of the bytes, which is the lower half of Adler-32, modulo 65521."""
    if len(prices) <= _SUMMED:
        return (adler32(prices) & 0xFFFF) - 1
    parts = range(0, len(prices), _SUMMED)
    return sum([(adler32(prices[start : start + _SUMMED]) & 0xFFFF) - 1 for start in parts])


def exact(encoding: str = "o200k_base") -> Counter:
    """Return an exact counter for a vocabulary. It needs the extra `tokens` and works offline."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised by how it opens its own data
        try:
            from bpe_openai import get_encoding
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "exact counts need bpe-openai: pip install 'mcpp-pods[tokens]'"
            ) from None
        encode = get_encoding(encoding).encode_ordinary

    def count(text: str) -> int:
        return sum(len(encode(chunk)) for chunk in chunks(text))

    return count


def chunks(text: str, limit: int = MAX_CHUNK_CHARS) -> list[str]:
    """Split a text into pieces of at most `limit` characters, before a space where possible.

    Tokens end there, so the sum over the pieces is the count of the text.
    """
    pieces = []
    start = 0
    while len(text) - start > limit:
        end = text.rfind(" ", start + 1, start + limit)
        end = end if end > 0 else start + limit
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return pieces


def image_tokens(data: str) -> int:
    """Return the token cost of a base64 image, which depends on its area."""
    size = image_size(data)
    if size is None:
        return DEFAULT_IMAGE_TOKENS
    width, height = size
    return max(1, min(DEFAULT_IMAGE_TOKENS, width * height // _PIXELS_PER_TOKEN))


def image_size(data: str) -> tuple[int, int] | None:
    """Return the width and height of a base64 PNG, GIF, JPEG or WebP; None if it is invalid."""
    try:
        head = _bytes_at(data, 0, 30)
        if head.startswith(b"\x89PNG\r\n\x1a\n") and len(head) >= 24:
            return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
        if head[:6] in (b"GIF87a", b"GIF89a") and len(head) >= 10:
            return int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
        if head[:4] == b"RIFF" and head[8:12] == b"WEBP" and len(head) == 30:
            return _webp_size(head)
        return _jpeg_size(data) if head[:2] == b"\xff\xd8" else None
    except (binascii.Error, ValueError):
        return None


def _webp_size(head: bytes) -> tuple[int, int] | None:
    form, rest = head[12:16], int.from_bytes(head[20:], "little")
    if form == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        return rest >> 48 & 0x3FFF, rest >> 64 & 0x3FFF
    if form == b"VP8L" and head[20] == 0x2F:
        return (rest >> 8 & 0x3FFF) + 1, (rest >> 22 & 0x3FFF) + 1
    if form == b"VP8X":
        return (rest >> 32 & 0xFFFFFF) + 1, (rest >> 56) + 1
    return None


def _jpeg_size(data: str) -> tuple[int, int] | None:
    """Return the size from the start-of-frame segment."""
    at = 2
    for _ in range(_MAX_SEGMENTS):
        segment = _bytes_at(data, at, 9)
        if len(segment) < 9 or segment[0] != 0xFF:
            return None
        marker = segment[1]
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # those are tables
            return int.from_bytes(segment[7:9], "big"), int.from_bytes(segment[5:7], "big")
        else:
            at += 2 + int.from_bytes(segment[2:4], "big")
    return None


def _bytes_at(data: str, start: int, count: int) -> bytes:
    """Return some bytes of a base64 text without decoding the rest."""
    first, skipped = start // 3 * 4, start % 3
    piece = data[first : first + (skipped + count + 2) // 3 * 4]
    return base64.b64decode(piece + "=" * (-len(piece) % 4))[skipped : skipped + count]


_SIGNS: Final = "_жéaetA0 \n.-"
"""One example per class: continuation bytes, first bytes of a character, the first byte of an
accented Latin letter, `a`, other vowels, consonants, capitals, digits, space, line break, the rest,
and those of the rest that rules are drawn with, which differ only in runs."""

_SPANS: Final = {
    "t": "bcdfghjklmnpqrstvwxyz",
    "e": "eiou",
    "a": "a",
    "A": "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0": "0123456789",
    " ": " ",
    "\n": "\t\n\v\f\r",
    "-": "-=*#._~+/%:;!",
    "_": "".join(map(chr, range(0x80, 0xC0))),
    "é": "\xc2\xc3",
    "ж": "".join(map(chr, range(0xC4, 0x100))),
}  # everything else is "."

# In hundredths of a token, from the class at the left to each of: ж é a e t A 0 space line rest.
_STEPS: Final = {
    "_": (0, 13, 0, 0, 41, 67, 40, 5, 66, 125),
    "a": (0, 0, 120, 0, 0, 106, 40, 47, 8, 144),
    "e": (35, 0, 0, 19, 12, 0, 84, 51, 115, 71),
    "t": (0, 94, 42, 0, 28, 47, 94, 12, 39, 54),
    "A": (0, 70, 106, 39, 0, 28, 200, 7, 30, 102),
    "0": (0, 77, 0, 54, 153, 200, 31, 39, 174, 85),
    " ": (23, 68, 35, 40, 29, 20, 129, 6, 71, 39),
    "\n": (29, 85, 82, 43, 98, 52, 200, 71, 33, 0),
    ".": (55, 119, 0, 13, 0, 45, 52, 84, 53, 40),
}

# The same for a character that equals the four before it: vocabularies contain long runs.
_RUN_STEPS: Final = {"a": 13, "e": 25, "t": 40, "A": 14, "0": 33, " ": 2, "\n": 7, ".": 25, "-": 2}

# The same for a character beyond Latin-1, by the upper byte of its code: upper bound and price.
_SCRIPTS: Final = {
    0x01: 0,
    0x03: 101,  # Latin of Polish, Czech, Turkish
    0x04: 34,  # Greek
    0x05: 21,  # Cyrillic
    0x06: 34,  # Hebrew, Armenian
    0x08: 29,  # Arabic
    0x0E: 30,  # Indic scripts
    0x0F: 41,  # Thai
    0x10: 120,
    0x11: 35,  # Georgian, Burmese
    0x1E: 120,
    0x20: 0,  # Vietnamese, Greek with diacritics
    0x21: 46,  # punctuation
    0x30: 100,  # arrows, signs, boxes
    0x31: 67,  # kana
    0xA0: 77,  # Han
    0xAC: 120,
    0xD8: 62,  # Hangul
    0xDC: 184,  # first half of a surrogate pair: emoji
    0xE0: 0,  # second half
    0xFE: 120,
    0x100: 0,  # full-width forms, variation selectors
}
_SCRIPT_RUN_PRICE: Final = 12  # for a character that equals the four before it


def _classes() -> bytes:
    table = bytearray([_SIGNS.index(".")] * 256)
    for sign, members in _SPANS.items():
        for member in members:
            table[ord(member)] = _SIGNS.index(sign)
    return bytes(table)


def _prices() -> bytes:
    table = bytearray(256)
    for before, prices in _STEPS.items():
        first = _SIGNS.index(before) << 4 | 1
        table[first : first + len(prices)] = bytes(prices)
    rest, rule = _SIGNS.index("."), _SIGNS.index("-")
    for one in range(rule):
        table[one << 4 | rule] = table[one << 4 | rest]
    table[rule << 4 : (rule + 1) << 4] = table[rest << 4 : (rest + 1) << 4]
    for sign, price in _RUN_STEPS.items():
        table[_RUN | _SIGNS.index(sign)] = price
    return bytes(table)


def _script_prices() -> bytes:
    table = bytearray()
    for end, price in _SCRIPTS.items():
        table += bytes([price]) * (end - len(table))
    return bytes(table)


_RUN: Final = 0xF0  # replaces the previous class
_RUNS: Final = bytes([_RUN]) + bytes(255)
_CLASSES: Final = _classes()
_PRICES: Final = _prices()
_SCRIPT_PRICES: Final = _script_prices()
_FREE: Final = bytes(byte for byte, price in enumerate(_SCRIPT_PRICES) if not price)
