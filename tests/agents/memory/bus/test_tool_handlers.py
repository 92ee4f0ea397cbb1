"""The tools over the bus: checked, and called for the pod."""

from typing import Any

import msgspec
import pytest

import mcpp
from mcpp.protocol.rpc import Failure
from mcpp_agents.memory import MemoryDraft, MemoryStore, Principal
from mcpp_agents.memory.bus.listener import ContextListener
from mcpp_agents.memory.bus.tool_handlers import MemoryToolHandlers

POD = Principal.for_pod("demo")


@pytest.fixture
def handlers(store: MemoryStore) -> MemoryToolHandlers:
    return MemoryToolHandlers(store, POD)


def call(
    handlers: MemoryToolHandlers, tool: str, sender: str = "ann", **arguments: Any
) -> dict[str, Any]:
    return handlers.call(tool, arguments, sender).to_json()


def test_a_participant_remembers_and_recalls_for_the_pod(handlers: MemoryToolHandlers) -> None:
    stored = call(handlers, "remember", title="Rotate", content="zebra", kind="decision")
    assert stored["structuredContent"]["project"] == "pod:demo"
    pack = call(handlers, "context", sender="bob", goal="zebra")
    [section] = pack["structuredContent"]["sections"]
    [item] = section["items"]
    assert item["metadata"]["author"] == "ann"
    assert item["quality"]["origin"] == "bus"
    assert "Quoted from ann on the bus" in pack["content"][0]["text"]
    assert pack["structuredContent"]["markdown"] == pack["content"][0]["text"]


@pytest.mark.rule("M-36")
@pytest.mark.parametrize(("max_bytes", "items"), [(200_000, 50), (40_000, 12), (5_000, None)])
def test_a_pack_is_shortened_to_fit_a_message(
    store: MemoryStore, max_bytes: int, items: int | None
) -> None:
    home = store.acting_as(POD)
    text = "zebra \u4e2d" * 1_500
    home.remember_many([MemoryDraft(title=f"Z{n}", content=text, kind="note") for n in range(50)])
    handlers = MemoryToolHandlers(store, POD, max_bytes=max_bytes)
    result = call(handlers, "context", goal="zebra", layer="deep_search", limit=50)
    assert len(msgspec.json.encode(result)) < max_bytes
    if items is None:
        assert result["isError"]
    else:
        pack = result["structuredContent"]
        assert pack["total_items"] == items
        assert f"{items} of 50 items" in pack["usage_hint"]
        assert pack["usage_hint"] in pack["markdown"]
        assert pack["markdown"] == result["content"][0]["text"]


def test_private_items_and_diaries_never_reach_the_bus(
    handlers: MemoryToolHandlers, store: MemoryStore
) -> None:
    store.remember("Private", "zebra", "note")
    store.remember("Diary", "zebra", "note", agent_id="ann")
    store.remember("Elsewhere", "zebra", "note", project="web")
    assert call(handlers, "context", goal="zebra")["structuredContent"]["total_items"] == 0
    assert call(handlers, "context", goal="zebra", agent_id="ann")["isError"]
    denied = call(handlers, "context", goal="zebra", project="web")
    assert denied["content"][0]["text"] == "Project access denied: web"


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("context", None),
        ("context", []),
        ("context", {"goal": 1}),
        ("context", {"goal": "x", "y": 1}),
        ("remember", {"title": "", "content": "x", "kind": "note"}),
        ("synthesis_plan", {"topic": "x"}),
        ("synthesize", {"goal": "x"}),
        ("", {}),
    ],
)
@pytest.mark.rule("M-36")
def test_invalid_arguments_are_a_protocol_error(
    handlers: MemoryToolHandlers, tool: str, arguments: Any
) -> None:
    with pytest.raises(Failure) as refused:
        handlers.call(tool, arguments, "ann")
    assert refused.value.code == -32602


def test_memorys_own_errors_are_not_remembered() -> None:
    listener = ContextListener("demo", participant="memory")
    error = {"jsonrpc": "2.0", "id": "1", "error": {"code": 1, "message": "no"}}
    said = [("ann", "reflection", {"thought": "Hm."}), ("memory", "mcp/response:tools/list", error)]
    for sender, kind, payload in said:
        listener.receive(mcpp.new_envelope(kind, payload, sender=sender, context="c1"))
    conclusion = mcpp.new_envelope("conclusion", {"text": "Done."}, sender="ann", context="c1")
    assert [memory.draft.kind for memory in listener.receive(conclusion)] == ["summary"]
