"""Gateways in one process with real NATS servers: what clients see at each of them."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import msgspec
import pytest

import mcpp
from mcpp import Options
from mcpp.errors import JoinError, UnreachableError
from mcpp_gateway import config
from mcpp_gateway.cluster import cluster_log
from mcpp_gateway.cluster.cluster_log import ClusterLog, new_link
from mcpp_gateway.cluster.nats_link import LinkError
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.cluster.streams import Streams
from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.core.cluster.leading.leadership import ranking
from mcpp_gateway.core.cluster.messages import decode_beat
from mcpp_gateway.core.cluster.pod import ClusterPod
from mcpp_gateway.core.cluster.records import VERSION, Claim, encode_record
from mcpp_gateway.edge.server import Gateway
from tests.gateway.ports import free_ports
from tests.gateway.sockets import token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

QUICK = Options(backoff=lambda attempt: 0.02, keep_trying=True)
WITHOUT_REPEAT = Options(backoff=lambda attempt: 60.0)


def configure(nats: NatsServers, *more: str, participants: str = "ab") -> Config:
    lines = [
        "[gateway]",
        "port = 0",
        "drain_seconds = 1.0",
        "[log]",
        'kind = "jetstream"',
        f'path = "{nats.folder}"',
        "rejoin_seconds = 5.0",
        "[cluster]",
        f'servers = ["{nats.addresses[0]}"]',
        "replicas = 1",
        "unreachable_seconds = 2.0",
        *more,
    ]
    for name in participants:
        lines += [
            f"[pods.demo.participants.{name}]",
            f'token = "{token(name)}"',
            'capabilities = [{ kind = "chat" }]',
            f"multiple = {'true' if name == 'm' else 'false'}",
        ]
    return config.parse("\n".join(lines), {})


@asynccontextmanager
async def gateways(found: Config, count: int = 2) -> AsyncIterator[list[Gateway]]:
    running: list[Gateway] = []
    try:
        for _ in range(count):
            gateway = Gateway(found, asyncio.get_running_loop())
            await gateway.listen()
            running.append(gateway)
        yield running
    finally:
        for gateway in running:
            if not gateway.draining:
                await gateway.drain()


def cluster_of(gateway: Gateway) -> ClusterLog:
    assert gateway.cluster is not None
    return gateway.cluster


def url(gateway: Gateway) -> str:
    return f"ws://127.0.0.1:{gateway.port}/ws"


async def get(gateway: Gateway, path: str, headers: str = "") -> str:
    """Return an HTTP answer."""
    text = b""
    async with await anyio.connect_tcp("127.0.0.1", gateway.port) as stream:
        await stream.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        with anyio.fail_after(5):
            async for part in stream:
                text += part
    return text.decode()


async def eventually(condition: object, seconds: float = 10.0) -> None:
    assert callable(condition)
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110  (the gateway has no event for it)
            await anyio.sleep(0.01)


@pytest.mark.rule("G-52", "N-06")
async def test_participants_of_two_gateways_are_in_one_pod(nats: NatsServers) -> None:
    async with (
        gateways(configure(nats)) as (first, second),
        mcpp.connect(url(first), token=token("a"), options=QUICK) as a,
        mcpp.connect(url(second), token=token("b"), options=QUICK) as b,
    ):
        assert set(b.participants) == {"a", "b"}
        assert first.pods["demo"].epoch == second.pods["demo"].epoch
        sent = [(await a.send("chat", {"n": number})).id for number in range(5)]
        with anyio.fail_after(10):
            assert [(await anext(b)).id for _ in range(5)] == sent
        with pytest.raises(mcpp.Refused) as refused:
            await b.send("other", {})
        assert refused.value.code == "capability_violation"
        await eventually(lambda: set(a.participants) == {"a", "b"})


@pytest.mark.rule("G-52", "N-06")
async def test_a_client_resumes_at_another_gateway(nats: NatsServers) -> None:
    async with gateways(configure(nats)) as (first, second):
        async with mcpp.connect(url(first), token=token("a"), options=QUICK) as a:
            position = (await a.send("chat", 1)).id
            missed = [(await a.send("chat", number)).id for number in range(3)]
        async with mcpp.connect(url(second), token=token("b"), after=position, options=QUICK) as b:
            with anyio.fail_after(10):
                found = [(await anext(b)).id for _ in missed]
            assert found == missed


@pytest.mark.rule("P-12")
async def test_a_gateway_that_does_not_know_a_participant_yet_does_not_end_its_client(
    nats: NatsServers,
) -> None:
    """It has not read the new configuration; the participant is added to one after another."""
    async with AsyncExitStack() as stack:
        (reloaded,) = await stack.enter_async_context(gateways(configure(nats), 1))
        await eventually(lambda: all(link.pod.is_leader for link in cluster_of(reloaded).links))
        older_config = configure(nats, participants="a")
        (older,) = await stack.enter_async_context(gateways(older_config, 1))
        both = f"{url(reloaded)},{url(older)}"
        async with mcpp.connect(both, token=token("b"), options=QUICK) as b:
            await b.send("chat", 1)
            await reloaded.drain()  # b finds only the one that refuses it
            with pytest.raises(UnreachableError, match=f"{url(older)} refused with 401"):
                async with mcpp.connect(both, token=token("b"), options=WITHOUT_REPEAT):
                    raise AssertionError("it has joined")
            older.reconfigure(configure(nats))
            with anyio.fail_after(80):  # b waits for a minute if it was refused often meanwhile
                await b.send("chat", 2)
        with pytest.raises(JoinError) as caught:
            async with mcpp.connect(f"{url(older)},{url(older)}", token=token("c"), options=QUICK):
                raise AssertionError("it has joined")
        assert caught.value.status == 401


@pytest.mark.rule("N-08", "G-51")
async def test_the_log_outlives_all_gateways(nats: NatsServers) -> None:
    async with gateways(configure(nats), 1) as (only,):
        async with mcpp.connect(url(only), token=token("a"), options=QUICK) as a:
            sent = [(await a.send("chat", number)).id for number in range(3)]
        epoch = only.pods["demo"].epoch
    async with (
        gateways(configure(nats), 1) as (again,),
        mcpp.connect(f"{url(again)}", token=token("b"), last=100, options=QUICK) as b,
    ):
        found = [await anext(b) for _ in range(b.replayed)]
        assert [each.id for each in found if each.kind == "chat"] == sent
        assert again.pods["demo"].epoch == epoch


@pytest.mark.rule("N-05", "G-42")
async def test_a_drained_gateway_hands_over_its_leadership_and_its_clients(
    nats: NatsServers,
) -> None:
    async with gateways(configure(nats)) as both:
        leads = [gateway.cluster.links for gateway in both if gateway.cluster is not None]
        await eventually(lambda: any(link.pod.is_leader for links in leads for link in links))
        is_first = any(link.pod.is_leader for link in leads[0])
        leader, other = both if is_first else (both[1], both[0])
        async with mcpp.connect(
            f"{url(leader)},{url(other)}", token=token("a"), options=QUICK
        ) as a:
            await a.send("chat", 1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(leader.drain)
                await eventually(lambda: other.pods["demo"].participants == ("a",))
                await a.send("chat", 2)
            assert other.cluster is not None
            assert all(link.pod.is_leader for link in other.cluster.links)
            entries = other.pods["demo"].journal.read(0, 100)
            assert [entry.kind for entry in entries] == ["system/presence", "chat", "chat"]


@pytest.mark.torture  # it measures, so it runs alone
@pytest.mark.rule("N-05")
async def test_a_drained_gateway_moves_its_leaderships_and_clients_within_300_ms(
    nats: NatsServers,
) -> None:
    worst: dict[str, float] = {"moved": 0.0, "stayed": 0.0}

    async def send(pod: mcpp.Pod, name: str, seconds: float) -> None:
        end = anyio.current_time() + seconds
        while anyio.current_time() < end:
            began = anyio.current_time()
            await pod.send("chat", 1)
            worst[name] = max(worst[name], anyio.current_time() - began)

    async with gateways(configure(nats)) as (first, second):
        links = [link for gateway in (first, second) for link in cluster_of(gateway).links]
        await eventually(lambda: any(link.pod.is_leader for link in links))
        leader, other = (first, second) if links[0].pod.is_leader else (second, first)
        async with (
            mcpp.connect(f"{url(leader)},{url(other)}", token=token("a")) as moved,
            mcpp.connect(url(other), token=token("b")) as stayed,
            anyio.create_task_group() as tasks,
        ):
            await moved.send("chat", 0)
            tasks.start_soon(send, moved, "moved", 2.0)
            tasks.start_soon(send, stayed, "stayed", 2.0)
            tasks.start_soon(leader.drain)
    assert max(worst.values()) <= 0.3, worst


@pytest.mark.torture  # it measures, so it runs alone
@pytest.mark.rule("N-05")
async def test_a_successor_that_is_not_configured_with_the_pod_delays_little(
    nats: NatsServers,
) -> None:
    elsewhere = f'[pods.elsewhere.participants.a]\ntoken = "{token("a")}"'
    other_pod = configure(nats, elsewhere, participants="")
    async with gateways(configure(nats)) as both:
        await eventually(lambda: any(cluster_of(each)._leads("demo") for each in both))
        first, second = both if cluster_of(both[0])._leads("demo") else reversed(both)
        stranger = Gateway(other_pod, asyncio.get_running_loop())
        while True:
            await stranger.listen()
            name = cluster_of(stranger).gateway
            if ranking("demo", [name, cluster_of(second).gateway])[0] == name:
                break
            await stranger.drain()
            stranger = Gateway(other_pod, asyncio.get_running_loop())
        await eventually(lambda: name in cluster_of(first)._silence.alive(0.5))
        worst = 0.0
        async with (
            mcpp.connect(url(second), token=token("a")) as a,
            anyio.create_task_group() as tasks,
        ):
            await a.send("chat", 0)
            tasks.start_soon(first.drain)
            end = anyio.current_time() + 2.0
            while (began := anyio.current_time()) < end:
                await a.send("chat", 1)
                worst = max(worst, anyio.current_time() - began)
        (link,) = cluster_of(second).links
        assert link.pod.is_leader
        assert link.pod.replica.fence.term == 3  # after the one that was chosen
        await stranger.drain()
    assert worst <= 0.3


@pytest.mark.rule("G-53")
async def test_without_its_log_a_gateway_neither_echoes_nor_refuses(
    nats: NatsServers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcpp.gateway")
    server = nats.processes[0]
    assert server is not None
    async with (
        gateways(configure(nats), 1) as (only,),
        mcpp.connect(url(only), token=token("a"), options=QUICK) as a,
    ):
        await a.send("chat", 1)
        assert "200" in await get(only, "/healthz")
        server.send_signal(signal.SIGSTOP)
        stopped = os.WSTOPPED | os.WNOWAIT  # when all of its threads have stopped
        await anyio.to_thread.run_sync(os.waitid, os.P_PID, server.pid, stopped)
        echoes: list[str] = []

        async def send() -> None:
            echoes.append((await a.send("chat", 2)).id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            # After two seconds it is closed with 4003, and may not join again.
            await eventually(lambda: not a.connected)
            assert echoes == []
            await eventually(lambda: not only.pods["demo"].journal.admitting)
            assert "503" in await get(only, "/healthz")
            head = (
                f"GET /ws HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token('b')}\r\n"
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            async with await anyio.connect_tcp("127.0.0.1", only.port) as stream:
                await stream.send(head.encode())
                answer = (await stream.receive()).decode()
            assert answer.startswith("HTTP/1.1 503")
            assert "Retry-After" in answer
            lost, found = "the log is out of reach", "the log can be reached again"
            await eventually(lambda: lost in caplog.messages)
            server.send_signal(signal.SIGCONT)
        await eventually(lambda: only.is_log_reachable)
        chats = [e for e in only.pods["demo"].journal.read(0, 100) if e.kind == "chat"]
        assert len(chats) == 2
        assert "200" in await get(only, "/healthz")
        await eventually(lambda: found in caplog.messages)
        said = [each for each in caplog.messages if each in (lost, found)]
        assert said[:2] == [lost, found]


async def answered_has_leader(found: Config) -> bool:
    """Return whether the states have a leader, by the first answer of a server."""
    link = new_link(found.cluster, "test")
    await link.connect()
    streams = Streams(link, 3, found.log.retention)
    try:
        with anyio.fail_after(60):
            while True:
                with suppress(LinkError):
                    return await streams.has_leader(streams.state_stream)
    finally:
        await link.close()


@pytest.mark.rule("G-53")
async def test_what_jetstream_refuses_is_reported_with_its_reason(
    nats: NatsServers, caplog: pytest.LogCaptureFixture
) -> None:
    found = configure(nats)
    link = new_link(found.cluster, "operator")
    await link.connect()
    streams = Streams(link, 1, found.log.retention)
    try:
        async with (
            gateways(found, 1) as (gateway,),
            mcpp.connect(url(gateway), token=token("a"), options=QUICK) as a,
        ):
            known = await streams.info(streams.log_stream("demo"))
            assert known is not None
            sealed = {**known["config"], "sealed": True}
            await streams.call(f"STREAM.UPDATE.{streams.log_stream('demo')}", sealed)
            await a.send("chat", "late", wait=False)
            refused = "JetStream does not accept records"
            await eventually(lambda: refused in caplog.messages)
        record, *_ = [each for each in caplog.records if each.getMessage() == refused]
        assert "sealed" in record.reason  # type: ignore[attr-defined]
        assert "cluster connection" not in caplog.messages  # as an error of ours would be shown
    finally:
        await link.close()


@pytest.mark.rule("G-53")
async def test_an_idle_gateway_notices_that_its_servers_have_no_majority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = NatsServers(tmp_path, 3, free_ports(6))
    servers.start()
    try:
        found = configure(servers)
        cluster = msgspec.structs.replace(found.cluster, servers=servers.addresses, replicas=3)
        found = msgspec.structs.replace(found, cluster=cluster)
        async with gateways(found, 1) as (only,):
            await eventually(lambda: only.is_log_reachable, 60)
            monkeypatch.setattr(cluster_log, "PROOF_SECONDS", 3.0)
            for process in servers.processes[:2]:
                assert process is not None
                process.kill()
                process.wait()
            assert only.cluster is not None
            link = only.cluster._link  # which may have to connect to the third server first
            await eventually(lambda: link.is_connected and not only.is_log_reachable, 60)
            assert "503" in await get(only, "/healthz")
            assert not await answered_has_leader(found)
            assert not only.is_log_reachable
            for number in range(2):
                servers.start_one(number)
            await eventually(lambda: only.is_log_reachable, 60)
    finally:
        servers.stop()


async def test_retention_is_the_limit_of_the_stream_and_a_change_applies_at_the_next_start(
    nats: NatsServers,
) -> None:
    link = new_link(configure(nats).cluster, "test")
    await link.connect()
    for days, size in ((30, 1 << 30), (10, 1 << 29)):
        retention = f"[log.retention]\nmax_age_days = {days}\nmax_bytes = {size}"
        found = configure(nats, retention)
        async with gateways(found, 1):
            info = await Streams(link, 1, found.log.retention).info("MCPP_demo")
            assert info is not None
            limits = info["config"]["max_age"], info["config"]["max_bytes"]
            assert limits == (days * 86_400 * 10**9, size)
    await link.close()


@pytest.mark.rule("N-09")
async def test_a_gateway_that_meets_a_newer_version_says_so(
    nats: NatsServers, caplog: pytest.LogCaptureFixture
) -> None:
    found = configure(nats)
    async with gateways(found, 1) as (only,):
        pod = only.pods["demo"]
        assert isinstance(pod, ClusterPod)
        await eventually(lambda: pod.is_leader)
        claim = Claim(pod.replica.fence.term + 1, "newer", 0.0, "", VERSION + 1)
        link = new_link(found.cluster, "test")
        await link.connect()
        beats: list[bool] = []
        await link.subscribe(
            "mcpp.beat", lambda message: beats.append(decode_beat(message.data).outdated)
        )
        await link.request("mcpp.demo.log", encode_record(claim))
        await eventually(lambda: beats and beats[-1])  # what `mcpp cluster` shows
        await link.close()
        assert not pod.is_leader
        assert "newer version" in caplog.text


@pytest.mark.rule("G-37", "G-52")
async def test_a_revoked_participant_leaves_at_every_gateway(nats: NatsServers) -> None:
    async with (
        gateways(configure(nats, participants="abm")) as (first, second),
        mcpp.connect(url(first), token=token("m"), options=WITHOUT_REPEAT),
        mcpp.connect(url(second), token=token("m"), options=WITHOUT_REPEAT),
        mcpp.connect(url(second), token=token("a"), options=QUICK) as a,
    ):
        assert set(a.participants) == {"a", "m"}
        for gateway in (first, second):
            gateway.reconfigure(configure(nats, participants="ab"))
        await eventually(lambda: set(a.participants) == {"a"})


async def sign_in(gateway: Gateway, code: str) -> str:
    return await get(gateway, "/session", f"mcpp-code: {code}\r\n")


@pytest.mark.rule("G-37", "G-61", "G-63", "G-52")
async def test_an_invitation_of_one_gateway_works_once_at_any(nats: NatsServers) -> None:
    async with gateways(configure(nats)) as (first, second):
        code = await first.invite("demo", "a")
        answers = await asyncio.gather(*(sign_in(each, code) for each in (second, first, second)))
        assert sorted(each.split()[1] for each in answers) == ["200", "401", "401"]
        answer = next(each for each in answers if each.split()[1] == "200")
        session = json.loads(answer.partition("\r\n\r\n")[2])["token"]
        for gateway in (first, second):
            async with mcpp.connect(url(gateway), token=session, options=QUICK) as a:
                assert a.connected
        assert "401" in (await sign_in(first, "unknown")).split("\r\n")[0]


LARGE = "max_message_bytes = 9_000_000"
OWN_LIMITS = ("[pods.demo.participants.c]", f'token = "{token("c")}"', f"limits = {{ {LARGE} }}")
ISSUER = ("[issuers.company]", 'jwks_url = "https://localhost/keys"', 'audience = "mcpp"')


@pytest.mark.rule("O-03")
@pytest.mark.parametrize(
    "lines",
    [
        ("[limits]", "outbox_bytes = 40_000_000", LARGE),
        ("[pods.demo.limits]", "outbox_bytes = 40_000_000", LARGE),
        ("[limits]", "outbox_bytes = 40_000_000", *OWN_LIMITS),
        (
            "[limits]",
            "outbox_bytes = 40_000_000",
            *ISSUER,
            "[issuers.company.allow.limits]",
            LARGE,
        ),
    ],
    ids=["general", "pod", "participant", "issuer"],
)
async def test_servers_that_accept_no_large_messages_are_refused(
    nats: NatsServers, lines: tuple[str, ...]
) -> None:
    found = configure(nats, *lines)
    with pytest.raises(ConfigError, match="max_payload"):
        async with gateways(found, 1):
            pass
    async with gateways(configure(nats), 1) as (gateway,):
        with pytest.raises(ConfigError, match="max_payload"):
            gateway.reconfigure(found)
        async with mcpp.connect(url(gateway), token=token("a"), options=QUICK) as a:
            await a.send("chat", "as before")


SHORT = ("[limits]", "history_messages = 10")


async def history(pod: mcpp.Pod) -> list[str]:
    """Return the ids of all chats, oldest first."""
    return [each.id for each in await pod.history({"kind": "chat"}).all()]


@pytest.mark.rule("N-10", "G-52")
async def test_every_gateway_serves_what_is_no_longer_in_memory(nats: NatsServers) -> None:
    found = configure(nats, *SHORT)
    async with gateways(found, 1) as (first,):
        async with mcpp.connect(url(first), token=token("a"), options=QUICK) as a:
            sent = [(await a.send("chat", {"text": f"word{n} all"})).id for n in range(60)]
        async with gateways(found, 1) as (second,):  # it has nothing copied yet
            for gateway in (first, second):
                async with mcpp.connect(
                    url(gateway), token=token("b"), after=sent[4], options=QUICK
                ) as b:
                    with anyio.fail_after(10):
                        assert [(await anext(b)).id for _ in sent[5:]] == sent[5:]
                    assert await history(b) == sent
                    assert [each.id for each in await b.history(text="word7").all()] == [sent[7]]


@pytest.mark.rule("N-10")
async def test_a_copy_goes_on_where_it_stopped_and_may_be_deleted(nats: NatsServers) -> None:
    found = configure(nats, *SHORT)
    copies = nats.folder / ".copies"
    sent: list[str] = []
    for is_deleted in (False, False, True, False):
        if is_deleted:
            shutil.rmtree(copies)
        async with (
            gateways(found, 1) as (only,),
            mcpp.connect(url(only), token=token("a"), options=QUICK) as a,
        ):
            sent += [(await a.send("chat", n)).id for n in range(20)]
            assert await history(a) == sent


@pytest.mark.rule("N-10")
async def test_a_copy_of_another_stream_is_made_again(nats: NatsServers) -> None:
    found = configure(nats, *SHORT)
    async with (
        gateways(found, 1) as (only,),
        mcpp.connect(url(only), token=token("a"), options=QUICK) as a,
    ):
        for number in range(20):
            await a.send("chat", number)
    link = new_link(found.cluster, "test")
    await link.connect()
    for stream in ("MCPP_demo", "MCPP=STATES"):
        await link.request(f"$JS.API.STREAM.DELETE.{stream}", b"")
    await link.close()
    async with (
        gateways(found, 1) as (only,),
        mcpp.connect(url(only), token=token("a"), options=QUICK) as a,
    ):
        sent = (await a.send("chat", "new")).id
        assert await history(a) == [sent]
