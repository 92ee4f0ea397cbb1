"""Envelopes as people read them: one line each, in colours, and safe for a terminal."""

import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mcpp import Envelope, ToolResult, kinds
from mcpp.kinds import Kind
from mcpp.protocol.contexts import Lineage
from mcpp.transient import read_mark, read_result, summarize

# What others write must not move the cursor, colour the screen or turn the reading direction:
# control characters but for the line's end, the invisible directional marks, and invisible tags.
_UNSAFE: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
_MAX_ARGUMENTS: Final = 100
_is_plain_name = re.compile(r"[A-Za-z0-9_.-]+").fullmatch
_SENDER_COLOURS: Final = (32, 33, 34, 35, 36, 92, 93, 94, 95, 96)


def clean(text: str) -> str:
    """Return the text with everything replaced that a terminal would act on."""
    return _UNSAFE.sub(lambda match: " " if match[0] == "\t" else "\ufffd", text)


def one_line(text: str, limit: int | None = None) -> str:
    """Return the text safe and on one line, cut at `limit` characters."""
    return _cut(" ".join(clean(text).split()), limit)


def safe_json(text: str) -> str:
    """Return a JSON text that says the same, with everything escaped that a terminal acts on."""
    # What is below a space is escaped in any JSON text already, or stands between its parts.
    return _UNSAFE.sub(lambda match: match[0] if match[0] < " " else _escaped(match[0]), text)


def describe(envelope: Envelope, max_arguments: int | None = _MAX_ARGUMENTS) -> str:
    """Return what an envelope says, for people; only a chat may have several lines."""
    kind = Kind.parse(envelope.kind)
    payload = envelope.payload
    known = payload if isinstance(payload, dict) else {}
    match kind.family:
        case kinds.CHAT if isinstance(known.get("text"), str):
            return clean(known["text"])
        case kinds.REFLECTION if isinstance(known.get("thought"), str):
            return one_line(known["thought"])
        case kinds.CONCLUSION:
            return "∎ " + one_line(_plain(known.get("decision", known.get("text", payload))))
        case kinds.REQUEST | kinds.PROPOSAL:
            verb = "calls" if kind.family == kinds.REQUEST else "proposes"
            return f"{verb} {_question(kind, _object(known.get('params')), max_arguments)}"
        case kinds.RESPONSE:
            return one_line(f"{kind.name or kind.method}: {_answer(kind, payload)}")
        case kinds.NOTIFICATION:
            return one_line(_notice(kind, _object(known.get("params"))))
        case kinds.REJECT:
            why = known.get("text") or known.get("reason") or "no reason given"
            return one_line(f"speaks against it: {why}")
        case kinds.WITHDRAW:
            why = known.get("reason")
            return one_line(f"withdraws the proposal{f': {why}' if why else ''}")
        case kinds.PRESENCE:
            who = _object(known.get("participant")).get("id")
            return one_line(f"{who} {'joins' if known.get('event') == 'join' else 'leaves'}")
        case kinds.CONTEXT:
            context = _object(known.get("context"))
            return one_line(f"{context.get('type') or 'context'} {context.get('id')} is forgotten")
        case _:
            return one_line(f"{envelope.kind} {_plain(payload)}")


def whole(envelope: Envelope) -> str:
    """Return all that an envelope says, on several lines."""
    payload = envelope.payload
    if envelope.kind == kinds.CHAT and describe(envelope):
        return describe(envelope)
    return f"{describe(envelope)}\n{msgspec.json.format(_exact(payload), indent=2)}"


def answer_of(envelope: Envelope) -> str:
    """Return an answer for whoever asked: a result is whole, however long."""
    kind = Kind.parse(envelope.kind)
    if kind.family != kinds.RESPONSE or is_failure(envelope):
        return describe(envelope)
    if kind.method != "tools/call":
        return f"{kind.name or kind.method}: {_exact(_object(envelope.payload).get('result'))}"
    text = ToolResult.from_json(read_result(envelope.payload)).text
    return clean(f"{kind.name}: {text}") if text else describe(envelope)


def is_failure(envelope: Envelope) -> bool:
    """Tell whether an envelope answers a request with an error."""
    kind = Kind.parse(envelope.kind)
    if kind.family == kinds.RESPONSE and kind.method == "tools/call":
        return bool(read_result(envelope.payload).get("isError"))
    return kind.family == kinds.RESPONSE and _object(envelope.payload).get("error") is not None


def progress_of(envelope: Envelope) -> str | None:
    """Return the message of a progress notification, None for anything else."""
    kind = Kind.parse(envelope.kind)
    if kind.family != kinds.NOTIFICATION or kind.method != "notifications/progress":
        return None
    payload = envelope.payload if isinstance(envelope.payload, dict) else {}
    return one_line(_notice(kind, _object(payload.get("params"))))


class Palette:
    """Colours, or none."""

    def __init__(self, coloured: bool) -> None:
        self._coloured = coloured

    def paint(self, text: str, *codes: int) -> str:
        """Return the text in the colours of these codes."""
        if not self._coloured or not text:
            return text
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"

    def name(self, name: str) -> str:
        """Return a participant's name in its own colour, the same everywhere."""
        return self.paint(name, 1, colour_of(name))

    def line(
        self,
        envelope: Envelope,
        *,
        place: Lineage | None = None,
        topic: Lineage | None = None,
        depth: int = 0,
    ) -> str:
        """Return an envelope as a line: when, who, to whom, in and on which context, what."""
        kind = Kind.parse(envelope.kind)
        to = f" → {', '.join(envelope.to)}" if envelope.to else ""
        where = "" if place is None else f" {_named(place)}"
        where += "" if topic is None else f" on {_named(topic)}"
        head = f"{self.paint(envelope.ts[11:19], 2)} {'│ ' * depth}{self.name(envelope.sender)}"
        text = describe(envelope).replace("\n", "\n" + " " * 9 + "│ " * depth + "  ")
        return f"{head}{self.paint(to + where, 2)}  {self.paint(text, *_style(kind))}"


def colour_of(name: str) -> int:
    """Return a participant's colour as a terminal's code."""
    return _SENDER_COLOURS[zlib.crc32(name.encode()) % len(_SENDER_COLOURS)]


def _named(context: Lineage) -> str:
    return f"‹{context.type or ''}#{context.id[-6:]}›"


def _style(kind: Kind) -> tuple[int, ...]:
    match kind.family:
        case kinds.CHAT:
            return (0,)
        case kinds.REFLECTION:
            return (2, 3)
        case kinds.CONCLUSION:
            return (1,)
        case kinds.PROPOSAL:
            return (1, 33)
        case kinds.REJECT:
            return (31,)
        case _:
            return (2,)


def _question(kind: Kind, params: Mapping[str, Any], limit: int | None) -> str:
    # Whoever approves a call has to see all that is asked for, not only what is usual.
    usual = {"name"} if kind.name is None else {"name", "arguments"}
    if kind.family == kinds.REQUEST:
        usual.add("_meta")
    odd = {name: value for name, value in params.items() if name not in usual}
    more = f" {_cut(_exact(odd), limit)}" if odd else ""
    if kind.name is None:
        return f"{kind.method or '?'}{more}"
    arguments = params.get("arguments", {})
    if isinstance(arguments, dict):
        given = ", ".join(f"{_name(name)}={_exact(value)}" for name, value in arguments.items())
    else:
        given = _exact(arguments)
    return f"{kind.name}({_cut(given, limit)}){more}"


def _name(name: str) -> str:
    """Return an argument's name; in quotes where it could be read as more than that."""
    return name if _is_plain_name(name) else _exact(name)


def _answer(kind: Kind, payload: Any) -> str:
    if kind.method != "tools/call":
        wrong = _object(payload).get("error")
        return "answered" if wrong is None else f"failed, {_plain(wrong)}"
    result = read_result(payload)
    text = ToolResult.from_json(result).text
    if result.get("isError"):
        return f"failed, {text}"
    mark = read_mark(result)
    if mark.transient:
        return mark.summary or summarize(result)
    return one_line(text, 200) if text else summarize(result)


def _notice(kind: Kind, params: Mapping[str, Any]) -> str:
    if kind.method == "notifications/progress":
        total = f"/{params['total']}" if "total" in params else ""
        return f"{params.get('progress')}{total} {params.get('message', '')}"
    if kind.method == "notifications/cancelled":
        return f"gives up: {params.get('reason', 'no reason given')}"
    return f"{kind.method} {_plain(params) if params else ''}"


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _exact(value: Any) -> str:
    """Return a value as JSON of which each character is seen: others are written out."""
    text = msgspec.json.encode(value).decode()
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _cut(text: str, limit: int | None) -> str:
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
