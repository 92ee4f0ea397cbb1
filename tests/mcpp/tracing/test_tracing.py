"""Spans of requests, with OpenTelemetry's own exporter in memory; and nothing without it."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

import mcpp
from mcpp import tracing
from mcpp.protocol import rpc
from mcpp.testing import MemoryPod
from mcpp.testing.comparison import are_alike

pytestmark = [pytest.mark.anyio, pytest.mark.rule("O-06")]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class Traced:
    """A provider whose spans stay in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind == kind]

    def one(self, kind: SpanKind) -> ReadableSpan:
        (span,) = self.spans(kind)
        return span


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    tracing.enable(made.provider)
    yield made
    tracing.disable()


def make_agent() -> mcpp.Participant:
    agent = mcpp.Participant("tools")

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @agent.tool
    def in_a_thread() -> str:
        return format(get_current_span().get_span_context().span_id, "016x")

    @agent.tool
    async def fail() -> str:
        raise ValueError("no luck")

    @agent.tool
    async def hang() -> None:
        await anyio.sleep_forever()

    @agent.tool
    async def show_meta(call: mcpp.ToolCall) -> dict[str, Any]:
        return dict(call.envelope.payload["params"].get("_meta", {}))

    return agent


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_call_is_a_client_span_and_a_server_span_of_one_trace(traced: Traced) -> None:
    pod = MemoryPod()
    async with (
        pod.run(make_agent()),
        pod.connect("alice") as alice,
        alice.context("task") as task,
    ):
        await task.call("tools", "add", a=1, b=2)
    client, server = traced.one(SpanKind.CLIENT), traced.one(SpanKind.SERVER)
    assert client.name == server.name == "tools/call add"
    assert client.context is not None
    assert server.context is not None
    assert server.context.trace_id == client.context.trace_id
    assert server.parent is not None
    assert server.parent.span_id == client.context.span_id
    assert client.parent is None
    sent = attributes(client)
    assert sent.pop("jsonrpc.request.id") == attributes(server)["jsonrpc.request.id"]
    assert sent == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "mcpp.peer": "tools",
        "mcpp.pod": "test",
    }
    assert attributes(server)["mcpp.peer"] == "alice"
    assert attributes(server)["mcpp.context.id"] == task.id
    assert client.status.status_code is StatusCode.UNSET


async def test_calls_nest_below_the_callers_span_and_within_a_tool_also_in_a_thread(
    traced: Traced,
) -> None:
    pod = MemoryPod()
    async with pod.run(make_agent()), pod.connect("alice") as alice:
        with traced.tracer.start_as_current_span("mine") as mine:
            seen = await alice.call("tools", "in_a_thread")
    client, server = traced.one(SpanKind.CLIENT), traced.one(SpanKind.SERVER)
    assert client.parent is not None
    assert server.context is not None
    assert client.parent.span_id == mine.get_span_context().span_id
    assert seen.text == format(server.context.span_id, "016x")


async def test_what_an_agent_was_started_in_is_linked_and_is_no_parent(traced: Traced) -> None:
    pod = MemoryPod()
    with traced.tracer.start_as_current_span("start") as start:
        async with pod.run(make_agent()), pod.connect("alice") as alice:
            token = context.attach(context.Context())
            payload = rpc.request("x", "tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}})
            await alice.send("mcp/request:tools/call:add", payload, to="tools")
            assert (await anext(alice)).kind.startswith("mcp/response")
            context.detach(token)
    server = traced.one(SpanKind.SERVER)
    assert server.parent is None
    assert [link.context for link in server.links] == [start.get_span_context()]


@pytest.mark.parametrize(
    ("tool", "arguments", "type", "code"),
    [
        ("fail", {}, "tool_error", None),
        ("add", {"a": "x", "b": 1}, str(rpc.INVALID_PARAMS), str(rpc.INVALID_PARAMS)),
        ("absent", {}, str(rpc.INVALID_PARAMS), str(rpc.INVALID_PARAMS)),
    ],
)
async def test_a_failed_call_has_the_type_of_its_error_on_both_sides(
    traced: Traced, tool: str, arguments: dict[str, Any], type: str, code: str | None
) -> None:
    pod = MemoryPod()
    async with pod.run(make_agent()), pod.connect("alice") as alice:
        with pytest.raises(mcpp.CallError):
            await alice.call("tools", tool, arguments)
    for kind in (SpanKind.CLIENT, SpanKind.SERVER):
        span = traced.one(kind)
        assert span.status.status_code is StatusCode.ERROR
        assert attributes(span)["error.type"] == type
        assert attributes(span).get("rpc.response.status_code") == code


async def test_timeouts_absence_and_refusals_are_errors_of_the_client_span(traced: Traced) -> None:
    pod = MemoryPod()
    pod.add("guest", capabilities=[{"kind": "chat"}])
    async with (
        pod.run(make_agent()),
        pod.connect("alice") as alice,
        pod.connect("guest") as guest,
    ):
        with pytest.raises(mcpp.NoAnswerError):
            await alice.call("tools", "hang", timeout=0.05)
        with pytest.raises(mcpp.AbsentError):
            await alice.call("nobody", "hang")
        with pytest.raises(mcpp.Refused):
            await guest.call("tools", "add", a=1, b=2)
    types = [attributes(span)["error.type"] for span in traced.spans(SpanKind.CLIENT)]
    assert types == ["timeout", "AbsentError", "capability_violation"]


async def test_a_cancelled_call_is_marked_on_both_sides(traced: Traced) -> None:
    pod = MemoryPod()
    async with pod.run(make_agent()), pod.connect("alice") as alice:
        with anyio.move_on_after(0.05):
            await alice.call("tools", "hang")
    assert attributes(traced.one(SpanKind.CLIENT))["error.type"] == "cancelled"
    assert attributes(traced.one(SpanKind.SERVER))["error.type"] == "cancelled"


async def test_baggage_and_trace_state_arrive_and_go_on(traced: Traced) -> None:
    pod = MemoryPod()
    relay = mcpp.Participant("relay")

    @relay.tool
    async def forward(call: mcpp.ToolCall) -> dict[str, Any]:
        return (await call.pod.call("tools", "show_meta")).value  # type: ignore[no-any-return]

    meta = {"traceparent": PARENT, "tracestate": "rojo=1", "baggage": "user=alice"}
    async with pod.run(make_agent()), pod.run(relay), pod.connect("alice") as alice:
        params = {"name": "forward", "arguments": {}, "_meta": meta}
        result = await alice.request("relay", "tools/call", params)
    seen = result["structuredContent"]
    assert seen["traceparent"].split("-")[1] == TRACE
    assert seen["traceparent"] != PARENT
    assert (seen["tracestate"], seen["baggage"]) == ("rojo=1", "user=alice")
    assert len({span.context.trace_id for span in traced.exporter.get_finished_spans()}) == 1


async def test_own_baggage_is_sent(traced: Traced) -> None:
    pod = MemoryPod()
    async with pod.run(make_agent()), pod.connect("alice") as alice:
        token = context.attach(baggage.set_baggage("tenant", "blue"))
        seen = (await alice.call("tools", "show_meta")).value
        context.detach(token)
    assert seen["baggage"] == "tenant=blue"


@pytest.mark.parametrize(
    "meta",
    [
        None,
        [],
        "x",
        {"traceparent": 7},
        {"traceparent": ["00"]},
        {"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"},
        {"traceparent": PARENT + "x" * 1_000_000},
        {"traceparent": "?", "tracestate": {"a": 1}, "baggage": "=,=;" * 500},
        {"tracestate": "a=b", "baggage": "a=b"},
    ],
)
async def test_an_invalid_trace_context_is_ignored(traced: Traced, meta: Any) -> None:
    pod = MemoryPod()
    params = {"name": "add", "arguments": {"a": 1, "b": 2}, "_meta": meta}
    async with pod.run(make_agent()), pod.connect("alice") as alice:
        payload = rpc.request("x", "tools/call", params)
        await alice.send("mcp/request:tools/call:add", payload, to="tools")
        answer = await anext(alice)
    assert answer.payload["result"]["structuredContent"] == {"result": 3}
    assert traced.one(SpanKind.SERVER).parent is None


async def test_a_fulfilled_proposal_may_carry_another_trace(traced: Traced) -> None:
    """The request is compared with the proposal without `_meta`."""
    pod = MemoryPod()
    async with (
        pod.run(make_agent()),
        pod.connect("alice") as alice,
        pod.connect("bob") as bob,
    ):
        proposal = await bob.propose("tools", "add", a=2, b=2)
        async for message in alice:
            if message.kind.startswith("mcp/proposal"):
                await alice.approve(message)
                break
        assert (await proposal.result(5)).value == 4


def test_recordings_are_compared_without_their_trace() -> None:
    def request(**params: Any) -> mcpp.Envelope:
        payload = rpc.request("1", "tools/call", {"name": "x", **params})
        return mcpp.new_envelope("mcp/request:tools/call:x", payload, sender="a", to=["b"])

    plain, traced = request(), request(_meta={"traceparent": PARENT})
    assert are_alike(plain, traced, "exact")
    other = request(_meta={"traceparent": PARENT, "progressToken": 1})
    assert not are_alike(plain, other, "exact")


async def test_without_tracing_a_trace_context_of_the_caller_still_arrives() -> None:
    pod = MemoryPod()
    async with pod.run(make_agent()), pod.connect("alice") as alice:
        params = {"name": "show_meta", "arguments": {}, "_meta": {"traceparent": PARENT}}
        given = await alice.request("tools", "tools/call", params)
        plain = await alice.call("tools", "show_meta")
    assert given["structuredContent"] == {"traceparent": PARENT}
    assert plain.value == {}


def test_the_sdk_does_not_import_opentelemetry_by_itself() -> None:
    script = (
        "import sys, anyio, mcpp, mcpp.tracing\n"
        "from mcpp.testing import MemoryPod\n"
        "agent = mcpp.Participant('tools')\n"
        "@agent.tool\n"
        "async def one() -> int: return 1\n"
        "async def main():\n"
        "    pod = MemoryPod()\n"
        "    async with pod.run(agent), pod.connect('alice') as alice:\n"
        "        await alice.call('tools', 'one')\n"
        "anyio.run(main)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
