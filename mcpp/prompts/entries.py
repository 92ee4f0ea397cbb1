"""Envelopes read as a viewer sees them: what it said, what it heard, what it called, what it got.

An entry turns into blocks only when somebody asks, and then once; the same holds for its price.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from mcpp import kinds
from mcpp.prompts import quoting
from mcpp.prompts.blocks import Block, CallBlock, ImageBlock, ResultBlock, TextBlock, price
from mcpp.prompts.names import EXPAND, call_id, tool_name
from mcpp.protocol.envelope import Envelope
from mcpp.tokens import Counter, image_size
from mcpp.transient.calls import LoggedCall
from mcpp.transient.summaries import blocks_of, compact
from mcpp.transient.tracker import Tracked, new_handle

Sort = Literal["say", "hear", "call", "result"]

PREVIEW_CHARS: Final = 600
_IMAGES: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n").match,
    "image/jpeg": re.compile(rb"\xff\xd8\xff").match,
    "image/gif": re.compile(rb"GIF8[79]a").match,
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL).match,
}
"""The types that every API takes, each with how its bytes begin."""

MAX_IMAGE_SIDE: Final = 8000
MAX_IMAGE_CHARS: Final = 5_000_000
"""Anthropic's limits, the narrowest: pixels a side, and the size of the base64."""

MAX_NAMED: Final = 5
"""How many recipients are named: a header is never cut, so its length must not be its author's."""

NO_RESULT: Final = TextBlock("No result has come.")


class Episode:
    """A context from its first envelope until it is forgotten; ids may be used anew after that."""

    __slots__ = ("conclusion", "creator", "id", "inner", "members", "parent", "type")

    def __init__(self, id: str) -> None:
        self.id = id
        self.creator: str | None = None  # None while it is only named as a parent
        self.type: str | None = None
        self.parent: Episode | None = None
        self.inner: list[Episode] = []
        self.members: list[PromptEntry] = []  # without those of inner contexts
        self.conclusion: PromptEntry | None = None

    def around(self) -> "Iterator[Episode]":
        """Yield this context and those around it, the outermost last."""
        one: Episode | None = self
        while one is not None:
            yield one
            one = one.parent

    def within(self) -> "Iterator[Episode]":
        """Yield this context and those inside it."""
        found = [self]
        while found:
            one = found.pop()
            yield one
            found += one.inner

    @property
    def depth(self) -> int:
        """How deep it lies, itself included."""
        return sum(1 for _ in self.around())


class PromptEntry(msgspec.Struct, eq=False):
    """One envelope in a viewer's prompt. Owns its blocks and prices, made on first use."""

    sort: Sort
    envelope: Envelope
    index: int  # in the log
    viewer: str
    call: LoggedCall | None = None
    partner: "PromptEntry | None" = None  # a call's result, a result's call
    at: int = -1  # among the entries
    episode: Episode | None = None  # its context
    place: str = ""  # the context's type, or its id while no type was known
    topic: str = ""  # the same of a context that it refers to
    tracked: Tracked | None = None
    _whole: Block | None = None
    _collapsed: Block | None = None
    _tokens: int = -1

    @property
    def is_error(self) -> bool:
        """Whether this is the result of a failed call."""
        return self.call is not None and self.call.response is self.envelope and self.call.is_error

    @property
    def is_result(self) -> bool:
        """Whether this is the result of a call, the viewer's or another's."""
        return self.call is not None and self.call.response is self.envelope

    @property
    def handle(self) -> str:
        """The name under which the original can be asked for."""
        return self.tracked.handle if self.tracked else new_handle(self.envelope.id)

    def whole(self) -> Block:
        """Return the entry as it is shown when nothing is left out."""
        if self._whole is None:
            self._whole = self._read()
        return self._whole

    def tokens(self, count: Counter) -> int:
        """Return what the whole entry costs; always asked with the same counter."""
        if self._tokens < 0:
            self._tokens = price(self.whole(), count)
        return self._tokens

    def collapsed(self) -> Block:
        """Return the summary with its handle in place of the whole result (T-15, T-18)."""
        if self._collapsed is None:
            assert self.tracked is not None
            quoted = quoting.quote(self.tracked.summary)
            self._collapsed = self._short(f"[collapsed; handle {self.handle}]\n{quoted}")
        return self._collapsed

    def preview(self, chars: int = PREVIEW_CHARS) -> Block:
        """Return the beginning of the entry with the handle of the rest."""
        if self.sort == "result":
            assert self.call is not None
            text = "\n".join(map(as_text, result_content(self.call.result)))
        else:
            text = self._body()
        # What goes may be only what stood around it: pictures, or that a context was folded.
        count = "" if chars >= len(text) else f"{chars} of {len(text)} characters; "
        note = f"[cut; {count}handle {self.handle}]"
        shown = text[:chars]
        return self._short(
            f"{note}\n{shown if self.sort == 'result' else quoting.quote(shown)}", cut=True
        )

    def images(self) -> list[ImageBlock]:
        """Return the pictures that the whole entry shows."""
        block = self.whole() if self.sort == "result" else None
        parts = block.content if isinstance(block, ResultBlock) else ()
        return [part for part in parts if isinstance(part, ImageBlock)]

    def without_images(self, count: int) -> Block:
        """Return the whole result with its first so many pictures named instead of shown."""
        whole = self.whole()
        assert isinstance(whole, ResultBlock)
        content: list[TextBlock | ImageBlock] = []
        for part in whole.content:
            if count and isinstance(part, ImageBlock):
                count -= 1
                part = TextBlock(f"[cut; {part.media_type}; handle {self.handle}]")
            content.append(part)
        return ResultBlock(whole.call_id, tuple(content))

    def _short(self, text: str, *, cut: bool = False) -> Block:
        if self.sort == "result":
            assert self.call is not None
            return ResultBlock(
                call_id(self.call.id), (TextBlock(text),), cut and self.call.is_error
            )
        return TextBlock(f"{self._header()}\n{text}")

    def _read(self) -> Block:
        match self.sort:
            case "say":
                said = _said(self.envelope)
                return TextBlock(said if said.strip() else "…")
            case "hear":
                return TextBlock(f"{self._header()}\n{quoting.quote(self._body())}")
            case "call":
                assert self.call is not None
                call = self.call
                server = call.server or "+".join(call.request.to or ())
                own = server == self.viewer and call.tool == EXPAND
                shown = EXPAND if own else tool_name(server, call.tool)
                arguments = dict(call.arguments)
                return CallBlock(call_id(call.id), shown, arguments, compact(arguments))
            case "result":
                assert self.call is not None
                content = result_content(self.call.result)
                if self.call.is_error:  # Anthropic takes nothing but text in a failed call
                    content = tuple(TextBlock(as_text(part)) for part in content)
                return ResultBlock(call_id(self.call.id), content, self.call.is_error)

    def _header(self) -> str:
        envelope = self.envelope
        who = f"@{quoting.name(envelope.sender)}"
        call = self.call
        if call is not None:
            tool = quoting.tool(call.tool)
            if call.response is envelope:
                verb = "fails" if call.is_error else "answers"
                return f"{who} {verb} @{quoting.name(call.caller)}'s {tool}:"
            return f"{who} calls {tool}{_named(' of ', envelope.to)}:"
        about = [] if envelope.kind == kinds.CHAT else [quoting.name(envelope.kind)]
        if self.place:
            about.append(f"in {quoting.name(self.place)}")
        if self.topic:
            about.append(f"on {quoting.name(self.topic)}")
        said = f" ({' '.join(about)})" if about else ""
        return f"{who}{_named(' to ', envelope.to)}{said}:"

    def _body(self) -> str:
        call = self.call
        if call is None:
            return _said(self.envelope)
        if call.response is not self.envelope:
            return compact(call.arguments)
        return "\n".join(map(as_text, result_content(call.result)))


def result_content(result: Mapping[str, Any]) -> tuple[TextBlock | ImageBlock, ...]:
    """Return what a model sees of a tool result; what it cannot see is named."""
    parts = [part for block in blocks_of(result) if (part := _part(block)) is not None]
    structured = result.get("structuredContent")
    if structured is not None and not any(isinstance(part, TextBlock) for part in parts):
        parts.append(TextBlock(compact(structured)))
    return tuple(parts) or (TextBlock("(nothing)"),)


def as_text(part: TextBlock | ImageBlock) -> str:
    """Return a part where only text can stand; a picture is named."""
    return part.text if isinstance(part, TextBlock) else f"[image, {part.media_type}]"


def _part(block: Mapping[str, Any]) -> TextBlock | ImageBlock | None:
    sort = block.get("type")
    text = block.get("text")
    if sort == "text" and isinstance(text, str):
        return TextBlock(text) if text.strip() else None
    data, media_type = block.get("data"), str(block.get("mimeType"))
    if sort == "image" and isinstance(data, str) and _is_image(data, media_type):
        return ImageBlock(data, media_type)
    resource = block.get("resource")
    if sort == "resource" and isinstance(resource, dict):
        inner = resource.get("text")
        if isinstance(inner, str) and inner.strip():
            return TextBlock(inner)
        return TextBlock(f"[resource {quoting.name(str(resource.get('uri')))}]")
    if sort == "resource_link":
        return TextBlock(f"[link {quoting.name(str(block.get('uri')))}]")
    return TextBlock(f"[{quoting.name(str(sort))}, {quoting.name(media_type)}]")


def _is_image(data: str, media_type: str) -> bool:
    # An API refuses the whole prompt for a picture that is too large or not what it says, and every
    # later one too, since it stays in the log.
    is_such = _IMAGES.get(media_type)
    if is_such is None or len(data) > MAX_IMAGE_CHARS:
        return False
    try:
        if not is_such(base64.b64decode(data, validate=True)):
            return False
    except (binascii.Error, ValueError):
        return False
    size = image_size(data)
    return size is not None and all(0 < side <= MAX_IMAGE_SIDE for side in size)


def _named(preposition: str, recipients: tuple[str, ...] | None) -> str:
    if not recipients:
        return ""
    shown = ", ".join(f"@{quoting.name(one)}" for one in recipients[:MAX_NAMED])
    more = len(recipients) - MAX_NAMED
    return f"{preposition}{shown}{f' and {more} more' if more > 0 else ''}"


def _said(envelope: Envelope) -> str:
    try:
        if envelope.kind == kinds.CHAT:
            return _read_chat(envelope.raw_payload).text
        if envelope.kind == kinds.REFLECTION:
            return _read_reflection(envelope.raw_payload).thought
    except msgspec.MsgspecError:
        return compact(envelope.payload)
    if envelope.kind == kinds.CONCLUSION:
        return conclusion_text(envelope.payload)
    return compact(envelope.payload)


class _Chat(msgspec.Struct):
    text: str


class _Reflection(msgspec.Struct):
    thought: str


# Most of a log is talk: these skip the payload's dictionary.
_read_chat = msgspec.json.Decoder(_Chat).decode
_read_reflection = msgspec.json.Decoder(_Reflection).decode


def conclusion_text(payload: Any) -> str:
    """Return what a conclusion says: its decision, its text, and whatever else it holds."""
    if not isinstance(payload, dict):
        return compact(payload)
    rest = dict(payload)
    parts = [part for name in ("decision", "text") if (part := rest.pop(name, None))]
    if rest or not parts:
        parts.append(rest)
    return "\n".join(part if isinstance(part, str) else compact(part) for part in parts)
