"""The text of envelopes as memory keeps it: cleaned, without secrets, attributed to its author."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

import msgspec

from mcpp import Envelope, Kind, ToolResult, kinds
from mcpp.outcomes import usage_of
from mcpp.payloads import outcome_in, text_of
from mcpp_agents.memory.errors import InvalidMemory
from mcpp_agents.memory.redaction import WITHHELD, is_password_name, redact
from mcpp_agents.memory.requests import clean, to_seconds, without_passwords

# More than is ever kept of one message; redaction takes about 20 ms for it.
_MAX_READ_CHARS: Final = 32_768

# The members that `text_of` returns; memory keeps the others of a conclusion, too.
_CONCLUSION_MEMBERS: Final = frozenset({"decision", "text"})
_FAILURE_MEMBERS: Final = _CONCLUSION_MEMBERS | {"outcome", "error"}
# Metadata with a meaning of their own; all other metadata describe a context's subject (M-38).
_NOT_SUBJECT: Final = frozenset({"memory", "confidence", "started_at", "ended_at", "steps"})

# Characters of a secret that a cut may have split.
_SECRET_CHARS: Final = "".join(map(chr, range(ord("!"), ord("~") + 1)))
_MAX_SECRET_CHARS: Final = 8_192

# A word and a colon of any kind, after any markup. Possessive: the line is untrusted, and each
# character is read once.
_LIKE_A_TURN: Final = re.compile(
    r"\W*+[^\s:\uff1a\ufe55\u2236\ua789]++\s*+[:\uff1a\ufe55\u2236\ua789]"
)


def kept_text(envelope: Envelope) -> str:
    """Return the text of a chat, reflection or conclusion; empty for other kinds.

    A conclusion is kept completely: what it says, then its other members with their names, except
    for the tokens it has used (C-22).
    """
    if envelope.kind in (kinds.CHAT, kinds.REFLECTION):
        return _without_secrets(_said(envelope))
    if envelope.kind == kinds.CONCLUSION:
        return _without_secrets(_conclusion_text(envelope))
    return ""


def confidence(conclusion: Envelope) -> float | None:
    """Return the numeric confidence in a conclusion's payload or its context's metadata."""
    context = conclusion.context
    for members in (conclusion.payload, context.metadata if context else {}):
        value = members.get("confidence") if isinstance(members, Mapping) else None
        if _is_number(value):
            return value
    return None


def subject_text(name: str, value: Any) -> str:
    """Return a context's metadata member as a line about its subject, empty if it is none."""
    if name in _NOT_SUBJECT or (name == "prompt" and _is_prompt_record(value)):
        return ""
    text = _as_lines({name: value})
    return _without_secrets(text) if text else ""


def is_model_answer(conclusion: Envelope) -> bool:
    """Return whether a model answers a question with it, and calls nothing in it a decision."""
    context, payload = conclusion.context, conclusion.payload
    record = context.metadata.get("prompt") if context else None
    if isinstance(payload, Mapping) and payload.get("decision") is not None:
        return False
    return _is_prompt_record(record) and isinstance(record.get("question"), str)


def failure_text(response: Envelope) -> str | None:
    """Return a description of the failure, if a response reports one."""
    kind = Kind.parse(response.kind)
    match response.payload:
        case {"error": dict(error)}:
            message = _as_lines(error.get("message")) or _as_lines(error)
        case {"error": str(error)}:
            message = _as_lines(error)
        case {"result": {"isError": True, **rest}}:
            message = clean(ToolResult.from_json(rest).text).strip()
        case _:
            return None
    call = f"{response.sender}'s {_as_lines(kind.name or kind.method or 'call')}"
    text = _without_secrets(f"{call} failed: {message}" if message else f"{call} failed")
    return attribute_lines(response.sender, text)


def valid_time(ts: str) -> str | None:
    """Return an envelope's timestamp, None if Python cannot represent it, such as the year 0."""
    try:
        to_seconds(ts)
    except InvalidMemory:
        return None
    return ts


def attribute_lines(author: str, text: str) -> str:
    """Prefix lines that look like a turn with their real author, so that none can be forged."""
    lines = text.splitlines()
    return "\n".join(f"{author}: {line}" if _LIKE_A_TURN.match(line) else line for line in lines)


def _said(envelope: Envelope) -> str:
    return clean(text_of(envelope) or "").strip()


def _conclusion_text(envelope: Envelope) -> str:
    payload = without_passwords(envelope.payload)
    others = {}
    if isinstance(payload, dict):
        is_concluded = outcome_in(payload) == "concluded"
        told = _CONCLUSION_MEMBERS if is_concluded else _FAILURE_MEMBERS
        others = {name: payload[name] for name in payload if name not in told}
        if _is_number(others.get("confidence")):
            del others["confidence"]
        if usage_of(envelope) is not None:
            del others["usage"]
        payload = {name: payload[name] for name in payload if name in told}
    raw = msgspec.Raw(msgspec.json.encode(payload))
    parts = [_said(msgspec.structs.replace(envelope, raw_payload=raw)), _as_lines(others)]
    return "\n".join(dict.fromkeys(filter(None, parts)))


def _is_prompt_record(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a metadata value says which prompt produced a conclusion (P-38)."""
    return isinstance(value, Mapping) and isinstance(value.get("digest"), str)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without_secrets(text: str) -> str:
    """Redact a text before it is cut or summarized: half a secret does not look like one."""
    if len(text) > _MAX_READ_CHARS:
        end = _MAX_READ_CHARS - _MAX_SECRET_CHARS
        text = text[:end] + text[end:_MAX_READ_CHARS].rstrip(_SECRET_CHARS)
    return redact(text)


def _as_lines(value: Any) -> str:
    """Return a JSON value as text: a list as lines, an object as named lines, null as nothing."""
    match value:
        case None:
            return ""
        case str():
            return clean(value).strip()
        case bool():
            return str(value).lower()
        case list():
            return "\n".join(f"- {text}" for each in value if (text := _as_lines(each)))
        case dict():
            lines = [(_as_lines(name), _as_lines(each)) for name, each in value.items()]
            return "\n".join(
                f"{name}: {WITHHELD if is_password_name(name) else text}"
                for name, text in lines
                if text
            )
    return str(value)
