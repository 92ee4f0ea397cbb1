"""Memory in a pod: it joins, hears, and answers, over the real gateway's core."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpp
from mcpp.errors import RemoteError
from mcpp.payloads import ContextInfo
from mcpp.testing import MemoryPod
from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.bus import participant
from mcpp_agents.memory.bus.participant import begun_before, join

Said = Sequence[tuple[str, str, dict[str, Any], str]]
Scene = Callable[[mcpp.Pod], Awaitable[None]]


@pytest.fixture
def play(store: MemoryStore) -> Callable[..., None]:
    """Run a scene as ann, in a pod whose memory has joined."""

    def run(
        scene: Scene,
        *,
        before: Said = (),
        limits: dict[str, Any] | None = None,
        room: MemoryPod | None = None,
        **details: Any,
    ) -> None:
        room = room or MemoryPod(limits=limits)

        async def main() -> None:
            with anyio.fail_after(20):
                async with room.connect("ann") as ann, anyio.create_task_group() as tasks:
                    async with room.connect("bob") as bob:
                        for sender, kind, payload, context in before:
                            speaker = {"ann": ann, "bob": bob}[sender]
                            await speaker.send(kind, payload, context=context)
                    connect = partial(room.connect, "memory")
                    tasks.start_soon(partial(join, connect, store, **details))
                    while "memory" not in ann.participants:
                        await anext(ann)
                    await scene(ann)
                    tasks.cancel_scope.cancel()

        anyio.run(main)

    return run


async def recall(ann: mcpp.Pod, goal: str) -> list[dict[str, Any]]:
    result = await ann.call("memory", "context", {"goal": goal})
    return [item for section in result.value["sections"] for item in section["items"]]


def test_a_conclusion_in_the_pod_is_recalled_in_the_pod(play: Callable[..., None]) -> None:
    async def scene(ann: mcpp.Pod) -> None:
        about = mcpp.new_context("reasoning", id="r1")
        await ann.send("reflection", {"thought": "Zebras could be stolen."}, context=about)
        concluded = await ann.send("conclusion", {"decision": "Rotate the zebras."}, context=about)
        [item] = await recall(ann, "zebras")
        assert (item["type"], item["name"]) == ("decision", "Rotate the zebras.")
        assert item["source"].endswith(f"/r1#{concluded.id}")
        assert item["metadata"]["author"] == "ann"

    play(scene)


def test_a_pod_that_opts_out_is_served_but_not_overheard(play: Callable[..., None]) -> None:
    async def scene(ann: mcpp.Pod) -> None:
        await ann.send("conclusion", {"decision": "Rotate the zebras."}, context="r1")
        assert await recall(ann, "zebras") == []
        told = {"title": "Told", "content": "zebras, on purpose", "kind": "note"}
        await ann.call("memory", "remember", told)
        assert [item["name"] for item in await recall(ann, "zebras")] == ["Told"]

    play(scene, listening=False)


@pytest.mark.rule("M-36")
def test_a_request_with_an_id_of_its_own_is_refused(play: Callable[..., None]) -> None:
    async def scene(ann: mcpp.Pod) -> None:
        call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
        asked = await ann.send("mcp/request:initialize", call, to=["memory"])
        async for message in ann:
            if message.correlation_id == asked.id:
                assert message.payload["error"]["code"] == -32600
                break

    play(scene)


@pytest.mark.rule("M-36")
def test_a_proposal_to_memory_is_fulfilled_once(play: Callable[..., None]) -> None:
    async def scene(ann: mcpp.Pod) -> None:
        about = {"title": "Zebras", "content": "zebras", "kind": "note"}
        proposal = await ann.propose("memory", "remember", about)
        await ann.fulfil(proposal.envelope)
        with pytest.raises(RemoteError, match="already_fulfilled"):
            await ann.fulfil(proposal.envelope)
        assert len(await recall(ann, "zebras")) == 1

    play(scene)


@pytest.mark.rule("M-36")
def test_memory_tells_what_it_can_do(play: Callable[..., None]) -> None:
    async def scene(ann: mcpp.Pod) -> None:
        tools = await ann.request("memory", "tools/list", {})
        assert [tool["name"] for tool in tools["tools"]] == ["context", "remember", "forget"]
        assert "tools" in (await ann.request("memory", "initialize", {}))["capabilities"]
        assert await ann.request("memory", "ping", {}) == {}
        with pytest.raises(RemoteError):
            await ann.request("memory", "prompts/list", {})

    play(scene)


@pytest.mark.rule("M-30")
def test_a_conclusion_counts_by_who_spoke_first_even_before_memory_joined(
    play: Callable[..., None],
) -> None:
    async def scene(ann: mcpp.Pod) -> None:
        await ann.send("conclusion", {"decision": "Take bob's zebras."}, context="r1")
        await ann.send("conclusion", {"decision": "Keep the zebras."}, context="r2")
        assert [item["name"] for item in await recall(ann, "zebras")] == ["Keep the zebras."]

    play(scene, before=[("bob", "reflection", {"thought": "My zebras."}, "r1")])


@pytest.mark.rule("M-30")
def test_of_a_history_that_is_cut_nobody_is_the_creator(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participant, "HISTORY_MESSAGES", 1)
    said = ("ann", "reflection", {"thought": "My zebras."}, "r1")

    async def scene(ann: mcpp.Pod) -> None:
        await ann.send("conclusion", {"decision": "Keep the zebras."}, context="r1")
        await ann.send("conclusion", {"decision": "New zebras."}, context="r2")
        assert "Keep the zebras." not in [item["name"] for item in await recall(ann, "zebras")]

    play(scene, before=[said, said])


@pytest.mark.rule("M-30")
def test_a_log_that_may_have_been_cut_by_its_bytes_proves_no_creator(
    play: Callable[..., None],
) -> None:
    async def scene(ann: mcpp.Pod) -> None:
        await ann.send("conclusion", {"decision": "Take bob's zebras."}, context="r1")
        await ann.send("conclusion", {"decision": "New zebras."}, context="r2")
        assert "Take bob's zebras." not in [item["name"] for item in await recall(ann, "zebras")]

    long = {"text": "x" * 8_000}
    said = [
        ("bob", "reflection", {"thought": "My zebras."}, "r1"),
        *[("ann", "chat", long, "r1") for _ in range(8)],
    ]
    play(scene, before=said, limits={"history_bytes": 65_536, "max_message_bytes": 16_384})


@pytest.mark.rule("M-30")
def test_a_long_history_proves_who_began_what_it_holds_all_of(play: Callable[..., None]) -> None:
    async def scene(ann: mcpp.Pod) -> None:
        await ann.send("conclusion", {"decision": "Keep the zebras."}, context="r1")
        await ann.send("conclusion", {"decision": "Take bob's zebras."}, context="r2")
        assert [item["name"] for item in await recall(ann, "zebras")] == ["Keep the zebras."]

    said = [
        ("ann", "reflection", {"thought": "My zebras."}, "r1"),
        ("bob", "reflection", {"thought": "My zebras."}, "r2"),
        *[("bob", "chat", {"text": f"Hm, {number}."}, "r1") for number in range(200)],
    ]
    play(scene, before=said)


@pytest.mark.rule("M-30")
def test_where_there_is_no_history_nobody_is_the_creator_of_what_lives(
    play: Callable[..., None],
) -> None:
    async def scene(ann: mcpp.Pod) -> None:
        await ann.send("conclusion", {"decision": "Take bob's zebras."}, context="r1")
        await ann.send("conclusion", {"decision": "New zebras."}, context="r2")
        assert [item["name"] for item in await recall(ann, "zebras")] == ["New zebras."]

    said = ("bob", "reflection", {"thought": "My zebras."}, "r1")
    play(scene, before=[said], limits={"history_messages": 0})


@pytest.mark.rule("M-33")
def test_an_opting_out_outlives_the_memory_that_heard_it(
    play: Callable[..., None], store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = MemoryPod()

    async def first(ann: mcpp.Pod) -> None:
        about = mcpp.new_context("workflow", id="top", metadata={"memory": "off"})
        await ann.send("chat", {"text": "Private zebras."}, context=about)
        assert await recall(ann, "zebras") == []

    async def second(ann: mcpp.Pod) -> None:
        for id, parent in (("r1", "top"), ("r2", None)):
            about = mcpp.new_context("reasoning", id=id, parent=parent)
            await ann.send("conclusion", {"decision": f"Zebras of {id}."}, context=about)
        assert [item["name"] for item in await recall(ann, "zebras")] == ["Zebras of r2."]

    play(first, room=room)
    monkeypatch.setattr(participant, "HISTORY_MESSAGES", 0)
    play(second, room=room)


@pytest.mark.rule("M-31")
def test_what_was_heard_is_kept_when_the_gateway_loses_its_log(
    play: Callable[..., None], store: MemoryStore
) -> None:
    room = MemoryPod()

    async def scene(ann: mcpp.Pod) -> None:
        about = mcpp.new_context("reasoning", id="r1")
        await ann.send("reflection", {"thought": "Unfinished zebras."}, context=about)
        await recall(ann, "zebras")  # so that it was heard
        room.restart()
        while not store.search("zebras"):  # noqa: ASYNC110 - nothing on the bus tells of it
            await anyio.sleep(0.01)
        [item] = await recall(ann, "zebras")
        assert (item["type"], item["metadata"]["author"]) == ("session", "ann")

    play(scene, room=room)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["say", "say", "end"])), max_size=30
    ),
    st.integers(0, 30),
)
def test_a_cut_history_lacks_the_beginning_of_exactly_what_began_before(
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
def test_a_conclusion_from_before_is_kept_though_the_pod_stays_quiet(
    play: Callable[..., None], store: MemoryStore
) -> None:
    async def scene(_: mcpp.Pod) -> None:
        while not store.search("zebras"):  # noqa: ASYNC110 - nothing on the bus tells of it
            await anyio.sleep(0.01)

    said = ("ann", "conclusion", {"decision": "Keep the zebras."}, "r1")
    play(scene, before=[said])
