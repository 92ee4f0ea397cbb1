"""Contexts in the SDK: titles, how they ended, children of messages and calls, templates."""

from dataclasses import dataclass
from typing import Annotated, TypedDict

import anyio
import msgspec
import pytest
from pydantic import BaseModel, Field

import mcpp
from mcpp.outcomes import outcome_of
from mcpp.payloads import text_of
from tests.interaction.conftest import AnyPod

pytestmark = pytest.mark.anyio

WAIT = 20


async def next_of(pod: mcpp.Pod, kind: str) -> mcpp.Message:
    with anyio.fail_after(WAIT):
        async for message in pod:
            if message.kind == kind:
                return message
    raise AssertionError("the pod has ended")


async def node_of(pod: mcpp.Pod, id: str) -> mcpp.ContextNode:
    return (await pod.context_of(id)).node


@pytest.mark.rule("C-19")
@pytest.mark.rule("C-20")
async def test_an_exception_leaves_the_context_failed(harness: AnyPod) -> None:
    async with harness.connect("bob") as bob, harness.connect("ada") as ada:
        with pytest.raises(KeyError):  # noqa: PT012
            async with ada.context("task", title="Book  Paris") as booking:
                await booking.send("reflection", "looking for a hotel")
                raise KeyError("hotel")
        ended = await next_of(bob, "conclusion")
        failure = {"type": "KeyError", "message": "'hotel'"}
        assert ended.payload == {"outcome": "failed", "error": failure}
        assert text_of(ended.envelope) == "failed: KeyError: 'hotel'"
        found = await node_of(bob, booking.id)
        assert (found.state, found.title) == ("failed", "Book Paris")
        assert bob.contexts[booking.id].title == "Book Paris"


@pytest.mark.rule("C-19")
async def test_a_cancellation_leaves_the_context_cancelled(harness: AnyPod) -> None:
    async with harness.connect("bob") as bob, harness.connect("ada") as ada:
        with anyio.move_on_after(WAIT) as scope:
            async with ada.context("task") as task:
                await task.send("reflection", "thinking")
                scope.cancel()
                await anyio.sleep_forever()
        assert (await next_of(bob, "conclusion")).payload == {"outcome": "cancelled"}
        assert (await node_of(bob, task.id)).state == "cancelled"


async def test_an_exception_among_tasks_is_named_itself(harness: AnyPod) -> None:
    async def fail() -> None:
        raise ValueError("no rooms")

    async with harness.connect("bob") as bob, harness.connect("ada") as ada:
        with pytest.raises(ExceptionGroup):  # noqa: PT012
            async with ada.context("task"), anyio.create_task_group() as tasks:
                tasks.start_soon(fail)
                await anyio.sleep_forever()
        ended = await next_of(bob, "conclusion")
        assert ended.payload["error"] == {"type": "ValueError", "message": "no rooms"}


async def test_a_context_that_was_concluded_stays_so(harness: AnyPod) -> None:
    async with harness.connect("bob") as bob, harness.connect("ada") as ada:
        with pytest.raises(ValueError, match="too late"):  # noqa: PT012
            async with ada.context("task") as task:
                await task.conclude("booked")
                raise ValueError("too late")
        await ada.send("chat", "end")
        await next_of(bob, "chat")
        assert (await node_of(bob, task.id)).state == "concluded"


@pytest.mark.rule("C-17")
async def test_a_block_in_the_context_of_another_does_not_end_it(harness: AnyPod) -> None:
    async with harness.connect("bob") as bob, harness.connect("ada") as ada:
        async with ada.context("task") as task:
            await task.send("reflection", "mine")
        await next_of(bob, "reflection")
        with pytest.raises(ValueError, match="bob's own"):
            async with bob.context(id=task.id):
                raise ValueError("bob's own")
        await bob.send("chat", "end")
        kinds = [message.kind async for message in ada.history(context=task.id)]
        assert kinds == ["reflection"]


async def test_messages_and_calls_have_children(harness: AnyPod) -> None:
    agent = mcpp.Participant("helper")

    @agent.tool
    async def plan(call: mcpp.ToolCall) -> str:
        async with call.child("planning", title="Plan") as planning:
            await planning.conclude("done")
        return planning.id

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        async with message.child("reasoning", title="Think") as thinking:
            await thinking.conclude("thought")

    async with harness.run(agent), harness.connect("ada") as ada:
        async with ada.context("task") as task:
            planned = (await task.call("helper", "plan")).text
            await task.send("chat", "think")
        seen = {}
        with anyio.fail_after(WAIT):
            async for message in ada:
                if message.kind == "conclusion" and message.context is not None:
                    seen[message.context.id] = message.context
                    if len(seen) == 2:
                        break
        assert {context.parent for context in seen.values()} == {task.id}
        assert planned in seen
        titles = {ada.contexts[id].title for id in seen}
        assert titles == {"Plan", "Think"}
        # A call in the main context opens one without a parent.
        root = (await ada.call("helper", "plan")).text
        assert (await node_of(ada, root)).parent is None


@dataclass
class Review:
    repository: str
    number: Annotated[int, msgspec.Meta(ge=1)]
    urgent: bool = False


class ReviewModel(BaseModel):
    repository: str
    number: Annotated[int, Field(ge=1)]
    urgent: bool = False


class ReviewDict(TypedDict):
    repository: str
    number: Annotated[int, msgspec.Meta(ge=1)]


@pytest.mark.rule("C-21")
async def test_a_template_has_steps_that_are_counted(harness: AnyPod) -> None:
    review = mcpp.ContextTemplate("code-review", steps=["read", "tests", "style", "verdict"])
    async with harness.connect("bob") as bob, harness.connect("ada") as ada:
        async with ada.context(review, title="PR 7") as context:
            await context.step("read")
            await context.step("tests", "running 300 tests")
            await context.step("tests")
            with pytest.raises(ValueError, match="'lunch' is not a step"):
                await context.step("lunch")
        # What another participant says is no step.
        await bob.send(
            "reflection", {"thought": "x", "step": "style"}, context=context.id, to="ada"
        )
        found = await node_of(bob, context.id)
        assert (found.type, found.steps, found.done) == (
            "code-review",
            ("read", "tests", "style", "verdict"),
            ["read", "tests"],
        )
        assert found.progress == "2 of 4"


@pytest.mark.parametrize("schema", [Review, ReviewModel, ReviewDict])
async def test_a_template_checks_metadata(schema: type) -> None:
    from mcpp.testing import MemoryPod

    template = mcpp.ContextTemplate("code-review", metadata=schema)
    async with MemoryPod().connect("ada") as ada:
        async with ada.context(template, repository="mcpp", number=7) as context:
            sent = await context.send("chat", "go")
        assert sent.context is not None
        assert sent.context.metadata["number"] == 7
        for wrong in ({"number": 0}, {"number": 7, "colour": "red"}, {"number": "seven"}, {}):
            with pytest.raises(mcpp.EncodeError, match=r"\$\.context\.metadata"):
                ada.context(template, repository="mcpp", **wrong)
    with pytest.raises(ValueError, match="different names"):
        mcpp.ContextTemplate("twice", steps=["a", "a"])


@pytest.mark.rule("H-07")
async def test_a_context_is_found_by_its_title_and_its_outcome(harness: AnyPod) -> None:
    async with harness.connect("ada") as ada:
        for title, problem in (("Book Paris", "no rooms"), ("Book Rome", "no trains")):
            with pytest.raises(ValueError, match=problem):  # noqa: PT012
                async with ada.context("task", title=title) as task:
                    await task.send("reflection", "looking")
                    raise ValueError(problem)
        async with ada.context("task", title="Book Oslo") as oslo:
            await oslo.conclude("failed at nothing")
        found = await ada.history(text="book paris").all()
        assert [message.kind for message in found] == ["reflection", "conclusion"]
        failed = await ada.history(mcpp.filters.conclusions, text="paris failed").all()
        assert [message.payload["outcome"] for message in failed] == ["failed"]
        ends = ada.history(mcpp.filters.conclusions, text="failed")
        outcomes = [outcome_of(message.envelope) async for message in ends]
        assert outcomes == ["failed", "failed", "concluded"]
