"""Finds calls and results in the messages of a model's API, and replaces results in them.

One reading serves Anthropic's Messages API and OpenAI's Chat Completions and Responses APIs: their
forms do not overlap. Messages may be JSON objects or the objects that the vendors' packages return.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mcpp.tokens import Counter, image_tokens

_IMAGE_TOKENS: Final = 1_600


class Place(NamedTuple):
    """The place of a part in a list of messages; `block` is None if it is the whole message."""

    message: int
    block: int | None = None


class CallPart(NamedTuple):
    """A tool call that the model made."""

    id: str
    arguments: Any


class ResultPart(NamedTuple):
    """A result that the model is shown."""

    call_id: str


class TextPart(NamedTuple):
    """Any other part."""

    from_model: bool


Part = CallPart | ResultPart | TextPart


def read_parts(messages: Sequence[Any]) -> Iterator[tuple[Place, Any, Part]]:
    """Yield the parts of all messages in order: place, the part itself, and what it is."""
    for index, message in enumerate(messages):
        content = _member(message, "content")
        from_model = _member(message, "role") == "assistant"
        if _member(message, "role") == "tool":
            yield Place(index), message, ResultPart(str(_member(message, "tool_call_id")))
        elif (kind := _member(message, "type")) == "function_call":
            arguments = _decoded(_member(message, "arguments"))
            yield Place(index), message, CallPart(str(_member(message, "call_id")), arguments)
        elif kind == "function_call_output":
            yield Place(index), message, ResultPart(str(_member(message, "call_id")))
        elif kind == "reasoning":
            yield Place(index), message, TextPart(from_model=True)
        elif isinstance(content, Sequence) and not isinstance(content, str):
            for number, block in enumerate(content):
                yield Place(index, number), block, _block_part(block, from_model=from_model)
        else:
            yield Place(index), message, TextPart(from_model)
        calls = _member(message, "tool_calls")
        for call in calls if isinstance(calls, Iterable) else ():
            function = _member(call, "function")
            arguments = _decoded(_member(function, "arguments"))
            yield Place(index), call, CallPart(str(_member(call, "id")), arguments)


def replace_results(messages: Sequence[Any], texts: Mapping[Place, str]) -> list[Any]:
    """Return the messages with other texts as these results; the given ones do not change."""
    replaced = list(messages)
    for place, text in texts.items():
        message = replaced[place.message]
        if place.block is None:
            member = "content" if _member(message, "role") == "tool" else "output"
            replaced[place.message] = {**_as_dict(message), member: text}
            continue
        if message is messages[place.message]:  # the first result replaced in this message
            message = replaced[place.message] = {
                **_as_dict(message),
                "content": list(_member(message, "content")),
            }
        blocks = message["content"]
        shown = [{"type": "text", "text": text}]
        blocks[place.block] = {**_as_dict(blocks[place.block]), "content": shown}
    return replaced


def part_tokens(part: Any, count: Counter) -> int:
    """Return about how many tokens a part has."""
    if isinstance(part, str):
        return count(part)
    if isinstance(part, Mapping):
        if part.get("type") in ("image", "image_url", "input_image"):
            source = part.get("source")
            data = source.get("data") if isinstance(source, Mapping) else None
            return image_tokens(data) if isinstance(data, str) else _IMAGE_TOKENS
        return sum(part_tokens(value, count) for value in part.values())
    if isinstance(part, Sequence):
        return sum(part_tokens(value, count) for value in part)
    return part_tokens(_as_dict(part), count) if hasattr(part, "model_dump") else 1


def _block_part(block: Any, *, from_model: bool) -> Part:
    match _member(block, "type"):
        case "tool_use":
            return CallPart(str(_member(block, "id")), _member(block, "input"))
        case "tool_result":
            return ResultPart(str(_member(block, "tool_use_id")))
    return TextPart(from_model)


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _as_dict(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    dumped: dict[str, Any] = value.model_dump(mode="json", exclude_none=True)
    return dumped


def _decoded(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments
