"""Agents whose tools run until the test lets them end."""

import anyio

import mcpp
from mcpp.agent.tools import ToolCall


def stalling(name: str, given_up: anyio.Event) -> mcpp.Participant:
    """Return an agent whose tool `stall` reports progress once and then never ends."""
    agent = mcpp.Participant(name)

    @agent.tool
    async def stall(call: ToolCall) -> None:
        try:
            await call.progress(1)
            await anyio.sleep_forever()
        finally:
            given_up.set()

    return agent


def waiting(name: str, go_on: anyio.Event, started: anyio.Event | None = None) -> mcpp.Participant:
    """Return an agent whose tool `work` sets `started` and returns "done" after `go_on`."""
    agent = mcpp.Participant(name)

    @agent.tool
    async def work() -> str:
        if started is not None:
            started.set()
        await go_on.wait()
        return "done"

    return agent
