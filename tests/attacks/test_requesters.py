"""One participant that calls without end, and the others who want to be served, too."""

import threading
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpp
from mcpp import CallError, ToolCall
from mcpp.agent.shares import FairLimiter, Shares
from mcpp.agent.threads import MAX_THREADS
from mcpp.client.tasks import background
from mcpp.testing import MemoryPod
from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.bus import listener
from mcpp_agents.memory.bus.participant import MemoryAgent

UNLIMITED = {"messages_per_second": 0, "context_messages_per_second": 0}


@pytest.mark.rule("P-43")
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=200))
def test_whoever_holds_nothing_gets_a_place_unless_all_are_taken(
    steps: list[tuple[str, bool]],
) -> None:
    shares = Shares(32)
    held = dict.fromkeys("abcdef", 0)
    for requester, takes in steps:
        if takes:
            free = 32 - sum(held.values())
            taken = shares.take(requester)
            assert taken is (free > 0 and held[requester] + 1 <= max(1, free))
            held[requester] += taken
        elif held[requester]:
            shares.release(requester)
            held[requester] -= 1
        assert shares.held(requester) == held[requester] <= 16
        assert sum(held.values()) <= 32


@pytest.mark.anyio
@pytest.mark.rule("P-43")
async def test_requesters_are_served_in_turn_and_a_cancelled_one_leaves_its_queue() -> None:
    limiter, served = FairLimiter(1), list[str]()
    scopes: list[anyio.CancelScope] = []

    async def ask(requester: str, scope: anyio.CancelScope | None = None) -> None:
        with scope or anyio.CancelScope():
            async with limiter.place(requester):
                served.append(requester)
                await anyio.lowlevel.checkpoint()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks, limiter.place("first"):
            for _ in range(50):
                scopes.append(anyio.CancelScope())
                tasks.start_soon(ask, "mallory", scopes[-1])
            tasks.start_soon(ask, "alice")
            tasks.start_soon(ask, "bob")
            await anyio.wait_all_tasks_blocked()
            for scope in scopes[10:]:
                scope.cancel()
            await anyio.wait_all_tasks_blocked()
    assert sorted(served[:3]) == ["alice", "bob", "mallory"]
    assert served.count("mallory") == 10
    assert not limiter._waiting


@pytest.mark.anyio
@pytest.mark.rule("P-43")
async def test_cancelled_blocking_calls_of_one_do_not_make_the_agent_busy_for_others() -> None:
    agent, finish = mcpp.Participant("files"), threading.Event()

    @agent.tool
    def block() -> str:
        finish.wait(30)
        return "late"

    @agent.tool
    def quick() -> str:
        return "done"

    try:
        pod = MemoryPod(limits=UNLIMITED)
        async with pod.run(agent), pod.connect("mallory") as mallory, pod.connect("alice") as alice:
            for _ in range(4):
                async with background() as tasks:
                    for _ in range(MAX_THREADS // 2):
                        tasks.start_soon(_call, mallory, "block")
                    await anyio.wait_all_tasks_blocked()
                    await alice.call("files", "quick", timeout=10)
            assert (await alice.call("files", "quick", timeout=10)).text == "done"
    finally:
        finish.set()


@pytest.mark.anyio
@pytest.mark.rule("P-18", "P-43")
async def test_a_blocking_tool_can_see_that_it_was_cancelled() -> None:
    agent = mcpp.Participant("files")
    running, ended = threading.Event(), threading.Event()

    @agent.tool
    def work(call: ToolCall) -> str:
        running.set()
        while not call.cancelled:
            threading.Event().wait(0.01)
        ended.set()
        return "stopped"

    pod = MemoryPod()
    async with pod.run(agent), pod.connect("alice") as alice:
        async with background() as tasks:
            tasks.start_soon(_call, alice, "work")
            assert await anyio.to_thread.run_sync(running.wait, 10)
        assert await anyio.to_thread.run_sync(ended.wait, 10)


async def _call(pod: mcpp.Pod, tool: str) -> None:
    with suppress(CallError):
        await pod.call("files", tool)


@pytest.mark.rule("M-39")
def test_memory_keeps_a_bounded_part_of_many_long_conversations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "_MAX_TURN_CHARS", 1_000_000)
    listening = listener.ContextListener("demo")
    for number in range(600):
        context = mcpp.new_context("task", id=f"c{number % 5}")
        text = f"turn {number} " + "word " * 800
        listening.receive(
            mcpp.new_envelope("chat", {"text": text}, sender="mallory", context=context)
        )
    kept = [listening._records[id] for id in listening.contexts]
    assert sum(record.turn_chars for record in kept) <= 1_000_000 + 100 * 4_000
    assert [record.turns[0].text.split()[1] for record in kept] == ["0", "1", "2", "3", "4"]


@pytest.mark.anyio
@pytest.mark.rule("M-39")
@pytest.mark.parametrize(
    ("calls", "embedder"), [(100, None), pytest.param(400, "auto", marks=pytest.mark.torture)]
)
async def test_memory_answers_others_during_one_participants_flood(
    calls: int, embedder: str | None, tmp_path: Path
) -> None:
    store = MemoryStore.open(tmp_path / "memory.db", embedder=embedder, bus_hourly_cap=1000)
    pod = MemoryPod(limits=UNLIMITED)
    words = ["alpha", "beta", "gamma", "delta", "release", "rollback", "database", "index"]
    async with (
        pod.run(MemoryAgent(store).participant),
        pod.connect("mallory") as mallory,
        pod.connect("alice") as alice,
    ):
        for number in range(100):
            content = f"note {number}: " + " ".join(words[number % 5 :]) * 20
            draft = {"kind": "fact", "title": f"note {number}", "content": content}
            await alice.call("memory", "remember", draft)

        async def flood() -> None:
            with suppress(CallError):
                await mallory.call("memory", "context", {"goal": " ".join(words)})

        longest = 0.0
        async with background() as tasks:
            for _ in range(calls):
                tasks.start_soon(flood)
            await anyio.wait_all_tasks_blocked()
            for _ in range(5):
                began = anyio.current_time()
                await alice.call("memory", "context", {"goal": "release"}, timeout=30)
                longest = max(longest, anyio.current_time() - began)
        assert longest < 2.0, f"{longest:.1f} s"  # was 7 to 21
    store.close()
