"""Agents: handlers, tools, requests, contexts and proposals, over memory and over a socket."""

import asyncio
import gc
import math
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import msgspec
import pytest
import sniffio

import mcpp
from mcpp import kinds
from mcpp.agent.dispatcher import MAX_CONCURRENT
from mcpp.agent.request_server import MAX_REQUESTS
from mcpp.agent.tools import ToolCall
from mcpp.client.connection import Options
from mcpp.client.sender import Progress
from mcpp.client.tasks import background
from mcpp.errors import CallError, ClosedError, DecodeError, NoAnswerError, RemoteError, ToolError
from mcpp.protocol.rpc import ToolResult
from mcpp.session.resumption import Gap
from mcpp.transient import Mark, consumed, read_mark
from tests.interaction.agents import stalling, waiting
from tests.interaction.conftest import AnyPod

pytestmark = pytest.mark.anyio


@dataclass
class Book:
    title: str
    pages: int


def toolbox(options: Options = Options()) -> mcpp.Participant:  # noqa: B008  (frozen)
    agent = mcpp.Participant("files", options=options)

    @agent.tool
    async def read_file(path: str, lines: Annotated[int, msgspec.Meta(ge=1)] = 10) -> str:
        """Read a file."""
        if path == "missing":
            raise FileNotFoundError("no such file: missing")
        return f"{lines} lines of {path}"

    @agent.tool(name="sum")
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    @agent.tool
    async def count(upto: int, call: ToolCall) -> str:
        for number in range(upto):
            await call.progress(number + 1, upto, f"at {number + 1}")
        return f"counted for {call.sender}"

    @agent.tool
    async def hang() -> None:
        await anyio.sleep_forever()

    return agent


@asynccontextmanager
async def proposing(harness: AnyPod, other: str) -> AsyncIterator[tuple[mcpp.Pod, mcpp.Pod]]:
    """Run the toolbox and connect `other` and @intern, which makes the proposals."""
    async with (
        harness.run(toolbox()),
        harness.connect(other) as connected,
        harness.connect("intern") as intern,
    ):
        yield connected, intern


async def next_of(pod: mcpp.Pod, *kinds: str) -> mcpp.Message:
    with anyio.fail_after(10):
        async for message in pod:
            if message.kind in kinds:
                return message
    raise AssertionError


@pytest.mark.rule("E-15", "P-15")
@pytest.mark.parametrize("name", ["read file", "100% größer: 😀", "n" * 128])
async def test_a_tool_of_any_name_is_called_and_proposed(harness: AnyPod, name: str) -> None:
    agent = mcpp.Participant("files")
    agent.tool(name=name)(lambda: "done")
    approver = mcpp.Participant("boss")

    @approver.policy
    async def approve(message: mcpp.Message) -> bool:
        return bool(message.payload["params"]["name"] == name)

    async with harness.run(agent), harness.run(approver), harness.connect("alice") as alice:
        with anyio.fail_after(10):
            assert (await alice.call("files", name)).text == "done"
            proposal = await alice.propose("files", name)
            assert (await proposal.result()).text == "done"


# --- handlers ---


@pytest.mark.rule("P-13")
async def test_a_handler_answers_and_never_gets_its_own_messages(harness: AnyPod) -> None:
    agent = mcpp.Participant("parrot")

    @agent.on("chat")
    async def repeat(message: mcpp.Message) -> None:
        await message.reply(f"{message.text}!")

    async with harness.run(agent), harness.connect("alice") as alice:
        for text in ("one", "two"):
            sent = await alice.send("chat", {"text": text})
            answer = await next_of(alice, "chat")
            assert (answer.text, answer.correlation_id) == (f"{text}!", sent.id)
            assert answer.to == ("alice",)


async def test_a_handler_may_opt_in_to_its_own_messages(harness: AnyPod) -> None:
    agent = mcpp.Participant("echo")
    received: list[str] = []
    done = anyio.Event()

    @agent.on("note", own=True)
    async def receive(message: mcpp.Message) -> None:
        received.append(message.sender)
        if message.sender != "echo":
            await message.pod.send("note")
        else:
            done.set()

    async with harness.run(agent), harness.connect("alice") as alice:
        await alice.send("note")
        with anyio.fail_after(5):
            await done.wait()
    assert received == ["alice", "echo"]


async def test_handlers_run_one_after_another_in_the_logs_order(harness: AnyPod) -> None:
    agent = mcpp.Participant("slow")
    steps: list[str] = []
    done = anyio.Event()

    @agent.on("chat")
    async def handle(message: mcpp.Message) -> None:
        steps.append(f"begin {message.text}")
        await anyio.lowlevel.checkpoint()
        await message.pod.send("seen", message.text)
        steps.append(f"end {message.text}")
        if message.text == "4":
            done.set()

    async with harness.run(agent), harness.connect("alice") as alice:
        for number in range(5):
            await alice.send("chat", {"text": str(number)})
        with anyio.fail_after(5):
            await done.wait()
    assert steps == [f"{step} {number}" for number in range(5) for step in ("begin", "end")]


@pytest.mark.rule("P-03")
async def test_history_runs_no_handler_and_no_tool(harness: AnyPod) -> None:
    agent = mcpp.Participant("late", last=100)
    received: list[str] = []
    called: list[str] = []

    @agent.on("chat")
    async def receive(message: mcpp.Message) -> None:
        received.append(message.text)
        await message.reply("received", kind="ack")

    @agent.tool
    async def work(item: str) -> None:
        called.append(item)

    async with harness.connect("alice") as alice:
        await alice.send("chat", {"text": "before"})
        async with harness.connect("late"):
            with pytest.raises(NoAnswerError):
                await alice.call("late", "work", item="before", timeout=0.01, wait_for_presence=5)
        async with harness.run(agent):
            await alice.send("chat", {"text": "after"})
            await next_of(alice, "ack")
            await alice.call("late", "work", item="after", timeout=5)
    assert (received, called) == (["after"], ["after"])


async def test_a_pod_shows_whether_it_is_connected(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice:
        assert alice.connected
    assert not alice.connected


@pytest.mark.rule("P-03")
async def test_messages_missed_while_disconnected_run_their_handlers(
    harness: AnyPod,
) -> None:
    agent = mcpp.Participant("steady")

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        assert not message.replayed
        await message.reply("here")

    async with harness.run(agent), harness.connect("alice") as alice:
        harness.cut("steady")
        await alice.send("chat", {"text": "are you there?"})
        assert (await next_of(alice, "chat")).text == "here"


async def test_a_handler_that_fails_in_a_test_ends_it_at_once(
    harness: AnyPod, caplog: pytest.LogCaptureFixture
) -> None:
    agent = mcpp.Participant("shaky")

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        raise ZeroDivisionError("by zero")

    async def talk() -> None:
        async with harness.run(agent), harness.connect("alice") as alice:
            await alice.send("chat", {"text": "bad"})
            await anext(alice)

    with anyio.fail_after(5), pytest.raises(ZeroDivisionError):
        await talk()
    assert "shaky: answer failed" in caplog.text


async def test_a_handler_may_call_while_others_call_it(harness: AnyPod) -> None:
    first, second = mcpp.Participant("first"), mcpp.Participant("second")

    @first.on("chat")
    async def ask(message: mcpp.Message) -> None:
        result = await message.pod.call("second", "double", text=message.text, timeout=5)
        await message.reply(result.text)

    @first.tool
    async def shout(text: str) -> str:
        return text.upper()

    @second.tool
    async def double(text: str, call: ToolCall) -> str:
        loud = await call.pod.call("first", "shout", text=text, timeout=5)
        return loud.text * 2

    async with harness.run(first), harness.run(second), harness.connect("alice") as alice:
        await alice.send("chat", {"text": "ab"})
        assert (await next_of(alice, "chat")).text == "ABAB"


@pytest.mark.rule("P-10")
async def test_a_failing_gap_hook_leaves_the_agent_working(harness: AnyPod) -> None:
    agent = mcpp.Participant("steady")
    gaps: list[Gap] = []

    @agent.on_gap
    async def mind(gap: Gap) -> None:
        gaps.append(gap)
        raise ZeroDivisionError

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        await message.reply("here")

    async with harness.run(agent), harness.connect("alice") as alice:
        harness.restart()
        while "steady" not in alice.participants:
            await anyio.lowlevel.checkpoint()
        await alice.send("chat", {"text": "still there?"})
        assert (await next_of(alice, "chat")).text == "here"
    assert gaps == [Gap(lost_log=True)]


@pytest.mark.rule("P-10")
@pytest.mark.rule("P-11")
async def test_a_handler_with_a_full_buffer_behind_it_may_send_and_call(
    harness: AnyPod,
) -> None:
    agent = mcpp.Participant("busy", options=Options(buffer_messages=4))

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        total = await message.pod.call("files", "sum", numbers=[int(message.text), 1], timeout=20)
        await message.reply(total.text, kind="sum")

    async with harness.run(toolbox()), harness.run(agent), harness.connect("alice") as alice:
        for number in range(40):
            await alice.send("chat", {"text": str(number)}, wait=False)
        answers = [(await next_of(alice, "sum")).text for _ in range(40)]
        assert answers == [str(number + 1) for number in range(40)]


async def test_a_task_runs_concurrently_with_the_handlers(harness: AnyPod) -> None:
    agent = mcpp.Participant("clock")

    @agent.task
    async def greet(pod: mcpp.Pod) -> None:
        await pod.send("chat", {"text": "I am here"})
        await anyio.sleep_forever()

    async with harness.connect("alice") as alice, harness.run(agent):
        assert (await next_of(alice, "chat")).text == "I am here"


@pytest.mark.rule("P-12")
async def test_a_final_close_code_reaches_an_idle_agent_as_itself(harness: AnyPod) -> None:
    agent = mcpp.Participant("double")

    @agent.on("chat")
    async def receive(message: mcpp.Message) -> None: ...

    async with harness.connect("double", own=True) as pod, anyio.create_task_group() as tasks:

        async def serve() -> None:
            with pytest.raises(ClosedError):
                await agent.serve(pod)
            tasks.cancel_scope.cancel()

        tasks.start_soon(serve)
        with anyio.fail_after(5):
            async with harness.connect("double"):
                await anyio.sleep_forever()


# --- requests ---


async def test_a_tool_is_called_and_its_result_read(harness: AnyPod) -> None:
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        result = await alice.call("files", "read_file", path="notes.md", timeout=5)
        assert result.text == "10 lines of notes.md"
        total = await alice.call("files", "sum", numbers=[1, 2, 3])
        assert total.value == 6
        assert total.structured == {"result": 6}


async def test_a_call_returns_the_type_that_was_asked_for(harness: AnyPod) -> None:
    agent = mcpp.Participant("library")

    @agent.tool
    def borrow(title: str) -> Book:
        return Book(title, 100)

    @agent.tool
    def as_text() -> str:
        return '{"title": "Momo", "pages": 300}'

    async with harness.run(agent), harness.connect("alice") as alice:
        listed = await alice.request("library", "tools/list")
        assert listed["tools"][0]["outputSchema"]["properties"]["pages"] == {"type": "integer"}
        assert "outputSchema" not in listed["tools"][1]
        book = await alice.call("library", "borrow", title="Momo", returns=Book)
        assert book == Book("Momo", 100)
        assert (await alice.call("library", "as_text", returns=Book)).pages == 300
        with pytest.raises(DecodeError, match=r"\$\.result: Expected `int`"):
            await alice.call("library", "borrow", title="Momo", returns=int)


async def test_a_string_is_the_text_of_a_message(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice:
        assert (await alice.send("chat", "hello", to="bob")).payload == {"text": "hello"}
        assert (await alice.send("reflection", "hm")).payload == {"thought": "hm"}
        assert (await alice.send("note", "as it is")).payload == "as it is"


async def test_a_resource_template_takes_its_parameters_from_the_address(harness: AnyPod) -> None:
    agent = mcpp.Participant("files")
    agent.resource("memo://today")(lambda: "exact")
    agent.resource("memo://{day}")(lambda day: f"memo of {day}")
    agent.resource("file://{+path}")(lambda path: f"file {path}")

    async with harness.run(agent), harness.connect("alice") as alice:

        async def read(uri: str) -> str:
            answer = await alice.request("files", "resources/read", {"uri": uri})
            assert answer["contents"][0]["uri"] == uri
            return str(answer["contents"][0]["text"])

        listed = await alice.request("files", "resources/list")
        assert [each["uri"] for each in listed["resources"]] == ["memo://today"]
        listed = await alice.request("files", "resources/templates/list")
        templates = [each["uriTemplate"] for each in listed["resourceTemplates"]]
        assert templates == ["memo://{day}", "file://{+path}"]
        assert await read("memo://today") == "exact"
        assert await read("memo://last%20monday") == "memo of last monday"
        assert await read("file://a/b.txt") == "file a/b.txt"
        with pytest.raises(RemoteError, match="no resource"):
            await read("memo://a/b")


async def test_wrong_arguments_are_reported_before_anything_is_sent(
    harness: AnyPod,
) -> None:
    async with harness.connect("alice") as alice:
        with pytest.raises(TypeError, match=r"by name, as in call\('files', 'sum', text=...\)"):
            await alice.call("files", "sum", 6)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="at least 0, not -1"):
        async with harness.connect("alice", last=-1):
            pass


@pytest.mark.rule("T-03")
async def test_a_transient_tool_s_large_results_are_marked_with_a_summary(
    harness: AnyPod,
) -> None:
    agent = mcpp.Participant("records")

    @agent.tool(transient="activity")
    async def search_records(count: int) -> dict[str, Any]:
        return {"page": 1, "pages": 9, "records": [{"id": 72 + i} for i in range(count)]}

    @agent.tool
    async def store_analysis_memory(finding: str) -> dict[str, Any]:
        return consumed({"content": [{"type": "text", "text": f"Stored: {finding}"}]})

    async with harness.run(agent), harness.connect("alice") as alice:
        large = await alice.call("records", "search_records", count=15)
        assert read_mark(large.to_json()) == Mark(
            transient=True, summary="15 activity records (page 1/9, IDs: 72, 73, 74…)"
        )
        assert large.value["page"] == 1
        small = await alice.call("records", "search_records", count=4)
        assert read_mark(small.to_json()) == Mark()
        stored = await alice.call("records", "store_analysis_memory", finding="three")
        assert stored.text == "Stored: three"
        assert read_mark(stored.to_json()) == Mark(consumed=True)


async def test_tools_are_listed_with_schemas_from_their_hints(harness: AnyPod) -> None:
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        listed = await alice.request("files", "tools/list")
        tools = {tool["name"]: tool for tool in listed["tools"]}
        assert list(tools) == ["read_file", "sum", "count", "hang"]
        assert tools["read_file"]["description"] == "Read a file."
        assert tools["read_file"]["inputSchema"] == {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "lines": {"type": "integer", "minimum": 1, "default": 10},
            },
            "required": ["path"],
            "additionalProperties": False,
        }
        assert "call" not in tools["count"]["inputSchema"]["properties"]


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({}, "$.arguments"),
        ({"path": 3}, "$.arguments.path"),
        ({"path": "x", "lines": 0}, "$.arguments.lines"),
        ({"path": "x", "odd": 1}, "$.arguments"),
    ],
)
@pytest.mark.rule("P-17")
async def test_arguments_that_do_not_fit_are_errors_with_their_path(
    harness: AnyPod, arguments: dict[str, Any], path: str
) -> None:
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        with pytest.raises(RemoteError) as caught:
            await alice.call("files", "read_file", arguments)
        assert caught.value.code == -32602
        assert caught.value.data == {"path": path}
        assert caught.value.participant == "files"


@pytest.mark.rule("P-17")
async def test_a_tool_that_raises_gives_an_error_without_a_traceback(harness: AnyPod) -> None:
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        with pytest.raises(ToolError) as caught:
            await alice.call("files", "read_file", path="missing")
        assert caught.value.result == ToolResult(
            [{"type": "text", "text": "no such file: missing"}], is_error=True
        )


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


@pytest.mark.rule("P-17")
@pytest.mark.parametrize("value", [math.nan, "bad \ud800", 10**100, nested(80), {"x": object()}])
async def test_a_result_that_the_protocol_cannot_carry_is_an_error(
    harness: AnyPod, value: Any
) -> None:
    agent = mcpp.Participant("odd")

    @agent.tool
    async def get() -> Any:
        return value

    @agent.tool
    async def fail() -> Any:
        raise OSError(f"no such file: {value}")

    @agent.method("get")
    async def get_plainly(params: dict[str, Any], call: ToolCall) -> Any:
        return value

    async with harness.run(agent), harness.connect("alice") as alice:
        for tool in ("get", "fail"):
            with pytest.raises(ToolError):
                await alice.call("odd", tool, timeout=5)
        with pytest.raises(RemoteError):
            await alice.request("odd", "get", timeout=5)


async def end_oddly(how: str) -> None:
    if how == "raise":
        raise ZeroDivisionError("by zero")
    if how == "exit":
        raise SystemExit(2)
    if sniffio.current_async_library() == "trio":
        raise RuntimeError("on trio a cancellation never reaches another task")
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


@pytest.mark.rule("P-17")
@pytest.mark.parametrize("how", ["exit", "cancelled"])
async def test_a_tool_that_exits_or_awaits_what_is_cancelled_fails_alone(
    harness: AnyPod, how: str
) -> None:
    agent = toolbox()

    @agent.tool
    async def end() -> None:
        await end_oddly(how)

    @agent.tool
    def leave() -> None:
        sys.exit("bad arguments")

    @agent.method("end")
    async def end_method(params: dict[str, Any], call: ToolCall) -> Any:
        await end_oddly(how)

    async with harness.run(agent), harness.connect("alice") as alice:
        for tool in ("end", "leave"):
            with pytest.raises(ToolError):
                await alice.call("files", tool, timeout=5)
        with pytest.raises(RemoteError, match="internal"):
            await alice.request("files", "end", timeout=5)
        assert (await alice.call("files", "sum", numbers=[1, 2], timeout=5)).value == 3


@pytest.mark.parametrize("how", ["raise", "exit", "cancelled"])
async def test_a_handler_that_raises_exits_or_awaits_what_is_cancelled_fails_alone(
    harness: AnyPod, how: str
) -> None:
    agent = mcpp.Participant("shaky")

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        if message.text == "bad":
            await end_oddly(how)
        await message.reply("fine")

    async with (
        harness.connect("shaky", own=True) as pod,
        harness.connect("alice") as alice,
        background() as tasks,
    ):
        tasks.start_soon(agent.serve, pod)
        await alice.send("chat", {"text": "bad"})
        await alice.send("chat", {"text": "good"})
        assert (await next_of(alice, "chat")).text == "fine"


async def test_an_unknown_tool_or_method_is_an_error(harness: AnyPod) -> None:
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        with pytest.raises(RemoteError, match="no tool 'nothing'"):
            await alice.call("files", "nothing")
        with pytest.raises(RemoteError) as caught:
            await alice.request("files", "no/such")
        assert caught.value.code == -32601
        assert await alice.request("files", "ping") == {}


async def test_progress_reaches_the_caller(harness: AnyPod) -> None:
    received: list[Progress] = []
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        result = await alice.call("files", "count", upto=3, on_progress=received.append)
        assert result.text == "counted for alice"
    assert received == [Progress(n, 3, f"at {n}") for n in (1, 2, 3)]


async def test_a_timeout_error_names_the_called_participant(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("silent"):
        with pytest.raises(NoAnswerError, match="'silent'") as caught:
            await alice.call("silent", "read_file", path="x", timeout=0.01)
        assert caught.value.participant == "silent"
        assert isinstance(caught.value, TimeoutError)


# --- presence ---


@pytest.mark.rule("P-50")
async def test_a_call_to_an_absent_participant_fails_at_once_and_names_who_is_there(
    harness: AnyPod,
) -> None:
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        with anyio.fail_after(5):
            with pytest.raises(mcpp.AbsentError, match="did you mean 'files'") as caught:
                await alice.call("file", "sum", numbers=[])
            assert (caught.value.present, caught.value.nearest) == (("files",), "files")
            with pytest.raises(mcpp.AbsentError, match="present: files"):
                await alice.request("zzz", "ping")
            with pytest.raises(mcpp.AbsentError):
                await alice.propose("zzz", "sum", numbers=[])
        assert not alice._connection._responses


@pytest.mark.rule("P-50")
async def test_a_call_may_wait_for_its_participant_to_join(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, anyio.create_task_group() as tasks:
        results: list[Any] = []

        async def call() -> None:
            result = await alice.call("files", "sum", numbers=[1, 2], wait_for_presence=10)
            results.append(result.value)

        tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(10):
            async with harness.run(toolbox()):
                while not results:
                    await anyio.lowlevel.checkpoint()
        assert results == [3]
        with pytest.raises(mcpp.AbsentError):
            await alice.call("files", "sum", numbers=[], wait_for_presence=0.01)


@pytest.mark.rule("P-50")
async def test_a_caller_learns_that_the_participant_left_while_it_worked(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, anyio.create_task_group() as tasks:
        started, failed = anyio.Event(), anyio.Event()

        async def call() -> None:
            with pytest.raises(mcpp.AbsentError, match="left before it answered"):
                await alice.call("worker", "work", wait_for_presence=5)
            failed.set()

        async with harness.run(waiting("worker", anyio.Event(), started)):
            tasks.start_soon(call)
            with anyio.fail_after(5):
                await started.wait()
        with anyio.fail_after(2):
            await failed.wait()


@pytest.mark.rule("P-50")
async def test_a_participant_whose_line_is_only_cut_still_answers(harness: AnyPod) -> None:
    go_on, started = anyio.Event(), anyio.Event()
    worker = waiting("worker", go_on, started)
    async with harness.run(worker), harness.connect("alice") as alice:
        async with anyio.create_task_group() as tasks:
            results: list[str] = []

            async def call() -> None:
                results.append((await alice.call("worker", "work", timeout=10)).text)

            tasks.start_soon(call)
            with anyio.fail_after(5):
                await started.wait()
                harness.cut("worker")
                for event in ("leave", "join"):
                    message = await next_of(alice, kinds.PRESENCE)
                    while message.payload["event"] != event:
                        message = await next_of(alice, kinds.PRESENCE)
            go_on.set()
        assert results == ["done"]


@pytest.mark.rule("P-50")
async def test_a_proposer_learns_that_the_owner_left_while_it_worked(harness: AnyPod) -> None:
    started = anyio.Event()
    async with harness.connect("boss") as boss, harness.connect("alice") as alice:
        async with harness.run(waiting("worker", anyio.Event(), started)):
            proposal = await alice.propose("worker", "work", wait_for_presence=5)
            await boss.approve(proposal.envelope)
            with anyio.fail_after(5):
                await started.wait()
        with anyio.fail_after(5), pytest.raises(mcpp.AbsentError, match="left before"):
            await proposal.result()


@pytest.mark.rule("P-18")
async def test_a_call_that_is_given_up_is_cancelled_at_the_other_side(harness: AnyPod) -> None:
    given_up = anyio.Event()
    async with harness.run(stalling("worker", given_up)), harness.connect("alice") as alice:
        with anyio.fail_after(5), anyio.CancelScope() as scope:
            await alice.call("worker", "stall", on_progress=lambda progress: scope.cancel())
        assert scope.cancelled_caught
        with anyio.fail_after(5):
            await given_up.wait()


@pytest.mark.rule("P-18")
async def test_cancelling_waits_neither_for_a_connection_nor_for_room(harness: AnyPod) -> None:
    down = Options(unechoed_messages=2, backoff=lambda attempt: 3600.0)

    async def give_up() -> None:
        async with harness.connect("alice", options=down) as alice:

            async def break_and_fill(progress: Progress) -> None:
                harness.cut("alice")
                for _ in range(2):
                    await alice.send("chat", wait=False)

            await alice.call("files", "stall", timeout=0.2, on_progress=break_and_fill)

    async with harness.run(stalling("files", anyio.Event())):
        with anyio.fail_after(5), pytest.raises(NoAnswerError):
            await give_up()


@pytest.mark.rule("P-18")
@pytest.mark.parametrize("error", [ZeroDivisionError, TimeoutError])
async def test_a_failing_progress_callback_cancels_the_call(
    harness: AnyPod, error: type[Exception]
) -> None:
    given_up = anyio.Event()

    def fail(progress: Progress) -> None:
        raise error

    async with harness.run(stalling("files", given_up)), harness.connect("alice") as alice:
        with pytest.raises(error) as caught:
            await alice.call("files", "stall", timeout=5, on_progress=fail)
        assert caught.type is error
        with anyio.fail_after(5):
            await given_up.wait()


UNLIMITED = {"messages_per_second": 0, "context_messages_per_second": 0}


async def test_malformed_progress_and_an_unwrapped_value_are_tolerated(
    harness: AnyPod,
) -> None:
    agent = mcpp.Participant("odd")
    received: list[Progress] = []
    odd: tuple[dict[str, Any], ...] = (
        {"progress": True},
        {"progress": "z"},
        {"progress": 1, "total": "x"},
        {"progress": 1, "message": [1]},
        {"progress": 10**30},
        {"progress": 2, "total": 4, "message": "half", "odd": 1},
    )

    @agent.method("tools/call")
    async def answer(params: dict[str, Any], call: ToolCall) -> Any:
        for facts in odd:
            await call.pod.notify(
                "notifications/progress", facts, to=["alice"], correlation_id=call.envelope.id
            )
        return {"content": [], "structuredContent": [1], "_meta": {"mcpp/wrapped": True}}

    async with harness.run(agent), harness.connect("alice") as alice:
        result = await alice.call("odd", "x", on_progress=received.append, timeout=5)
    assert result.value == [1]
    assert received[-1] == Progress(2, 4, "half")
    assert all(isinstance(each.progress, float) for each in received)


@pytest.mark.parametrize("limits", [UNLIMITED])
@pytest.mark.rule("P-18", "P-43")
async def test_more_calls_than_one_participant_may_make_at_once_leave_the_agent_to_others(
    harness: AnyPod,
) -> None:
    agent = toolbox()
    full, approved = anyio.Event(), anyio.Event()
    outcomes: list[str] = []
    running = 0

    @agent.tool
    async def ask_a_person() -> str:
        nonlocal running
        running += 1
        if running == MAX_REQUESTS // 2:
            full.set()
        await approved.wait()
        return "approved"

    @agent.on("chat")
    async def receive(message: mcpp.Message) -> None:
        approved.set()

    async with harness.run(agent), harness.connect("alice") as alice, harness.connect("bob") as bob:

        async def ask() -> None:
            try:
                outcomes.append((await bob.call("files", "ask_a_person", timeout=20)).text)
            except RemoteError as error:
                outcomes.append(error.message)

        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_REQUESTS):
                tasks.start_soon(ask)
            with anyio.fail_after(10):
                await full.wait()
            with pytest.raises(RemoteError, match="busy"):
                await bob.call("files", "sum", numbers=[], timeout=5)
            assert (await alice.call("files", "sum", numbers=[3], timeout=5)).value == 3
            await alice.send("chat", {"text": "approved"})
        busy = "busy: too many requests at once"
        half = MAX_REQUESTS // 2
        assert sorted(outcomes) == ["approved"] * half + [busy] * half
        assert (await alice.call("files", "sum", numbers=[1, 2], timeout=5)).value == 3


@pytest.mark.parametrize("limits", [UNLIMITED])
async def test_a_backlog_of_the_handlers_delays_no_request(harness: AnyPod) -> None:
    agent = toolbox(Options(buffer_messages=64))
    go = anyio.Event()

    @agent.on("chat")
    async def dawdle(message: mcpp.Message) -> None:
        await go.wait()
        if message.text == "199":
            await message.reply("all read", kind="ack")

    async with harness.run(agent), harness.connect("alice") as alice:
        for number in range(200):
            await alice.send("chat", {"text": str(number)}, wait=False)
        assert (await alice.call("files", "sum", numbers=[1, 2], timeout=5)).value == 3
        go.set()
        await next_of(alice, "ack")


@pytest.mark.rule("P-14")
async def test_a_response_counts_only_from_the_called_participant(harness: AnyPod) -> None:
    async with (
        harness.connect("owner") as owner,
        harness.connect("mallory") as mallory,
        harness.connect("alice") as alice,
        anyio.create_task_group() as tasks,
    ):
        results: list[Any] = []

        async def ask() -> None:
            results.append(await alice.request("owner", "ping", timeout=5))

        tasks.start_soon(ask)
        request = await next_of(owner, "mcp/request:ping")
        for liar, result in ((mallory, "false"), (owner, "true")):
            await liar.send(
                "mcp/response:ping",
                {"jsonrpc": "2.0", "id": request.id, "result": result},
                to=["alice"],
                correlation_id=request.id,
            )
    assert results == ["true"]


@pytest.mark.rule("P-15")
async def test_a_request_whose_kind_and_payload_disagree_is_refused(harness: AnyPod) -> None:
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        for kind, params in (
            ("mcp/request:tools/list", {"name": "read_file", "arguments": {"path": "x"}}),
            ("mcp/request:tools/call:count", {"name": "read_file", "arguments": {"path": "x"}}),
            ("mcp/request:tools/call", {"name": "read_file", "arguments": {"path": "x"}}),
        ):
            envelope = mcpp.new_envelope(
                kind, sender="alice", to=["files"], id=(id := f"odd-{kind[-5:].replace('/', '-')}")
            )
            payload = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
            envelope = mcpp.new_envelope(kind, payload, sender="alice", to=["files"], id=id)
            await alice._connection.send(envelope)
            answer = await next_of(alice, kind.replace("request", "response"))
            assert answer.payload["error"]["code"] == -32600


@pytest.mark.rule("P-16")
async def test_a_request_to_several_participants_is_not_served(harness: AnyPod) -> None:
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        await alice.send(
            "mcp/request:ping",
            {"jsonrpc": "2.0", "id": "x", "method": "ping"},
            to=["files", "other"],
        )
        await alice.call("files", "sum", numbers=[])
        seen = await next_of(alice, "mcp/response:ping", "mcp/response:tools/call:sum")
        assert seen.kind == "mcp/response:tools/call:sum"


@pytest.mark.rule("P-19")
async def test_a_call_in_a_context_is_answered_inside_it(harness: AnyPod) -> None:
    async with harness.run(toolbox()), harness.connect("alice") as alice:
        async with alice.context("workflow") as work:
            await work.call("files", "sum", numbers=[1])
        answer = await next_of(alice, "mcp/response:tools/call:sum")
        assert answer.context is not None
        assert answer.context.id == work.id


async def test_a_call_survives_a_cut_on_either_side(harness: AnyPod) -> None:
    started, go = anyio.Event(), anyio.Event()
    worker = waiting("worker", go, started)
    async with harness.run(worker), harness.connect("alice") as alice:
        results: list[str] = []

        async def ask() -> None:
            results.append((await alice.call("worker", "work", timeout=10)).text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(5):
                await started.wait()
            harness.cut("worker")
            harness.cut("alice")
            go.set()
    assert results == ["done"]


async def test_resources_and_prompts_are_served(harness: AnyPod) -> None:
    agent = mcpp.Participant("library")

    @agent.resource("memo://today", name="today")
    def today() -> str:
        """What is on today."""
        return "tea at five"

    @agent.resource("memo://logo", mime_type="image/png")
    async def logo() -> bytes:
        return b"\x89PNG"

    @agent.prompt
    def review(topic: str, tone: str = "kind") -> str:
        """Ask for a review."""
        return f"Review {topic}, be {tone}."

    async with harness.run(agent), harness.connect("alice") as alice:
        listed = await alice.request("library", "resources/list")
        assert [resource["uri"] for resource in listed["resources"]] == [
            "memo://today",
            "memo://logo",
        ]
        read = await alice.request("library", "resources/read", {"uri": "memo://today"})
        assert read["contents"][0]["text"] == "tea at five"
        read = await alice.request("library", "resources/read", {"uri": "memo://logo"})
        assert read["contents"][0]["blob"] == "iVBORw=="
        for uri in ("memo://none", ["memo://today"]):
            with pytest.raises(RemoteError, match="no resource"):
                await alice.request("library", "resources/read", {"uri": uri})
        prompts = await alice.request("library", "prompts/list")
        assert prompts["prompts"][0]["arguments"] == [
            {"name": "topic", "required": True},
            {"name": "tone", "required": False},
        ]
        got = await alice.request(
            "library", "prompts/get", {"name": "review", "arguments": {"topic": "it"}}
        )
        assert got["messages"][0]["content"]["text"] == "Review it, be kind."


@pytest.mark.parametrize("limits", [{"max_message_bytes": 4096}])
async def test_an_answer_that_is_too_large_is_an_error(harness: AnyPod) -> None:
    agent = mcpp.Participant("big")

    @agent.tool
    async def fill(size: int) -> str:
        return "x" * size

    async with harness.run(agent), harness.connect("alice") as alice:
        with pytest.raises(RemoteError, match="too large"):
            await alice.call("big", "fill", size=5000, timeout=5)


# --- contexts ---


@pytest.mark.rule("P-22")
async def test_contexts_nest_and_conclude(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        async with alice.context("reasoning", trigger="question") as thinking:
            await thinking.send("reflection", {"thought": "is it safe?"})
            async with thinking.child("reasoning") as deeper:
                await deeper.send("reflection", {"thought": "what if not?"})
            await thinking.conclude({"decision": "deny"}, confidence=0.95)
        seen = [await next_of(bob, "reflection", "conclusion") for _ in range(3)]
        first, nested, last = (message.context for message in seen)
        assert first is not None
        assert nested is not None
        assert last is not None
        assert first.metadata.keys() == {"trigger", "started_at"}
        assert (nested.parent, nested.type) == (thinking.id, "reasoning")
        assert last.metadata["confidence"] == 0.95
        assert "ended_at" in last.metadata
        assert seen[2].payload == {"decision": "deny"}


async def test_everything_sent_by_a_context_scope_is_in_the_context(harness: AnyPod) -> None:
    received: list[Progress] = []
    async with (
        harness.run(toolbox()),
        harness.connect("watcher") as watcher,
        harness.connect("alice") as alice,
    ):
        async with alice.context("task", goal="count") as task:
            await task.call("files", "count", upto=1, timeout=5, on_progress=received.append)
            await task.request("files", "tools/list")
            await task.notify("notifications/message")
            proposal = await task.propose("files", "sum", numbers=[1])
            await proposal.withdraw()
            await task.conclude("counted")
        seen: list[mcpp.Message] = []
        while not seen or seen[-1].kind != "conclusion":
            seen.append(await anext(watcher))
    contexts = [message.context for message in seen if message.sender == "alice"]
    assert len(received) == 1
    assert [context and context.id for context in contexts] == [task.id] * 6
    metadata = [sorted(context.metadata) for context in contexts if context is not None]
    assert metadata == [["goal", "started_at"], [], [], [], [], ["ended_at"]]


# --- proposals ---


RULES: Sequence[dict[str, Any]] = (
    {"kind": "chat"},
    {"kind": "mcp/proposal:*"},
    {"kind": "mcp/withdraw"},
)


@pytest.mark.rule("P-20")
async def test_a_proposal_is_fulfilled_and_its_answer_reaches_the_proposer(
    harness: AnyPod,
) -> None:
    harness.add("intern", RULES)
    approver = mcpp.Participant("boss")

    @approver.policy
    async def decide(message: mcpp.Message) -> bool | str | None:
        return True if message.payload["params"]["arguments"]["path"] == "ok" else "not that one"

    async with harness.run(toolbox()), harness.run(approver), harness.connect("intern") as intern:
        with pytest.raises(mcpp.Refused):
            await intern.call("files", "read_file", path="ok")
        proposal = await intern.propose("files", "read_file", path="ok")
        result = await proposal.result(timeout=5)
        assert result.text == "10 lines of ok"
        assert proposal.fulfilled_by == "boss"


@pytest.mark.rule("P-21")
async def test_a_rejection_is_an_opinion_and_a_later_answer_still_counts(
    harness: AnyPod,
) -> None:
    harness.add("intern", RULES)
    async with (
        harness.run(toolbox()),
        harness.connect("sceptic") as sceptic,
        harness.connect("boss") as boss,
        harness.connect("intern") as intern,
    ):
        proposal = await intern.propose("files", "read_file", path="x")
        await sceptic.reject(await next_of(sceptic, "mcp/proposal:tools/call:read_file"), "risky")
        await next_of(intern, kinds.REJECT)  # no task needs to wait with `result`
        assert [(who, why.reason) for who, why in proposal.rejections] == [("sceptic", "risky")]
        with pytest.raises(NoAnswerError):
            await proposal.result(timeout=0.05)
        with pytest.raises(CallError, match="rejected by @sceptic: risky"):
            await proposal.result(timeout=5, until_rejected=True)
        await boss.fulfil(await next_of(boss, "mcp/proposal:tools/call:read_file"))
        assert (await proposal.result(timeout=5)).text == "10 lines of x"


async def test_who_fulfilled_a_proposal_is_known_after_any_amount_of_progress(
    harness: AnyPod,
) -> None:
    async with proposing(harness, "boss") as (boss, intern):
        proposal = await intern.propose("files", "count", upto=100)
        await boss.fulfil(await next_of(boss, "mcp/proposal:tools/call:count"))
        await next_of(intern, "mcp/response:tools/call:count")
        assert proposal.fulfilled_by == "boss"
        assert (await proposal.result(timeout=5)).text == "counted for boss"
        assert proposal.fulfilled_by == "boss"


@pytest.mark.parametrize("withdrawn", [False, True])
async def test_several_tasks_may_wait_for_a_proposal(harness: AnyPod, withdrawn: bool) -> None:
    outcomes: list[str] = []
    async with proposing(harness, "boss") as (boss, intern):
        proposal = await intern.propose("files", "sum", numbers=[1, 2])

        async def wait() -> None:
            try:
                outcomes.append((await proposal.result(timeout=5)).text)
            except CallError as error:
                outcomes.append(error.problem)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            await (proposal.withdraw() if withdrawn else boss.fulfil(proposal.envelope))
    assert outcomes == ["the proposal was withdrawn" if withdrawn else "3"] * 2


async def test_what_is_kept_of_proposals_is_bounded(harness: AnyPod) -> None:
    async with (
        harness.connect("files"),
        harness.connect("mallory") as mallory,
        harness.connect("intern") as intern,
    ):
        connection = intern._connection
        proposal = await intern.propose("files", "sum", numbers=[1, 2])
        for number in range(20):
            await mallory.reject(proposal.envelope, f"no {number}")
        with pytest.raises(NoAnswerError):
            await proposal.result(timeout=0.05)
        assert [(who, why.reason) for who, why in proposal.rejections] == [("mallory", "no 19")]
        await proposal.withdraw()
        assert not connection._responses
        await intern.propose("files", "sum", numbers=[1, 2])  # without waiting for its result
        gc.collect()
        assert not connection._responses
        assert not connection.session._correlations


@pytest.mark.parametrize("limits", [UNLIMITED])
@pytest.mark.rule("P-43")
async def test_a_flood_of_proposals_leaves_room_for_those_of_others(harness: AnyPod) -> None:
    approver = toolbox()
    deciding = 0
    full, heard = anyio.Event(), anyio.Event()

    @approver.policy
    async def decide(message: mcpp.Message) -> None:
        nonlocal deciding
        deciding += 1
        if deciding == MAX_CONCURRENT // 2:
            full.set()
        if message.sender == "mallory":
            await anyio.sleep_forever()
        heard.set()

    payload = {"method": "tools/call", "params": {"name": "x"}}
    async with harness.run(approver), harness.connect("mallory") as mallory:
        for _ in range(MAX_CONCURRENT + 50):
            await mallory.send("mcp/proposal:tools/call:x", payload, to=["other"], wait=False)
        with anyio.fail_after(10):
            await full.wait()
        await mallory.call("files", "sum", numbers=[], timeout=5)
        assert deciding == MAX_CONCURRENT // 2
        async with harness.connect("alice") as alice:
            await alice.send("mcp/proposal:tools/call:x", payload, to=["other"])
            with anyio.fail_after(10):
                await heard.wait()


@pytest.mark.rule("P-20")
@pytest.mark.parametrize("gives_up", ["timed out", "cancelled"])
async def test_cancelling_a_fulfilment_ends_it_for_the_proposer(
    harness: AnyPod, gives_up: str
) -> None:
    async with (
        harness.run(toolbox()),
        harness.connect("mallory") as mallory,
        harness.connect("boss") as boss,
        harness.connect("intern") as intern,
    ):
        proposal = await intern.propose("files", "hang")

        async def fulfil(scope: anyio.CancelScope) -> None:
            with scope, suppress(NoAnswerError):
                timeout = 0.05 if gives_up == "timed out" else 60
                await boss.fulfil(proposal.envelope, timeout=timeout)

        scope = anyio.CancelScope()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fulfil, scope)
            request = await next_of(intern, "mcp/request:tools/call:hang")
            assert proposal.fulfilled_by == "boss"
            if gives_up == "cancelled":
                params = {"requestId": request.id, "reason": "not mine"}
                await mallory.notify(
                    "notifications/cancelled", params, to=["files"], correlation_id=request.id
                )
                await next_of(intern, "mcp/notification:notifications/cancelled")
                assert intern._connection.is_pending(proposal.id)
                scope.cancel()
            for _ in range(2):
                with pytest.raises(CallError, match=f"@boss, which then cancelled it: {gives_up}"):
                    await proposal.result(timeout=5)
        assert not intern._connection._responses
        assert not intern._connection.session._correlations


async def test_an_approved_call_continues_after_its_approver_has_left(harness: AnyPod) -> None:
    done = anyio.Event()
    async with harness.run(waiting("files", done)), harness.connect("intern") as intern:
        proposal = await intern.propose("files", "work")
        async with harness.connect("boss") as boss:
            request = await boss.approve(proposal.envelope)
        assert request.correlation_id == proposal.id
        done.set()
        assert (await proposal.result(timeout=5)).text == "done"
        assert proposal.fulfilled_by == "boss"


@pytest.mark.parametrize("limits", [UNLIMITED])
async def test_calls_that_never_end_do_not_block_a_policy(harness: AnyPod) -> None:
    approver = mcpp.Participant("boss")

    @approver.policy
    async def decide(message: mcpp.Message) -> bool | str:
        return True if message.kind.endswith(":hang") else "not that one"

    async with harness.run(toolbox()), harness.run(approver), harness.connect("intern") as intern:
        params = {"name": "hang", "arguments": {}}
        payload = {"method": "tools/call", "params": params}
        for _ in range(MAX_CONCURRENT + 4):
            await intern.send("mcp/proposal:tools/call:hang", payload, to=["files"], wait=False)
        other = await intern.propose("files", "sum", numbers=[1, 2])
        with pytest.raises(CallError, match="rejected by @boss: not that one"):
            await other.result(timeout=10, until_rejected=True)


@pytest.mark.parametrize("limits", [UNLIMITED])
async def test_a_proposal_beyond_the_concurrency_limit_is_decided_later(
    harness: AnyPod,
) -> None:
    approver = mcpp.Participant("boss")
    go_on = anyio.Event()

    @approver.policy
    async def decide(message: mcpp.Message) -> str:
        await go_on.wait()
        return "no"

    async with (
        harness.run(approver),
        harness.connect("other"),
        harness.connect("intern") as intern,
    ):
        payload = {"method": "tools/call", "params": {"name": "x"}}
        for _ in range(MAX_CONCURRENT):
            await intern.send("mcp/proposal:tools/call:x", payload, to=["other"], wait=False)
        last = await intern.propose("other", "x")
        await intern.request("boss", "ping")
        go_on.set()
        with pytest.raises(CallError, match="rejected by @boss: no"):
            await last.result(timeout=10, until_rejected=True)


@pytest.mark.rule("P-21")
async def test_a_malformed_rejection_is_ignored(harness: AnyPod) -> None:
    async with proposing(harness, "mallory") as (mallory, intern):
        proposal = await intern.propose("files", "sum", numbers=[1, 2])
        for payload in ([1, 2], None, {"reason": 3}):
            await mallory.send(kinds.REJECT, payload, to=["intern"], correlation_id=proposal.id)
        await mallory.fulfil(proposal.envelope)
        assert (await proposal.result(timeout=5)).value == 3
        assert proposal.rejections == []


@pytest.mark.rule("P-20")
async def test_only_the_first_fulfilment_counts(harness: AnyPod) -> None:
    async with proposing(harness, "boss") as (boss, intern):
        await intern.propose("files", "read_file", path="x")
        proposal = await next_of(boss, "mcp/proposal:tools/call:read_file")
        await boss.fulfil(proposal)
        with pytest.raises(RemoteError, match="already_fulfilled"):
            await boss.fulfil(proposal)


@pytest.mark.rule("P-21")
async def test_a_withdrawn_proposal_is_not_fulfilled(harness: AnyPod) -> None:
    async with proposing(harness, "boss") as (boss, intern):
        mine = await intern.propose("files", "read_file", path="x")
        proposal = await next_of(boss, "mcp/proposal:tools/call:read_file")
        await boss.send(kinds.WITHDRAW, {}, to=["files"], correlation_id=mine.id)  # not theirs
        await mine.withdraw("changed my mind")
        with pytest.raises(RemoteError, match="withdrawn"):
            await boss.fulfil(proposal)
        for _ in range(2):
            with pytest.raises(CallError, match="withdrawn"):
                await mine.result(timeout=5)


@pytest.mark.rule("P-21")
async def test_a_withdrawal_that_comes_too_late_changes_nothing(harness: AnyPod) -> None:
    async with proposing(harness, "boss") as (boss, intern):
        mine = await intern.propose("files", "read_file", path="x")
        await boss.fulfil(await next_of(boss, "mcp/proposal:tools/call:read_file"))
        await mine.withdraw()
        assert (await mine.result(timeout=5)).text == "10 lines of x"


async def test_a_policy_decides_on_proposals_concurrently(harness: AnyPod) -> None:
    approver = mcpp.Participant("boss")

    @approver.policy
    async def decide(message: mcpp.Message) -> bool:
        return True

    async with harness.run(toolbox()), harness.run(approver), harness.connect("intern") as intern:
        await intern.propose("files", "hang")
        quick = await intern.propose("files", "sum", numbers=[1, 2])
        assert (await quick.result(timeout=5)).value == 3


@pytest.mark.rule("P-20")
async def test_a_request_for_something_else_does_not_use_up_a_proposal(harness: AnyPod) -> None:
    async with proposing(harness, "mallory") as (mallory, intern):
        proposal = await intern.propose("files", "read_file", path="x")
        await next_of(mallory, "mcp/proposal:tools/call:read_file")
        other = {"name": "read_file", "arguments": {"path": "y"}}
        with pytest.raises(RemoteError, match="differs from the proposal"):
            await mallory.request("files", "tools/call", other, correlation_id=proposal.id)
        await intern.fulfil(proposal.envelope)
        assert (await proposal.result(timeout=5)).text == "10 lines of x"


@pytest.mark.rule("P-19")
async def test_replies_to_a_request_or_a_proposal_are_in_its_context(
    harness: AnyPod,
) -> None:
    agent = mcpp.Participant("files")

    @agent.tool
    async def read(call: ToolCall) -> None:
        await call.progress(1)
        await anyio.sleep_forever()

    async with (
        harness.run(agent),
        harness.connect("watcher") as watcher,
        harness.connect("alice") as alice,
        harness.connect("bob") as bob,
    ):
        context = mcpp.new_context("task", id="t1")
        with anyio.CancelScope() as scope:
            await alice.call(
                "files", "read", context=context, on_progress=lambda progress: scope.cancel()
            )
        proposal = await alice.propose("files", "read", context=context)
        await bob.reject(proposal.envelope, "no")
        await proposal.withdraw()
        seen = []
        with anyio.fail_after(10):
            async for message in watcher:
                if message.kind != "system/presence":
                    seen.append((message.kind, message.context and message.context.id))
                if message.kind == "mcp/withdraw":
                    break
        assert {context for _, context in seen} == {"t1"}
        assert {kind.partition(":")[0] for kind, _ in seen} == {
            "mcp/request", "mcp/notification", "mcp/proposal", "mcp/reject", "mcp/withdraw"
        }  # fmt: skip


@pytest.mark.rule("P-15")
async def test_an_inconsistent_proposal_is_not_decided(
    harness: AnyPod,
) -> None:
    approver = mcpp.Participant("boss")
    decided: list[str] = []

    @approver.policy
    async def decide(message: mcpp.Message) -> bool:
        decided.append(message.payload["params"]["name"])
        return True

    async with (
        harness.run(toolbox()),
        harness.run(approver),
        harness.connect("intern") as intern,
        harness.connect("clerk") as clerk,
    ):
        for kind, to in (
            ("mcp/proposal:tools/call:sum", ["files"]),
            ("mcp/proposal:tools/list", ["files"]),
            ("mcp/proposal:tools/call:read_file", None),
        ):
            payload = {"method": "tools/call", "params": {"name": "read_file", "arguments": {}}}
            await intern.send(kind, payload, to=to)
            with pytest.raises(DecodeError):
                await clerk.fulfil(await next_of(clerk, kind))
        honest = await intern.propose("files", "sum", numbers=[1, 2])
        assert (await honest.result(timeout=5)).value == 3
    assert decided == ["sum"]


@pytest.mark.rule("P-20", "P-64")
async def test_a_request_with_a_json_rpc_id_of_its_own_fulfils_a_proposal(harness: AnyPod) -> None:
    async with proposing(harness, "mallory") as (mallory, intern):
        proposal = await intern.propose("files", "sum", numbers=[1, 2])
        params = {"name": "sum", "arguments": {"numbers": [1, 2]}}
        await mallory.send(
            "mcp/request:tools/call:sum",
            {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params},
            to=["files"],
            correlation_id=proposal.id,
        )
        assert (await proposal.result(timeout=5)).value == 3
        with pytest.raises(RemoteError, match="already_fulfilled"):
            await mallory.fulfil(proposal.envelope, timeout=5)
