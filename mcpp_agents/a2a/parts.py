"""Parts of A2A messages and artifacts, as texts and as content of tool results."""

import base64
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import uuid4

import msgspec
from a2a.helpers.proto_helpers import get_data_parts, new_data_part
from a2a.types import Message, Part, Role

_IMAGES: Final = "image/"
# Objects and arrays in a part. Protocol Buffers read 100 levels of messages, three for an object.
_MAX_LEVELS: Final = 16


def text_part(text: str) -> Part:
    """Return a part with a text."""
    return Part(text=text, media_type="text/plain")


def data_part(value: Any) -> Part:
    """Return a part with a JSON value."""
    return new_data_part(value, media_type="application/json")


def shallow(value: Any, levels: int = _MAX_LEVELS) -> Any:
    """Return a JSON value in which what is nested deeper than so many levels is a text of JSON."""
    if not value or not isinstance(value, dict | list):
        return value
    if not levels:
        return msgspec.json.encode(value).decode()
    if isinstance(value, dict):
        return {name: shallow(inner, levels - 1) for name, inner in value.items()}
    return [shallow(inner, levels - 1) for inner in value]


def new_message(role: Role, *parts: Part, metadata: Mapping[str, Any] | None = None) -> Message:
    """Return a message with a new id."""
    message = Message(message_id=str(uuid4()), role=role, parts=parts)
    if metadata:
        message.metadata.update(metadata)
    return message


def data_of(part: Part) -> Any:
    """Return the JSON value of a part with data. Whole numbers are integers."""
    (value,) = get_data_parts([part])
    return _with_integers(value)


def text_of_part(part: Part) -> str:
    """Return a part as text. Of a file only the description; addresses are never fetched."""
    match part.WhichOneof("content"):
        case "text":
            return part.text
        case "data":
            return msgspec.json.encode(data_of(part)).decode()
        case "url":
            return f"{part.filename or 'file'}: {part.url}"
        case "raw":
            if part.media_type.startswith("text/"):
                return part.raw.decode(errors="replace")
            kind = part.media_type or "unknown type"
            return f"[{part.filename or 'file'}, {kind}, {len(part.raw)} bytes]"
        case _:
            return ""


def text_of_parts(parts: Iterable[Part], separator: str = "\n") -> str:
    """Return parts as one text."""
    return separator.join(filter(None, map(text_of_part, parts)))


def content_of_part(part: Part) -> dict[str, Any]:
    """Return a part as content of an MCP tool result."""
    match part.WhichOneof("content"):
        case "raw" if part.media_type.startswith(_IMAGES):
            data = base64.b64encode(part.raw).decode()
            return {"type": "image", "data": data, "mimeType": part.media_type}
        case "raw" if not part.media_type.startswith("text/"):
            blob = {
                "uri": f"a2a:{part.filename or 'file'}",
                "mimeType": part.media_type or "application/octet-stream",
                "blob": base64.b64encode(part.raw).decode(),
            }
            return {"type": "resource", "resource": blob}
        case "url":
            link = {"type": "resource_link", "uri": part.url, "name": part.filename or part.url}
            return link | ({"mimeType": part.media_type} if part.media_type else {})
        case _:
            return {"type": "text", "text": text_of_part(part)}


def _with_integers(value: Any) -> Any:
    """Return a JSON value whose whole numbers are integers: protobuf has only floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {name: _with_integers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_integers(each) for each in value]
    return value
