"""Sampling: a model agent answers `sampling/createMessage` for MCP servers in the pod (P-61).

The messages become a conversation between the server and the model. The agent's own tools,
instructions and memory are not part of it.
"""

from typing import Any, Final

import anyio

from mcpp import Envelope, McppError, ToolCall, kinds, new_envelope
from mcpp.prompts import PromptBuilder
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.model.limits import ModelLimits
from mcpp_agents.model.providers import Provider

METHOD: Final = "sampling/createMessage"
# Each costs as much as a question, but no person has asked it.
_AT_ONCE: Final = 2
_MAX_MESSAGES: Final = 100


class Sampler:
    """Answers servers' requests with a model. Owns the places of those that run."""

    def __init__(self, provider: Provider, limits: ModelLimits) -> None:
        self._provider = provider
        self._limits = limits
        self._places = anyio.Semaphore(_AT_ONCE)

    async def sample(self, params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        """Return the model's next message. Raises Failure."""
        builder = PromptBuilder(
            call.pod.me,
            system=_text(params.get("systemPrompt")),
            token_budget=self._limits.prompt_tokens,
            cache=None,
        )
        wanted = params.get("maxTokens")
        if not isinstance(wanted, int) or wanted < 1:
            raise Failure(rpc.INVALID_PARAMS, "$.maxTokens: must be at least 1")
        messages = _read_messages(params, call)
        try:
            prompt = builder.build(messages)
            async with self._places:
                reply = await self._provider.reply(
                    prompt, [], min(wanted, self._limits.reply_tokens)
                )
        except McppError as error:
            raise Failure(rpc.INTERNAL_ERROR, f"the model has no answer: {error}") from None
        return {
            "role": "assistant",
            "content": {"type": "text", "text": reply.text},
            "model": call.pod.me,
            "stopReason": "maxTokens" if reply.incomplete_reason else "endTurn",
        }


def _read_messages(params: dict[str, Any], call: ToolCall) -> list[Envelope]:
    messages = params.get("messages")
    if not isinstance(messages, list) or not 0 < len(messages) <= _MAX_MESSAGES:
        raise Failure(rpc.INVALID_PARAMS, f"$.messages: 1 to {_MAX_MESSAGES} are required")
    senders = {"user": call.sender, "assistant": call.pod.me}
    log = []
    for place, message in enumerate(messages):
        sender = senders.get(str(message.get("role"))) if isinstance(message, dict) else None
        text = "" if sender is None else _text(message.get("content"))
        if sender is None or not text:
            raise Failure(rpc.INVALID_PARAMS, f"$.messages[{place}]: is not a text of a role")
        log.append(new_envelope(kinds.CHAT, {"text": text}, sender=sender))
    return log


def _text(content: Any) -> str:
    """Return the text of a message: of one part, or of several."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))
