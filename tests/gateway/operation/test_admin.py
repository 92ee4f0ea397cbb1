"""The admin's interface: off by default, its own token or a role, views and actions."""

import asyncio
import io
import json
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
import trustme
from openapi_spec_validator import validate
from websockets.exceptions import InvalidStatus

from mcpp_gateway.admin.commands import main
from mcpp_gateway.core.effects import KICKED, REVOKED
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.edge.web.admin.openapi import document
from mcpp_gateway.queued_log import QueuedHandler
from mcpp_gateway.tokens.store import TokenStore
from tests.agents.http_server import QuietHandler, serve_http
from tests.gateway.sockets import BOUND, config_text, joined, receive, running, token
from tests.gateway.tokens.issuer import LoopbackIssuer
from tests.gateway.tokens.test_sockets_tokens import joined as signed

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
    async def act(action: str, /, **body: Any) -> tuple[int, Any]:
        return await ask(gateway, action, method="POST", body=json.dumps(body).encode())

    yield act


@pytest.mark.rule("O-01")
async def test_it_is_off_unless_configured() -> None:
    async with running() as gateway:
        assert (await ask(gateway, "status"))[0] == 404
        assert (await ask(gateway, "kick", method="POST", body=b"{}"))[0] in (404, 405)


async def test_the_command_says_that_it_is_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPP_ADMIN_TOKEN", ADMIN)
    async with running() as gateway:
        command = ["--url", f"http://127.0.0.1:{gateway.port}", "status"]
        assert await anyio.to_thread.run_sync(main, command) == 1
    assert "needs a section [admin]" in capsys.readouterr().err


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
async def test_the_state_of_one_pod_counts_only_that_pod() -> None:
    text = f"{admin_config()}\n[pods.lab]\n"
    async with running(text) as gateway, joined(gateway, "alice") as alice:
        await receive(alice)
        shown = {}
        for query in ("", "?pod=demo", "?pod=lab"):
            status, found = await ask(gateway, f"status{query}")
            assert status == 200
            shown[query] = (found["pods"], found["connections"])
        assert shown == {"": (2, 1), "?pod=demo": (1, 1), "?pod=lab": (1, 0)}
        for wrong in ("status?pod=none", "status?participant=alice", "pods?participant=alice"):
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
        for wrong in ({"participant": "alise"}, {"participant": "alice"}, {"connection": "none"}):
            status, answer = await act("kick", **wrong)
            assert (status, answer["closed"], "check the spelling" in answer["note"]) == (200, 0, 1)
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
        code, text = await run("kick", "alise")
        assert (code, "check the spelling" in text) == (1, True)
        code, text = await run("revoke", "alice")
        assert (code, "no signed tokens" in text) == (1, True)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:abc",
        "http://127.0.0.1:-1",
        "http://[::1",
        "http://a b",
        "http://:8787",
        f"http://{'x' * 64}.example",
        "127.0.0.1:8787",
        "",
    ],
)
def test_an_address_that_is_none_is_one_line(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPP_ADMIN_TOKEN", ADMIN)
    assert main(["--url", url, "status"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    reason = "it is not an address such as http://127.0.0.1:8787"
    assert line == f"mcpp admin: cannot connect to {url!r}: {reason}"


async def test_the_command_trusts_an_authority_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, trusted = trustme.CA(), tmp_path / "authority.pem"
    authority.cert_pem.write_to_path(trusted)
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    monkeypatch.setenv("MCPP_ADMIN_TOKEN", ADMIN)
    text = config_text(gateway=files) + f'[admin]\ntoken = "{ADMIN}"\n'
    async with asyncio.timeout(3 * BOUND), running(text) as gateway:

        async def run(*options: str) -> tuple[int, str]:
            command = ["--url", f"https://localhost:{gateway.port}", *options, "status"]
            code = await anyio.to_thread.run_sync(main, command)
            return code, capsys.readouterr().err

        assert await run("--ca", str(trusted)) == (0, "")
        code, error = await run()
        assert (code, "CERTIFICATE_VERIFY_FAILED" in error) == (1, True)
        monkeypatch.setenv("MCPP_CA", str(trusted))
        assert await run() == (0, "")
        code, error = await run("--ca", str(tmp_path / "key.pem"))
        assert (code, "has no certificate of an authority" in error) == (2, True)
        code, error = await run("--ca", str(tmp_path / "missing"))
        assert (code, error.endswith("missing: No such file or directory\n")) == (2, True)


class AnotherService(QuietHandler):
    """Answers every request with JSON that is not the admin's."""

    def do_GET(self) -> None:  # noqa: N802
        self.send_response(200)
        self.finish_with(json.dumps([{"expires": "never"}, {"name": "x"}]).encode())

    def do_POST(self) -> None:  # noqa: N802
        self.send_response(200)
        self.finish_with(b'["ok"]')


def test_answers_of_another_service_are_no_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPP_ADMIN_TOKEN", ADMIN)
    with serve_http(AnotherService) as url:
        assert main(["--url", url, "connections"]) == 0
        assert capsys.readouterr().out.split() == ["expires", "never", "-"]
        assert main(["--url", url, "kick", "alice"]) == 1
    reason = "the answer is not that of a gateway: check the address"
    assert capsys.readouterr().err == f"mcpp admin: {reason}\n"


async def test_an_argument_that_is_not_utf_8_names_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCPP_ADMIN_TOKEN", ADMIN)
    async with asyncio.timeout(BOUND), running(admin_config()) as gateway:
        name = os.fsdecode(b"\xff")
        command = [
            "--url",
            f"http://127.0.0.1:{gateway.port}",
            "connections",
            "--participant",
            name,
        ]
        assert await anyio.to_thread.run_sync(main, command) == 0
    assert capsys.readouterr().out == "none\n"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"", "tök".encode(), b"a\nb"])
def test_a_file_without_a_token_is_one_line(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    assert main(["--token-file", str(tmp_path / "token"), "status"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mcpp admin: ")


@pytest.mark.rule("S-10")
async def test_a_revocation_that_a_restart_would_forget_says_so(tmp_path: Path) -> None:
    with LoopbackIssuer().serving() as issuer:
        for more, is_kept in (("", False), (f'[tokens]\npath = "{tmp_path / "t"}"\n', True)):
            text = admin_config(issuer.config() + more)
            async with running(text) as gateway, post(gateway) as act:
                status, answer = await act("revoke", name="ada")
                assert (status, answer["closed"]) == (200, 0)
                assert ("until the gateway restarts" not in answer["note"]) == is_kept
                _, answer = await act("revoke", name="alice")
                assert "its token in the configuration stays valid" in answer["note"]


@pytest.mark.rule("S-10")
async def test_revoking_a_name_that_is_not_known_is_noticed(tmp_path: Path) -> None:
    own = f'[tokens]\npath = "{tmp_path / "t"}"\n'
    text = admin_config(own)
    async with running(text) as gateway, post(gateway) as act:
        store, now = TokenStore(tmp_path / "t"), time.time()
        store.sign("ada", ["demo"], {}, now=now, expires=now + 60)
        (issued,) = store.issued()
        assert (await act("revoke", name=""))[0] == 400
        for wrong in ("adda", "alice"):
            status, answer = await act("revoke", name=wrong)
            assert status == 404
            assert ("in the configuration stays valid" in answer) == (wrong == "alice")
        assert store.revocations() == []
        for right in (issued.id, "ada"):
            assert await act("revoke", name=right) == (200, {"closed": 0})
    with LoopbackIssuer().serving() as issuer:
        text = admin_config(own + issuer.config())
        async with running(text) as gateway, post(gateway) as act:
            status, answer = await act("revoke", name="adda")
            assert (status, "check the spelling" in answer["note"]) == (200, True)
            assert (await act("revoke", name=""))[0] == 400
            assert await act("revoke", name="ada") == (200, {"closed": 0})


@pytest.mark.rule("S-10", "O-09")
@pytest.mark.parametrize("fault", ["folder", "revocations", "issued"])
async def test_a_revocation_that_cannot_be_stored_is_in_force_and_says_so(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcpp.gateway.audit")
    text = admin_config(f'[tokens]\npath = "{tmp_path / "t"}"\n')
    async with asyncio.timeout(2 * BOUND), running(text) as gateway, post(gateway) as act:
        store, now = TokenStore(tmp_path / "t"), time.time()
        token = store.sign("ada", ["demo"], {}, now=now, expires=now + 60)
        async with signed(gateway, token) as client:
            await receive(client)
            if fault == "folder":  # nothing can be written to it
                (store.folder / "lock").unlink()
                (store.folder / "lock").mkdir()
            elif fault == "revocations":
                (store.folder / "revoked.json").write_bytes(b"[{")
            else:
                (store.folder / "issued.jsonl").unlink()
                (store.folder / "issued.jsonl").mkdir()
                (store.folder / "revoked.json").mkdir()
            status, answer = await act("revoke", name="ada")
            assert (status, "restart forgets it" in answer) == (500, True)
            await client.wait_closed()
            assert client.close_code == REVOKED
        (line,) = [vars(each) for each in caplog.records if each.name == "mcpp.gateway.audit"]
        assert (line["status"], line["target"]) == (500, {"name": "ada"})
        assert "connections closed: 1" in line["result"]
        with pytest.raises(InvalidStatus):
            async with signed(gateway, token):
                pass
        if fault == "folder":  # the next one that can be stored stores this one, too
            (store.folder / "lock").rmdir()
            store.sign("eve", ["demo"], {}, now=now, expires=now + 60)
            assert (await act("revoke", name="eve"))[0] == 200
            assert {each.value for each in store.revocations()} == {"ada", "eve"}


@pytest.mark.rule("O-09")
async def test_an_action_that_fails_is_answered_and_leaves_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    caplog.set_level("INFO", "mcpp.gateway.audit")
    async with asyncio.timeout(BOUND), running(admin_config()) as gateway, post(gateway) as act:
        gateway.on_drain_request = fail
        status, answer = await act("drain")
        assert (status, answer) == (500, "the gateway has failed; its log says why\n")
    lines = [vars(each) for each in caplog.records if each.name == "mcpp.gateway.audit"]
    assert [(each["action"], each["status"]) for each in lines] == [("drain", 500)]


@pytest.mark.rule("S-10")
async def test_a_name_is_known_from_a_token_that_has_joined(tmp_path: Path) -> None:
    text = admin_config(f'[tokens]\npath = "{tmp_path / "t"}"\n')
    async with asyncio.timeout(2 * BOUND), running(text) as gateway, post(gateway) as act:
        store, now = TokenStore(tmp_path / "t"), time.time()
        for way in ("participant", "token"):
            token = store.sign(f"by-{way}", ["demo"], {}, now=now, expires=now + 60)
            id = store.issued()[-1].id
            (store.folder / "issued.jsonl").unlink()  # such as after a backup was restored
            async with signed(gateway, token) as client:
                await receive(client)
                name = f"by-{way}" if way == "participant" else id
                assert await act("revoke", name=name) == (200, {"closed": 1})
                await client.wait_closed()


def pod_admin(issuer: LoopbackIssuer, pod: str | None = "demo", **rights: bool) -> str:
    return issuer.sign("root", pod=pod, jti="token-1", mcpp={"admin": True, **rights})


@asynccontextmanager
async def two_pods(issuer: LoopbackIssuer) -> AsyncIterator[Gateway]:
    """A gateway with the pods demo and lab, with alice in both, whose issuer's keys are read."""
    text = (
        admin_config("signed = true\n")
        + issuer.config(allow="admin = true")
        + f'\n[pods.lab.participants.alice]\ntoken = "{token("alice-in-lab")}"\n'
        + 'capabilities = [{ kind = "*" }]\n'
    )
    async with asyncio.timeout(3 * BOUND), running(text) as gateway:
        assert gateway.tokens is not None
        await gateway.tokens._issuers[0].keys.refresh()
        in_lab = signed(gateway, token("alice-in-lab"), "pod=lab")
        async with joined(gateway, "alice") as one, in_lab as two:
            await receive(one)
            await receive(two)
            yield gateway


@pytest.mark.rule("O-08")
async def test_the_admin_of_a_pod_sees_nothing_of_the_others() -> None:
    with LoopbackIssuer().serving() as issuer:
        async with two_pods(issuer) as gateway:
            bearer = pod_admin(issuer)
            _, found = await ask(gateway, "status", bearer)
            assert (found["pods"], found["connections"], found["revocations"]) == (1, 1, None)
            for name in ("pods", "participants", "connections"):
                for query in ("", "?pod=demo"):
                    _, rows = await ask(gateway, name + query, bearer)
                    assert {each.get("pod", each.get("name")) for each in rows} == {"demo"}
                for other in ("lab", "none"):  # whether it exists is not told either
                    assert (await ask(gateway, f"{name}?pod={other}", bearer))[0] == 403
            for query, status in (("?pod=demo", 200), ("?pod=lab", 403), ("", 200)):
                assert (await ask(gateway, f"limits{query}", bearer))[0] == status
            assert (await ask(gateway, "openapi.json", bearer))[0] == 200
            assert (await ask(gateway, "status", pod_admin(issuer, "none")))[0] == 403


@pytest.mark.rule("S-04", "O-08")
async def test_an_admin_has_no_role_where_its_name_is_anothers() -> None:
    with LoopbackIssuer().serving() as issuer:
        async with two_pods(issuer) as gateway:

            def admin(name: str) -> str:
                return issuer.sign(name, mcpp={"admin": True})

            status, reason = await ask(gateway, "status", admin("alice"))  # configured in both
            assert (status, reason) == (403, "the participant is configured with another token\n")
            bob = admin("bob")  # configured in demo
            assert (await ask(gateway, "status", bob))[1]["pods"] == 1
            assert (await ask(gateway, "pods?pod=lab", bob))[0] == 200
            assert (await ask(gateway, "pods?pod=demo", bob))[0] == 403
            assert (await ask(gateway, "drain", bob, method="POST", body=b"{}"))[0] == 403
            assert (await ask(gateway, "status", admin("root")))[1]["pods"] == 2


@pytest.mark.rule("O-08")
async def test_the_admin_of_a_pod_acts_on_nothing_else() -> None:
    with LoopbackIssuer().serving() as issuer:
        async with two_pods(issuer) as gateway:
            drained: list[None] = []
            gateway.on_drain_request = lambda: drained.append(None)
            rows = (await ask(gateway, "connections"))[1]
            (other,) = [each["id"] for each in rows if each["pod"] == "lab"]

            async def act(bearer: str, action: str, /, **body: str) -> tuple[int, Any]:
                data = json.dumps(body).encode()
                return await ask(gateway, action, bearer, method="POST", body=data)

            bearer = pod_admin(issuer)
            assert (await act(bearer, "kick", connection=other))[1]["closed"] == 0
            assert (await act(bearer, "kick", participant="alice", pod="lab"))[0] == 403
            assert (await act(bearer, "kick", participant="alice")) == (200, {"closed": 1})
            assert (await act(bearer, "revoke", name="ada"))[0] == 403
            assert (await act(bearer, "drain"))[0] == 403
            assert gateway.tokens is not None
            assert (len(gateway.tokens.revocations), drained) == (0, [])
            everywhere = pod_admin(issuer, None)
            assert (await act(everywhere, "revoke", name="ada"))[0] == 200
            assert (await act(everywhere, "drain"))[0] == 200
            assert drained == [None]


@pytest.mark.rule("O-09")
async def test_what_admins_do_and_try_is_logged_with_who_and_what(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    def logged(who: str = "admin") -> Any:
        lines = [vars(each) for each in caplog.records if each.name == "mcpp.gateway.audit"]
        (line,) = lines
        caplog.clear()
        assert line["msg"] == "admin action"
        assert line["address"] == "127.0.0.1"
        int(line["request"], 16)
        names = (who, "issuer", "token", "action", "target", "status", "result")
        return tuple(line[name] for name in names)

    with LoopbackIssuer().serving() as issuer:
        async with two_pods(issuer) as gateway:

            async def act(bearer: str, name: str, body: bytes) -> None:
                await ask(gateway, name, bearer, method="POST", body=body)

            signed_admin = pod_admin(issuer)
            await act(ADMIN, "kick", b'{"participant": "bob", "pod": "demo"}')
            target = {"participant": "bob", "pod": "demo"}
            *found, done = logged()
            assert found == ["admin token", "-", "-", "kick", target, 200]
            assert done.startswith("connections closed: 0; nothing here is connected")
            await act(signed_admin, "kick", b'{"participant": "alice"}')
            target = {"participant": "alice"}
            done = "connections closed: 1"
            assert logged() == ("root", "company", "token-1", "kick", target, 200, done)
            await act(signed_admin, "drain", b"{}")
            reason = "draining concerns all pods, and this token is for some"
            assert logged() == ("root", "company", "token-1", "drain", {}, 403, reason)
            await act(ADMIN, "revoke", b'{"name": "ada"}')
            who, _, _, action, target, status, done = logged()
            assert (who, action, target, status) == ("admin token", "revoke", {"name": "ada"}, 200)
            assert done.startswith("connections closed: 0; no token of that name is known")
            await act(ADMIN, "kick", b"[")
            assert logged()[:6] == ("admin token", "-", "-", "kick", {}, 400)
            await act(issuer.sign("eve", jti="token-2"), "kick", b'{"participant": "bob"}')
            reason = "this token has no role in the admin's interface"
            found = logged("participant")
            assert found == ("eve", "company", "token-2", "kick", {}, 403, reason)
            await ask(gateway, "connections?pod=lab", signed_admin)
            assert logged()[3:6] == ("connections", {"pod": "lab"}, 403)
            long = issuer.sign("root", pod="demo", jti="j" * 2_000, mcpp={"admin": True})
            await act(long, "kick", json.dumps({"participant": "p" * 4_000}).encode())
            _, _, jti, _, target, _, _ = logged()
            assert (len(jti), len(target["participant"])) == (128, 128)
            await act(ADMIN, "kick", json.dumps({"x" * 4_000: 1}).encode())
            assert len(logged()[-1]) <= 400
            for method, path, status in (
                ("GET", "nope", 404),
                ("POST", "nope", 405),
                ("GET", "kick", 405),
                ("PUT", "status", 405),
                ("GET", "status?x=1", 400),
                ("GET", "limits?participant=alice", 400),
            ):
                assert (await ask(gateway, path, signed_admin, method=method))[0] == status
                who, issuer_name, _, action, _, refused, _ = logged()
                assert (who, issuer_name, refused) == ("root", "company", status)
                assert action == path.partition("?")[0]
            await ask(gateway, "connections", signed_admin)  # reading is not logged
            await ask(gateway, "kick", "wrong-token-0123456789", method="POST", body=b"{}")
            (line,) = [vars(each) for each in caplog.records if "address" in vars(each)]
            assert (line["msg"], line["status"]) == ("request refused", 401)
            assert line["path"] == "/admin/kick"


@pytest.mark.rule("O-09")
def test_no_line_of_the_audit_is_left_out_for_being_repeated() -> None:
    stream = io.StringIO()
    handler = QueuedHandler(stream, clock=lambda: 0.0)
    for name in ("mcpp.gateway.audit", "mcpp.gateway"):
        for _ in range(1500):
            facts = {"msg": "admin action", "name": name, "address": "127.0.0.1"}
            handler.emit(logging.makeLogRecord(facts))
        handler.flush()
    handler.close()
    assert stream.getvalue().count("admin action") == 1500 + 20


@pytest.mark.rule("O-09", "G-67")
async def test_a_participant_cannot_fill_the_log_with_lines_of_the_audit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mcpp.gateway.audit")
    with LoopbackIssuer().serving() as issuer:
        async with two_pods(issuer) as gateway:
            await ask(gateway, "kick", issuer.sign("eve"), method="POST", body=b"{}")
    (line,) = [each for each in caplog.records if each.name == "mcpp.gateway.audit"]
    stream = io.StringIO()
    handler = QueuedHandler(stream, clock=lambda: 0.0)
    for _ in range(1500):
        handler.emit(line)
    handler.close()
    assert stream.getvalue().count("admin action") == 100


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
