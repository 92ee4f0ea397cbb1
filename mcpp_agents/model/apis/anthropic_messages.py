"""Models behind Anthropic's Messages API."""

from typing import Any, Final

import anthropic

from mcpp.outcomes import Usage
from mcpp.prompts import Prompt, expand_tool
from mcpp_agents.model.apis.api_provider import AT_CONTEXT, AT_LIMIT, REFUSED, ApiProvider
from mcpp_agents.model.apis.streamed_reply import (
    StreamedCall,
    StreamedReply,
    as_json,
    as_list,
    as_object,
    as_text,
)
from mcpp_agents.model.providers import Tools
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

    api = "anthropic"
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

    @property
    def _create(self) -> Any:
        return self._client.messages.with_streaming_response.create

    async def _read(self, event: dict[str, Any], reply: StreamedReply) -> None:
        index = event.get("index")
        delta = as_object(event.get("delta"))
        match event.get("type"):
            case "message_start":
                _count(as_object(event.get("message")), reply)
            case "content_block_start":
                await self._begin(as_object(event.get("content_block")), index, reply)
            case "content_block_delta" if delta.get("type") == "text_delta":
                await reply.add_text(as_text(delta.get("text")))
            case "content_block_delta" if delta.get("type") == "input_json_delta":
                reply.calls[index].add("", as_text(delta.get("partial_json")))
            case "message_delta":
                reply.stop_reason = as_text(delta.get("stop_reason")) or reply.stop_reason
                _count(event, reply)
            case "message_stop":
                reply.is_complete = True
            case "message":  # a server that does not stream
                for place, block in enumerate(as_list(event.get("content"))):
                    await self._begin(as_object(block), place, reply)
                reply.stop_reason = as_text(event.get("stop_reason"))
                _count(event, reply)
                reply.is_complete = True

    async def _begin(self, block: dict[str, Any], index: Any, reply: StreamedReply) -> None:
        """Begin a block of the reply. Some servers send it whole, and no deltas."""
        if block.get("type") == "tool_use":
            name, whole = as_text(block.get("name")), as_json(block.get("input"))
            reply.calls[index] = StreamedCall(name, whole_arguments=whole)
        elif block.get("type") == "text":
            await reply.add_text(as_text(block.get("text")))


def _count(message: dict[str, Any], reply: StreamedReply) -> None:
    """Note the counters that an event carries; each is a running total, and some are absent."""
    usage = as_object(message.get("usage"))
    reply.counters |= {name: usage[name] for name in _COUNTERS if isinstance(usage.get(name), int)}
    reply.tokens = sum(reply.counters.values())
    cached = reply.counters.get("cache_read_input_tokens", 0)
    output = reply.counters.get("output_tokens", 0)
    reply.usage = Usage(
        input_tokens=reply.tokens - output, output_tokens=output, cached_tokens=cached
    )


def _definition(tool: RemoteTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": description_of(tool, _MAX_DESCRIPTION),
        "input_schema": schema_of(tool),
    }
