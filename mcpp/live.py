"""Live text: what a participant is writing, as it grows.

A message that takes a while to write is announced by parts of kind `live/text`. Their
`correlation_id` is the id that the complete message will have, and each says at which `offset` its
text belongs. Parts are in no log and may be missing; the complete message replaces them.

    texts = LiveTexts()
    for envelope in received:
        texts.observe(envelope, now)
        for text in texts: print(text.sender, text.text)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.payloads import LiveText, Presence
from mcpp.protocol.envelope import Context, Envelope

__all__ = ["GrowingText", "LiveTexts"]

_MISSING: Final = "…"
# P-42: what others write is kept within these. Of a long text the end is kept.
_MAX_TEXTS: Final = 64
_MAX_TEXTS_OF_ONE: Final = 8
_MAX_CHARACTERS: Final = 65_536
_MAX_FINISHED: Final = 1_000
# A text that does not grow for so long is no longer shown: its writer may have stopped.
_IDLE_SECONDS: Final = 60.0


@dataclass(slots=True)
class GrowingText:
    """A text that is being written, as far as its parts have arrived. Owns that."""

    id: str  # of the complete message
    sender: str
    to: tuple[str, ...] | None = None
    context: Context | None = None
    in_reply_to: str | None = None
    text: str = ""
    updated: float = 0.0
    end: int = 0  # the offset that the next part should have

    def add(self, part: LiveText) -> str:
        """Add a part and return what it adds to the text. Where some is missing, that has a `…`."""
        if part.offset + len(part.text) <= self.end:
            return ""
        new = part.text[max(0, self.end - part.offset) :]
        if part.offset > self.end:
            new = f"{_MISSING}{new}"
        self.end = part.offset + len(part.text)
        self.text = (self.text + new)[-_MAX_CHARACTERS:]
        return new


class LiveTexts:
    """The texts that are being written in a pod. Owns them; iterate to get them, oldest first."""

    __slots__ = ("_finished", "_texts")

    def __init__(self) -> None:
        self._texts: dict[tuple[str, str], GrowingText] = {}  # by sender and id
        self._finished: dict[str, None] = {}

    def __iter__(self) -> Iterator[GrowingText]:
        return iter(self._texts.values())

    def __len__(self) -> int:
        return len(self._texts)

    def observe(self, envelope: Envelope, now: float) -> bool:
        """Take an envelope, live or logged; return whether the texts have changed."""
        if kinds.is_live(envelope.kind):
            return self._add(envelope, now) is not None
        self._finished[envelope.id] = None
        if len(self._finished) > _MAX_FINISHED:
            del self._finished[next(iter(self._finished))]
        if not self._texts:
            return False
        ended = [key for key in self._texts if key[1] == envelope.id]
        if envelope.kind == kinds.PRESENCE:
            ended += self._left(envelope)
        for key in ended:
            self._texts.pop(key, None)
        return bool(ended)

    def expire(self, now: float) -> bool:
        """Drop the texts that have not grown for a minute; return whether there were any."""
        idle = [key for key, text in self._texts.items() if now - text.updated >= _IDLE_SECONDS]
        for key in idle:
            del self._texts[key]
        return bool(idle)

    def _add(self, envelope: Envelope, now: float) -> GrowingText | None:
        """Add a part (P-71): not once the message is there, and only to its sender's own text."""
        id, sender = envelope.correlation_id, envelope.sender
        if id is None or id in self._finished or envelope.kind != kinds.LIVE_TEXT:
            return None
        try:
            part = envelope.payload_as(LiveText)
        except DecodeError:
            return None
        if part.offset < 0:
            return None
        key = (sender, id)
        text = self._texts.get(key)
        if part.ended:
            return self._texts.pop(key, None)
        if text is None:
            self._make_room(sender)
            text = self._texts[key] = GrowingText(
                id, sender, envelope.to, envelope.context, part.in_reply_to
            )
        text.add(part)
        text.updated = now
        return text

    def _make_room(self, sender: str) -> None:
        own = [key for key in self._texts if key[0] == sender]
        if len(own) >= _MAX_TEXTS_OF_ONE:
            del self._texts[own[0]]
        elif len(self._texts) >= _MAX_TEXTS:
            del self._texts[next(iter(self._texts))]

    def _left(self, envelope: Envelope) -> list[tuple[str, str]]:
        try:
            changes = envelope.payload_as(Presence).each()
        except DecodeError:
            return []
        left = {each.participant.id for each in changes if each.event == "leave"}
        return [key for key in self._texts if key[0] in left]
