"""The gateway's `/mcp`: streamable HTTP for the official MCP client and for hostile requests."""

import asyncio
import base64
import json
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
import mcp_types as types
import pytest
import trustme
from anyio.abc import SocketStream
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from mcpp import Participant, ToolResult
from mcpp.agent.tools import ToolCall
from mcpp_agents.mcp_server import http_server
from mcpp_gateway.edge.web.mcp_service import McpService
from tests.agents.processes import BOUND
from tests.gateway.sockets import running
from tests.gateway.tokens.issuer import LoopbackIssuer
from tests.gateway.tokens.test_sockets_tokens import issuer_config
from tests.interaction.conftest import SocketPod

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
Mode = Literal["auto", "legacy"]
ACCEPT = "application/json, text/event-stream"


def base_of(sockets: SocketPod) -> str:
    return sockets.url.replace("ws://", "http://").partition("/ws")[0]


@asynccontextmanager
async def client_of(
    sockets: SocketPod, name: str, path: str = "/mcp", mode: Mode = "auto", **options: Any
) -> AsyncIterator[Client]:
    """Connect the official client to the gateway with a participant's token."""
    headers = {"Authorization": f"Bearer {sockets.token(name)}"}
    with anyio.fail_after(2 * BOUND):
        async with (
            httpx2.AsyncClient(headers=headers, timeout=BOUND) as http,
            Client(
                streamable_http_client(base_of(sockets) + path, http_client=http),
                mode=mode,
                cache=None,
                **options,
            ) as client,
        ):
            yield client


def calculator() -> Participant:
    agent = Participant("calc")

    @agent.tool
    async def add(a: int, b: int, call: ToolCall) -> int:
        await call.progress(1, 2, "adding")
        return a + b

    @agent.tool
    async def who(call: ToolCall) -> str:
        return call.sender

    @agent.tool
    async def ask(call: ToolCall) -> str:
        schema = {"type": "object", "properties": {}}
        params = {"mode": "form", "message": "Sure?", "requestedSchema": schema}
        meta = {"_meta": {"mcpp/call": call.envelope.id}}
        return str(await call.pod.request(call.sender, "elicitation/create", params | meta))

    return agent


@pytest.mark.rule("G-70")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_many_clients_of_several_participants_are_served_by_one_process(
    sockets: SocketPod, mode: Mode
) -> None:
    for name in ("ide", "bot"):
        sockets.add(name)
    progressed: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        progressed.append(progress)

    async with (
        sockets.run(calculator()),
        client_of(sockets, "ide", mode=mode) as first,
        client_of(sockets, "ide", mode=mode) as second,
        client_of(sockets, "bot", mode=mode) as other,
    ):
        for client, name in ((first, "ide"), (second, "ide"), (other, "bot")):
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"pod_send", "pod_ask", "calc__add"} <= names
            called = await client.call_tool("calc__who")
            assert name in called.model_dump_json()
        result = await first.call_tool("calc__add", {"a": 2, "b": 3}, progress_callback=on_progress)
        assert result.structured_content == {"result": 5}
        assert progressed == [1]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_question_reaches_the_client_whose_call_led_to_it(
    sockets: SocketPod, mode: Mode
) -> None:
    sockets.add("ide")

    def answering(asked: list[str]) -> Any:
        async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            asked.append(params.message)
            return types.ElicitResult(action="accept", content={})

        return elicit

    mine: list[str] = []
    others: list[str] = []
    async with (
        sockets.run(calculator()),
        client_of(sockets, "ide", mode=mode, elicitation_callback=answering(others)) as other,
        client_of(sockets, "ide", mode=mode, elicitation_callback=answering(mine)) as client,
    ):
        await other.list_tools()
        assert "accept" in (await client.call_tool("calc__ask")).model_dump_json()
    assert (mine, others) == (["Sure?"], [])


async def test_one_participant_is_served_under_its_own_names(sockets: SocketPod) -> None:
    sockets.add("ide")
    async with sockets.run(calculator()), client_of(sockets, "ide", "/mcp/calc") as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["add", "who", "ask"]
        assert (await client.call_tool("add", {"a": 1, "b": 1})).structured_content == {"result": 2}


@pytest.mark.rule("G-70")
@pytest.mark.parametrize(
    ("headers", "path", "status"),
    [
        ({}, "/mcp", 401),
        ({"Authorization": "Bearer wrong"}, "/mcp", 401),
        ({"Origin": "http://evil.example"}, "/mcp", 403),
        ({}, "/mcpx", 405),
    ],
)
async def test_a_request_without_a_token_does_not_reach_the_process(
    sockets: SocketPod, headers: dict[str, str], path: str, status: int
) -> None:
    async with httpx2.AsyncClient() as http:
        refused = await http.post(base_of(sockets) + path, headers=headers, json={})
    assert refused.status_code == status
    assert sockets._gateway.mcp is not None
    assert sockets._gateway.mcp._process is None


@pytest.mark.rule("G-70")
@pytest.mark.parametrize("length", [4 * 1024 * 1024 + 1, 16_000_000])
async def test_a_client_learns_that_its_request_is_too_long(
    sockets: SocketPod, length: int
) -> None:
    sockets.add("ide")
    headers = {"Authorization": f"Bearer {sockets.token('ide')}"}
    async with httpx2.AsyncClient(timeout=BOUND) as http:
        answer = await http.post(f"{base_of(sockets)}/mcp", headers=headers, content=b" " * length)
    assert answer.status_code == 413


@pytest.mark.rule("G-70")
@pytest.mark.parametrize("length", ["\xb2", "-1", "1\r\nContent-Length: 2", "9" * 5000])
async def test_a_length_that_is_not_valid_is_refused(sockets: SocketPod, length: str) -> None:
    sockets.add("ide")
    base = httpx2.URL(base_of(sockets))
    assert base.port is not None
    head = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost:{base.port}\r\n"
        f"Authorization: Bearer {sockets.token('ide')}\r\nContent-Length: {length}\r\n\r\n"
    )
    with anyio.fail_after(BOUND):
        async with await anyio.connect_tcp(base.host, base.port) as client:
            await client.send(head.encode("latin-1"))
            assert (await client.receive()).startswith(b"HTTP/1.1 400 ")


@dataclass(frozen=True)
class OldClients:
    """Clients of an older revision, at the application itself."""

    http: httpx2.AsyncClient

    async def post(self, session: str | None, method: str, **params: Any) -> httpx2.Response:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        named = {} if session is None else {"Mcp-Session-Id": session}
        return await self.http.post("/mcp", json=request, headers=named)

    async def initialize(self) -> str:
        info = {"name": "old", "version": "1"}
        given = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        begun = await self.post(None, "initialize", **given)
        assert begun.status_code == 200
        return str(begun.headers["Mcp-Session-Id"])


@asynccontextmanager
async def old_clients(sockets: SocketPod, ca: str | None = None) -> AsyncIterator[OldClients]:
    sockets.add("ide")
    app = http_server.PodHttpServer(sockets.url, ca=ca)
    headers = {"Authorization": f"Bearer {sockets.token('ide')}", "Accept": ACCEPT}
    transport = httpx2.ASGITransport(app)
    async with (
        app.running(),
        httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", headers=headers
        ) as http,
    ):
        yield OldClients(http)


async def test_a_gateway_of_ones_own_authority_is_joined(tmp_path: Path) -> None:
    authority, trusted = trustme.CA(), tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(trusted)
    certificate = authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem
    certificate.write_to_path(tmp_path / "gateway.pem")
    pod = SocketPod(tls=tmp_path / "gateway.pem")
    try:
        async with old_clients(pod, ca=str(trusted)) as clients:
            assert await clients.initialize()
    finally:
        pod.close()


async def test_clients_that_come_first_at_the_same_time_keep_their_sessions(
    sockets: SocketPod,
) -> None:
    sessions: list[str] = []
    async with old_clients(sockets) as clients:

        async def begin() -> None:
            sessions.append(await clients.initialize())

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(begin)
        answers = [await clients.post(session, "ping") for session in sessions]
    assert [answer.status_code for answer in answers] == [200] * 3


async def test_sessions_of_clients_that_are_gone_do_not_keep_others_out(
    sockets: SocketPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_SESSIONS", 3)
    async with old_clients(sockets) as clients:
        kept = await clients.initialize()
        lost = await clients.initialize()
        for _ in range(10):
            newest = await clients.initialize()
            assert (await clients.post(kept, "ping")).status_code == 200
        assert (await clients.post(newest, "ping")).status_code == 200
        assert (await clients.post(lost, "ping")).status_code == 404


@pytest.mark.rule("G-70", "P-43")
async def test_requests_without_an_end_leave_places_to_other_participants(
    sockets: SocketPod,
) -> None:
    for name in ("hog", "ide"):
        sockets.add(name)
    service = sockets._gateway.mcp
    assert service is not None
    service.requests.places = 4
    host, _, port = base_of(sockets).removeprefix("http://").partition(":")

    async def begin(name: str) -> SocketStream:
        line = await anyio.connect_tcp(host, int(port))
        await line.send(
            f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 9\r\n"
            f"Authorization: Bearer {sockets.token(name)}\r\n\r\n".encode()
        )
        return line

    async with AsyncExitStack() as stack:
        with anyio.fail_after(BOUND):
            held = [await stack.enter_async_context(await begin("hog")) for _ in range(2)]
            while service.requests.held("test/hog") < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            refused = await stack.enter_async_context(await begin("hog"))
            assert b" 503 " in await refused.receive()
            for line in (held[0], await stack.enter_async_context(await begin("ide"))):
                await line.send(b"012345678")
                assert b"HTTP/1.1 4" in await line.receive()  # what it says is no request


async def test_a_participant_that_is_absent_is_not_found(sockets: SocketPod) -> None:
    sockets.add("ide")
    headers = {"Authorization": f"Bearer {sockets.token('ide')}"}
    async with httpx2.AsyncClient(timeout=BOUND) as http:
        answer = await http.post(f"{base_of(sockets)}/mcp/nobody", headers=headers, json={})
    assert answer.status_code == 404


@pytest.mark.rule("G-70")
async def test_the_process_ends_with_the_gateway_and_is_started_again_if_it_dies(
    sockets: SocketPod, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mcpp.gateway")  # as the command does
    sockets.add("ide")
    for _ in range(2):
        async with client_of(sockets, "ide") as client:
            assert (await client.list_tools()).tools
        service = sockets._gateway.mcp
        assert service is not None
        assert service._process is not None
        os.kill(service._process.pid, 9)
        with anyio.fail_after(BOUND):
            while service._process.returncode is None:  # noqa: ASYNC110
                await anyio.sleep(0.01)


@pytest.mark.rule("G-48")
async def test_the_process_writes_json_lines_where_the_gateway_does(
    capfd: pytest.CaptureFixture[str],
) -> None:
    closed = asyncio.Event()

    class Hostile(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"this is no request\r\n\r\n")

        def connection_lost(self, exc: Exception | None) -> None:
            closed.set()

    service = McpService("ws://127.0.0.1:1/ws", "json")
    try:
        with anyio.fail_after(BOUND):
            await service.connect(Hostile())
            await closed.wait()
    finally:
        await service.close()
    (line,) = capfd.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "Invalid HTTP request received."


async def test_only_the_first_request_of_a_connection_is_answered(sockets: SocketPod) -> None:
    sockets.add("ide")
    host, _, port = base_of(sockets).removeprefix("http://").partition(":")
    token = sockets.token("ide")
    one = (
        f"GET /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        "Connection: keep-alive\r\n\r\n"
    ).encode()

    def exchange() -> bytes:
        with socket.create_connection((host, int(port)), timeout=BOUND) as line:
            line.sendall(one + one)
            received = b""
            while chunk := line.recv(65536):
                received += chunk
        return received

    received = await anyio.to_thread.run_sync(exchange)
    assert received.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_large_result_reaches_clients_that_bound_the_events_of_a_stream(
    sockets: SocketPod, mode: Mode
) -> None:
    camera = Participant("camera")
    picture = base64.b64encode(os.urandom(3_000_000)).decode()

    @camera.tool
    async def shoot() -> ToolResult:
        return ToolResult([{"type": "image", "data": picture, "mimeType": "image/png"}])

    sockets.add("alice")
    async with (
        sockets.run(camera),
        client_of(sockets, "alice", mode=mode) as client,
    ):
        result = await client.call_tool("camera__shoot", {})
        [image] = result.content
        assert image.type == "image"
        assert image.data == picture
        assert len((await client.list_tools()).tools) > 1  # the session goes on


@pytest.mark.rule("G-70", "S-06")
async def test_a_long_token_for_several_pods_is_served_in_the_pod_that_the_query_names() -> None:
    with LoopbackIssuer().serving() as issuer:
        async with running(issuer_config(issuer)) as gateway:
            url = f"http://127.0.0.1:{gateway.port}/mcp"
            token = issuer.sign("ada", pod=["demo", "lab"], padding="x" * 5000)
            headers = {"Authorization": f"Bearer {token}"}
            async with httpx2.AsyncClient(headers=headers, timeout=BOUND) as http:
                assert (await http.post(url, json={})).status_code == 400
                for pod in ("lab", "demo"):
                    async with Client(
                        streamable_http_client(f"{url}?pod={pod}", http_client=http), mode="legacy"
                    ) as client:
                        assert client.server_info is not None
                        assert client.server_info.name == f"pod {pod}"


@pytest.mark.rule("G-70")
async def test_addresses_with_and_without_the_pod_share_a_participant_s_connection(
    sockets: SocketPod,
) -> None:
    sockets.add("ide")
    async with (
        sockets.run(calculator()),
        client_of(sockets, "ide", "/mcp?pod=test", mode="legacy") as named,
        client_of(sockets, "ide", "/mcp", mode="legacy") as unnamed,
        client_of(sockets, "ide", "/mcp?pod=te%73t", mode="legacy") as encoded,
    ):
        for client in (named, unnamed, encoded):  # a session ends with the connection
            assert not (await client.call_tool("calc__who")).is_error
        async with client_of(sockets, "ide", "/mcp?pod=test", mode="legacy") as another:
            assert not (await another.call_tool("calc__who")).is_error
        assert not (await unnamed.call_tool("calc__who")).is_error
