"""Renders messages for three model APIs, and as Markdown for people.

The API functions return keyword arguments for a request: the system text and the messages.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from mcpp.prompts.blocks import Block, CallBlock, ImageBlock, PromptMessage, ResultBlock, TextBlock


def anthropic(system: str, messages: Sequence[PromptMessage]) -> dict[str, Any]:
    """Return `system` and `messages` for Anthropic's Messages API."""
    rendered = [
        {"role": message.role, "content": [_anthropic(block) for block in message.blocks]}
        for message in messages
    ]
    return {"system": system, "messages": rendered}


def openai_chat(system: str, messages: Sequence[PromptMessage]) -> dict[str, Any]:
    """Return `messages` for OpenAI's Chat Completions API: one `tool` message for each call.

    A `tool` message holds only text, so a result's images follow in a user message.
    """
    rendered: list[dict[str, Any]] = [{"role": "system", "content": system}]
    for message in messages:
        calls = [block for block in message.blocks if isinstance(block, CallBlock)]
        results = [block for block in message.blocks if isinstance(block, ResultBlock)]
        parts = [
            _chat_part(block)
            for block in message.blocks
            if not isinstance(block, CallBlock | ResultBlock)
        ]
        if message.role == "assistant":
            said: dict[str, Any] = {"role": "assistant", "content": parts or None}
            if calls:
                said["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.json},
                    }
                    for call in calls
                ]
            rendered.append(said)
            continue
        images: list[dict[str, Any]] = []
        for result in results:
            found = [part for part in result.content if isinstance(part, ImageBlock)]
            text = _result_text(result)
            rendered.append({"role": "tool", "tool_call_id": result.call_id, "content": text})
            if found:
                images.append({"type": "text", "text": f"[images of call {result.call_id}]"})
                images.extend(map(_chat_part, found))
        if images or parts:
            rendered.append({"role": "user", "content": images + parts})
    return {"messages": rendered}


def openai_responses(system: str, messages: Sequence[PromptMessage]) -> dict[str, Any]:
    """Return `instructions` and `input` for OpenAI's Responses API.

    Assistant messages are plain strings: a list of parts would need the ids that the API assigned.
    """
    items: list[dict[str, Any]] = []
    for message in messages:
        said: list[dict[str, Any]] = []
        for block in message.blocks:
            match block:
                case TextBlock(text) if message.role == "assistant":
                    items.append({"type": "message", "role": "assistant", "content": text})
                case TextBlock(text):
                    said.append({"type": "input_text", "text": text})
                case ImageBlock():
                    said.append(_input_image(block))
                case CallBlock():
                    items.append(
                        {
                            "type": "function_call",
                            "call_id": block.id,
                            "name": block.name,
                            "arguments": block.json,
                        }
                    )
                case ResultBlock():
                    items.append(_function_output(block))
        if said:
            items.append({"type": "message", "role": "user", "content": said})
    return {"instructions": system, "input": items}


def markdown(system: str | None, messages: Sequence[PromptMessage]) -> str:
    """Return the prompt as Markdown, without the system section if `system` is None."""
    parts = [] if system is None else [f"# System\n\n{system}"]
    for number, message in enumerate(messages):
        parts.append(f"# {number} · {message.role}")
        parts.extend(map(_markdown, message.blocks))
    return "\n\n".join(parts) + "\n"


def _anthropic(block: Block) -> dict[str, Any]:
    match block:
        case TextBlock(text):
            return {"type": "text", "text": text}
        case ImageBlock(data, media_type):
            source = {"type": "base64", "media_type": media_type, "data": data}
            return {"type": "image", "source": source}
        case CallBlock():
            return {
                "type": "tool_use",
                "id": block.id,
                "name": block.name,
                "input": deepcopy(block.arguments),
            }
        case ResultBlock():
            return {
                "type": "tool_result",
                "tool_use_id": block.call_id,
                "content": [_anthropic(part) for part in block.content],
                **({"is_error": True} if block.is_error else {}),
            }


def _chat_part(block: Block) -> dict[str, Any]:
    if isinstance(block, ImageBlock):
        return {"type": "image_url", "image_url": {"url": _data_url(block)}}
    assert isinstance(block, TextBlock)
    return {"type": "text", "text": block.text}


def _result_text(result: ResultBlock) -> str:
    texts = [part.text for part in result.content if isinstance(part, TextBlock)]
    text = "\n".join(texts) or "[images follow]"
    return _ERROR + text if result.is_error else text


def _function_output(result: ResultBlock) -> dict[str, Any]:
    output: Any = _result_text(result)
    if any(isinstance(part, ImageBlock) for part in result.content):
        texts = [{"type": "input_text", "text": output}]
        images = [_input_image(part) for part in result.content if isinstance(part, ImageBlock)]
        output = texts + images
    return {"type": "function_call_output", "call_id": result.call_id, "output": output}


def _input_image(image: ImageBlock) -> dict[str, Any]:
    return {"type": "input_image", "image_url": _data_url(image), "detail": "auto"}


def _data_url(image: ImageBlock) -> str:
    return f"data:{image.media_type};base64,{image.data}"


def _markdown(block: Block) -> str:
    match block:
        case TextBlock(text):
            return text
        case ImageBlock():
            return f"*[image, {block.media_type}]*"
        case CallBlock():
            return f"**calls** `{block.name}` ({block.id})\n\n{_code(block.json)}"
        case ResultBlock():
            verb = "fails" if block.is_error else "gives"
            inner = "\n".join(map(_markdown, block.content))
            return f"**{verb}** ({block.call_id})\n\n{_code(inner)}"


def _code(text: str) -> str:
    # Longer than any run of backticks inside, or the text could close the code block.
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


_ERROR = "[error] "
"""Prefix of a failed call's text: OpenAI's APIs have no member for it."""
