"""Models behind OpenAI's Chat Completions API, which many local ones speak too."""

from collections.abc import Iterable
from typing import Any, Final

import openai

from mcpp.prompts import Prompt, expand_tool
from mcpp.tokens import estimate
from mcpp_agents.model.providers import (
    AT_LIMIT,
    CUT_OFF,
    FILTERED,
    HOOKS,
    RETRIES,
    SILENT_SECONDS,
    OnText,
    ProviderError,
    Reply,
    boundary,
    describe,
    read_calls,
    schema_of,
    timeout,
    tools_of,
    unheard,
)
from mcpp_agents.toolbox import Offer

# What older models and many servers take; one tool beyond it would cost all of them.
_MAX_DESCRIPTION: Final = 1024
_MAX_TOOLS: Final = 128
_BROKEN_OFF: Final = {"length": AT_LIMIT, "content_filter": FILTERED}


class OpenAI:
    """A model behind OpenAI's Chat Completions API, or whatever speaks it at `base_url`."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str,
        base_url: str | None = None,
        retries: int = RETRIES,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._model = model
        self._client = openai.AsyncOpenAI(
            api_key=api_key,
            base_url=base_url,
            max_retries=retries,
            timeout=timeout(silent_seconds),
            http_client=openai.DefaultAsyncHttpxClient(event_hooks=HOOKS),
        )

    async def reply(
        self,
        prompt: Prompt,
        tools: Iterable[Offer],
        max_tokens: int,
        on_text: OnText = unheard,
    ) -> Reply:
        """Return the model's next word; `on_text` hears it grow. Raises ProviderError."""
        offered = tools_of(tools, _openai_tool, _MAX_TOOLS - 1)
        asked: dict[str, Any] = {
            **prompt.openai_chat(),
            "model": self._model,
            "tools": [*offered, expand_tool("openai_chat")],
            "max_completion_tokens": max_tokens,
            "stream_options": {"include_usage": True},
        }
        text: list[str] = []
        calls: dict[str, tuple[str, str]] = {}
        ids: dict[int, str] = {}
        tokens, ended = 0, ""
        with boundary(openai.OpenAIError):
            stream: Any = await self._client.chat.completions.create(**asked, stream=True)
            async for chunk in stream:
                if chunk.usage is not None:
                    tokens = chunk.usage.total_tokens
                for choice in chunk.choices[:1]:
                    ended = choice.finish_reason or ended
                    if choice.delta.content:
                        text.append(choice.delta.content)
                        await on_text(choice.delta.content)
                    for part in choice.delta.tool_calls or ():
                        # Some servers give all calls one index, but each its id.
                        ids[part.index] = id = part.id or ids.get(part.index, f"#{part.index}")
                        name, written = calls.get(id, ("", ""))
                        calls[id] = (
                            name + (part.function.name or ""),
                            written + (part.function.arguments or ""),
                        )
        if not ended:
            raise ProviderError(CUT_OFF)
        broken_off = _BROKEN_OFF.get(ended, "")
        # Not every server counts; a limit that never comes would be none.
        tokens = tokens or prompt.tokens + estimate("".join([*text, *map("".join, calls.values())]))
        return Reply("".join(text), read_calls(calls.values(), broken_off), tokens, broken_off)


def _openai_tool(offer: Offer) -> dict[str, Any]:
    function = {
        "name": offer.name,
        "description": describe(offer, _MAX_DESCRIPTION),
        "parameters": schema_of(offer),
    }
    return {"type": "function", "function": function}
