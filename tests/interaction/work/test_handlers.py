"""Handlers of an agent: concurrency, conditions, middleware, lifespan, cancellation, gaps."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

import mcpp
from mcpp.agent.hooks import Handler
from mcpp.protocol.rpc import Failure
from mcpp.testing import MemoryPod
from tests.interaction.conftest import AnyPod

pytestmark = pytest.mark.anyio

WAIT = 20


class Rendezvous:
    """Handlers that wait for each other: `begun` in the order of their beginning."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self._go = anyio.Event()
        self._changed = anyio.Event()

    async def handle(self, message: mcpp.Message) -> None:
        self._note(self.begun, message.text)
        await self._go.wait()
        self._note(self.ended, message.text)

    def go(self) -> None:
        self._go.set()

    async def wait_for(self, begun: int = 0, ended: int = 0) -> None:
        with anyio.fail_after(WAIT):
            while len(self.begun) < begun or len(self.ended) < ended:
                await self._changed.wait()

    def _note(self, where: list[str], text: str) -> None:
        where.append(text)
        self._changed.set()
        self._changed = anyio.Event()


async def test_messages_of_different_contexts_are_handled_at_once(harness: AnyPod) -> None:
    agent, calls = mcpp.Participant("worker"), Rendezvous()
    agent.on("chat", concurrency=8)(calls.handle)
    async with harness.run(agent), harness.connect("ada") as ada:
        for text in ("a1", "a2", "b1", "b2", "c1"):
            await ada.send("chat", text, context=text[0])
        await calls.wait_for(begun=3)
        assert calls.begun == ["a1", "b1", "c1"]
        calls.go()
        await calls.wait_for(ended=5)
        for key in "ab":
            assert [text for text in calls.ended if text[0] == key] == [f"{key}1", f"{key}2"]


async def test_without_order_the_main_stream_is_handled_at_once_up_to_the_limit(
    harness: AnyPod,
) -> None:
    agent, calls = mcpp.Participant("worker"), Rendezvous()
    agent.on("chat", concurrency=2, order="free")(calls.handle)
    async with harness.run(agent), harness.connect("ada") as ada:
        for text in "abc":
            await ada.send("chat", text)
        await calls.wait_for(begun=2)
        assert calls.begun == ["a", "b"]
        calls.go()
        await calls.wait_for(ended=3)
    with pytest.raises(ValueError, match="at least 1"):
        agent.on("chat", concurrency=0)


async def test_handlers_can_ask_for_their_own_messages_and_for_a_type_of_context(
    harness: AnyPod,
) -> None:
    agent = mcpp.Participant("worker")
    told, tasks = Rendezvous(), Rendezvous()
    agent.on("chat", to_me=True)(told.handle)
    agent.on("chat", context_type="task*", concurrency=4)(tasks.handle)
    for each in (told, tasks):
        each.go()
    async with harness.run(agent), harness.connect("ada") as ada:
        await ada.send("chat", "to all")
        await ada.send("chat", "to worker", to="worker")
        async with ada.context("task/small") as task:
            await task.send("chat", "in a task")
            await ada.send("chat", "in it too", context=task.id)  # without its type
        async with ada.context("reasoning") as thinking:
            await thinking.send("chat", "elsewhere")
        await ada.send("chat", "end", to="worker")
        await told.wait_for(ended=2)
        await tasks.wait_for(ended=2)
    assert told.ended == ["to worker", "end"]
    assert tasks.ended == ["in a task", "in it too"]


async def test_middleware_is_around_handlers_and_tools(harness: AnyPod) -> None:
    agent = mcpp.Participant("worker")
    seen: list[str] = []
    done = anyio.Event()

    @agent.use
    async def outer(message: mcpp.Message, next: Handler) -> None:
        seen.append(f"> {message.kind}")
        await next(message)
        seen.append(f"< {message.kind}")
        if message.kind == "chat":
            done.set()

    @agent.use
    async def allow(message: mcpp.Message, next: Handler) -> None:
        if message.sender == "eve":
            raise Failure(-32001, "not you")
        if message.sender != "mallory":
            await next(message)

    @agent.on("chat")
    async def handle(message: mcpp.Message) -> None:
        seen.append(message.text)

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    async with (
        harness.run(agent),
        harness.connect("ada") as ada,
        harness.connect("eve") as eve,
        harness.connect("mallory") as mallory,
    ):
        assert await ada.call("worker", "add", a=1, b=2, returns=int) == 3
        with pytest.raises(mcpp.RemoteError, match="not you"):
            await eve.call("worker", "add", a=1, b=2)
        with pytest.raises(mcpp.RemoteError, match="refused"):
            await mallory.call("worker", "add", a=1, b=2)
        await ada.send("chat", "hello")
        with anyio.fail_after(WAIT):
            await done.wait()
    assert seen[:2] == ["> mcp/request:tools/call:add", "< mcp/request:tools/call:add"]
    assert seen[-3:] == ["> chat", "hello", "< chat"]


async def test_a_lifespan_is_around_serving_and_its_value_is_the_state(harness: AnyPod) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def lifespan(pod: mcpp.Pod) -> AsyncIterator[dict[str, str]]:
        events.append(f"open in {pod.me}")
        try:
            yield {"unit": "cm"}
        finally:
            events.append("close")

    agent = mcpp.Participant("worker", lifespan=lifespan)

    @agent.on_join
    def join(pod: mcpp.Pod) -> None:
        events.append(f"joined with {pod.state['unit']}")

    @agent.tool
    async def unit(call: mcpp.ToolCall) -> str:
        return str(call.state["unit"])

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        await message.reply(message.state["unit"])

    async with harness.connect("ada") as ada:
        async with harness.run(agent):
            assert (await ada.call("worker", "unit", wait_for_presence=WAIT)).text == "cm"
            await ada.send("chat", "?")
            with anyio.fail_after(WAIT):
                while (await anext(ada)).kind != "chat":
                    pass
        assert events == ["open in worker", "joined with cm", "close"]


@pytest.mark.rule("P-52")
async def test_a_handler_ends_when_its_requester_gives_up(harness: AnyPod) -> None:
    agent = mcpp.Participant("worker")
    begun, ended, second = anyio.Event(), anyio.Event(), anyio.Event()

    @agent.on("task")
    async def work(message: mcpp.Message) -> None:
        if message.text == "second":
            second.set()
            return
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    async with (
        harness.run(agent),
        harness.connect("ada") as ada,
        harness.connect("eve") as eve,
    ):
        asked = await ada.send("task", {"text": "first"})
        waiting = await ada.send("task", {"text": "never"})
        await ada.send("task", {"text": "second"})
        with anyio.fail_after(WAIT):
            await begun.wait()
            await eve.cancel(asked)  # another participant's word does not count
            await ada.cancel(waiting, "changed my mind")  # before it has begun
            assert not ended.is_set()
            await ada.cancel(asked.id)
            await ended.wait()
            await second.wait()


@pytest.mark.rule("P-54")
async def test_a_gap_is_reported_while_a_handler_is_blocked(harness: AnyPod) -> None:
    agent = mcpp.Participant("worker")
    begun, told = anyio.Event(), anyio.Event()
    lost: list[bool] = []

    @agent.on("chat")
    async def block(message: mcpp.Message) -> None:
        begun.set()
        await anyio.sleep_forever()

    @agent.on_gap
    def note(gap: mcpp.Gap) -> None:
        lost.append(gap.lost_log)
        told.set()

    async with harness.run(agent), harness.connect("ada") as ada:
        await ada.send("chat", "block")
        with anyio.fail_after(WAIT):
            await begun.wait()
            harness.restart()
            await told.wait()
    assert lost == [True]


async def test_a_context_of_a_cancelled_handler_is_cancelled() -> None:
    pod, agent = MemoryPod(), mcpp.Participant("worker")

    @agent.on("task")
    async def work(message: mcpp.Message) -> None:
        async with message.child("task") as task:
            await task.send("reflection", "thinking")
            await anyio.sleep_forever()

    async with pod.run(agent), pod.connect("ada") as ada:
        asked = await ada.send("task", {})
        with anyio.fail_after(WAIT):
            thought = await anext(ada)
            await ada.cancel(asked)
            while (ended := await anext(ada)).kind != "conclusion":
                pass
        assert thought.context is not None
        assert ended.payload == {"outcome": "cancelled"}
