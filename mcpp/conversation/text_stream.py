"""A message that others see while it is being written.

async with message.stream() as out:
    async for piece in model:
        await out.write(piece)

`write` publishes parts of kind `live/text`, which are in no log. The complete message is sent at
the end of the block and replaces them. If the block raises, no message is sent.
"""

from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import anyio

from mcpp import kinds
from mcpp.client import factory
from mcpp.errors import McppError, Refused
from mcpp.payloads import LiveText, text_payload
from mcpp.protocol.envelope import Context, Envelope

if TYPE_CHECKING:
    from mcpp.client.sender import ContextLike, Sender

# Often enough to look live. Each part costs as much of the rate limit as any other envelope.
_INTERVAL_SECONDS: Final = 0.05
# In JSON a character takes 6 bytes at most; a part may have 16 KiB (G-80).
_PART_CHARACTERS: Final = 2_000


class TextStream:
    """A text that is being written. Owns what was written and how much of it was published."""

    def __init__(
        self,
        sender: "Sender",
        kind: str,
        *,
        to: str | Iterable[str] | None,
        correlation_id: str | None,
        context: "ContextLike",
        id: str | None = None,
    ) -> None:
        self.id = factory.new_id() if id is None else id  # of the complete message
        self.envelope: Envelope | None = None  # the complete message, once it is in the log
        self._sender = sender
        self._kind = kind
        self._to = to if isinstance(to, str | None) else tuple(to)
        self._correlation_id = correlation_id
        self._context = context
        self._pieces: list[str] = []
        self._unpublished: list[str] = []  # the end of the text, in pieces
        self._published = 0  # characters
        self._due = 0.0
        self._publishing = False
        self._scheduled = False
        self._closed = False

    @property
    def text(self) -> str:
        """What was written so far."""
        return "".join(self._pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Send the complete message, if anything was written; after an exception, end the parts."""
        try:
            if error is None and self._pieces:
                await self.finish()
        finally:
            await self.end()

    async def write(self, text: str) -> None:
        """Add a piece of text. It is published at once, or with the next ones a moment later."""
        if self._closed:
            raise RuntimeError("the stream is closed")
        if not isinstance(text, str):
            raise TypeError(f"write() takes a string, not {type(text).__name__}")
        if text:
            self._pieces.append(text)
            self._unpublished.append(text)
            await self._publish()

    async def finish(self, text: str | None = None) -> Envelope:
        """Send the complete message and return its echo; `text` replaces what was written.

        Only a program that does not use `async with` has to call this. Raises what `send` raises.
        """
        self._closed = True
        self.envelope = await self._send(self.text if text is None else text)
        return self.envelope

    def close(self) -> None:
        """Publish no more: the complete message is sent."""
        self._closed = True

    async def end(self) -> None:
        """Publish no more. Without a complete message, tell those who have seen parts of it."""
        self._closed = True
        if self._published and self.envelope is None:
            with anyio.move_on_after(1.0, shield=True):
                await self._send_part("", ended=True)

    async def _send(self, text: str) -> Envelope:
        send = partial(
            self._sender.send,
            self._kind,
            text_payload(self._kind, text),
            to=self._to,
            correlation_id=self._correlation_id,
            context=self._context,
        )
        try:
            return await send(id=self.id)
        except Refused as refused:
            if refused.code != "duplicate_id":
                raise
            # Another participant has taken the id, which the parts have shown (P-70).
            return await send()

    async def _publish(self) -> None:
        if self._publishing or not self._unpublished:
            return
        wait = self._due - anyio.current_time()
        if wait > 0:
            self._publish_later(wait)
            return
        self._publishing = True
        try:
            text = "".join(self._unpublished)
            self._unpublished = [text]
            piece = text[:_PART_CHARACTERS]
            self._due = anyio.current_time() + _INTERVAL_SECONDS
            if await self._send_part(piece):
                self._published += len(piece)
                rest = "".join(self._unpublished)[len(piece) :]  # more may have come meanwhile
                self._unpublished = [rest] if rest else []
        finally:
            self._publishing = False
        if self._unpublished:
            self._publish_later(_INTERVAL_SECONDS)

    def _publish_later(self, seconds: float) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._sender._connection.start_soon(lambda: self._wait_and_publish(seconds))

    async def _wait_and_publish(self, seconds: float) -> None:
        await anyio.sleep(seconds)
        self._scheduled = False
        if not self._closed:
            await self._publish()

    async def _send_part(self, text: str, *, ended: bool = False) -> bool:
        part = LiveText(
            offset=self._published, text=text, in_reply_to=self._correlation_id, ended=ended
        )
        context = self._place()
        if context is not None and context not in self._sender._session.contexts:
            return False  # it begins with the complete message
        try:
            envelope = self._sender._envelope(kinds.LIVE_TEXT, part, self._to, self.id, context)
        except McppError:
            return False  # such as an invalid recipient, which the complete message will report
        return await self._sender._connection.send_live(envelope)

    def _place(self) -> str | None:
        """Return the id of the context in which the message will be."""
        target = self._sender if self._context is None else self._context
        if isinstance(target, str | None):
            return target
        found = target if isinstance(target, Context) else target._describe()
        return None if found is None else found.id
