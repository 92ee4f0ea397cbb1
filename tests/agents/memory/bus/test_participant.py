"""Memory as a participant, in a pod with the real gateway core."""

import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpp
from mcpp.errors import RemoteError
from mcpp.payloads import ContextInfo
from mcpp.testing import MemoryPod
from mcpp_agents.memory import MemoryStore, Principal
from mcpp_agents.memory.bus import participant
from mcpp_agents.memory.bus.erasures import PodErasures
from mcpp_agents.memory.bus.participant import MemoryAgent, begun_before
from mcpp_agents.memory.requests import LogErasure, to_seconds
from mcpp_gateway.core.history import erasing as log
from mcpp_gateway.log_tools.erase import erase_entries
from tests.agents.memory.conftest import ManualClock
from tests.agents.memory.erasing import SHORT_LOG, erase, miss_erasure
from tests.interaction.conftest import SocketPod

Messages = Sequence[tuple[str, str, dict[str, Any], str]]
Scenario = Callable[[mcpp.Pod], Awaitable[None]]


@pytest.fixture
def run_scenario(store: MemoryStore) -> Callable[..., None]:
    """Run a scenario as ann, in a pod that memory has joined."""

    def run(
        scenario: Scenario,
        *,
        before: Messages = (),
        limits: dict[str, Any] | None = None,
        pod: MemoryPod | SocketPod | None = None,
        **details: Any,
    ) -> None:
        pod = pod or MemoryPod(limits=limits)

        async def main() -> None:
            with anyio.fail_after(20):
                async with pod.connect("ann") as ann:
                    async with pod.connect("bob") as bob:
                        for sender, kind, payload, context in before:
                            speaker = {"ann": ann, "bob": bob}[sender]
                            await speaker.send(kind, payload, context=context)
                    async with pod.run(MemoryAgent(store, **details).participant):
                        while "memory" not in ann.participants:
                            await anext(ann)
                        await scenario(ann)

        anyio.run(main)

    return run


async def recall(ann: mcpp.Pod, goal: str) -> list[dict[str, Any]]:
    result = await ann.call("memory", "context", {"goal": goal})
    return [item for section in result.value["sections"] for item in section["items"]]


def test_a_conclusion_in_the_pod_is_recalled_in_the_pod(run_scenario: Callable[..., None]) -> None:
    async def scenario(ann: mcpp.Pod) -> None:
        about = mcpp.new_context("reasoning", id="r1")
        await ann.send("reflection", {"thought": "Zebras could be stolen."}, context=about)
        concluded = await ann.send("conclusion", {"decision": "Rotate the zebras."}, context=about)
        [item] = await recall(ann, "zebras")
        assert (item["type"], item["name"]) == ("decision", "Rotate the zebras.")
        assert item["source"].endswith(f"/r1#{concluded.id}")
        assert item["metadata"]["author"] == "ann"

    run_scenario(scenario)


def test_a_pod_that_opts_out_is_served_but_not_recorded(run_scenario: Callable[..., None]) -> None:
    async def scenario(ann: mcpp.Pod) -> None:
        await ann.send("conclusion", {"decision": "Rotate the zebras."}, context="r1")
        assert await recall(ann, "zebras") == []
        draft = {"title": "Explicit", "content": "zebras, on purpose", "kind": "note"}
        await ann.call("memory", "remember", draft)
        assert [item["name"] for item in await recall(ann, "zebras")] == ["Explicit"]

    run_scenario(scenario, listening=False)


@pytest.mark.rule("M-36")
def test_a_request_with_an_id_of_its_own_is_answered(run_scenario: Callable[..., None]) -> None:
    async def scenario(ann: mcpp.Pod) -> None:
        call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        asked = await ann.send("mcp/request:initialize", call, to=["memory"])
        async for message in ann:
            if message.correlation_id == asked.id:
                assert message.payload["id"] == 1
                assert "result" in message.payload
                break

    run_scenario(scenario)


@pytest.mark.rule("M-36")
def test_a_proposal_to_memory_is_fulfilled_once(run_scenario: Callable[..., None]) -> None:
    async def scenario(ann: mcpp.Pod) -> None:
        about = {"title": "Zebras", "content": "zebras", "kind": "note"}
        proposal = await ann.propose("memory", "remember", about)
        await ann.fulfil(proposal.envelope)
        with pytest.raises(RemoteError, match="already_fulfilled"):
            await ann.fulfil(proposal.envelope)
        assert len(await recall(ann, "zebras")) == 1

    run_scenario(scenario)


@pytest.mark.rule("M-36")
def test_memory_lists_its_tools_and_capabilities(run_scenario: Callable[..., None]) -> None:
    async def scenario(ann: mcpp.Pod) -> None:
        tools = await ann.request("memory", "tools/list", {})
        names = [tool["name"] for tool in tools["tools"]]
        assert names == ["context", "remember", "synthesis_plan", "forget"]
        assert "tools" in (await ann.request("memory", "initialize", {}))["capabilities"]
        assert await ann.request("memory", "ping", {}) == {}
        with pytest.raises(RemoteError):
            await ann.request("memory", "prompts/list", {})

    run_scenario(scenario)


@pytest.fixture
def recalled(run_scenario: Callable[..., None]) -> Callable[..., list[str]]:
    """Conclude contexts r1 and r2 as ann; return the conclusions that memory recalls."""

    def run(r1: str, r2: str, **options: Any) -> list[str]:
        names: list[str] = []

        async def scenario(ann: mcpp.Pod) -> None:
            await ann.send("conclusion", {"decision": r1}, context="r1")
            await ann.send("conclusion", {"decision": r2}, context="r2")
            names.extend(item["name"] for item in await recall(ann, "zebras"))

        run_scenario(scenario, **options)
        return names

    return run


@pytest.mark.rule("M-30")
def test_the_creator_is_known_from_the_history_before_memory_joined(
    recalled: Callable[..., list[str]],
) -> None:
    said = ("bob", "reflection", {"thought": "My zebras."}, "r1")
    names = recalled("Take bob's zebras.", "Keep the zebras.", before=[said])
    assert names == ["Keep the zebras."]


@pytest.mark.rule("M-30")
def test_a_truncated_history_proves_no_creator(
    recalled: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participant, "HISTORY_MESSAGES", 1)
    said = ("ann", "reflection", {"thought": "My zebras."}, "r1")
    assert "Keep the zebras." not in recalled(
        "Keep the zebras.", "New zebras.", before=[said, said]
    )


@pytest.mark.rule("M-30")
def test_a_log_truncated_by_bytes_proves_no_creator(recalled: Callable[..., list[str]]) -> None:
    said = [
        ("bob", "reflection", {"thought": "My zebras."}, "r1"),
        *[("ann", "chat", {"text": "x" * 8_000}, "r1") for _ in range(8)],
    ]
    limits = {"history_bytes": 65_536, "max_message_bytes": 16_384}
    names = recalled("Take bob's zebras.", "New zebras.", before=said, limits=limits)
    assert "Take bob's zebras." not in names


@pytest.mark.rule("M-30")
def test_a_long_history_proves_the_creators_of_complete_contexts(
    recalled: Callable[..., list[str]],
) -> None:
    said = [
        ("ann", "reflection", {"thought": "My zebras."}, "r1"),
        ("bob", "reflection", {"thought": "My zebras."}, "r2"),
        *[("bob", "chat", {"text": f"Hm, {number}."}, "r1") for number in range(200)],
    ]
    names = recalled("Keep the zebras.", "Take bob's zebras.", before=said)
    assert names == ["Keep the zebras."]


@pytest.mark.rule("M-30")
def test_without_a_history_live_contexts_have_no_creator(
    recalled: Callable[..., list[str]],
) -> None:
    said = ("bob", "reflection", {"thought": "My zebras."}, "r1")
    limits = {"history_messages": 0}
    names = recalled("Take bob's zebras.", "New zebras.", before=[said], limits=limits)
    assert names == ["New zebras."]


@pytest.mark.rule("M-33")
def test_an_opt_out_survives_a_restart_of_memory(
    run_scenario: Callable[..., None], store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = MemoryPod()

    async def first(ann: mcpp.Pod) -> None:
        about = mcpp.new_context("workflow", id="top", metadata={"memory": "off"})
        await ann.send("chat", {"text": "Private zebras."}, context=about)
        assert await recall(ann, "zebras") == []

    async def second(ann: mcpp.Pod) -> None:
        for id, parent in (("r1", "top"), ("r2", None)):
            about = mcpp.new_context("reasoning", id=id, parent=parent)
            await ann.send("conclusion", {"decision": f"Zebras of {id}."}, context=about)
        assert [item["name"] for item in await recall(ann, "zebras")] == ["Zebras of r2."]

    run_scenario(first, pod=pod)
    monkeypatch.setattr(participant, "HISTORY_MESSAGES", 0)
    run_scenario(second, pod=pod)


@pytest.mark.rule("M-31")
def test_open_contexts_are_stored_when_the_gateway_loses_its_log(
    run_scenario: Callable[..., None], store: MemoryStore
) -> None:
    pod = MemoryPod()

    async def scenario(ann: mcpp.Pod) -> None:
        about = mcpp.new_context("reasoning", id="r1")
        await ann.send("reflection", {"thought": "Unfinished zebras."}, context=about)
        await recall(ann, "zebras")  # so that memory has received it
        pod.restart()
        while not store.search("zebras"):  # noqa: ASYNC110 - no envelope announces it
            await anyio.sleep(0.01)
        [item] = await recall(ann, "zebras")
        assert (item["type"], item["metadata"]["author"]) == ("session", "ann")

    run_scenario(scenario, pod=pod)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["say", "say", "end"])), max_size=30
    ),
    st.integers(0, 30),
)
def test_incomplete_contexts_of_a_truncated_history_are_recognized(
    steps: list[tuple[str, str]], cut: int
) -> None:
    log: list[mcpp.Envelope] = []
    lives: dict[str, list[int]] = {}  # where the envelopes of each live context stand in the log
    before: dict[str, int] = {}  # where the life began in which the cut log first meets a context
    for id, what in steps:
        if what == "say":
            lives.setdefault(id, []).append(len(log))
            said = mcpp.new_envelope("chat", {"text": "x"}, sender="ann", context=id)
            log.append(said)
        elif id in lives:
            places = lives.pop(id)
            payload = {"event": "expired", "context": {"id": id}, "messages": len(places)}
            log.append(mcpp.new_envelope("system/context", payload, sender="system:gateway"))
            if len(log) > cut:
                before.setdefault(id, places[0])
    for id, places in lives.items():
        before.setdefault(id, places[0])
    live = {id: ContextInfo(id=id, messages=len(places)) for id, places in lives.items()}
    assert begun_before(log[cut:], live) == {id for id, place in before.items() if place < cut}


@pytest.mark.rule("M-34")
def test_an_earlier_conclusion_is_stored_even_if_the_pod_stays_quiet(
    run_scenario: Callable[..., None], store: MemoryStore
) -> None:
    async def scenario(_: mcpp.Pod) -> None:
        while not store.search("zebras"):  # noqa: ASYNC110 - no envelope announces it
            await anyio.sleep(0.01)

    said = ("ann", "conclusion", {"decision": "Keep the zebras."}, "r1")
    run_scenario(scenario, before=[said])


@pytest.mark.rule("H-14")
@pytest.mark.parametrize("erased", [{"participant": "bob"}, {"context": "task-1"}])
def test_a_conclusion_is_erased_if_only_its_question_or_beginning_was(
    run_scenario: Callable[..., None], store: MemoryStore, erased: dict[str, Any]
) -> None:
    pod = MemoryPod()

    async def scenario(ann: mcpp.Pod) -> None:
        async with pod.connect("bob") as bob:
            asked = await bob.send("chat", {"text": "Which zebras? Mine is called Pip."})
        about = mcpp.new_context("reasoning", id="task-1", metadata={"question": asked.id})
        while True:  # until the conclusion has a later time
            thought = await ann.send("reflection", {"thought": "Stripes differ."}, context=about)
            if thought.ts > asked.ts:
                break
        concluded = await ann.send("conclusion", {"text": "All zebras."}, context=about)
        [item] = await recall(ann, "zebras")
        assert "Pip" in item["content"]
        erase(pod, **erased, before=to_seconds(concluded.ts))
        assert await recall(ann, "zebras") == []

    run_scenario(scenario, pod=pod)


@pytest.mark.rule("H-14")
@pytest.mark.parametrize(
    ("erased", "left"),
    [
        ({"context": "task-1"}, {"Blue it is"}),
        ({"participant": "ann"}, set()),
        ({"participant": "bob"}, {"Red it is", "Blue it is"}),
        ({"context": "task-2", "before": 1.0}, {"Red it is", "Blue it is"}),
    ],
)
def test_memory_erases_what_it_derived_from_erased_entries(
    run_scenario: Callable[..., None], erased: dict[str, Any], left: set[str]
) -> None:
    pod = MemoryPod()

    async def contents(ann: mcpp.Pod) -> set[str]:
        found = await recall(ann, "which colour: red, blue?")
        return {
            each
            for each in ("Red it is", "Blue it is")
            if any(each in item["content"] for item in found)
        }

    async def scenario(ann: mcpp.Pod) -> None:
        for context, text in (("task-1", "Red it is"), ("task-2", "Blue it is")):
            await ann.send("conclusion", {"text": text}, context=context)
        assert await contents(ann) == {"Red it is", "Blue it is"}
        erase(pod, **erased)
        assert await contents(ann) == left

    run_scenario(scenario, pod=pod)


@pytest.mark.rule("H-14")
def test_what_a_request_in_an_erased_context_stored_is_erased(
    run_scenario: Callable[..., None],
) -> None:
    pod = MemoryPod()

    async def scenario(ann: mcpp.Pod) -> None:
        async with ann.context("task", id="top") as top, ann.context("task", parent=top) as below:
            for title, sender in (("Zebra below", below), ("Zebra", ann)):
                draft = {"title": title, "content": "It is one."}
                await sender.call("memory", "remember", draft)
            assert set(await names(ann)) == {"Zebra below", "Zebra"}
            erase(pod, context="top")
            assert set(await names(ann)) == {"Zebra"}

    run_scenario(scenario, pod=pod)


# Clocks of senders that are far behind, and far ahead.
PAST, FUTURE = "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"


async def conclude(ann: mcpp.Pod, text: str, *, ts: str) -> None:
    """Conclude a new context by a sender's clock, and wait until memory has read it."""
    context = mcpp.new_context("reasoning")
    for kind, payload in (("reflection", {"thought": "Hm."}), ("conclusion", {"text": text})):
        said = mcpp.new_envelope(kind, payload, sender=ann.me, context=context, ts=ts)
        await ann.send_envelope(said)
    await recall(ann, "zebras")


async def remember(ann: mcpp.Pod, title: str) -> None:
    draft = {"title": title, "content": "A zebra.", "valid_at": PAST, "idempotency_key": title}
    await ann.call("memory", "remember", draft)


async def names(ann: mcpp.Pod) -> dict[str, str]:
    """Return the ids of what memory knows of zebras, by their names."""
    return {item["name"]: item["id"] for item in await recall(ann, "zebras")}


@pytest.mark.rule("H-14", "M-40")
def test_memory_that_joins_later_erases_what_precedes_the_erasure_in_the_log(
    run_scenario: Callable[..., None], tmp_path: Path
) -> None:
    pod = SocketPod(log=tmp_path / "log")
    for name in ("ann", "bob", "memory"):
        pod.add(name)
    kept: dict[str, str] = {}

    async def before(ann: mcpp.Pod) -> None:
        await conclude(ann, "Old zebra", ts=FUTURE)
        await conclude(ann, "Older zebra", ts=PAST)
        await remember(ann, "Requested zebra")
        assert len(await names(ann)) == 3

    async def after(ann: mcpp.Pod) -> None:
        assert await names(ann) == {}
        await conclude(ann, "New zebra", ts=PAST)
        await conclude(ann, "Newer zebra", ts=FUTURE)
        await remember(ann, "Zebra of a request")
        kept.update(await names(ann))
        assert set(kept) == {"New zebra", "Newer zebra", "Zebra of a request"}

    async def again(ann: mcpp.Pod) -> None:
        await remember(ann, "Zebra of a request")
        assert await names(ann) == kept  # with their ids: nothing was erased and stored again

    try:
        run_scenario(before, pod=pod)
        pod.drain()
        assert erase_entries(tmp_path / "log" / "test", log.Erasure(participant="ann"))
        pod.start()
        run_scenario(after, pod=pod)
        run_scenario(again, pod=pod)
    finally:
        pod.close()


@pytest.mark.rule("H-14")
@pytest.mark.parametrize("listening", [True, False])
def test_memory_erases_by_the_time_at_which_it_received_what_it_stored(
    run_scenario: Callable[..., None], clock: ManualClock, *, listening: bool
) -> None:
    pod = MemoryPod()

    async def scenario(ann: mcpp.Pod) -> None:
        clock.now = 1_000.0
        if listening:
            await conclude(ann, "Old zebra", ts=FUTURE)
        await remember(ann, "Old request of a zebra")
        clock.now = 2_000.0
        await remember(ann, "New request of a zebra")
        erase(pod, participant="ann", before=1_500.0)
        assert set(await names(ann)) == {"New request of a zebra"}

    run_scenario(scenario, pod=pod, listening=listening)


@pytest.mark.rule("H-14")
def test_an_erasure_that_was_missed_is_found_after_the_gap(
    run_scenario: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = MemoryPod(limits=SHORT_LOG)

    async def scenario(ann: mcpp.Pod) -> None:
        await ann.send("chat", {"text": "Which zebras? Mine is called Pip."}, id="q1")
        await conclude(ann, "Old zebra", ts=FUTURE)
        assert set(await names(ann)) == {"Old zebra"}
        miss_erasure(pod, "memory", monkeypatch, participant="ann")
        await ann.wait_for_presence("memory", 20)
        assert await names(ann) == {}
        # Its copy of the question is erased, too.
        async with ann.context("reasoning", question="q1") as thinking:
            await thinking.conclude({"text": "New zebra"})
        [item] = await recall(ann, "zebras")
        assert (item["name"], "Pip" in item["content"]) == ("New zebra", False)

    run_scenario(scenario, pod=pod)


@pytest.mark.rule("H-14")
def test_an_erasure_covers_what_is_being_stored(
    run_scenario: Callable[..., None], store: MemoryStore
) -> None:
    async def scenario(ann: mcpp.Pod) -> None:
        pod = Principal.for_pod(ann.name)
        erasures = PodErasures(ann, store.acting_as(pod))
        started, may_store = anyio.Event(), threading.Event()

        def write() -> None:
            anyio.from_thread.run_sync(started.set)
            may_store.wait(20)
            author = store.acting_as(pod, author="ann", origin="bus")
            author.remember("Old zebra", "It waited.")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(erasures.store, write, after=erasures.last))
            await started.wait()
            await erasures.apply([LogErasure(at=1.0, participant="ann")])
            may_store.set()
        assert await names(ann) == {}

    run_scenario(scenario)
