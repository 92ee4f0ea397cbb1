"""Checks that the JSON parser omits: UTF-8, depth, the size of numbers, and repeated names.

For raw members, msgspec (as of 0.22) checks the grammar but not the bytes inside strings, the
nesting depth, or whether a number fits. It recurses once per level, so depth is checked first.
Depth and numbers are checked on the text without its strings.
"""

import json
import math
import re
from typing import Any, Final, NoReturn

import msgspec
from msgspec import Raw

from mcpp.errors import DecodeError
from mcpp.protocol.envelope import MAX_DEPTH, MAX_MEMBERS, MAX_NUMBER_LENGTH

SPACE: Final = b" \t\n\r"

# A window of this size is split at its quotes, which is fastest for many short strings. For one
# that extends beyond its window, `find` gets to the end forty times faster.
_WINDOW_BYTES: Final = 512
_NUMBER: Final = re.compile(rb"-?[0-9][0-9.eE+-]*")
# Digits, signs and points become `0`, both exponent letters `e`: two searches then find any text
# that needs the full check. Up to MAX_NUMBER_LENGTH, only three digits of exponent can overflow; a
# longer number has either those or a longer run before its exponent.
_NUMBER_SHAPE: Final = bytes(
    0x30 if byte in b"0123456789+-." else 0x65 if byte in b"eE" else 0x20 for byte in range(256)
)
_LARGE_NUMBER: Final = b"0e000"
_LONG_NUMBER: Final = b"0" * (MAX_NUMBER_LENGTH - 2)
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def check_utf8(data: bytes) -> None:
    """Reject a byte order mark and anything that is not UTF-8."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise DecodeError("$", "begins with a byte order mark; send plain UTF-8")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("$", f"is not UTF-8: {error.reason} (byte {error.start})") from None


def check_outside_strings(data: bytes) -> None:
    """Reject nesting beyond MAX_DEPTH and numbers that are too long or too large."""
    rest = outside_strings(data)
    _check_depth(rest)
    shape = rest.translate(_NUMBER_SHAPE)
    if shape.find(_LARGE_NUMBER) >= 0 or shape.find(_LONG_NUMBER) >= 0:
        numbers = _NUMBER.findall(rest)
        if max(map(len, numbers), default=0) > MAX_NUMBER_LENGTH or not _are_finite(numbers):
            for number in numbers:
                _check_number(number)


def _are_finite(numbers: list[bytes]) -> bool:
    """Return whether all are well-formed and finite; `_check_number` takes ten times as long."""
    try:
        return all(map(math.isfinite, map(float, numbers)))
    except ValueError:
        return False


def outside_strings(data: bytes) -> bytes:
    """Return the text without its strings; from malformed JSON on, the result may end early."""
    pieces = _cut_strings(data)
    if pieces is None:
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
        pieces = _cut_strings(data, check_escapes=False)
    return b"".join(pieces or ())


def split_object(data: bytes, path: str) -> dict[str, Raw]:
    """Split an object into its members and reject repeated names.

    msgspec keeps the last of two. So walk through the text along with its result: if the value at
    a key is not the one that msgspec kept, or the key was seen before, it is repeated. No JSON
    value is a prefix of another with a delimiter after it, so the walk cannot be misled.
    """
    try:
        members = _split_members(data)
    except msgspec.ValidationError:
        refuse_type(path, "an object", data)
    except msgspec.DecodeError as error:
        raise DecodeError(path, _malformation(data, str(error))) from None
    if len(members) > MAX_MEMBERS:
        raise DecodeError(path, f"has more than {MAX_MEMBERS} members")
    seen: set[str] = set()
    position = _end_of_space(data, 0)
    while len(seen) < len(members) or data[position] == 0x2C:  # a comma
        key = _KEY.match(data, position)
        assert key is not None, "msgspec has parsed this text"
        name = _read_text(key[1])
        value = bytes(members[name])
        if name in seen or not data.startswith(value, key.end()):
            _refuse_duplicate(path, name)
        seen.add(name)
        position = _end_of_space(data, key.end() + len(value))
        if data[position] not in b",}":  # `1` where `12` stood first
            _refuse_duplicate(path, name)
    return members


def decode_unambiguous(raw: Raw | bytes, path: str) -> Any:
    """Return a JSON value in which no object repeats a key, or raise DecodeError.

    For decisions based on a payload or metadata: two readers of a repeated key may disagree.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise DecodeError(path, "has the same key twice in one object")
        return value

    try:
        return json.loads(
            bytes(raw).decode(), object_pairs_hook=unique, parse_constant=refuse_constant
        )
    except DecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise DecodeError(path, f"is not JSON: {error}") from None


def refuse_type(path: str, expected: str, text: bytes) -> NoReturn:
    """Raise DecodeError for a value of the wrong type."""
    first = text.lstrip(SPACE)[:1]
    got = _TYPES.get(first, "a number")
    raise DecodeError(path, f"must be {expected}, not {got}")


_split_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_text = msgspec.json.Decoder(str).decode
_KEY: Final = re.compile(rb'[{,][ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\n\r]*:[ \t\n\r]*')
_BLANK: Final = re.compile(rb"[ \t\n\r]*")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_TYPES: Final = {
    b"{": "an object",
    b"[": "an array",
    b'"': "a string",
    b"n": "null",
    b"t": "a boolean",
    b"f": "a boolean",
}


def _cut_strings(data: bytes, *, check_escapes: bool = True) -> list[bytes] | None:
    """Return the parts between strings, or None if a backslash precedes some quote."""
    pieces: list[bytes] = []
    start = 0
    while start < len(data):
        window = data[start : start + _WINDOW_BYTES]
        if check_escapes and 0x5C in window and window.find(b'\\"') >= 0:
            return None
        parts = window.split(b'"')
        pieces += parts[::2]
        start += _WINDOW_BYTES
        if len(parts) % 2 == 0:  # the window ends inside a string
            end = data.find(b'"', start)
            if end < 0:
                break
            if check_escapes and data[end - 1] == 0x5C:
                return None
            start = end + 1
    return pieces


def _check_depth(rest: bytes) -> None:
    brackets = rest.translate(_BRACKETS, _NOT_BRACKETS)
    if len(brackets) <= MAX_DEPTH:
        return
    # Each round removes the innermost level only, which is why there is one kind of bracket here.
    # msgspec finds brackets that do not match.
    for _ in range(MAX_DEPTH):
        before = len(brackets)
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return
        if len(brackets) == before:
            break
    raise DecodeError("$", f"nests deeper than {MAX_DEPTH} levels, or its brackets do not match")


def _check_number(number: bytes) -> None:
    if len(number) > MAX_NUMBER_LENGTH:
        raise DecodeError("$", f"contains a number longer than {MAX_NUMBER_LENGTH} characters")
    try:
        value = float(number)
    except ValueError:
        return  # malformed, which msgspec reports
    if value in (float("inf"), float("-inf")):
        raise DecodeError("$", f"contains a number that overflows: {number.decode()}")


def _refuse_duplicate(path: str, name: str) -> NoReturn:
    # The name may be very long or contain line breaks: only a plain one is quoted.
    if _PLAIN_NAME.fullmatch(name):
        raise DecodeError(f"{path}.{name}", "is repeated")
    raise DecodeError(path, "repeats a member")


def refuse_constant(name: str) -> NoReturn:
    """Reject NaN and Infinity, which Python's parser accepts and JSON does not have."""
    raise ValueError(f"{name} is not a JSON value")


def _end_of_space(data: bytes, position: int) -> int:
    blank = _BLANK.match(data, position)
    assert blank is not None
    return blank.end()


def _malformation(data: bytes, reason: str) -> str:
    # For half a surrogate pair, msgspec only says "truncated".
    hint = "; is some \\u escape half of a surrogate pair?" if _SURROGATE.search(data) else ""
    return f"is not JSON: {reason.removeprefix('JSON is malformed: ').lower()}{hint}"
