"""One trace across processes: a model agent, the bridge, and an MCP server of the official SDK."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import mcpp
from mcpp.client.local_pod import Address
from mcpp.errors import RemoteError
from mcpp.protocol.rpc import METHOD_NOT_FOUND
from mcpp.testing import MemoryPod
from mcpp.tracing import disable, enable
from mcpp_agents.bridge.request_spans import RequestSpans
from mcpp_agents.cli import tracing
from tests.agents.bridge.test_bridge import bridged
from tests.agents.model.model_server import Scripted, model_server
from tests.agents.otel.collector import collecting
from tests.agents.processes import Commands
from tests.interaction.conftest import SocketPod

pytestmark = [pytest.mark.anyio, pytest.mark.rule("O-06")]
SERVER = [sys.executable, str(Path(__file__).with_name("traced_server.py"))]
INTERNAL, SPAN_SERVER, CLIENT = 1, 2, 3


@asynccontextmanager
async def joined_command(commands: Commands, name: str, *arguments: str) -> AsyncIterator[None]:
    """Run a command that is in the pod. Its imports take many seconds on a busy machine."""
    async with commands.start(name, *arguments) as command:
        for is_last in (False, False, True):
            try:
                await command.line_with(f"{name} is in the pod")
                break
            except TimeoutError:
                if is_last:
                    raise
        yield


@pytest.mark.slow
async def test_agent_bridge_and_server_share_one_trace(
    sockets: SocketPod, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [
        Scripted(calls=[("traced__show_trace", {})]),
        Scripted(text="seen"),
    ]
    with collecting() as collector, model_server(script) as model:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        bridge = ["bridge", "traced", "--env", "OTEL_EXPORTER_OTLP_ENDPOINT", "--", *SERVER]
        agent = ["agent", "--model", "openai:m", "--base-url", f"{model.url}/v1"]
        async with (
            joined_command(commands, "traced", *bridge),
            joined_command(commands, "model", *agent),
        ):
            sockets.add("alice")
            address = Address(sockets.url, sockets.token("alice"))
            async with mcpp.connect(address, last=0) as alice:
                reply = await alice.ask("model", "@model which trace is it?")
                assert reply.text == "seen"
                results = [
                    str(message.payload)
                    async for message in alice.history()
                    if message.kind.startswith("mcp/response:tools/call")
                ]
            names = ["invoke_agent model", *["chat m"] * 2, *["tools/call show_trace"] * 4]
            arrived = await anyio.to_thread.run_sync(collector.wait_for, *names)
    (root,) = (span for span in arrived if span.name == "invoke_agent model")
    spans = [span for span in collector.spans if span.trace == root.trace]
    assert root.service == "model"
    chats = [span for span in spans if span.name == "chat m"]
    assert [chat.parent for chat in chats] == [root.id, root.id]
    assert chats[0].kind == CLIENT
    assert {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.usage.input_tokens": 90,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.response.finish_reasons": ["tool_calls"],
        "server.address": "127.0.0.1",
    }.items() <= chats[0].attributes.items()
    chain = [span for span in spans if span.name == "tools/call show_trace"]
    by_place = {(span.service, span.kind): span for span in chain}
    called, served = by_place["model", CLIENT], by_place["traced", SPAN_SERVER]
    passed_on, reached = by_place["traced", CLIENT], by_place["the server", SPAN_SERVER]
    assert [called.parent, served.parent, passed_on.parent, reached.parent] == [
        root.id,
        called.id,
        served.id,
        passed_on.id,
    ]
    for span in chain:
        assert span.attributes["gen_ai.tool.name"] == "show_trace"
        assert span.attributes["mcp.method.name"] == "tools/call"
    assert f"00-{root.trace}-{passed_on.id}-0" in results[0]


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of the process, those of the MCP SDK included."""
    made, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(made))
    monkeypatch.setattr("mcp.shared._otel._tracer", provider.get_tracer("sdk"))
    enable(provider)
    yield made
    disable()


async def test_what_a_server_does_not_offer_is_no_error_and_what_fails_is(
    pod: MemoryPod, exporter: InMemorySpanExporter
) -> None:
    async with bridged(pod) as alice:
        with pytest.raises(RemoteError):
            await alice.request("odd", "prompts/list")
        with pytest.raises(RemoteError):
            await alice.request("odd", "resources/read", {"uri": "odd://absent"})
    failed: dict[str, list[bool]] = {}
    for span in exporter.get_finished_spans():
        is_error = span.status.status_code is StatusCode.ERROR
        failed.setdefault(span.name, []).append(is_error)
    # The caller's, the bridge's, and the one to the server: for a card, the bridge asks itself.
    assert failed.pop("resources/read") == [True] * 3
    assert failed.pop("prompts/list") == [False] * 4
    for name in ("server/discover", "initialize", "ping", "resources/list", "tools/list"):
        assert not any(failed[name]), name


@pytest.mark.parametrize(("code", "is_error"), [(METHOD_NOT_FOUND, False), (-32603, True)])
def test_a_server_that_announces_no_changes_is_no_error(
    exporter: InMemorySpanExporter, code: int, is_error: bool
) -> None:
    provider, requests = TracerProvider(), RequestSpans()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # As the MCP SDK does at the start of each connection, in a span of its own.
    with provider.get_tracer("sdk").start_as_current_span("listen") as span:
        request = JSONRPCRequest(jsonrpc="2.0", id="listen-1", method="subscriptions/listen")
        requests.ask(request)
        error = JSONRPCError(jsonrpc="2.0", id=request.id, error=ErrorData(code=code, message="no"))
        requests.answer(SessionMessage(error))
        span.set_status(StatusCode.ERROR)
    (found,) = exporter.get_finished_spans()
    assert found.name == "subscriptions/listen"
    assert (found.status.status_code is StatusCode.ERROR) == is_error


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
    ],
)
def test_the_environment_says_whether_commands_trace(
    environ: dict[str, str], wanted: str | None
) -> None:
    assert tracing._wanted(environ) == wanted


def test_an_unknown_exporter_is_named() -> None:
    with pytest.raises(mcpp.McppError, match="otlp, console or none, not 'jaeger'"):
        tracing.make_exporter("jaeger")
