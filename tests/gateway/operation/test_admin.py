"""The admin's interface: off by default, its own token or a role, views and actions."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from openapi_spec_validator import validate

from mcpp_gateway.admin.commands import main
from mcpp_gateway.core.effects import KICKED
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.edge.web.openapi import document
from tests.gateway.sockets import BOUND, config_text, joined, receive, running, token
from tests.gateway.tokens.issuer import LoopbackIssuer

pytestmark = pytest.mark.anyio
ADMIN = "token-of-the-admin-0123456789"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def admin_config(more: str = "") -> str:
    return f'{config_text()}\n[admin]\ntoken = "{ADMIN}"\n{more}'


async def ask(
    gateway: Gateway,
    path: str,
    bearer: str | None = ADMIN,
    *,
    method: str = "GET",
    body: bytes | None = None,
    head: str = "",
) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    authorization = "" if bearer is None else f"Authorization: Bearer {bearer}\r\n"
    length = "" if body is None else f"Content-Length: {len(body)}\r\n"
    text = (
        f"{method} /admin/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{authorization}{length}{head}\r\n"
    )
    writer.write(text.encode())
    if body:
        await writer.drain()
        writer.write(body)
    async with asyncio.timeout(BOUND):
        answer = await reader.read()
    writer.close()
    top, _, rest = answer.partition(b"\r\n\r\n")
    status = int(top.split()[1])
    return status, json.loads(rest) if b"application/json" in top else rest.decode()


@asynccontextmanager
async def post(gateway: Gateway) -> AsyncIterator[Any]:
    async def act(name: str, **body: Any) -> tuple[int, Any]:
        return await ask(gateway, name, method="POST", body=json.dumps(body).encode())

    yield act


@pytest.mark.rule("O-01")
async def test_it_is_off_unless_configured() -> None:
    async with running() as gateway:
        assert (await ask(gateway, "status"))[0] == 404
        assert (await ask(gateway, "kick", method="POST", body=b"{}"))[0] in (404, 405)


@pytest.mark.rule("O-01")
@pytest.mark.parametrize("bearer", [None, "wrong-token-0123456789", token("alice"), "a.b.c"])
async def test_other_tokens_do_not_open_it(bearer: str | None) -> None:
    async with running(admin_config()) as gateway:
        for path in ("status", "openapi.json", "nothing"):
            assert (await ask(gateway, path, bearer))[0] == 401
        status, _ = await ask(gateway, "kick", bearer, method="POST", body=b'{"participant": "x"}')
        assert status == 401


@pytest.mark.rule("O-01")
async def test_an_admins_token_admits_to_no_pod() -> None:
    async with running(admin_config()) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(
            f"GET /ws HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\n\r\n".encode()
        )
        assert b" 401 " in await reader.readline()
        writer.close()


@pytest.mark.rule("O-01")
async def test_a_signed_role_opens_it_where_that_is_configured() -> None:
    with LoopbackIssuer().serving() as issuer:
        text = config_text() + issuer.config(allow="admin = true") + "\n[admin]\nsigned = true\n"
        async with asyncio.timeout(3 * BOUND), running(text) as gateway:
            status = 503
            while status == 503:  # until the keys are read
                status, _ = await ask(gateway, "status", issuer.sign("root", mcpp={"admin": True}))
            assert status == 200
            assert (await ask(gateway, "status", issuer.sign("eve")))[0] == 403


@pytest.mark.rule("O-02")
async def test_it_shows_pods_participants_and_connections() -> None:
    async with running(admin_config()) as gateway, joined(gateway, "alice") as alice:
        await receive(alice)
        status, found = await ask(gateway, "status")
        assert (status, found["pods"], found["draining"]) == (200, 1, False)
        _, (pod,) = await ask(gateway, "pods")
        assert (pod["name"], pod["participants"]) == ("demo", 1)
        _, people = await ask(gateway, "participants?pod=demo")
        assert {each["id"]: each["present"] for each in people} == {
            "alice": True,
            "bob": False,
            "carol": False,
        }
        _, (connection,) = await ask(gateway, "connections")
        assert connection["address"] in ("127.0.0.1", "::1")
        assert "websockets" in connection["client"]
        assert (connection["participant"], connection["lag"]) == ("alice", 0)
        _, limits = await ask(gateway, "limits?pod=demo&participant=alice")
        assert limits["burst"] == 400
        for wrong in ("pods?pod=none", "pods?what=1", "limits?pod="):
            assert (await ask(gateway, wrong))[0] == 400


@pytest.mark.rule("O-02")
async def test_a_connection_is_kicked_and_may_come_back() -> None:
    async with (
        running(admin_config()) as gateway,
        post(gateway) as act,
        joined(gateway, "alice") as alice,
        joined(gateway, "bob") as bob,
    ):
        await receive(alice)
        assert await act("kick", participant="alice") == (200, {"closed": 1})
        await alice.wait_closed()
        assert alice.close_code == KICKED
        assert await act("kick", participant="alice") == (200, {"closed": 0})
        assert (await act("kick"))[0] == 400
        assert (await act("kick", who="bob"))[0] == 400
        await receive(bob)
        async with joined(gateway, "alice") as again:
            await receive(again)


@pytest.mark.rule("O-02")
async def test_malformed_requests_are_refused() -> None:
    async with running(admin_config()) as gateway:
        for body in (b"[", b"\xff", b"[" * 5000, b'{"participant": 7}', b"null"):
            assert (await ask(gateway, "kick", method="POST", body=body))[0] == 400
        for head in (
            "Content-Length: 9000\r\n",
            "Content-Length: -1\r\n",
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Transfer-Encoding: chunked\r\n",
            "no colon\r\n",
        ):
            status, _ = await ask(gateway, "kick", method="POST", head=head)
            assert status in (400, 413)
        assert (await ask(gateway, "kick"))[0] == 405
        assert (await ask(gateway, "status", method="POST", body=b"{}"))[0] == 405
        assert (await ask(gateway, "status", method="DELETE"))[0] == 405


async def test_its_document_is_valid_openapi_and_served() -> None:
    validate(document())
    async with running(admin_config()) as gateway:
        assert (await ask(gateway, "openapi.json"))[1] == json.loads(json.dumps(document()))


async def test_the_command_shows_and_acts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text(ADMIN + "\n")
    async with running(admin_config()) as gateway, joined(gateway, "alice") as alice:
        await receive(alice)

        async def run(*arguments: str) -> tuple[int, str]:
            url = f"http://127.0.0.1:{gateway.port}"
            command = ["--url", url, "--token-file", str(tmp_path / "token"), *arguments]
            code = await anyio.to_thread.run_sync(main, command)
            output = capsys.readouterr()
            return code, output.out + output.err

        head, row = (await run("connections"))[1].splitlines()
        assert "alice" in row
        assert (head.split()[-1], row.split()[-1]) == ("expires", "-")
        assert "draining                no" in (await run("status"))[1]
        assert json.loads((await run("--json", "pods"))[1])[0]["name"] == "demo"
        limits = (await run("limits", "--pod", "demo"))[1].splitlines()
        assert all(len(line.split()) >= 2 for line in limits)  # a name and its value
        assert await run("kick", "alice") == (0, "closed                  1\n")
        code, text = await run("revoke", "alice")
        assert (code, "no signed tokens" in text) == (1, True)


@pytest.mark.rule("S-10")
async def test_a_revocation_that_a_restart_would_forget_says_so(tmp_path: Path) -> None:
    with LoopbackIssuer().serving() as issuer:
        for more, is_kept in (("", False), (f'[tokens]\npath = "{tmp_path / "t"}"\n', True)):
            async with running(admin_config(issuer.config() + more)) as gateway:
                body = b'{"name": "ada"}'
                status, answer = await ask(gateway, "revoke", method="POST", body=body)
                assert (status, answer["closed"], "note" not in answer) == (200, 0, is_kept)
                body = b'{"name": "alice"}'
                _, answer = await ask(gateway, "revoke", method="POST", body=body)
                assert "its token in the configuration stays valid" in answer["note"]


async def test_limits_of_a_participant_that_is_not_known_are_not_those_of_the_pod() -> None:
    async with running(admin_config()) as gateway:
        for query, status in (
            ("pod=demo&participant=alice", 200),
            ("pod=demo&participant=alise", 400),
            ("participant=alice", 400),
        ):
            assert (await ask(gateway, f"limits?{query}"))[0] == status


@pytest.mark.rule("O-02")
@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "status", "GET"),
        ("QUERY", "kick", "POST"),
        ("POST", "status", "GET"),
        ("GET", "kick", "POST"),
        ("DELETE", "nothing", "GET"),
    ],
)
async def test_another_method_is_answered_with_the_right_one(
    method: str, path: str, allowed: str
) -> None:
    async with running(admin_config()) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = f"{method} /admin/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Authorization: Bearer {ADMIN}\r\n"
        head += "Content-Length: 2\r\n\r\n{}" if method == "POST" else "\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(BOUND):
            answer = (await reader.read()).decode()
        writer.close()
    assert answer.startswith("HTTP/1.1 405 ")
    assert f"\r\nAllow: {allowed}\r\n" in answer
