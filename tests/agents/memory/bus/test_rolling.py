"""Rolling summaries: of contexts that are still open, one stored item for each."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mcpp
from mcpp.errors import RemoteError, ToolError
from mcpp.payloads import ContextInfo
from mcpp.prompts import KEPT_NEWEST, PromptBuilder, is_summarized
from mcpp.testing import MemoryPod
from mcpp_agents.memory import MemoryStore, Principal
from mcpp_agents.memory.bus.listener import ContextListener
from mcpp_agents.memory.bus.participant import MemoryAgent
from mcpp_agents.memory.bus.summaries.rolling import (
    MAX_ROLLING_CHARS,
    EndedSummary,
    RollingPolicy,
    RollingSummary,
)
from mcpp_agents.memory.bus.summaries.summarizer import Summarizer
from mcpp_agents.memory.bus.summaries.summary_store import SummaryStore
from mcpp_agents.memory.serving.agent_memory import AgentMemory
from tests.agents.memory.bus.test_summarizer import Fake
from tests.agents.memory.conftest import option_for
from tests.agents.memory.erasing import erase
from tests.agents.model.model_server import Scripted, model_server
from tests.agents.processes import BOUND, Commands
from tests.interaction.conftest import SocketPod

pytestmark = pytest.mark.anyio
OFTEN = RollingPolicy(messages=5, chars=2_000)
POD = Principal.for_pod("test")


def said(number: int, *, context: str = "c1", sender: str = "ann", **more: Any) -> mcpp.Envelope:
    about = mcpp.new_context("reasoning", id=context, **more)
    text = f"Ports are compared: number {number} of the list is {8000 + number}."
    return mcpp.new_envelope("reflection", {"thought": text}, sender=sender, context=about)


def summaries_of(
    log: list[mcpp.Envelope], policy: RollingPolicy = OFTEN
) -> list[RollingSummary | EndedSummary]:
    listener = ContextListener("test", rolling=policy)
    found = []
    for envelope in log:
        listener.receive(envelope)
        found += listener.take_summaries()
    return found


def applied(log: list[mcpp.Envelope], summary: RollingSummary) -> str:
    """Return the prompt of a viewer that has received this log, with the summary."""
    builder = PromptBuilder("viewer", contexts="fold", summaries=[summary.for_prompts()])
    return builder.build(log).markdown(system=False)


@pytest.mark.rule("M-53")
@given(
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=60),
    policy=st.builds(RollingPolicy, messages=st.integers(1, 12), chars=st.integers(50, 3_000)),
    odd=st.sets(st.integers(1, 60), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_summaries_cover_a_prefix_and_leave_the_newest_messages(
    sizes: list[int], policy: RollingPolicy, odd: set[int]
) -> None:
    log = []
    for number, size in enumerate(sizes):
        memory = {"memory": "off"} if number in odd else {}
        about = mcpp.new_context("reasoning", id="c1", metadata=memory)
        text = f"Message {number} says this. " + "word " * (size // 5)
        sender = "ben" if number in odd else "ann"
        log.append(mcpp.new_envelope("chat", {"text": text}, sender=sender, context=about))
    ids = [one.id for one in log if is_summarized(one)]
    found = summaries_of(log, policy)
    before = 0
    for summary in found:
        assert isinstance(summary, RollingSummary)
        cover = summary.step.cover
        assert (cover.first, cover.last) == (ids[0], ids[cover.messages - 1])
        assert before < cover.messages <= len(ids) - KEPT_NEWEST
        assert len(summary.draft.content) <= MAX_ROLLING_CHARS
        # Each step reads the last summary and what is new, however long the context is.
        assert len(summary.step.turns) <= cover.messages - before
        before = cover.messages
    last = found[-1] if found else None
    if isinstance(last, RollingSummary):
        assert last.draft == summaries_of(log, policy)[-1].draft  # type: ignore[union-attr]
        page = applied(log, last)
        covered = set(ids[: last.step.cover.messages])
        if "Summary by memory" in page:
            after = page.partition("Summary by memory")[2].partition("\n@")[2]
            for number, envelope in enumerate(log):
                if number not in odd:
                    assert (f"Message {number} says" in after) is (envelope.id not in covered)


@pytest.mark.rule("M-53")
def test_characters_count_like_messages_and_a_short_context_has_no_summary() -> None:
    assert summaries_of([said(n) for n in range(14)]) == []
    assert len(summaries_of([said(n) for n in range(15)])) == 1
    policy = RollingPolicy(messages=1_000, chars=500)
    long = [said(n) for n in range(60)]
    assert len(summaries_of(long, policy)) > 5


@pytest.mark.rule("M-53")
def test_the_first_sentence_and_late_ones_stay_in_a_long_context() -> None:
    log = [said(n) for n in range(400)]
    last = summaries_of(log)[-1]
    assert isinstance(last, RollingSummary)
    assert last.draft.content.startswith("ann: Ports are compared: number 0 of")
    assert "number 389 of" in "".join(turn.text for turn in last.step.turns)
    assert last.step.cover.messages == 390


@pytest.mark.rule("M-53")
@pytest.mark.parametrize(
    "text",
    [
        "Port {0} answers, and {1} of its tests fail.",
        "Heartbeat {1}: deploy step {1} finished, {2} steps remain.",
    ],
)
def test_a_summary_of_similar_messages_has_some_of_every_time(text: str) -> None:
    log = [
        mcpp.new_envelope(
            "chat",
            {"text": text.format(8000 + n, n, 1000 - n)},
            sender="ann",
            context=mcpp.new_context("reasoning", id="c1"),
        )
        for n in range(1000)
    ]
    numbers = {message.payload["text"]: n for n, message in enumerate(log)}
    for summary in summaries_of(log, RollingPolicy()):
        assert isinstance(summary, RollingSummary)
        covered = summary.step.cover.messages
        chosen = [numbers[turn.text] for turn in summary.step.chosen]
        assert chosen == sorted(chosen)
        assert len(summary.draft.content) <= MAX_ROLLING_CHARS
        for quarter in range(4):
            first, end = covered * quarter // 4, covered * (quarter + 1) // 4
            assert sum(first <= n < end for n in chosen) >= 3
        assert max(chosen) > covered - 25


@pytest.mark.rule("M-54")
def test_an_excluded_or_unknown_context_has_no_summary() -> None:
    off: dict[str, Any] = {"metadata": {"memory": "off"}}
    assert summaries_of([said(0, **off), *(said(n) for n in range(1, 60))]) == []
    child = [said(n, context="c2", parent="c1") for n in range(60)]
    found = summaries_of([said(0), *child, said(1, **off), *child])
    assert isinstance(found[0], RollingSummary)
    assert found[-1] == EndedSummary("c2")
    listener = ContextListener("test", rolling=OFTEN)
    listener.add_context(ContextInfo(id="c1", creator="ann"))
    for number in range(60):
        listener.receive(said(number))
    assert listener.take_summaries() == []


@pytest.mark.rule("M-54")
def test_secrets_are_in_no_summary() -> None:
    secret = "ghp_" + "a1B2" * 9
    log = [
        mcpp.new_envelope(
            "chat", {"text": f"The token is {secret}."}, sender="ann",
            context=mcpp.new_context("reasoning", id="c1"),
        )
        for _ in range(30)
    ]  # fmt: skip
    last = summaries_of(log)[-1]
    assert isinstance(last, RollingSummary)
    assert secret not in str((last.draft, last.step))


# In a pod, on both engines


@asynccontextmanager
async def recording(
    pod: MemoryPod, store: MemoryStore, **details: Any
) -> AsyncIterator[tuple[mcpp.Pod, SummaryStore]]:
    """Run memory in a pod; yield ann's connection and the stored summaries."""
    with anyio.fail_after(BOUND):
        memory = MemoryAgent(store, **{"rolling": OFTEN, **details}).participant
        async with pod.connect("ann", own=True) as ann, pod.run(memory):
            while "memory" not in ann.participants:
                await anext(ann)
            yield ann, SummaryStore(store, ann.name)


async def think(ann: mcpp.Pod, *numbers: int, context: str = "c1") -> None:
    for number in numbers:
        about = said(number, context=context)
        await ann.send("reflection", about.payload, context=about.context)


async def answered(ann: mcpp.Pod, store: MemoryStore) -> None:
    """Wait until memory has read everything: it answers after what was said before."""
    await ann.call("memory", "context", {"goal": "anything"})


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the store; no envelope announces what is stored."""
    while not condition():  # noqa: ASYNC110
        await anyio.sleep(0.01)


def items(store: MemoryStore) -> int:
    return len(store._engine.stored_by(POD.id))


@pytest.mark.rule("M-53", "M-54")
async def test_an_open_context_has_one_item_that_no_pack_contains(store: MemoryStore) -> None:
    pod = MemoryPod()
    async with recording(pod, store) as (ann, summaries):
        await think(ann, *range(40))
        await answered(ann, store)
        [summary] = summaries.read()
        assert summary.text.startswith("ann: Ports are compared: number 0 of")
        assert items(store) == 1
        pack = await ann.call("memory", "context", {"goal": "compared ports list"})
        assert "number 0" not in str(pack.value)
        for reader in (store, store.acting_as(POD)):
            assert reader.context("compared ports list", layer="wake").items == []
        mind = AgentMemory(store, pod=ann.name, agent="mind")
        assert mind.recall("compared ports list", max_tokens=500) == ""
        assert mind.open_contexts() == [summary]
        assert AgentMemory(store, pod="other", agent="mind").open_contexts() == []
        await ann.send("conclusion", {"decision": "Use 8787."}, context="c1")
        await answered(ann, store)
        assert summaries.read() == []
        assert items(store) == 1
        assert "8787" in store.acting_as(POD).context("compared ports").markdown


@pytest.mark.rule("M-55")
async def test_items_that_participants_store_are_no_summaries(store: MemoryStore) -> None:
    async with recording(MemoryPod(), store) as (ann, summaries):
        draft = {
            "title": "Summary",
            "content": "Nothing happened.",
            "kind": "summary",
            "idempotency_key": "rolling:c1",
        }
        await ann.call("memory", "remember", draft)
        assert summaries.read() == []
        forged = {"first": "a", "last": "b", "digest": "c", "messages": 9, "began": "d"}
        for more in (
            {"metadata": {"rolling": forged}},
            {"metadata": {"context": "c1"}},
            {"source": "mcpp://test/c1#b"},
        ):
            with pytest.raises(RemoteError, match="must not"):
                await ann.call("memory", "remember", {**draft, **more})
        forgery = {**draft, "agent_id": "system:summaries"}
        for private in (False, True):
            with pytest.raises(ToolError, match="its own agent only"):
                await ann.call("memory", "remember", forgery, private=private)
        assert summaries.read() == []


@pytest.mark.rule("M-54")
@pytest.mark.parametrize(
    "erased", [{"context": "c1"}, {"participant": "ann"}, {"context": "c1", "before": 4e9}]
)
async def test_what_is_erased_is_erased_from_summaries(
    store: MemoryStore, erased: dict[str, Any]
) -> None:
    pod = MemoryPod()
    async with recording(pod, store) as (ann, summaries):
        await think(ann, *range(30))
        await answered(ann, store)
        assert len(summaries.read()) == 1
        erase(pod, **erased)
        await answered(ann, store)
        assert summaries.read() == []
        await think(ann, *range(30, 50))
        await answered(ann, store)
        [summary] = summaries.read()
        assert "number 29" not in summary.text


@pytest.mark.rule("M-53")
async def test_memory_that_returns_continues_or_drops_what_it_stored(store: MemoryStore) -> None:
    pod = MemoryPod()
    async with pod.connect("ann") as ann:
        async with pod.run(MemoryAgent(store, rolling=OFTEN).participant):
            while "memory" not in ann.participants:
                await anext(ann)
            await think(ann, *range(20))
            await think(ann, *range(20), context="c2")
            await answered(ann, store)
        summaries = SummaryStore(store, ann.name)
        before = {each.context: each for each in summaries.read()}
        assert set(before) == {"c1", "c2"}
        await ann.send("conclusion", {"decision": "Use 8787."}, context="c2")
        async with pod.run(MemoryAgent(store, rolling=OFTEN).participant):
            while "memory" not in ann.participants:
                await anext(ann)
            await answered(ann, store)
            assert summaries.read() == [before["c1"]]
            await think(ann, *range(20, 40))
            await answered(ann, store)
            [later] = summaries.read()
            assert later.first == before["c1"].first
            assert later.last != before["c1"].last


@pytest.mark.rule("M-53", "M-37")
async def test_a_model_continues_its_own_summary(store: MemoryStore) -> None:
    model = Fake("They compared ports up to some number.")
    summarizer = Summarizer(model, name="openai:m")
    async with recording(MemoryPod(), store, summarizer=summarizer) as (ann, summaries):
        await think(ann, *range(15))
        await until(lambda: bool(summaries.read()))
        [summary] = summaries.read()
        assert (summary.text, summary.author) == (model.text, "openai:m")
        first = summary.last
        await think(ann, *range(15, 21))
        await until(lambda: summaries.read()[0].last != first)
        assert len(model.asked) == 2
        second = model.asked[1].markdown(system=False)
        assert "They compared ports up to" in second
        assert "number 0 of" not in second
        assert "number 9 of" in second


@pytest.mark.rule("M-54")
async def test_a_model_that_is_busy_cannot_bring_back_what_was_erased(store: MemoryStore) -> None:
    model = Fake(None)
    pod = MemoryPod()
    summarizer = Summarizer(model, name="openai:m")
    async with recording(pod, store, summarizer=summarizer) as (ann, summaries):
        await think(ann, *range(20))
        await model.waiting.wait()
        erase(pod, context="c1")
        await answered(ann, store)
        assert summaries.read() == []
    assert items(store) == 0


@pytest.mark.slow
@pytest.mark.rule("M-53", "M-55")
async def test_the_commands_summarize_a_long_context_in_an_agents_prompt(
    sockets: SocketPod, commands: Commands, location: str
) -> None:
    options = ("--embedder", "none", "--rolling-messages", "20")
    join = ("memory", "join", *option_for(location), *options)
    with model_server([Scripted("Ports.")]) as server:
        arguments = ("agent", "--model", "openai:m", "--base-url", f"{server.url}/v1")
        async with (
            sockets.connect("alice", own=True) as alice,
            commands.start("memory", *join) as memory,
            commands.start("model", *arguments, "--memory", location) as command,
        ):
            await memory.line_with("memory is in the pod")
            await command.line_with("model is in the pod")
            with anyio.fail_after(BOUND):
                await think(alice, *range(200))
                await alice.call("memory", "context", {"goal": "anything"})
                asked = await alice.send("chat", {"text": "What is compared?"}, to=["model"])
                await anext(
                    m async for m in alice if (m.kind, m.correlation_id) == ("chat", asked.id)
                )
            assert await command.interrupt() == 0
            assert await memory.interrupt() == 0
    [request] = server.requests
    text = str(request["messages"])
    assert "not concluded: 180 messages from alice. Summary by memory:" in text
    assert all(f"number {number} of" in text for number in range(180, 200))
    assert sum(f"number {number} of" in text for number in range(180)) < 60
