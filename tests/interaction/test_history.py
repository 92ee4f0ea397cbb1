"""Reading the past: over a lost connection, cancelled, in a busy pod, for one who joined later."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

import mcpp
from mcpp import HistoryMessage, filters
from mcpp.client import history as client_history
from mcpp.errors import HistoryLostError, NotInHistoryError, TimeError
from mcpp.testing import MemoryPod
from tests.interaction.conftest import AnyPod, SocketPod

pytestmark = pytest.mark.anyio
UNLIMITED = pytest.mark.parametrize(
    "limits", [{"messages_per_second": 0, "context_messages_per_second": 0}]
)


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_history, "_PAGE_ENVELOPES", 7)


@pytest.fixture(autouse=True)
async def in_time() -> AsyncIterator[None]:
    with anyio.fail_after(20):
        yield


@asynccontextmanager
async def two(pod: AnyPod, messages: int = 0) -> AsyncIterator[tuple[mcpp.Pod, mcpp.Pod]]:
    """Connect alice, who says this much, and then bob."""
    async with pod.connect("alice") as alice:
        for number in range(messages):
            await alice.send("chat", {"text": f"message {number}"}, wait=False)
        async with pod.connect("bob") as bob:
            yield alice, bob


def numbers(messages: list[HistoryMessage]) -> list[int]:
    return [int(m.text.split()[1]) for m in messages if m.text.startswith("message ")]


CHATS = filters.kind("chat")


async def test_the_whole_log_is_read_page_by_page_in_both_orders(harness: AnyPod) -> None:
    async with two(harness, 50) as (_, bob):
        oldest = await bob.history(CHATS).all()
        newest = await bob.history(CHATS, order="newest").all()
        assert numbers(oldest) == list(range(50))
        assert newest == oldest[::-1]
        positions = [message.position for message in oldest]
        assert positions == sorted(set(positions))
        assert all(message.replayed and not message.erased for message in oldest)
        assert abs(oldest[0].received_at - datetime.now(UTC)) < timedelta(seconds=20)
        assert numbers(await bob.history(CHATS, order="newest", limit=3).all()) == [49, 48, 47]
        assert await bob.history(limit=0).all() == []


async def test_pages_are_fetched_when_they_are_needed(
    harness: AnyPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    send = mcpp.Pod.send

    async def counting(self: mcpp.Pod, kind: str, *args: Any, **options: Any) -> mcpp.Envelope:
        sent.append(kind)
        return await send(self, kind, *args, **options)

    async with two(harness, 50) as (_, bob):
        monkeypatch.setattr(mcpp.Pod, "send", counting)
        reader = bob.history(CHATS)
        assert sent == []
        assert [(await anext(reader)).text for _ in range(8)][-1] == "message 7"
        assert sent == ["pod/history"] * 2
        assert (reader.start, reader.indexed_to is not None) == (0, True)


async def test_messages_are_found_by_words_context_and_bounds(harness: AnyPod) -> None:
    async with two(harness, 20) as (alice, bob):
        await alice.context("reasoning", id="r").send("reflection", {"thought": "a refund?"})
        found = await bob.history(text="REFUND").all()
        assert [(m.kind, m.text) for m in found] == [("reflection", "a refund?")]
        assert [m.text for m in await bob.history(context="r").all()] == ["a refund?"]
        assert [m.text for m in await bob.history({"type": "reasoning"}).all()] == ["a refund?"]
        middle = (await bob.history(text='"message 10"').all())[0]
        assert numbers(await bob.history(CHATS, after=middle, limit=2).all()) == [11, 12]
        assert numbers(await bob.history(CHATS, before=middle.id).all()) == list(range(10))
        between = bob.history(CHATS, after=middle, before=(await bob.history(text="13").all())[0])
        assert numbers(await between.all()) == [11, 12]


async def test_bounds_of_time_include_the_first_and_exclude_the_last_moment() -> None:
    now = datetime(2026, 11, 17, 12, tzinfo=UTC)
    start = now.timestamp()
    seconds = 0
    pod = MemoryPod(clock=lambda: start + seconds)
    async with two(pod) as (alice, bob):
        for seconds in range(10):
            await alice.send("chat", {"text": f"message {seconds}"})
        since, until = now + timedelta(seconds=3), now + timedelta(seconds=6)
        assert numbers(await bob.history(CHATS, since=since, until=until).all()) == [3, 4, 5]
        iso = bob.history(CHATS, since="2026-11-17T12:00:07Z", until="2026-11-17T13:00:09+01:00")
        assert numbers(await iso.all()) == [7, 8]


async def test_invalid_bounds_are_reported(harness: AnyPod) -> None:
    async with two(harness, 1) as (_, bob):
        with pytest.raises(TimeError):
            bob.history(since="soon")
        with pytest.raises(ValueError, match="not both"):
            bob.history(since="now", after="x")
        with pytest.raises(mcpp.FilterError):
            bob.history({"text": "refund"})
        with pytest.raises(ValueError, match="limit"):
            bob.history(limit=-1)
        for reader in (bob.history(after="unknown"), bob.history(before="unknown")):
            with pytest.raises(mcpp.Refused) as refused:
                await anext(reader)
            assert refused.value.code == "invalid_history"


@pytest.mark.rule("P-31")
@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_a_lost_connection_only_delays_the_next_page(
    harness: AnyPod, order: client_history.Order
) -> None:
    async with two(harness, 60) as (_, bob):
        found = []
        async for message in bob.history(CHATS, order=order):
            found.append(message)
            if len(found) % 5 == 0:
                harness.cut("bob")
        assert numbers(found) == sorted(range(60), reverse=order == "newest")


@UNLIMITED
@pytest.mark.rule("P-31")
@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_a_restart_of_a_gateway_with_a_durable_log_only_delays_the_next_page(
    limits: dict[str, Any], order: client_history.Order, tmp_path: Path
) -> None:
    pod = SocketPod(limits, log=tmp_path)
    try:
        async with two(pod, 60) as (_, bob):
            found = []
            async for message in bob.history(CHATS, text="message", order=order):
                found.append(message)
                if len(found) in (5, 30):
                    pod.restart()
            assert numbers(found) == sorted(range(60), reverse=order == "newest")
    finally:
        pod.close()


@pytest.mark.rule("P-31")
async def test_a_cancelled_read_can_be_continued(harness: AnyPod) -> None:
    async with two(harness, 60) as (_, bob):
        reader = bob.history(CHATS)
        found: list[HistoryMessage] = []
        attempts = 0
        while True:
            attempts += 1
            try:
                with anyio.CancelScope() as scope:
                    if attempts % 3:
                        scope.cancel()  # takes effect where the next page is awaited
                    found.append(await anext(reader))
            except StopAsyncIteration:
                break
        assert numbers(found) == list(range(60))
        await bob.send("chat", {"text": "message 60"})  # and nothing is left in the way


@UNLIMITED
@pytest.mark.rule("P-32")
async def test_reading_ends_although_the_pod_is_busy(harness: AnyPod) -> None:
    async with two(harness, 20) as (alice, bob), anyio.create_task_group() as tasks:

        async def talk() -> None:
            while True:
                await alice.send("chat", {"text": "message 99"})

        tasks.start_soon(talk)
        reader = bob.history(CHATS)
        found = await reader.all()
        assert numbers(found)[:20] == list(range(20))
        assert reader.end is not None
        assert all(message.position < reader.end for message in found)
        tasks.cancel_scope.cancel()


@pytest.mark.rule("P-32")
async def test_pages_of_two_logs_are_not_mixed(harness: AnyPod) -> None:
    async with two(harness, 20) as (_, bob):
        reader = bob.history(CHATS)
        await anext(reader)
        harness.restart()  # this gateway's log is in memory
        with pytest.raises((HistoryLostError, mcpp.Refused)):
            await reader.all()


@pytest.mark.rule("P-33")
async def test_the_past_runs_no_handlers(harness: AnyPod) -> None:
    agent = mcpp.Participant("agent")
    handled: list[str] = []
    read: list[HistoryMessage] = []

    @agent.on("*")
    async def handle(message: mcpp.Message) -> None:
        if message.kind == "chat":
            read.extend(await message.pod.history(CHATS).all())
        handled.append(message.kind)
        if message.text == "the end":
            await message.reply("noted")

    async with harness.connect("alice") as alice:
        await alice.send("chat", {"text": "before"})
        async with harness.run(agent):
            await alice.send("chat", {"text": "the end"})
            while (await anext(alice)).text != "noted":
                pass
    assert handled == ["chat"]
    assert [message.text for message in read] == ["before", "the end"]


async def test_many_readers_take_turns(harness: AnyPod) -> None:
    async with two(harness, 30) as (_, bob), anyio.create_task_group() as tasks:
        found = []

        async def read() -> None:
            found.append(numbers(await bob.history(CHATS).all()))

        for _ in range(30):
            tasks.start_soon(read)
    assert found == [list(range(30))] * 30


@pytest.mark.parametrize(("before", "after"), [(0, 0), (2, 1), (0, 3), (50, 50)])
async def test_a_message_is_shown_among_its_neighbours(
    harness: AnyPod, before: int, after: int
) -> None:
    async with two(harness, 30) as (alice, bob):
        log = await bob.history().all()
        for message in (log[0], log[12], log[-1]):
            place = log.index(message)
            expected = log[max(0, place - before) : place + after + 1]
            assert await bob.around(message, before=before, after=after) == expected
            assert await bob.around(message.id, before=before, after=after) == expected
        with pytest.raises(mcpp.Refused):
            await bob.around("unknown")
        with pytest.raises(ValueError, match="at least 0"):
            await alice.around(log[0], before=-1)


@pytest.mark.rule("P-35")
async def test_a_context_is_read_with_its_descendants_and_outcome(harness: AnyPod) -> None:
    async with two(harness) as (alice, bob):
        async with alice.context("task", id="t") as task:
            await task.send("chat", {"text": "begin"})
            async with task.child("reasoning", id="r") as reasoning:
                await reasoning.send("reflection", {"thought": "hm"})
            await bob.send("conclusion", {"text": "not mine to conclude"}, context="t")
            await alice.send("chat", {"text": "elsewhere"})
            await task.conclude("done")
        found = await bob.context_of("t")
        assert (found.id, found.type, found.state, found.complete) == (
            "t",
            "task",
            "concluded",
            True,
        )
        assert found.conclusion is not None
        assert found.conclusion.payload == {"text": "done"}
        assert [m.text for m in found.messages] == ["begin", "hm", "not mine to conclude", "done"]
        assert [(child.id, child.state) for child in found.node.children] == [("r", "open")]
        # The outcome is known, however little is read.
        part = await bob.context_of("t", limit=2)
        assert (len(part.messages), part.complete, part.state) == (2, False, "concluded")
        assert part.conclusion is not None
        assert part.conclusion.payload == {"text": "done"}
        with pytest.raises(NotInHistoryError):
            await bob.context_of("unknown")


async def test_what_is_held_in_memory_is_bounded(
    harness: AnyPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_history, "_MAX_BYTES", 1000)
    async with harness.connect("files"), two(harness) as (alice, bob):
        async with alice.context("task", id="t") as task:
            for _ in range(5):
                await task.send("chat", {"text": "x" * 300})
                await task.propose("files", "write", text="x" * 300)
        found = await bob.context_of("t")
        assert (len(found.messages), found.complete) == (3, False)
        assert len(await bob.open_proposals()) == 2


@pytest.mark.rule("P-36")
async def test_one_who_joins_later_decides_on_open_proposals(harness: AnyPod) -> None:
    files = mcpp.Participant("files")

    @files.tool
    def write(path: str) -> str:
        return f"wrote {path}"

    harness.add("intern", [{"kind": "mcp/proposal:*"}, {"kind": "mcp/withdraw"}])
    async with harness.run(files), harness.connect("intern") as intern:
        made = [await intern.propose("files", "write", path=name) for name in "abcd"]
        async with harness.connect("boss") as boss:
            await boss.approve(made[0].envelope)
            await boss.reject(made[1].envelope, "policy")
        await made[2].withdraw()
        async with harness.connect("late") as late:
            (waiting,) = await late.open_proposals()
            assert waiting.payload["params"]["arguments"] == {"path": "d"}
            rejected = await late.open_proposals(rejected=True)
            assert [one.id for one in rejected] == [made[1].id, made[3].id]
            await late.approve(waiting)
            assert (await made[3].result(timeout=5)).value == "wrote d"
            assert await late.open_proposals() == []
            assert await late.open_proposals(since="now", rejected=True) == []
