"""Admission over real sockets."""

import asyncio
import json
import socket

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from mcpp_gateway.config import digest
from mcpp_gateway.core.effects import SESSION_EXPIRED
from mcpp_gateway.edge.admission.sign_in import SESSION_SECONDS
from mcpp_gateway.edge.server import Gateway
from tests.gateway.sockets import (
    BOUND,
    chat,
    config_text,
    http,
    id_of,
    joined,
    raw_frame,
    receive,
    running,
    token,
    upgrade_request,
)

pytestmark = pytest.mark.anyio


async def status_of(gateway: Gateway, *lines: str, path: str = "/ws?pod=demo") -> int:
    status, _, _ = await http(gateway, upgrade_request(gateway.port, *lines, path=path))
    return status


def bearer(participant: str) -> str:
    return f"Authorization: Bearer {token(participant)}"


async def test_no_token_and_a_wrong_token_are_unauthorized() -> None:
    async with running() as gateway:
        assert await status_of(gateway) == 401
        assert await status_of(gateway, "Authorization: Bearer wrong") == 401
        assert await status_of(gateway, "Authorization: Basic " + token("alice")) == 401
        assert await status_of(gateway, path=f"/ws?pod=demo&token={token('alice')}") == 401


async def test_a_token_opens_its_own_pod_only() -> None:
    async with running() as gateway:
        assert await status_of(gateway, bearer("alice"), path="/ws?pod=other") == 403
        assert await status_of(gateway, bearer("alice"), path="/ws") == 101


async def test_a_browser_sends_its_token_as_a_subprotocol_that_is_never_echoed() -> None:
    async with running() as gateway:
        offered = ["mcpp.v0.1", f"mcpp.bearer.{token('alice')}"]
        async with connect(f"ws://localhost:{gateway.port}/ws", subprotocols=offered) as client:  # type: ignore[arg-type]
            assert client.subprotocol == "mcpp.v0.1"
            assert client.response is not None
            assert token("alice") not in str(client.response.headers)
            assert (await receive(client))["payload"]["you"]["id"] == "alice"


async def test_a_client_that_offers_no_subprotocol_is_given_none() -> None:
    async with running() as gateway, joined(gateway, "alice") as client:
        assert client.subprotocol is None


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("Origin: http://localhost:{port}", 101),
        ("Origin: http://127.0.0.1:{port}", 101),
        ("Origin: https://allowed.example", 101),
        ("Origin: http://localhost:1", 403),
        ("Origin: https://evil.example", 403),
        ("Origin: null", 403),
        ("Host: evil.example", 403),
        ("Host: evil.example:{port}", 403),
        ("Host: 127.0.0.1:{port}", 101),
        ("Host: allowed.example", 101),
    ],
)
async def test_a_foreign_origin_or_host_is_forbidden(line: str, status: int) -> None:
    allowed = config_text(gateway={"allowed_origins": ["https://allowed.example"]})
    async with running(allowed) as gateway:
        assert await status_of(gateway, bearer("alice"), line.format(port=gateway.port)) == status


async def test_an_origin_is_never_derived_from_the_host() -> None:
    async with running() as gateway:
        rebound = ("Host: evil.example", "Origin: http://evil.example")
        assert await status_of(gateway, bearer("alice"), *rebound) == 403


@pytest.mark.parametrize(
    "query",
    [
        "filter=nonsense",
        'filter={"main":false}',
        "last=-1",
        "last=x",
        "last=1&last=2",
        "after=a&after=b",
    ],
)
async def test_a_bad_query_is_a_bad_request_with_a_reason(query: str) -> None:
    async with running() as gateway:
        request = upgrade_request(gateway.port, bearer("alice"), path=f"/ws?{query}")
        status, _, body = await http(gateway, request)
        assert status == 400
        assert query.split("=")[0] in body.decode()


@pytest.mark.slow
async def test_wrong_tokens_are_slowed_then_answered_with_429_but_a_right_one_is_admitted() -> None:
    async with running() as gateway:
        loop = asyncio.get_running_loop()
        delays = []
        statuses = []
        for _ in range(3 + 2):
            began = loop.time()
            statuses.append(await status_of(gateway, "Authorization: Bearer guess"))
            delays.append(loop.time() - began)
        assert statuses == [401] * 5
        assert delays[4] >= 0.5 > delays[0]
        guesses = [status_of(gateway, "Authorization: Bearer guess") for _ in range(8)]
        assert 429 in await asyncio.gather(*guesses)
        assert await status_of(gateway, bearer("alice")) == 101


async def test_a_slow_handshake_is_aborted() -> None:
    async with running(config_text(gateway={"handshake_seconds": 0.2})) as gateway:
        reader, writer = await asyncio.open_connection("localhost", gateway.port)
        writer.write(b"GET /ws HTTP/1.1\r\nHost: ")
        async with asyncio.timeout(BOUND):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"POST /ws HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 20_000,
        b"GET /ws HTTP/1.1\r\nbroken\r\n\r\n",
    ],
    ids=["tls", "post", "long", "broken"],
)
async def test_what_is_no_upgrade_request_gets_an_http_error(garbage: bytes) -> None:
    async with running() as gateway:
        status, _, _ = await http(gateway, garbage)
        assert 400 <= status < 600
        assert await status_of(gateway, bearer("alice")) == 101


async def test_frames_right_behind_the_request_are_not_lost() -> None:
    async with running() as gateway, joined(gateway, "bob") as bob:
        await receive(bob)
        text = chat("alice")
        request = upgrade_request(gateway.port, bearer("alice"))
        _, writer = await asyncio.open_connection("localhost", gateway.port)
        writer.write(request + raw_frame(0x81, text.encode()))
        assert (await receive(bob))["kind"] == "system/presence"
        assert (await receive(bob))["id"] == id_of(text)
        writer.close()


async def test_health_and_metrics_are_on_the_same_port_and_hold_no_ids() -> None:
    async with running() as gateway, joined(gateway, "alice") as alice:
        text = chat("alice")
        await alice.send(text)
        await alice.send("nonsense")
        while (await receive(alice))["kind"] != "system/error":
            pass
        get = "GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert (await http(gateway, get.format("/healthz").encode()))[0] == 200
        assert (await http(gateway, get.format("/nowhere").encode()))[0] == 404
        status, _, body = await http(gateway, get.format("/metrics").encode())
        figures = body.decode()
        assert status == 200
        assert "mcpp_connections 2.0" in figures
        assert 'mcpp_received_total{pod="demo"} 2.0' in figures
        assert 'mcpp_refused_total{code="invalid_envelope",pod="demo"} 1.0' in figures
        assert "alice" not in figures


async def test_metrics_with_a_wrong_token_are_refused() -> None:
    async with running(config_text(gateway={"metrics_token": "m" * 20})) as gateway:
        get = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\r\n"
        assert (await http(gateway, get.format("m" * 20).encode()))[0] == 200
        assert (await http(gateway, get.format("n" * 20).encode()))[0] == 401


async def test_a_draining_gateway_is_not_healthy_and_admits_no_participant() -> None:
    async with running() as gateway:
        gateway.draining = True
        assert await status_of(gateway, bearer("alice")) == 503
        request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert (await http(gateway, request))[0] == 503


async def test_who_calls_in_the_last_moment_is_answered() -> None:
    async with running() as gateway:
        with socket.create_connection(("localhost", gateway.port), timeout=BOUND) as caller:
            caller.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for _ in range(2):  # accepted in the first tick, not handed over in the second
                await asyncio.sleep(0)
            await gateway.drain()
            answer = await asyncio.to_thread(caller.recv, 100)
            assert answer.startswith(b"HTTP/1.1 ")


async def test_tokens_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with running() as gateway:
        with pytest.raises(InvalidStatus):
            await connect(
                f"ws://localhost:{gateway.port}/ws",
                additional_headers={"Authorization": "Bearer secret-guess"},
            )
        async with joined(gateway, "alice") as alice:
            await receive(alice)
    ours = [record for record in caplog.records if record.name.startswith("mcpp")]
    logged = json.dumps([vars(record) for record in ours], default=str)
    assert "request refused" in logged
    assert "secret-guess" not in logged
    assert token("alice") not in logged


@pytest.mark.rule("G-61")
async def test_a_connection_ends_with_the_session_that_opened_it() -> None:
    async with running(config_text({"ada": ""})) as gateway:
        now = gateway.hub.clock()
        gateway.hub.clock = lambda: now
        begun = now + 0.01 - SESSION_SECONDS
        session = gateway._sessions.issue(("demo", "ada"), digest(token("ada")), begun)
        admitted = {"Authorization": f"Bearer {session}"}
        url = f"ws://localhost:{gateway.port}/ws"
        async with asyncio.timeout(BOUND), connect(url, additional_headers=admitted) as client:
            await client.wait_closed()
        assert client.close_code == SESSION_EXPIRED
        assert gateway.leases._timers == {}
