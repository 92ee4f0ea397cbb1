"""Collapsing of consumed tool results in the messages of any framework.

A framework's messages are described as parts: what was said, calls, and their results. The rules
are those of a pod's log (`mcpp.transient.Conversation`), applied anew to the complete messages for
each request to the model, so that one filter serves any number of conversations.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from mcpp.transient import Conversation, consumed, mark_by_rule

__all__ = ["CallMade", "Part", "ResultSeen", "TextSaid", "collapsed_texts"]


@dataclass(frozen=True, slots=True)
class TextSaid:
    """A text of the model or of others."""

    text: str
    by_model: bool


@dataclass(frozen=True, slots=True)
class CallMade:
    """A call that the model makes."""

    id: str
    tool: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class ResultSeen:
    """The result of a call; `marked` is MCP's, with the marks of its server, if it is known."""

    id: str
    tool: str
    text: str
    marked: Mapping[str, Any] | None = None


Part: TypeAlias = TextSaid | CallMade | ResultSeen


def collapsed_texts(parts: Iterable[Part], pairs: Mapping[str, str]) -> dict[str, str]:
    """Return what to show in place of results, by the ids of their calls.

    `pairs` says which tool's results are consumed by a call of which tool.
    """
    conversation = Conversation()
    messages: list[dict[str, Any]] = []
    for part in parts:
        messages.append(_message(part))
        if isinstance(part, ResultSeen):
            conversation.add_result(part.tool, part.id, _result(part, pairs))
    shown = conversation.collapse(messages)
    return {
        before["tool_call_id"]: after["content"]
        for before, after in zip(messages, shown, strict=True)
        if before["role"] == "tool" and after["content"] != before["content"]
    }


def _message(part: Part) -> dict[str, Any]:
    match part:
        case TextSaid(text, by_model):
            return {"role": "assistant" if by_model else "user", "content": text}
        case CallMade(id, tool, arguments):
            given = arguments if isinstance(arguments, str) else json.dumps(arguments, default=str)
            use = {"id": id, "type": "function", "function": {"name": tool, "arguments": given}}
            return {"role": "assistant", "content": None, "tool_calls": [use]}
        case ResultSeen(id, _, text):
            return {"role": "tool", "tool_call_id": id, "content": text}


def _result(part: ResultSeen, pairs: Mapping[str, str]) -> dict[str, Any]:
    if part.marked is not None:
        return dict(part.marked)
    result = {"content": [{"type": "text", "text": part.text}]}
    if part.tool in pairs:
        return mark_by_rule(result, True)
    return consumed(result) if part.tool in pairs.values() else result
