"""Encoding and decoding of envelopes: the security boundary of the system.

`decode` raises `DecodeError` and nothing else, for any input. It has two paths.

The fast path is for texts as common encoders write them: members in the protocol's order, and no
space or one after each comma and colon. One pattern matches everything up to the payload, which
proves that no member is repeated or unknown and that all names are valid. msgspec parses the text,
and if the payload it found extends to the end, nothing follows it. Any other text takes the strict
path, which walks through the members, keeps unknown ones, and reports what is wrong. So does every
text with attachments: they are rare, and what they name is checked member by member.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.protocol.envelope import (
    CONTEXT_MEMBERS,
    ENVELOPE_MEMBERS,
    GATEWAY,
    HASH_PATTERN,
    ID_PATTERN,
    KIND_PATTERN,
    MAX_ATTACHMENTS,
    MAX_ATTACHMENTS_BYTES,
    MAX_DEPTH,
    MAX_KIND_LENGTH,
    MAX_METADATA_BYTES,
    MAX_RECIPIENTS,
    MAX_SIZE,
    MEDIA_TYPE_PATTERN,
    NAME_PATTERN,
    PARTICIPANT_PATTERN,
    PROTOCOL,
    REFERENCE_PATTERN,
    TIMESTAMP_PATTERN,
    Context,
    Envelope,
    raw_extra,
    with_extra,
)
from mcpp.protocol.jsontext import (
    SPACE,
    check_outside_strings,
    check_utf8,
    decode_unambiguous,
    refuse_type,
    split_object,
)

__all__ = ["decode", "decode_history", "decode_unambiguous", "encode"]

_read = msgspec.json.Decoder(Envelope).decode
_write = msgspec.json.Encoder().encode
_read_text = msgspec.json.Decoder(str).decode
_read_members = msgspec.json.Decoder(dict[str, Raw]).decode
_read_items = msgspec.json.Decoder(list[Raw]).decode

_is_id = re.compile(ID_PATTERN).fullmatch
_is_id_or_reference = re.compile(f"{ID_PATTERN}|{REFERENCE_PATTERN}").fullmatch
_is_participant = re.compile(PARTICIPANT_PATTERN).fullmatch
_has_kind_pattern = re.compile(KIND_PATTERN).fullmatch
_is_timestamp = re.compile(TIMESTAMP_PATTERN).fullmatch
_is_hash = re.compile(HASH_PATTERN).fullmatch
_is_media_type = re.compile(MEDIA_TYPE_PATTERN).fullmatch
_is_name = re.compile(NAME_PATTERN).fullmatch


def is_kind(text: str) -> bool:
    """Return whether a text is a kind, and so may be a context's type too (E-15, E-17)."""
    return len(text) <= MAX_KIND_LENGTH and _has_kind_pattern(text) is not None


def encode(envelope: Envelope, *, indent: int = 0) -> bytes:
    """Return the envelope as JSON: compact, or indented by `indent` spaces per level.

    Known members come in the protocol's order, unknown ones after them in their original form.
    """
    text = _write(envelope)
    context = envelope.context
    context_extra = {} if context is None else raw_extra(context)
    if context_extra or raw_extra(envelope):
        members = _read_members(text)
        if context_extra:
            members["context"] = Raw(_write(_read_members(members["context"]) | context_extra))
        text = _write(members | raw_extra(envelope))
    if not indent:
        return text
    readable = msgspec.json.format(text, indent=indent)
    # The size limits of metadata and attachments count spaces: stay compact where they would exceed
    # them (E-18, E-33).
    return readable if _may_be_spaced(readable, envelope) else text


def decode(data: bytes | str) -> Envelope:
    """Return the envelope in a text, with its payload still unparsed.

    Raises DecodeError, and nothing else, for any input.
    """
    if type(data) is not bytes:
        data = _as_bytes(data)
    if not data.isascii():
        check_utf8(data)
    size = len(data)
    if size > _SMALL_BYTES:
        check_outside_strings(data)
    head, joint = _compact_head(data), _COMPACT_JOINT
    if head is None:
        head, joint = _spaced_head(data), _SPACED_JOINT
        if head is None:
            return _decode_strictly(data)
    try:
        envelope = _read(data)
    except (msgspec.MsgspecError, RecursionError):
        return _decode_strictly(data)
    end = head.end()
    searched = payload = bytes(envelope.raw_payload)
    if head.lastindex:
        metadata = _metadata_of(envelope)
        end += len(metadata)
        if not (
            _is_metadata(metadata)
            and data.startswith(metadata, head.end())
            and data.startswith(joint, end)
        ):
            return _decode_strictly(data)
        end += len(joint)
        # Metadata is one level deeper than the payload, and ends with its own bracket.
        searched = b"[%b,%b" % (metadata, payload)
    if end + len(payload) + 1 != size:
        return _decode_strictly(data)
    if size <= _SMALL_BYTES:
        shape = searched.translate(_SHAPE)
        if shape.find(_SUSPECT_NUMBER) >= 0 or shape[-1] == 0x30 or shape.count(b"[") >= MAX_DEPTH:
            check_outside_strings(data)
    return envelope


def decode_history(data: bytes) -> Envelope:
    """Return a `system/history` envelope, which nests as deep as the envelopes in it require.

    Raises DecodeError for any other text. The envelopes in it are not checked: use `decode`.
    """
    check_utf8(data)
    envelope = _decode_strictly(data, MAX_DEPTH + _HISTORY_LEVELS)
    if envelope.kind != kinds.HISTORY or envelope.sender != GATEWAY:
        raise DecodeError("$", "nests deeper than an envelope may")
    return envelope


# The levels around an envelope in a page: envelope, payload, entries, entry.
_HISTORY_LEVELS: Final = 4


# --- the fast path ----------------------------------------------------------------------------


# Everything before the metadata or, without it, before the payload: 0.5 µs. Encoding the envelope
# again, comparing lengths and matching the names one by one took 0.9.
_HEAD: Final = (
    r'\{"protocol": "<protocol>", "id": "<id>", "ts": "<ts>", "from": "<participant>"'
    r'(?:, "to": (?:\[(?:"<participant>"(?:, "<participant>"){0,<more>})?\]|null))?'
    r', "kind": "<kind>"(?:, "correlation_id": (?:"<id>"|null))?'
    r'(?:, "context": (?:\{"id": "<id>"(?:, "type": (?:"<kind>"|null))?'
    r'(?:, "parent": (?:"<id>"|null))?(?:\}|, ("metadata": ))|null))?'
    r'(?(1)|, "payload": )'
)
_NAMES: Final = {
    "<protocol>": re.escape(PROTOCOL),
    "<id>": ID_PATTERN,
    "<ts>": f"(?:{TIMESTAMP_PATTERN})",
    "<participant>": PARTICIPANT_PATTERN,
    # KIND_PATTERN without `%` and what JSON escapes.
    "<kind>": rf"[!#$&-\[\]-~]{{1,{MAX_KIND_LENGTH}}}",
    "<more>": str(MAX_RECIPIENTS - 1),
}


def _compile(head: str) -> Callable[[bytes], re.Match[bytes] | None]:
    for name, pattern in _NAMES.items():
        head = head.replace(name, pattern)
    return re.compile(head.encode()).match


_compact_head = _compile(_HEAD.replace(" ", ""))
_spaced_head = _compile(_HEAD)  # as Python's json writes
_COMPACT_JOINT: Final = b'},"payload":'
_SPACED_JOINT: Final = b'}, "payload": '

# msgspec recurses once per level, with 32 bytes of stack each. A text this short cannot exhaust
# even the smallest thread stack, so it may be parsed first and its payload checked afterwards.
_SMALL_BYTES: Final = 512
# Bytes of numbers become `0`, bytes that may follow a number `,`, opening brackets `[`.
_SHAPE: Final = bytes(
    0x30
    if byte in b"0123456789+-.eE"
    else 0x2C
    if byte in b",]}" + SPACE
    else 0x5B
    if byte in b"[{"
    else 0x20
    for byte in range(256)
)
# Strings are searched too: a false match only costs the full check. No number below five characters
# is too large (`1e309`).
_SUSPECT_NUMBER: Final = b"00000,"


def _metadata_of(envelope: Envelope) -> bytes:
    context = envelope.context
    return b"" if context is None or context.raw_metadata is UNSET else bytes(context.raw_metadata)


def _is_metadata(text: bytes) -> bool:
    return len(text) <= MAX_METADATA_BYTES and text.startswith(b"{")


# --- the strict path --------------------------------------------------------------------------


class _Rule(NamedTuple):
    holds: Callable[[str], object]
    reason: str


_ID = _Rule(_is_id, "must be 1 to 128 of A-Z a-z 0-9 . _ : ~ -")
_ID_OR_REFERENCE = _Rule(_is_id_or_reference, f"{_ID.reason}, or mcpp://POD/ID")
_PARTICIPANT = _Rule(_is_participant, "must be 1 to 64 of A-Z a-z 0-9 . _ : @ -")
_KIND = _Rule(
    is_kind,
    f"must be 1 to {MAX_KIND_LENGTH} printable ASCII characters, with spaces, % and non-ASCII "
    "characters, and only these, percent-encoded as UTF-8",
)
_TIMESTAMP = _Rule(
    _is_timestamp, "must be an RFC 3339 time with T and an offset, such as 2025-08-31T12:00:00Z"
)
_PROTOCOL = _Rule(PROTOCOL.__eq__, f'must be "{PROTOCOL}"')
_HASH = _Rule(_is_hash, "must be a SHA-256: 64 of 0-9 a-f")
_MEDIA_TYPE = _Rule(_is_media_type, "must be a media type, such as image/png")
_NAME = _Rule(_is_name, "must be 1 to 255 characters without / \\ and control characters")

_REQUIRED: Final = ("protocol", "id", "ts", "from", "kind", "payload")
_OPTIONAL: Final = ("to", "correlation_id", "context", "attachments")
_OPTIONAL_IN_CONTEXT: Final = ("type", "parent", "metadata")


def _may_be_spaced(readable: bytes, envelope: Envelope) -> bool:
    context = envelope.context
    if envelope.raw_attachments is not UNSET:
        spaced = bytes(_read_members(readable)["attachments"])
        if len(spaced) > MAX_ATTACHMENTS_BYTES:
            return False
    if context is None or context.raw_metadata is UNSET:
        return True
    return _is_metadata(bytes(_read_members(_read_members(readable)["context"])["metadata"]))


def _decode_strictly(data: bytes, max_depth: int = MAX_DEPTH) -> Envelope:
    check_outside_strings(data, max_depth)
    members = split_object(data, "$")
    _drop_nulls(members, _OPTIONAL)
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
        to=None if to is None else _recipients(bytes(to)),
        kind=_text(members["kind"], "$.kind", _KIND),
        correlation_id=_optional_text(members, "correlation_id", "$", _ID_OR_REFERENCE),
        context=None if context is None else _context(bytes(context)),
        raw_attachments=_attachments(members["attachments"], is_addressed=to is not None)
        if "attachments" in members
        else UNSET,
        raw_payload=members["payload"],
    )
    envelope.__dict__["_size"] = len(data)  # all of it stays in memory, spaces too
    return with_extra(envelope, _unknown(members, ENVELOPE_MEMBERS))


def _context(data: bytes) -> Context:
    members = split_object(data, "$.context")
    _drop_nulls(members, _OPTIONAL_IN_CONTEXT)
    if "id" not in members:
        raise DecodeError("$.context.id", "is missing")
    context = Context(
        id=_text(members["id"], "$.context.id", _ID),
        type=_optional_text(members, "type", "$.context", _KIND),
        parent=_optional_text(members, "parent", "$.context", _ID_OR_REFERENCE),
        raw_metadata=_metadata(members["metadata"]) if "metadata" in members else UNSET,
    )
    return with_extra(context, _unknown(members, CONTEXT_MEMBERS))


def _drop_nulls(members: dict[str, Raw], optional: tuple[str, ...]) -> None:
    """Remove optional members that are null: they count as absent (E-07)."""
    for name in optional:
        if name in members and bytes(members[name]) == b"null":
            del members[name]


def _metadata(raw: Raw) -> Raw:
    if not bytes(raw).startswith(b"{"):
        refuse_type("$.context.metadata", "an object", bytes(raw))
    if not _is_metadata(bytes(raw)):
        raise DecodeError("$.context.metadata", f"is longer than {MAX_METADATA_BYTES} bytes")
    return raw


def _text(raw: Raw, path: str, rule: _Rule) -> str:
    text = bytes(raw)
    if not text.startswith(b'"'):
        refuse_type(path, "a string", text)
    value = _read_text(text)
    if not rule.holds(value):
        raise DecodeError(path, rule.reason)
    return value


def _optional_text(members: dict[str, Raw], name: str, path: str, rule: _Rule) -> str | None:
    raw = members.get(name)
    return None if raw is None else _text(raw, f"{path}.{name}", rule)


def _recipients(data: bytes) -> tuple[str, ...]:
    if not data.startswith(b"["):
        refuse_type("$.to", "an array", data)
    found = _read_items(data)
    if len(found) > MAX_RECIPIENTS:
        raise DecodeError("$.to", f"has more than {MAX_RECIPIENTS} names")
    items = enumerate(found)
    return tuple(_text(item, f"$.to[{index}]", _PARTICIPANT) for index, item in items)


def _attachments(raw: Raw, *, is_addressed: bool) -> Raw:
    """Check the list of attachments; its bytes stay the sender's (E-32)."""
    data = bytes(raw)
    if not data.startswith(b"["):
        refuse_type("$.attachments", "an array", data)
    if len(data) > MAX_ATTACHMENTS_BYTES:
        raise DecodeError("$.attachments", f"is longer than {MAX_ATTACHMENTS_BYTES} bytes")
    items = _read_items(data)
    if len(items) > MAX_ATTACHMENTS:
        raise DecodeError("$.attachments", f"has more than {MAX_ATTACHMENTS} items")
    for index, item in enumerate(items):
        _check_attachment(bytes(item), f"$.attachments[{index}]", is_addressed=is_addressed)
    return raw


def _check_attachment(data: bytes, path: str, *, is_addressed: bool) -> None:
    members = split_object(data, path)
    _drop_nulls(members, ("name", "private"))
    for name, rule in (("hash", _HASH), ("size", None), ("media_type", _MEDIA_TYPE)):
        if name not in members:
            raise DecodeError(f"{path}.{name}", "is missing")
        if rule is not None:
            _text(members[name], f"{path}.{name}", rule)
    size = bytes(members["size"])
    if size[:1] not in b"-0123456789":
        refuse_type(f"{path}.size", "a number", size)
    value = float(size) if any(mark in size for mark in b".eE") else int(size)
    if value != int(value) or not 0 <= value <= MAX_SIZE:
        raise DecodeError(f"{path}.size", f"must be an integer from 0 to {MAX_SIZE}")
    _optional_text(members, "name", path, _NAME)
    private = bytes(members.get("private", b"false"))
    if private not in (b"true", b"false"):
        refuse_type(f"{path}.private", "a boolean", private)
    if private == b"true" and not is_addressed:
        raise DecodeError(f"{path}.private", "needs addressees: the envelope has no `to`")


def _unknown(members: dict[str, Raw], known: frozenset[str]) -> dict[str, Raw]:
    return {name: value for name, value in members.items() if name not in known}


def _as_bytes(data: object) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise DecodeError("$", f"has a lone surrogate (character {error.start})") from None
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise DecodeError("$", f"must be bytes or text, not {type(data).__name__}")
