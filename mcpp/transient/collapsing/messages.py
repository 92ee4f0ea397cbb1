"""Finds calls and results in the messages of a model's API, and replaces results in them.

One reading serves Anthropic's Messages API and OpenAI's Chat Completions and Responses APIs: their
forms do not overlap. Messages may be JSON objects or the objects that the vendors' packages return.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mcpp.tokens import DEFAULT_IMAGE_TOKENS, Counter, image_tokens

# Responses API: the types of calls, with the member that has the arguments, and of their results.
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
_OUTPUTS: Final = frozenset(f"{kind}_output" for kind in _CALLS)

_FILE_CHARS_PER_TOKEN: Final = 60
"""Of base64. APIs count the pages or seconds, which no size tells: 1,600 tokens for 75 KB."""


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
        elif (kind := str(_member(message, "type"))) in _CALLS:
            arguments = _decoded(_member(message, _CALLS[kind]))
            yield Place(index), message, CallPart(str(_member(message, "call_id")), arguments)
        elif kind in _OUTPUTS:
            yield Place(index), message, ResultPart(str(_member(message, "call_id")))
        elif kind == "reasoning" or kind.endswith("_call"):  # such as `web_search_call`
            yield Place(index), message, TextPart(from_model=True)
        elif isinstance(content, Sequence) and not isinstance(content, str):
            for number, block in enumerate(content):
                yield Place(index, number), block, _block_part(block, from_model=from_model)
        else:
            yield Place(index), message, TextPart(from_model)
        calls = _member(message, "tool_calls")
        for call in calls if isinstance(calls, Iterable) else ():
            yield Place(index), call, CallPart(str(_member(call, "id")), _chat_arguments(call))


def replace_results(messages: Sequence[Any], texts: Mapping[Place, str]) -> list[Any]:
    """Return the messages with other texts as these results; the given ones do not change."""
    replaced = list(messages)
    for place, text in texts.items():
        message = replaced[place.message]
        if place.block is None:
            member = "content" if _member(message, "role") == "tool" else "output"
            block = _text_block(text, _member(message, member))
            shown = [block] if "cache_control" in block else text
            replaced[place.message] = {**_as_dict(message), member: shown}
            continue
        if message is messages[place.message]:  # the first result replaced in this message
            message = replaced[place.message] = {
                **_as_dict(message),
                "content": list(_member(message, "content")),
            }
        blocks = message["content"]
        result = _as_dict(blocks[place.block])
        blocks[place.block] = {**result, "content": [_text_block(text, result.get("content"))]}
    return replaced


def _text_block(text: str, replaced: Any) -> dict[str, Any]:
    """Return a text as a block, which ends a cached part if a replaced block did."""
    blocks = replaced if isinstance(replaced, list) else ()
    ends = [end for block in blocks if (end := _member(block, "cache_control")) is not None]
    return {"type": "text", "text": text, **({"cache_control": ends[-1]} if ends else {})}


def part_tokens(part: Any, count: Counter) -> int:
    """Return about how many tokens a part has; a message's calls are parts of their own."""
    members = _members(part)
    rest = [part if members is None else {**members, "tool_calls": None}]
    total = 0
    while rest:  # does not recurse: arguments may nest deeper than the stack allows
        value = rest.pop()
        if isinstance(value, str):
            total += count(value)
        elif (members := _members(value)) is not None:
            known = _file_tokens(members)
            total += known or 0
            rest.extend(() if known is not None else members.values())
        elif isinstance(value, Sequence):
            rest.extend(value)
        else:
            total += value is not None
    return total


def _chat_arguments(call: Any) -> Any:
    """Return the arguments of a call of Chat Completions, which of a custom tool are a text."""
    custom = _member(call, "custom")
    given = _member(_member(call, "function"), "arguments")
    return _decoded(given if custom is None else _member(custom, "input"))


def _file_tokens(members: Mapping[str, Any]) -> int | None:
    """Return about how many tokens an image, a document or a sound has; None for other objects."""
    source = _members(members.get("source")) or {}
    is_encoded = source.get("type") == "base64"
    if members.get("type") in ("image", "image_url", "input_image"):
        return image_tokens(str(source["data"])) if is_encoded else DEFAULT_IMAGE_TOKENS
    sound = _members(members.get("input_audio")) or {}
    data = source.get("data") if is_encoded else members.get("file_data", sound.get("data"))
    return len(data) // _FILE_CHARS_PER_TOKEN if isinstance(data, str) else None


def _block_part(block: Any, *, from_model: bool) -> Part:
    match _member(block, "type"):
        case "tool_use":
            return CallPart(str(_member(block, "id")), _member(block, "input"))
        case "tool_result":
            return ResultPart(str(_member(block, "tool_use_id")))
    return TextPart(from_model)


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _members(value: Any) -> Mapping[str, Any] | None:
    """Return the members of a JSON object or of a vendor's object, without converting it."""
    if isinstance(value, Mapping):
        return value
    return vars(value) if hasattr(value, "model_dump") else None


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
