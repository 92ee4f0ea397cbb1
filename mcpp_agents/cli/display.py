"""Envelopes rendered for people: one line each, coloured, safe for a terminal."""

import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mcpp import DecodeError, Envelope, Kind, ToolResult, kinds
from mcpp.payloads import ContextInfo, Proposal, text_of
from mcpp.protocol.contexts import Lineage, read_context_change
from mcpp.transient import read_mark, read_result, summarize
from mcpp_agents.cli.labels import ContextLabels

# Peers' text must not move the cursor, change colours or reverse the reading direction: control
# characters except newline, directional marks, and tag characters.
_UNSAFE: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
_MAX_ARGUMENTS: Final = 100
_MAX_ATTACHED: Final = 300
_MAX_TITLE: Final = 40
_BRACKETS: Final = str.maketrans("‹›", "  ")  # a title must not look like the end of its label
_is_plain_name = re.compile(r"[A-Za-z0-9_.-]+").fullmatch
_SENDER_COLOURS: Final = (32, 33, 34, 35, 36, 92, 93, 94, 95, 96)


def clean(text: str) -> str:
    """Return the text with terminal control characters replaced by U+FFFD."""
    return _UNSAFE.sub(lambda match: " " if match[0] == "\t" else "\ufffd", text)


def one_line(text: str, limit: int | None = None) -> str:
    """Return the cleaned text on one line, truncated to `limit` characters."""
    return _cut(" ".join(clean(text).split()), limit)


def json_line(text: bytes) -> str:
    """Return an equivalent JSON text that is one line for every reader, and safe for a terminal.

    A sender's text may have line breaks between its members. Printed unchanged, each of them would
    begin a line that another program reads as an envelope, from a sender of the sender's choice.
    """
    # What is left of control characters and line breaks is inside strings, where it may be escaped.
    compact = msgspec.json.format(text, indent=-1).decode()
    return _UNSAFE.sub(lambda match: _escaped(match[0]), compact)


def json_document(text: bytes) -> str:
    """Return an equivalent JSON text, indented, with terminal control characters escaped."""
    indented = msgspec.json.format(text, indent=2).decode()
    return _UNSAFE.sub(lambda match: _escaped(match[0]), indented)


def describe(envelope: Envelope, max_arguments: int | None = _MAX_ARGUMENTS) -> str:
    """Return an envelope's content as text for people. Only chat may have several lines."""
    said = _describe(envelope, max_arguments)
    if not envelope.attachments:
        return said
    attached = one_line(", ".join(map(str, envelope.attachments)), _MAX_ATTACHED)
    return f"{said} [attached: {attached}]".lstrip()


def _describe(envelope: Envelope, max_arguments: int | None) -> str:
    kind = Kind.parse(envelope.kind)
    payload = envelope.payload
    known = payload if isinstance(payload, dict) else {}
    match kind.family:
        case kinds.CHAT | kinds.REFLECTION | kinds.CONCLUSION:
            return _speech(envelope, kind.family)
        case kinds.REQUEST:
            return f"calls {_call(kind, _object(known.get('params')), max_arguments)}"
        case kinds.PROPOSAL:
            call = _call(kind, _object(known.get("params")), max_arguments)
            reason = known.get("reason")
            why = f" because: {one_line(reason, max_arguments)}" if isinstance(reason, str) else ""
            return f"proposes {call}{why if reason else ''}"
        case kinds.RESPONSE:
            return one_line(f"{kind.name or kind.method}: {_result(kind, payload)}")
        case kinds.NOTIFICATION:
            return one_line(_notification(kind, _object(known.get("params"))))
        case kinds.REJECT:
            reason = known.get("text") or known.get("reason") or "no reason given"
            return one_line(f"rejects the proposal: {reason}")
        case kinds.WITHDRAW:
            reason = known.get("reason")
            return one_line(f"withdraws the proposal{f': {reason}' if reason else ''}")
        case kinds.CLAIM:
            return one_line(f"claims {envelope.kind.partition(':')[2]}")
        case kinds.RELEASE:
            verb = "has done" if known.get("done") is True else "releases"
            return one_line(f"{verb} {envelope.kind.partition(':')[2]}")
        case kinds.PRESENCE:
            entries = known.get("entries")
            changes = map(_presence, entries if isinstance(entries, list) else [known])
            return one_line(", ".join(changes))
        case kinds.CONTEXT if change := read_context_change(envelope):
            names = (f"{context.type or 'context'} {context.id}" for context in change.contexts)
            return one_line(f"{', '.join(names)} has {change.event}")
        case kinds.UPDATE:
            return one_line(f"{_object(known.get('participant')).get('id')} announces its card")
        case kinds.LOOP:
            hops, who = known.get("hops"), known.get("participant")
            return one_line(
                f"suspects a loop: chats such as {who}'s are refused at {hops} hops from a person, "
                "until a person says something"
            )
        case kinds.ERASED:
            return one_line(_erasure(known))
        case _:
            return one_line(f"{envelope.kind} {_plain(payload)}")


def _presence(entry: Any) -> str:
    participant = _object(_object(entry).get("participant")).get("id")
    return f"{participant} {'joins' if _object(entry).get('event') == 'join' else 'leaves'}"


def _erasure(known: Mapping[str, Any]) -> str:
    words = [f"{_plain(known.get('entries'))} messages"]
    given = (("participant", "of"), ("context", "in context"), ("by", "were erased by"))
    words += [f"{word} {_plain(known[name])}" for name, word in given if name in known]
    return " ".join(words if "by" in known else [*words, "were erased"])


def describe_fully(envelope: Envelope) -> str:
    """Return an envelope's whole content, on several lines."""
    payload = envelope.payload
    if envelope.kind == kinds.CHAT and describe(envelope):
        return describe(envelope)
    return f"{describe(envelope)}\n{msgspec.json.format(_exact(payload), indent=2)}"


def preview_lines(proposal: Envelope) -> list[str]:
    """Return what a proposed call would change, line by line: `- ` before it, `+ ` after it."""
    try:
        preview = proposal.payload_as(Proposal).shown_preview
    except DecodeError:
        preview = None
    if preview is None:
        return []
    before = [] if preview.before is None else clean(preview.before).split("\n")
    after = [] if preview.after is None else clean(preview.after).split("\n")
    return [*(f"- {line}" for line in before), *(f"+ {line}" for line in after)]


def format_answer(envelope: Envelope) -> str:
    """Return the text of an answer for the requester; a result is never truncated."""
    kind = Kind.parse(envelope.kind)
    if kind.family != kinds.RESPONSE or is_failure(envelope):
        return describe(envelope)
    if kind.method != "tools/call":
        called = one_line(kind.name or kind.method or "")
        return f"{called}: {_exact(_object(envelope.payload).get('result'))}"
    text = ToolResult.from_json(read_result(envelope.payload)).text
    return clean(f"{kind.name}: {text}") if text else describe(envelope)


def is_failure(envelope: Envelope) -> bool:
    """Return whether an envelope answers a request with an error."""
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
    return one_line(_notification(kind, _object(payload.get("params"))))


class Palette:
    """Renders text in ANSI colours, or plain. Owns the short names of contexts."""

    def __init__(self, coloured: bool) -> None:
        self._coloured = coloured
        self._labels = ContextLabels()

    def paint(self, text: str, *codes: int) -> str:
        """Return the text wrapped in these ANSI codes."""
        if not self._coloured or not text:
            return text
        return f"\x1b[{';'.join(map(str, codes))}m{text}\x1b[0m"

    def name(self, name: str) -> str:
        """Return a participant's name in the colour that is always used for it."""
        return self.paint(name, 1, colour_of(name))

    def context(self, context: Lineage | ContextInfo) -> str:
        """Return a context as a short text that no other context has."""
        title = context.title
        if title is not None:
            title = one_line(title.translate(_BRACKETS), _MAX_TITLE)
        return f"‹{self._labels(context.id, context.type or '', title)}›"

    def line(
        self,
        envelope: Envelope,
        *,
        lineage: Lineage | None = None,
        topic: Lineage | None = None,
        depth: int = 0,
    ) -> str:
        """Return an envelope as a line: time, sender, addressees, contexts, content.

        `lineage` is the envelope's context; `topic` is the context that it answers.
        """
        kind = Kind.parse(envelope.kind)
        to = f" → {', '.join(envelope.to)}" if envelope.to else ""
        where = "" if lineage is None else f" {self.context(lineage)}"
        where += "" if topic is None else f" on {self.context(topic)}"
        head = f"{self.paint(envelope.ts[11:19], 2)} {'│ ' * depth}{self.name(envelope.sender)}"
        text = describe(envelope).replace("\n", "\n" + " " * 9 + "│ " * depth + "  ")
        return f"{head}{self.paint(to + where, 2)}  {self.paint(text, *_style(kind))}"


def colour_of(name: str) -> int:
    """Return the ANSI code of a participant's colour."""
    return _SENDER_COLOURS[zlib.crc32(name.encode()) % len(_SENDER_COLOURS)]


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


def _speech(envelope: Envelope, family: str) -> str:
    text = text_of(envelope)
    if family == kinds.CONCLUSION:
        return "∎ " + one_line(text if text is not None else _plain(envelope.payload))
    if text is None:
        return one_line(f"{envelope.kind} {_plain(envelope.payload)}")
    return clean(text) if family == kinds.CHAT else one_line(text)


def _call(kind: Kind, params: Mapping[str, Any], limit: int | None) -> str:
    # A person who approves a call must see every parameter, not only name and arguments.
    usual = {"name"} if kind.name is None else {"name", "arguments"}
    if kind.family == kinds.REQUEST:
        usual.add("_meta")
    others = {name: value for name, value in params.items() if name not in usual}
    more = f" {_cut(_exact(others), limit)}" if others else ""
    if kind.name is None:
        return f"{kind.method or '?'}{more}"
    arguments = params.get("arguments", {})
    if isinstance(arguments, dict):
        given = ", ".join(f"{_name(name)}={_exact(value)}" for name, value in arguments.items())
    else:
        given = _exact(arguments)
    return f"{_name(kind.name)}({_cut(given, limit)}){more}"


def _name(name: str) -> str:
    """Return the name of a tool or an argument, quoted unless it is a plain word."""
    return name if _is_plain_name(name) else _exact(name)


def _result(kind: Kind, payload: Any) -> str:
    if kind.method != "tools/call":
        error = _object(payload).get("error")
        return "answered" if error is None else f"failed, {_plain(error)}"
    result = read_result(payload)
    text = ToolResult.from_json(result).text
    if result.get("isError"):
        return f"failed, {text}"
    mark = read_mark(result)
    if mark.transient:
        return mark.summary or summarize(result)
    return one_line(text, 200) if text else summarize(result)


def _notification(kind: Kind, params: Mapping[str, Any]) -> str:
    if kind.method == "notifications/progress":
        total = f"/{params['total']}" if "total" in params else ""
        return f"{params.get('progress')}{total} {params.get('message', '')}"
    if kind.method == "notifications/cancelled":
        return f"cancels the request: {params.get('reason', 'no reason given')}"
    return f"{kind.method} {_plain(params) if params else ''}"


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _exact(value: Any) -> str:
    """Return a value as JSON with every non-printable character escaped."""
    text = msgspec.json.encode(value).decode()
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _cut(text: str, limit: int | None) -> str:
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
