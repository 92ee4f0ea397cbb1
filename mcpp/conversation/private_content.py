"""Private arguments and results of calls: JSON in an attachment for the other side only (A-14).

All participants hear the reference. So the content is salted, because the hash of a text that can
be guessed would confirm the guess, and padded, because its size tells how much there is to say.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from mcpp.errors import AttachmentError, DecodeError
from mcpp.prompts.attached import MARKS, AttachedString, read_marks
from mcpp.protocol.envelope import Attachment
from mcpp.protocol.jsontext import decode_unambiguous
from mcpp.protocol.rpc import ToolResult

__all__ = ["ARGUMENTS", "LEAST_BYTES", "RESULT", "mark", "marked", "pointing_to", "seal", "unseal"]

# Where the content belongs: pointers into the parameters of a call, and into its result.
ARGUMENTS: Final = "/arguments"
RESULT: Final = ""
MEDIA_TYPE: Final = "application/json"
MAX_ARGUMENTS_BYTES: Final = 1_048_576
MAX_RESULT_BYTES: Final = 16_777_216

_ENCODING: Final = "json"
_SALT_BYTES: Final = 16
LEAST_BYTES: Final = 16_384


def seal(value: msgspec.Raw) -> bytes:
    """Return JSON as the content of a private attachment, different each time."""
    content = msgspec.json.encode({"salt": secrets.token_hex(_SALT_BYTES), "value": value})
    padded = max(LEAST_BYTES, 1 << (len(content) - 1).bit_length())
    return content.ljust(padded)


def unseal(content: bytes) -> Any:
    """Return the JSON value in a private attachment. Raises AttachmentError."""
    try:
        document = decode_unambiguous(content, "$")
    except DecodeError as error:
        raise AttachmentError(None, f"the private content is invalid: {error}") from None
    if not isinstance(document, dict) or "value" not in document:
        raise AttachmentError(None, "the private content has no value")
    return document["value"]


def mark(reference: Attachment, pointer: str) -> dict[str, Any]:
    """Return the `_meta` of a call or a result whose content is private."""
    return {MARKS: [{"pointer": pointer, "hash": reference.hash, "encoding": _ENCODING}]}


def pointing_to(reference: Attachment, requester: str) -> dict[str, Any]:
    """Return what all hear of a private result."""
    text = {"type": "text", "text": f"The result is attached, for {requester} only."}
    return ToolResult([text], meta=mark(reference, RESULT)).to_json()


def marked(value: Any, pointer: str, named: Sequence[Attachment]) -> Attachment | None:
    """Return the private attachment that parameters or a result are marked with, if any."""
    if not named:
        return None
    hashes = {each.hash for each in read_marks(value) if _is_for(each, pointer)}
    return next((each for each in named if each.private and each.hash in hashes), None)


def _is_for(string: AttachedString, pointer: str) -> bool:
    return (string.pointer, string.encoding) == (pointer, _ENCODING)
