"""An agent's hooks: on_join, on_history and observe, and background tasks of a pod."""

import anyio
import pytest

import mcpp
from mcpp import Gap, Message
from mcpp.errors import RemoteError
from tests.interaction.conftest import AnyPod

pytestmark = pytest.mark.anyio


def text_or_gap(item: Message | Gap) -> str:
    return "gap" if isinstance(item, Gap) else item.text


async def test_on_join_runs_before_any_message_is_dispatched(harness: AnyPod) -> None:
    agent = mcpp.Participant("late", last=10)
    steps: list[str] = []

    @agent.on_join
    async def join(pod: mcpp.Pod) -> None:
        await pod.send("note", "joined")
        steps.append(f"joined as {pod.me}")

    @agent.observe
    def observe(item: Message | Gap) -> None:
        if isinstance(item, Message) and item.kind in ("chat", "note"):
            steps.append(item.kind)

    async with harness.connect("alice") as alice:
        await alice.send("chat", {"text": "before"})
        async with harness.run(agent):
            # The answer comes after the agent has observed everything before the request.
            assert await alice.request("late", "ping", timeout=5) == {}
    assert steps == ["joined as late", "chat", "note"]


async def test_an_exception_in_on_join_ends_the_agent(harness: AnyPod) -> None:
    agent = mcpp.Participant("broken")

    @agent.on_join
    def join(pod: mcpp.Pod) -> None:
        raise ZeroDivisionError

    async with harness.connect("broken", own=True) as pod:
        with pytest.raises(ZeroDivisionError):
            await agent.serve(pod)


@pytest.mark.rule("P-03")
async def test_on_history_gets_all_replayed_messages_at_once_and_own_ones_too(
    harness: AnyPod,
) -> None:
    agent = mcpp.Participant("late", last=2)
    steps: list[list[str]] = []

    @agent.on_history
    async def restore(history: list[Message]) -> None:
        assert all(message.replayed for message in history)
        steps.append([message.text for message in history])

    @agent.on("chat")
    async def handle(message: Message) -> None:
        steps.append([message.text])
        await message.reply("handled", kind="ack")

    async with harness.connect("alice", own=True) as alice:
        async with harness.connect("late") as late:
            await alice.send("chat", {"text": "too old"})
            await late.send("chat", {"text": "mine"})
            await alice.send("chat", {"text": "before"})
        async with harness.run(agent):
            await alice.send("chat", {"text": "after"})
            with anyio.fail_after(5):
                while (await anext(alice)).kind != "ack":
                    pass
    assert steps == [["mine", "before"], ["after"]]


async def test_on_history_runs_with_an_empty_list_where_there_is_none(harness: AnyPod) -> None:
    agent = mcpp.Participant("first")
    called = anyio.Event()

    @agent.on_history
    def restore(history: list[Message]) -> None:
        assert history == []
        called.set()

    async with harness.run(agent):
        with anyio.fail_after(5):
            await called.wait()


async def test_a_request_finds_what_an_observer_has_made_of_earlier_messages(
    harness: AnyPod,
) -> None:
    agent = mcpp.Participant("memory", last=10)
    seen: list[str] = []

    @agent.observe
    async def observe(item: Message | Gap) -> None:
        await anyio.lowlevel.checkpoint()  # as a database would
        if isinstance(item, Message) and item.kind == "chat":
            seen.append(item.text)

    @agent.tool
    async def recall() -> list[str]:
        return list(seen)

    async with harness.connect("alice") as alice:
        await alice.send("chat", {"text": "0"})
        async with harness.run(agent):
            for number in range(1, 20):
                await alice.send("chat", {"text": str(number)}, wait=False)
                result = await alice.call("memory", "recall", timeout=5)
                assert result.value == [str(past) for past in range(number + 1)]


@pytest.mark.rule("P-10")
async def test_an_observer_gets_a_gap_in_its_place(harness: AnyPod) -> None:
    agent = mcpp.Participant("steady")
    seen: list[str] = []

    @agent.observe
    def observe(item: Message | Gap) -> None:
        if isinstance(item, Gap) or item.kind == "chat":
            seen.append(text_or_gap(item))

    async with harness.run(agent), harness.connect("alice") as alice:
        await alice.send("chat", {"text": "before"})
        await alice.request("steady", "ping", timeout=5)
        harness.restart()
        with anyio.fail_after(10):
            await alice.request("steady", "ping")
            await alice.send("chat", {"text": "after"})
            await alice.request("steady", "ping")
    assert seen == ["before", "gap", "after"]


async def test_an_observer_that_fails_leaves_the_agent_working(
    harness: AnyPod, caplog: pytest.LogCaptureFixture
) -> None:
    agent = mcpp.Participant("shaky")

    @agent.observe
    def observe(item: Message | Gap) -> None:
        raise ZeroDivisionError

    async with (
        harness.connect("shaky", own=True) as pod,
        harness.connect("alice") as alice,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(agent.serve, pod)
        await alice.request("shaky", "ping", timeout=5)
        tasks.cancel_scope.cancel()
    assert "shaky: observe failed" in caplog.text


async def test_resources_and_prompts_are_unknown_methods_where_there_are_none(
    harness: AnyPod,
) -> None:
    async with harness.run(mcpp.Participant("plain")), harness.connect("alice") as alice:
        assert await alice.request("plain", "tools/list", timeout=5) == {"tools": []}
        for method in ("resources/list", "resources/templates/list", "prompts/list"):
            with pytest.raises(RemoteError, match="does not serve this method"):
                await alice.request("plain", method, timeout=5)


async def test_a_background_task_ends_with_the_block_and_can_still_send(
    harness: AnyPod, caplog: pytest.LogCaptureFixture
) -> None:
    started = anyio.Event()

    async def wait(pod: mcpp.Pod) -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await pod.send("chat", {"text": "goodbye"})

    async def fail() -> None:
        raise ZeroDivisionError

    async with harness.connect("alice") as alice:
        async with harness.connect("bob") as bob:
            bob.start_soon(fail)
            bob.start_soon(wait, bob)
            with anyio.fail_after(5):
                await started.wait()
        with anyio.fail_after(5):
            while (await anext(alice)).kind != "chat":
                pass
    assert "bob: background task fail failed" in caplog.text
