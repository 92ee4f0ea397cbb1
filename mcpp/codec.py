"""Bytes to envelopes and back: the security boundary of the system.

`decode` raises `DecodeError` and nothing else, whatever it is fed. It has two lanes.

The fast lane decodes into a struct whose members are all `str` or `Raw` and encodes that again.
Every `str` is held to an ASCII pattern, so it encodes to the fewest bytes that could have carried
it, and a `Raw` encodes to itself. If the two texts are equally long, the input held nothing else:
no second `from`, no unknown member, no escape, no space. Anything odd takes the strict lane, which
walks the members one by one, keeps the unknown ones, and names what is wrong.

msgspec leaves three things unchecked inside a `Raw` (as of 0.22): UTF-8, depth, and the size of
numbers. UTF-8 is checked before, the other two on what is left when the strings are cut out.
"""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
from msgspec import UNSET, Raw

from mcpp.envelope import (
    ID_PATTERN,
    KIND_PATTERN,
    MAX_DEPTH,
    MAX_METADATA_BYTES,
    PARTICIPANT_PATTERN,
    PROTOCOL,
    TIMESTAMP_PATTERN,
    Context,
    Envelope,
    raw_extra,
    with_extra,
)
from mcpp.errors import DecodeError

MAX_NUMBER_LENGTH: Final = 64

# A text this short cannot nest deep enough to harm msgspec's recursion, so it may be parsed first
# and only its payload searched afterwards: 0.4 µs less for a typical tool call.
_SMALL_BYTES: Final = 512

_read = msgspec.json.Decoder(Envelope).decode
_write = msgspec.json.Encoder().encode


def encode(envelope: Envelope, *, indent: int = 0) -> bytes:
    """Return the envelope as JSON: compact, or readable with `indent` spaces a level.

    The known members come in the protocol's order, unknown ones after them as they were read.
    """
    text = _write(envelope)
    context = envelope.context
    context_extra = {} if context is None else raw_extra(context)
    if context_extra or raw_extra(envelope):
        members = _split_members(text)
        if context_extra:
            members["context"] = Raw(_write(_split_members(members["context"]) | context_extra))
        text = _write(members | raw_extra(envelope))
    return msgspec.json.format(text, indent=indent) if indent else text


def decode(data: bytes | str) -> Envelope:
    """Return the envelope that a text holds, its payload still unparsed.

    Raises DecodeError, and nothing else, for any input.
    """
    if type(data) is not bytes:
        data = _as_bytes(data)
    if not data.isascii():
        _check_utf8(data)
    large = len(data) > _SMALL_BYTES
    if large:
        _check_outside_strings(data)
    try:
        envelope = _read(data)
        text = _write(envelope)
        if (len(text) == len(data) or _is_only_spaced(data, text)) and _obeys(envelope, len(data)):
            if not (large or _is_harmless(envelope)):
                _check_outside_strings(data)
            return envelope
    except (msgspec.MsgspecError, RecursionError):
        pass  # the strict lane finds the reason
    return _decode_strictly(data)


def decode_unambiguous(raw: Raw | bytes, path: str) -> Any:
    """Return a JSON value in which no object has the same key twice, or raise DecodeError.

    For whoever decides by a payload: two readers of a repeated key may disagree.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise DecodeError(path, "has the same key twice in one object")
        return value

    return json.loads(bytes(raw), object_pairs_hook=unique)


# --- the fast lane ----------------------------------------------------------------------------

_CACHED_BYTES: Final = 4096
_ID_BYTES: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:~-"
# What may be part of a number becomes `0`, what may follow one `,`, what opens a level `[`.
_SHAPE: Final = bytes(
    0x30
    if byte in b"0123456789+-.eE"
    else 0x2C
    if byte in b",]} \t\n\r"
    else 0x5B
    if byte in b"[{"
    else 0x20
    for byte in range(256)
)
_is_timestamp = re.compile(TIMESTAMP_PATTERN).fullmatch
# The same for most times: 0.2 µs instead of 0.4.
_is_plain_timestamp = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?Z",
    re.ASCII,
).fullmatch
_matches_id = re.compile(ID_PATTERN).fullmatch
_matches_participant = re.compile(PARTICIPANT_PATTERN).fullmatch
_matches_kind = re.compile(KIND_PATTERN).fullmatch


def _obeys(envelope: Envelope, size: int) -> bool:
    """Tell whether the text members hold to their patterns; the strict lane says which does not."""
    name = envelope.id
    if not 0 < len(name) <= 128 or name.encode().translate(None, _ID_BYTES):
        return False
    if not (_is_plain_timestamp(envelope.ts) or _is_timestamp(envelope.ts)):
        return False
    correlation_id = envelope.correlation_id
    if correlation_id is not None and not _matches_id(correlation_id):
        return False
    context = envelope.context
    if context is not None:
        metadata = context.raw_metadata
        if metadata is not UNSET:
            text = bytes(metadata)
            if len(text) > MAX_METADATA_BYTES or text[0] != 0x7B:  # {
                return False
        check = _obey_context if size <= _CACHED_BYTES else _obey_context.__wrapped__
        if not check(context.id, context.type, context.parent):
            return False
    check = _obey if size <= _CACHED_BYTES else _obey.__wrapped__
    return check(envelope.protocol, envelope.sender, envelope.to, envelope.kind)


# Who speaks to whom, in what kind and which context, comes again and again: 0.15 µs remembered,
# 1 µs matched. Only what small envelopes say is kept, so the memory is bounded by size as by count.
@lru_cache(maxsize=1024)
def _obey(protocol: str, sender: str, to: tuple[str, ...] | None, kind: str) -> bool:
    return (
        protocol == PROTOCOL
        and _matches_participant(sender) is not None
        and (to is None or all(map(_matches_participant, to)))
        and _matches_kind(kind) is not None
    )


@lru_cache(maxsize=1024)
def _obey_context(id: str, type: str | None, parent: str | None) -> bool:
    return all(name is None or _matches_id(name) for name in (id, type, parent))


def _is_harmless(envelope: Envelope) -> bool:
    """Tell whether a small envelope is plainly shallow and has no number of three characters.

    Strings are looked at as if they were structure: that can only cost a closer look.
    """
    text = bytes(envelope.raw_payload)
    context = envelope.context
    if context is not None and context.raw_metadata is not UNSET:
        text += bytes(context.raw_metadata)
    shape = text.translate(_SHAPE)
    return shape.find(b"000,") < 0 and shape[-1] != 0x30 and shape.count(b"[") < MAX_DEPTH - 1


def _is_only_spaced(data: bytes, text: bytes) -> bool:
    """Tell whether two texts are equally long but for the white space between their tokens."""
    return _compact_length(data) == _compact_length(text)


def _compact_length(text: bytes) -> int:
    rest = _outside_strings(text)
    return len(text) - len(rest) + len(rest.translate(None, b" \t\n\r"))


# --- what msgspec does not check ---------------------------------------------------------------

_LEAP_BYTES: Final = 512
_NUMBER: Final = re.compile(rb"-?[0-9][0-9.eE+-]*")
# Digits, signs and points become `0`, both exponent letters `e`: a `find` then shows whether any
# number needs a closer look. Without an exponent the shortest that does has 65 characters.
_NUMBER_SHAPE: Final = bytes(
    0x30 if byte in b"0123456789+-." else 0x65 if byte in b"eE" else 0x20 for byte in range(256)
)
_LONG_NUMBER: Final = b"0" * (MAX_NUMBER_LENGTH + 1)
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def _check_utf8(data: bytes) -> None:
    if data.startswith(b"\xef\xbb\xbf"):
        raise DecodeError("$", "begins with a byte order mark; send plain UTF-8")
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise DecodeError("$", f"is not UTF-8: {error.reason} (byte {error.start})") from None


def _check_outside_strings(data: bytes) -> None:
    """Refuse nesting past MAX_DEPTH and numbers that are too long or too large."""
    rest = _outside_strings(data)
    _check_depth(rest)
    shape = rest.translate(_NUMBER_SHAPE)
    if shape.find(b"0e") >= 0 or shape.find(_LONG_NUMBER) >= 0:
        for number in _NUMBER.findall(rest):
            _check_number(number)


def _outside_strings(data: bytes) -> bytes:
    """Return the text with its strings cut out. On malformed text the result means nothing."""
    if 0x5C in data:  # a backslash may hide a quote
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    pieces = []
    start = 0
    # A document or an image is one long string: `find` leaps over it forty times faster than
    # `split` reads it. Where strings are short and many, `split` is the faster one.
    for _ in range(len(data) // _LEAP_BYTES):
        opening = data.find(b'"', start)
        if opening < 0:
            break
        pieces.append(data[start:opening])
        start = data.find(b'"', opening + 1) + 1
        if start == 0:
            return b"".join(pieces)
    pieces.append(b"".join(data[start:].split(b'"')[::2]))
    return b"".join(pieces)


def _check_depth(rest: bytes) -> None:
    brackets = rest.translate(None, _NOT_BRACKETS)
    if len(brackets) <= MAX_DEPTH:
        return
    # Each round takes away the innermost level.
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return
    raise DecodeError("$", f"nests deeper than {MAX_DEPTH} levels, or its brackets do not match")


def _check_number(number: bytes) -> None:
    if len(number) > MAX_NUMBER_LENGTH:
        raise DecodeError("$", f"holds a number longer than {MAX_NUMBER_LENGTH} characters")
    if b"e" in number or b"E" in number:
        try:
            value = float(number)
        except ValueError:
            return  # malformed, as msgspec will say
        if value in (float("inf"), float("-inf")):
            raise DecodeError("$", f"holds a number that overflows: {number.decode()}")


# --- the strict lane ---------------------------------------------------------------------------


class _Rule(NamedTuple):
    matches: Callable[[str], object]
    reason: str


_ID = _Rule(_matches_id, "must be 1 to 128 of A-Z a-z 0-9 . _ : ~ -")
_PARTICIPANT = _Rule(_matches_participant, "must be 1 to 64 of A-Z a-z 0-9 . _ : @ -")
_KIND = _Rule(_matches_kind, "must be 1 to 128 printable ASCII characters without a space")
_TIMESTAMP = _Rule(
    _is_timestamp, "must be an RFC 3339 time with T and an offset, such as 2025-08-31T12:00:00Z"
)
_PROTOCOL = _Rule(PROTOCOL.__eq__, f'must be "{PROTOCOL}"')

_REQUIRED: Final = ("protocol", "id", "ts", "from", "kind", "payload")
_ENVELOPE_MEMBERS: Final = frozenset((*_REQUIRED, "to", "correlation_id", "context"))
_CONTEXT_MEMBERS: Final = frozenset(("id", "type", "parent", "metadata"))
_split_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_text = msgspec.json.Decoder(str).decode
_split_items = msgspec.json.Decoder(list[Raw]).decode
_KEY: Final = re.compile(rb'[{,][ \t\n\r]*("[^"\\]*(?:\\.[^"\\]*)*")[ \t\n\r]*:[ \t\n\r]*')
_SPACE: Final = re.compile(rb"[ \t\n\r]*")


def _decode_strictly(data: bytes) -> Envelope:
    _check_outside_strings(data)
    members = _members(data, "$")
    for name in _REQUIRED:
        if name not in members:
            raise DecodeError(f"$.{name}", "is missing")
    to = members.get("to")
    context = members.get("context")
    envelope = Envelope(
        protocol=_text(members["protocol"], "$.protocol", _PROTOCOL),
        id=_text(members["id"], "$.id", _ID),
        ts=_text(members["ts"], "$.ts", _TIMESTAMP),
        sender=_text(members["from"], "$.from", _PARTICIPANT),
        to=None if to is None else _recipients(to),
        kind=_text(members["kind"], "$.kind", _KIND),
        correlation_id=_optional_text(members, "correlation_id", "$", _ID),
        context=None if context is None else _context(context),
        raw_payload=members["payload"],
    )
    return with_extra(envelope, _unknown(members, _ENVELOPE_MEMBERS))


def _context(raw: Raw) -> Context:
    members = _members(bytes(raw), "$.context")
    if "id" not in members:
        raise DecodeError("$.context.id", "is missing")
    metadata = members.get("metadata")
    if metadata is not None:
        if bytes(metadata)[:1] != b"{":
            _refuse_type("$.context.metadata", "an object", bytes(metadata))
        if len(bytes(metadata)) > MAX_METADATA_BYTES:
            raise DecodeError("$.context.metadata", f"is longer than {MAX_METADATA_BYTES} bytes")
    context = Context(
        id=_text(members["id"], "$.context.id", _ID),
        type=_optional_text(members, "type", "$.context", _ID),
        parent=_optional_text(members, "parent", "$.context", _ID),
        raw_metadata=UNSET if metadata is None else metadata,
    )
    return with_extra(context, _unknown(members, _CONTEXT_MEMBERS))


def _members(data: bytes, path: str) -> dict[str, Raw]:
    """Split an object into its members, refusing a name that comes twice.

    msgspec keeps the last of two. So walk the text beside its result: where the value at a key is
    not the one that msgspec kept, or a key was met before, the key is there twice. No JSON value
    is the beginning of another that a delimiter could follow, so the walk cannot be led astray.
    """
    try:
        members = _split_members(data)
    except msgspec.ValidationError:
        _refuse_type(path, "an object", data)
    except msgspec.DecodeError as error:
        raise DecodeError(path, f"is not JSON: {_plain(str(error))}") from None
    seen: set[str] = set()
    position = _end_of_space(data, 0)
    while len(seen) < len(members) or data[position : position + 1] == b",":
        key = _KEY.match(data, position)
        assert key is not None, "msgspec has parsed this text"
        name = _read_text(key[1])
        value = bytes(members[name])
        if name in seen or not data.startswith(value, key.end()):
            raise DecodeError(f"{path}.{name}", "is there twice")
        seen.add(name)
        position = _end_of_space(data, key.end() + len(value))
        if data[position] not in b",}":  # `1` where `12` stood first
            raise DecodeError(f"{path}.{name}", "is there twice")
    return members


def _end_of_space(data: bytes, position: int) -> int:
    space = _SPACE.match(data, position)
    assert space is not None
    return space.end()


def _text(raw: Raw, path: str, rule: _Rule) -> str:
    text = bytes(raw)
    if text[:1] != b'"':
        _refuse_type(path, "a string", text)
    value = _read_text(text)
    if not rule.matches(value):
        raise DecodeError(path, rule.reason)
    return value


def _optional_text(members: dict[str, Raw], name: str, path: str, rule: _Rule) -> str | None:
    raw = members.get(name)
    return None if raw is None else _text(raw, f"{path}.{name}", rule)


def _recipients(raw: Raw) -> tuple[str, ...]:
    try:
        items = _split_items(raw)
    except msgspec.ValidationError:
        _refuse_type("$.to", "an array", bytes(raw))
    return tuple(_text(item, f"$.to[{i}]", _PARTICIPANT) for i, item in enumerate(items))


def _unknown(members: dict[str, Raw], known: frozenset[str]) -> dict[str, Raw]:
    return {name: value for name, value in members.items() if name not in known}


_TYPES: Final = {b"{": "an object", b"[": "an array", b'"': "a string", b"n": "null"}


def _refuse_type(path: str, expected: str, text: bytes) -> NoReturn:
    first = text.lstrip(b" \t\n\r")[:1]
    got = _TYPES.get(first, "a boolean" if first in (b"t", b"f") else "a number")
    hint = "; leave an optional member out instead" if got == "null" else ""
    raise DecodeError(path, f"must be {expected}, not {got}{hint}")


def _plain(reason: str) -> str:
    return reason.removeprefix("JSON is malformed: ").lower()


def _as_bytes(data: object) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise DecodeError("$", f"has a lone surrogate (character {error.start})") from None
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise DecodeError("$", f"must be bytes or str, not {type(data).__name__}")
