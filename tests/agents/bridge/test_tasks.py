"""Tasks of MCP servers: for callers that know them, and for those that do not.

The older form with the reference server, which `make setup-mcp` installs, and the official
TypeScript client; the newer form with a server of ours, which the conformance suite tests.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import mcpp
from mcpp import Participant, Progress, RemoteError
from mcpp.agent.tools import ToolCall
from mcpp.client.tasks import background
from mcpp.testing import MemoryPod
from mcpp_agents.bridge.agent import Bridge, bridge
from mcpp_agents.bridge.openers import over_stdio
from mcpp_agents.bridge.questions import Questions
from mcpp_agents.bridge.server_questions import ServerQuestions
from mcpp_agents.bridge.upstream import Upstream
from tests.agents import conformance
from tests.agents.bridge.test_bridge_real import SERVERS, installed
from tests.agents.conformance.suite import command
from tests.agents.mcp_server.test_http import base_of
from tests.agents.processes import BOUND
from tests.interaction.conftest import SocketPod

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
NEWER = [sys.executable, str(Path(conformance.__file__).with_name("task_server.py"))]
RESEARCH = "simulate-research-query"
SDK = SERVERS / "node_modules/@modelcontextprotocol/sdk/dist/esm"


@asynccontextmanager
async def opened(program: list[str], name: str) -> AsyncIterator[tuple[Bridge, Upstream]]:
    questions = Questions()
    upstream = Upstream(over_stdio(program), name=name, questions=ServerQuestions(questions))
    with anyio.fail_after(6 * BOUND):
        async with background() as tasks:
            await tasks.start(upstream.keep_running)
            agent = bridge(name, upstream, questions)
            await agent.read_card()
            yield agent, upstream


def person(asked: list[str], content: dict[str, Any]) -> Participant:
    agent = Participant("anna")

    @agent.method("elicitation/create")
    async def elicit(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        asked.append(params["message"])
        return {"action": "accept", "content": content}

    return agent


@pytest.mark.rule("P-75")
async def test_a_caller_that_does_not_know_tasks_gets_the_result(pod: MemoryPod) -> None:
    asked: list[str] = []
    reports: list[Progress] = []
    arguments = {"topic": "python", "ambiguous": True}
    async with (
        opened([installed("mcp-server-everything")], "everything") as (agent, _),
        pod.run(agent),
        pod.run(person(asked, {"interpretation": "snake"})),
        pod.connect("alice") as alice,  # a program that answers no questions
    ):
        result = await alice.call("everything", RESEARCH, arguments, on_progress=reports.append)
        assert "python (snake)" in result.text
        assert len(asked) == 1
        assert reports
        assert all(report.message for report in reports)


@pytest.mark.rule("P-75")
async def test_a_task_belongs_to_the_participant_that_asked_for_it(pod: MemoryPod) -> None:
    async with (
        opened([installed("mcp-server-everything")], "everything") as (agent, _),
        pod.run(agent),
        pod.connect("alice") as alice,
        pod.connect("mallory") as mallory,
    ):
        params = {"name": RESEARCH, "arguments": {"topic": "x"}, "task": {"ttl": 60_000}}
        created = await alice.request("everything", "tools/call", params)
        id = {"taskId": created["task"]["taskId"]}
        async for message in alice:
            if message.kind == "mcp/notification:notifications/tasks/status":
                break
        assert message.to == ("alice",)
        assert message.payload["params"]["taskId"] == id["taskId"]
        for method in ("tasks/get", "tasks/result", "tasks/cancel", "tasks/update"):
            with pytest.raises(RemoteError, match="Task not found"):
                await mallory.request("everything", method, id)
            with pytest.raises(RemoteError, match="taskId"):
                await mallory.request("everything", method, {"taskId": ["x"]})
        assert (await mallory.request("everything", "tasks/list"))["tasks"] == []
        [listed] = (await alice.request("everything", "tasks/list"))["tasks"]
        assert listed["status"] == "working"
        await alice.request("everything", "tasks/cancel", id)
        assert (await alice.request("everything", "tasks/get", id))["status"] == "cancelled"


@pytest.mark.rule("P-75")
async def test_a_task_keeps_its_owner_when_the_bridge_is_started_again(pod: MemoryPod) -> None:
    asks = {"task": {"ttl": 60_000}}
    async with (
        opened([installed("mcp-server-everything")], "everything") as (agent, upstream),
        pod.connect("alice") as alice,
        pod.connect("mallory") as mallory,
    ):
        async with pod.run(agent):
            params = {"name": RESEARCH, "arguments": {"topic": "x"}, **asks}
            created = await alice.request("everything", "tools/call", params)
            id = {"taskId": created["task"]["taskId"]}
            await mallory.send("chat", {"taskId": id["taskId"], "status": "working"})
        async with pod.run(bridge("everything", upstream)):  # knows nothing of the one before
            for method in ("tasks/get", "tasks/result", "tasks/cancel"):
                with pytest.raises(RemoteError, match="Task not found"):
                    await mallory.request("everything", method, id)
            with pytest.raises(RemoteError, match="Task not found"):
                await alice.request("everything", "tasks/get", {"taskId": "never-created"})
            assert (await mallory.request("everything", "tasks/list"))["tasks"] == []
            [listed] = (await alice.request("everything", "tasks/list"))["tasks"]
            assert listed["taskId"] == id["taskId"]
            await alice.request("everything", "tasks/cancel", id)
            assert (await alice.request("everything", "tasks/get", id))["status"] == "cancelled"
    # A server that is started anew has lost its tasks, and says so itself.
    async with (
        opened([installed("mcp-server-everything")], "everything") as (agent, _),
        pod.run(agent),
        pod.connect("alice") as alice,
    ):
        with pytest.raises(RemoteError, match="not found"):
            await alice.request("everything", "tasks/get", id)


@pytest.mark.rule("P-75")
async def test_giving_up_a_call_cancels_its_task(pod: MemoryPod) -> None:
    async with (
        opened(NEWER, "server") as (agent, upstream),
        pod.run(agent),
        pod.connect("alice") as alice,
    ):
        with pytest.raises(mcpp.NoAnswerError):
            await alice.call("server", "slow_compute", seconds=600, timeout=1)
        with anyio.fail_after(BOUND):
            status = "working"
            while status != "cancelled":
                status = (await upstream.request("tasks/get", {"taskId": "task-1"}))["status"]


@pytest.mark.rule("P-75")
async def test_outcomes_of_tasks_of_the_newer_form(pod: MemoryPod) -> None:
    asked: list[str] = []
    async with (
        opened(NEWER, "server") as (agent, _),
        pod.run(agent),
        pod.run(person(asked, {"confirm": True})),
        pod.connect("alice") as alice,
    ):
        assert (await alice.call("server", "slow_compute", seconds=0)).text == "computed"
        with pytest.raises(mcpp.ToolError, match="it went wrong"):
            await alice.call("server", "failing_job")
        with pytest.raises(RemoteError, match="it broke"):
            await alice.call("server", "protocol_error_job")
        assert "deleted" in (await alice.call("server", "confirm_delete")).text
        assert asked == ["confirm?"]
        assert "both" in (await alice.call("server", "multi_input")).text
        assert sorted(asked[1:]) == ["first?", "second?"]
        card = await alice.cards.get("server", wait_seconds=BOUND)
        assert card is not None
        assert (card.instructions, card.answers) == ("Ask for tasks.", ("tasks",))
        assert "slow_compute" in card.tools


@pytest.mark.rule("P-75")
async def test_a_server_s_task_is_a_task_for_a_client_of_the_pod(sockets: SocketPod) -> None:
    sockets.add("ide")
    node = command()[0]
    script = Path(__file__).parents[1] / "mcp_server" / "task_client.mjs"
    tool = f"everything__{RESEARCH}"
    async with (
        opened([installed("mcp-server-everything")], "everything") as (agent, _),
        sockets.run(agent),
    ):
        done = await anyio.run_process(
            [node, str(script), str(SDK), f"{base_of(sockets)}/mcp", sockets.token("ide"), tool]
        )
    seen = json.loads(done.stdout)
    assert seen["capabilities"] == {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
    assert seen["support"] == "required"
    assert seen["id"].startswith("everything/")
    assert (seen["messages"][0], seen["messages"][-1]) == ("taskCreated", "result")
    assert "python (snake)" in seen["result"]["content"][0]["text"]
    related = seen["result"]["_meta"]["io.modelcontextprotocol/related-task"]
    assert related["taskId"] == seen["id"]
    assert len(seen["asked"]) == 1
    assert seen["id"] in seen["statuses"]
    assert (seen["listed"], seen["cancelled"]) == (True, "cancelled")
