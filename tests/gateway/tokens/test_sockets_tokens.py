"""Signed tokens at a real gateway: issuers on loopback, rotation, expiry and revocation."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

import mcpp
from mcpp.errors import TokenUnavailableError, TooLargeError
from mcpp.transports.token_sources import command_token, file_token
from mcpp_gateway import config
from mcpp_gateway.core.effects import REVOKED, TOKEN_EXPIRED
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.tokens import fetching, key_cache
from mcpp_gateway.tokens.store import TokenStore
from tests.gateway.durability.workload import MCPP
from tests.gateway.sockets import BOUND, chat, config_text, receive, receive_until, running
from tests.gateway.sockets import token as secret
from tests.gateway.tokens.issuer import LoopbackIssuer

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def issuer() -> Iterator[LoopbackIssuer]:
    with LoopbackIssuer().serving() as serving:
        yield serving


@asynccontextmanager
async def joined(
    gateway: Gateway, token: str, query: str = "pod=demo"
) -> AsyncIterator[ClientConnection]:
    async with connect(
        f"ws://localhost:{gateway.port}/ws?{query}",
        additional_headers={"Authorization": f"Bearer {token}"},
        open_timeout=BOUND,
        close_timeout=1,
    ) as client:
        yield client


async def status(gateway: Gateway, token: str, query: str = "pod=demo") -> int:
    """Return the HTTP status of an attempt to join, 101 if it succeeds."""
    try:
        async with joined(gateway, token, query):
            return 101
    except InvalidStatus as error:
        return error.response.status_code


async def until(is_done: Callable[[], bool]) -> None:
    while not is_done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def talk(pod: mcpp.Pod) -> None:
    while True:
        await pod.send("chat", "hello")


def issuer_config(issuer: LoopbackIssuer, **options: str) -> str:
    return config_text() + "\n[pods.lab]\n" + issuer.config(**options)


async def prompt_status(gateway: Gateway, token: str) -> int:
    return await http_status(gateway, token, "GET /prompt?viewer=ada")


async def http_status(gateway: Gateway, token: str, request_line: str) -> int:
    reader, writer = await asyncio.open_connection("localhost", gateway.port)
    host = f"Host: localhost:{gateway.port}\r\nAuthorization: Bearer {token}\r\n"
    length = "Content-Length: 0\r\n" if request_line.startswith("POST") else ""
    writer.write(f"{request_line} HTTP/1.1\r\n{host}{length}\r\n".encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


@pytest.mark.rule("H-40", "F-19")
async def test_prompts_are_shown_only_once_the_rights_of_a_token_are_known(
    issuer: LoopbackIssuer,
) -> None:
    token = issuer.sign("ada", pod="demo")
    async with asyncio.timeout(5 * BOUND), running(issuer_config(issuer)) as gateway:
        assert await status(gateway, issuer.sign("eve")) == 101  # the keys were read
        assert await prompt_status(gateway, token) == 403
        async with joined(gateway, token) as ada:
            await receive(ada)
            assert await prompt_status(gateway, token) == 200


@pytest.mark.rule("S-01", "H-40")
async def test_rights_of_a_token_that_has_ended_are_not_those_of_the_next(
    issuer: LoopbackIssuer,
) -> None:
    wide = {"pod": "demo", "jti": "wide"}
    narrow = issuer.sign("ada", pod="demo", mcpp={"hears": {"kind": "none"}})
    blob = f"GET /blob/{'0' * 64}"
    async with asyncio.timeout(5 * BOUND), running(issuer_config(issuer)) as gateway:
        members = gateway.pods["demo"].members
        async with joined(gateway, issuer.sign("ada", **wide)) as ada:
            await receive(ada)
        await until(lambda: "ada" not in members.present)
        assert await http_status(gateway, issuer.sign("ada", **wide), blob) == 404
        await gateway.revoke("wide")
        assert await prompt_status(gateway, narrow) == 403
        assert await http_status(gateway, narrow, blob) == 403
        async with joined(gateway, narrow) as ada:
            await receive(ada)
        assert await http_status(gateway, narrow, blob) == 404


@pytest.mark.rule("G-10", "P-07")
async def test_a_client_refuses_what_is_larger_than_its_token_allows(
    issuer: LoopbackIssuer,
) -> None:
    rights = {"capabilities": [{"kind": "chat"}], "limits": {"max_message_bytes": 2000}}
    token = issuer.sign("ada", mcpp=rights)
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        url = f"ws://localhost:{gateway.port}/ws?pod=demo"
        async with mcpp.connect(url, token=token) as ada:
            with pytest.raises(TooLargeError) as caught:
                await ada.send("chat", "x" * 3000)
            assert caught.value.limit_bytes == 2000
            await ada.send("chat", "short")


@pytest.mark.rule("S-01", "S-05")
async def test_a_participant_is_admitted_by_its_token_within_the_issuers_template(
    issuer: LoopbackIssuer,
) -> None:
    text = issuer_config(issuer, allow='capabilities = [{ kind = "chat" }]')
    async with asyncio.timeout(3 * BOUND), running(text) as gateway:
        rights = {"capabilities": [{"kind": "chat"}, {"kind": "note"}]}
        async with joined(gateway, issuer.sign("ada", pod="demo", mcpp=rights)) as ada:
            welcome = await receive(ada)
            assert welcome["payload"]["you"]["id"] == "ada"
            await ada.send(text := chat("ada"))
            assert (await receive_until(ada, mcpp.decode(text).id))[-1]["kind"] == "chat"
            note = mcpp.new_envelope("note", "no", sender="ada")
            await ada.send(mcpp.encode(note).decode())
            refusal = (await receive_until(ada, note.id))[-1]
            assert refusal["payload"]["error"] == "capability_violation"


@pytest.mark.rule("S-05", "O-03")
async def test_a_participant_with_claims_that_cannot_be_shown_does_not_block_a_reload(
    issuer: LoopbackIssuer,
) -> None:
    text = issuer_config(issuer)
    bad = issuer.sign("ada", mcpp={"capabilities": [{"kind": "chat", "to": "\ud800"}]})
    async with (
        asyncio.timeout(3 * BOUND),
        running(text) as gateway,
        joined(gateway, issuer.sign("ada")) as ada,
    ):
        await receive(ada)
        assert await status(gateway, bad) == 401
        assert await http_status(gateway, bad, "GET /session?pod=demo") == 401
        gateway.reconfigure(config.parse(text.replace(secret("alice"), "changed-" * 4), {}))
        assert await status(gateway, secret("alice")) == 401
        assert await status(gateway, "changed-" * 4) == 101


@pytest.mark.rule("S-13")
async def test_refused_signed_tokens_are_counted_by_their_status(issuer: LoopbackIssuer) -> None:
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        assert await status(gateway, issuer.sign("ada")) == 101
        assert await status(gateway, issuer.sign("ada", exp=time.time() - 600)) == 401
        assert await status(gateway, issuer.sign("ada", pod="none"), "") == 403
        assert await status(gateway, issuer.sign("ada", pod="lab"), "pod=demo") == 403
        assert gateway.admission.failures == {401: 1, 403: 2, 429: 0, 503: 0}


@pytest.mark.rule("S-06")
async def test_a_token_for_several_pods_needs_the_name_of_one(issuer: LoopbackIssuer) -> None:
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        token = issuer.sign("ada", pod=["demo", "lab"])
        assert await status(gateway, token, "") == 400
        assert await status(gateway, token, "pod=lab") == 101
        assert await status(gateway, issuer.sign("ada", pod="lab"), "pod=demo") == 403
        assert await status(gateway, issuer.sign("ada", pod="none"), "") == 403
        async with joined(gateway, token, "pod=lab"):
            for path in ("/prompt?viewer=ada", "/session?", f"/blob/{'0' * 64}?"):
                assert await http_status(gateway, token, f"GET {path}") == 400
                found = 404 if path.startswith("/blob") else 200
                assert await http_status(gateway, token, f"GET {path}&pod=lab") == found
                assert await http_status(gateway, token, f"GET {path}&pod=none") == 403


@pytest.mark.rule("S-04")
async def test_a_name_that_is_in_use_is_refused(issuer: LoopbackIssuer) -> None:
    with LoopbackIssuer().serving() as other:
        text = issuer_config(issuer) + other.config("partner", 'issuer = "https://other"')
        async with asyncio.timeout(3 * BOUND), running(text) as gateway:
            assert await status(gateway, issuer.sign("alice")) == 403  # configured
            async with joined(gateway, issuer.sign("ada")):
                assert await status(gateway, other.sign("ada", iss="https://other")) == 403
            assert await status(gateway, other.sign("eve", iss="https://other")) == 101


@pytest.mark.rule("S-04", "L-28")
async def test_a_name_belongs_to_its_issuer_over_restarts(
    issuer: LoopbackIssuer, tmp_path: Path
) -> None:
    with LoopbackIssuer().serving() as other:
        partner = other.config("partner", 'issuer = "https://other"')
        own = issuer.config(more='issuer = "https://issuer"')
        taken = other.sign("ada", iss="https://other", exp=time.time() + 5000)

        def with_log(*parts: str) -> str:
            return "\n".join((config_text(), f'[log]\nkind = "file"\npath = "{tmp_path}"', *parts))

        async with asyncio.timeout(8 * BOUND):
            async with running(with_log(partner, own)) as gateway:
                assert await status(gateway, issuer.sign("ada")) == 101
                assert await status(gateway, issuer.sign("eve")) == 101
            # Another mode of syncing makes it begin with a state, which the next one reads.
            for fsync in ("interval", "interval", "always"):
                async with running(with_log(f'fsync = "{fsync}"', partner, own)) as gateway:
                    assert await status(gateway, taken) == 403
            async with running(with_log(partner, own)) as gateway:
                assert await status(gateway, issuer.sign("ada")) == 101
                assert await status(gateway, taken) == 403
                gateway.wall_clock = lambda: time.time() + 1000  # its tokens have expired
                await until(lambda: gateway.pods["demo"].members.owner("ada") is None)
                assert await status(gateway, taken) == 101
            async with running(with_log(partner)) as gateway:  # the other issuer is gone
                assert await status(gateway, other.sign("eve", iss="https://other")) == 101


@pytest.mark.rule("S-01", "S-07")
async def test_participants_of_tokens_are_known_until_these_expire_by_unix_time(
    issuer: LoopbackIssuer,
) -> None:
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        assert await status(gateway, issuer.sign("ada")) == 101
        pod, ahead = gateway.pods["demo"], time.time() + 1000
        await until(lambda: not pod.members.present)
        assert pod.members.owner("ada") == "company"
        gateway.wall_clock = lambda: ahead  # and be behind it after a suspension
        await until(lambda: pod.members.owner("ada") is None)
        assert pod.members.settings("ada") is None


@pytest.mark.rule("S-04")
@pytest.mark.parametrize(
    "request_line",
    ["GET /session", "GET /prompt?viewer=alice", "POST /mcp", "POST /blob?pod=demo"],
)
async def test_no_path_lets_a_token_stand_for_the_participant_of_another(
    issuer: LoopbackIssuer, request_line: str
) -> None:
    with LoopbackIssuer().serving() as other:
        text = config_text() + issuer.config(more='issuer = "https://issuer"')
        text += other.config("partner", 'issuer = "https://other"')
        async with asyncio.timeout(3 * BOUND), running(text) as gateway:
            assert await status(gateway, issuer.sign("eve")) == 101  # its keys were read
            for name in ("alice", "ada"):  # configured; of the other issuer
                async with joined(gateway, other.sign("ada", iss="https://other")) as ada:
                    await receive(ada)
                    assert await http_status(gateway, issuer.sign(name), request_line) == 403


@pytest.mark.rule("G-04")
async def test_signed_tokens_may_be_long_but_not_endless(issuer: LoopbackIssuer) -> None:
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        token = issuer.sign("ada", padding="x" * 5000)
        assert 512 < len(token) <= 8192
        assert await status(gateway, token) == 101
        assert await status(gateway, issuer.sign("ada", padding="x" * 6500)) == 401
        assert await status(gateway, "x" * 600) == 401


@pytest.mark.rule("G-06", "S-13")
@pytest.mark.parametrize("names_keys", [True, False])
@pytest.mark.parametrize("path", ["/ws", "/prompt"])
async def test_forged_tokens_use_up_the_budget_of_guesses(
    issuer: LoopbackIssuer, names_keys: bool, path: str
) -> None:
    issuer.names_keys = names_keys
    async with asyncio.timeout(6 * BOUND), running(issuer_config(issuer)) as gateway:
        good = issuer.sign("ada")
        assert await status(gateway, good) == 101
        head, claims, signature = good.split(".")
        forged = f"{head}.{claims}.{'A' * len(signature)}"
        attempt = status if path == "/ws" else prompt_status
        answers = await asyncio.gather(*(attempt(gateway, forged) for _ in range(14)))
        # Without the name of its key, it may have been signed with one that is not known yet.
        assert set(answers) == {401 if names_keys else 503, 429}
        assert gateway.admission.failures[401] >= 10
        # Expired tokens are no guesses: a client that waits for its next one locks nobody out.
        late = issuer.sign("ada", exp=time.time() - 100)
        assert await status(gateway, late) in (401, 429)


@pytest.mark.rule("S-08")
@pytest.mark.parametrize("names_keys", [True, False])
async def test_a_rotation_of_keys_is_not_noticed(
    issuer: LoopbackIssuer, names_keys: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.names_keys = names_keys
    monkeypatch.setattr(key_cache, "REFRESH_SECONDS", 0.05)
    async with (
        asyncio.timeout(3 * BOUND),
        running(issuer_config(issuer)) as gateway,
        joined(gateway, issuer.sign("ada")) as ada,
    ):
        await receive(ada)
        for number in range(5):
            issuer.rotate(f"key-{number}")
            for old in list(issuer.keys)[1:-2]:  # two overlap, besides the one of ada's token
                del issuer.keys[old]
            await asyncio.sleep(0.06)
            assert await status(gateway, issuer.sign(f"eve-{number}")) == 101
        await ada.send(text := chat("ada"))  # the connection was not touched
        await receive_until(ada, mcpp.decode(text).id)


@pytest.mark.rule("S-08")
@pytest.mark.parametrize("trouble", ["down", "endless", "silent"])
async def test_a_key_server_in_trouble_delays_its_own_tokens_only(
    issuer: LoopbackIssuer, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "MAX_SECONDS", 1.0)
    issuer.status = 500 if trouble == "down" else 200
    issuer.endless = trouble == "endless"
    text = issuer_config(issuer)
    if trouble == "silent":
        silent = socket.create_server(("127.0.0.1", 0))
        text = text.replace(issuer.address, f"http://127.0.0.1:{silent.getsockname()[1]}/keys")
    async with asyncio.timeout(3 * BOUND), running(text) as gateway:
        waiting = asyncio.create_task(status(gateway, issuer.sign("ada")))
        assert await status(gateway, "token-of-alice-0123456789") == 101
        assert trouble != "silent" or not waiting.done()  # it did not wait for the key server
        assert await waiting == 503
        issuer.endless = False
    if trouble == "silent":
        silent.close()


@pytest.mark.rule("S-08", "S-13")
async def test_a_new_key_is_no_guess_while_the_key_server_is_down(
    issuer: LoopbackIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_cache, "REFRESH_SECONDS", 0.0)
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        assert await status(gateway, issuer.sign("ada")) == 101
        issuer.rotate("second")
        issuer.status = 500
        assert await status(gateway, issuer.sign("ada")) == 503
        assert gateway.admission.failures.get(401, 0) == 0
        issuer.status = 200
        assert await status(gateway, issuer.sign("ada")) == 101
        issuer.rotate("third")
        unknown = issuer.sign("ada")
        del issuer.keys["third"]
        assert await status(gateway, unknown) == 401


@pytest.mark.rule("S-09")
async def test_connections_end_when_the_token_expires_and_come_back_with_the_next(
    issuer: LoopbackIssuer,
) -> None:
    text = issuer_config(issuer, more="clock_skew_seconds = 0")
    lifetime = 0.6
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        async with joined(gateway, issuer.sign("eve", exp=time.time() + 0.3)) as eve:
            await eve.wait_closed()
            assert eve.close_code == TOKEN_EXPIRED
        tokens: list[str] = []

        def renew() -> str:
            tokens.append(issuer.sign("ada", exp=time.time() + lifetime))
            return tokens[-1]

        url = f"ws://localhost:{gateway.port}/ws?pod=demo"
        alice = "token-of-alice-0123456789"
        async with (
            mcpp.connect(url, token=renew) as ada,
            mcpp.connect(url, token=alice) as listener,
        ):
            heard: list[str] = []
            while len(tokens) < 4:
                await ada.send("chat", {"text": str(len(heard))})
                while (message := await anext(listener)).kind != "chat":
                    pass
                heard.append(message.text)
            assert heard == [str(number) for number in range(len(heard))]


@pytest.mark.rule("S-07", "S-09", "S-10")
async def test_tokens_go_by_unix_time_after_a_suspension(
    tmp_path: Path, issuer: LoopbackIssuer
) -> None:
    """While a machine sleeps, Unix time goes on and the clock of timers does not."""
    store = TokenStore(tmp_path / "tokens")
    text = f'[tokens]\npath = "{store.folder}"\n' + issuer_config(issuer)
    async with asyncio.timeout(3 * BOUND), running(text) as gateway:
        async with joined(gateway, issuer.sign("ada")) as ada:
            await receive(ada)
            gateway.wall_clock = lambda: time.time() + 3600
            await ada.wait_closed()
            assert ada.close_code == TOKEN_EXPIRED
        now = gateway.wall_clock()
        own = store.sign("eve", ["demo"], {}, now=now, expires=now + 60)
        assert await status(gateway, own) == 101
        assert await status(gateway, issuer.sign("ada")) == 401
        fresh = issuer.sign("ada", iat=now - 60, exp=now + 60)
        async with joined(gateway, fresh) as ada:
            await receive(ada)
            assert await gateway.revoke("ada") == (1, True, "")


@pytest.mark.rule("S-12")
async def test_a_stale_token_file_delays_an_agent_and_does_not_kill_it(
    issuer: LoopbackIssuer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = issuer_config(issuer, more="clock_skew_seconds = 0")
    path = tmp_path / "token"
    path.write_text(issuer.sign("ada", exp=time.time() + 0.5) + "\n")
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        url = f"ws://localhost:{gateway.port}/ws?pod=demo"
        async with mcpp.connect(url, token=file_token(path)) as ada:
            await until(lambda: "401: the token has expired" in caplog.text)
            path.write_text(issuer.sign("ada"))
            await ada.send("chat", "back")
        path.write_text("not a token")
        with pytest.raises(mcpp.errors.ConnectionLostError):
            async with mcpp.connect(url, token=file_token(path)):
                pass


@pytest.mark.rule("S-12")
async def test_revoking_the_token_before_does_not_kill_an_agent_that_has_the_next(
    tmp_path: Path,
) -> None:
    path, store = tmp_path / "token", TokenStore(tmp_path / "tokens")
    store.create()

    def issue() -> str:
        now = time.time()
        path.write_text(store.sign("ada", ["demo"], {}, now=now, expires=now + 60))
        return store.issued()[-1].id

    text = config_text() + f'[tokens]\npath = "{tmp_path / "tokens"}"\n'
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        url = f"ws://localhost:{gateway.port}/ws?pod=demo"
        first = issue()
        async with mcpp.connect(f"{url},{url}", token=file_token(path)) as ada:
            before = gateway.connections.copy()
            issue()
            await gateway.revoke(first)
            await until(lambda: before.isdisjoint(gateway.connections))
            await ada.send("chat", "with the next token")
            await gateway.revoke("ada")
            with pytest.raises(mcpp.errors.ClosedError) as closed:
                await talk(ada)
            assert closed.value.code == REVOKED


@pytest.mark.rule("S-12", "S-11")
async def test_an_agent_whose_issuer_is_gone_does_not_try_its_tokens_again_and_again(
    issuer: LoopbackIssuer,
) -> None:
    async with asyncio.timeout(4 * BOUND), running(issuer_config(issuer)) as gateway:
        url = f"ws://localhost:{gateway.port}/ws?pod=demo"
        async with mcpp.connect(url, token=lambda: issuer.sign("ada", jti=token_hex())) as ada:
            gateway.reconfigure(config.parse(config_text(), {}))
            with pytest.raises(mcpp.errors.ClosedError) as closed:
                await talk(ada)
            assert closed.value.code == REVOKED
        assert gateway.admission.failures[401] == 1


@pytest.mark.rule("S-12")
async def test_a_token_of_the_configuration_is_replaced_without_ending_its_agent(
    tmp_path: Path,
) -> None:
    path, text = tmp_path / "token", config_text()
    path.write_text("token-of-alice-0123456789")
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        url = f"ws://localhost:{gateway.port}/ws?pod=demo"
        async with mcpp.connect(url, token=file_token(path)) as alice:
            path.write_text("the-next-token-0123456789")
            gateway.reconfigure(config.parse(text.replace("token-of-alice", "the-next-token"), {}))
            await alice.send("chat", "with the next token")


@pytest.mark.rule("S-10")
async def test_a_revoked_token_ends_its_connections_within_two_seconds(tmp_path: Path) -> None:
    text = config_text() + f'[tokens]\npath = "{tmp_path / "tokens"}"\n'
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        store = TokenStore(tmp_path / "tokens")
        now = time.time()
        first, second = (
            store.sign("ada", ["demo"], {"multiple": True}, now=now, expires=now + 60)
            for _ in range(2)
        )
        ids = [each.id for each in store.issued()]
        async with joined(gateway, first) as one, joined(gateway, second) as two:
            await receive(two)
            began = time.monotonic()
            store.revoke(ids[0], time.time())
            await one.wait_closed()
            assert (one.close_code, time.monotonic() - began < 2) == (REVOKED, True)
            assert await status(gateway, first) == 401
            await two.send(text := chat("ada"))
            await receive_until(two, mcpp.decode(text).id)
            store.revoke("ada", time.time())
            await two.wait_closed()
            assert two.close_code == REVOKED
        assert await status(gateway, second) == 401
        now = time.time()
        newer = store.sign("ada", ["demo"], {}, now=now, expires=now + 60)
        assert await status(gateway, newer) == 101


@pytest.mark.rule("S-01", "S-10")
@pytest.mark.parametrize("way", ["revoked", "expired"])
async def test_the_rights_of_a_token_end_with_it_on_every_connection(
    issuer: LoopbackIssuer, way: str
) -> None:
    text = issuer_config(issuer, allow="multiple = true", more="clock_skew_seconds = 0")
    chats = {"capabilities": [{"kind": "chat"}], "multiple": True}
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        weak, same = (issuer.sign("ada", mcpp=chats) for _ in range(2))
        strong = issuer.sign("ada", jti="strong", exp=time.time() + 300, mcpp={"multiple": True})
        async with joined(gateway, weak) as one, joined(gateway, strong) as other:
            welcome = json.loads(await one.recv())
            assert welcome["payload"]["you"]["capabilities"] == [{"kind": "chat"}]
            await receive(other)
            if way == "revoked":
                assert await gateway.revoke("strong") == (1, True, "")
            else:
                gateway.wall_clock = lambda: time.time() + 400  # the others have 600 seconds
            await one.wait_closed()
            assert one.close_code == TOKEN_EXPIRED  # it may come back
        async with joined(gateway, weak) as one, joined(gateway, same) as other:
            welcome = json.loads(await one.recv())
            assert welcome["payload"]["you"]["capabilities"] == [{"kind": "chat"}]
            await receive(other)
            await gateway.revoke("strong")  # once more: others are left alone
            await one.send(text := chat("ada"))
            await receive_until(one, mcpp.decode(text).id)


@pytest.mark.rule("S-10")
async def test_a_damaged_key_does_not_keep_tokens_from_being_revoked(tmp_path: Path) -> None:
    text = config_text() + f'[tokens]\npath = "{tmp_path / "tokens"}"\n'
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        store, now = TokenStore(tmp_path / "tokens"), time.time()
        ada, eve = (
            store.sign(name, ["demo"], {}, now=now, expires=now + 60) for name in ("ada", "eve")
        )
        async with joined(gateway, ada) as client:
            await receive(client)
            (tmp_path / "tokens" / "key-bad.pem").write_text("nonsense")
            store.revoke("ada", time.time())
            await client.wait_closed()
            assert client.close_code == REVOKED
        assert await status(gateway, eve) == 101  # the keys that were read before are used


@pytest.mark.rule("S-10")
async def test_a_revocation_covers_tokens_of_an_issuer_whose_clock_is_ahead(
    issuer: LoopbackIssuer,
) -> None:
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        ahead = issuer.sign("ada", iat=time.time() + 20)
        async with joined(gateway, ahead) as ada:
            await receive(ada)
            assert await gateway.revoke("ada") == (1, True, "")
            await ada.wait_closed()
            assert ada.close_code == REVOKED
        assert await status(gateway, ahead) == 401
        assert await status(gateway, issuer.sign("eve", iat=time.time() + 20)) == 101


@pytest.mark.rule("S-10")
async def test_another_issuers_token_is_revoked_by_its_id(issuer: LoopbackIssuer) -> None:
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        async with joined(gateway, issuer.sign("ada", jti="id-1")) as ada:
            await receive(ada)
            assert await gateway.revoke("id-1") == (1, True, "")
            await ada.wait_closed()
            assert ada.close_code == REVOKED
        assert await status(gateway, issuer.sign("ada", jti="id-1")) == 401
        assert await status(gateway, issuer.sign("ada", jti="id-2")) == 101


@pytest.mark.rule("S-10")
async def test_revocations_of_a_folder_that_is_configured_later_count_at_once(
    issuer: LoopbackIssuer, tmp_path: Path
) -> None:
    store = TokenStore(tmp_path / "tokens")
    store.create()
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        async with joined(gateway, issuer.sign("ada", jti="id-1")) as ada:
            await receive(ada)
            await gateway.revoke("id-2")
            store.revoke("id-1", time.time(), may_be_unknown=True)
            text = issuer_config(issuer) + f'[tokens]\npath = "{tmp_path / "tokens"}"\n'
            gateway.reconfigure(config.parse(text, {}))
            await ada.wait_closed()
            assert ada.close_code == REVOKED
        for id in ("id-1", "id-2"):
            assert await status(gateway, issuer.sign("ada", jti=id)) == 401


@pytest.mark.rule("S-11")
async def test_removing_an_issuer_revokes_and_changing_it_reconnects(
    issuer: LoopbackIssuer,
) -> None:
    def parsed(text: str) -> Any:
        return config.parse(text, {})

    async with asyncio.timeout(4 * BOUND), running(issuer_config(issuer)) as gateway:
        async with joined(gateway, issuer.sign("ada")) as ada:
            gateway.reconfigure(parsed(issuer_config(issuer)))  # the same
            await ada.send(text := chat("ada"))
            await receive_until(ada, mcpp.decode(text).id)
            narrower = issuer_config(issuer, allow='capabilities = [{ kind = "note" }]')
            gateway.reconfigure(parsed(narrower))
            await ada.wait_closed()
            assert ada.close_code == TOKEN_EXPIRED
        assert await status(gateway, issuer.sign("ada")) == 101  # it waited for the keys
        async with joined(gateway, issuer.sign("ada")) as ada:
            gateway.reconfigure(parsed(config_text()))
            await ada.wait_closed()
            assert ada.close_code == REVOKED
        assert await status(gateway, issuer.sign("ada")) == 401


@pytest.mark.rule("S-11")
async def test_removing_a_pod_revokes_the_connections_to_it(issuer: LoopbackIssuer) -> None:
    async with (
        asyncio.timeout(4 * BOUND),
        running(issuer_config(issuer)) as gateway,
        joined(gateway, issuer.sign("ada"), "pod=lab") as gone,
        joined(gateway, issuer.sign("ada")) as kept,
    ):
        gateway.reconfigure(config.parse(config_text() + issuer.config(), {}))
        await gone.wait_closed()
        assert gone.close_code == REVOKED
        await kept.send(text := chat("ada"))
        await receive_until(kept, mcpp.decode(text).id)
        assert await status(gateway, issuer.sign("ada"), "pod=lab") == 403


@pytest.mark.rule("S-04")
async def test_a_participant_that_is_configured_later_replaces_the_one_of_a_token(
    issuer: LoopbackIssuer,
) -> None:
    async with (
        asyncio.timeout(3 * BOUND),
        running(issuer_config(issuer)) as gateway,
        joined(gateway, issuer.sign("dora")) as dora,
    ):
        people = {"alice": "", "dora": ""}
        text = config_text(people) + "\n[pods.lab]\n" + issuer.config()
        gateway.reconfigure(config.parse(text, {}))
        await dora.wait_closed()
        assert dora.close_code == REVOKED


async def test_the_log_names_address_and_reason(
    issuer: LoopbackIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcpp.gateway")
    async with asyncio.timeout(3 * BOUND), running(issuer_config(issuer)) as gateway:
        async with joined(gateway, issuer.sign("ada")) as ada:
            await receive(ada)
        await status(gateway, "wrong-token-0123456789")
        await until(lambda: any(record.message == "left" for record in caplog.records))
    found = {record.message: vars(record) for record in caplog.records}
    assert found["joined"]["issuer"] == "company"
    assert found["joined"]["request"] == found["left"]["request"]
    assert found["left"]["code"] == 1000
    assert found["request refused"]["status"] == 401
    assert {found[name]["address"] for name in ("joined", "left", "request refused")} <= {
        "127.0.0.1",
        "::1",
    }
    assert "ey" not in json.dumps([record.getMessage() for record in caplog.records])


@pytest.mark.rule("S-12")
@pytest.mark.parametrize(
    ("option", "value", "cause"),
    [
        ("--token-file", "missing", "missing: No such file or directory"),
        ("--token-file", "empty", "it is empty"),
        ("--token-command", "false", "returned non-zero exit status 1"),
        ("--token-command", "no-such-program", "No such file or directory: 'no-such-program'"),
    ],
)
async def test_a_client_without_a_token_says_so_and_not_that_no_gateway_answers(
    option: str,
    value: str,
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").touch()
    source = file_token(value) if option == "--token-file" else command_token(value)
    async with running() as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/ws?pod=demo"
        with pytest.raises(mcpp.errors.TokenUnavailableError) as caught:
            async with mcpp.connect(url, token=source):
                pass
        assert cause in str(caught.value)
        command = [MCPP, "send", "hello", "--url", url, option, value]
        done = await anyio.run_process(command, check=False)
        assert done.returncode != 0
    error = done.stderr.decode()
    assert cause in error
    assert error.count("\n") == 1
    assert "no gateway answers" not in f"{caught.value} {error}"


def test_arguments_of_a_token_command_are_not_part_of_an_error() -> None:
    with pytest.raises(TokenUnavailableError, match="'false' returned non-zero") as caught:
        command_token("false --user ada:secret")()
    assert "secret" not in str(caught.value)


@pytest.mark.rule("S-12")
@pytest.mark.parametrize("wrong", [None, b"token-of-alice-0123456789", 5])
async def test_a_token_function_that_once_returns_no_string_delays_an_agent(
    wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answers = iter(["token-of-alice-0123456789", wrong, "token-of-alice-0123456789"])
    async with asyncio.timeout(4 * BOUND), running() as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/ws?pod=demo"
        async with mcpp.connect(url, token=lambda: next(answers)) as alice:
            for connection in list(gateway.connections):
                connection.abort()
            await until(lambda: f"returned {type(wrong).__name__}, not str" in caplog.text)
            await alice.send("chat", "with the next token")
        with pytest.raises(mcpp.errors.TokenUnavailableError):
            async with mcpp.connect(url, token=lambda: wrong):
                pass
    assert "token-of-alice" not in caplog.text


async def test_an_agent_whose_token_is_refused_later_logs_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, text = tmp_path / "token", config_text()
    path.write_text("token-of-alice-0123456789")
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/ws?pod=demo"
        async with mcpp.connect(url, token=file_token(path)):
            path.write_text("another-token-0123456789")
            for connection in list(gateway.connections):
                connection.abort()
            await until(lambda: any("refused it with 401" in text for text in caplog.messages))
    assert not any("no gateway answers" in text for text in caplog.messages)
