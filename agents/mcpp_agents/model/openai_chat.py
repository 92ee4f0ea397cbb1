"""Models behind OpenAI's Chat Completions API, which many local ones speak too."""

from collections.abc import Iterable
from typing import Any

import msgspec
import openai

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


class OpenAI:
    """A model behind OpenAI's Chat Completions API, or whatever speaks it at `base_url`."""

    def __init__(self, model: str, *, api_key: str, base_url: str | None = None) -> None:
        self._model = model
        self._client = openai.AsyncOpenAI(api_key=api_key, base_url=base_url, max_retries=RETRIES)

    async def reply(self, prompt: Prompt, tools: Iterable[Offer], max_tokens: int) -> Reply:
        """Return the model's next word. Raises ProviderError."""
        asked: dict[str, Any] = {
            **prompt.openai_chat(),
            "model": self._model,
            "tools": [*map(_openai_tool, tools), expand_tool("openai_chat")],
            "max_completion_tokens": max_tokens,
            "stream_options": {"include_usage": True},
        }
        text: list[str] = []
        calls: dict[int, tuple[str, str]] = {}
        tokens = 0
        try:
            stream: Any = await self._client.chat.completions.create(**asked, stream=True)
            async for chunk in stream:
                if chunk.usage is not None:
                    tokens = chunk.usage.total_tokens
                for choice in chunk.choices[:1]:
                    text.append(choice.delta.content or "")
                    for part in choice.delta.tool_calls or ():
                        name, written = calls.get(part.index, ("", ""))
                        calls[part.index] = (
                            name + (part.function.name or ""),
                            written + (part.function.arguments or ""),
                        )
        except openai.OpenAIError as error:
            raise ProviderError(sentence(error)) from error
        uses = tuple(ToolUse(name, _object(written)) for name, written in calls.values())
        return Reply("".join(text), uses, tokens)


def _openai_tool(offer: Offer) -> dict[str, Any]:
    function = {
        "name": offer.name,
        "description": describe(offer),
        "parameters": schema_of(offer),
    }
    return {"type": "function", "function": function}


def _object(text: str) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return None
