"""Assembly of messages: roles alternate and calls are paired with results."""

import base64
from typing import Any

import pytest

from mcpp import new_envelope
from mcpp.prompts import CallBlock, ImageBlock, Prompt, PromptBuilder, ResultBlock, TextBlock
from tests.mcpp.prompts.formats import check_all, check_anthropic
from tests.mcpp.prompts.logs import LogBuilder, jpeg, png, text_result, webp
from tests.properties.random_logs import PIXEL


def build(log: LogBuilder, **options: Any) -> Prompt:
    prompt = PromptBuilder("analyst", **options).build(log.envelopes)
    check_all(prompt)
    return prompt


def shape(prompt: Prompt) -> list[str]:
    """Return each message as its role and the types of its blocks, abbreviated."""
    letters = {TextBlock: "t", ImageBlock: "i", CallBlock: "c", ResultBlock: "r"}
    return [
        message.role[0] + ":" + "".join(letters[type(block)] for block in message.blocks)
        for message in prompt.messages
    ]


def results(prompt: Prompt) -> dict[str, str]:
    return {
        block.call_id: "".join(part.text for part in block.content if isinstance(part, TextBlock))
        for message in prompt.messages
        for block in message.blocks
        if isinstance(block, ResultBlock)
    }


def test_an_empty_log_makes_a_valid_prompt() -> None:
    assert shape(build(LogBuilder())) == ["u:t"]


def test_sequential_calls_take_turns() -> None:
    log = LogBuilder()
    log.chat("boss")
    log.run("a", {}, text_result("1"))
    log.run("b", {}, text_result("2"))
    assert shape(build(log)) == ["u:t", "a:c", "u:r", "a:c", "u:r"]


def test_parallel_calls_stay_together_despite_messages_in_between() -> None:
    log = LogBuilder()
    log.chat("boss")
    log.chat("analyst", "On it.")
    first = log.call("a")
    log.chat("peer")
    second = log.call("b")
    log.answer(second, text_result("2"))
    log.answer(first, text_result("1"))
    prompt = build(log)
    assert shape(prompt) == ["u:t", "a:tcc", "u:rrt"]
    assert results(prompt) == {first: "1", second: "2"}


def test_a_late_result_moves_to_its_call() -> None:
    log = LogBuilder()
    slow = log.call("slow")
    fast = log.call("fast")
    log.answer(fast)
    log.chat("analyst", "Meanwhile.")
    log.answer(slow, text_result("at last"))
    prompt = build(log)
    assert shape(prompt) == ["u:t", "a:cc", "u:rr", "a:t", "u:t"]
    assert results(prompt)[slow] == "at last"


def test_a_missing_result_becomes_an_error() -> None:
    log = LogBuilder()
    call = log.call("slow")
    prompt = build(log)
    assert results(prompt) == {call: "No result was received."}
    assert prompt.anthropic()["messages"][-1]["content"][0]["is_error"]


def test_an_orphan_is_dropped_and_reported() -> None:
    log = LogBuilder()
    call = log.call("a")
    orphan = log.answer(call)
    del log.envelopes[0]
    prompt = build(log)
    assert results(prompt) == {}
    assert [(left.id, left.reason) for left in prompt.report.left_out] == [(orphan, "orphan")]


@pytest.mark.rule("T-10")
def test_an_impostors_result_is_not_shown_as_one() -> None:
    log = LogBuilder()
    call = log.call("a")
    log.answer(call, text_result("forged"), sender="mallory")
    log.answer(call, text_result("real"))
    log.answer(call, text_result("again"))
    prompt = build(log)
    assert results(prompt) == {call: "real"}
    assert "forged" not in prompt.markdown()


def test_calls_and_results_of_others_are_quoted_text() -> None:
    log = LogBuilder()
    log.run("a", {"x": 1}, text_result("their data"), sender="b")
    prompt = build(log)
    assert shape(prompt) == ["u:tt"]
    texts = [block["text"] for block in prompt.anthropic()["messages"][0]["content"]]
    assert texts == ['@b calls a of @crm:\n> {"x":1}', "@crm answers @b's a:\n> their data"]


def test_the_system_text_is_placed_as_each_api_requires() -> None:
    prompt = build(LogBuilder(), system="Be brief.")
    assert prompt.anthropic()["system"].startswith("Be brief.\n\n")
    assert prompt.openai_chat()["messages"][0]["role"] == "system"
    assert prompt.openai_responses()["instructions"] == prompt.system


def test_modifying_a_request_does_not_change_the_prompt() -> None:
    log = LogBuilder()
    log.run("fetch", {"a": {"b": 1}}, text_result("x"))
    prompt = build(log)
    prompt.anthropic()["messages"][1]["content"][0]["input"]["a"]["b"] = "changed"
    assert prompt.anthropic()["messages"][1]["content"][0]["input"] == {"a": {"b": 1}}


def test_assistant_messages_are_plain_strings_in_the_responses_api() -> None:
    log = LogBuilder()
    log.chat("analyst", "First.")
    log.chat("analyst", "Then.")
    log.call("a")
    items = build(log).openai_responses()["input"]
    assert [item.get("content") for item in items[1:4]] == ["First.", "Then.", None]
    assert items[3]["type"] == "function_call"


def test_images_are_placed_as_each_api_requires() -> None:
    log = LogBuilder()
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    call = log.call("draw")
    log.answer(call, {"content": [image, {"type": "text", "text": "a dot"}]})
    prompt = build(log)
    block = prompt.anthropic()["messages"][2]["content"][0]
    assert [part["type"] for part in block["content"]] == ["image", "text"]
    chat = prompt.openai_chat()["messages"]
    assert chat[-2] == {"role": "tool", "tool_call_id": call, "content": "a dot"}
    assert [part["type"] for part in chat[-1]["content"]] == ["text", "image_url"]
    output = prompt.openai_responses()["input"][-1]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image"]


def test_a_failed_call_describes_its_images() -> None:
    log = LogBuilder()
    image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
    log.run("draw", {}, {"content": [{"type": "text", "text": "no"}, image], "isError": True})
    (block,) = build(log).anthropic()["messages"][2]["content"]
    assert [part["text"] for part in block["content"]] == ["no", "[image, image/png]"]


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        ("aGVsbG8=", "image/png"),
        (PIXEL, "image/jpeg"),
        (PIXEL, "image/webp"),
        (PIXEL, "image/bmp"),
        ("iVBORw0KGgo", "image/png"),
        (png(1, 1)[:28], "image/png"),
        (png(0, 5), "image/png"),
        (png(5, 8001), "image/png"),
        (png(5, 5, padding=3_750_000), "image/png"),
        (base64.b64encode(b"GIF89a\x41\x1f\x01\x00").decode(), "image/gif"),
        (jpeg(1280, 12_000), "image/jpeg"),
        (jpeg(8001, 5, before=60_000), "image/jpeg"),
        (base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(60)).decode(), "image/jpeg"),
        (base64.b64encode(b"\xff\xd8" + b"\xff" * 90_000).decode(), "image/jpeg"),
        (webp("VP8 ", 5, 8001), "image/webp"),
        (webp("VP8L", 8001, 5), "image/webp"),
        (webp("VP8X", 5, 8001), "image/webp"),
        (webp("VP8X", 5, 5)[:36], "image/webp"),
    ],
    ids=lambda value: value[:12],
)
def test_an_image_that_an_api_would_refuse_is_described(data: str, media_type: str) -> None:
    log = LogBuilder()
    log.run("draw", {}, {"content": [{"type": "image", "data": data, "mimeType": media_type}]})
    (block,) = build(log).anthropic()["messages"][2]["content"]
    assert [part["text"] for part in block["content"]] == [f"[image, {media_type}]"]


@pytest.mark.parametrize(
    ("data", "media_type"),
    [
        (PIXEL, "image/png"),
        (base64.b64encode(b"GIF89a\x40\x1f\x01\x00").decode(), "image/gif"),
        (jpeg(8000, 5), "image/jpeg"),
        (jpeg(5, 8000, before=60_001), "image/jpeg"),
        (webp("VP8 ", 8000, 1), "image/webp"),
        (webp("VP8L", 1, 8000), "image/webp"),
        (webp("VP8X", 8000, 8000), "image/webp"),
    ],
)
def test_the_four_image_types_are_accepted(data: str, media_type: str) -> None:
    log = LogBuilder()
    log.run("draw", {}, {"content": [{"type": "image", "data": data, "mimeType": media_type}]})
    (block,) = build(log).anthropic()["messages"][2]["content"]
    assert [part["type"] for part in block["content"]] == ["image"]


def test_a_failed_call_is_marked_in_every_api() -> None:
    log = LogBuilder()
    log.fail(log.call("a"), "no such record")
    prompt = build(log)
    assert prompt.anthropic()["messages"][2]["content"][0]["is_error"] is True
    assert prompt.openai_chat()["messages"][-1]["content"] == "[error] no such record"
    assert prompt.openai_responses()["input"][-1]["output"] == "[error] no such record"


def test_an_excluded_tool_is_left_out_with_its_results() -> None:
    log = LogBuilder()
    log.run("noisy", {}, text_result("noise"))
    log.run("noisy", {}, text_result("noise"), sender="b")
    kept = log.call("useful")
    log.answer(kept)
    prompt = build(log, exclude_tools=["noisy"])
    assert "noise" not in prompt.markdown()
    assert list(results(prompt)) == [kept]
    assert len(prompt.report.left_out) == 4


def test_a_filtered_call_is_left_out_with_its_result() -> None:
    log = LogBuilder()
    hidden = log.call("a")
    log.answer(hidden, text_result("hidden"))
    prompt = build(log, filter=lambda envelope: envelope.id != hidden)
    assert "hidden" not in prompt.markdown()
    log = LogBuilder()
    shown = log.call("a")
    response = log.answer(shown, text_result("shown"))
    prompt = build(log, filter=lambda envelope: envelope.id != response)
    assert results(prompt) == {shown: "shown"}


def test_housekeeping_is_left_out_and_refusals_are_shown() -> None:
    log = LogBuilder()
    log.send("system/presence", {"event": "join"}, "system:gateway")
    log.send("mcp/request:tools/list", {}, "analyst", to=["crm"])
    log.send("system/error", {"error": "rate_limited"}, "system:gateway")
    prompt = build(log)
    assert [left.reason for left in prompt.report.left_out] == ["housekeeping"] * 2
    assert '@system:gateway (system/error):\n> {"error":"rate_limited"}' in prompt.markdown()


def test_the_same_log_gives_the_same_prompt_and_repeated_envelopes_change_nothing() -> None:
    log = LogBuilder()
    log.chat("boss")
    log.run("a", {}, text_result("1"))
    builder = PromptBuilder("analyst")
    once = builder.build(log.envelopes).anthropic()
    assert builder.build(log.envelopes + log.envelopes).anthropic() == once
    for envelope in log.envelopes:
        builder.add(envelope)
    assert builder.build().anthropic() == once


def test_an_earlier_prompt_does_not_change_when_the_log_grows() -> None:
    log = LogBuilder()
    builder = PromptBuilder("analyst")
    call = log.call("a")
    builder.add(log.envelopes[-1])
    early = builder.build()
    before = early.anthropic()
    log.answer(call)
    builder.add(log.envelopes[-1])
    assert early.anthropic() == before
    assert builder.build().anthropic() != before
    check_anthropic(early.anthropic())


def test_markdown_can_omit_the_system_text() -> None:
    log = LogBuilder()
    log.chat("boss", "Hello.")
    prompt = build(log)
    assert prompt.markdown(system=False) == "# 0 · user\n\n@boss:\n> Hello.\n"
    assert prompt.markdown() == f"# System\n\n{prompt.system}\n\n{prompt.markdown(system=False)}"


def test_what_was_erased_is_left_out() -> None:
    erased = new_envelope("tombstone", None, sender="boss")
    said = new_envelope("chat", {"text": "hello"}, sender="boss")
    prompt = PromptBuilder("analyst").build([erased, said])
    assert "tombstone" not in prompt.markdown(system=False)
    assert [(one.id, one.reason) for one in prompt.report.left_out] == [(erased.id, "erased")]
