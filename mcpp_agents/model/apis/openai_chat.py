"""Models behind OpenAI's Chat Completions API, which many local servers implement too."""

from typing import Any, Final

import openai

from mcpp.outcomes import Usage
from mcpp.prompts import Prompt, expand_tool
from mcpp_agents.model.apis.api_provider import AT_LIMIT, FILTERED, ApiProvider
from mcpp_agents.model.apis.streamed_reply import (
    StreamedCall,
    StreamedReply,
    as_count,
    as_json,
    as_list,
    as_object,
    as_text,
)
from mcpp_agents.model.providers import Tools
from mcpp_agents.model.tool_definitions import description_of, schema_of, select_tools
from mcpp_agents.toolbox import RemoteTool

# The limits of older models and many servers, which refuse a request that exceeds them.
_MAX_DESCRIPTION: Final = 1024
_MAX_TOOLS: Final = 128


class OpenAI(ApiProvider):
    """A model behind OpenAI's Chat Completions API, or a compatible one at `base_url`."""

    api = "openai"
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

    @property
    def _create(self) -> Any:
        return self._client.chat.completions.with_streaming_response.create

    async def _read(self, event: dict[str, Any], reply: StreamedReply) -> None:
        usage = as_object(event.get("usage"))
        tokens = usage.get("total_tokens")
        if isinstance(tokens, int):
            reply.tokens = tokens
            details = as_object(usage.get("prompt_tokens_details"))
            reply.usage = Usage(
                input_tokens=as_count(usage.get("prompt_tokens")),
                output_tokens=as_count(usage.get("completion_tokens")),
                cached_tokens=as_count(details.get("cached_tokens")),
            )
        for choice in as_list(event.get("choices"))[:1]:
            reply.stop_reason = as_text(choice.get("finish_reason")) or reply.stop_reason
            # A server that does not stream answers with a whole message.
            message = as_object(choice.get("message"))
            delta = as_object(choice.get("delta")) or message
            if text := as_text(delta.get("content")):
                await reply.add_text(text)
            for place, part in enumerate(as_list(delta.get("tool_calls"))):
                self._add_call(as_object(part), place if message else 0, reply)
            reply.is_complete |= bool(reply.stop_reason or message)

    def _add_call(self, part: dict[str, Any], place: int, reply: StreamedReply) -> None:
        """Add a piece of a call, to the one that it continues or as the first of another.

        Some servers give all calls the same index or none, some no ids, and some repeat name or id
        with every piece.
        """
        function = as_object(part.get("function"))
        name, arguments = as_text(function.get("name")), as_json(function.get("arguments"))
        index, id = part.get("index"), as_text(part.get("id"))
        index = index if isinstance(index, int) else place
        calls = [key for key in reply.calls if isinstance(key, tuple) and key[0] == index]
        last = calls[-1] if calls else None
        if last is None or (name and self._is_another(reply.calls[last], last[1], name, id)):
            last = (index, id, len(reply.calls))
            reply.calls[last] = StreamedCall()
        reply.calls[last].add(name, arguments)

    @staticmethod
    def _is_another(call: StreamedCall, known_id: str, name: str, id: str) -> bool:
        if id and known_id:
            return id != known_id
        return call.is_closed or (bool(call.arguments) and name != call.name)


def _definition(tool: RemoteTool) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": description_of(tool, _MAX_DESCRIPTION),
        "parameters": schema_of(tool),
    }
    return {"type": "function", "function": function}
