"""The envelope and its context, and the patterns and bounds of their members.

Both are msgspec structs whose members are all `str` or `Raw`. That makes `codec.decode` both fast
and strict: payload and metadata stay the sender's bytes until they are read.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcpp.errors import DecodeError
from mcpp.protocol.validation import path_and_reason

T = TypeVar("T")
V = TypeVar("V", bound="_Value")

PROTOCOL: Final = "mcpp/v0.1"
GATEWAY: Final = "system:gateway"  # the sender of all `system/*` envelopes
MAX_METADATA_BYTES: Final = 2048
# Bounds on what costs a reader per item (E-08, E-14).
MAX_MEMBERS: Final = 256
MAX_RECIPIENTS: Final = 1024
MAX_DEPTH: Final = 64  # the envelope itself is level 1
MAX_NUMBER_LENGTH: Final = 64  # in characters
MAX_ATTACHMENTS: Final = 32
MAX_ATTACHMENTS_BYTES: Final = 16_384  # of the whole member
MAX_SIZE: Final = 2**53 - 1  # integers up to here are exact in every language

# Without anchors: `fullmatch` and the JSON Schema add their own. A trailing `$` would let a
# newline through in Python.
ID_PATTERN: Final = r"[A-Za-z0-9._:~-]{1,128}"
PARTICIPANT_PATTERN: Final = r"[A-Za-z0-9._:@-]{1,64}"
POD_PATTERN: Final = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
# An envelope or a context of another pod (E-30).
REFERENCE_PATTERN: Final = f"mcpp://{POD_PATTERN}/{ID_PATTERN}"
# One spelling for every kind (E-15): what is not printable ASCII, and `%` itself, is
# percent-encoded as UTF-8 in upper case; nothing else is.
_TAIL: Final = "%[89AB][0-9A-F]"
KIND_PATTERN: Final = (
    "(?:[!-$&-~]|%(?:[01][0-9A-F]|2[05]|7F)"
    f"|%(?:C[2-9A-F]|D[0-9A-F]){_TAIL}"
    f"|%(?:E0%[AB][0-9A-F]|ED%[89][0-9A-F]|E[1-9A-CEF]{_TAIL}){_TAIL}"
    f"|%(?:F0%[9AB][0-9A-F]|F4%8[0-9A-F]|F[1-3]{_TAIL}){_TAIL}{_TAIL})+"
)
MAX_KIND_LENGTH: Final = 512
HASH_PATTERN: Final = r"[0-9a-f]{64}"  # SHA-256
_TOKEN: Final = "[A-Za-z0-9!#$&^_.+-]{1,127}"
MEDIA_TYPE_PATTERN: Final = f"{_TOKEN}/{_TOKEN}(?:;[ -~]{{0,127}})?"
_UNKNOWN_TYPE: Final = "application/octet-stream"
# A file name for people: no separators of paths, no control characters, and none that reorder text.
NAME_PATTERN: Final = r"[^\x00-\x1f/\\\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]{1,255}"
# RFC 3339 including the calendar, so that the schema and the decoder cannot disagree.
TIMESTAMP_PATTERN: Final = (
    r"(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    r"|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
    r"T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)


class _Value(msgspec.Struct, frozen=True, omit_defaults=True, dict=True, eq=False, kw_only=True):
    """What envelope and context share: unknown members, which copies keep."""

    @cached_property
    def extra(self) -> Mapping[str, Any]:
        """Members that the protocol does not know, as JSON values."""
        return {name: _read(raw, Any) for name, raw in raw_extra(self).items()}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        return _comparable(self) == _comparable(other)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __replace__(self, /, **changes: Any) -> Self:
        return with_extra(msgspec.structs.replace(self, **changes), raw_extra(self))

    def __reduce__(self) -> tuple[Any, ...]:
        members = {name: getattr(self, name) for name in self.__struct_fields__}
        return _rebuild, (type(self), members, raw_extra(self))


class Context(_Value, frozen=True, eq=False, kw_only=True):
    """The context that an envelope belongs to. Create one with `new_context`."""

    id: str
    type: str | None = None
    parent: str | None = None
    raw_metadata: Raw | UnsetType = msgspec.field(default=UNSET, name="metadata")

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The sender's metadata, empty if there is none. Treat it as read-only."""
        if self.raw_metadata is UNSET:
            return {}
        return msgspec.json.decode(self.raw_metadata, type=dict[str, Any])

    def __hash__(self) -> int:
        return hash(self.id)


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    """A reference to content that the gateway keeps beside its log, by its SHA-256.

    Type and name are what the sender says. Do not decide by them what is safe. The content of a
    private one can be fetched only by the participants that its envelope addresses (A-13).
    """

    hash: str
    size: int
    # By a function: msgspec leaves out what is the default itself, and E-32 requires it.
    media_type: str = msgspec.field(default_factory=lambda: _UNKNOWN_TYPE)
    name: str | None = None
    private: bool = False

    def __str__(self) -> str:
        """Return a line for people, such as `photo.png (image/png, 3.1 MB)`."""
        private = ", private" if self.private else ""
        facts = f"{self.media_type}, {_readable_size(self.size)}{private}"
        return f"{self.name or self.hash[:12]} ({facts})"


class Envelope(_Value, frozen=True, eq=False, kw_only=True):
    """One immutable message on the bus. Create one with `new_envelope` or `decode`.

    `sender` is `from` in JSON. Envelopes are equal if all members are, payloads by JSON value.
    """

    protocol: str
    id: str
    ts: str
    sender: str = msgspec.field(name="from")
    to: tuple[str, ...] | None = None
    kind: str
    correlation_id: str | None = None
    context: Context | None = None
    raw_attachments: Raw | UnsetType = msgspec.field(default=UNSET, name="attachments")
    raw_payload: Raw = msgspec.field(name="payload")

    @cached_property
    def attachments(self) -> tuple[Attachment, ...]:
        """The content that the envelope names, empty if there is none (E-32)."""
        if self.raw_attachments is UNSET:
            return ()
        return tuple(map(_attachment, msgspec.json.decode(self.raw_attachments)))

    @cached_property
    def payload(self) -> Any:
        """The payload's JSON value, parsed on first use. Treat it as read-only."""
        return _read(self.raw_payload, Any)

    def payload_as(self, type: type[T]) -> T:
        """Return the payload as `type`: a struct of `mcpp.payloads`, a dataclass, a typed dict.

        Of two members with the same name the last counts. Code that decides by a payload should
        reject such payloads with `codec.decode_unambiguous` first.

        Raises DecodeError with the path of the member that does not match.
        """
        try:
            value: T = _read(self.raw_payload, type)
            return value
        except msgspec.ValidationError as error:
            path, reason = path_and_reason(error)
            raise DecodeError(f"$.payload{path}", reason) from None
        except TypeError as error:
            if "unhashable" not in str(error):
                raise  # a type that msgspec does not support is the caller's mistake
            raise DecodeError("$.payload", "has an object or array as a member of a set") from None

    @property
    def size_bytes(self) -> int:
        """The bytes that the envelope takes: those of its whole text, whatever they are for (P-40).

        Exact to a few hundred bytes. Members that are not read, and spaces, stay in memory too.
        """
        size: int = self.__dict__.get("_size", 0)
        if size:
            return size
        context = self.context
        size = _FIXED_BYTES + len(self.raw_payload) + _extra_bytes(self)
        if self.to:
            size += sum(map(len, self.to)) + 3 * len(self.to)
        if self.raw_attachments is not UNSET:
            size += len(self.raw_attachments)
        if context is not None:
            size += 0 if context.raw_metadata is UNSET else len(context.raw_metadata)
            size += _extra_bytes(context)
        return size

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        shown = {"id": self.id, "kind": self.kind, "sender": self.sender}
        if self.context is not None:
            shown["context"] = self.context.id
        members = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"Envelope({members}, payload={_shortened(bytes(self.raw_payload).decode())})"


# The members whose length is bounded, with their names: about this much.
_FIXED_BYTES: Final = 256


# msgspec (as of 0.23) takes 8 µs to read `1e300`, 300 times as long as for `1e99`: a megabyte of
# such numbers would take seconds. Python's `float` takes 0.3 µs. Digits and signs become `0`.
_EXPONENT_SHAPE: Final = bytes(
    0x30 if byte in b"0123456789+-" else 0x65 if byte in b"eE" else 0x20 for byte in range(256)
)
_LONG_EXPONENT: Final = b"0e000"


def _read(raw: Raw, type: Any) -> Any:
    """Return a JSON value as a type, in a time that its length bounds (P-41)."""
    if bytes(raw).translate(_EXPONENT_SHAPE).find(_LONG_EXPONENT) >= 0:
        return msgspec.json.Decoder(type, float_hook=float).decode(raw)
    return msgspec.json.decode(raw, type=type)


def _attachment(value: dict[str, Any]) -> Attachment:
    return Attachment(
        value["hash"],
        int(value["size"]),
        value["media_type"],
        value.get("name"),
        value.get("private") is True,
    )


def _readable_size(size: int) -> str:
    for factor, unit in ((10**9, "GB"), (10**6, "MB"), (1000, "kB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _extra_bytes(value: _Value) -> int:
    return sum(len(name) + len(raw) + 4 for name, raw in raw_extra(value).items())


ENVELOPE_MEMBERS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(Envelope))
CONTEXT_MEMBERS: Final = frozenset(field.encode_name for field in msgspec.structs.fields(Context))


def raw_extra(value: _Value) -> dict[str, Raw]:
    """Return the unknown members of an envelope or a context as raw bytes."""
    raw: dict[str, Raw] = value.__dict__.get("_extra", {})
    return raw


def with_extra(value: V, raw: dict[str, Raw]) -> V:
    """Attach unknown members to a new envelope or context and return it."""
    if raw:
        value.__dict__["_extra"] = raw
    return value


def _rebuild(cls: type[V], members: dict[str, Any], extra: dict[str, Raw]) -> V:
    return with_extra(cls(**members), extra)


def _canonical(raw: Raw) -> bytes:
    """Return a canonical encoding, because Python values would not do: `True == 1`."""
    return msgspec.json.encode(_read(raw, Any), order="sorted")


def _comparable(value: _Value) -> list[object]:
    members = [getattr(value, name) for name in value.__struct_fields__]
    known = [_canonical(each) if isinstance(each, Raw) else each for each in members]
    return [*known, {name: _canonical(raw) for name, raw in raw_extra(value).items()}]


def _shortened(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
