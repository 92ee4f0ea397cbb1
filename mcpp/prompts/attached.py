"""Attached content in prompts: strings of results that are put back (A-12), and pictures.

Without any I/O: the content is passed in.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from mcpp.prompts.blocks import ImageBlock
from mcpp.protocol.envelope import Attachment, Envelope
from mcpp.tokens import image_size

_IMAGES: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n").match,
    "image/jpeg": re.compile(rb"\xff\xd8\xff").match,
    "image/gif": re.compile(rb"GIF8[79]a").match,
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL).match,
}
"""Image types that every API accepts, each with its signature."""

MAX_IMAGE_SIDE: Final = 8000
MAX_IMAGE_CHARS: Final = 5_000_000
"""Anthropic's limits, the strictest: pixels a side, and characters of base64."""

MAX_PICTURE_BYTES: Final = MAX_IMAGE_CHARS // 4 * 3
"""Of one attached picture; in base64 it has `MAX_IMAGE_CHARS`."""

# Of the log before a question: as many as a prompt shows. Then of what comes while it is answered.
_EARLIER_PICTURES: Final = 20
_EARLIER_BYTES: Final = 15_000_000
_LATER_PICTURES: Final = 40
_LATER_BYTES: Final = 48_000_000

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


def is_image(data: str, media_type: str) -> bool:
    """Return whether every API accepts an image, given in base64."""
    # An API refuses the whole request for one image that is too large or mislabelled, and every
    # later request too, since the image stays in the log.
    has_signature = _IMAGES.get(media_type)
    if has_signature is None or len(data) > MAX_IMAGE_CHARS:
        return False
    try:
        if not has_signature(base64.b64decode(data, validate=True)):
            return False
    except (binascii.Error, ValueError):
        return False
    size = image_size(data)
    return size is not None and all(0 < side <= MAX_IMAGE_SIDE for side in size)


def attached_images(envelope: Envelope, contents: Mapping[str, bytes]) -> tuple[ImageBlock, ...]:
    """Return the pictures that are attached to an envelope and whose content is given."""
    found = []
    for each in envelope.attachments:
        if _is_picture(each) and each.hash in contents:
            data = base64.b64encode(contents[each.hash]).decode()
            found += [ImageBlock(data, each.media_type)] if is_image(data, each.media_type) else []
    return tuple(found)


class PictureChoice:
    """Which attached pictures the prompts for a question show; the same log gives the same choice.

    Those are the newest of the log when the question is taken up, and then all that come, each
    within bounds of number and bytes. Of results, only those of the viewer's own calls count.
    """

    def __init__(self, viewer: str) -> None:
        self._viewer = viewer
        self._chosen: set[str] = set()
        self._count, self._bytes = _EARLIER_PICTURES, _EARLIER_BYTES

    def begin(self, log: Sequence[Envelope], question: Envelope | None) -> list[Attachment]:
        """Return the pictures of the log so far to show, and those of the question."""
        newest = [] if question is None else [question]
        found = list(self._take((*newest, *reversed(log))))
        self._count, self._bytes = _LATER_PICTURES, _LATER_BYTES
        return found

    def add(self, envelope: Envelope) -> list[Attachment]:
        """Return the pictures of the next envelope to show."""
        return list(self._take((envelope,))) if envelope.attachments else []

    def _take(self, envelopes: Iterable[Envelope]) -> Iterator[Attachment]:
        for envelope in envelopes:
            for each in envelope.attachments if self._reads(envelope) else ():
                if not _is_picture(each) or each.hash in self._chosen:
                    continue
                if each.private and not self._is_addressed(envelope):
                    continue  # it cannot be fetched
                if self._count < 1 or each.size > self._bytes:
                    return
                self._count -= 1
                self._bytes -= each.size
                self._chosen.add(each.hash)
                yield each

    def _reads(self, envelope: Envelope) -> bool:
        if envelope.kind.startswith("mcp/response:"):
            return self._is_addressed(envelope)
        return envelope.sender != self._viewer

    def _is_addressed(self, envelope: Envelope) -> bool:
        return self._viewer in (envelope.to or ())


def _is_picture(attachment: Attachment) -> bool:
    return attachment.media_type in _IMAGES and attachment.size <= MAX_PICTURE_BYTES


def _item(holder: Any, part: str) -> Any:
    if isinstance(holder, dict):
        return holder.get(part)
    if isinstance(holder, list) and part.isascii() and part.isdigit() and len(part) < 7:
        return holder[int(part)] if int(part) < len(holder) else None
    return None
