"""Models behind Anthropic's Messages API."""

from collections.abc import Iterable
from typing import Any

import anthropic
from anthropic.types import Message, Usage

from mcpp.prompts import Prompt, expand_tool
from mcpp_agents.model.providers import (
    RETRIES,
    OnText,
    Reply,
    ToolUse,
    boundary,
    describe,
    schema_of,
    unheard,
)
from mcpp_agents.toolbox import Offer


class Anthropic:
    """A model behind Anthropic's Messages API."""

    def __init__(self, model: str, *, api_key: str, base_url: str | None = None) -> None:
        self._model = model
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key, base_url=base_url, max_retries=RETRIES
        )

    async def reply(
        self,
        prompt: Prompt,
        tools: Iterable[Offer],
        max_tokens: int,
        on_text: OnText = unheard,
    ) -> Reply:
        """Return the model's next word; `on_text` hears it grow. Raises ProviderError."""
        asked: dict[str, Any] = {
            **prompt.anthropic(),
            "model": self._model,
            "tools": [*map(_anthropic_tool, tools), expand_tool("anthropic")],
            "max_tokens": max_tokens,
        }
        with boundary(anthropic.AnthropicError):
            async with self._client.messages.stream(**asked) as stream:
                async for text in stream.text_stream:
                    await on_text(text)
                return _read(await stream.get_final_message())


def _read(message: Message) -> Reply:
    is_cut = message.stop_reason == "max_tokens"
    last = len(message.content) - 1
    return Reply(
        "".join(block.text for block in message.content if block.type == "text"),
        tuple(
            # Where the reply was cut, the client fills in what it has: that was never meant.
            ToolUse(block.name, None if is_cut and place == last else _object(block.input))
            for place, block in enumerate(message.content)
            if block.type == "tool_use"
        ),
        _tokens(message.usage),
        is_cut,
    )


def _tokens(usage: Usage) -> int:
    cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    return usage.input_tokens + cached + usage.output_tokens


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _anthropic_tool(offer: Offer) -> dict[str, Any]:
    return {
        "name": offer.name,
        "description": describe(offer),
        "input_schema": schema_of(offer),
    }
