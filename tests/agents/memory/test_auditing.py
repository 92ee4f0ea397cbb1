"""Every operation leaves exactly one audit row by any path; quotas have a table of their own."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import anyio
import pytest

import mcpp
from mcpp.protocol.rpc import Failure
from mcpp_agents.memory import (
    MemoryDraft,
    MemoryStore,
    MemoryStoreError,
    PackRequest,
    Principal,
    QuotaExceeded,
)
from mcpp_agents.memory.bus.listener import ContextListener
from mcpp_agents.memory.bus.recorder import Recorder
from mcpp_agents.memory.bus.tool_handlers import MemoryToolHandlers
from tests.agents.memory.conftest import ManualClock, audited, rows

POD = Principal.for_pod("demo")
DRAFT: dict[str, Any] = {"title": "Tokens", "content": "zebra", "kind": "note"}

# Calls a tool by one path, and ignores a refusal.
Call = Callable[[MemoryStore, str, dict[str, Any]], None]


def call_library(store: MemoryStore, tool: str, arguments: dict[str, Any]) -> None:
    operations: dict[str, Callable[..., Any]] = {
        "remember": store.remember,
        "context": store.context,
        "forget": store.forget,
    }
    with suppress(MemoryStoreError):
        operations[tool](**arguments)


def call_objects(store: MemoryStore, tool: str, arguments: dict[str, Any]) -> None:
    try:
        if tool == "remember":
            store.remember_many([MemoryDraft(**arguments)])
        elif tool == "context":
            store.compile(PackRequest(**arguments))
        else:
            store.forget(arguments["id"])
    except MemoryStoreError:
        pass


def call_mcp(store: MemoryStore, tool: str, arguments: dict[str, Any]) -> None:
    mcp = pytest.importorskip("mcp")
    from mcpp_agents.memory.serving.mcp_server import build_server

    async def run() -> None:
        with anyio.fail_after(30):
            async with mcp.Client(build_server(store, None)) as client:
                await client.call_tool(tool, arguments)

    anyio.run(run)


def call_bus(store: MemoryStore, tool: str, arguments: dict[str, Any]) -> None:
    with suppress(Failure):
        MemoryToolHandlers(store, POD).call(tool, arguments, "ann")


PATHS = pytest.mark.parametrize("call", [call_library, call_objects, call_mcp, call_bus])


@PATHS
@pytest.mark.rule("M-14")
def test_a_successful_operation_leaves_one_audit_row(
    store: MemoryStore, location: str, call: Call
) -> None:
    call(store, "remember", DRAFT)
    call(store, "context", {"goal": "zebra"})
    [(id,)] = rows(location, "SELECT id FROM memory")
    call(store, "forget", {"id": id})
    assert audited(location) == [("remember", None), ("context", None), ("forget", None)]
    assert rows(location, "SELECT count(*) FROM memory") == [(0,)]


@PATHS
@pytest.mark.rule("M-14")
def test_a_refused_operation_leaves_one_audit_row(
    store: MemoryStore, location: str, call: Call
) -> None:
    call(store, "remember", {**DRAFT, "title": " "})
    call(store, "remember", {**DRAFT, "related_to": ("mem_none",)})
    call(store, "context", {"goal": " "})
    call(store, "forget", {"id": "mem_none"})
    assert audited(location) == [
        ("remember", "InvalidMemory"),
        ("remember", "UnknownMemory"),
        ("context", "InvalidMemory"),
        ("forget", "UnknownMemory"),
    ]


@pytest.mark.parametrize("call", [call_mcp, call_bus])
@pytest.mark.rule("M-14")
def test_arguments_that_cannot_be_read_leave_one_audit_row(
    store: MemoryStore, location: str, call: Call
) -> None:
    call(store, "remember", {"title": 1})
    call(store, "context", {})
    call(store, "zebra", {})
    assert audited(location) == [
        ("remember", "InvalidMemory"),
        ("context", "InvalidMemory"),
        ("unknown", "InvalidMemory"),
    ]


@pytest.mark.rule("M-14")
def test_a_memory_recorded_from_the_pod_leaves_one_audit_row(
    store: MemoryStore, location: str
) -> None:
    listener, recorder = ContextListener("demo"), Recorder(store, POD)
    conclusion = mcpp.new_envelope("conclusion", {"text": "Zebra."}, sender="ann", context="c1")
    recorder.record(listener.receive(conclusion))
    assert rows(location, "SELECT tool, principal, author FROM audit") == [
        ("remember", "pod:demo", "ann")
    ]


def test_a_refusal_after_a_stored_batch_has_its_own_audit_row(
    store: MemoryStore, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcpp_agents.memory.store.BATCH", 1)
    unknown = MemoryDraft(**DRAFT, related_to=("mem_none",))
    with pytest.raises(MemoryStoreError):
        store.remember_many([MemoryDraft(**DRAFT), unknown])
    assert audited(location) == [("remember", None), ("remember", "UnknownMemory")]


@pytest.mark.rule("M-35")
def test_the_quota_is_charged_on_the_bus_only(store: MemoryStore, location: str) -> None:
    store.remember("Own", "zebra", "note")
    store.acting_as(POD).remember("Of the pod", "zebra", "note")
    ann = store.acting_as(POD, author="ann", origin="bus")
    ann.remember_many([MemoryDraft(**DRAFT), MemoryDraft(**DRAFT)])
    ann.remember(**DRAFT, idempotency_key="k")
    ann.remember(**DRAFT, idempotency_key="k")  # stored already
    quota = rows(location, "SELECT principal, author, items FROM quota")
    assert quota == [("pod:demo", "ann", 3)]


@pytest.mark.rule("M-35")
def test_the_quota_does_not_depend_on_the_audit(location: str, clock: ManualClock) -> None:
    with MemoryStore.open(location, embedder=None, clock=clock, bus_hourly_cap=1) as store:
        eve = store.acting_as(POD, author="eve", origin="bus")
        eve.remember(**DRAFT)
        rows(location, "DELETE FROM audit")
        with pytest.raises(QuotaExceeded):
            eve.remember(**DRAFT)
        assert rows(location, "SELECT sum(items) FROM quota") == [(1,)]  # a refusal costs nothing


def test_expired_charges_are_deleted(location: str, clock: ManualClock) -> None:
    with MemoryStore.open(location, embedder=None, clock=clock) as store:
        for author in ("ann", "eve"):
            store.acting_as(POD, author=author, origin="bus").remember(**DRAFT)
        clock.now += 3600
        store.acting_as(POD, author="eve", origin="bus").remember(**DRAFT)
    assert rows(location, "SELECT author, at FROM quota") == [("eve", clock.now)]
