"""Refusals: the codes and messages with which the gateway rejects an envelope."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mcpp.errors import DecodeError, FilterError
from mcpp.protocol.envelope import ID_PATTERN
from mcpp.protocol.jsontext import refuse_constant, split_object

_is_id = re.compile(ID_PATTERN).fullmatch

# Larger texts are searched for their id by a method that gives up on repeated members. The other
# one takes ten times as long, and refusing must be cheaper than flooding (C-16).
_MAX_SEARCHED_BYTES: Final = 4096


class Refusal(msgspec.Struct, frozen=True):
    """Why an envelope was refused: a code for programs, a sentence for people, and facts."""

    code: str
    message: str
    facts: Mapping[str, Any] = {}

    def payload(self) -> dict[str, Any]:
        """Return the payload of the `system/error` for the sender."""
        return {"error": self.code, "message": self.message, **self.facts}


def invalid_envelope(error: DecodeError) -> Refusal:
    """Refuse a text that is not an envelope."""
    return Refusal("invalid_envelope", str(error))


def sender_mismatch(claimed: str, actual: str) -> Refusal:
    """Refuse an envelope whose `from` is not the participant of the connection."""
    return Refusal(
        "sender_mismatch", f"from is {claimed!r}, but this connection belongs to {actual!r}"
    )


def reserved_kind(kind: str) -> Refusal:
    """Refuse a kind that only the gateway may send, or that it does not support."""
    if kind.startswith("pod/"):
        return Refusal("reserved_kind", f"this gateway does not support {kind}")
    return Refusal("reserved_kind", f"only the gateway may send {kind}")


def capability_violation(kind: str, patterns: Sequence[Mapping[str, Any]]) -> Refusal:
    """Refuse an envelope that none of the sender's capabilities allows."""
    return Refusal(
        "capability_violation",
        f"none of your capabilities allows this {kind}",
        {"attempted_kind": kind, "your_capabilities": patterns},
    )


def rate_limited(wait: float, scope: str) -> Refusal:
    """Refuse an envelope because the bucket of its participant or context is empty."""
    seconds = round(wait + 0.0005, 3)
    return Refusal(
        "rate_limited",
        f"too many messages from this {scope}; try again in {seconds} s",
        {"retry_after_seconds": seconds, "scope": scope},
    )


def duplicate_id(id: str) -> Refusal:
    """Refuse an id that another participant has already used."""
    return Refusal("duplicate_id", f"another participant has already used the id {id}")


def no_attachment(hash: str) -> Refusal:
    """Refuse an envelope that names content which its sender may not read, or which is not there.

    Which of these it is stays unsaid: a hash that was guessed must not tell what others have.
    """
    return Refusal(
        "no_attachment",
        f"there is no blob {hash} of this size for you: upload it, or name one that you have heard",
        {"hash": hash},
    )


def loop_suspected(hops: int) -> Refusal:
    """Refuse a chat because too many followed each other without a person."""
    return Refusal(
        "loop_suspected",
        f"{hops - 1} chats followed each other without a person; one has to join in before more",
        {"hops": hops},
    )


def context_not_live(id: str) -> Refusal:
    """Refuse a live part because its context is not live: a part cannot open one."""
    return Refusal("context_not_live", f"context {id} is not live, and a live part cannot open it")


def unavailable() -> Refusal:
    """Refuse for now: the log has no room for more."""
    return Refusal(
        "unavailable",
        "the gateway has no space left to store this; try again",
        {"retry_after_seconds": 1.0},
    )


_CONTEXT_MESSAGES: Final = {
    "context_cycle": "context {id} would become its own ancestor",
    "context_parent_changed": "context {id} already has another parent",
    "context_depth_exceeded": "context {id} would be deeper than max_context_depth",
    "context_limit": "context {id} would exceed the number of contexts allowed",
}


def context(code: str, id: str) -> Refusal:
    """Refuse a context that the tree does not accept."""
    return Refusal(code, _CONTEXT_MESSAGES[code].format(id=id))


def invalid_card(error: DecodeError) -> Refusal:
    """Refuse a request about a card that is not valid."""
    return Refusal("invalid_card", str(error))


def no_card(participant: str) -> Refusal:
    """Refuse a request for a card that there is not, or that the participant may not read."""
    return Refusal("no_card", f"there is no card of {participant!r} for you")


def card_limit() -> Refusal:
    """Refuse a card because those of the pod take too much room together."""
    return Refusal("card_limit", "the cards of this pod take too much room together")


def invalid_filter(error: DecodeError | FilterError) -> Refusal:
    """Refuse a filter that is not valid."""
    return Refusal("invalid_filter", str(error))


def invalid_history(member: str, reason: str) -> Refusal:
    """Refuse a query for history that cannot be answered."""
    return Refusal("invalid_history", f"{member} {reason}", {"member": member})


def read_only() -> Refusal:
    """Refuse an envelope because the pod is a replay."""
    return Refusal("read_only", "this pod replays a recording: nothing can be sent to it")


def invalid_replay(member: str, reason: str) -> Refusal:
    """Refuse a request to control a replay."""
    return Refusal("invalid_replay", f"{member} {reason}", {"member": member})


def log_unreadable() -> Refusal:
    """Refuse a query for history because the log cannot be read there."""
    return Refusal("log_unreadable", "this part of the log cannot be read")


def filter_limit() -> Refusal:
    """Refuse a filter because too many different ones are in use."""
    return Refusal(
        "filter_limit",
        "too many different filters: see max_filters_per_participant and max_filters_per_pod",
    )


def readable_id(text: bytes) -> str | None:
    """Return the id of a refused text, if it has exactly one and it is well formed (G-23)."""
    try:
        if len(text) > _MAX_SEARCHED_BYTES:
            ids: list[object] = [_read_text(split_object(text, "$").get("id", b""))]
        else:
            # Every object is read as a tuple of pairs, which shows repeated members.
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
