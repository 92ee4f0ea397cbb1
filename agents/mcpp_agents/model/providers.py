"""What a model's API has to give: a prompt and tools go in, a reply comes out.

Replies are streamed, so that a long one does not look like a dead line and a cancelled one ends at
once. The official clients retry by themselves what may succeed later.
"""

from collections.abc import Iterable
from typing import Any, Final, Protocol

import msgspec

from mcpp import McppError
from mcpp.prompts import Prompt
from mcpp_agents.toolbox import Offer

RETRIES: Final = 3


class ProviderError(McppError):
    """The model's API did not give a reply."""


class ToolUse(msgspec.Struct, frozen=True):
    """A call that the model wants made. `arguments` is None where it wrote no JSON object."""

    name: str
    arguments: dict[str, Any] | None


class Reply(msgspec.Struct, frozen=True):
    """What a model said, what it wants called, and what that cost in tokens."""

    text: str
    calls: tuple[ToolUse, ...] = ()
    tokens: int = 0


class Provider(Protocol):
    """A model behind an API."""

    async def reply(self, prompt: Prompt, tools: Iterable[Offer], max_tokens: int) -> Reply:
        """Return the model's next word. Raises ProviderError."""
        ...


def describe(offer: Offer) -> str:
    """Return what a model is told of a tool."""
    told = offer.definition.get("description")
    return f"{told if isinstance(told, str) else ''} (@{offer.participant})".strip()


def schema_of(offer: Offer) -> dict[str, Any]:
    """Return the schema of a tool's arguments, as every API takes it."""
    # One participant's nonsense must not cost the model all its tools: the APIs refuse the request.
    schema = offer.definition.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return {"type": "object"}
    return schema


def sentence(error: Exception) -> str:
    """Return what went wrong at an API, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
