"""Collapsing in the messages of three APIs, without a pod."""

import copy
import json
from collections.abc import Callable
from typing import Any, Literal

import pytest

from mcpp.prompts import PromptBuilder, expand_tool
from mcpp.transient import (
    EXPAND,
    CachePolicy,
    Conversation,
    Hint,
    Matching,
    consumed,
    transient,
    with_context_hints,
)
from mcpp.transient.marks import read_mark
from tests.mcpp.prompts.logs import text_result

Api = Literal["anthropic", "chat", "responses"]
APIS: tuple[Api, ...] = ("anthropic", "chat", "responses")
LONG = "data " * 300


class ApiMessages:
    """The messages of one API, as a client appends them."""

    def __init__(self, api: Api, **options: Any) -> None:
        self.api = api
        self.conversation = Conversation(**options)
        self.messages: list[Any] = []
        self.number = 0

    def says(self, text: str, role: str = "assistant") -> None:
        self.messages.append({"role": role, "content": text})

    def calls(self, *calls: tuple[str, dict[str, Any]]) -> list[str]:
        """Let the model make calls in one turn, and return their ids."""
        ids = []
        uses = []
        for tool, arguments in calls:
            self.number += 1
            ids.append(f"c{self.number}")
            encoded = json.dumps(arguments)
            if self.api == "anthropic":
                uses.append({"type": "tool_use", "id": ids[-1], "name": tool, "input": arguments})
            elif self.api == "chat":
                function = {"name": tool, "arguments": encoded}
                uses.append({"id": ids[-1], "type": "function", "function": function})
            else:
                self.messages.append(
                    {
                        "type": "function_call",
                        "call_id": ids[-1],
                        "name": tool,
                        "arguments": encoded,
                    }
                )
        if self.api == "anthropic":
            self.messages.append({"role": "assistant", "content": uses})
        elif self.api == "chat":
            self.messages.append({"role": "assistant", "content": None, "tool_calls": uses})
        return ids

    def answers(self, tool: str, id: str, result: dict[str, Any], server: str = "") -> None:
        self.conversation.add_result(tool, id, result, server=server)
        text = "\n".join(block.get("text", "") for block in result["content"])
        if self.api == "anthropic":
            block = {"type": "tool_result", "tool_use_id": id, "content": text}
            last = self.messages[-1]
            if last["role"] == "user" and isinstance(last["content"], list):
                last["content"].append(block)
            else:
                self.messages.append({"role": "user", "content": [block]})
        elif self.api == "chat":
            self.messages.append({"role": "tool", "tool_call_id": id, "content": text})
        else:
            output = {"type": "function_call_output", "call_id": id, "output": text}
            self.messages.append(output)

    def run(self, tool: str, result: dict[str, Any], server: str = "", **arguments: Any) -> str:
        (id,) = self.calls((tool, arguments))
        self.answers(tool, id, result, server)
        return id

    def shown(self) -> str:
        return json.dumps(self.conversation.collapse(self.messages))

    def states(self, *ids: str) -> list[str]:
        self.conversation.collapse(self.messages)
        found = (self.conversation.find(id) for id in ids)
        return ["none" if one is None else one.state for one in found]


def page(number: int) -> dict[str, Any]:
    return transient(text_result(f"page {number} {LONG}"), f"the summary of {number}")


def stored() -> dict[str, Any]:
    return consumed(text_result("stored"))


def hints() -> dict[str, Any]:
    return with_context_hints(text_result("steps"), [Hint("search", "store")])


@pytest.fixture(params=APIS)
def chat(request: pytest.FixtureRequest) -> ApiMessages:
    return ApiMessages(request.param)


@pytest.mark.rule("T-25")
def test_a_consumed_page_is_replaced_by_its_summary(chat: ApiMessages) -> None:
    chat.says("Reclassify all.", role="user")
    chat.run("get_workflow_step", hints())
    chat.run("search", page(1), page=1)
    assert "page 1 data" in chat.shown()
    chat.run("store", stored())
    before = copy.deepcopy(chat.messages)
    shown = chat.shown()
    assert "page 1 data" not in shown
    assert "> the summary of 1" in shown
    assert chat.messages == before  # the client's own messages stay
    assert len(json.loads(shown)) == len(before)


@pytest.mark.rule("T-06")
@pytest.mark.rule("T-25")
def test_calls_of_one_turn_do_not_consume_each_other(chat: ApiMessages) -> None:
    chat.run("get_workflow_step", hints())
    fetch, store = chat.calls(("search", {"page": 1}), ("store", {}))
    chat.answers("search", fetch, page(1))
    chat.answers("store", store, stored())
    assert chat.states(fetch) == ["pending"]
    chat.run("store", stored())
    assert chat.states(fetch) == ["consumed"]


@pytest.mark.rule("T-06")
@pytest.mark.rule("T-25")
def test_a_superseded_page_stays_until_the_model_has_run_again(chat: ApiMessages) -> None:
    first, again = chat.calls(("search", {"page": 1}), ("search", {"page": 1}))
    chat.answers("search", first, page(1))
    chat.answers("search", again, page(1))
    assert chat.shown().count("page 1 data") == 2
    assert chat.states(first, again) == ["superseded", "pending"]
    chat.says("I have read them.")
    assert chat.shown().count("page 1 data") == 1


@pytest.mark.rule("T-05")
@pytest.mark.rule("T-24")
@pytest.mark.parametrize("trusts", [False, True])
def test_a_server_names_results_of_another_only_if_the_client_trusts_both(trusts: bool) -> None:
    chat = ApiMessages("chat", matching=Matching(across_servers=trusts))
    fetched = chat.run("search", page(1), server="crm", page=1)
    chat.run("steal", consumed(text_result("ok"), [fetched]), server="other")
    assert chat.states(fetched) == ["consumed" if trusts else "pending"]


@pytest.mark.rule("T-05")
def test_expanded_content_can_be_named(chat: ApiMessages) -> None:
    first = chat.run("search", page(1), page=1)
    chat.run("store", stored())
    assert chat.states(first) == ["consumed"]
    tracked = chat.conversation.find(first)
    assert tracked is not None
    again = chat.run(EXPAND, chat.conversation.expand(tracked.handle), handle=tracked.handle)
    chat.run("store", consumed(text_result("ok"), [again]))
    assert chat.states(again) == ["consumed"]


@pytest.mark.rule("T-06")
@pytest.mark.rule("T-25")
def test_a_client_settles_what_no_consumer_uses(chat: ApiMessages) -> None:
    first = chat.run("search", page(1), page=1)
    chat.run("store", stored())
    chat.shown()
    tracked = chat.conversation.find(first)
    assert tracked is not None
    again = chat.run(EXPAND, chat.conversation.expand(tracked.handle), handle=tracked.handle)
    chat.run("store", stored())
    assert chat.states(again) == ["pending"]
    assert chat.conversation.settle(again)
    assert not chat.conversation.settle(again)
    assert LONG not in chat.shown()
    late = chat.run("search", page(2), page=2)
    chat.shown()
    assert chat.conversation.settle(late)
    assert "page 2 data" in chat.shown()  # the model has not read it yet
    chat.says("Done.")
    assert "page 2 data" not in chat.shown()
    assert chat.conversation.badges(late) == ("collapsed",)
    assert not chat.conversation.settle("unknown")


@pytest.mark.rule("T-05")
@pytest.mark.rule("T-11")
@pytest.mark.parametrize(("server", "tool"), [("client", "search"), ("crm", EXPAND)])
def test_no_name_of_a_server_or_of_its_tool_makes_its_results_the_clients(
    chat: ApiMessages, server: str, tool: str
) -> None:
    fetched = chat.run(tool, page(1), server=server, page=1)
    chat.run("steal", consumed(text_result("ok"), [fetched]), server="evil")
    assert chat.states(fetched) == ["pending"]
    chat.run("store", stored(), server=server)
    assert chat.states(fetched) == ["consumed"]


@pytest.mark.rule("T-12")
def test_expanded_content_is_the_clients_with_any_name_of_a_server_and_after_conversion(
    chat: ApiMessages,
) -> None:
    first = chat.run("search", page(1), server="crm", page=1)
    chat.run("store", stored(), server="crm")
    chat.conversation.collapse(chat.messages)
    tracked = chat.conversation.find(first)
    assert tracked is not None
    expanded = json.loads(json.dumps(chat.conversation.expand(tracked.handle), sort_keys=True))
    again = chat.run(EXPAND, expanded, server="host", handle=tracked.handle)
    chat.run("store", stored(), server="crm")
    assert chat.states(again) == ["pending"]
    chat.run("store", consumed(text_result("ok"), [again]), server="crm")
    assert chat.states(again) == ["consumed"]


@pytest.mark.rule("T-05")
def test_a_result_that_another_conversation_expanded_is_not_the_clients() -> None:
    other = ApiMessages("chat")
    first = other.run("search", page(1))
    other.conversation.collapse(other.messages)
    tracked = other.conversation.find(first)
    assert tracked is not None
    chat = ApiMessages("chat")
    fetched = chat.run(EXPAND, other.conversation.expand(tracked.handle), server="crm")
    chat.run("steal", consumed(text_result("ok"), [fetched]), server="evil")
    assert chat.states(fetched) == ["pending"]


@pytest.mark.rule("T-07")
@pytest.mark.rule("T-13")
@pytest.mark.rule("T-25")
def test_a_failed_or_repeated_store_collapses_nothing(chat: ApiMessages) -> None:
    chat.run("get_workflow_step", hints())
    pages = [chat.run("search", page(number), page=number) for number in (1, 2)]
    chat.run("store", {**stored(), "isError": True})
    assert chat.states(*pages) == ["pending", "pending"]
    id = chat.run("store", stored())
    chat.conversation.collapse(chat.messages)
    chat.conversation.add_result("store", id, stored())
    assert chat.states(*pages) == ["consumed", "pending"]


@pytest.mark.rule("T-16")
@pytest.mark.rule("T-25")
def test_a_collapsed_page_can_be_expanded_and_collapses_again(chat: ApiMessages) -> None:
    first = chat.run("search", page(1), page=1)
    chat.run("store", stored())
    chat.conversation.collapse(chat.messages)
    tracked = chat.conversation.find(first)
    assert tracked is not None
    assert chat.conversation.original(tracked.handle) == page(1)
    assert expand_tool("anthropic")["name"] == EXPAND
    expanded = chat.conversation.expand(tracked.handle)
    assert expanded["content"] == page(1)["content"]
    second = chat.run(EXPAND, expanded, handle=tracked.handle)
    third = chat.run("search", page(2), page=2)
    chat.run("store", stored())
    assert chat.states(second, third) == ["pending", "consumed"]
    assert chat.conversation.expand("unknown")["isError"]
    assert chat.conversation.original("unknown") is None


@pytest.mark.rule("T-19")
@pytest.mark.rule("T-25")
def test_badges_follow_the_latest_collapse(chat: ApiMessages) -> None:
    first = chat.run("search", page(1), page=1)
    chat.conversation.collapse(chat.messages)
    assert chat.conversation.badges(first) == ("transient",)
    store = chat.run("store", stored())
    chat.conversation.collapse(chat.messages)
    assert chat.conversation.badges(first) == ("collapsed",)
    assert chat.conversation.badges(store) == ("consumed",)


@pytest.mark.rule("T-24")
@pytest.mark.rule("T-25")
@pytest.mark.parametrize(
    ("matching", "expected"),
    [
        (Matching(), ["pending", "pending"]),
        (Matching(across_servers=True), ["consumed", "pending"]),
        (Matching(across_servers=True, order="newest"), ["pending", "consumed"]),
    ],
)
def test_a_client_that_trusts_its_servers_pairs_across_them(
    matching: Matching, expected: list[str]
) -> None:
    chat = ApiMessages("anthropic", matching=matching)
    chat.run("get_workflow_step", hints(), server="flows")
    pages = [chat.run("search", page(number), server="crm", page=number) for number in (1, 2)]
    chat.run("store", stored(), server="notes")
    assert chat.states(*pages) == expected


@pytest.mark.rule("T-25")
def test_with_a_cache_policy_a_page_collapses_once_that_pays(chat: ApiMessages) -> None:
    chat.conversation = Conversation(cache=CachePolicy(further_calls=10))
    chat.run("get_workflow_step", hints())
    chat.run("search", transient(text_result("tiny page 0"), "tiny"), page=0)
    chat.says(LONG * 3)
    chat.run("store", stored())
    assert "tiny page 0" in chat.shown()  # rewriting the long text costs more than it saves
    chat.run("search", page(1), page=1)
    chat.run("store", stored())
    assert "page 1 data" not in chat.shown()
    chat.says(LONG * 9)
    assert "page 1 data" not in chat.shown()  # a decision is never reversed


@pytest.mark.rule("T-25")
def test_messages_may_be_dropped_from_the_beginning(chat: ApiMessages) -> None:
    chat.run("get_workflow_step", hints())
    first = chat.run("search", page(1), page=1)
    chat.conversation.collapse(chat.messages)
    del chat.messages[:2]
    chat.run("store", stored())
    assert chat.states(first) == ["consumed"]


@pytest.mark.rule("T-06")
@pytest.mark.rule("T-25")
def test_a_page_is_shown_again_to_a_model_whose_reply_was_withdrawn(chat: ApiMessages) -> None:
    chat.run("search", page(1))
    before = len(chat.messages)
    chat.run("store", stored())
    assert "page 1 data" not in chat.shown()
    del chat.messages[before:]
    assert "page 1 data" in chat.shown()
    chat.says("I read it again.")
    assert "page 1 data" not in chat.shown()


@pytest.mark.rule("T-25")
@pytest.mark.parametrize(
    "messages",
    [[], ["text"], [{}], [{"role": "user"}], [None, 5], [{"role": "assistant", "tool_calls": 5}]],
)
def test_other_messages_are_returned_unchanged(messages: list[Any]) -> None:
    assert Conversation().collapse(messages) == messages


@pytest.mark.parametrize("result", [None, 7, "text", ["list"]])
def test_what_is_no_result_is_refused_with_its_type(result: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(result)}"):
        Conversation().add_result("fetch", "c1", result)


@pytest.mark.rule("T-16")
@pytest.mark.rule("T-25")
def test_invalid_unicode_in_a_result_or_in_arguments_is_replaced() -> None:
    chat = ApiMessages("anthropic")
    half = transient(text_result("a\ud83d b" + LONG, extra={"\ude00": ["\ud83d\ude00"]}), "half")
    first = chat.run("search", half, text="\ud83d")
    again = chat.run("search", half, text="\ud83d")
    chat.run("store", stored())
    assert chat.states(first, again) == ["superseded", "consumed"]
    tracked = chat.conversation.find(again)
    assert tracked is not None
    original = chat.conversation.original(tracked.handle)
    assert original is not None
    assert original["content"][0]["text"] == "a\ufffd b" + LONG
    assert original["extra"] == {"\ufffd": ["\U0001f600"]}


@pytest.mark.rule("T-25")
def test_an_id_may_be_invalid_unicode() -> None:
    chat = ApiMessages("chat")
    chat.run("search", page(1))
    chat.run("store", stored())
    renamed = json.loads(json.dumps(chat.messages).replace('"c1"', '"\\ud800"'))
    conversation = Conversation()
    conversation.add_result("search", "\ud800", page(1))
    conversation.add_result("store", "c2", stored())
    assert "> the summary of 1" in conversation.collapse(renamed)[1]["content"]


@pytest.mark.rule("T-08")
@pytest.mark.rule("T-25")
def test_a_result_that_is_nested_too_deeply_stays_as_it_is() -> None:
    chat = ApiMessages("anthropic")
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    first = chat.run("search", transient(text_result(LONG)) | {"structuredContent": deep})
    chat.run("store", stored())
    chat.says("Done.")
    assert chat.conversation.find(first) is None
    assert chat.conversation.collapse(chat.messages) == chat.messages


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def at_depth(frames: int, action: Callable[[], Any]) -> Any:
    return action() if frames == 0 else at_depth(frames - 1, action)


@pytest.mark.rule("T-08")
@pytest.mark.rule("T-25")
@pytest.mark.parametrize("frames", [0, 500])
@pytest.mark.parametrize(
    ("levels", "is_kept"),
    [(63, True), (64, False), *((n, False) for n in (300, 500, 900, 950, 994, 1_000, 5_000))],
)
def test_the_limit_of_nesting_does_not_depend_on_the_callers_stack(
    levels: int, is_kept: bool, frames: int
) -> None:
    chat = ApiMessages("anthropic")
    deep = {"content": [], "structuredContent": nested(levels)}
    first = chat.run("search", transient(deep))
    chat.run("store", stored())
    chat.says("Done.")
    shown = at_depth(frames, lambda: chat.conversation.collapse(chat.messages))
    assert (chat.conversation.find(first) is not None) == is_kept
    assert (shown != chat.messages) == is_kept
    chat.conversation.add_result("search", "model", DeepResult(levels))


class DeepResult:
    """A result as an object, whose `model_dump` refuses deep values, as pydantic's does."""

    def __init__(self, levels: int) -> None:
        self.structured = nested(levels)

    def model_dump(self, *, mode: str, by_alias: bool, exclude_none: bool) -> dict[str, Any]:
        if str(self.structured).count("[") > 255:
            raise ValueError("Maximum serialization depth exceeded")
        return {"content": [], "structuredContent": self.structured}

    @classmethod
    def model_validate(cls, obj: Any, /) -> "DeepResult":
        raise NotImplementedError


@pytest.mark.rule("T-14")
@pytest.mark.rule("T-25")
def test_calls_with_arguments_that_nest_too_deeply_are_not_copies() -> None:
    chat = ApiMessages("anthropic")
    ids = []
    for _ in range(2):
        ids += chat.calls(("search", {}))
        chat.messages[-1]["content"][0]["input"] = {"deep": nested(980)}
        chat.answers("search", ids[-1], page(1))
    assert chat.states(*ids) == ["pending", "pending"]


@pytest.mark.rule("T-14")
@pytest.mark.rule("T-25")
def test_custom_tools_of_chat_completions_are_told_apart_by_their_input() -> None:
    chat = ApiMessages("chat")
    ids = []
    for text in ("page 1", "page 2", "page 1"):
        ids += chat.calls(("search", {}))
        use = {"id": ids[-1], "type": "custom", "custom": {"name": "search", "input": text}}
        chat.messages[-1]["tool_calls"] = [use]
        chat.answers("search", ids[-1], page(1))
    assert chat.states(*ids) == ["superseded", "pending", "pending"]


@pytest.mark.rule("T-14")
@pytest.mark.rule("T-25")
def test_calls_that_are_not_in_the_messages_are_not_copies(chat: ApiMessages) -> None:
    ids = [chat.run("search", page(number), page=number) for number in (1, 2)]
    if chat.api == "anthropic":  # a client may send the results only, and the calls not again
        chat.messages = chat.messages[1::2]
    else:
        chat.messages = [one for one in chat.messages if {"tool_call_id", "output"} & set(one)]
    assert chat.states(*ids) == ["pending", "pending"]


@pytest.mark.rule("T-25")
def test_a_text_is_returned_as_it_is() -> None:
    assert Conversation().collapse("hello") == "hello"


@pytest.mark.rule("T-25")
@pytest.mark.parametrize("custom", ["search", "store"])
def test_custom_tools_of_the_responses_api_fetch_and_consume(custom: str) -> None:
    chat = ApiMessages("responses")
    chat.run("search", page(1), page=1)
    chat.run("store", stored())
    tools = {"c1": "search", "c2": "store"}
    for message in chat.messages:
        if tools[message["call_id"]] == custom:
            message["type"] = message["type"].replace("function_call", "custom_tool_call")
            message["input"] = message.pop("arguments", None)
    shown = chat.conversation.collapse(chat.messages)
    assert shown[1] == {**chat.messages[1], "output": shown[1]["output"]}
    assert shown[1]["output"].endswith("> the summary of 1")


@pytest.mark.rule("T-06")
@pytest.mark.rule("T-25")
def test_a_call_that_the_api_answers_itself_shows_that_the_model_has_read() -> None:
    chat = ApiMessages("responses")
    for id in chat.calls(("search", {"page": 1}), ("search", {"page": 1})):
        chat.answers("search", id, page(1))
    assert chat.shown().count("page 1 data") == 2
    chat.messages.append({"type": "web_search_call", "id": "w1", "status": "completed"})
    assert chat.shown().count("page 1 data") == 1


@pytest.mark.rule("T-25")
def test_calls_count_once_in_every_api() -> None:
    collapsed = set()
    for api in APIS:
        chat = ApiMessages(api, cache=CachePolicy())
        chat.run("search", transient(text_result("word " * 2000), "page"), page=1)
        found = 0
        for number in range(100):
            copied = copy.deepcopy(chat)
            copied.run("store", stored(), finding="some text here " * number * 10)
            copied.says("next")
            found += "> page" in copied.shown()
        collapsed.add(found // 5)
    assert len(collapsed) == 1
    assert 0 < collapsed.pop() < 20


PDF = "JVBERi0x" * 60_000


@pytest.mark.rule("T-25")
@pytest.mark.parametrize(
    "content",
    [
        {"type": "document", "source": {"type": "base64", "data": PDF}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}},
        {"type": "input_file", "file_data": PDF},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": PDF}},
    ],
    ids=lambda content: content["type"],
)
def test_encoded_files_count_as_pages_not_as_text(content: dict[str, Any]) -> None:
    def collapses(block: dict[str, Any]) -> bool:
        chat = ApiMessages("anthropic", cache=CachePolicy())
        chat.run("search", transient(text_result(LONG * 60), "page"), page=1)
        chat.run("store", stored())
        chat.messages.append({"role": "user", "content": [block]})
        chat.says("next")
        return "> page" in chat.shown()

    assert collapses(content)
    assert not collapses({"type": "document", "source": {"type": "text", "data": PDF}})


@pytest.mark.rule("T-25")
@pytest.mark.parametrize("levels", [500, 900, 5_000])
def test_sizes_of_arguments_that_nest_deeply_are_counted(levels: int) -> None:
    chat = ApiMessages("anthropic", cache=CachePolicy())
    chat.run("search", page(1), page=1)
    chat.run("store", stored())
    chat.messages[-2]["content"][0]["input"] = {"deep": nested(levels)}
    assert "> the summary of 1" in str(chat.conversation.collapse(chat.messages)[1])


@pytest.mark.rule("T-16")
@pytest.mark.parametrize("handle", [["x"], {}, None, 7, "x"])
def test_a_handle_as_a_model_may_write_it_gives_a_failed_result(handle: Any) -> None:
    assert Conversation().expand(handle)["isError"]
    assert PromptBuilder("me").build().expand(handle)["isError"]


@pytest.mark.rule("T-25")
@pytest.mark.parametrize("api", ["anthropic", "chat"])
def test_a_collapsed_result_still_ends_a_cached_part(api: Api) -> None:
    chat = ApiMessages(api)
    chat.run("search", page(1))
    result = chat.messages[1]["content"][0] if api == "anthropic" else chat.messages[1]
    end = {"type": "ephemeral"}
    result["content"] = [
        {"type": "text", "text": LONG},
        {"type": "text", "text": LONG, "cache_control": end},
    ]
    chat.run("store", stored())
    shown = chat.conversation.collapse(chat.messages)[1]
    (block,) = shown["content"][0]["content"] if api == "anthropic" else shown["content"]
    assert block == {"type": "text", "text": block["text"], "cache_control": end}
    assert block["text"].endswith("> the summary of 1")


@pytest.mark.rule("T-17")
@pytest.mark.parametrize("summary", [None, "a summary " * 50])
def test_a_summary_is_made_once(summary: str | None) -> None:
    chat = ApiMessages("chat")
    id = chat.run("search", transient(text_result("id,name\n" + "1,a\n" * 20), summary))
    chat.run("store", stored())
    first = chat.shown()
    tracked = chat.conversation.find(id)
    assert tracked is not None
    made = tracked.summary
    assert chat.shown() == first
    assert tracked.summary is made


def test_summaries_are_visible_text() -> None:
    marked = transient(text_result(LONG), summary="a\x1b[31mred\u202e\u200dfamily\nof 3")
    assert read_mark(marked).summary == "a[31mred\u200dfamily of 3"
