"""The pod as an MCP server, seen by the official MCP client over stdio."""

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
from mcpp_agents.mcp_server import PodServer
from mcpp_agents.toolbox import Toolbox
from tests.agents.processes import BOUND, MCPP, Commands
from tests.interaction.conftest import SocketVenue

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
Mode = Literal["auto", "legacy"]


@asynccontextmanager
async def client_of(
    commands: Commands, name: str = "ide", mode: Mode = "auto", **options: Any
) -> AsyncIterator[Client]:
    """Start `mcpp mcp` as an MCP client would, and talk to it."""
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
async def test_everybodys_tools_are_listed_and_called_under_stable_names(
    sockets: SocketVenue, commands: Commands, mode: Mode
) -> None:
    async with sockets.run(calculator()), client_of(commands, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {"pod_send", "pod_read", "pod_participants", "pod_contexts", "pod_propose"} < set(
            tools
        )
        assert tools["calc__add"].description == "Add two numbers. (tool add of calc)"
        assert tools["calc__add"].input_schema["required"] == ["a", "b"]
        heard: list[tuple[float, float | None, str | None]] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            heard.append((progress, total, message))

        result = await client.call_tool(
            "calc__add", {"a": 2, "b": 3}, progress_callback=on_progress
        )
        assert result.structured_content == {"result": 5}
        assert heard == [(1, 2, "adding")]
        failed = await client.call_tool("calc__broken")
        assert failed.is_error
        with pytest.raises(MCPError, match="a"):
            await client.call_tool("calc__add", {"a": "two", "b": 3})
        with pytest.raises(MCPError, match="nobody in the pod offers"):
            await client.call_tool("calc__subtract")


async def test_the_client_speaks_and_reads(sockets: SocketVenue, commands: Commands) -> None:
    async with sockets.connect("alice") as alice:
        await alice.send("chat", {"text": "who is there?"})
        async with alice.context("reasoning", id="think") as thinking:
            await thinking.send("reflection", {"thought": "a long thought " * 50})
            await thinking.conclude("nobody")
        async with client_of(commands) as client:
            await client.call_tool("pod_send", {"text": "me", "to": ["alice"]})
            answer = await anext(message async for message in alice if message.kind == "chat")
            assert (answer.sender, answer.text, answer.to) == ("ide", "me", ("alice",))
            text = _text(await client.call_tool("pod_read"))
            assert "who is there?" in text
            assert "a long thought" not in text  # folded to its conclusion
            assert "nobody" in text
            assert "You are @" not in text
            handle = text.partition("[folded; handle ")[2].partition("]")[0]
            expanded = _text(await client.call_tool("pod_expand", {"handle": handle}))
            assert "a long thought" in expanded
            whole = _text(await client.call_tool("pod_read", {"filter": "context:think"} | FULL))
            assert "a long thought" in whole
            assert "who is there?" not in whole
            outline = _text(await client.call_tool("pod_contexts"))
            assert "reasoning think by alice: 2 messages, concluded: nobody" in outline
            nothing = await client.call_tool("pod_read", {"filter": "from:nobody"})
            assert _text(nothing) == "Nothing was said that passes the filter."
            wrong = await client.call_tool("pod_read", {"filter": "mian"})
            assert wrong.is_error


async def test_what_it_may_not_call_it_can_propose(
    sockets: SocketVenue, commands: Commands
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
        asked = {"participant": "calc", "tool": "add", "arguments": {"a": 1, "b": 1}}
        waiting = await client.call_tool("pod_propose", asked | {"wait_seconds": 0})
        assert "nobody has decided yet" in _text(waiting)
        async with sockets.run(approver):
            done = await client.call_tool("pod_propose", asked)
            assert done.structured_content == {"result": 2}
            rejected = asked | {"arguments": {"a": 9, "b": 1}, "wait_seconds": 2 * BOUND}
            said = _text(await client.call_tool("pod_propose", rejected))
            assert "rejected by @approver: too much" in said


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_newcomers_tools_are_told_as_a_changed_list(
    sockets: SocketVenue, commands: Commands, mode: Mode
) -> None:
    told = anyio.Event()

    async def hear(message: object) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            told.set()

    async with client_of(commands, mode=mode, message_handler=hear) as client:
        await client.list_tools()
        if mode == "legacy":
            async with sockets.run(calculator()):
                await told.wait()
                assert "calc__add" in [tool.name for tool in (await client.list_tools()).tools]
        else:
            listening = client.listen(tools_list_changed=True)
            async with listening as changes, sockets.run(calculator()):
                await anext(aiter(changes))
                assert "calc__add" in [tool.name for tool in (await client.list_tools()).tools]


async def test_a_cancelled_call_is_cancelled_at_its_owner(
    sockets: SocketVenue, commands: Commands
) -> None:
    slow = Participant("slow")
    cancelled = anyio.Event()

    @slow.tool
    async def work(call: ToolCall) -> None:
        try:
            await call.progress(0)
            await anyio.sleep_forever()
        finally:
            cancelled.set()

    async with sockets.run(slow), client_of(commands) as client:
        with anyio.CancelScope() as scope:

            async def stop(progress: float, total: float | None, message: str | None) -> None:
                scope.cancel()

            await client.call_tool("slow__work", progress_callback=stop)
        await cancelled.wait()


async def test_a_call_ends_when_its_owner_leaves(pod: MemoryPod) -> None:
    slow = Participant("slow")
    asked = anyio.Event()

    @slow.tool
    async def work() -> None:
        asked.set()
        await anyio.sleep_forever()

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
    assert _text(proposed) == "work of 'slow': not in the pod"
    assert ended.is_error
    assert _text(ended) == "work of 'slow': left the pod before it answered"


async def test_a_tool_that_is_known_waits_for_no_newcomer(pod: MemoryPod) -> None:
    library = Participant("library")

    @library.tool
    async def search() -> None: ...

    with anyio.fail_after(BOUND):
        async with pod.run(library), pod.connect("ide") as ide:
            toolbox = Toolbox(ide, patience_seconds=3600)
            assert list(await toolbox.offers()) == ["library__search"]
            async with pod.connect("person"):
                toolbox.hear(await anext(ide))
                assert "person" in ide.participants
                assert await toolbox.offer("library__search") is not None


async def test_a_list_that_changed_before_we_came_is_no_news(pod: MemoryPod) -> None:
    changed = "notifications/tools/list_changed"
    async with pod.connect("calc") as calc:
        await calc.notify(changed)
        async with pod.connect("ide", last=10) as ide:
            toolbox = Toolbox(ide)
            with anyio.fail_after(BOUND):
                heard = [await anext(ide) for _ in range(ide.history)]
                assert not any(map(toolbox.hear, heard))
                await calc.notify(changed)
                assert toolbox.hear(await anext(m async for m in ide if changed in m.kind))


async def test_a_client_that_asks_at_once_waits_for_the_history(pod: MemoryPod) -> None:
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


async def test_whoever_was_waited_for_in_vain_is_not_waited_for_again(pod: MemoryPod) -> None:
    with anyio.fail_after(BOUND):
        async with pod.connect("ide") as ide:
            toolbox = Toolbox(ide, patience_seconds=0.0)
            for patience_seconds in (0.0, 3600.0):
                toolbox.patience_seconds = patience_seconds
                async with pod.connect("person"):
                    toolbox.hear(await anext(ide))
                    assert await toolbox.offers() == {}
                while not toolbox.hear(await anext(ide)):
                    pass


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_nonsense_from_one_participant_leaves_the_others_tools(
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
    fool = Participant("fool")

    @fool.method("tools/list")
    async def lie(params: dict[str, Any], call: ToolCall) -> Any:
        strange = [{"name": "x", "inputSchema": schema} for schema in schemas]
        return {"tools": [7, {"name": 3}, *strange], "nextCursor": 5}

    async with (
        pod.run(fool),
        pod.run(calculator()),
        pod.connect("ide") as ide,
        Client(PodServer(ide).server, mode=mode) as client,
    ):
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert [name for name in names if "__" in name] == ["calc__add", "calc__broken"]


async def test_an_answer_that_a_client_s_revision_does_not_know_is_told_as_its_author_s(
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
    assert "odd answered with no tool's result in MCP 2025" in _text(failed)


@pytest.mark.parametrize("end", ["it leaves", "Ctrl-C", "it cancels the call"])
async def test_what_a_client_proposed_is_taken_back_when_nobody_waits_for_it(
    sockets: SocketVenue, commands: Commands, end: str
) -> None:
    proposed = {"participant": "calc", "tool": "add", "arguments": {"a": 2, "b": 3}}
    async with sockets.run(calculator()), sockets.connect("alice") as alice:
        heard = (m async for m in alice if m.kind.startswith(("mcp/proposal", "mcp/withdraw")))
        if end == "it leaves":
            async with client_of(commands) as client:
                late = await client.call_tool("pod_propose", proposed | {"wait_seconds": 0})
                assert "nobody has decided yet" in _text(late)
                proposal = await anext(heard)
        elif end == "Ctrl-C":
            proposal = await propose_until_ctrl_c(commands, proposed, heard)
        else:
            async with client_of(commands) as client, background() as tasks:
                tasks.start_soon(client.call_tool, "pod_propose", proposed)
                proposal = await anext(heard)
                tasks.cancel_scope.cancel()
        with anyio.fail_after(BOUND):
            withdrawn = await anext(heard)
        assert (withdrawn.kind, withdrawn.correlation_id) == ("mcp/withdraw", proposal.id)


async def propose_until_ctrl_c(
    commands: Commands, proposed: dict[str, Any], heard: AsyncIterator[mcpp.Message]
) -> mcpp.Message:
    """Make a proposal over bare standard input, which stays open, and end the server by Ctrl-C."""
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
            proposal = await anext(heard)
        assert await command.interrupted() == 0
    return proposal


async def test_ctrl_c_ends_it(commands: Commands) -> None:
    async with commands.start("ide", "mcp") as command:
        async with commands.venue.connect("alice") as alice:
            with anyio.fail_after(BOUND):
                while "ide" not in alice.participants:
                    await anext(alice)
        assert await command.interrupted() == 0


async def test_it_ends_with_its_standard_input(commands: Commands) -> None:
    assert await commands.run("ide", "mcp", input=b"") == (0, "", "")


FULL = {"fold": False}


def _text(result: Any) -> str:
    return "\n".join(part.text for part in result.content if part.type == "text")
