"""Models behind Anthropic's Messages API."""

from collections.abc import Iterable
from typing import Any, Final

import anthropic

from mcpp.prompts import Prompt, expand_tool
from mcpp_agents.model.providers import (
    AT_CONTEXT,
    AT_LIMIT,
    CUT_OFF,
    HOOKS,
    REFUSED,
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

_MAX_DESCRIPTION: Final = 10_000
_BROKEN_OFF: Final = {
    "max_tokens": AT_LIMIT,
    "model_context_window_exceeded": AT_CONTEXT,
    "refusal": REFUSED,
}
_COUNTS: Final = (
    "input_tokens",
    "cache_creation_input_tokens",
    "cache_read_input_tokens",
    "output_tokens",
)


class Anthropic:
    """A model behind Anthropic's Messages API."""

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
        self._client = anthropic.AsyncAnthropic(
            api_key=api_key,
            base_url=base_url,
            max_retries=retries,
            timeout=timeout(silent_seconds),
            http_client=anthropic.DefaultAsyncHttpxClient(event_hooks=HOOKS),
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
            "tools": [*tools_of(tools, _anthropic_tool), expand_tool("anthropic")],
            "max_tokens": max_tokens,
        }
        text: list[str] = []
        calls: dict[int, tuple[str, str]] = {}
        usage: dict[str, int] = {}
        reason, is_whole = None, False
        with boundary(anthropic.AnthropicError):
            # Its own reader of streams gives up all calls for one that is no JSON, and takes a
            # stream that ends early for a whole reply.
            stream: Any = await self._client.messages.create(**asked, stream=True)
            async for event in stream:
                match event.type:
                    case "message_start":
                        usage |= _counted(event.message.usage)
                    case "content_block_start" if event.content_block.type == "tool_use":
                        calls[event.index] = (event.content_block.name, "")
                    case "content_block_delta" if event.delta.type == "text_delta":
                        text.append(event.delta.text)
                        await on_text(event.delta.text)
                    case "content_block_delta" if event.delta.type == "input_json_delta":
                        name, written = calls[event.index]
                        calls[event.index] = (name, written + event.delta.partial_json)
                    case "message_delta":
                        reason = event.delta.stop_reason
                        usage |= _counted(event.usage)
                    case "message_stop":
                        is_whole = True
        if not is_whole:
            raise ProviderError(CUT_OFF)
        broken_off = _BROKEN_OFF.get(reason or "", "")
        made = read_calls(calls.values(), broken_off)
        return Reply("".join(text), made, sum(usage.values()), broken_off)


def _counted(usage: Any) -> dict[str, int]:
    """Return what is counted here: each a total so far, and not everything is told each time."""
    return {name: count for name in _COUNTS if (count := getattr(usage, name, None)) is not None}


def _anthropic_tool(offer: Offer) -> dict[str, Any]:
    return {
        "name": offer.name,
        "description": describe(offer, _MAX_DESCRIPTION),
        "input_schema": schema_of(offer),
    }
