"""The bridge with an MCP server that misbehaves on purpose."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, JSONRPCResponse

import mcpp
from mcpp import Progress
from mcpp.client.tasks import background
from mcpp.errors import RemoteError
from mcpp.testing import MemoryPod
from mcpp_agents.bridge.agent import bridge
from mcpp_agents.bridge.headers import drop_invalid_tools
from mcpp_agents.bridge.openers import Open, StartError, over_http, over_stdio
from mcpp_agents.bridge.request_spans import RequestSpans
from mcpp_agents.bridge.upstream import Upstream
from tests.agents.http_server import QuietHandler, serve_http
from tests.agents.processes import BOUND, Commands, RunningCommand
from tests.interaction.conftest import SocketPod

pytestmark = pytest.mark.anyio
ODD_SERVER = [sys.executable, str(Path(__file__).with_name("odd_server.py"))]


@asynccontextmanager
async def bridged(pod: MemoryPod, open: Open | None = None) -> AsyncIterator[mcpp.Pod]:
    """Bridge a server, by default `odd_server.py`, as `odd`; join as `alice`."""
    upstream = Upstream(open or over_stdio(ODD_SERVER), backoff=lambda attempt: 0.0, name="odd")
    async with background() as tasks:
        await tasks.start(upstream.keep_running)
        async with pod.run(bridge("odd", upstream)), pod.connect("alice") as alice:
            with anyio.fail_after(BOUND):
                yield alice


@asynccontextmanager
async def started_bridge(commands: Commands) -> AsyncIterator[RunningCommand]:
    """Run `mcpp bridge` for `odd_server.py` and wait until it has joined."""
    async with commands.start("odd", "bridge", "odd", "--", *ODD_SERVER) as command:
        await command.line_with("odd is in the pod")
        yield command


async def test_meta_is_forwarded_unchanged_both_ways(pod: MemoryPod) -> None:
    async with bridged(pod) as alice:
        meta = {"traceparent": "00-ab-cd-01", "acme/x": {"deep": [1, None, {"y": None}]}}
        params = {"name": "show_meta", "arguments": {"nothing": None}, "_meta": meta}
        result = await alice.request("odd", "tools/call", params)
        assert json.loads(result["content"][0]["text"]) == meta
        assert result["_meta"] == {"context": {"lifecycle": "transient", "summary": "all of it"}}
        assert result["x-unknown"] == [1, None]


async def test_a_call_in_a_context_is_answered_in_it_with_its_progress(pod: MemoryPod) -> None:
    progressed = anyio.Event()

    def on_progress(progress: Progress) -> None:
        progressed.set()

    async with bridged(pod) as alice, pod.connect("bob") as bob:
        async with alice.context("task", id="t1") as task, background() as tasks:

            async def wait() -> None:
                await alice.call("odd", "wait", context=task, on_progress=on_progress)

            tasks.start_soon(wait)
            await progressed.wait()
            await task.call("odd", "was_cancelled")
        seen = [await anext(bob) for _ in range(4)]
        assert {message.context.id if message.context else None for message in seen} == {"t1"}


async def test_cancelling_a_call_cancels_it_at_the_server(pod: MemoryPod) -> None:
    async with bridged(pod) as alice:
        with anyio.CancelScope() as scope:
            await alice.call("odd", "wait", on_progress=lambda progress: scope.cancel())
        while (await alice.call("odd", "was_cancelled")).value != "true":
            pass


async def test_a_list_change_is_forwarded_to_the_pod(pod: MemoryPod) -> None:
    async with bridged(pod) as alice:
        await alice.call("odd", "grow")
        kinds = [message.kind async for message in _until(alice, "list_changed")]
        assert kinds[-1] == "mcp/notification:notifications/tools/list_changed"
        names = [tool["name"] for tool in (await alice.request("odd", "tools/list"))["tools"]]
        assert "grown" in names


@pytest.mark.parametrize("limits", [{"messages_per_second": 50, "burst": 50}])
async def test_a_flood_of_list_changes_does_not_delay_answers(pod: MemoryPod) -> None:
    async with bridged(pod) as alice:
        assert (await alice.call("odd", "chatter")).text == '"at last"'
        assert (await alice.call("odd", "was_cancelled")).value == "false"


async def test_a_call_in_flight_when_the_server_dies_gets_a_clear_error(pod: MemoryPod) -> None:
    async with bridged(pod) as alice:
        with pytest.raises(RemoteError, match="odd ended before it answered"):
            await alice.call("odd", "die")
        # Wait until it runs again: asyncio loses a process whose start is cancelled.
        assert (await alice.call("odd", "was_cancelled")).value == "false"


async def test_a_server_that_died_is_started_again_and_its_lists_count_as_changed(
    pod: MemoryPod,
) -> None:
    async with bridged(pod) as alice:
        for _ in range(3):
            with pytest.raises(RemoteError):
                await alice.call("odd", "die")
            assert [m async for m in _until(alice, "prompts/list_changed")]
            assert (await alice.call("odd", "was_cancelled")).value == "false"


def test_tools_with_invalid_annotations_of_headers_are_not_offered() -> None:
    def schema(**annotated: Any) -> dict[str, Any]:
        return {"type": "object", "properties": {"a": {"type": "string"} | annotated}}

    tools = [
        {"name": "plain", "inputSchema": schema()},
        {"name": "valid", "inputSchema": schema(**{"x-mcp-header": "Region"})},
        {"name": "empty", "inputSchema": schema(**{"x-mcp-header": ""})},
        {"name": "spaced", "inputSchema": schema(**{"x-mcp-header": "My Region"})},
        {"name": "number", "inputSchema": schema(**{"x-mcp-header": "R", "type": "number"})},
    ]
    kept = drop_invalid_tools({"tools": tools, "nextCursor": "2"})
    assert [tool["name"] for tool in kept["tools"]] == ["plain", "valid"]
    assert kept["nextCursor"] == "2"


async def test_a_line_of_40_megabytes_delays_no_other_call(pod: MemoryPod) -> None:
    async with bridged(pod) as alice, background() as tasks:

        async def fail() -> None:
            with pytest.raises(RemoteError, match="too long"):
                await alice.call("odd", "huge")
            refused.set()

        refused = anyio.Event()
        tasks.start_soon(fail)
        with anyio.fail_after(BOUND / 2):
            assert (await alice.call("odd", "was_cancelled")).value == "false"
            await refused.wait()


@contextmanager
def session_server(
    refusal: int = 400, *, refuses_all: bool = False
) -> Iterator[tuple[str, set[str]]]:
    """Serve MCP sessions over HTTP; yield the URL and the set of valid sessions.

    Requests of other sessions are refused with the status `refusal`, and with `refuses_all` new
    sessions too.
    """
    sessions: set[str] = set()

    class SessionHandler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802
            request = json.loads(self.read_body())
            opened = ""
            answer: dict[str, Any] = {"error": {"code": -32603, "message": "unknown session"}}
            if request["method"] == "initialize" and not refuses_all:
                opened = uuid4().hex
                sessions.add(opened)
                version = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                answer = {"result": version | {"serverInfo": {"name": "f", "version": "1"}}}
            elif self.headers.get("mcp-session-id") in sessions:
                answer = {"error": {"code": -32602, "message": "no such tool"}}
                if request["method"] != "tools/call":
                    answer = {"result": {}}
            elif refusal != 400:
                self.send_response(refusal)
                self.finish_with(b'"not JSON-RPC"')
                return
            self.send_response(400 if "error" in answer else 200 if "id" in request else 202)
            self.send_header("Content-Type", "application/json")
            if opened:
                self.send_header("mcp-session-id", opened)
            body = {"jsonrpc": "2.0", "id": request.get("id")} | answer
            self.finish_with(json.dumps(body).encode())

        def do_GET(self) -> None:  # noqa: N802
            self.send_response(405)
            self.finish_with(b"{}")

        do_DELETE = do_GET  # noqa: N815

    with serve_http(SessionHandler) as url:
        yield f"{url}/mcp", sessions


async def test_a_server_that_lost_the_session_is_connected_to_again(
    pod: MemoryPod,
) -> None:
    with session_server() as (url, sessions), anyio.fail_after(BOUND):
        async with bridged(pod, over_http(url)) as alice:
            with pytest.raises(RemoteError, match="no such tool"):
                await alice.call("odd", "x")
            (first,) = sessions  # an error within a session does not end it
            sessions.clear()
            with pytest.raises(RemoteError, match="no such tool"):
                await alice.call("odd", "x")
            assert sessions
            assert first not in sessions


@pytest.mark.parametrize("status", [400, 404])
async def test_a_call_in_a_lost_session_is_repeated_in_the_next_one(
    pod: MemoryPod, status: int
) -> None:
    with session_server(status) as (url, sessions):
        async with bridged(pod, over_http(url)) as alice:
            sessions.clear()
            with pytest.raises(RemoteError, match="no such tool"):
                await alice.call("odd", "x")
            assert sessions


async def test_a_refusal_over_http_is_reported_with_the_status(pod: MemoryPod) -> None:
    with session_server(503) as (url, sessions):
        async with bridged(pod, over_http(url)) as alice:
            sessions.clear()
            with pytest.raises(RemoteError, match="odd refused it with HTTP 503"):
                await alice.call("odd", "x")


async def test_an_invalid_answer_and_one_in_a_batch_reach_the_requester(pod: MemoryPod) -> None:
    async with bridged(pod) as alice:
        with pytest.raises(RemoteError, match="the MCP server's answer is not valid JSON-RPC"):
            await alice.call("odd", "list")
        assert (await alice.call("odd", "batch")).text == "1"


@pytest.mark.parametrize(
    ("tool", "text"), [("no_utf8", '"caf\ufffd"'), ("half_emoji", "well done \ufffd")]
)
async def test_an_invalid_utf8_byte_and_a_lone_surrogate_are_replaced(
    pod: MemoryPod, tool: str, text: str
) -> None:
    async with bridged(pod) as alice:
        assert (await alice.call("odd", tool)).text == text
        assert (await alice.call("odd", "was_cancelled")).value == "false"


@pytest.mark.parametrize("tool", ["deep", "nan"])
async def test_a_result_that_does_not_fit_into_an_envelope_is_an_error_for_the_requester(
    pod: MemoryPod, tool: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with bridged(pod) as alice:
        with pytest.raises(
            RemoteError,
            match="odd returned an answer that does not fit into an envelope",
        ):
            await alice.call("odd", tool)
    ours = [record for record in caplog.records if record.name.startswith("mcpp")]
    assert not [record for record in ours if record.exc_info]


async def test_errors_are_forwarded_unchanged_and_noise_is_ignored(pod: MemoryPod) -> None:
    async with bridged(pod) as alice:
        with pytest.raises(RemoteError) as raised:
            await alice.request("odd", "prompts/list")
        assert (raised.value.code, raised.value.message) == (-32601, "no prompts/list")
        assert raised.value.data == [7]
        assert (await alice.call("odd", "babble")).value == '"recovered"'


async def test_an_error_with_the_code_of_a_closed_connection_ends_no_server(pod: MemoryPod) -> None:
    async with bridged(pod) as alice:
        await alice.call("odd", "grow")
        with pytest.raises(RemoteError, match="not today"):
            await alice.call("odd", "refuse")
        names = [tool["name"] for tool in (await alice.request("odd", "tools/list"))["tools"]]
        assert "grown" in names  # it is the same process


def test_requests_that_are_never_answered_do_not_pile_up() -> None:
    spans = RequestSpans()
    for number in range(1_000):
        spans.ask(JSONRPCRequest(jsonrpc="2.0", id=number, method="tools/list"))
    assert len(spans._open) == 64
    spans.answer(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=999, result={})))
    assert len(spans._open) == 63


async def test_a_sampling_request_of_a_server_is_refused(pod: MemoryPod) -> None:
    async with bridged(pod) as alice:
        error = json.loads((await alice.call("odd", "ask")).text)
        assert error["message"] == "Sampling not supported"


async def test_a_program_that_does_not_exist_is_reported_at_once() -> None:
    async with background() as tasks:
        with pytest.raises(StartError, match="no-such-program"):
            await tasks.start(Upstream(over_stdio(["no-such-program"])).keep_running)


async def test_the_reason_why_a_server_cannot_start_is_reported(
    sockets: SocketPod, commands: Commands
) -> None:
    short = ("--", sys.executable, "-c", "")
    async with commands.start("odd", "bridge", "odd", *short) as command:
        expected = "odd's MCP server ended while it was starting; starting it again"
        assert await command.line() == f"mcpp bridge: {expected}"
    with session_server(503, refuses_all=True) as (url, _):
        async with commands.start("odd", "bridge", "odd", "--http", url) as command:
            assert (await command.line()).endswith(" (HTTP 503); trying again")


async def test_a_server_that_never_answers_is_reported_and_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent = over_stdio([sys.executable, "-c", "import sys; sys.stdin.read()"])
    opened = anyio.Semaphore(0)

    @asynccontextmanager
    async def open() -> AsyncIterator[object]:
        opened.release()
        async with silent() as streams:
            yield streams

    upstream = Upstream(open, backoff=lambda _: 0.0, start_seconds=0.01, open_seconds=0.1)
    with anyio.fail_after(BOUND):
        async with background() as tasks:
            tasks.start_soon(upstream.keep_running)
            await opened.acquire()
            await opened.acquire()
    logged = [record.getMessage() for record in caplog.records if record.name.startswith("mcpp")]
    assert logged[0] == "the MCP server has not answered yet; waiting for it"
    assert "the MCP server has not answered; starting it again" in logged


async def test_the_command_runs_a_server_and_ctrl_c_ends_both(
    sockets: SocketPod, commands: Commands
) -> None:
    async with started_bridge(commands) as command:
        async with sockets.connect("alice") as alice:
            with anyio.fail_after(BOUND):
                while "odd" not in alice.participants:
                    await anext(alice)
            assert (await alice.call("odd", "was_cancelled")).value == "false"
        assert await command.interrupt() == 0


async def test_a_second_ctrl_c_leaves_no_server_behind(
    sockets: SocketPod, commands: Commands, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    slow = (
        "import runpy, sys\n"
        f"runpy.run_path({ODD_SERVER[1]!r}, run_name='__main__')\n"
        "sys.stderr.write('ending\\n')\n"
        "sys.stderr.flush()\n"
        f"open({str(gate)!r}).read()\n"
        "sys.stderr.write('ended\\n')\n"
    )
    async with commands.start("odd", "bridge", "odd", "--", sys.executable, "-c", slow) as command:
        await command.line_with("odd is in the pod")
        command.process.send_signal(signal.SIGINT)
        await command.line_with("ending")
        command.process.send_signal(signal.SIGINT)
        with anyio.fail_after(BOUND):
            async with await anyio.open_file(gate, "w"):
                pass
        await command.line_with("ended")
        assert await command.wait() == 0


async def test_noise_of_a_server_is_reported_in_one_line(
    sockets: SocketPod, commands: Commands
) -> None:
    async with started_bridge(commands) as command:
        async with sockets.connect("alice") as alice:
            await alice.call("odd", "babble")
        assert "wrote 1 lines (20 bytes) that are not JSON-RPC" in await command.line()
        assert await command.interrupt() == 0
        with pytest.raises(anyio.IncompleteRead):
            await command.line()


@pytest.mark.rule("P-46")
async def test_the_server_inherits_only_what_every_program_needs_and_what_is_named(
    sockets: SocketPod, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("LIBRARY_KEY", "wanted")
    names = "sorted(name for name in os.environ if 'KEY' in name or name[:4] in ('MCPP', 'PATH'))"
    show = f"import os, sys; sys.stderr.write(str({names}) + chr(10))"
    named = ["bridge", "odd", "--env", "LIBRARY_KEY", "--", sys.executable, "-c", show]
    async with commands.start("odd", *named) as command:
        assert await command.line() == "['LIBRARY_KEY', 'PATH']"


def test_a_variable_that_is_not_set_is_an_error() -> None:
    with pytest.raises(StartError, match="has no MISSING"):
        over_stdio(ODD_SERVER, ["MISSING"], {})


async def _until(pod: mcpp.Pod, text: str) -> AsyncIterator[mcpp.Message]:
    async for message in pod:
        yield message
        if text in message.kind:
            return
