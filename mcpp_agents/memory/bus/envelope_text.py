"""What an envelope says, as text that may be kept: clean, without secrets, in its author's name."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from mcpp import Envelope, Kind, kinds
from mcpp_agents.memory.errors import InvalidMemory
from mcpp_agents.memory.redaction import redact, redact_named
from mcpp_agents.memory.requests import clean, to_seconds

# More than is ever kept of one message; redaction takes some 20 ms for it.
_MAX_READ_CHARS: Final = 32_768

# Where the kinds that are understood hold their texts.
_NAMES: Final = {
    kinds.CHAT: ("text",),
    kinds.REFLECTION: ("thought",),
    kinds.CONCLUSION: ("decision", "text", "plan", "summary"),
}
# Metadata that are for the protocol and for us; the rest is what a context is about.
_NOT_ABOUT: Final = frozenset({"memory", "confidence", "started_at", "ended_at"})

# A word that a cut may have gone through; those of scripts without spaces are no secrets.
_OF_SECRETS: Final = "".join(map(chr, range(ord("!"), ord("~") + 1)))
_MAX_SECRET_CHARS: Final = 8_192

# A word and a colon, whatever markup is before it and whichever colon it is. It takes each
# character once, because the line is another's.
_LIKE_A_TURN: Final = re.compile(
    r"\W*+[^\s:\uff1a\ufe55\u2236\ua789]++\s*+[:\uff1a\ufe55\u2236\ua789]"
)


def says_off(metadata: Mapping[str, Any]) -> bool:
    """Whether a context's metadata opt it out (M-33): in doubt, what was said is not kept."""
    value = metadata.get("memory", True)
    return value is not True and not (isinstance(value, str) and value.strip().casefold() == "on")


def said(envelope: Envelope) -> str:
    """The text that an envelope of a known kind carries, empty where there is none.

    Of a conclusion it is all that was concluded: what it is called to be first, then the others of
    its members by their names.
    """
    payload = envelope.payload
    names = _NAMES.get(envelope.kind, ())
    known = payload if isinstance(payload, dict) else {}
    first = {name: known[name] for name in names if known.get(name)}
    parts = [_text(value) for value in first.values()]
    if envelope.kind == kinds.CONCLUSION:
        others = {name: each for name, each in known.items() if name not in first}
        if _is_number(others.get("confidence")):
            del others["confidence"]
        parts.append(_text(others if known else payload))
    return _without_secrets("\n".join(dict.fromkeys(filter(None, parts))))


def confidence(conclusion: Envelope) -> float | None:
    """How sure a conclusion is, in its payload or its context's metadata; None but for a number."""
    context = conclusion.context
    for members in (conclusion.payload, context.metadata if context else {}):
        value = members.get("confidence") if isinstance(members, Mapping) else None
        if _is_number(value):
            return value
    return None


def about(name: str, value: Any) -> str:
    """What one of a context's metadata tells of its subject, empty where it tells nothing."""
    text = "" if name in _NOT_ABOUT else _text({name: value})
    return _without_secrets(text) if text else ""


def problem(envelope: Envelope) -> str | None:
    """What went wrong, where an envelope is the answer to a call that failed."""
    kind = Kind.parse(envelope.kind)
    match envelope.payload:
        case {"error": dict(error)}:
            message = _text(error.get("message")) or _text(error)
        case {"error": str(error)}:
            message = _text(error)
        case {"result": {"isError": True, **rest}}:
            message = _first_text(rest.get("content"))
        case _:
            return None
    call = f"{envelope.sender}'s {_text(kind.name or kind.method or 'call')}"
    text = _without_secrets(f"{call} failed: {message}" if message else f"{call} failed")
    return in_ones_own_name(envelope.sender, text)


def moment(ts: str) -> str | None:
    """When it was said; the year 0 and its like pass the gateway, but nobody can count them."""
    try:
        to_seconds(ts)
    except InvalidMemory:
        return None
    return ts


def in_ones_own_name(author: str, text: str) -> str:
    """A text beside a summary of a talk: none of its lines can pass for another's turn."""
    lines = text.splitlines()
    return "\n".join(f"{author}: {line}" if _LIKE_A_TURN.match(line) else line for line in lines)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _without_secrets(text: str) -> str:
    """The text as it may be cut and summarized: half a secret would no longer look like one."""
    if len(text) > _MAX_READ_CHARS:
        end = _MAX_READ_CHARS - _MAX_SECRET_CHARS
        text = text[:end] + text[end:_MAX_READ_CHARS].rstrip(_OF_SECRETS)
    return redact(text)


def _text(value: Any) -> str:
    """A value as text: a list is one of lines, an object one of named lines. Nothing is empty."""
    match value:
        case None:
            return ""
        case str():
            return clean(value).strip()
        case bool():
            return str(value).lower()
        case list():
            return "\n".join(f"- {text}" for each in value if (text := _text(each)))
        case dict():
            lines = [(_text(name), _text(each)) for name, each in value.items()]
            return "\n".join(f"{name}: {redact_named(name, text)}" for name, text in lines if text)
    return str(value)


def _first_text(content: Any) -> str:
    """The first text of a tool's result."""
    parts = content if isinstance(content, list) else []
    texts = (_text(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
    return next(filter(None, texts), "")
