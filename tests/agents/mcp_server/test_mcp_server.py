"""`mcpp mcp`, used by the official MCP client, over stdio and in memory."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest
from anyio.abc import TaskStatus
from mcp import Client, MCPError, StdioServerParameters

import mcpp
from mcpp import Participant
from mcpp.agent.tools import ToolCall
from mcpp.client.tasks import background
from mcpp.testing import MemoryPod
from mcpp_agents.mcp_server.server import PodServer
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
            server = PodServer(ide)
            tasks.start_soon(server.listen)
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
        Client((server := PodServer(ide)).server) as client,
    ):

        async def ask(tool: str) -> None:
            texts[tool] = _text(await client.call_tool(tool))

        with anyio.fail_after(BOUND):
            async with anyio.create_task_group() as asking:
                asking.start_soon(ask, "pod_read")
                asking.start_soon(ask, "pod_contexts")
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(server.listen)
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
        Client(PodServer(ide).server, mode=mode) as client,
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
        async with Client(PodServer(ide).server) as client:
            assert (await client.call_tool("odd__rows")).structured_content == [1, 2]
        async with Client(PodServer(ide).server, mode="legacy") as client:
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
