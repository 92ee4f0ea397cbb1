"""Checks that a request obeys the documented rules of the three APIs.

They work on the rendered request only and raise AssertionError.
"""

import base64
import json
import re
from typing import Any

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CALL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
IMAGE_TYPES = {
    "image/jpeg": b"\xff\xd8\xff",
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/gif": b"GIF8",
    "image/webp": b"RIFF",
}


def check_anthropic(request: dict[str, Any]) -> None:
    """Roles alternate, the user first and last; results come first, right after their calls."""
    assert set(request) == {"system", "messages"}
    assert isinstance(request["system"], str)
    messages = request["messages"]
    assert [message["role"] for message in messages] == [
        "user" if i % 2 == 0 else "assistant" for i in range(len(messages))
    ]
    assert messages[-1]["role"] == "user"
    awaited: list[str] = []
    used: set[str] = set()
    for message in messages:
        content = message["content"]
        assert content
        kinds = [block["type"] for block in content]
        if message["role"] == "assistant":
            assert set(kinds) <= {"text", "tool_use"}
            assert kinds == sorted(kinds), "text comes before calls"
            awaited = [block["id"] for block in content if block["type"] == "tool_use"]
            assert not used.intersection(awaited)
            assert len(set(awaited)) == len(awaited)
            used.update(awaited)
        else:
            results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
            assert sorted(results) == sorted(awaited)
            assert kinds[: len(results)] == ["tool_result"] * len(results)
            awaited = []
        for block in content:
            _check_anthropic_block(block)
    assert not awaited


def _check_anthropic_block(block: dict[str, Any]) -> None:
    match block["type"]:
        case "text":
            assert set(block) == {"type", "text"}
            assert block["text"].strip()
        case "image":
            assert block["source"]["type"] == "base64"
            data = base64.b64decode(block["source"]["data"], validate=True)
            assert data.startswith(IMAGE_TYPES[block["source"]["media_type"]])
        case "tool_use":
            assert set(block) == {"type", "id", "name", "input"}
            assert CALL_ID.fullmatch(block["id"])
            assert NAME.fullmatch(block["name"])
            assert isinstance(block["input"], dict)
        case "tool_result":
            assert set(block) <= {"type", "tool_use_id", "content", "is_error"}
            allowed = {"text"} if block.get("is_error") else {"text", "image"}
            assert {inner["type"] for inner in block["content"]} <= allowed
            for inner in block["content"]:
                _check_anthropic_block(inner)
        case other:
            raise AssertionError(other)


def check_openai_chat(request: dict[str, Any]) -> None:
    """The system message is first; calls are followed by one `tool` message for each id."""
    assert set(request) == {"messages"}
    messages = request["messages"]
    assert messages[0]["role"] == "system"
    awaited: set[str] = set()
    used: set[str] = set()
    for message in messages[1:]:
        role = message["role"]
        if role == "tool":
            assert set(message) == {"role", "tool_call_id", "content"}
            assert message["tool_call_id"] in awaited
            assert isinstance(message["content"], str)
            assert message["content"]
            awaited.remove(message["tool_call_id"])
            continue
        assert not awaited, "every call is answered before the next message"
        if role == "assistant":
            calls = message.get("tool_calls", [])
            assert calls or message["content"]
            for call in calls:
                assert call["type"] == "function"
                assert CALL_ID.fullmatch(call["id"])
                assert call["id"] not in used
                assert NAME.fullmatch(call["function"]["name"])
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
                used.add(call["id"])
                awaited.add(call["id"])
            for part in message["content"] or []:
                assert part["type"] == "text"
                assert part["text"]
        else:
            assert role == "user"
            assert message["content"]
            for part in message["content"]:
                assert part["type"] in ("text", "image_url")
                if part["type"] == "text":
                    assert part["text"]
                else:
                    assert part["image_url"]["url"].startswith("data:image/")
    assert not awaited


def check_openai_responses(request: dict[str, Any]) -> None:
    """Every `function_call` is followed by one `function_call_output` with its `call_id`."""
    assert set(request) == {"instructions", "input"}
    awaited: set[str] = set()
    used: set[str] = set()
    for item in request["input"]:
        match item["type"]:
            case "message":
                assert not awaited
                assert set(item) == {"type", "role", "content"}
                assert item["content"]
                if item["role"] == "assistant":  # a list of parts would need an id and a status
                    assert isinstance(item["content"], str)
                    continue
                assert item["role"] == "user"
                for part in item["content"]:
                    assert part["type"] in ("input_text", "input_image")
                    assert part["type"] == "input_image" or part["text"]
            case "function_call":
                assert set(item) == {"type", "call_id", "name", "arguments"}
                assert CALL_ID.fullmatch(item["call_id"])
                assert item["call_id"] not in used
                assert NAME.fullmatch(item["name"])
                assert isinstance(json.loads(item["arguments"]), dict)
                used.add(item["call_id"])
                awaited.add(item["call_id"])
            case "function_call_output":
                assert set(item) == {"type", "call_id", "output"}
                assert item["call_id"] in awaited
                assert item["output"]
                awaited.remove(item["call_id"])
            case other:
                raise AssertionError(other)
    assert not awaited
    assert request["input"], "an empty input is refused"


def check_all(prompt: Any) -> None:
    check_anthropic(prompt.anthropic())
    check_openai_chat(prompt.openai_chat())
    check_openai_responses(prompt.openai_responses())
