"""Serving requests, below the session that drops what comes twice."""

from typing import Any

import anyio
import pytest

from mcpp import Message, new_envelope
from mcpp.agent.request_server import RequestServer
from mcpp.agent.tools import ToolCall
from mcpp.client.tasks import background
from mcpp.testing import MemoryPod

pytestmark = pytest.mark.anyio


@pytest.mark.rule("P-16")
async def test_an_id_that_comes_again_while_it_runs_is_served_once() -> None:
    memory = MemoryPod()
    started = 0
    finish = anyio.Event()

    async def slow(params: dict[str, Any], call: ToolCall) -> str:
        nonlocal started
        started += 1
        await finish.wait()
        return "done"

    payload = {"jsonrpc": "2.0", "id": "x1", "method": "slow", "params": {}}
    asked = new_envelope("mcp/request:slow", payload, sender="alice", to=["agent"], id="x1")
    with anyio.fail_after(5):
        async with (
            memory.connect("agent") as pod,
            memory.connect("alice") as alice,
            background() as tasks,
        ):
            server = RequestServer({"slow": slow}, tasks)
            for _ in range(2):
                server.receive(Message(pod, asked))
                await anyio.wait_all_tasks_blocked()
            finish.set()
            answer = await anext(alice)
            await anyio.wait_all_tasks_blocked()
            assert answer.payload["result"] == "done"
            assert started == 1
            # The id is free again, as one is that a session has long forgotten.
            server.receive(Message(pod, asked))
            assert (await anext(alice)).payload["result"] == "done"
