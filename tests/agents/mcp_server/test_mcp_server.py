"""`mcpp mcp`, used by the official MCP client, over stdio and in memory."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest
from anyio.abc import TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client, MCPError, StdioServerParameters
from mcp.shared.subscriptions import ResourceUpdated
from mcp_types import (
    EmptyResult,
    LoggingMessageNotificationParams,
    PromptReference,
    Request,
    ResourceUpdatedNotification,
)

import mcpp
from mcpp import Participant
from mcpp.agent.tools import ToolCall
from mcpp.client.tasks import background
from mcpp.protocol.rpc import ToolResult
from mcpp.testing import MemoryPod
from mcpp.transient import Hint, read_hints, with_context_hints
from mcpp_agents.mcp_server.server import PodServer
from mcpp_agents.mcp_server.shared_pod import SharedPod
from mcpp_agents.toolbox import Toolbox
from tests.agents.processes import BOUND, MCPP, Commands
from tests.interaction.agents import stalling, waiting
from tests.interaction.conftest import SocketPod

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
Mode = Literal["auto", "legacy"]


@asynccontextmanager
async def client_of(
    commands: Commands, name: str = "ide", mode: Mode = "auto", **options: Any
) -> AsyncIterator[Client]:
    """Start `mcpp mcp` as an MCP client does, and yield the connected client."""
    parameters = StdioServerParameters(command=MCPP, args=["mcp"], env=commands.environ(name))
    with anyio.fail_after(2 * BOUND):
        async with Client(parameters, mode=mode, cache=None, **options) as client:
            yield client


def calculator() -> Participant:
    agent = Participant("calc")

    @agent.tool
    async def add(a: int, b: int, call: ToolCall) -> int:
        """Add two numbers."""
        await call.progress(1, 2, "adding")
        return a + b

    @agent.tool
    def broken() -> None:
        raise ValueError("the pencil broke")

    return agent


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_all_participants_tools_are_listed_and_called_under_stable_names(
    sockets: SocketPod, commands: Commands, mode: Mode
) -> None:
    async with sockets.run(calculator()), client_of(commands, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"pod_send", "pod_read", "pod_participants", "pod_contexts", "pod_propose"} < set(
            tools
        )
        assert tools["calc__add"].description == "Add two numbers. (tool add of calc)"
        assert tools["calc__add"].input_schema["required"] == ["a", "b"]
        received: list[tuple[float, float | None, str | None]] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            received.append((progress, total, message))

        result = await client.call_tool(
            "calc__add", {"a": 2, "b": 3}, progress_callback=on_progress
        )
        assert result.structured_content == {"result": 5}
        assert received == [(1, 2, "adding")]
        failed = await client.call_tool("calc__broken")
        assert failed.is_error
        with pytest.raises(MCPError, match="a"):
            await client.call_tool("calc__add", {"a": "two", "b": 3})
        with pytest.raises(MCPError, match="no participant in the pod offers"):
            await client.call_tool("calc__subtract")


async def test_the_client_sends_and_reads(sockets: SocketPod, commands: Commands) -> None:
    async with sockets.connect("alice") as alice:
        await alice.send("chat", {"text": "who is there?"})
        async with alice.context("reasoning", id="think") as thinking:
            await thinking.send("reflection", {"thought": "a long thought " * 50})
            await thinking.conclude("no answer")
        async with client_of(commands) as client:
            await client.call_tool("pod_send", {"text": "me", "to": ["alice"]})
            answer = await anext(message async for message in alice if message.kind == "chat")
            assert (answer.sender, answer.text, answer.to) == ("ide", "me", ("alice",))
            text = _text(await client.call_tool("pod_read"))
            assert "who is there?" in text
            assert "a long thought" not in text  # folded to its conclusion
            assert "no answer" in text
            assert "You are @" not in text
            handle = text.partition("[folded; handle ")[2].partition("]")[0]
            expanded = _text(await client.call_tool("pod_expand", {"handle": handle}))
            assert "a long thought" in expanded
            unfolded = {"filter": "context:think", "fold": False}
            full = _text(await client.call_tool("pod_read", unfolded))
            assert "a long thought" in full
            assert "who is there?" not in full
            outline = _text(await client.call_tool("pod_contexts"))
            assert "reasoning think by alice: 2 messages, concluded: no answer" in outline
            nothing = await client.call_tool("pod_read", {"filter": "from:carol"})
            assert _text(nothing) == "Nothing was said that passes the filter."
            wrong = await client.call_tool("pod_read", {"filter": "mian"})
            assert wrong.is_error


@asynccontextmanager
async def served(
    pod: MemoryPod,
    mode: Mode = "auto",
    participant: str | None = None,
    agent: str | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """Serve a pod in memory to a client, as the participant `ide`."""
    async with pod.connect("ide", own=True) as ide, background() as tasks:
        shared = SharedPod(ide, agent)
        server = PodServer(shared, participant)
        tasks.start_soon(shared.listen)
        tasks.start_soon(server.announce_changes)
        with anyio.fail_after(BOUND):
            async with Client(server.server, mode=mode, cache=None, **options) as client:
                yield client


async def test_an_agent_s_calls_belong_to_its_only_open_reasoning_context(
    pod: MemoryPod,
) -> None:
    async with (
        pod.run(calculator()),
        pod.connect("coder") as coder,
        pod.connect("alice") as alice,
        served(pod, agent="coder") as client,
    ):

        async def outline_has(text: str) -> None:
            while text not in _text(await client.call_tool("pod_contexts")):
                pass

        async def place_of_a_call() -> str | None:
            await client.call_tool("calc__add", {"a": 1, "b": 2})
            sent = await alice.history(mcpp.filters.kind("mcp/request:tools/call:*")).all()
            return None if sent[-1].context is None else sent[-1].context.id

        async with alice.context("reasoning", id="other") as other:
            await other.send("reflection", {"thought": "of another"})
            async with coder.context("reasoning", id="one") as one:
                await one.send("reflection", {"thought": "of one"})
                await outline_has("one")
                assert await place_of_a_call() == "one"
                async with coder.context("reasoning", id="two") as two:
                    await two.send("reflection", {"thought": "of two"})
                    await outline_has("two")
                    assert await place_of_a_call() is None  # which of them is not known
                    await two.conclude("twice done")
                    await outline_has("twice done")
                    assert await place_of_a_call() == "one"
                await one.conclude("once done")
                await outline_has("once done")
            assert await place_of_a_call() is None


async def request(client: Client, method: str, **params: str) -> None:
    """Make a request of an older revision, for which the client has no method any more."""
    wanted = Request[dict[str, str], str](method=method, params=params)
    await client.session.send_request(wanted, EmptyResult)


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        ("pod_send", {"text": 5}, "$.arguments.text"),
        ("pod_read", {"max_tokens": 1}, "$.arguments.max_tokens"),
        ("pod_propose", {"participant": "calc"}, "tool"),
        ("pod_ask", {"participant": "nobody", "question": "?"}, "not in the pod"),
    ],
)
async def test_a_mistake_in_the_arguments_of_a_pod_tool_is_an_error_result(
    pod: MemoryPod, tool: str, arguments: dict[str, Any], reason: str
) -> None:
    async with served(pod) as client:
        failed = await client.call_tool(tool, arguments)
        assert failed.is_error
        assert reason in _text(failed)


async def test_other_participants_get_an_empty_list_of_tools_at_once(pod: MemoryPod) -> None:
    async with served(pod), pod.connect("alice") as alice:
        assert await alice.request("ide", "tools/list") == {"tools": []}
        assert await Toolbox(alice, grace_seconds=3600).list_tools() == {}


@pytest.mark.parametrize("name", ["n" * 128, "tell me a story", "100 % ünïcode"])
async def test_long_names_and_names_with_spaces_are_callable(pod: MemoryPod, name: str) -> None:
    library = Participant("library")

    @library.tool(name=name)
    async def find() -> str:
        return "found"

    @library.method("prompts/list")
    async def list_prompts(params: dict[str, Any], call: ToolCall) -> Any:
        return {"prompts": [{"name": name}]}

    @library.method("prompts/get")
    async def get_prompt(params: dict[str, Any], call: ToolCall) -> Any:
        assert params["name"] == name
        return {"messages": [{"role": "user", "content": {"type": "text", "text": "told"}}]}

    async with pod.run(library), served(pod) as client:
        [tool] = [t.name for t in (await client.list_tools()).tools if "__" in t.name]
        assert _text(await client.call_tool(tool)) == "found"
        [prompt] = (await client.list_prompts()).prompts
        assert "told" in (await client.get_prompt(prompt.name)).model_dump_json()
    async with pod.run(library), served(pod, participant="library") as client:
        assert _text(await client.call_tool(name)) == "found"
        assert "told" in (await client.get_prompt(name)).model_dump_json()


async def test_hints_name_tools_as_they_are_listed(pod: MemoryPod) -> None:
    records = Participant("records")

    @records.tool
    async def get_workflow() -> ToolResult:
        hints = [Hint("search_records", "store_finding", 2)]
        return ToolResult.from_json(with_context_hints({"content": []}, hints))

    async with pod.run(records), served(pod) as client:
        result = await client.call_tool("records__get_workflow")
        [hint] = read_hints(result)
        assert (hint.tool, hint.consumed_by, hint.step) == (
            "records__search_records",
            "records__store_finding",
            2,
        )
        assert result.meta is not None
        assert result.meta["contextHints"] == result.meta["mcpp/contextHints"]


async def test_a_participant_is_asked_and_its_reply_returned(pod: MemoryPod) -> None:
    sage = Participant("sage")

    @sage.on("chat")
    async def answer(message: mcpp.Message) -> None:
        await message.reply(f"{message.text} 42.")

    async with pod.run(sage), served(pod) as client:
        asked = {"participant": "sage", "question": "What is the answer?"}
        assert _text(await client.call_tool("pod_ask", asked)) == "What is the answer? 42."
        async with pod.connect("mute"):
            late = {"participant": "mute", "question": "?", "wait_seconds": 1}
            assert "no answer within 1 s" in _text(await client.call_tool("pod_ask", late))


def shelf() -> Participant:
    agent = Participant("shelf")

    @agent.resource("book://1", name="first")
    async def first() -> str:
        return "one"

    @agent.resource("book://{number}/page")
    async def page(number: str) -> str:
        return f"page of {number}"

    @agent.method("resources/subscribe")
    async def subscribe(params: dict[str, Any], call: ToolCall) -> Any:
        call.pod.start_soon(
            call.pod.notify, "notifications/resources/updated", {"uri": params["uri"]}
        )
        return {}

    @agent.method("completion/complete")
    async def complete(params: dict[str, Any], call: ToolCall) -> Any:
        return {"completion": {"values": [params["argument"]["value"] + "…"]}}

    @agent.prompt
    def summarise(topic: str) -> str:
        """Summarise a topic."""
        return f"Summarise {topic}."

    return agent


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_resources_prompts_and_completions_of_participants_are_served(
    pod: MemoryPod, mode: Mode
) -> None:
    async with pod.run(shelf()), served(pod, mode) as client:
        assert [r.uri for r in (await client.list_resources()).resources] == ["book://1"]
        [template] = (await client.list_resource_templates()).resource_templates
        assert template.uri_template == "book://{number}/page"
        assert "one" in (await client.read_resource("book://1")).model_dump_json()
        read = await client.read_resource("book://7/page")
        assert "page of 7" in read.model_dump_json()
        with pytest.raises(MCPError, match="no participant offers it"):
            await client.read_resource("book:2")
        [prompt] = (await client.list_prompts()).prompts
        assert prompt.name == "shelf__summarise"
        got = await client.get_prompt("shelf__summarise", {"topic": "bees"})
        assert "Summarise bees." in got.model_dump_json()
        reference = PromptReference(name="shelf__summarise")
        completed = await client.complete(reference, {"name": "topic", "value": "be"})
        assert completed.completion.values == ["be…"]


async def test_a_subscriber_hears_of_updates_in_both_eras(pod: MemoryPod) -> None:
    received = anyio.Event()

    async def receive(message: object) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            assert str(message.params.uri) == "book://1"
            received.set()

    async with pod.run(shelf()):
        async with served(pod, "legacy", message_handler=receive) as client:
            await request(client, "resources/subscribe", uri="book://1")
            await received.wait()
        async with (
            served(pod) as client,
            client.listen(resource_subscriptions=["book://1"]) as changes,
        ):
            assert await anext(aiter(changes)) == ResourceUpdated("book://1")


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_log_messages_of_a_call_reach_the_client_that_made_it(
    pod: MemoryPod, mode: Mode
) -> None:
    noisy = Participant("noisy")

    @noisy.tool
    async def work(call: ToolCall) -> str:
        for level in ("debug", "warning"):
            await call.pod.notify(
                "notifications/message",
                {"level": level, "data": f"{level}!"},
                to=[call.sender],
                correlation_id=call.envelope.id,
            )
        return "done"

    heard: list[Any] = []

    async def log(params: LoggingMessageNotificationParams) -> None:
        heard.append(params.data)

    wanted: dict[str, Any] = {"log_level": "info"} if mode == "auto" else {}
    async with pod.run(noisy), served(pod, mode, logging_callback=log, **wanted) as client:
        if mode == "legacy":
            level = Request[dict[str, str], str](
                method="logging/setLevel", params={"level": "info"}
            )
            await client.session.send_request(level, EmptyResult)
        assert _text(await client.call_tool("noisy__work")) == "done"
    assert heard == ["warning!"]


async def test_a_long_line_of_a_client_is_refused_and_the_next_is_answered(
    commands: Commands,
) -> None:
    command = [MCPP, "mcp"]
    async with await anyio.open_process(command, env=commands.environ("ide")) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        output = BufferedByteReceiveStream(process.stdout)
        long = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x" * 40_000_000}}
        with anyio.fail_after(2 * BOUND):
            await process.stdin.send(json.dumps(long).encode() + b"\n")
            await process.stdin.send(b'{"jsonrpc": "2.0", "id": 2, "method": "ping"}\n')
            answers = [json.loads(await output.receive_until(b"\n", 1 << 20)) for _ in range(2)]
            await process.stdin.aclose()
    assert {answer["id"]: "error" in answer for answer in answers} == {1: True, 2: False}


async def test_a_call_that_is_not_allowed_can_be_proposed(
    sockets: SocketPod, commands: Commands
) -> None:
    sockets.add("ide", [{"kind": ["chat", "mcp/proposal:*", "mcp/request:tools/list"]}])
    approver = Participant("approver")

    @approver.policy
    async def approve(proposal: mcpp.Message) -> bool | str:
        return proposal.payload["params"]["arguments"]["a"] < 9 or "too much"

    async with sockets.run(calculator()), client_of(commands) as client:
        refused = await client.call_tool("calc__add", {"a": 1, "b": 1})
        assert refused.is_error
        assert "pod_propose" in _text(refused)
        proposed = {"participant": "calc", "tool": "add", "arguments": {"a": 1, "b": 1}}
        waiting = await client.call_tool("pod_propose", proposed | {"wait_seconds": 0})
        assert "not decided yet" in _text(waiting)
        async with sockets.run(approver):
            done = await client.call_tool("pod_propose", proposed)
            assert done.structured_content == {"result": 2}
            rejected = proposed | {"arguments": {"a": 9, "b": 1}, "wait_seconds": 2 * BOUND}
            text = _text(await client.call_tool("pod_propose", rejected))
            assert "rejected by @approver: too much" in text


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_client_is_notified_when_a_participant_with_tools_joins(
    sockets: SocketPod, commands: Commands, mode: Mode
) -> None:
    notified = anyio.Event()

    async def receive(message: object) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            notified.set()

    async with client_of(commands, mode=mode, message_handler=receive) as client:
        await client.list_tools()
        if mode == "legacy":
            async with sockets.run(calculator()):
                await notified.wait()
                assert "calc__add" in [tool.name for tool in (await client.list_tools()).tools]
        else:
            listening = client.listen(tools_list_changed=True)
            async with listening as changes, sockets.run(calculator()):
                await anext(aiter(changes))
                assert "calc__add" in [tool.name for tool in (await client.list_tools()).tools]


async def test_a_cancelled_call_is_cancelled_at_the_participant(
    sockets: SocketPod, commands: Commands
) -> None:
    cancelled = anyio.Event()
    async with sockets.run(stalling("slow", cancelled)), client_of(commands) as client:
        with anyio.CancelScope() as scope:

            async def stop(progress: float, total: float | None, message: str | None) -> None:
                scope.cancel()

            await client.call_tool("slow__stall", progress_callback=stop)
        await cancelled.wait()


async def test_a_call_ends_when_the_participant_leaves(pod: MemoryPod) -> None:
    asked = anyio.Event()
    slow = waiting("slow", anyio.Event(), asked)

    async def stay_until_asked(*, task_status: TaskStatus[None]) -> None:
        async with pod.run(slow):
            task_status.started()
            await asked.wait()

    with anyio.fail_after(BOUND):
        async with pod.connect("ide", own=True) as ide, background() as tasks:
            server = PodServer(link := SharedPod(ide))
            tasks.start_soon(link.listen)
            await tasks.start(stay_until_asked)
            async with Client(server.server) as client:
                ended = await client.call_tool("slow__work")
                absent = {"participant": "slow", "tool": "work"}
                proposed = await client.call_tool("pod_propose", absent)
    assert proposed.is_error
    assert _text(proposed) == "work of 'slow': it is not in the pod"
    assert ended.is_error
    assert _text(ended) == "work of 'slow': it left before it answered"


async def test_a_known_tool_is_found_without_waiting_for_new_participants(pod: MemoryPod) -> None:
    library = Participant("library")

    @library.tool
    async def search() -> None: ...

    with anyio.fail_after(BOUND):
        async with pod.run(library), pod.connect("ide") as ide:
            toolbox = Toolbox(ide, grace_seconds=3600)
            assert list(await toolbox.list_tools()) == ["library__search"]
            async with pod.connect("person"):
                toolbox.observe(await anext(ide))
                assert "person" in ide.participants
                assert await toolbox.find("library__search") is not None


async def test_a_replayed_list_change_is_ignored(pod: MemoryPod) -> None:
    changed = "notifications/tools/list_changed"
    async with pod.connect("calc") as calc:
        await calc.notify(changed)
        async with pod.connect("ide", last=10) as ide:
            toolbox = Toolbox(ide)
            with anyio.fail_after(BOUND):
                replayed = [await anext(ide) for _ in range(ide.replayed)]
                assert not any(map(toolbox.observe, replayed))
                await calc.notify(changed)
                assert toolbox.observe(await anext(m async for m in ide if changed in m.kind))


async def test_a_request_right_after_joining_waits_for_the_history(pod: MemoryPod) -> None:
    async with pod.connect("alice") as alice:
        await alice.send("chat", {"text": "you are late"})
        await alice.send("chat", {"text": "as ever"}, context="c1")
    texts: dict[str, str] = {}
    async with (
        pod.connect("ide", last=10, own=True) as ide,
        background() as tasks,
        Client(PodServer(link := SharedPod(ide)).server) as client,
    ):

        async def ask(tool: str) -> None:
            texts[tool] = _text(await client.call_tool(tool))

        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as asking:
                asking.start_soon(ask, "pod_read")
                asking.start_soon(ask, "pod_contexts")
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(link.listen)
    assert "you are late" in texts["pod_read"]
    assert "c1" in texts["pod_contexts"]


async def test_a_participant_that_never_answered_is_not_waited_for_again(pod: MemoryPod) -> None:
    with anyio.fail_after(BOUND):
        async with pod.connect("ide") as ide:
            toolbox = Toolbox(ide, grace_seconds=0.0)
            for grace_seconds in (0.0, 3600.0):
                toolbox.grace_seconds = grace_seconds
                async with pod.connect("person"):
                    toolbox.observe(await anext(ide))
                    assert await toolbox.list_tools() == {}
                while not toolbox.observe(await anext(ide)):
                    pass


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_invalid_tools_of_one_participant_do_not_hide_the_others(
    pod: MemoryPod, mode: Mode
) -> None:
    schemas: list[Any] = [
        "none",
        {},
        {"type": "string"},
        {"type": "object", "properties": 7},
        {"type": "object", "properties": {"a": 1}},
        {"type": "object", "required": "a"},
        {"type": "object", "$schema": 5},
        {"type": "object", "properties": {"a": {"type": "banana"}}},
    ]
    faulty = Participant("faulty")

    @faulty.method("tools/list")
    async def list_invalid(params: dict[str, Any], call: ToolCall) -> Any:
        strange = [{"name": "x", "inputSchema": schema} for schema in schemas]
        return {"tools": [7, {"name": 3}, *strange], "nextCursor": 5}

    async with (
        pod.run(faulty),
        pod.run(calculator()),
        pod.connect("ide") as ide,
        Client(PodServer(SharedPod(ide)).server, mode=mode) as client,
    ):
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert [name for name in names if "__" in name] == ["calc__add", "calc__broken"]


async def test_an_answer_that_is_invalid_in_the_client_s_revision_is_an_error_result(
    pod: MemoryPod,
) -> None:
    odd = Participant("odd")

    @odd.method("tools/list")
    async def list_tools(params: dict[str, Any], call: ToolCall) -> Any:
        return {"tools": [{"name": "rows", "inputSchema": {"type": "object"}}]}

    @odd.method("tools/call")
    async def rows(params: dict[str, Any], call: ToolCall) -> Any:
        return {"content": [], "structuredContent": [1, 2]}

    async with pod.run(odd), pod.connect("ide") as ide:
        async with Client(PodServer(SharedPod(ide)).server) as client:
            assert (await client.call_tool("odd__rows")).structured_content == [1, 2]
        async with Client(PodServer(SharedPod(ide)).server, mode="legacy") as client:
            failed = await client.call_tool("odd__rows")
    assert failed.is_error
    assert "odd's answer is not a valid result in MCP 2025" in _text(failed)


@pytest.mark.parametrize("end", ["it leaves", "Ctrl-C", "it cancels the call"])
async def test_a_client_s_proposals_are_withdrawn_when_it_stops_waiting(
    sockets: SocketPod, commands: Commands, end: str
) -> None:
    proposed = {"participant": "calc", "tool": "add", "arguments": {"a": 2, "b": 3}}
    async with sockets.run(calculator()), sockets.connect("alice") as alice:
        messages = (m async for m in alice if m.kind.startswith(("mcp/proposal", "mcp/withdraw")))
        if end == "it leaves":
            async with client_of(commands) as client:
                late = await client.call_tool("pod_propose", proposed | {"wait_seconds": 0})
                assert "not decided yet" in _text(late)
                proposal = await anext(messages)
        elif end == "Ctrl-C":
            proposal = await propose_until_ctrl_c(commands, proposed, messages)
        else:
            async with client_of(commands) as client, background() as tasks:
                tasks.start_soon(client.call_tool, "pod_propose", proposed)
                proposal = await anext(messages)
                tasks.cancel_scope.cancel()
        with anyio.fail_after(BOUND):
            withdrawn = await anext(messages)
        assert (withdrawn.kind, withdrawn.correlation_id) == ("mcp/withdraw", proposal.id)


async def propose_until_ctrl_c(
    commands: Commands, proposed: dict[str, Any], messages: AsyncIterator[mcpp.Message]
) -> mcpp.Message:
    """Make a proposal by writing to standard input, leave that open, and interrupt the server."""
    async with commands.start("ide", "mcp") as command:
        about = {"protocolVersion": "2025-06-18", "capabilities": {}}
        client = {"clientInfo": {"name": "bare", "version": "1"}}
        asked = {"name": "pod_propose", "arguments": proposed}
        assert command.process.stdin is not None
        for message in (
            {"id": 1, "method": "initialize", "params": about | client},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": asked},
        ):
            line = json.dumps({"jsonrpc": "2.0"} | message) + "\n"
            await command.process.stdin.send(line.encode())
        with anyio.fail_after(BOUND):
            proposal = await anext(messages)
        assert await command.interrupt() == 0
    return proposal


async def test_ctrl_c_ends_it(commands: Commands) -> None:
    async with commands.start("ide", "mcp") as command:
        async with commands.sockets.connect("alice") as alice:
            with anyio.fail_after(BOUND):
                while "ide" not in alice.participants:
                    await anext(alice)
        assert await command.interrupt() == 0


async def test_the_server_exits_at_the_end_of_standard_input(commands: Commands) -> None:
    assert await commands.run("ide", "mcp", input=b"") == (0, "", "")


def _text(result: Any) -> str:
    return "\n".join(part.text for part in result.content if part.type == "text")
