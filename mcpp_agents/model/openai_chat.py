"""Models behind OpenAI's Chat Completions API, which many local servers implement too."""

from typing import Any, Final

import openai

from mcpp.prompts import Prompt, expand_tool
from mcpp_agents.model.api_provider import AT_LIMIT, FILTERED, ApiProvider, StreamedReply
from mcpp_agents.model.providers import OnText, Tools
from mcpp_agents.model.tool_definitions import description_of, schema_of, select_tools
from mcpp_agents.toolbox import RemoteTool

# The limits of older models and many servers, which refuse a request that exceeds them.
_MAX_DESCRIPTION: Final = 1024
_MAX_TOOLS: Final = 128


class OpenAI(ApiProvider):
    """A model behind OpenAI's Chat Completions API, or a compatible one at `base_url`."""

    client_type = openai.AsyncOpenAI
    http_client_type = openai.DefaultAsyncHttpxClient
    error_type = openai.OpenAIError
    incomplete_reasons = {  # noqa: RUF012  (declared as a ClassVar in the base class)
        "length": AT_LIMIT,
        "content_filter": FILTERED,
    }

    def _request(self, prompt: Prompt, tools: Tools, max_tokens: int) -> dict[str, Any]:
        selected = select_tools(tools, _definition, _MAX_TOOLS - 1)
        return {
            **prompt.openai_chat(),
            "model": self._model,
            "tools": [*selected, expand_tool("openai_chat")],
            "max_completion_tokens": max_tokens,
            "stream_options": {"include_usage": True},
        }

    async def _stream(self, request: dict[str, Any], reply: StreamedReply, on_text: OnText) -> None:
        ids: dict[int, str] = {}
        stream: Any = await self._client.chat.completions.create(**request, stream=True)
        async for chunk in stream:
            if chunk.usage is not None:
                reply.tokens = chunk.usage.total_tokens
            for choice in chunk.choices[:1]:
                reply.stop_reason = choice.finish_reason or reply.stop_reason
                if choice.delta.content:
                    reply.text.append(choice.delta.content)
                    await on_text(choice.delta.content)
                for part in choice.delta.tool_calls or ():
                    # Some servers give all calls the same index, but each its own id.
                    ids[part.index] = id = part.id or ids.get(part.index, f"#{part.index}")
                    name, arguments = reply.calls.get(id, ("", ""))
                    reply.calls[id] = (
                        name + (part.function.name or ""),
                        arguments + (part.function.arguments or ""),
                    )
        reply.is_complete = bool(reply.stop_reason)


def _definition(tool: RemoteTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": description_of(tool, _MAX_DESCRIPTION),
        "parameters": schema_of(tool),
    }
    return {"type": "function", "function": function}
