"""Content of results that is attached to their envelopes: where it was, and putting it back (A-12).

Without any I/O: the content is passed in.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from mcpp.protocol.envelope import Envelope

MARKS: Final = "mcpp/attachments"
_MAX_MARKS: Final = 256

Container: TypeAlias = dict[str, Any] | list[Any]


class AttachedString(msgspec.Struct, frozen=True):
    """Where a string was, as a JSON pointer (RFC 6901), and the attachment that has its content."""

    pointer: str
    hash: str
    encoding: str = "text"  # or base64: the string is the base64 of the content


def read_marks(result: Any) -> list[AttachedString]:
    """Return which strings of a result are attachments."""
    meta = result.get("_meta") if isinstance(result, dict) else None
    try:
        marks = msgspec.convert(meta[MARKS], list[AttachedString]) if isinstance(meta, dict) else []
    except (KeyError, msgspec.ValidationError):
        return []
    return marks[:_MAX_MARKS]


def escaped(key: str | int) -> str:
    """Return a key as a part of a pointer."""
    return str(key).replace("~", "~0").replace("/", "~1")


def find_empty(result: Any, pointer: str) -> tuple[Any, str | int] | None:
    """Return container and key of an empty string; None if there is none at this place."""
    if not pointer.startswith("/"):
        return None
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    *parents, last = parts
    holder = result
    for part in parents:
        holder = _item(holder, part)
    if _item(holder, last) != "":
        return None
    return (holder, int(last)) if isinstance(holder, list) else (holder, last)


def as_string(content: bytes, encoding: str) -> str:
    """Return content as the string that it was. Raises UnicodeDecodeError."""
    return base64.b64encode(content).decode() if encoding == "base64" else content.decode()


def unmark(result: dict[str, Any], kept: list[AttachedString]) -> None:
    """Remove the marks of what was put back."""
    meta = {name: value for name, value in result["_meta"].items() if name != MARKS}
    if kept:
        meta[MARKS] = msgspec.to_builtins(kept)
    if meta:
        result["_meta"] = meta
    else:
        del result["_meta"]


def with_contents(envelope: Envelope, contents: Mapping[str, bytes]) -> Envelope:
    """Return a response with those strings put back whose content is given, by hash."""
    named = {each.hash for each in envelope.attachments} & contents.keys()
    payload = envelope.payload
    marks = read_marks(payload.get("result")) if named and isinstance(payload, dict) else []
    if not any(mark.hash in named for mark in marks):
        return envelope
    copy = msgspec.json.decode(envelope.raw_payload)
    kept = []
    for mark in marks:
        place = find_empty(copy["result"], mark.pointer) if mark.hash in named else None
        if place is None:
            kept.append(mark)
            continue
        holder, key = place
        try:
            holder[key] = as_string(contents[mark.hash], mark.encoding)
        except UnicodeDecodeError:
            kept.append(mark)
    unmark(copy["result"], kept)
    return envelope.__replace__(raw_payload=Raw(msgspec.json.encode(copy)))


def _item(holder: Any, part: str) -> Any:
    if isinstance(holder, dict):
        return holder.get(part)
    if isinstance(holder, list) and part.isascii() and part.isdigit() and len(part) < 7:
        return holder[int(part)] if int(part) < len(holder) else None
    return None
