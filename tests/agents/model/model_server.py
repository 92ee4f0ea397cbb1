"""A local HTTP server that implements two model APIs by a script and validates the requests."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import jsonschema

from tests.agents.http_server import QuietHandler, serve_http
from tests.mcpp.prompts.formats import NAME, check_anthropic, check_openai_chat


@dataclass
class Scripted:
    """A model's reply: a text, tool calls, or a failure of the API."""

    text: str = ""
    calls: list[tuple[str, dict[str, Any] | str]] = field(default_factory=list)
    status: int = 200
    retry_after: str | None = None  # of a failure
    reason: str | None = None  # the stop reason, if not the usual one
    has_one_index: bool = False  # some servers give all calls the same index (OpenAI's API)
    is_counted: bool = True  # some local servers report no usage
    ends_after: int | None = None  # the stream ends after so many events
    raw_body: str | None = None  # sent instead of a stream


@dataclass
class ModelServer:
    """The script, the requests received, and what was wrong with them."""

    script: list[Scripted]
    requests: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, request: dict[str, Any]) -> tuple[int, str]:
        self.requests.append(request)
        try:
            events = self._anthropic if path == "/v1/messages" else self._openai
            check = check_anthropic_request if path == "/v1/messages" else check_openai_request
            check(request)
        except Exception as error:  # any failure of a check is reported
            self.problems.append(repr(error))
            return 400, json.dumps({"error": {"message": repr(error)}})
        reply = self.script.pop(0)
        if reply.status != 200:
            return reply.status, json.dumps({"type": "error", "error": {"message": "scripted"}})
        if reply.raw_body is not None:
            return 200, reply.raw_body
        return 200, "".join(islice(events(reply), reply.ends_after))

    def _openai(self, reply: Scripted) -> Iterator[str]:
        def chunk(delta: dict[str, Any], **more: Any) -> str:
            choice = [{"index": 0, "delta": delta, "finish_reason": None}] if delta else []
            base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            return f"data: {json.dumps(base | {'choices': choice} | more)}\n\n"

        for letter in reply.text:
            yield chunk({"content": letter})
        for index, (name, arguments) in enumerate(reply.calls):
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            head = {"index": index, "id": f"their-{index}", "type": "function"}
            if reply.has_one_index:
                head["index"] = 0
            yield chunk({"tool_calls": [head | {"function": {"name": name, "arguments": ""}}]})
            for part in (written[:3], written[3:]):
                piece = {"index": head["index"], "function": {"arguments": part}}
                yield chunk({"tool_calls": [piece]})
        reason = reply.reason or ("tool_calls" if reply.calls else "stop")
        yield chunk({}, choices=[{"index": 0, "delta": {}, "finish_reason": reason}])
        usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
        if reply.is_counted:
            yield chunk({}, usage=usage)
        yield "data: [DONE]\n\n"

    def _anthropic(self, reply: Scripted) -> Iterator[str]:
        def event(type: str, **body: Any) -> str:
            return f"event: {type}\ndata: {json.dumps({'type': type} | body)}\n\n"

        usage = {"input_tokens": 20, "cache_read_input_tokens": 70, "output_tokens": 0}
        message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
        yield event(
            "message_start",
            message=message | {"stop_reason": None, "stop_sequence": None, "usage": usage},
        )
        blocks: list[tuple[dict[str, Any], dict[str, Any]]] = []
        if reply.text:
            delta = {"type": "text_delta", "text": reply.text}
            blocks.append(({"type": "text", "text": ""}, delta))
        for index, (name, arguments) in enumerate(reply.calls):
            written = arguments if isinstance(arguments, str) else json.dumps(arguments)
            block = {"type": "tool_use", "id": f"their-{index}", "name": name, "input": {}}
            blocks.append((block, {"type": "input_json_delta", "partial_json": written}))
        for index, (block, delta) in enumerate(blocks):
            yield event("content_block_start", index=index, content_block=block)
            yield event("content_block_delta", index=index, delta=delta)
            yield event("content_block_stop", index=index)
        reason = reply.reason or ("tool_use" if reply.calls else "end_turn")
        yield event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 10})
        yield event("message_stop")


def check_openai_request(request: dict[str, Any]) -> None:
    assert request["stream"] is True
    assert request["model"] == "m"
    assert set(request) == {
        "messages", "model", "tools", "max_completion_tokens", "stream", "stream_options"
    }  # fmt: skip
    check_openai_chat({"messages": request["messages"]})
    assert len(request["tools"]) <= 128
    for tool in request["tools"]:
        assert tool["type"] == "function"
        assert len(tool["function"]["description"]) <= 1024
        _check_tool(tool["function"]["name"], tool["function"]["parameters"])


def check_anthropic_request(request: dict[str, Any]) -> None:
    assert request["stream"] is True
    assert request["model"] == "m"
    assert set(request) == {"system", "messages", "model", "tools", "max_tokens", "stream"}
    check_anthropic({"system": request["system"], "messages": request["messages"]})
    for tool in request["tools"]:
        _check_tool(tool["name"], tool["input_schema"])


def _check_tool(name: str, schema: dict[str, Any]) -> None:
    assert NAME.fullmatch(name)
    assert schema["type"] == "object"
    jsonschema.Draft202012Validator.check_schema(schema)
    assert not {"oneOf", "anyOf", "allOf"} & set(schema)
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name) for name in schema.get("properties", {}))


@contextmanager
def model_server(script: list[Scripted]) -> Iterator[ModelServer]:
    """Serve the script for the duration of the block."""
    model = ModelServer(script)

    class ModelHandler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802
            reply = model.script[0] if model.script else Scripted()
            status, text = model.answer(self.path, json.loads(self.read_body()))
            self.send_response(status)
            kind = "text/event-stream" if status == 200 else "application/json"
            self.send_header("Content-Type", kind)
            if reply.retry_after is None:
                self.send_header("retry-after-ms", "1")
            else:
                self.send_header("retry-after", reply.retry_after)
            self.finish_with(text.encode())

    with serve_http(ModelHandler) as model.url:
        yield model
