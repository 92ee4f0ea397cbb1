"""The model agent against a scripted server that speaks both APIs and checks what it is sent."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import msgspec
import pytest

import mcpp
from mcpp import ContextTree, Envelope, Message, Participant
from mcpp.agent.tools import ToolCall
from mcpp.cli import main
from mcpp.client.tasks import background
from mcpp.prompts import PromptBuilder
from mcpp.protocol.rpc import ToolResult
from mcpp.testing import MemoryPod
from mcpp.transient import transient
from mcpp_agents.model import ModelAgent, ModelLimits, ProviderError, Reply
from mcpp_agents.model.anthropic_messages import Anthropic
from mcpp_agents.model.openai_chat import OpenAI
from mcpp_agents.model.progress import ProgressReporter
from tests.agents.model_server import ModelServer, Say, model_server
from tests.agents.processes import BOUND, Commands
from tests.interaction.conftest import SocketVenue

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
    pod: MemoryPod, api: str, script: list[Say], limits: ModelLimits | None = None
) -> AsyncIterator[tuple[mcpp.Pod, ModelServer]]:
    """Have a model in the pod, and the library; yield alice's pod and the server."""
    with model_server(script) as server:
        url = f"{server.url}/v1" if api == "openai" else server.url
        provider = (OpenAI if api == "openai" else Anthropic)("m", api_key="k", base_url=url)
        # Alice never answers which tools she offers, but the library does.
        given = msgspec.structs.replace(limits or ModelLimits(), patience_seconds=0.25)
        async with (
            pod.run(library()),
            pod.connect("alice", own=True) as alice,
            pod.run(ModelAgent("mind", provider, limits=given).participant),
        ):
            with anyio.fail_after(BOUND):
                yield alice, server
        assert server.problems == []


class Silent:
    """A provider that never answers."""

    async def reply(self, *asked: object) -> Reply:
        await anyio.sleep_forever()
        raise AssertionError


class Faulty:
    """A provider with a bug."""

    async def reply(self, *asked: object) -> Reply:
        raise ZeroDivisionError("secret detail")


async def ask(alice: mcpp.Pod, text: str) -> tuple[Message, list[Envelope]]:
    """Ask the model; return its answer and everything that was said until then."""
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
        Say("Let me look.", [("library__search", {"query": "x"}), ("library__lose", {})]),
        Say("One more.", [("library__search", {"query": "y"})]),
        Say("There are forty books."),
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
        assert "the shelf is empty" in shown  # a failure is a result that the model reads
        assert "How many books?" in shown


@APIS
async def test_the_api_s_passing_failures_are_retried_and_its_lasting_one_is_said(
    pod: MemoryPod, api: str
) -> None:
    async with joined(pod, api, [Say(status=529), Say(status=429), Say("Here I am.")]) as (
        alice,
        _,
    ):
        assert (await ask(alice, "There?"))[0].text == "Here I am."
    async with joined(pod, api, [Say(status=401), Say("Again.")]) as (alice, _):
        told = "I cannot think about this now: scripted (HTTP 401)"
        assert (await ask(alice, "There?"))[0].text == told
        assert (await ask(alice, "And now?"))[0].text == "Again."


@APIS
@pytest.mark.parametrize("asked", ["3600", "Fri, 01 Jan 2100 00:00:00 GMT"])
async def test_an_api_that_asks_to_be_left_alone_for_long_is_not_waited_for(
    pod: MemoryPod, api: str, asked: str
) -> None:
    async with joined(pod, api, [Say(status=429, retry_after=asked), Say("Hello.")]) as (alice, _):
        said = (await ask(alice, "There?"))[0].text
        assert "I cannot think about this now: its API asks to be left alone for" in said
        assert (await ask(alice, "And now?"))[0].text == "Hello."


async def test_a_wait_that_the_api_asks_for_is_told(
    pod: MemoryPod, caplog: pytest.LogCaptureFixture
) -> None:
    class Busy:
        replies: ClassVar[list[Reply | ProviderError]] = [
            ProviderError("overloaded", 0.01),
            Reply("Hello."),
        ]

        async def reply(self, *asked: object) -> Reply:
            reply = self.replies.pop(0)
            if isinstance(reply, ProviderError):
                raise reply
            return reply

    async with (
        pod.connect("alice", own=True) as alice,
        pod.run(ModelAgent("mind", Busy(), limits=ModelLimits(patience_seconds=0.01)).participant),
    ):
        with anyio.fail_after(BOUND):
            answer, log = await ask(alice, "There?")
    assert answer.text == "Hello."
    told = [one.payload["params"]["message"] for one in log if one.kind.endswith("progress")]
    assert told == ["thinking", "the model's API asks to wait 0 s"]
    assert "asking the model again in 0 s: overloaded" in caplog.text


async def test_an_unexpected_error_ends_only_its_question(
    pod: MemoryPod, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        pod.connect("alice", own=True) as alice,
        pod.run(
            ModelAgent("mind", Faulty(), limits=ModelLimits(patience_seconds=0.01)).participant
        ),
    ):
        with anyio.fail_after(BOUND):
            for _ in range(2):
                answer, _log = await ask(alice, "There?")
                assert answer.text == "I cannot think about this now: an internal error"
    assert "ZeroDivisionError: secret detail" in caplog.text


@APIS
async def test_it_stops_at_its_limits(pod: MemoryPod, api: str) -> None:
    endless = [Say("", [("library__search", {"query": "x"})]) for _ in range(10)]
    async with joined(pod, api, list(endless), ModelLimits(turns=3)) as (alice, server):
        assert "3 turns were not enough" in (await ask(alice, "Go on"))[0].text
        assert len(server.requests) == 3
    async with joined(pod, api, list(endless), ModelLimits(tokens=150)) as (alice, server):
        assert "200 tokens are spent" in (await ask(alice, "Go on"))[0].text


@APIS
async def test_what_it_may_not_call_it_proposes(pod: MemoryPod, api: str) -> None:
    own = ["chat", "reflection", "conclusion", "mcp/proposal:*", "mcp/withdraw"]
    listing = ["mcp/request:tools/list", "mcp/response:*", "mcp/request:tools/call:search"]
    pod.add("mind", [{"kind": own + listing}])
    script = [Say("", [("library__burn", {"book": 7})]), Say("It is done.")]
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


async def test_what_was_approved_and_takes_long_is_not_said_to_be_undecided(
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

    script = [Say("", [("forge__smelt", {})]), Say("It takes its time.")]
    limits = ModelLimits(approval_seconds=0.5)
    async with (
        pod.run(forge),
        pod.run(boss),
        joined(pod, "openai", script, limits) as (alice, server),
    ):
        assert (await ask(alice, "Smelt it"))[0].text == "It takes its time."
    assert "was approved by @boss, and is not answered yet" in json.dumps(server.requests[1])


@APIS
async def test_a_rejection_ends_the_wait_and_a_refusal_is_told_to_the_model(
    pod: MemoryPod, api: str
) -> None:
    own = ["chat", "reflection", "conclusion", "mcp/withdraw", "mcp/proposal:tools/call:burn"]
    pod.add("mind", [{"kind": [*own, "mcp/request:tools/list", "mcp/response:*"]}])
    script = [
        Say("", [("library__burn", {"book": 7}), ("library__lose", {})]),
        Say("So be it."),
    ]
    async with joined(pod, api, script) as (alice, server), background() as tasks:

        async def object() -> None:
            async with pod.connect("boss") as boss:
                async for message in boss:
                    if message.kind.startswith("mcp/proposal:"):
                        await boss.reject(message, "no", "books are not burnt")

        tasks.start_soon(object)
        answer, log = await ask(alice, "Burn it")
        assert answer.text == "So be it."
        shown = json.dumps(server.requests[1])
        assert "rejected by @boss: books are not burnt" in shown
        assert "may neither call nor propose lose" in shown
        assert "mcp/withdraw" in [one.kind for one in log]


@APIS
async def test_one_participant_s_strange_tools_do_not_cost_the_model_all_others(
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

    async with pod.run(strange), joined(pod, api, [Say("Fine.")]) as (alice, server):
        assert (await ask(alice, "How are you?"))[0].text == "Fine."
        tools = json.dumps(server.requests[0]["tools"])
        assert all(f"strange__t{n}" in tools for n in range(len(schemas)))


@APIS
async def test_a_heap_of_tools_leaves_room_for_everybody_else_s(pod: MemoryPod, api: str) -> None:
    heap = Participant("heap")

    @heap.method("tools/list")
    async def list_tools(params: dict[str, Any], call: ToolCall) -> Any:
        schema = {"type": "object", "properties": {"a": {"description": "x" * 3000}}}
        large = {"type": "object", "properties": {"a": {"description": "x" * 30_000}}}
        tools = [{"name": f"t{n}", "inputSchema": schema} for n in range(200)]
        return {"tools": [{"name": "large", "inputSchema": large}, *tools], "nextCursor": "more"}

    async with pod.run(heap), joined(pod, api, [Say("Fine.")]) as (alice, server):
        assert (await ask(alice, "How are you?"))[0].text == "Fine."
    tools = json.dumps(server.requests[0]["tools"])
    assert all(f"library__{name}" in tools for name in ("search", "burn", "lose"))
    assert "heap__large" in tools
    assert "heap__t5" in tools
    assert len(tools) < 250_000


@APIS
async def test_nonsense_of_the_api_is_said_and_the_agent_lives(pod: MemoryPod, api: str) -> None:
    wrong = {"choices": 7, "type": "message_delta"}
    bodies = [f"data: {one}\n\n" for one in ("{nonsense", "5", json.dumps(wrong))]
    delta = {"index": 0, "delta": {"tool_calls": [{"index": 0, "function": None}]}}
    bodies += ["", "<html>", f"data: {json.dumps({'id': 'c', 'choices': [delta]})}\n\n"]
    script = [*(Say(nonsense=body) for body in bodies), Say("Here I am.")]
    async with joined(pod, api, script) as (alice, _):
        for body in bodies:
            assert "I cannot think about this now" in (await ask(alice, "?"))[0].text, body
        assert (await ask(alice, "And now?"))[0].text == "Here I am."


@APIS
async def test_a_reply_that_was_cut_says_so_and_its_last_call_is_not_made(
    pod: MemoryPod, api: str
) -> None:
    reason = {"openai": "length", "anthropic": "max_tokens"}[api]
    script = [
        Say("", [("library__burn", {}), ("library__burn", {"book": 1})], reason=reason),
        Say("It was", reason=reason),
    ]
    async with joined(pod, api, script) as (alice, server):
        answer, log = await ask(alice, "Burn the first")
        assert answer.text == "It was … (cut at the limit of a reply)"
        assert "burnt" not in json.dumps([one.payload for one in log])
        assert "the arguments are no JSON object" in json.dumps(server.requests[1])


@pytest.mark.parametrize(
    ("api", "reason", "told"),
    [
        ("openai", "content_filter", "the model's API withheld the rest"),
        ("anthropic", "refusal", "the model refused to say more"),
        ("anthropic", "model_context_window_exceeded", "cut where the model's context was full"),
    ],
)
async def test_a_reply_that_was_broken_off_is_not_passed_on_as_whole(
    pod: MemoryPod, api: str, reason: str, told: str
) -> None:
    script = [Say("At most 5", reason=reason), Say("", reason=reason)]
    async with joined(pod, api, script) as (alice, _):
        assert (await ask(alice, "How much?"))[0].text == f"At most 5 … ({told})"
        assert (await ask(alice, "And now?"))[0].text == f"I have no answer ({told})"


async def test_calls_that_are_numbered_alike_are_told_apart_by_their_ids(pod: MemoryPod) -> None:
    calls: list[tuple[str, dict[str, Any] | str]] = [
        ("library__burn", {"book": 1}),
        ("library__burn", {"book": 2}),
    ]
    script = [Say("", calls, has_one_index=True), Say("Both.")]
    async with joined(pod, "openai", script) as (alice, server):
        assert (await ask(alice, "Burn two"))[0].text == "Both."
        shown = json.dumps(server.requests[1])
        assert "burnt 1" in shown
        assert "burnt 2" in shown


@pytest.mark.parametrize("limits", [{"max_message_bytes": 10_000}])
async def test_an_answer_that_no_envelope_holds_is_cut_and_says_so(pod: MemoryPod) -> None:
    async with joined(pod, "openai", [Say("\N{SNOWMAN}" * 9000)]) as (alice, _):
        said = (await ask(alice, "Tell"))[0].text
        assert len(said) > 2000
        assert said.endswith("\N{SNOWMAN} … (cut at the limit of an envelope)")


@APIS
async def test_a_stream_that_ends_early_is_no_reply_and_none_of_its_calls_is_made(
    pod: MemoryPod, api: str
) -> None:
    whole = [("library__burn", {"book": 1}), ("library__lose", {})]
    # Up to the last event that says that this is all: a call may look whole long before.
    said = [Say("", list(whole), ends_after=count) for count in (2, 3, 4, 6)]
    said.append(Say("Half of it", ends_after=3))
    async with joined(pod, api, [*said, Say("All of it.")]) as (alice, _):
        for _ in said:
            answer, log = await ask(alice, "Burn the first")
            assert answer.text == "I cannot think about this now: the reply was cut off"
            assert not [one for one in log if "tools/call" in one.kind]
        assert (await ask(alice, "Again"))[0].text == "All of it."


@APIS
async def test_a_call_that_is_no_json_costs_none_of_the_others(pod: MemoryPod, api: str) -> None:
    calls: list[tuple[str, dict[str, Any] | str]] = [
        ("library__burn", "{book: 1]"),
        ("library__burn", {"book": 2}),
    ]
    async with joined(pod, api, [Say("", calls), Say("One.")]) as (alice, server):
        answer, _ = await ask(alice, "Burn two")
        assert answer.text == "One."
        shown = json.dumps(server.requests[1])
        assert "burnt 2" in shown
        assert "I cannot call library__burn: the arguments are no JSON object" in shown


async def test_a_server_that_does_not_count_is_counted_for(pod: MemoryPod) -> None:
    endless = [Say("", [("library__lose", {})], is_counted=False) for _ in range(9)]
    async with joined(pod, "openai", endless, ModelLimits(tokens=20)) as (alice, server):
        assert "tokens are spent" in (await ask(alice, "Go on"))[0].text
        assert len(server.requests) == 1


@APIS
async def test_who_watches_sees_it_take_up_a_question_and_write(pod: MemoryPod, api: str) -> None:
    async with joined(pod, api, [Say("A long story.")]) as (alice, _):
        answer, log = await ask(alice, "Tell")
        progress = [one for one in log if one.kind.endswith("notifications/progress")]
        assert {one.correlation_id for one in progress} == {answer.correlation_id}
        (thinking,) = ContextTree(log).roots
        assert thinking.envelopes[: len(progress)] == progress
        told = [one.payload["params"] for one in progress]
        assert (told[0]["progress"], told[0]["message"]) == (0, "thinking")


async def test_whoever_waits_is_reminded_and_so_is_whoever_waits_behind(pod: MemoryPod) -> None:
    limits = ModelLimits(patience_seconds=0.01, remind_seconds=0.01)
    async with (
        pod.connect("alice", own=True) as alice,
        pod.run(ModelAgent("mind", Silent(), limits=limits).participant),
    ):
        questions = [await alice.send("chat", {"text": f"{n}?"}, to=["mind"]) for n in range(2)]
        told: dict[str | None, list[str]] = {question.id: [] for question in questions}
        with anyio.fail_after(BOUND):
            async for message in alice:
                if message.kind.endswith("notifications/progress"):
                    told[message.correlation_id].append(message.payload["params"]["message"])
                    if min(map(len, told.values())) >= 3:
                        break
    first, second = told.values()
    assert set(first) == {"thinking", "still thinking"}
    assert set(second) == {"waiting, 1 asked before"}


async def test_a_reminder_comes_only_where_nothing_else_was_told(pod: MemoryPod) -> None:
    async with pod.connect("mind", own=True) as mind, pod.connect("alice", own=True) as alice:
        await alice.send("chat", {"text": "Tell"})
        question = await anext(alice)
        progress = ProgressReporter(mind.context("reasoning"), question)
        await progress.begin()
        for message in ("too soon", "first", "second"):
            await progress.remind(message)
        told = [(await anext(alice)).payload["params"]["message"] for _ in range(3)]
        assert told == ["thinking", "first", "second"]


async def test_progress_is_told_now_and_then_and_not_for_every_word(pod: MemoryPod) -> None:
    now = [0.0]
    async with pod.connect("mind", own=True) as mind, pod.connect("alice", own=True) as alice:
        await alice.send("chat", {"text": "Tell"})
        question = await anext(alice)
        progress = ProgressReporter(mind.context("reasoning"), question, clock=lambda: now[0])
        await progress.begin()
        for word in ("Once ", "upon ", "a time "):
            await progress.hear(word)
            now[0] += 1.5
        told = [(await anext(alice)).payload["params"] for _ in range(2)]
        assert [(one["progress"], one["message"]) for one in told] == [
            (0, "thinking"),
            (17, "… Once upon a time"),
        ]


@APIS
async def test_old_results_are_collapsed_and_can_be_expanded_again(
    pod: MemoryPod, api: str
) -> None:
    script = [
        *(Say("", [("library__search", {"query": f"q{n}"})]) for n in range(6)),
        Say("Found."),
    ]
    limits = ModelLimits(prompt_tokens=9000)
    async with joined(pod, api, script, limits) as (alice, server):
        await ask(alice, "Look everywhere")
        last = json.dumps(server.requests[-1])
        handle = last.partition("handle ")[2].partition("]")[0].strip()
        assert handle, "nothing was collapsed, folded or cut"
        server.script[:] = [Say("", [("expand", {"handle": handle})]), Say("Now I see.")]
        assert (await ask(alice, "What was it?"))[0].text == "Now I see."


@APIS
@pytest.mark.parametrize("limits", [{"messages_per_second": 0, "context_messages_per_second": 0}])
async def test_nobody_talks_the_question_or_the_calls_for_it_out_of_the_prompt(
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

    script = [*(Say("", [("fair__visit", {"stall": f"stall-{n}"})]) for n in range(3)), Say("No.")]
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
    assert "buy!" in shown  # some of what is said meanwhile is seen


async def test_a_question_that_is_longer_than_a_prompt_is_answered(pod: MemoryPod) -> None:
    script = [Say("", [("library__burn", {"book": 1})]), Say("Long.")]
    async with joined(pod, "openai", script, ModelLimits(prompt_tokens=2000)) as (alice, server):
        assert (await ask(alice, "Why? " * 20_000))[0].text == "Long."
        assert all("Why? Why?" in json.dumps(request) for request in server.requests)


async def test_a_call_ends_when_whoever_was_asked_leaves(pod: MemoryPod) -> None:
    guest = Participant("guest")
    asked = anyio.Event()

    @guest.tool
    async def ponder() -> None:
        asked.set()
        await anyio.sleep_forever()

    async def stay_until_asked() -> None:
        async with pod.run(guest):
            await asked.wait()

    script = [Say("", [("guest__ponder", {})]), Say("It has left.")]
    async with joined(pod, "openai", script) as (alice, server), background() as tasks:
        tasks.start_soon(stay_until_asked)
        while "guest" not in alice.participants:
            await anext(alice)
        assert (await ask(alice, "Ask it"))[0].text == "It has left."
        assert "ponder of 'guest': left the pod before it answered" in json.dumps(
            server.requests[1]
        )


async def test_a_call_outlives_a_line_that_is_lost_for_a_moment(pod: MemoryPod) -> None:
    guest = Participant("guest")

    @guest.tool
    async def ponder(call: ToolCall) -> str:
        pod.cut("guest")
        await call.pod.send("chat", {"text": "I am back."})
        return "It is good."

    script = [Say("", [("guest__ponder", {})]), Say("I see.")]
    async with pod.run(guest), joined(pod, "openai", script) as (alice, server):
        _, log = await ask(alice, "Ask it")
        events = [one.payload["event"] for one in log if one.kind == "system/presence"]
        assert events[-2:] == ["leave", "join"]
        assert "It is good." in json.dumps(server.requests[1])


async def test_everybody_is_asked_for_tools_before_there_is_a_question(pod: MemoryPod) -> None:
    async with joined(pod, "openai", [Say("Here.")]) as (alice, _):
        asked = await anext(m async for m in alice if m.kind == "mcp/request:tools/list")
        assert asked.sender == "mind"
        async with pod.connect("late") as late:
            asked = await anext(m async for m in late if m.kind == "mcp/request:tools/list")
            assert asked.to == ("late",)
        assert (await ask(alice, "There?"))[0].text == "Here."


@APIS
async def test_calls_that_make_no_sense_are_told_to_the_model(pod: MemoryPod, api: str) -> None:
    script = [
        Say("", [("library__fly", {}), ("library__search", {"wrong": 1})]),
        Say("", [("library__search", "[1, 2")]),
        Say("I give up."),
    ]
    async with joined(pod, api, script) as (alice, server):
        assert (await ask(alice, "Fly"))[0].text == "I give up."
        assert "there is no such tool" in json.dumps(server.requests[1])


async def test_whoever_asks_too_much_at_once_is_told_so(pod: MemoryPod) -> None:
    async with (
        pod.connect("alice", own=True) as alice,
        pod.run(ModelAgent("mind", Silent()).participant),
    ):
        with anyio.fail_after(BOUND):
            for number in range(70):
                asked = await alice.send("chat", {"text": f"{number}?"}, to=["mind"])
            async for message in alice:
                if message.sender == "mind" and message.correlation_id == asked.id:
                    break
            assert message.text == "I have too many questions before me: please ask again later."


async def test_it_answers_only_when_it_is_spoken_to(pod: MemoryPod) -> None:
    async with joined(pod, "openai", [Say("Yes?")]) as (alice, server):
        await alice.send("chat", {"text": "minders, mind@home and remind are not you"})
        question = await alice.send("chat", {"text": "what do you think, @mind?"})
        answer = await anext(m async for m in alice if m.kind == "chat" and m.sender == "mind")
        assert answer.correlation_id == question.id
        # An answer to its answer is not a question: two models would go on for ever.
        await alice.send("chat", {"text": "ok"}, to=["mind"], correlation_id=answer.id)
        await alice.send("chat", {"text": "the end"})
        assert len(server.requests) == 1


@pytest.mark.parametrize("limits", [{"max_context_depth": 1}])
async def test_it_answers_where_there_is_no_room_for_a_context(pod: MemoryPod) -> None:
    async with joined(pod, "openai", [Say("Here.")]) as (alice, _):
        await alice.send("chat", {"text": "There?"}, to=["mind"], context="c1")
        answer = await anext(m async for m in alice if m.kind == "chat" and m.sender == "mind")
        assert answer.text == "Here."


@APIS
async def test_an_api_that_is_away_is_told_with_its_address_to_whoever_runs_the_agent(
    api: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{nobody.getsockname()[1]}"
        provider = (OpenAI if api == "openai" else Anthropic)(
            "m", api_key="k", base_url=f"http://me:secret@{host}", retries=0
        )
        with pytest.raises(ProviderError, match=r"^the model's API does not answer$"):
            await provider.reply(PromptBuilder("me").build([]), [], 100)
    (told,) = [record.getMessage() for record in caplog.records if record.name == "mcpp"]
    assert told.startswith(f"http://{host}/")
    assert told.endswith(": All connection attempts failed")


@APIS
async def test_an_api_that_says_nothing_is_not_waited_for_for_ever(api: str) -> None:
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
def test_an_address_that_is_none_is_refused_at_once(
    command: tuple[str, ...], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main.main([*command, address])
    assert f"must be like https://HOST/PATH, not '{address}'" in capsys.readouterr().err


async def test_without_a_key_it_says_so_in_one_line(
    sockets: SocketVenue, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "")
    code, out, error = await commands.run("model", "agent", "--model", "anthropic:m")
    assert (code, out) == (1, "")
    assert error == (
        "mcpp: agent: ANTHROPIC_API_KEY is not set, and no --base-url names a model without a key\n"
    )


async def test_the_command_brings_a_model_in_and_ctrl_c_ends_it(
    sockets: SocketVenue, commands: Commands
) -> None:
    with model_server([Say("Good day.")]) as server:
        arguments = ("agent", "--model", "openai:m", "--base-url", f"{server.url}/v1")
        async with (
            sockets.connect("alice", own=True) as alice,
            commands.start("model", *arguments) as command,
        ):
            await command.says("model is in the pod")
            with anyio.fail_after(BOUND):
                await alice.send("chat", {"text": "hello"}, to=["model"])
                said = await anext(m async for m in alice if m.sender == "model" and m.text)
            assert said.kind == "conclusion"
            assert await command.interrupted() == 0
        assert server.problems == []


async def test_ctrl_c_takes_back_what_it_has_proposed(
    sockets: SocketVenue, commands: Commands
) -> None:
    own = ["chat", "reflection", "conclusion", "mcp/proposal:*", "mcp/withdraw"]
    sockets.add("model", [{"kind": [*own, "mcp/request:tools/list"]}])
    with model_server([Say("", [("library__burn", {"book": 7})])]) as server:
        arguments = ("agent", "--model", "openai:m", "--base-url", f"{server.url}/v1")
        async with (
            sockets.run(library()),
            sockets.connect("alice") as alice,
            commands.start("model", *arguments) as command,
        ):
            await command.says("model is in the pod")
            await alice.send("chat", {"text": "Burn it"}, to=["model"])
            heard = (m async for m in alice if m.kind.startswith(("mcp/proposal", "mcp/withdraw")))
            with anyio.fail_after(BOUND):
                proposal = await anext(heard)
                assert await command.interrupted() == 0
                withdrawn = await anext(heard)
    assert (withdrawn.kind, withdrawn.correlation_id) == ("mcp/withdraw", proposal.id)
