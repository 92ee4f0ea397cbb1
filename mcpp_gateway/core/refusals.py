"""Refusals: every way in which the gateway says no to an envelope, and the sentence it says."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mcpp.errors import DecodeError, FilterError
from mcpp.protocol.envelope import ID_PATTERN
from mcpp.protocol.jsontext import refuse_constant, split_object

_is_id = re.compile(ID_PATTERN).fullmatch

# Above this a text with any member twice is not searched for its id: that takes ten times as long,
# and refusing has to be cheaper than flooding (C-16).
_MAX_SEARCHED_BYTES: Final = 4096


class Refusal(msgspec.Struct, frozen=True):
    """Why an envelope was refused: a code for programs, a sentence for people, and facts."""

    code: str
    message: str
    facts: Mapping[str, Any] = {}

    def payload(self) -> dict[str, Any]:
        """Return the payload of the `system/error` that tells the sender."""
        return {"error": self.code, "message": self.message, **self.facts}


def invalid_envelope(error: DecodeError) -> Refusal:
    """Refuse a text that is not an envelope."""
    return Refusal("invalid_envelope", str(error))


def sender_mismatch(claimed: str, actual: str) -> Refusal:
    """Refuse to relay one participant's words under another's name."""
    return Refusal("sender_mismatch", f"from is {claimed!r}, but you are {actual!r}")


def reserved_kind(kind: str) -> Refusal:
    """Refuse a kind that only the gateway may send, or that it does not serve."""
    if kind.startswith("pod/"):
        return Refusal("reserved_kind", f"the gateway serves pod/filter, not {kind}")
    return Refusal("reserved_kind", f"only the gateway sends {kind}")


def capability_violation(kind: str, patterns: Sequence[Mapping[str, Any]]) -> Refusal:
    """Refuse what none of the sender's capabilities allows."""
    return Refusal(
        "capability_violation",
        f"none of your capabilities allows this {kind}",
        {"attempted_kind": kind, "your_capabilities": patterns},
    )


def rate_limited(wait: float, scope: str) -> Refusal:
    """Refuse for now: the bucket of the participant or of the context is empty."""
    seconds = round(wait + 0.0005, 3)
    return Refusal(
        "rate_limited",
        f"too many messages from this {scope}; try again in {seconds} s",
        {"retry_after_seconds": seconds, "scope": scope},
    )


def duplicate_id(id: str) -> Refusal:
    """Refuse an id that another participant has used."""
    return Refusal("duplicate_id", f"another participant has sent an envelope with the id {id}")


def unavailable() -> Refusal:
    """Refuse for now: the log has no room for more."""
    return Refusal("unavailable", "the gateway cannot store more at the moment; try again")


_CONTEXT_MESSAGES: Final = {
    "context_cycle": "would make context {id} its own ancestor",
    "context_parent_changed": "context {id} has another parent already",
    "context_depth_exceeded": "context {id} would lie deeper than the limit",
    "context_limit": "context {id} would be one more than may live at once",
}


def context(code: str, id: str) -> Refusal:
    """Refuse a context that has no place in the tree."""
    return Refusal(code, _CONTEXT_MESSAGES[code].format(id=id))


def invalid_filter(error: DecodeError | FilterError) -> Refusal:
    """Refuse a filter that breaks a rule of the algebra."""
    return Refusal("invalid_filter", str(error))


def readable_id(text: bytes) -> str | None:
    """Return the id of a refused text, if it is there once and is well formed."""
    try:
        if len(text) > _MAX_SEARCHED_BYTES:
            ids: list[object] = [_read_text(split_object(text, "$").get("id", b""))]
        else:
            # Every object arrives as its pairs, so the outermost one shows what is there twice.
            pairs = json.loads(
                text.decode(), object_pairs_hook=tuple, parse_constant=refuse_constant
            )
            ids = [value for key, value in pairs if key == "id"] if isinstance(pairs, tuple) else []
    except (ValueError, RecursionError, msgspec.MsgspecError, DecodeError):
        return None
    match ids:
        case [str() as id] if _is_id(id):
            return id
    return None


_read_text = msgspec.json.Decoder(str).decode
