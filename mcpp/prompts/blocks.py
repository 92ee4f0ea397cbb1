"""What a prompt is made of, whichever API it goes to: messages of text, images, calls, results."""

from typing import Any, Final, Literal

import msgspec

from mcpp.tokens import Counter, image_tokens

Role = Literal["user", "assistant"]


class TextBlock(msgspec.Struct, frozen=True, gc=False):
    """Something to read. Never empty, never only spaces: an API would refuse it."""

    text: str


class ImageBlock(msgspec.Struct, frozen=True, gc=False):
    """A picture in base64."""

    data: str
    media_type: str


class CallBlock(msgspec.Struct, frozen=True):
    """A call that the viewer itself made, under the name its API knows."""

    id: str
    name: str
    arguments: dict[str, Any]
    json: str  # the arguments as text


class ResultBlock(msgspec.Struct, frozen=True):
    """What a call of the viewer's gave."""

    call_id: str
    content: tuple[TextBlock | ImageBlock, ...]
    is_error: bool = False


Block = TextBlock | ImageBlock | CallBlock | ResultBlock


class PromptMessage(msgspec.Struct, frozen=True):
    """Blocks of one side. An assistant's calls come last, a user's results first."""

    role: Role
    blocks: tuple[Block, ...]


# What an API adds around a block: role, separators, ids. Generous, so that a budget holds.
TEXT_OVERHEAD: Final = 4
CALL_OVERHEAD: Final = 12


def price(block: Block, count: Counter) -> int:
    """Return what a block costs in tokens, with what the API adds around it."""
    if isinstance(block, TextBlock):
        return count(block.text) + TEXT_OVERHEAD
    if isinstance(block, ImageBlock):
        return image_tokens(block.data) + TEXT_OVERHEAD
    if isinstance(block, CallBlock):
        return count(block.name + block.json) + CALL_OVERHEAD
    return sum([price(part, count) for part in block.content]) + CALL_OVERHEAD


def price_all(messages: "tuple[PromptMessage, ...] | list[PromptMessage]", count: Counter) -> int:
    """Return what messages cost in tokens."""
    return sum(price(block, count) for message in messages for block in message.blocks)
