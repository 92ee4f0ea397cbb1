"""Models behind Anthropic's Messages API."""

from collections.abc import Iterable
from typing import Any

import anthropic

from mcpp.prompts import Prompt, expand_tool
from mcpp_agents.model.providers import (
    RETRIES,
    ProviderError,
    Reply,
    ToolUse,
    describe,
    schema_of,
    sentence,
)
from mcpp_agents.toolbox import Offer


class Anthropic:
    """A model behind Anthropic's Messages API."""

    def __init__(self, model: str, *, api_key: str, base_url: str | None = None) -> None:
        self._model = model
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key, base_url=base_url, max_retries=RETRIES
        )

    async def reply(self, prompt: Prompt, tools: Iterable[Offer], max_tokens: int) -> Reply:
        """Return the model's next word. Raises ProviderError."""
        asked: dict[str, Any] = {
            **prompt.anthropic(),
            "model": self._model,
            "tools": [*map(_anthropic_tool, tools), expand_tool("anthropic")],
            "max_tokens": max_tokens,
        }
        try:
            async with self._client.messages.stream(**asked) as stream:
                message = await stream.get_final_message()
        except anthropic.AnthropicError as error:
            raise ProviderError(sentence(error)) from error
        return Reply(
            "".join(block.text for block in message.content if block.type == "text"),
            tuple(
                ToolUse(block.name, block.input)
                for block in message.content
                if block.type == "tool_use"
            ),
            message.usage.input_tokens + message.usage.output_tokens,
        )


def _anthropic_tool(offer: Offer) -> dict[str, Any]:
    return {
        "name": offer.name,
        "description": describe(offer),
        "input_schema": schema_of(offer),
    }
