"""Streams as servers that imitate a model's API send them."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp.prompts import PromptBuilder
from mcpp_agents.model import ProviderError, Reply
from mcpp_agents.model.apis.anthropic_messages import Anthropic
from mcpp_agents.model.apis.openai_chat import OpenAI
from mcpp_agents.model.apis.streamed_reply import StreamedReply
from tests.agents.model.model_server import Scripted, model_server

pytestmark = pytest.mark.anyio
DONE = "data: [DONE]\n\n"


async def openai_reply(body: str) -> tuple[Reply, str]:
    """Return what the provider makes of a body, and the text that it passed on meanwhile."""
    return await _reply(OpenAI, "/v1", body)


async def anthropic_reply(*events: dict[str, Any]) -> tuple[Reply, str]:
    ended: list[dict[str, Any]] = [
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": None},
        {"type": "message_stop"},
    ]
    return await _reply(Anthropic, "", "".join(map(_event, [*events, *ended])))


async def _reply(provider: Any, path: str, body: str) -> tuple[Reply, str]:
    passed: list[str] = []

    async def on_text(text: str) -> None:
        passed.append(text.encode().decode())  # raises for half a character

    with model_server([Scripted(raw_body=body)]) as server:
        model = provider("m", api_key="k", base_url=server.url + path)
        reply = await model.reply(PromptBuilder("mind").build([]), [], 100, on_text)
    return reply, "".join(passed)


def _event(value: Any) -> str:
    return f"data: {json.dumps(value)}\n\n"


def _chunk(**delta: Any) -> str:
    return _event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def _call(index: int | None = 0, **part: Any) -> str:
    function = {name: part.pop(name) for name in ("name", "arguments") if name in part}
    return _chunk(tool_calls=[{"index": index, "function": function} | part])


def _calls(reply: Reply) -> list[tuple[str, dict[str, Any] | None]]:
    return [(call.name, call.arguments) for call in reply.calls]


async def test_a_character_that_is_split_over_two_deltas_is_joined() -> None:
    body = _chunk(content="well \ud83d") + _chunk(content="\ude00 done") + DONE
    reply, passed = await openai_reply(body)
    assert reply.text == passed == "well 😀 done"
    assert (await openai_reply(_chunk(content="cut \ud83d") + DONE))[0].text == "cut \ufffd"
    half = [
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
        for text in ("\ud83d", "\ude00")
    ]
    assert (await anthropic_reply(*half))[0].text == "😀"


@given(st.text(), st.lists(st.integers(0, 40)))
async def test_any_split_of_a_text_is_joined(text: str, places: list[int]) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    cuts = [0, *sorted(2 * place for place in places), len(units)]
    passed: list[str] = []

    async def on_text(piece: str) -> None:
        passed.append(piece)

    reply = StreamedReply(on_text)
    for start, end in pairwise(cuts):
        await reply.add_text(units[start:end].decode("utf-16-le", "surrogatepass"))
    assert reply.text == "".join(passed) == text


async def test_a_name_that_is_repeated_with_every_piece_is_added_once() -> None:
    pieces = [
        _call(name="find", id="a", arguments='{"x"'),
        _call(name="find", id="a", arguments=": 1}"),
    ]
    assert _calls((await openai_reply("".join(pieces) + DONE))[0]) == [("find", {"x": 1})]
    split = _call(name="fi", id="a") + _call(name="nd", arguments="{}")
    assert _calls((await openai_reply(split + DONE))[0]) == [("find", {})]


@pytest.mark.parametrize("index", [0, None])
@pytest.mark.parametrize("ids", [("a", "b"), (None, None), ("", "")])
async def test_parallel_calls_with_one_index_are_two_calls(
    index: int | None, ids: tuple[Any, Any]
) -> None:
    body = "".join(
        _call(index, name="find", id=id, arguments=first) + _call(index, arguments=second)
        for id, first, second in zip(ids, ('{"x":', '{"x":'), ("1}", "2}"), strict=True)
    )
    calls = _calls((await openai_reply(body + DONE))[0])
    assert calls == [("find", {"x": 1}), ("find", {"x": 2})]


async def test_input_at_the_beginning_of_a_block_is_the_call_s_unless_deltas_follow() -> None:
    block = {"type": "tool_use", "id": "t", "name": "find", "input": {"x": 1}}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    assert _calls((await anthropic_reply(start))[0]) == [("find", {"x": 1})]
    piece = {"type": "input_json_delta", "partial_json": '{"x": 2}'}
    delta = {"type": "content_block_delta", "index": 0, "delta": piece}
    assert _calls((await anthropic_reply(start, delta))[0]) == [("find", {"x": 2})]
    null = {"type": "content_block_delta", "index": 0, "delta": None}
    assert _calls((await anthropic_reply(start, null))[0]) == [("find", {"x": 1})]


@pytest.mark.parametrize(
    "odd",
    [
        _event({"choices": [{"delta": None, "finish_reason": None}]}),
        _event({"choices": None, "usage": None}),
        _event({"choices": [{"delta": {"content": None, "tool_calls": None}}]}),
        _event({"choices": [{"delta": {"content": [], "tool_calls": {}}}]}),
        _event({"usage": {}}),
        ": a comment\r\n\r\n",
        "event: ping\ndata: {}\n\n",
    ],
)
async def test_missing_objects_do_not_end_a_reply(odd: str) -> None:
    reply, _ = await openai_reply(odd + _chunk(content="here") + odd + DONE)
    assert reply.text == "here"


async def test_text_in_parts_and_arguments_as_an_object_are_read() -> None:
    parts = _chunk(content=[{"type": "text", "text": "he"}, {"type": "text", "text": "re"}])
    reply, _ = await openai_reply(parts + _call(name="find", arguments={"x": 1}) + DONE)
    assert reply.text == "here"
    assert _calls(reply) == [("find", {"x": 1})]


async def test_the_mark_of_the_end_completes_a_reply_without_a_finish_reason() -> None:
    assert (await openai_reply(_chunk(content="all") + DONE))[0].text == "all"
    with pytest.raises(ProviderError, match="cut off"):
        await openai_reply(_chunk(content="half"))


async def test_plain_json_is_read_where_a_stream_was_requested() -> None:
    tool = {"id": "a", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    message = {"role": "assistant", "content": "here", "tool_calls": [tool, tool | {"id": "b"}]}
    whole = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {}}
    reply, passed = await openai_reply(json.dumps(whole, indent=2))
    assert reply.text == passed == "here"
    assert _calls(reply) == [("find", {}), ("find", {})]
    content = [
        {"type": "text", "text": "here"},
        {"type": "tool_use", "id": "a", "name": "find", "input": {"x": 1}},
    ]
    body = {"type": "message", "content": content, "stop_reason": "tool_use"}
    reply, _ = await _reply(Anthropic, "", json.dumps(body))
    assert reply.text == "here"
    assert _calls(reply) == [("find", {"x": 1})]


async def test_an_error_in_a_stream_is_reported_with_its_message() -> None:
    error = _event({"error": {"message": "the model was unloaded"}})
    with pytest.raises(ProviderError, match="the model was unloaded"):
        await openai_reply(_chunk(content="half") + error)
