"""The tools over the bus: addressed, checked, and in the pod's name."""

from typing import Any

import msgspec
import pytest

import mcpp
from mcpp_agents.memory import Draft, MemoryStore, Principal
from mcpp_agents.memory.desk import Answer, Desk
from mcpp_agents.memory.listener import Listener

POD = Principal.for_pod("demo")


@pytest.fixture
def desk(store: MemoryStore) -> Desk:
    return Desk(store, POD, participant="memory")


def request(
    method: str,
    params: dict[str, Any],
    *,
    kind: str | None = None,
    sender: str = "ann",
    to: tuple[str, ...] | None = ("memory",),
) -> mcpp.Envelope:
    name = f":{params['name']}" if "name" in params else ""
    return mcpp.new_envelope(
        kind or f"mcp/request:{method}{name}",
        {"jsonrpc": "2.0", "id": "x", "method": method, "params": params},
        sender=sender,
        to=to,
        context="c1",
    )


def call(desk: Desk, tool: str, sender: str = "ann", **arguments: Any) -> dict[str, Any]:
    envelope = request("tools/call", {"name": tool, "arguments": arguments}, sender=sender)
    answer = desk.answer(envelope)
    assert isinstance(answer, Answer)
    assert answer.kind == f"mcp/response:tools/call:{tool}"
    assert (answer.to, answer.correlation_id, answer.context) == ((sender,), envelope.id, "c1")
    assert answer.payload["id"] == envelope.id
    result: dict[str, Any] = answer.payload["result"]
    return result


def test_a_participant_remembers_and_recalls_in_the_pods_name(desk: Desk) -> None:
    stored = call(desk, "remember", title="Rotate", content="zebra", kind="decision")
    assert stored["structuredContent"]["project"] == "pod:demo"
    pack = call(desk, "context", sender="bob", goal="zebra")
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
    home.remember_many([Draft(title=f"Z{n}", content=text, kind="note") for n in range(50)])
    desk = Desk(store, POD, participant="memory", max_bytes=max_bytes)
    result = call(desk, "context", goal="zebra", layer="deep_search", limit=50)
    assert len(msgspec.json.encode(result)) < max_bytes
    if items is None:
        assert result["isError"]
    else:
        pack = result["structuredContent"]
        assert pack["total_items"] == items
        assert f"{items} of 50 items" in pack["usage_hint"]
        assert pack["usage_hint"] in pack["markdown"]
        assert pack["markdown"] == result["content"][0]["text"]


def test_private_items_and_diaries_never_reach_the_bus(desk: Desk, store: MemoryStore) -> None:
    store.remember("Private", "zebra", "note")
    store.remember("Diary", "zebra", "note", agent_id="ann")
    store.remember("Elsewhere", "zebra", "note", project="web")
    assert call(desk, "context", goal="zebra")["structuredContent"]["total_items"] == 0
    assert call(desk, "context", goal="zebra", agent_id="ann")["isError"]
    denied = call(desk, "context", goal="zebra", project="web")
    assert denied["content"][0]["text"] == "Project access denied: web"


@pytest.mark.rule("M-36")
def test_what_is_not_addressed_to_memory_alone_is_not_served(desk: Desk) -> None:
    params = {"name": "context", "arguments": {"goal": "x"}}
    for to in (None, (), ("other",), ("memory", "other")):
        assert desk.answer(request("tools/call", params, to=to)) is None
    assert desk.answer(mcpp.new_envelope("chat", {"text": "x"}, sender="a", to=["memory"])) is None


@pytest.mark.parametrize(
    ("kind", "method", "name"),
    [
        ("mcp/request:tools/list", "tools/call", "forget"),
        ("mcp/request:tools/call:context", "tools/call", "forget"),
        ("mcp/request:tools/call", "tools/call", "forget"),
    ],
)
@pytest.mark.rule("M-36")
def test_a_kind_that_belies_its_payload_is_refused(
    desk: Desk, kind: str, method: str, name: str
) -> None:
    answer = desk.answer(request(method, {"name": name, "arguments": {}}, kind=kind))
    assert answer is not None
    assert answer.payload["error"]["code"] == -32600


def test_tools_are_listed_and_other_methods_are_unknown(desk: Desk) -> None:
    listed = desk.answer(request("tools/list", {}))
    assert listed is not None
    names = [tool["name"] for tool in listed.payload["result"]["tools"]]
    assert names == ["context", "remember", "forget"]
    unknown = desk.answer(request("prompts/list", {}))
    assert unknown is not None
    assert unknown.payload["error"]["code"] == -32601


def test_an_answer_is_an_envelope_that_the_protocol_accepts(desk: Desk) -> None:
    answer = desk.answer(request("tools/list", {}))
    assert answer is not None
    mcpp.new_envelope(
        answer.kind,
        answer.payload,
        sender="memory",
        to=answer.to,
        correlation_id=answer.correlation_id,
        context=answer.context,
    )


def test_memorys_own_errors_are_not_remembered() -> None:
    listener = Listener("demo", participant="memory")
    error = {"jsonrpc": "2.0", "id": "1", "error": {"code": 1, "message": "no"}}
    said = [("ann", "reflection", {"thought": "Hm."}), ("memory", "mcp/response:tools/list", error)]
    for sender, kind, payload in said:
        listener.receive(mcpp.new_envelope(kind, payload, sender=sender, context="c1"))
    conclusion = mcpp.new_envelope("conclusion", {"text": "Done."}, sender="ann", context="c1")
    assert [finding.draft.kind for finding in listener.receive(conclusion)] == ["summary"]
