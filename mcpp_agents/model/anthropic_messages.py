"""Models behind Anthropic's Messages API."""

from typing import Any, Final

import anthropic

from mcpp.prompts import Prompt, expand_tool
from mcpp_agents.model.api_provider import (
    AT_CONTEXT,
    AT_LIMIT,
    REFUSED,
    ApiProvider,
    StreamedReply,
)
from mcpp_agents.model.providers import OnText, Tools
from mcpp_agents.model.tool_definitions import description_of, schema_of, select_tools
from mcpp_agents.toolbox import RemoteTool

_MAX_DESCRIPTION: Final = 10_000
_COUNTERS: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)


class Anthropic(ApiProvider):
    """A model behind Anthropic's Messages API."""

    client_type = anthropic.AsyncAnthropic
    http_client_type = anthropic.DefaultAsyncHttpxClient
    error_type = anthropic.AnthropicError
    incomplete_reasons = {  # noqa: RUF012  (declared as a ClassVar in the base class)
        "max_tokens": AT_LIMIT,
        "model_context_window_exceeded": AT_CONTEXT,
        "refusal": REFUSED,
    }

    def _request(self, prompt: Prompt, tools: Tools, max_tokens: int) -> dict[str, Any]:
        return {
            **prompt.anthropic(),
            "model": self._model,
            "tools": [*select_tools(tools, _definition), expand_tool("anthropic")],
            "max_tokens": max_tokens,
        }

    async def _stream(self, request: dict[str, Any], reply: StreamedReply, on_text: OnText) -> None:
        usage: dict[str, int] = {}
        # Not the client's own stream reader: it drops all calls if one is not valid JSON, and
        # accepts a stream that ends early as a complete reply.
        stream: Any = await self._client.messages.create(**request, stream=True)
        async for event in stream:
            match event.type:
                case "message_start":
                    usage |= _counters(event.message.usage)
                case "content_block_start" if event.content_block.type == "tool_use":
                    reply.calls[event.index] = (event.content_block.name, "")
                case "content_block_delta" if event.delta.type == "text_delta":
                    reply.text.append(event.delta.text)
                    await on_text(event.delta.text)
                case "content_block_delta" if event.delta.type == "input_json_delta":
                    name, arguments = reply.calls[event.index]
                    reply.calls[event.index] = (name, arguments + event.delta.partial_json)
                case "message_delta":
                    reply.stop_reason = event.delta.stop_reason or ""
                    usage |= _counters(event.usage)
                case "message_stop":
                    reply.is_complete = True
        reply.tokens = sum(usage.values())


def _counters(usage: Any) -> dict[str, int]:
    """Return the counters that an event carries; each is a running total, and some are absent."""
    return {name: count for name in _COUNTERS if (count := getattr(usage, name, None)) is not None}


def _definition(tool: RemoteTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": description_of(tool, _MAX_DESCRIPTION),
        "input_schema": schema_of(tool),
    }
