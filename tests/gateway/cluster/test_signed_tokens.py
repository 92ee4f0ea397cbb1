"""Signed tokens in a cluster: rights, keys and revocations are the same at every gateway."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import jwt
import pytest

import mcpp
from mcpp.errors import ClosedError, JoinError
from mcpp_gateway import config
from mcpp_gateway.cluster.cluster_log import command_streams
from mcpp_gateway.cluster.nats_link import LinkError
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.cluster.shared import tokens as shared_tokens
from mcpp_gateway.cluster.shared.tokens import SharedTokens
from mcpp_gateway.config import Config
from mcpp_gateway.core.effects import REVOKED, TOKEN_EXPIRED
from mcpp_gateway.edge.server import Gateway
from tests.gateway.cluster.test_gateways import (
    QUICK,
    WITHOUT_REPEAT,
    configure,
    eventually,
    gateways,
    url,
)
from tests.gateway.durability.workload import MCPP
from tests.gateway.sockets import token
from tests.gateway.tokens.issuer import LoopbackIssuer
from tests.gateway.tokens.test_sockets_tokens import joined

OPERATOR = "the-token-of-the-operator"
ADMIN = f'[admin]\ntoken = "{OPERATOR}"'

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def issuer() -> Iterator[LoopbackIssuer]:
    with LoopbackIssuer().serving() as serving:
        yield serving


def own_tokens(nats: NatsServers) -> tuple[Config, Path]:
    """Return a configuration with own tokens, and its file for commands."""
    lines = [
        '[tokens]\npath = "tokens"',
        "[log]",
        'kind = "jetstream"',
        f'path = "{nats.folder}"',
        "[cluster]",
        f'servers = ["{nats.addresses[0]}"]',
        "replicas = 1",
        "[gateway]",
        "port = 0",
        "drain_seconds = 1.0",
        f'[pods.demo.participants.a]\ntoken = "{token("a")}"',
    ]
    path = nats.folder / "gateway.toml"
    path.write_text("\n".join(lines))
    return config.load(path, {}), path


async def post(gateway: Gateway, path: str, body: str) -> str:
    """Return the answer to an admin's request."""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {OPERATOR}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    text = b""
    async with await anyio.connect_tcp("127.0.0.1", gateway.port) as stream:
        await stream.send((head + body).encode())
        with anyio.fail_after(30):
            async for part in stream:
                text += part
    return text.decode()


async def command(path: Path, *arguments: str) -> str:
    run = await anyio.run_process(
        [MCPP, "token", *arguments, "--config", str(path)], stderr=subprocess.STDOUT, check=False
    )
    assert run.returncode == 0, run.stdout.decode()
    return run.stdout.decode().strip()


async def ended(*pods: mcpp.Pod) -> None:
    """Wait until connections are closed. Two seconds are promised; the machine may be busy."""
    for pod in pods:
        with anyio.fail_after(10), pytest.raises(ClosedError) as closed:
            await anext(pod)
        assert closed.value.code == REVOKED


@pytest.mark.rule("S-01", "S-10", "N-13")
async def test_a_token_of_the_command_works_and_is_revoked_at_every_gateway(
    nats: NatsServers,
) -> None:
    found, path = own_tokens(nats)
    signed = await command(path, "ada", "--expires", "1h", "--can", "chat", "--multiple")
    async with gateways(found, 3) as three:
        async with (
            mcpp.connect(url(three[0]), token=signed, options=WITHOUT_REPEAT) as first,
            mcpp.connect(url(three[1]), token=signed, options=WITHOUT_REPEAT) as second,
            mcpp.connect(url(three[2]), token=signed, options=WITHOUT_REPEAT) as third,
        ):
            for pod in (first, second, third):
                await pod.send("chat", "hello")
                with pytest.raises(mcpp.Refused):
                    await pod.send("other", "no")
            assert "revoked" not in await command(path, "--list")
            await command(path, "ada", "--revoke")
            await ended(first, second, third)
        assert "revoked" in await command(path, "--list")
        for gateway in three:
            with pytest.raises(JoinError, match="revoked"):
                async with mcpp.connect(url(gateway), token=signed):
                    pass
        await command(path, "--new-key")
        again = await command(path, "ada", "--expires", "1h")
        async with mcpp.connect(url(three[1]), token=again, options=QUICK) as ada:
            await ada.send("chat", "back")


@pytest.mark.rule("S-10")
async def test_as_many_tokens_as_can_be_signed_can_be_revoked(
    nats: NatsServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_tokens, "_MAX_BYTES", 4096)
    found, _ = own_tokens(nats)
    now = time.time()
    names: list[str] = []

    async def sign_many(tokens: SharedTokens) -> None:
        for number in range(100):
            await tokens.sign(f"job-{number}", ["demo"], {}, now=now, expires=now + 60)
            names.append(f"job-{number}")

    async with command_streams(found, "tokens") as streams:
        tokens = SharedTokens(streams.link, streams)
        await tokens.open(with_key=True)
        with pytest.raises(LinkError, match="too many signed tokens"):
            await sign_many(tokens)
        for name in names:
            await tokens.revoke(name, now)
        assert {each.value for each in tokens.revocations()} == set(names)


@pytest.mark.rule("S-14", "N-13")
async def test_connections_of_a_deleted_key_end_at_every_gateway(nats: NatsServers) -> None:
    found, path = own_tokens(nats)
    stolen = await command(path, "ada", "--expires", "1h", "--multiple")
    old = jwt.get_unverified_header(stolen)["kid"]
    await command(path, "--new-key")
    kept = await command(path, "eve", "--expires", "1h")
    async with (
        gateways(found, 2) as both,
        joined(both[0], stolen) as first,
        joined(both[1], stolen) as second,
        mcpp.connect(url(both[1]), token=kept, options=WITHOUT_REPEAT) as eve,
    ):
        assert "deleted" in await command(path, "--delete-key", old)
        with anyio.fail_after(10):
            for each in (first, second):
                await each.wait_closed()
                assert each.close_code == TOKEN_EXPIRED
        await eve.send("chat", "still here")
        assert f"key {old} deleted" in await command(path, "--list")


@pytest.mark.rule("S-10", "N-13")
async def test_a_revocation_by_one_gateways_admin_works_at_the_others(
    nats: NatsServers, issuer: LoopbackIssuer
) -> None:
    found = configure(nats, ADMIN, issuer.config())
    async with (
        gateways(found, 2) as (first, second),
        mcpp.connect(url(second), token=issuer.sign("ada"), options=WITHOUT_REPEAT) as ada,
    ):
        body = json.dumps({"name": "ada"})
        answer = await post(first, "/admin/revoke", body)
        assert answer.startswith("HTTP/1.1 200")
        await ended(ada)
    async with gateways(found, 1) as (later,):  # it was not there then
        with pytest.raises(JoinError, match="revoked"):
            async with mcpp.connect(url(later), token=issuer.sign("ada", iat=1)):
                pass


@pytest.mark.rule("O-02")
async def test_a_kick_tells_of_connections_at_other_gateways(nats: NatsServers) -> None:
    async with (
        gateways(configure(nats, ADMIN)) as (first, second),
        mcpp.connect(url(first), token=token("a"), options=WITHOUT_REPEAT) as a,
        mcpp.connect(url(second), token=token("b"), options=WITHOUT_REPEAT),
    ):
        await eventually(lambda: set(a.participants) == {"a", "b"})

        async def kick(gateway: Gateway, name: str) -> tuple[int, str]:
            answer = await post(gateway, "/admin/kick", json.dumps({"participant": name}))
            found = json.loads(answer.partition("\r\n\r\n")[2])
            return found["closed"], found.get("note", "")

        closed, note = await kick(first, "b")
        assert (closed, "at another gateway" in note, "spelling" in note) == (0, True, False)
        closed, note = await kick(first, "c")
        assert (closed, "at another gateway" in note, "spelling" in note) == (0, False, True)
        assert await kick(second, "b") == (1, "")


@pytest.mark.rule("S-01", "S-05", "N-13")
async def test_the_rights_of_a_token_outlive_the_leader_and_all_gateways(
    nats: NatsServers, issuer: LoopbackIssuer
) -> None:
    allow = 'capabilities = [{ kind = "chat" }, { kind = "note" }]\nmultiple = true'
    found = configure(nats, issuer.config(allow=allow))
    rights = {"capabilities": [{"kind": "*"}], "multiple": True}
    signed = issuer.sign("ada", mcpp=rights)

    async def check(pod: mcpp.Pod) -> None:
        await pod.send("note", "yes")
        with pytest.raises(mcpp.Refused) as refused:
            await pod.send("other", "no")
        assert refused.value.code == "capability_violation"

    async with gateways(found, 2) as both:
        await eventually(lambda: any(each.pods["demo"].is_leader for each in both))  # type: ignore[attr-defined]
        leader, other = sorted(both, key=lambda each: not each.pods["demo"].is_leader)  # type: ignore[attr-defined]
        async with mcpp.connect(url(other), token=signed, options=QUICK) as ada:
            await check(ada)
            await leader.drain()
            await check(ada)
    async with gateways(found, 1) as (again,):
        assert again.pods["demo"].members.owner("ada") == "company"
        async with mcpp.connect(url(again), token=signed, options=QUICK) as ada:
            await check(ada)


@pytest.mark.rule("S-01", "N-13")
@pytest.mark.parametrize("way", ["revoked", "expired"])
async def test_the_rights_of_a_token_end_with_it_at_all_gateways(
    nats: NatsServers, issuer: LoopbackIssuer, way: str
) -> None:
    found = configure(
        nats, ADMIN, issuer.config(more="clock_skew_seconds = 0", allow="multiple = true")
    )
    chats = {"capabilities": [{"kind": "chat"}], "multiple": True}
    weak = issuer.sign("ada", mcpp=chats)
    strong = issuer.sign("ada", jti="strong", exp=time.time() + 300, mcpp={"multiple": True})
    async with (
        gateways(found, 2) as (first, second),
        mcpp.connect(url(first), token=weak, options=QUICK) as one,
    ):
        with pytest.raises(mcpp.Refused):
            await one.send("note", "not yet")
        async with mcpp.connect(url(second), token=strong, options=WITHOUT_REPEAT) as other:
            await other.send("note", "yes")
        await one.send("note", "the participant has the rights of the token that joined last")
        if way == "revoked":
            await post(second, "/admin/revoke", json.dumps({"name": "strong"}))
        else:
            first.wall_clock = second.wall_clock = lambda: time.time() + 400

        async def send_notes() -> None:
            while True:
                await one.send("note", "still")

        with anyio.fail_after(10), pytest.raises(mcpp.Refused) as refused:
            await send_notes()  # it is closed with 4004, and comes back with its own rights
        assert refused.value.code == "capability_violation"
        await one.send("chat", "hello")


@pytest.mark.rule("S-04", "N-13")
async def test_a_name_belongs_to_one_issuer_at_all_gateways(
    nats: NatsServers, issuer: LoopbackIssuer
) -> None:
    with LoopbackIssuer().serving() as other:
        more = issuer.config(more='issuer = "https://issuer"')
        found = configure(nats, more, other.config("partner", 'issuer = "https://other"'))
        async with (
            gateways(found, 2) as (first, second),
            mcpp.connect(url(first), token=issuer.sign("ada"), options=QUICK),
        ):
            await eventually(lambda: second.pods["demo"].members.owner("ada") == "company")
            with pytest.raises(JoinError, match="another issuer"):
                async with mcpp.connect(url(second), token=other.sign("ada", iss="https://other")):
                    pass


@pytest.mark.rule("S-10")
async def test_without_its_log_a_revocation_is_refused_and_not_forgotten(
    nats: NatsServers, issuer: LoopbackIssuer
) -> None:
    found = configure(nats, ADMIN, issuer.config())
    async with gateways(found, 1) as (only,):
        nats.stop()
        answer = await post(only, "/admin/revoke", '{"name": "ada"}')
        assert answer.startswith("HTTP/1.1 503")
        assert "nothing is revoked: the cluster's log is out of reach; try again (" in answer
        assert only.tokens is not None
        assert not len(only.tokens.revocations)


@pytest.mark.rule("S-08")
async def test_keys_are_good_over_a_restart_in_a_cluster_while_the_key_server_is_down(
    nats: NatsServers, issuer: LoopbackIssuer
) -> None:
    found = configure(nats, issuer.config())
    for status in (200, 500):
        issuer.status = status
        async with (
            gateways(found, 1) as (gateway,),
            mcpp.connect(url(gateway), token=issuer.sign("ada"), options=QUICK) as ada,
        ):
            await ada.send("chat", "hello")
