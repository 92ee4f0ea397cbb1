"""The JSON Schema of the protocol, generated from the structs and patterns of the codec.

It cannot express UTF-8, depth, the size of numbers and metadata, or repeated names: those depend
on the text, and a schema only sees the value.
"""

import re
from typing import Any, Final

import msgspec

from mcpp.payloads import BY_FAMILY
from mcpp.protocol.envelope import (
    HASH_PATTERN,
    ID_PATTERN,
    KIND_PATTERN,
    MAX_ATTACHMENTS,
    MAX_KIND_LENGTH,
    MAX_MEMBERS,
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
)

ID: Final = "urn:mcpp:v0.1:envelope"
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_PATTERNS: Final = {
    "id": ID_PATTERN,
    "id_or_reference": f"{ID_PATTERN}|{REFERENCE_PATTERN}",
    "participant": PARTICIPANT_PATTERN,
    "kind": KIND_PATTERN,
    "timestamp": TIMESTAMP_PATTERN,
    "hash": HASH_PATTERN,
    "media_type": MEDIA_TYPE_PATTERN,
    "file_name": NAME_PATTERN,
}
_ENVELOPE: Final[dict[str, dict[str, Any]]] = {
    "protocol": {"const": PROTOCOL},
    "id": {"$ref": "#/$defs/id"},
    "ts": {"$ref": "#/$defs/timestamp"},
    "from": {"$ref": "#/$defs/participant"},
    "to": {
        "type": ["array", "null"],
        "items": {"$ref": "#/$defs/participant"},
        "maxItems": MAX_RECIPIENTS,
    },
    "kind": {"$ref": "#/$defs/kind"},
    "correlation_id": {"anyOf": [{"$ref": "#/$defs/id_or_reference"}, {"type": "null"}]},
    "context": {"anyOf": [{"$ref": "#/$defs/context"}, {"type": "null"}]},
    "attachments": {
        "type": ["array", "null"],
        "items": {"$ref": "#/$defs/attachment"},
        "maxItems": MAX_ATTACHMENTS,
    },
    "payload": {},
}
_CONTEXT: Final[dict[str, dict[str, Any]]] = {
    "id": {"$ref": "#/$defs/id"},
    "type": {"anyOf": [{"$ref": "#/$defs/kind"}, {"type": "null"}]},
    "parent": {"anyOf": [{"$ref": "#/$defs/id_or_reference"}, {"type": "null"}]},
    "metadata": {"type": ["object", "null"]},
}

_ATTACHMENT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["hash", "size", "media_type"],
    "properties": {
        "hash": {"$ref": "#/$defs/hash"},
        "size": {"type": "integer", "minimum": 0, "maximum": MAX_SIZE},
        "media_type": {"$ref": "#/$defs/media_type"},
        "name": {"anyOf": [{"$ref": "#/$defs/file_name"}, {"type": "null"}]},
        "private": {"type": ["boolean", "null"]},
    },
    "maxProperties": MAX_MEMBERS,
}

_PRIVATE: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["private"],
    "properties": {"private": {"const": True}},
}
_PRIVATE_NEEDS_ADDRESSEES: Final[dict[str, Any]] = {
    "if": {
        "required": ["attachments"],
        "properties": {"attachments": {"type": "array", "contains": _PRIVATE}},
    },
    "then": {"required": ["to"], "properties": {"to": {"type": "array"}}},
}


def generate() -> dict[str, Any]:
    """Return the schema of an envelope; its `$defs/message` also checks payloads by kind."""
    payloads = sorted(set(BY_FAMILY.values()), key=lambda payload: payload.__name__)
    refs, definitions = msgspec.json.schema_components(payloads, ref_template="#/$defs/{name}")
    by_payload = dict(zip(payloads, refs, strict=True))
    message = {
        "allOf": [
            {"$ref": "#"},
            *(_when(family, by_payload[payload]) for family, payload in BY_FAMILY.items()),
        ]
    }
    texts = {name: _text(pattern) for name, pattern in _PATTERNS.items()}
    texts["kind"]["maxLength"] = MAX_KIND_LENGTH
    return {
        "$schema": _DIALECT,
        "$id": ID,
        "title": f"An envelope of {PROTOCOL}",
        **_object(Envelope, _ENVELOPE),
        **_PRIVATE_NEEDS_ADDRESSEES,
        "$defs": {
            **texts,
            "context": _object(Context, _CONTEXT),
            "attachment": _ATTACHMENT,
            "message": message,
        }
        | definitions,
    }


def render() -> str:
    """Return the schema as the text of `spec/schema/envelope.json`."""
    return msgspec.json.format(msgspec.json.encode(generate()), indent=2).decode() + "\n"


def _object(struct: type[msgspec.Struct], members: dict[str, dict[str, Any]]) -> dict[str, Any]:
    fields = msgspec.structs.fields(struct)
    return {
        "type": "object",
        "required": [field.encode_name for field in fields if field.required],
        "properties": {field.encode_name: members[field.encode_name] for field in fields},
        "maxProperties": MAX_MEMBERS,
    }


def _text(pattern: str) -> dict[str, Any]:
    # Some validators, Python's among them, let `$` match before a trailing newline.
    return {"type": "string", "pattern": f"^(?:{pattern})$", "not": {"pattern": "\\n"}}


def _when(family: str, payload: dict[str, Any]) -> dict[str, Any]:
    kinds = {"pattern": f"^{re.escape(family)}(?::|$)"}
    return {
        "if": {"properties": {"kind": kinds}},
        "then": {"properties": {"payload": payload}},
    }
