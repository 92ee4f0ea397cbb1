"""Entries of a prompt: envelopes as one viewer's model sees them.

An entry's blocks and token count are computed on first use and kept.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from mcpp import kinds
from mcpp.payloads import TEXT_KINDS, text_of
from mcpp.prompts import quoting
from mcpp.prompts.attached import is_image, read_marks
from mcpp.prompts.blocks import (
    CallBlock,
    ImageBlock,
    QuotedBlock,
    ResultBlock,
    ShownBlock,
    TextBlock,
    block_tokens,
)
from mcpp.prompts.names import call_id, tool_name
from mcpp.protocol.envelope import Envelope
from mcpp.tokens import Counter
from mcpp.transient.calls import LoggedCall
from mcpp.transient.collapsing.expansion import EXPAND
from mcpp.transient.collapsing.lifecycle import TransientResult, new_handle
from mcpp.transient.summaries import blocks_of, compact

EntryKind = Literal["own", "other", "call", "result"]
"""The viewer's own message, any envelope of another, the viewer's own call, the call's result."""

"""Kinds that are shown as text; the viewer's own become assistant messages."""

PREVIEW_CHARS: Final = 600
MAX_RECIPIENTS: Final = 5
"""Recipients listed in a header, which is never cut: the sender must not control its length."""

NO_RESULT: Final = TextBlock("No result was received.")


class LoggedContext:
    """A context from its first envelope until it expires; its id may be reused after that."""

    __slots__ = ("conclusion", "creator", "id", "inner", "members", "parent", "title", "type")

    def __init__(self, id: str) -> None:
        self.id = id
        self.creator: str | None = None  # None while only referred to as a parent
        self.type: str | None = None
        self.title: str | None = None
        self.parent: LoggedContext | None = None
        self.inner: list[LoggedContext] = []
        self.members: list[PromptEntry] = []  # excluding those of inner contexts
        self.conclusion: PromptEntry | None = None

    def path(self) -> "Iterator[LoggedContext]":
        """Yield this context and its ancestors, the root last."""
        one: LoggedContext | None = self
        while one is not None:
            yield one
            one = one.parent

    def subtree(self) -> "Iterator[LoggedContext]":
        """Yield this context and its descendants."""
        found = [self]
        while found:
            one = found.pop()
            yield one
            found += one.inner

    @property
    def depth(self) -> int:
        """Number of contexts from the root to this one, inclusive."""
        return sum(1 for _ in self.path())


class PromptEntry(msgspec.Struct, eq=False):
    """One envelope in a viewer's prompt. Owns its blocks and its token count."""

    kind: EntryKind
    envelope: Envelope
    index: int  # in the log
    viewer: str
    call: LoggedCall | None = None
    partner: "PromptEntry | None" = None  # the result of a call, the call of a result
    position: int = -1  # among the entries
    context: LoggedContext | None = None
    context_label: str = ""  # the context's type, or its id if no type was known
    topic: str = ""  # label of the context that it answers
    tracked: TransientResult | None = None
    pictures: tuple[ImageBlock, ...] = ()  # attached to a message of another participant
    _full_block: ShownBlock | None = None
    _collapsed: ShownBlock | None = None
    _tokens: int = -1

    @property
    def is_error(self) -> bool:
        """Whether this is the result of a failed call."""
        return self.call is not None and self.call.response is self.envelope and self.call.is_error

    @property
    def is_result(self) -> bool:
        """Whether this is the result of any participant's call."""
        return self.call is not None and self.call.response is self.envelope

    @property
    def is_settled(self) -> bool:
        """Whether this is a transient result that has been consumed or superseded."""
        return self.tracked is not None and self.tracked.state != "pending"

    @property
    def handle(self) -> str:
        """The handle that retrieves the original."""
        return self.tracked.handle if self.tracked else new_handle(self.envelope.id)

    def full_block(self) -> ShownBlock:
        """Return the block that shows the complete entry."""
        if self._full_block is None:
            self._full_block = self._read()
        return self._full_block

    def tokens(self, count: Counter) -> int:
        """Return the complete entry's token count. Callers always pass the same counter."""
        if self._tokens < 0:
            self._tokens = block_tokens(self.full_block(), count)
        return self._tokens

    def collapsed(self) -> ShownBlock:
        """Return the block with the summary and handle of a transient result (T-15, T-18)."""
        if self._collapsed is None:
            self._collapsed = self._reduced(self.collapsed_text())
        return self._collapsed

    def collapsed_text(self) -> str:
        """Return the text that replaces a transient result."""
        assert self.tracked is not None
        return f"[collapsed; handle {self.handle}]\n{quoting.quote(self.tracked.summary)}"

    def preview(self, chars: int = PREVIEW_CHARS) -> ShownBlock:
        """Return a block with the first characters of the entry and its handle."""
        if self.kind == "result":
            assert self.call is not None
            text = "\n".join(map(as_text, self._result_content()))
        else:
            text = self._body()
        # All text may be shown if only images or a fold note are removed.
        count = "" if chars >= len(text) else f"{chars} of {len(text)} characters; "
        note = f"[cut; {count}handle {self.handle}]"
        shown = text[:chars]
        quoted = shown if self.kind == "result" else quoting.quote(shown)
        return self._reduced(f"{note}\n{quoted}", cut=True)

    def images(self) -> list[ImageBlock]:
        """Return the images of the complete entry."""
        if self.kind != "result":
            return list(self.pictures)
        block = self.full_block()
        assert isinstance(block, ResultBlock)
        return [part for part in block.content if isinstance(part, ImageBlock)]

    def without_images(self, count: int) -> ShownBlock:
        """Return the entry with its first `count` images replaced by descriptions."""
        block = self.full_block()
        assert isinstance(block, ResultBlock | QuotedBlock)
        content: list[TextBlock | ImageBlock] = []
        for part in block.content:
            if count and isinstance(part, ImageBlock):
                count -= 1
                part = TextBlock(f"[cut; {part.media_type}; handle {self.handle}]")
            content.append(part)
        if isinstance(block, QuotedBlock):
            return QuotedBlock(tuple(content))
        return ResultBlock(block.call_id, tuple(content))

    def _reduced(self, text: str, *, cut: bool = False) -> ShownBlock:
        if self.kind == "result":
            assert self.call is not None
            return ResultBlock(
                call_id(self.call.id), (TextBlock(text),), cut and self.call.is_error
            )
        return TextBlock(f"{self._header()}\n{text}")

    def _read(self) -> ShownBlock:
        match self.kind:
            case "own":
                text = envelope_text(self.envelope)
                return TextBlock(text if text.strip() else "…")
            case "other":
                quoted = TextBlock(f"{self._header()}\n{quoting.quote(self._body())}")
                return QuotedBlock((quoted, *self.pictures)) if self.pictures else quoted
            case "call":
                assert self.call is not None
                call = self.call
                server = "+".join(call.request.to or ())
                is_expand = server == self.viewer and call.tool == EXPAND
                name = EXPAND if is_expand else tool_name(server, call.tool)
                arguments = dict(call.arguments)
                return CallBlock(call_id(call.id), name, arguments, compact(arguments))
            case "result":
                assert self.call is not None
                content = self._result_content()
                if self.call.is_error:  # Anthropic accepts only text in a failed call
                    content = tuple(TextBlock(as_text(part)) for part in content)
                return ResultBlock(call_id(self.call.id), content, self.call.is_error)

    def _header(self) -> str:
        envelope = self.envelope
        sender = f"@{quoting.name(envelope.sender)}"
        call = self.call
        if call is not None:
            tool = quoting.tool(call.tool)
            if call.response is envelope:
                verb = "fails" if call.is_error else "answers"
                return f"{sender} {verb} @{quoting.name(call.caller)}'s {tool}:"
            return f"{sender} calls {tool}{_recipients(' of ', envelope.to)}:"
        details = [] if envelope.kind == kinds.CHAT else [quoting.name(envelope.kind)]
        if self.context_label:
            details.append(f"in {quoting.name(self.context_label)}")
        if self.topic:
            details.append(f"on {quoting.name(self.topic)}")
        suffix = f" ({' '.join(details)})" if details else ""
        return f"{sender}{_recipients(' to ', envelope.to)}{suffix}:"

    def _body(self) -> str:
        call = self.call
        if call is None:
            return envelope_text(self.envelope)
        if call.response is not self.envelope:
            return compact(call.arguments)
        return "\n".join(map(as_text, self._result_content()))

    def _result_content(self) -> tuple[TextBlock | ImageBlock, ...]:
        """Return the parts of a result, and which of its content is attached and not given."""
        assert self.call is not None
        content = result_content(self.call.result)
        if not read_marks(self.call.result):
            return content
        return (*content, TextBlock(_attached(self.envelope)))


def result_content(result: Mapping[str, Any]) -> tuple[TextBlock | ImageBlock, ...]:
    """Return the parts of a tool result that a model can read; others become descriptions."""
    parts = [part for block in blocks_of(result) if (part := _part(block)) is not None]
    structured = result.get("structuredContent")
    if structured is not None and not any(isinstance(part, TextBlock) for part in parts):
        parts.append(TextBlock(compact(structured)))
    return tuple(parts) or (TextBlock("(nothing)"),)


def as_text(part: TextBlock | ImageBlock) -> str:
    """Return a part as text; an image becomes its description."""
    return part.text if isinstance(part, TextBlock) else f"[image, {part.media_type}]"


def _part(block: Mapping[str, Any]) -> TextBlock | ImageBlock | None:
    block_type = block.get("type")
    text = block.get("text")
    if block_type == "text" and isinstance(text, str):
        return TextBlock(text) if text.strip() else None
    data, media_type = block.get("data"), str(block.get("mimeType"))
    if block_type == "image" and isinstance(data, str) and is_image(data, media_type):
        return ImageBlock(data, media_type)
    resource = block.get("resource")
    if block_type == "resource" and isinstance(resource, dict):
        inner = resource.get("text")
        if isinstance(inner, str) and inner.strip():
            return TextBlock(inner)
        return TextBlock(f"[resource {quoting.name(str(resource.get('uri')))}]")
    if block_type == "resource_link":
        return TextBlock(f"[link {quoting.name(str(block.get('uri')))}]")
    return TextBlock(f"[{quoting.name(str(block_type))}, {quoting.name(media_type)}]")


def _recipients(preposition: str, recipients: tuple[str, ...] | None) -> str:
    if not recipients:
        return ""
    shown = ", ".join(f"@{quoting.name(one)}" for one in recipients[:MAX_RECIPIENTS])
    more = len(recipients) - MAX_RECIPIENTS
    return f"{preposition}{shown}{f' and {more} more' if more > 0 else ''}"


def envelope_text(envelope: Envelope) -> str:
    """Return the text of an envelope; for kinds without text, the payload as JSON."""
    text = text_of(envelope, complete=True) if envelope.kind in TEXT_KINDS else None
    said = compact(envelope.payload) if text is None else text
    if not envelope.attachments:
        return said
    return f"{said}\n{_attached(envelope)}".lstrip("\n")


def _attached(envelope: Envelope) -> str:
    """Return a line that names the attachments, for a model that cannot see them."""
    return f"[attached: {', '.join(map(str, envelope.attachments))}]"
