"""Spans of a model's work: of a question that it answers, and of each of its replies.

Names and attributes are those of OpenTelemetry's conventions for generative AI. Prompts and replies
are not recorded: they are in the pod's log, where rights and erasure apply.
"""

from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import urlsplit

from mcpp import Pod
from mcpp.tracing.spans import OpenSpan, operation
from mcpp_agents.model.providers import Reply


def agent_span(pod: Pod, context: str) -> AbstractContextManager[OpenSpan]:
    """Return the span in which an agent thinks about a question, in a context of its own."""
    attributes = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": pod.me,
        "gen_ai.conversation.id": context,
        "mcpp.pod": pod.name,
        "mcpp.context.id": context,
    }
    return operation(f"invoke_agent {pod.me}", attributes)


def chat_span(
    api: str, model: str, max_tokens: int, address: str
) -> AbstractContextManager[OpenSpan]:
    """Return the span of one reply of a model, whose API is at an address."""
    parts = urlsplit(address)
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": api,
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": max_tokens,
        "gen_ai.request.stream": True,
        "server.address": parts.hostname or "",
        "server.port": parts.port or (443 if parts.scheme == "https" else 80),
    }
    return operation(f"chat {model}", attributes, kind="client")


def reply_attributes(reply: Reply) -> dict[str, Any]:
    """Return what a reply adds to its span: tokens, the model, why it ended."""
    usage = reply.usage
    outcome: dict[str, Any] = {}
    if usage.input_tokens or usage.output_tokens:
        outcome["gen_ai.usage.input_tokens"] = usage.input_tokens
        outcome["gen_ai.usage.output_tokens"] = usage.output_tokens
    if usage.cached_tokens:
        outcome["gen_ai.usage.cache_read.input_tokens"] = usage.cached_tokens
    if usage.model:
        outcome["gen_ai.response.model"] = usage.model
    if reply.stop_reason:
        outcome["gen_ai.response.finish_reasons"] = [reply.stop_reason]
    return outcome
