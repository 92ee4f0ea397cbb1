"""The text of envelopes as memory keeps it: cleaned, without secrets, attributed to its author."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from mcpp import Envelope, Kind, kinds
from mcpp.payloads import text_of
from mcpp_agents.memory.errors import InvalidMemory
from mcpp_agents.memory.redaction import redact, redact_named
from mcpp_agents.memory.requests import clean, to_seconds

# More than is ever kept of one message; redaction takes about 20 ms for it.
_MAX_READ_CHARS: Final = 32_768

# The members of a conclusion that come first, without their names.
_CONCLUSION_MEMBERS: Final = ("decision", "text", "plan", "summary")
# Metadata with a meaning of their own; all other metadata describe a context's subject (M-38).
_NOT_SUBJECT: Final = frozenset({"memory", "confidence", "started_at", "ended_at"})

# Characters of a secret that a cut may have split.
_SECRET_CHARS: Final = "".join(map(chr, range(ord("!"), ord("~") + 1)))
_MAX_SECRET_CHARS: Final = 8_192

# A word and a colon of any kind, after any markup. Possessive: the line is untrusted, and each
# character is read once.
_LIKE_A_TURN: Final = re.compile(
    r"\W*+[^\s:\uff1a\ufe55\u2236\ua789]++\s*+[:\uff1a\ufe55\u2236\ua789]"
)


def opts_out(metadata: Mapping[str, Any]) -> bool:
    """Return whether a context's metadata opt it out (M-33): any value but true and "on" does."""
    value = metadata.get("memory", True)
    return value is not True and not (isinstance(value, str) and value.strip().casefold() == "on")


def kept_text(envelope: Envelope) -> str:
    """Return the text of a chat, reflection or conclusion; empty for other kinds.

    A conclusion is kept completely: its main members first, then the others with their names.
    """
    if envelope.kind in (kinds.CHAT, kinds.REFLECTION):
        return _without_secrets(clean(text_of(envelope) or "").strip())
    if envelope.kind == kinds.CONCLUSION:
        return _without_secrets(_conclusion_text(envelope.payload))
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
    text = "" if name in _NOT_SUBJECT else _as_text({name: value})
    return _without_secrets(text) if text else ""


def failure_text(response: Envelope) -> str | None:
    """Return a description of the failure, if a response reports one."""
    kind = Kind.parse(response.kind)
    match response.payload:
        case {"error": dict(error)}:
            message = _as_text(error.get("message")) or _as_text(error)
        case {"error": str(error)}:
            message = _as_text(error)
        case {"result": {"isError": True, **rest}}:
            message = _first_text(rest.get("content"))
        case _:
            return None
    call = f"{response.sender}'s {_as_text(kind.name or kind.method or 'call')}"
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


def _conclusion_text(payload: Any) -> str:
    members = payload if isinstance(payload, dict) else {}
    main = {name: members[name] for name in _CONCLUSION_MEMBERS if members.get(name)}
    others = {name: value for name, value in members.items() if name not in main}
    if _is_number(others.get("confidence")):
        del others["confidence"]
    parts = [*map(_as_text, main.values()), _as_text(others if members else payload)]
    return "\n".join(dict.fromkeys(filter(None, parts)))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without_secrets(text: str) -> str:
    """Redact a text before it is cut or summarized: half a secret does not look like one."""
    if len(text) > _MAX_READ_CHARS:
        end = _MAX_READ_CHARS - _MAX_SECRET_CHARS
        text = text[:end] + text[end:_MAX_READ_CHARS].rstrip(_SECRET_CHARS)
    return redact(text)


def _as_text(value: Any) -> str:
    """Return a JSON value as text: a list as lines, an object as named lines, null as nothing."""
    match value:
        case None:
            return ""
        case str():
            return clean(value).strip()
        case bool():
            return str(value).lower()
        case list():
            return "\n".join(f"- {text}" for each in value if (text := _as_text(each)))
        case dict():
            lines = [(_as_text(name), _as_text(each)) for name, each in value.items()]
            return "\n".join(f"{name}: {redact_named(name, text)}" for name, text in lines if text)
    return str(value)


def _first_text(content: Any) -> str:
    """Return the first text in the content of a tool result."""
    parts = content if isinstance(content, list) else []
    texts = (_as_text(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
    return next(filter(None, texts), "")
