"""MCP content by reference: large strings of results become attachments, and return unchanged.

A string such as a picture's `data` is uploaded and left empty in the result. The result's own
`_meta["mcpp/attachments"]` says where it was and which attachment has it (A-12). Servers repeat
content in `structuredContent`, so strings are replaced wherever they are.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import anyio.to_thread
import msgspec

from mcpp.conversation import attachments, private_content
from mcpp.errors import AttachmentError
from mcpp.prompts.attached import (
    MARKS,
    AttachedString,
    Container,
    as_string,
    escaped,
    find_empty,
    read_marks,
    unmark,
)
from mcpp.protocol.envelope import MAX_ATTACHMENTS, MEDIA_TYPE_PATTERN, Attachment
from mcpp.transports.transport import Connector

__all__ = ["restore", "to_references"]

LARGE_CHARACTERS: Final = 65_536
MAX_RESTORED_BYTES: Final = 67_108_864  # of one result
_BINARY_MEMBERS: Final = ("data", "blob")  # of pictures, sounds and resources
_UNKNOWN_TYPE: Final = "application/octet-stream"
_is_media_type = re.compile(MEDIA_TYPE_PATTERN).fullmatch


async def to_references(
    connector: Connector, result: Any, max_bytes: int
) -> tuple[Any, list[Attachment]]:
    """Return a result in which large content is replaced by references, and these.

    Pictures, sounds and binary resources are replaced if they are large; texts only if the result
    would have more than `max_bytes` otherwise. Raises AttachmentError if it is too large and its
    content cannot be uploaded.
    """
    if not isinstance(result, dict) or next(_large_strings(result), None) is None:
        return result, []
    copy = msgspec.json.decode(msgspec.json.encode(result))
    moved: dict[str, tuple[Attachment, str]] = {}  # by the string
    marks: list[AttachedString] = []
    try:
        for are_texts in (False, True):
            if are_texts and len(msgspec.json.encode(copy)) <= max_bytes:
                break
            for path, holder, key in list(_large_strings(copy)):
                text: str = holder[key]
                if are_texts or key in _BINARY_MEMBERS:
                    if text not in moved and len(moved) == MAX_ATTACHMENTS:
                        continue
                    if text not in moved:
                        moved[text] = await _upload(connector, text, holder)
                    reference, encoding = moved[text]
                    marks.append(AttachedString(path, reference.hash, encoding))
                    holder[key] = ""
    except AttachmentError:
        if len(msgspec.json.encode(result)) > max_bytes:
            raise
        return result, []
    if not marks:
        return result, []
    meta = copy.get("_meta")
    copy["_meta"] = {**(meta if isinstance(meta, dict) else {}), MARKS: marks}
    return copy, list(dict.fromkeys(reference for reference, _ in moved.values()))


async def restore(connector: Connector, result: Any, named: Sequence[Attachment]) -> Any:
    """Return a result with the content of its references in place. Raises AttachmentError.

    What is marked and not named, or beyond 64 MiB in sum, stays a reference. A private result
    (A-14) takes the place of the one that all have heard.
    """
    if sealed := private_content.marked(result, private_content.RESULT, named):
        content = await attachments.fetch(connector, sealed, private_content.MAX_RESULT_BYTES)
        return await anyio.to_thread.run_sync(private_content.unseal, content)
    known = {each.hash: each for each in named}
    contents: dict[str, bytes] = {}
    left, kept = MAX_RESTORED_BYTES, []
    for mark in read_marks(result):
        place, reference = find_empty(result, mark.pointer), known.get(mark.hash)
        if place is None or reference is None or reference.size > left:
            kept.append(mark)
            continue
        left -= reference.size
        if mark.hash not in contents:
            contents[mark.hash] = await attachments.fetch(connector, reference, reference.size)
        holder, key = place
        try:
            holder[key] = await anyio.to_thread.run_sync(
                as_string, contents[mark.hash], mark.encoding
            )
        except UnicodeDecodeError:
            raise AttachmentError(None, "an attached text is not UTF-8") from None
    if contents:
        unmark(result, kept)
    return result


async def _upload(connector: Connector, text: str, holder: Container) -> tuple[Attachment, str]:
    content, encoding = await anyio.to_thread.run_sync(_bytes, text)
    given = holder.get("mimeType") if isinstance(holder, dict) else None
    media_type = _UNKNOWN_TYPE if encoding == "base64" else "text/plain"
    if isinstance(given, str) and _is_media_type(given):
        media_type = given
    return await attachments.upload(connector, content, None, media_type), encoding


def _bytes(text: str) -> tuple[bytes, str]:
    """Return what a string holds. Only base64 that can be written the same again is decoded."""
    try:
        content = base64.b64decode(text, validate=True)
        if base64.b64encode(content).decode() == text:
            return content, "base64"
    except (binascii.Error, ValueError):
        pass
    return text.encode(), "text"


def _large_strings(result: Container) -> Iterator[tuple[str, Any, Any]]:
    """Yield pointer, container and key of every large string."""
    waiting: list[tuple[str, Container]] = [("", result)]
    while waiting:
        path, holder = waiting.pop()
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in items:
            if isinstance(value, str):
                if len(value) > LARGE_CHARACTERS:
                    yield f"{path}/{escaped(key)}", holder, key
            elif isinstance(value, dict | list):
                waiting.append((f"{path}/{escaped(key)}", value))
