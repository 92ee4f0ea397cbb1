"""An envelope as a participant receives it: with its pod, so that it can reply."""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from mcpp import kinds
from mcpp.conversation.attachments import MAX_FETCH_BYTES
from mcpp.payloads import text_of, text_payload
from mcpp.protocol.envelope import Attachment, Context, Envelope

if TYPE_CHECKING:
    from mcpp.client.pod import Pod
    from mcpp.client.scopes.context_scope import ContextScope
    from mcpp.client.scopes.templates import ContextTemplate
    from mcpp.conversation.text_stream import TextStream

T = TypeVar("T")


@lru_cache
def _find_mention(name: str) -> "Callable[[str], re.Match[str] | None]":
    return re.compile(rf"(?<![\w@])@{re.escape(name)}(?![\w@-])").search


# A struct, not a dataclass: one is made for every envelope received, four times faster.
class Message(msgspec.Struct, frozen=True):
    """A received envelope and its pod. `replayed` marks history from before joining."""

    pod: "Pod"
    envelope: Envelope
    replayed: bool = False

    @property
    def id(self) -> str:
        """The envelope's id."""
        return self.envelope.id

    @property
    def kind(self) -> str:
        """The envelope's kind, such as `chat`."""
        return self.envelope.kind

    @property
    def sender(self) -> str:
        """The participant that sent it."""
        return self.envelope.sender

    @property
    def to(self) -> tuple[str, ...] | None:
        """The addressees, or None for a message to the whole pod."""
        return self.envelope.to

    @property
    def correlation_id(self) -> str | None:
        """The id of the envelope that it answers, or None."""
        return self.envelope.correlation_id

    @property
    def context(self) -> Context | None:
        """The context it belongs to, or None for the main context."""
        return self.envelope.context

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """References to the content that it names; `fetch` gets it."""
        return self.envelope.attachments

    @overload
    async def fetch(self, attachment: Attachment, *, max_bytes: int = MAX_FETCH_BYTES) -> bytes: ...
    @overload
    async def fetch(
        self,
        attachment: Attachment,
        *,
        to: str | PathLike[str],
        max_bytes: int = MAX_FETCH_BYTES,
    ) -> Path: ...
    async def fetch(
        self,
        attachment: Attachment,
        *,
        to: str | PathLike[str] | None = None,
        max_bytes: int = MAX_FETCH_BYTES,
    ) -> bytes | Path:
        """Return the content of one of its attachments, checked: see `Pod.fetch`."""
        if to is None:
            return await self.pod.fetch(attachment, max_bytes=max_bytes)
        return await self.pod.fetch(attachment, to=to, max_bytes=max_bytes)

    @property
    def payload(self) -> Any:
        """The payload's JSON value."""
        return self.envelope.payload

    def payload_as(self, type: type[T]) -> T:
        """Return the payload as `type`. Raises DecodeError with the invalid path."""
        return self.envelope.payload_as(type)

    @property
    def text(self) -> str:
        """The message's text (see `mcpp.payloads.text_of`), or an empty string."""
        return text_of(self.envelope) or ""

    @property
    def state(self) -> Any:
        """What the agent's `lifespan` yields (see `Participant`)."""
        return self.pod.state

    def child(
        self,
        type: "str | ContextTemplate | None" = None,
        *,
        title: str | None = None,
        id: str | None = None,
        **metadata: Any,
    ) -> "ContextScope":
        """Open a context below the message's own: `async with message.child("task") as task`.

        Below a message of the main context it has no parent. The arguments are those of
        `Pod.context`.
        """
        return self.pod.context(type, title=title, id=id, parent=self.context, **metadata)

    async def reply(
        self,
        payload: Any,
        *,
        kind: str = kinds.CHAT,
        attachments: Iterable[Attachment] = (),
        wait: bool = True,
    ) -> Envelope:
        """Reply to the sender, in the message's context; a string becomes `{"text": …}`."""
        return await self.pod.send(
            kind,
            text_payload(kind, payload) if isinstance(payload, str) else payload,
            to=[self.sender],
            correlation_id=self.id,
            context=None if self.context is None else self.context.id,
            attachments=attachments,
            wait=wait,
        )

    @property
    def is_for_me(self) -> bool:
        """Whether the message is meant for this participant: `to` names it, or `@name` in a text.

        A participant's own messages are not.
        """
        me = self.pod.me
        if self.sender == me:
            return False
        return me in (self.to or ()) or _find_mention(me)(self.text) is not None

    def stream(self, kind: str = kinds.CHAT) -> "TextStream":
        """Reply with a text that others see while it is written.

        `async with message.stream() as out: await out.write("…")`. The complete reply is sent at
        the end of the block; if the block raises, none is.
        """
        return self.pod.stream(
            kind,
            to=[self.sender],
            correlation_id=self.id,
            context=None if self.context is None else self.context.id,
        )
