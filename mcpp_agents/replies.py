"""Replies that fit into an envelope."""

from mcpp import TextStream
from mcpp.errors import TooLargeError

__all__ = ["send_reply"]


async def send_reply(out: TextStream, text: str) -> None:
    """Finish a reply; a text that is too large for an envelope is cut, and marked as cut."""
    shown = text
    while True:
        try:
            await out.finish(shown)
        except TooLargeError:
            if not text:
                raise
            text = text[: len(text) // 2]
            shown = f"{text} … (cut to fit into an envelope)"
        else:
            return
