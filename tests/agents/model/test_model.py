"""The model agent with a scripted server that implements both APIs and validates requests."""

import json
import re
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, ClassVar, Literal

import anyio
import msgspec
import pytest

import mcpp
from mcpp import ContextTree, Envelope, Message, Participant
from mcpp.agent.tools import ToolCall
from mcpp.cli import main
from mcpp.client.tasks import background
from mcpp.prompts import Prompt, PromptBuilder
from mcpp.protocol.rpc import ToolResult
from mcpp.testing import MemoryPod
from mcpp.transient import consumed, transient
from mcpp_agents.memory import MemoryStore, Principal
from mcpp_agents.model import ModelAgent, ModelLimits, ProviderError, Reply
from mcpp_agents.model.apis.anthropic_messages import Anthropic
from mcpp_agents.model.apis.openai_chat import OpenAI
from mcpp_agents.model.progress import ProgressReporter
from mcpp_agents.model.providers import OnText, ToolUse, ignore_text
from tests.agents.memory.erasing import SHORT_LOG, erase, miss_erasure
from tests.agents.model.model_server import ModelServer, Scripted, model_server
from tests.agents.processes import BOUND, Commands
from tests.interaction.agents import waiting
from tests.interaction.conftest import SocketPod

pytestmark = pytest.mark.anyio
APIS = pytest.mark.parametrize("api", ["openai", "anthropic"])


def library() -> Participant:
    agent = Participant("library")

    @agent.tool
    async def search(query: str) -> ToolResult:
        """Search the library."""
        rows = [{"id": number, "title": f"{query} {number} " * 40} for number in range(20)]
        content = [{"type": "text", "text": json.dumps(rows)}]
        return ToolResult.from_json(transient({"content": content}, "20 books"))

    @agent.tool
    async def burn(book: int) -> str:
        """Burn a book."""
        return f"burnt {book}"

    @agent.tool
    async def lose() -> None:
        """Fail."""
        raise ValueError("the shelf is empty")

    return agent


@asynccontextmanager
async def joined(
    pod: MemoryPod, api: str, script: list[Scripted], limits: ModelLimits | None = None
) -> AsyncIterator[tuple[mcpp.Pod, ModelServer]]:
    """Run a model and the library in the pod; yield alice's connection and the server."""
    with model_server(script) as server:
        url = f"{server.url}/v1" if api == "openai" else server.url
        provider = (OpenAI if api == "openai" else Anthropic)("m", api_key="k", base_url=url)
        # Alice never answers the request for her tools, so wait only briefly for her.
        given = msgspec.structs.replace(limits or ModelLimits(), grace_seconds=0.25)
        async with (
            pod.run(library()),
            pod.connect("alice", own=True) as alice,
            pod.run(ModelAgent("mind", provider, limits=given).participant),
        ):
            with anyio.fail_after(BOUND):
                yield alice, server
        assert server.problems == []


class SilentProvider:
    """A provider that never answers."""

    async def reply(self, *request: object) -> Reply:
        await anyio.sleep_forever()
        raise AssertionError


class FaultyProvider:
    """A provider with a bug."""

    async def reply(self, *request: object) -> Reply:
        raise ZeroDivisionError("secret detail")


async def ask(alice: mcpp.Pod, text: str) -> tuple[Message, list[Envelope]]:
    """Ask the model; return its answer and the log up to it."""
    question = await alice.send("chat", {"text": text}, to=["mind"])
    log = []
    async for message in alice:
        log.append(message.envelope)
        if message.kind == "chat" and message.correlation_id == question.id:
            return message, log
    raise AssertionError


@APIS
async def test_it_thinks_in_a_context_calls_tools_and_answers(pod: MemoryPod, api: str) -> None:
    script = [
        Scripted("Let me look.", [("library__search", {"query": "x"}), ("library__lose", {})]),
        Scripted("One more.", [("library__search", {"query": "y"})]),
        Scripted("There are forty books."),
    ]
    async with joined(pod, api, script) as (alice, server):
        answer, log = await ask(alice, "How many books?")
        assert answer.text == "There are forty books."
        tree = ContextTree(log)
        (thinking,) = tree.roots
        assert (thinking.type, thinking.creator, thinking.state) == (
            "reasoning",
            "mind",
            "concluded",
        )
        thoughts = [
            one.payload["thought"] for one in thinking.envelopes if one.kind == "reflection"
        ]
        assert thoughts == ["Let me look.", "One more."]
        shown = json.dumps(server.requests[1])
        assert "the shelf is empty" in shown  # the model sees a failed call's error
        assert "How many books?" in shown


@APIS
async def test_temporary_failures_of_the_api_are_retried_and_permanent_ones_reported(
    pod: MemoryPod, api: str
) -> None:
    async with joined(
        pod,
        api,
        [Scripted(status=529), Scripted(status=429), Scripted("Here I am.")],
    ) as (
        alice,
        _,
    ):
        assert (await ask(alice, "There?"))[0].text == "Here I am."
    async with joined(pod, api, [Scripted(status=401), Scripted("Again.")]) as (alice, _):
        expected = "I cannot answer this now: scripted (HTTP 401)"
        assert (await ask(alice, "There?"))[0].text == expected
        assert (await ask(alice, "And now?"))[0].text == "Again."


@APIS
@pytest.mark.parametrize("delay", ["3600", "Fri, 01 Jan 2100 00:00:00 GMT"])
async def test_a_long_delay_that_the_api_asks_for_is_not_waited_out(
    pod: MemoryPod, api: str, delay: str
) -> None:
    async with joined(pod, api, [Scripted(status=429, retry_after=delay), Scripted("Hello.")]) as (
        alice,
        _,
    ):
        text = (await ask(alice, "There?"))[0].text
        assert "I cannot answer this now: the model's API is unavailable for" in text
        assert (await ask(alice, "And now?"))[0].text == "Hello."


async def test_a_short_delay_that_the_api_asks_for_is_reported(
    pod: MemoryPod, caplog: pytest.LogCaptureFixture
) -> None:
    class BusyProvider:
        replies: ClassVar[list[Reply | ProviderError]] = [
            ProviderError("overloaded", 0.01),
            Reply("Hello."),
        ]

        async def reply(self, *request: object) -> Reply:
            reply = self.replies.pop(0)
            if isinstance(reply, ProviderError):
                raise reply
            return reply

    limits = ModelLimits(grace_seconds=0.01)
    async with (
        pod.connect("alice", own=True) as alice,
        pod.run(ModelAgent("mind", BusyProvider(), limits=limits).participant),
    ):
        with anyio.fail_after(BOUND):
            answer, log = await ask(alice, "There?")
    assert answer.text == "Hello."
    reported = [one.payload["params"]["message"] for one in log if one.kind.endswith("progress")]
    assert reported == ["thinking", "the model's API asks to wait 0 s"]
    assert "asking the model again in 0 s: overloaded" in caplog.text


async def test_an_unexpected_error_ends_only_its_question(
    pod: MemoryPod, caplog: pytest.LogCaptureFixture
) -> None:
    limits = ModelLimits(grace_seconds=0.01)
    async with (
        pod.connect("alice", own=True) as alice,
        pod.run(ModelAgent("mind", FaultyProvider(), limits=limits).participant),
    ):
        with anyio.fail_after(BOUND):
            for _ in range(2):
                answer, _log = await ask(alice, "There?")
                assert answer.text == "I cannot answer this now: an internal error"
    assert "ZeroDivisionError: secret detail" in caplog.text


@APIS
async def test_it_stops_at_its_limits(pod: MemoryPod, api: str) -> None:
    endless = [Scripted("", [("library__search", {"query": "x"})]) for _ in range(10)]
    async with joined(pod, api, list(endless), ModelLimits(turns=3)) as (alice, server):
        assert "3 turns were not enough" in (await ask(alice, "Go on"))[0].text
        assert len(server.requests) == 3
    async with joined(pod, api, list(endless), ModelLimits(tokens=150)) as (alice, server):
        assert "has used 200 tokens" in (await ask(alice, "Go on"))[0].text


@APIS
async def test_a_call_that_is_not_allowed_is_proposed(pod: MemoryPod, api: str) -> None:
    own = ["chat", "reflection", "conclusion", "mcp/proposal:*", "mcp/withdraw"]
    listing = ["mcp/request:tools/list", "mcp/response:*", "mcp/request:tools/call:search"]
    pod.add("mind", [{"kind": own + listing}])
    script = [Scripted("", [("library__burn", {"book": 7})]), Scripted("It is done.")]
    async with joined(pod, api, script) as (alice, server):
        fulfilled = anyio.Event()

        async def approve() -> None:
            async with pod.connect("boss") as boss:
                async for message in boss:
                    if message.kind.startswith("mcp/proposal:"):
                        await boss.fulfil(message)
                        fulfilled.set()

        async with background() as tasks:
            tasks.start_soon(approve)
            assert (await ask(alice, "Burn it"))[0].text == "It is done."
            await fulfilled.wait()
        assert "fulfilled by @boss: burnt 7" in json.dumps(server.requests[1])


async def test_an_approved_call_that_takes_long_is_not_reported_as_undecided(
    pod: MemoryPod,
) -> None:
    pod.add(
        "mind", [{"kind": ["chat", "reflection", "conclusion", "mcp/proposal:*", "mcp/req*list"]}]
    )
    forge, boss = Participant("forge"), Participant("boss")

    @forge.tool
    async def smelt() -> None:
        await anyio.sleep_forever()

    @boss.policy
    async def allow(proposal: Message) -> bool:
        return True

    script = [Scripted("", [("forge__smelt", {})]), Scripted("It takes its time.")]
    limits = ModelLimits(approval_seconds=0.5)
    async with (
        pod.run(forge),
        pod.run(boss),
        joined(pod, "openai", script, limits) as (alice, server),
    ):
        assert (await ask(alice, "Smelt it"))[0].text == "It takes its time."
    assert "was approved by @boss, but has not been answered yet" in json.dumps(server.requests[1])


@APIS
async def test_a_rejection_ends_the_wait_and_the_model_sees_a_refusal(
    pod: MemoryPod, api: str
) -> None:
    own = ["chat", "reflection", "conclusion", "mcp/withdraw", "mcp/proposal:tools/call:burn"]
    pod.add("mind", [{"kind": [*own, "mcp/request:tools/list", "mcp/response:*"]}])
    script = [
        Scripted("", [("library__burn", {"book": 7}), ("library__lose", {})]),
        Scripted("So be it."),
    ]
    async with joined(pod, api, script) as (alice, server), background() as tasks:

        async def reject() -> None:
            async with pod.connect("boss") as boss:
                async for message in boss:
                    if message.kind.startswith("mcp/proposal:"):
                        await boss.reject(message, "no", "books are not burnt")

        tasks.start_soon(reject)
        answer, log = await ask(alice, "Burn it")
        assert answer.text == "So be it."
        shown = json.dumps(server.requests[1])
        assert "rejected by @boss: books are not burnt" in shown
        assert "may neither call nor propose @library's lose" in shown
        assert "mcp/withdraw" in [one.kind for one in log]


@APIS
async def test_invalid_schemas_of_one_participant_do_not_hide_other_tools(
    pod: MemoryPod, api: str
) -> None:
    strange = Participant("strange")
    schemas: list[Any] = [
        7,
        {"type": "object", "properties": 7},
        {"type": "object", "properties": {"a": {"type": "banana"}}},
        {"type": "object", "properties": {"für": {}}},
        {"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
    ]

    @strange.method("tools/list")
    async def list_tools(params: dict[str, Any], call: ToolCall) -> Any:
        tools = [{"name": f"t{n}", "inputSchema": schema} for n, schema in enumerate(schemas)]
        return {"tools": [*tools, {"name": "wordy", "description": "x" * 5000}]}

    async with pod.run(strange), joined(pod, api, [Scripted("Fine.")]) as (alice, server):
        assert (await ask(alice, "How are you?"))[0].text == "Fine."
        tools = json.dumps(server.requests[0]["tools"])
        assert all(f"strange__t{n}" in tools for n in range(len(schemas)))


@APIS
async def test_many_tools_of_one_participant_leave_room_for_the_others(
    pod: MemoryPod, api: str
) -> None:
    heap = Participant("heap")

    @heap.method("tools/list")
    async def list_tools(params: dict[str, Any], call: ToolCall) -> Any:
        schema = {"type": "object", "properties": {"a": {"description": "x" * 3000}}}
        large = {"type": "object", "properties": {"a": {"description": "x" * 30_000}}}
        tools = [{"name": f"t{n}", "inputSchema": schema} for n in range(200)]
        return {"tools": [{"name": "large", "inputSchema": large}, *tools], "nextCursor": "more"}

    async with pod.run(heap), joined(pod, api, [Scripted("Fine.")]) as (alice, server):
        assert (await ask(alice, "How are you?"))[0].text == "Fine."
    tools = json.dumps(server.requests[0]["tools"])
    assert all(f"library__{name}" in tools for name in ("search", "burn", "lose"))
    assert "heap__large" in tools
    assert "heap__t5" in tools
    assert len(tools) < 250_000


@APIS
async def test_an_invalid_reply_of_the_api_is_reported_and_the_agent_goes_on(
    pod: MemoryPod, api: str
) -> None:
    wrong = {"choices": 7, "type": "message_delta"}
    bodies = [f"data: {one}\n\n" for one in ("{nonsense", "5", json.dumps(wrong))]
    delta = {"index": 0, "delta": {"tool_calls": [{"index": 0, "function": None}]}}
    bodies += ["", "<html>", f"data: {json.dumps({'id': 'c', 'choices': [delta]})}\n\n"]
    script = [*(Scripted(raw_body=body) for body in bodies), Scripted("Here I am.")]
    async with joined(pod, api, script) as (alice, _):
        for body in bodies:
            assert "I cannot answer this now" in (await ask(alice, "?"))[0].text, body
        assert (await ask(alice, "And now?"))[0].text == "Here I am."


@APIS
async def test_a_truncated_reply_is_marked_and_its_last_call_is_not_made(
    pod: MemoryPod, api: str
) -> None:
    reason = {"openai": "length", "anthropic": "max_tokens"}[api]
    script = [
        Scripted("", [("library__burn", {}), ("library__burn", {"book": 1})], reason=reason),
        Scripted("It was", reason=reason),
    ]
    async with joined(pod, api, script) as (alice, server):
        answer, log = await ask(alice, "Burn the first")
        assert answer.text == "It was … (cut at the token limit)"
        assert "burnt" not in json.dumps([one.payload for one in log])
        assert "the arguments are not a JSON object" in json.dumps(server.requests[1])


@pytest.mark.parametrize(
    ("api", "reason", "note"),
    [
        ("openai", "content_filter", "the model's API withheld the rest"),
        ("anthropic", "refusal", "the model refused to continue"),
        ("anthropic", "model_context_window_exceeded", "cut because the model's context was full"),
    ],
)
async def test_an_incomplete_reply_is_marked_with_the_reason(
    pod: MemoryPod, api: str, reason: str, note: str
) -> None:
    script = [Scripted("At most 5", reason=reason), Scripted("", reason=reason)]
    async with joined(pod, api, script) as (alice, _):
        assert (await ask(alice, "How much?"))[0].text == f"At most 5 … ({note})"
        assert (await ask(alice, "And now?"))[0].text == f"I have no answer ({note})"


async def test_calls_with_the_same_index_are_distinguished_by_their_ids(pod: MemoryPod) -> None:
    calls: list[tuple[str, dict[str, Any] | str]] = [
        ("library__burn", {"book": 1}),
        ("library__burn", {"book": 2}),
    ]
    script = [Scripted("", calls, has_one_index=True), Scripted("Both.")]
    async with joined(pod, "openai", script) as (alice, server):
        assert (await ask(alice, "Burn two"))[0].text == "Both."
        shown = json.dumps(server.requests[1])
        assert "burnt 1" in shown
        assert "burnt 2" in shown


@pytest.mark.parametrize("limits", [{"max_message_bytes": 10_000}])
async def test_an_answer_that_is_too_long_for_an_envelope_is_truncated(pod: MemoryPod) -> None:
    async with joined(pod, "openai", [Scripted("\N{SNOWMAN}" * 9000)]) as (alice, _):
        text = (await ask(alice, "Tell"))[0].text
        assert len(text) > 2000
        assert text.endswith("\N{SNOWMAN} … (cut to fit into an envelope)")


@APIS
async def test_a_stream_that_ends_early_is_an_error_and_none_of_its_calls_is_made(
    pod: MemoryPod, api: str
) -> None:
    calls = [("library__burn", {"book": 1}), ("library__lose", {})]
    # At any event before the final one, even where a call looks complete.
    replies = [Scripted("", list(calls), ends_after=count) for count in (2, 3, 4, 6)]
    replies.append(Scripted("Half of it", ends_after=3))
    async with joined(pod, api, [*replies, Scripted("All of it.")]) as (alice, _):
        for _ in replies:
            answer, log = await ask(alice, "Burn the first")
            assert answer.text == "I cannot answer this now: the reply was cut off"
            assert not [one for one in log if "tools/call" in one.kind]
        assert (await ask(alice, "Again"))[0].text == "All of it."


@APIS
async def test_a_call_with_invalid_json_does_not_affect_the_others(
    pod: MemoryPod, api: str
) -> None:
    calls: list[tuple[str, dict[str, Any] | str]] = [
        ("library__burn", "{book: 1]"),
        ("library__burn", {"book": 2}),
        ("expand", "{handle"),
    ]
    async with joined(pod, api, [Scripted("", calls), Scripted("One.")]) as (
        alice,
        server,
    ):
        answer, _ = await ask(alice, "Burn two")
        assert answer.text == "One."
        shown = json.dumps(server.requests[1])
        assert "burnt 2" in shown
        assert "I cannot call library__burn: the arguments are not a JSON object" in shown
        assert "I cannot call expand: the arguments are not a JSON object" in shown


async def test_tokens_are_estimated_where_the_server_reports_none(pod: MemoryPod) -> None:
    endless = [Scripted("", [("library__lose", {})], is_counted=False) for _ in range(9)]
    async with joined(pod, "openai", endless, ModelLimits(tokens=20)) as (alice, server):
        assert "this question has used" in (await ask(alice, "Go on"))[0].text
        assert len(server.requests) == 1


@APIS
async def test_progress_is_reported_in_the_context_of_the_reasoning(
    pod: MemoryPod, api: str
) -> None:
    async with joined(pod, api, [Scripted("A long story.")]) as (alice, _):
        answer, log = await ask(alice, "Tell")
        progress = [one for one in log if one.kind.endswith("notifications/progress")]
        assert {one.correlation_id for one in progress} == {answer.correlation_id}
        (thinking,) = ContextTree(log).roots
        assert thinking.envelopes[: len(progress)] == progress
        first = progress[0].payload["params"]
        assert (first["progress"], first["message"]) == (0, "thinking")


async def test_open_and_queued_questions_are_reported_at_intervals(pod: MemoryPod) -> None:
    limits = ModelLimits(grace_seconds=0.01, remind_seconds=0.01)
    async with (
        pod.connect("alice", own=True) as alice,
        pod.run(ModelAgent("mind", SilentProvider(), limits=limits).participant),
    ):
        questions = [await alice.send("chat", {"text": f"{n}?"}, to=["mind"]) for n in range(2)]
        reported: dict[str | None, list[str]] = {question.id: [] for question in questions}
        with anyio.fail_after(BOUND):
            async for message in alice:
                if message.kind.endswith("notifications/progress"):
                    reported[message.correlation_id].append(message.payload["params"]["message"])
                    if min(map(len, reported.values())) >= 3:
                        break
    first, second = reported.values()
    assert set(first) == {"thinking", "still thinking"}
    assert set(second) == {"waiting, 1 asked before"}


async def test_keep_alive_reports_only_when_nothing_else_was_reported(pod: MemoryPod) -> None:
    async with pod.connect("mind", own=True) as mind, pod.connect("alice", own=True) as alice:
        await alice.send("chat", {"text": "Tell"})
        question = await anext(alice)
        progress = ProgressReporter(mind.context("reasoning"), question)
        await progress.start()
        for message in ("too soon", "first", "second"):
            await progress.keep_alive(message)
        reported = [(await anext(alice)).payload["params"]["message"] for _ in range(3)]
        assert reported == ["thinking", "first", "second"]


class WritingProvider:
    """A model that writes its reply in two pieces, the second when it is told to."""

    def __init__(self) -> None:
        self.go_on = anyio.Event()

    async def reply(
        self, prompt: object, tools: object, max_tokens: int, on_text: OnText = ignore_text
    ) -> Reply:
        await on_text("In stall ")
        await self.go_on.wait()
        await on_text("nine.")
        return Reply("In stall nine.")


@pytest.mark.rule("P-70")
async def test_a_reply_is_shown_while_the_model_writes_it(pod: MemoryPod) -> None:
    provider = WritingProvider()
    agent = ModelAgent("model", provider)
    async with pod.run(agent.participant), pod.connect("alice", live=True) as alice:
        with anyio.fail_after(BOUND):
            await alice.send("chat", {"text": "Where are pears?"}, to=["model"])
            message = await anext(alice)
            while message.kind != "live/text":
                message = await anext(alice)
            assert message.text == "In stall "
            provider.go_on.set()
            announced = message.correlation_id
            while message.kind != "chat":
                message = await anext(alice)
        assert (message.id, message.text) == (announced, "In stall nine.")


async def test_progress_is_reported_at_intervals_not_for_every_word(pod: MemoryPod) -> None:
    now = [0.0]
    async with pod.connect("mind", own=True) as mind, pod.connect("alice", own=True) as alice:
        await alice.send("chat", {"text": "Tell"})
        question = await anext(alice)
        progress = ProgressReporter(mind.context("reasoning"), question, clock=lambda: now[0])
        await progress.start()
        for word in ("Once ", "upon ", "a time "):
            await progress.add_text(word)
            now[0] += 1.5
        reported = [(await anext(alice)).payload["params"] for _ in range(2)]
        assert [(one["progress"], one["message"]) for one in reported] == [
            (0, "thinking"),
            (17, "… Once upon a time"),
        ]


@APIS
async def test_old_results_are_collapsed_and_can_be_expanded_again(
    pod: MemoryPod, api: str
) -> None:
    script = [
        *(Scripted("", [("library__search", {"query": f"q{n}"})]) for n in range(6)),
        Scripted("Found."),
    ]
    limits = ModelLimits(prompt_tokens=9000)
    async with joined(pod, api, script, limits) as (alice, server):
        await ask(alice, "Look everywhere")
        last = json.dumps(server.requests[-1])
        handle = last.partition("handle ")[2].partition("]")[0].strip()
        assert handle, "nothing was collapsed, folded or cut"
        server.script[:] = [
            Scripted("", [("expand", {"handle": handle})]),
            Scripted("Now I see."),
        ]
        assert (await ask(alice, "What was it?"))[0].text == "Now I see."


@pytest.mark.rule("T-28")
@pytest.mark.parametrize(("collapse", "pages"), [("always", 0), ("cache", 3), ("never", 3)])
async def test_the_operator_chooses_when_results_collapse(
    pod: MemoryPod, collapse: Literal["always", "cache", "never"], pages: int
) -> None:
    shop = Participant("shop")

    @shop.tool
    async def note() -> dict[str, Any]:
        return consumed({"content": [{"type": "text", "text": "noted " * 9000}]})

    @shop.tool
    async def look(page: int) -> dict[str, Any]:
        text = f"page {page} of data " + "row " * 200
        return transient({"content": [{"type": "text", "text": text}]}, "a page")

    script = [
        *(
            Scripted("", [(f"shop__{tool}", arguments)])
            for page in range(3)
            for tool, arguments in (("look", {"page": page}), ("note", {}))
        ),
        Scripted("Done."),
    ]
    async with (
        pod.run(shop),
        joined(pod, "openai", script, ModelLimits(collapse=collapse)) as (
            alice,
            server,
        ),
    ):
        await ask(alice, "Look and note")
    assert json.dumps(server.requests[-1]["messages"]).count("of data") == pages


@APIS
@pytest.mark.parametrize("limits", [{"messages_per_second": 0, "context_messages_per_second": 0}])
async def test_other_messages_do_not_push_the_question_or_its_calls_out_of_the_prompt(
    pod: MemoryPod, api: str
) -> None:
    fair = Participant("fair")

    @fair.tool
    async def visit(stall: str, call: ToolCall) -> str:
        thinking = call.envelope.context
        for number in range(60):
            where = thinking if number % 2 else None
            await call.pod.send("chat", {"text": f"{number}: " + "buy! " * 60}, context=where)
        return f"{stall} is closed"

    script = [
        *(Scripted("", [("fair__visit", {"stall": f"stall-{n}"})]) for n in range(3)),
        Scripted("No."),
    ]
    async with (
        pod.run(fair),
        joined(pod, api, script, ModelLimits(prompt_tokens=4000)) as (alice, server),
    ):
        assert (await ask(alice, "Which stall has pears?"))[0].text == "No."
    for made, request in enumerate(server.requests):
        shown = json.dumps(request["messages"])
        assert "Which stall has pears?" in shown
        assert all(f"stall-{n} is closed" in shown for n in range(made))
        assert shown.count("buy!") < 3000
    assert "buy!" in shown  # messages that arrive meanwhile are shown in part


async def test_a_question_that_is_longer_than_a_prompt_is_answered(pod: MemoryPod) -> None:
    script = [Scripted("", [("library__burn", {"book": 1})]), Scripted("Long.")]
    async with joined(pod, "openai", script, ModelLimits(prompt_tokens=2000)) as (alice, server):
        assert (await ask(alice, "Why? " * 20_000))[0].text == "Long."
        assert all("Why? Why?" in json.dumps(request) for request in server.requests)


async def test_a_call_ends_when_the_called_participant_leaves(pod: MemoryPod) -> None:
    asked = anyio.Event()
    guest = waiting("guest", anyio.Event(), asked)

    async def stay_until_asked() -> None:
        async with pod.run(guest):
            await asked.wait()

    script = [Scripted("", [("guest__work", {})]), Scripted("It has left.")]
    async with joined(pod, "openai", script) as (alice, server), background() as tasks:
        tasks.start_soon(stay_until_asked)
        while "guest" not in alice.participants:
            await anext(alice)
        assert (await ask(alice, "Ask it"))[0].text == "It has left."
        assert "work of 'guest': it left before it answered" in json.dumps(server.requests[1])


async def test_a_call_survives_a_short_loss_of_the_connection(pod: MemoryPod) -> None:
    guest = Participant("guest")

    @guest.tool
    async def ponder(call: ToolCall) -> str:
        pod.cut("guest")
        await call.pod.send("chat", {"text": "I am back."})
        return "It is good."

    script = [Scripted("", [("guest__ponder", {})]), Scripted("I see.")]
    async with pod.run(guest), joined(pod, "openai", script) as (alice, server):
        _, log = await ask(alice, "Ask it")
        events = [one.payload["event"] for one in log if one.kind == "system/presence"]
        assert events[-2:] == ["leave", "join"]
        assert "It is good." in json.dumps(server.requests[1])


async def test_tool_lists_are_requested_before_the_first_question(pod: MemoryPod) -> None:
    async with joined(pod, "openai", [Scripted("Here.")]) as (alice, _):
        request = await anext(m async for m in alice if m.kind == "mcp/request:tools/list")
        assert request.sender == "mind"
        async with pod.connect("late") as late:
            request = await anext(m async for m in late if m.kind == "mcp/request:tools/list")
            assert request.to == ("late",)
        assert (await ask(alice, "There?"))[0].text == "Here."


@APIS
async def test_the_model_sees_why_a_call_is_invalid(pod: MemoryPod, api: str) -> None:
    script = [
        Scripted("", [("library__fly", {}), ("library__search", {"wrong": 1})]),
        Scripted("", [("library__search", "[1, 2")]),
        Scripted("I give up."),
    ]
    async with joined(pod, api, script) as (alice, server):
        assert (await ask(alice, "Fly"))[0].text == "I give up."
        assert "there is no such tool" in json.dumps(server.requests[1])


@pytest.mark.rule("P-43")
async def test_those_who_ask_are_answered_in_turn(pod: MemoryPod) -> None:
    go = anyio.Event()

    class WaitingProvider(SilentProvider):
        async def reply(self, *args: Any, **details: Any) -> Reply:
            await go.wait()
            return Reply("Yes.")

    async with (
        pod.connect("alice") as alice,
        pod.connect("bob", own=True) as bob,
        pod.run(ModelAgent("mind", WaitingProvider()).participant),
    ):
        with anyio.fail_after(BOUND):
            for number in range(70):
                await alice.send("chat", {"text": f"{number}?"}, to=["mind"])
            asked = await bob.send("chat", {"text": "Me, too?"}, to=["mind"])
            go.set()
            answered = []
            async for message in bob:
                if message.sender == "mind" and message.kind == "chat" and message.text == "Yes.":
                    answered.append(message.correlation_id)
                    if asked.id in answered:
                        break
        assert len(answered) <= 2  # the one that was being answered, and then bob's


async def test_a_question_beyond_the_queue_is_declined(pod: MemoryPod) -> None:
    async with (
        pod.connect("alice", own=True) as alice,
        pod.run(ModelAgent("mind", SilentProvider()).participant),
    ):
        with anyio.fail_after(BOUND):
            for number in range(70):
                asked = await alice.send("chat", {"text": f"{number}?"}, to=["mind"])
            async for message in alice:
                if message.sender == "mind" and message.correlation_id == asked.id:
                    break
            assert message.text == "I have too many open questions. Please ask again later."


async def test_it_answers_only_when_it_is_addressed(pod: MemoryPod) -> None:
    async with joined(pod, "openai", [Scripted("Yes?")]) as (alice, server):
        await alice.send("chat", {"text": "minders, mind@home and remind are not you"})
        question = await alice.send("chat", {"text": "what do you think, @mind?"})
        answer = await anext(m async for m in alice if m.kind == "chat" and m.sender == "mind")
        assert answer.correlation_id == question.id
        # An answer to its answer is not a question, or two models would never stop.
        await alice.send("chat", {"text": "ok"}, to=["mind"], correlation_id=answer.id)
        await alice.send("chat", {"text": "the end"})
        assert len(server.requests) == 1


@pytest.mark.parametrize("limits", [{"max_context_depth": 1}])
async def test_it_answers_even_if_its_context_is_refused(pod: MemoryPod) -> None:
    async with joined(pod, "openai", [Scripted("Here.")]) as (alice, _):
        await alice.send("chat", {"text": "There?"}, to=["mind"], context="c1")
        answer = await anext(m async for m in alice if m.kind == "chat" and m.sender == "mind")
        assert answer.text == "Here."


@APIS
async def test_the_address_of_an_unreachable_api_is_logged_and_not_sent_to_the_pod(
    api: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{closed.getsockname()[1]}"
        provider = (OpenAI if api == "openai" else Anthropic)(
            "m", api_key="k", base_url=f"http://me:secret@{host}", retries=0
        )
        with pytest.raises(ProviderError, match=r"^the model's API does not answer$"):
            await provider.reply(PromptBuilder("me").build([]), [], 100)
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("mcpp")]
    assert line.startswith(f"http://{host}/")
    assert line.endswith(": All connection attempts failed")


@APIS
async def test_a_silent_api_times_out(api: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        provider = (OpenAI if api == "openai" else Anthropic)(
            "m",
            api_key="k",
            base_url=f"http://127.0.0.1:{silent.getsockname()[1]}",
            retries=0,
            silent_seconds=0.05,
        )
        with (
            anyio.fail_after(BOUND),
            pytest.raises(ProviderError, match=r"^the model's API does not answer$"),
        ):
            await provider.reply(PromptBuilder("me").build([]), [], 100)


@pytest.mark.parametrize("address", ["foo", "htp://x/", "http://", "http://x:port/", "http://a b/"])
@pytest.mark.parametrize(
    "command", [("agent", "--model", "openai:m", "--base-url"), ("bridge", "b", "--http")]
)
def test_an_invalid_url_is_refused_at_once(
    command: tuple[str, ...], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main([*command, address])
    assert f"must be like https://HOST/PATH, not '{address}'" in capsys.readouterr().err


async def test_a_missing_key_is_reported_in_one_line(
    sockets: SocketPod, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    code, out, error = await commands.run("model", "agent", "--model", "anthropic:m")
    assert (code, out) == (1, "")
    assert error == (
        "mcpp agent: ANTHROPIC_API_KEY is not set; "
        "without a key, use --base-url with a local server\n"
    )


async def test_the_command_runs_a_model_until_ctrl_c(
    sockets: SocketPod, commands: Commands
) -> None:
    with model_server([Scripted("Good day.")]) as server:
        arguments = ("agent", "--model", "openai:m", "--base-url", f"{server.url}/v1")
        async with (
            sockets.connect("alice", own=True) as alice,
            commands.start("model", *arguments) as command,
        ):
            await command.line_with("model is in the pod")
            with anyio.fail_after(BOUND):
                await alice.send("chat", {"text": "hello"}, to=["model"])
                message = await anext(m async for m in alice if m.sender == "model" and m.text)
            assert message.kind == "conclusion"
            assert await command.interrupt() == 0
        assert server.problems == []


@pytest.mark.rule("M-48")
async def test_the_command_recalls_and_remembers(
    sockets: SocketPod, commands: Commands, tmp_path: Path
) -> None:
    file = tmp_path / "memory.db"
    with MemoryStore.open(file, embedder=None) as store:
        pod = store.acting_as(Principal.for_pod("test"), author="boss", origin="bus")
        pod.remember("Pears", "Pears ripen in stall nine.", "fact")
    with model_server([Scripted("In stall nine."), Scripted("As I said.")]) as server:
        arguments = ("agent", "--model", "openai:m", "--base-url", f"{server.url}/v1")
        async with (
            sockets.connect("alice", own=True) as alice,
            commands.start("model", *arguments, "--memory", str(file)) as command,
        ):
            await command.line_with("model is in the pod")
            with anyio.fail_after(BOUND):
                for _ in range(2):
                    asked = await alice.send("chat", {"text": "Where are pears?"}, to=["model"])
                    await anext(
                        m async for m in alice if (m.kind, m.correlation_id) == ("chat", asked.id)
                    )
            assert await command.interrupt() == 0
        first, second = (json.dumps(request["messages"][0]) for request in server.requests)
        assert "Pears ripen in stall nine." in first
        # Others wrote it: it follows what the model may trust, and how to read a quotation.
        fixed = "You are @model"
        assert 0 < first.index(fixed) < first.index("Quoted lines") < first.index("Pears ripen")
        assert first[: first.index("What you and")] == second[: second.index("What you and")]
        assert "Answer: In stall nine." not in first
        assert "Answer: In stall nine." in second


class ProviderThatWaits:
    """A provider that says it was asked, and answers when it may."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.may_answer = anyio.Event()
        self.prompts: list[Prompt] = []

    async def reply(self, prompt: Prompt, *_: object) -> Reply:
        self.prompts.append(prompt)
        self.asked.set()
        await self.may_answer.wait()
        return Reply("In stall nine.", ())


class EmbedderThatWaits:
    """An embedder that does nothing until it may."""

    model = "waits"
    lexical_share = 0.5

    def __init__(self) -> None:
        self.may_embed = threading.Event()

    def embed(self, texts: Sequence[str]) -> Any:
        import numpy as np

        self.may_embed.wait(BOUND)
        return np.eye(len(texts), 8, dtype=np.float32)


@pytest.mark.rule("M-48")
async def test_an_answer_does_not_wait_for_a_memory_that_takes_long(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    file = tmp_path / "memory.db"
    pod, provider, embedder = MemoryPod(), ProviderThatWaits(), EmbedderThatWaits()
    provider.may_answer.set()
    with MemoryStore.open(file, embedder=embedder) as store:
        diary = store.acting_as(Principal("pod:test", frozenset({"pod:test"})))
        limits = ModelLimits(memory_seconds=0.05)
        agent = ModelAgent("mind", provider, limits=limits, memory=store)
        async with pod.connect("alice", own=True) as alice, pod.run(agent.participant):
            with anyio.fail_after(BOUND):
                with closing(sqlite3.connect(file, isolation_level=None)) as other:
                    other.execute("BEGIN IMMEDIATE")
                    await ask(alice, "Where are pears?")
                    embedder.may_embed.set()
                while not diary.context("pears", agent_id="mind").total_items:  # noqa: ASYNC110
                    await anyio.sleep(0.01)  # no envelope announces it


@pytest.mark.rule("H-14", "M-48")
@pytest.mark.parametrize("is_answered", [True, False])
async def test_what_is_erased_from_the_log_is_erased_from_the_diary(
    tmp_path: Path, *, is_answered: bool
) -> None:
    pod, provider = MemoryPod(), ProviderThatWaits()
    with MemoryStore.open(tmp_path / "memory.db", embedder=None) as store:
        diary = store.acting_as(Principal("pod:test", frozenset({"pod:test"})))
        agent = ModelAgent("mind", provider, memory=store)
        async with pod.connect("alice", own=True) as alice, pod.run(agent.participant):
            with anyio.fail_after(BOUND):
                if is_answered:
                    provider.may_answer.set()
                    await ask(alice, "Where are pears?")
                    assert diary.context("pears", agent_id="mind").total_items == 1
                    erase(pod, participant="alice")
                else:  # while the model thinks
                    asked = await alice.send("chat", {"text": "Where are pears?"}, to=["mind"])
                    await provider.asked.wait()
                    erase(pod, participant="alice")
                    await anext(m async for m in alice if m.kind == "system/erased")
                    provider.may_answer.set()
                    await anext(m async for m in alice if m.correlation_id == asked.id and m.text)
                while diary.context("pears", agent_id="mind").total_items:  # noqa: ASYNC110
                    await anyio.sleep(0.01)  # no envelope announces it


class ProviderThatExpands:
    """A provider that looks until a result collapses, and expands it after an erasure."""

    def __init__(self, pod: MemoryPod) -> None:
        self._pod = pod
        self._has_expanded = False

    async def reply(self, prompt: Prompt, *_: object) -> Reply:
        handles = re.findall(r"handle ([^\s\]]{4,})\]", prompt.markdown())
        if not handles:
            return Reply("", (ToolUse("library__search", {"query": "zebra"}),))
        if self._has_expanded:
            return Reply("Done.")
        self._has_expanded = True
        erase(self._pod, participant="library")
        return Reply("", (ToolUse("expand", {"handle": handles[0]}),))


@pytest.mark.rule("H-10")
async def test_what_was_erased_is_not_expanded_into_the_log_again() -> None:
    pod = MemoryPod()
    limits = ModelLimits(prompt_tokens=9000, grace_seconds=0.25)
    agent = ModelAgent("mind", ProviderThatExpands(pod), limits=limits)
    async with (
        pod.run(library()),
        pod.connect("alice", own=True) as alice,
        pod.run(agent.participant),
    ):
        with anyio.fail_after(BOUND):
            answer, log = await ask(alice, "Look everywhere")
        assert answer.text == "Done."
        [response] = [each for each in log if each.kind == "mcp/response:tools/call:expand"]
        assert "zebra" not in json.dumps(response.payload)


class ProviderThatLooksTwice:
    """A provider that sees an erasure between its prompts for a question."""

    def __init__(self, pod: MemoryPod) -> None:
        self._pod = pod
        self.prompts: list[str] = []

    async def reply(self, prompt: Prompt, *_: object) -> Reply:
        self.prompts.append(prompt.markdown())
        if len(self.prompts) > 1:
            return Reply("Nowhere.")
        erase(self._pod, participant="boss")
        return Reply("", (ToolUse("library__search", {"query": "x"}),))


@pytest.mark.rule("H-14", "M-48")
async def test_what_was_remembered_is_not_shown_after_its_erasure(tmp_path: Path) -> None:
    pod = MemoryPod()
    provider = ProviderThatLooksTwice(pod)
    limits = ModelLimits(grace_seconds=0.25)
    with MemoryStore.open(tmp_path / "memory.db", embedder=None) as store:
        principal = Principal.for_pod("test")
        boss = store.acting_as(principal, author="boss", origin="bus")
        boss.remember("Pears", "Pears ripen in stall nine.", "fact")
        agent = ModelAgent("mind", provider, limits=limits, memory=store)
        async with (
            pod.run(library()),
            pod.connect("alice", own=True) as alice,
            pod.run(agent.participant),
        ):
            with anyio.fail_after(BOUND):
                await ask(alice, "Where are pears?")
        assert ["stall nine" in each for each in provider.prompts] == [True, False]


@pytest.mark.rule("H-14")
async def test_an_erasure_that_an_agent_has_missed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod, provider = MemoryPod(limits=SHORT_LOG), ProviderThatWaits()
    provider.may_answer.set()
    with MemoryStore.open(tmp_path / "memory.db", embedder=None) as store:
        diary = store.acting_as(Principal("pod:test", frozenset({"pod:test"})))
        agent = ModelAgent("mind", provider, memory=store)
        async with (
            pod.connect("alice", own=True) as alice,
            pod.connect("bob", own=True) as bob,
            pod.run(agent.participant),
        ):
            with anyio.fail_after(BOUND):
                await ask(alice, "Where are pears?")
                miss_erasure(pod, "mind", monkeypatch, participant="alice")
                while diary.context("pears", agent_id="mind").total_items:  # noqa: ASYNC110
                    await anyio.sleep(0.01)  # no envelope announces it
                await bob.wait_for_presence("mind")
                await ask(bob, "Where are pears?")
                assert diary.context("pears", agent_id="mind").total_items == 1
                # Neither the diary nor the copy of the log has it.
                assert "alice" not in provider.prompts[-1].markdown()


@pytest.mark.rule("M-33", "M-48")
async def test_a_question_that_opts_out_of_memory_is_in_no_diary(tmp_path: Path) -> None:
    pod, provider = MemoryPod(), ProviderThatWaits()
    provider.may_answer.set()
    with MemoryStore.open(tmp_path / "memory.db", embedder=None) as store:
        diary = store.acting_as(Principal("pod:test", frozenset({"pod:test"})))
        agent = ModelAgent("mind", provider, memory=store)
        async with pod.connect("alice", own=True) as alice, pod.run(agent.participant):
            with anyio.fail_after(BOUND):
                async with alice.context("task", memory="off") as private:
                    await private.send("reflection", {"thought": "About my salary."})
                    asked = await private.send("chat", {"text": "Where are pears?"}, to=["mind"])
                    await anext(m async for m in alice if m.correlation_id == asked.id and m.text)
                assert diary.context("pears", agent_id="mind").total_items == 0
                await ask(alice, "Where are pears?")
                assert diary.context("pears", agent_id="mind").total_items == 1


@APIS
async def test_a_conclusion_says_how_many_tokens_were_used(pod: MemoryPod, api: str) -> None:
    script = [Scripted("", [("library__search", {"query": "x"})]), Scripted("Found.")]
    async with joined(pod, api, script) as (alice, _):
        _, log = await ask(alice, "Where is x?")
    (conclusion,) = (each for each in log if each.kind == "conclusion")
    cached = 0 if api == "openai" else 140
    assert conclusion.payload["usage"] == {
        "input_tokens": 180,
        "output_tokens": 20,
        "cached_tokens": cached,
        "model": "m",
    }


async def test_no_tokens_are_claimed_where_the_api_does_not_count(pod: MemoryPod) -> None:
    async with joined(pod, "openai", [Scripted("Hello.", is_counted=False)]) as (alice, _):
        _, log = await ask(alice, "Hello?")
    (conclusion,) = (each for each in log if each.kind == "conclusion")
    assert "usage" not in conclusion.payload


async def test_ctrl_c_withdraws_open_proposals(sockets: SocketPod, commands: Commands) -> None:
    own = ["chat", "reflection", "conclusion", "mcp/proposal:*", "mcp/withdraw"]
    sockets.add("model", [{"kind": [*own, "mcp/request:tools/list"]}])
    with model_server([Scripted("", [("library__burn", {"book": 7})])]) as server:
        arguments = ("agent", "--model", "openai:m", "--base-url", f"{server.url}/v1")
        async with (
            sockets.run(library()),
            sockets.connect("alice") as alice,
            commands.start("model", *arguments) as command,
        ):
            await command.line_with("model is in the pod")
            await alice.send("chat", {"text": "Burn it"}, to=["model"])
            messages = (
                m async for m in alice if m.kind.startswith(("mcp/proposal", "mcp/withdraw"))
            )
            with anyio.fail_after(BOUND):
                proposal = await anext(messages)
                assert await command.interrupt() == 0
                withdrawn = await anext(messages)
    assert (withdrawn.kind, withdrawn.correlation_id) == ("mcp/withdraw", proposal.id)
