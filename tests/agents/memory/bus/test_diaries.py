"""Diaries over the bus: for the agent that keeps one, and for no other participant."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mcpp
from mcpp.errors import AttachmentError, RemoteError, ToolError
from mcpp.prompts import PromptBuilder
from mcpp.protocol.rpc import Failure
from mcpp.testing import MemoryPod
from mcpp_agents.memory import MemoryStore, Principal
from mcpp_agents.memory.access import reach_of, scope_for, view_of
from mcpp_agents.memory.auditing import LogPlace
from mcpp_agents.memory.bus.participant import MemoryAgent
from mcpp_agents.memory.bus.tool_handlers import MemoryToolHandlers
from mcpp_agents.memory.errors import AccessDenied
from mcpp_agents.memory.serving.agent_memory import AgentMemory
from mcpp_agents.memory.storage.engine import Item
from tests.interaction.conftest import SocketPod

pytestmark = pytest.mark.rule("M-56")

# Words that only ann's diary has.
SECRETS = ("quagga", "okapi")
DIARY = {"title": "The quagga plan", "content": "zebra: sell the okapi first", "agent_id": "ann"}

FORGED = {"title": "Forged", "content": "zebra", "agent_id": "ann"}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[SocketPod]:
    """A gateway on a socket, with its log in files."""
    pod = SocketPod(log=tmp_path / "log")
    for name in ("ann", "bob", "carol", "memory"):
        pod.add(name)
    yield pod
    pod.close()


@asynccontextmanager
async def with_memory(gateway: Any, store: MemoryStore) -> AsyncIterator[tuple[mcpp.Pod, ...]]:
    """Connect ann, bob and carol to a pod with memory."""
    async with (
        gateway.connect("ann") as ann,
        gateway.connect("bob") as bob,
        gateway.connect("carol", last=0) as carol,
        gateway.run(MemoryAgent(store).participant),
    ):
        await ann.wait_for_presence("memory", 20)
        yield ann, bob, carol


def titles(result: mcpp.ToolResult) -> set[str]:
    return {item["name"] for section in result.value["sections"] for item in section["items"]}


def leaks(*values: Any) -> list[str]:
    text = json.dumps(values, default=str).casefold()
    return [secret for secret in SECRETS if secret in text]


@pytest.mark.anyio
async def test_a_third_participant_finds_nothing_of_a_diary(
    gateway: SocketPod, store: MemoryStore, tmp_path: Path
) -> None:
    async with with_memory(gateway, store) as (ann, bob, carol):
        stored = await ann.call("memory", "remember", DIARY, private=True)
        assert stored.value["created"] is True
        shared = await bob.call("memory", "remember", title="Stripes", content="zebra: striped")
        assert shared.value["project"] == "pod:test"

        pack = await ann.call("memory", "context", goal="zebra", agent_id="ann")
        assert titles(pack) == {"The quagga plan", "Stripes"}
        assert "okapi" in pack.text
        plan = await ann.call("memory", "synthesis_plan", goal="zebra", agent_id="ann")
        assert leaks(plan.value) == list(SECRETS)
        # The goal, too, is private in a private call.
        pack = await ann.call("memory", "context", goal="quagga", agent_id="ann", private=True)
        assert titles(pack) == {"The quagga plan"}

        for other in (bob, carol):
            assert titles(await other.call("memory", "context", goal="zebra")) == {"Stripes"}
            own = await other.call("memory", "context", goal="zebra", agent_id=other.me)
            assert titles(own) == {"Stripes"}
            for private in (False, True):
                with pytest.raises(ToolError, match="its own agent only"):
                    await other.call(
                        "memory", "context", goal="zebra", agent_id="ann", private=private
                    )
                with pytest.raises(ToolError, match="its own agent only"):
                    await other.call("memory", "remember", FORGED, private=private)
            with pytest.raises(ToolError):
                await other.call("memory", "forget", id=stored.value["id"])

        # Live, in the history, from the prompt of a model, and among the attachments.
        await ann.send("chat", "done")
        live = []
        async for message in carol:
            live.append(message.envelope)
            if message.kind == "chat":
                break
        past = [message.envelope for message in await carol.history().all()]
        assert await carol.history(text="zebra").all()
        assert await carol.history(text="okapi").all() == []
        assert leaks([mcpp.encode(each).decode() for each in (*live, *past)]) == []
        for viewer in ("ann", "bob", "carol"):
            assert leaks(PromptBuilder(viewer=viewer).build(past).markdown()) == []
        for each in (each for envelope in past for each in envelope.attachments):
            assert (each.private, each.name, each.size) == (True, None, 16_384)
        from_ann = [each for each in past if "ann" in (each.sender, *(each.to or ()))]
        attached = [each for envelope in from_ann for each in envelope.attachments]
        assert len(attached) == 6
        for reference in attached:
            await ann.fetch(reference)
            for other in (bob, carol):
                with pytest.raises(AttachmentError):
                    await other.fetch(reference)

        files = [each for each in (tmp_path / "log").rglob("*") if each.is_file()]
        kept = {each.parent.name for each in files if b"okapi" in each.read_bytes()}
        assert kept == {"blobs"}

        # An agent erases what it has written itself.
        await ann.call("memory", "forget", id=stored.value["id"])
        assert titles(await ann.call("memory", "context", goal="zebra", agent_id="ann")) == {
            "Stripes"
        }


@pytest.mark.anyio
async def test_a_diary_entry_that_all_have_heard_is_refused(store: MemoryStore) -> None:
    async with with_memory(MemoryPod(), store) as (ann, _, _):
        with pytest.raises(ToolError, match="in a private call"):
            await ann.call("memory", "remember", DIARY)
        with pytest.raises(ToolError, match="`content`"):
            await ann.call("memory", "remember", title="x", agent_id="ann", private=True)


@pytest.mark.anyio
async def test_a_private_call_stores_nothing_that_all_can_read(store: MemoryStore) -> None:
    async with with_memory(MemoryPod(), store) as (ann, bob, _):
        public: dict[str, Any] = {"title": "x", "content": "zebra"}
        for draft in (public, public | {"project": "pod:test"}):
            with pytest.raises(ToolError, match="stores in a diary only"):
                await ann.call("memory", "remember", draft, private=True)
        assert titles(await bob.call("memory", "context", goal="zebra")) == set()
        assert not (await ann.call("memory", "remember", DIARY, private=True)).is_error


async def asked(pod: mcpp.Pod, times: int) -> int:
    """Ask for the participant's own diary some times; return how often it was answered."""
    answered = 0
    for _ in range(times):
        with suppress(RemoteError):
            await pod.call("memory", "context", goal="zebra", agent_id=pod.me)
            answered += 1
    return answered


@pytest.mark.anyio
@pytest.mark.rule("P-47")
async def test_refusals_take_no_room_and_no_caller_takes_all_of_it(store: MemoryStore) -> None:
    limits = {"max_blob_bytes_per_participant": 8 * 16_384}
    async with with_memory(MemoryPod(limits=limits), store) as (ann, bob, carol):
        for _ in range(12):
            with pytest.raises(ToolError, match="its own agent only"):
                await bob.call("memory", "context", goal="zebra", agent_id="ann")
            with pytest.raises(RemoteError, match="intent"):
                await bob.call("memory", "context", goal="zebra", agent_id="bob", intent="none")
        assert not any(each.attachments for each in await bob.history().all())
        assert await asked(bob, 6) == 4
        assert await asked(carol, 4) == 2
        assert await asked(ann, 1) == 1
        # What finds no room is not begun.
        forged = {**FORGED, "agent_id": "bob"}
        with pytest.raises(RemoteError, match="busy"):
            await bob.call("memory", "remember", forged, private=True)
        assert "Forged" not in {entry.title for entry in diary_of(store, "bob")}


@pytest.mark.anyio
@pytest.mark.rule("P-47")
async def test_an_answer_without_room_says_that_the_entry_is_stored(store: MemoryStore) -> None:
    limits = {"max_blob_bytes_per_pod": 5 * 16_384}
    async with with_memory(MemoryPod(limits=limits), store) as (ann, _, carol):
        await carol.attach(b"x" * (4 * 16_384))
        with pytest.raises(RemoteError, match=r"was processed, but .*max_blob_bytes_per_pod"):
            await ann.call("memory", "remember", DIARY, private=True)
        assert [entry.title for entry in diary_of(store, "ann")] == ["The quagga plan"]


def diary_of(store: MemoryStore, name: str) -> list[Item]:
    principal = replace(Principal.for_pod("test"), diarist=name)
    return store.acting_as(principal).diary(name, kind="episode")


def test_it_is_the_diary_that_the_agent_has_with_the_file_itself(store: MemoryStore) -> None:
    handlers = MemoryToolHandlers(store, Principal.for_pod("demo"))
    question = mcpp.new_envelope("chat", {"text": "Which zebra?"}, sender="bob")
    AgentMemory(store, pod="demo", agent="ann").remember(
        question, "The quagga.", conclusion=None, place=LogPlace(None, ("c1",))
    )
    handlers.call("remember", DIARY, "ann", is_private=True)
    read = handlers.call("context", {"goal": "zebra", "agent_id": "ann"}, "ann", is_private=True)
    assert titles(read) == {"@bob asked: Which zebra?", "The quagga plan"}
    recalled = AgentMemory(store, pod="demo", agent="ann").recall("zebra", max_tokens=4_000)
    assert "okapi" in recalled
    for pod, sender in (("demo", "bob"), ("other", "ann")):
        handlers = MemoryToolHandlers(store, Principal.for_pod(pod))
        arguments = {"goal": "zebra", "agent_id": sender}
        assert not titles(handlers.call("context", arguments, sender, is_private=True))


def test_a_result_that_all_hear_never_has_a_diary(store: MemoryStore) -> None:
    handlers = MemoryToolHandlers(store, Principal.for_pod("demo"))
    entry = handlers.call("remember", DIARY, "ann", is_private=True).value["id"]
    for tool in ("context", "synthesis_plan"):
        assert handlers.call(tool, {"goal": "zebra", "agent_id": "ann"}, "ann").is_error
        assert leaks(handlers.call(tool, {"goal": "zebra"}, "ann").to_json()) == []
    related = {"title": "Public", "content": "zebra", "related_to": [entry]}
    assert handlers.call("remember", related, "ann").text == f"Unknown memory: {entry}"
    with pytest.raises(Failure):
        handlers.call("context", {"agent_id": "ann"}, "ann", is_private=True)


def test_a_relation_to_ones_diary_shows_it_to_no_one_else(store: MemoryStore) -> None:
    handlers = MemoryToolHandlers(store, Principal.for_pod("demo"))
    entry = handlers.call("remember", DIARY, "ann", is_private=True).value["id"]
    public = {"title": "Public", "content": "zebra"}
    shown = handlers.call("remember", public, "bob").value["id"]
    for kind in ("contradicts:", "requires:", ""):
        draft = {**DIARY, "title": f"Okapi {kind}", "related_to": [kind + shown]}
        assert not handlers.call("remember", draft, "ann", is_private=True).is_error
        draft = {**public, "agent_id": "bob", "related_to": [kind + entry]}
        stolen = handlers.call("remember", draft, "bob", is_private=True)
        assert (stolen.is_error, stolen.text) == (True, f"Unknown memory: {entry}")
    for sender, is_private in (("bob", True), ("bob", False), ("ann", False)):
        pack = handlers.call("context", {"goal": "zebra"}, sender, is_private=is_private)
        assert leaks(pack.to_json()) == []


def test_a_pod_with_a_diarist_reaches_that_diary_alone() -> None:
    pod = Principal("pod:demo", frozenset({"pod:demo"}), home="pod:demo", diarist="ann")
    own = scope_for(pod, project=None, agent="ann")
    other = scope_for(Principal("pod:demo"), project=None, agent="ann2")
    with pytest.raises(AccessDenied):
        scope_for(pod, project=None, agent="ann2")
    with pytest.raises(AccessDenied):
        view_of(pod, agent="ann2")
    assert own in view_of(pod, agent="ann").scopes
    assert own not in view_of(pod).scopes
    reach = reach_of(pod)
    assert [any(scope.startswith(each) for each in reach.prefixes) for scope in (own, other)] == [
        True,
        False,
    ]
    private = scope_for(Principal("pod:demo"), project=None, agent=None)
    assert private not in reach.scopes | view_of(pod, agent="ann").scopes
