"""A prompt's messages, independent of the API: text, images, tool calls and tool results."""

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec

from mcpp.tokens import Counter, image_tokens

Role = Literal["user", "assistant"]


class TextBlock(msgspec.Struct, frozen=True, gc=False):
    """Text. Never empty or blank: an API would refuse it."""

    text: str


class ImageBlock(msgspec.Struct, frozen=True, gc=False):
    """An image, encoded in base64."""

    data: str
    media_type: str


class CallBlock(msgspec.Struct, frozen=True):
    """A tool call that the viewer made, under the name given to the API."""

    id: str
    name: str
    arguments: dict[str, Any]
    json: str  # the arguments, encoded


class ResultBlock(msgspec.Struct, frozen=True):
    """The result of a call that the viewer made."""

    call_id: str
    content: tuple[TextBlock | ImageBlock, ...]
    is_error: bool = False


class QuotedBlock(msgspec.Struct, frozen=True):
    """A message of another participant and its pictures. In a message, its parts stand alone."""

    content: tuple[TextBlock | ImageBlock, ...]


Block = TextBlock | ImageBlock | CallBlock | ResultBlock
ShownBlock = Block | QuotedBlock
"""What shows an entry of a prompt."""


class PromptMessage(msgspec.Struct, frozen=True):
    """Blocks of one role. Calls come last in an assistant message, results first in a user one."""

    role: Role
    blocks: tuple[Block, ...]


# Tokens that an API adds around a block: role, separators, ids. Overestimated to keep the budget.
TEXT_OVERHEAD: Final = 4
CALL_OVERHEAD: Final = 12


def block_tokens(block: ShownBlock, count: Counter) -> int:
    """Return a block's token count, including the overhead that the API adds."""
    if isinstance(block, TextBlock):
        return count(block.text) + TEXT_OVERHEAD
    if isinstance(block, ImageBlock):
        return image_tokens(block.data) + TEXT_OVERHEAD
    if isinstance(block, CallBlock):
        return count(block.name + block.json) + CALL_OVERHEAD
    parts = sum([block_tokens(part, count) for part in block.content])
    return parts if isinstance(block, QuotedBlock) else parts + CALL_OVERHEAD


def total_tokens(messages: Iterable[PromptMessage], count: Counter) -> int:
    """Return the tokens of messages, including the overhead that the API adds."""
    return sum(block_tokens(block, count) for message in messages for block in message.blocks)
