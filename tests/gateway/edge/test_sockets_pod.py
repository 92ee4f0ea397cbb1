"""A pod over real sockets: order, resumption, takeover, slow readers, shutdown."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import pytest
from websockets.asyncio.client import ClientConnection

import mcpp
from mcpp_gateway import config
from mcpp_gateway.edge.server import Gateway
from tests.gateway.sockets import (
    BOUND,
    chat,
    config_text,
    http,
    id_of,
    joined,
    raw,
    raw_frame,
    receive,
    receive_until,
    received,
    running,
    token,
    upgrade_request,
)

pytestmark = pytest.mark.anyio


async def closed_with(client: ClientConnection) -> int | None:
    """Read until the connection closes and return the gateway's close code."""
    async with asyncio.timeout(BOUND):
        await client.wait_closed()
    return client.close_code


async def test_all_receive_the_same_order_the_sender_included() -> None:
    names = [f"p{i}" for i in range(8)]
    text = config_text(dict.fromkeys(names, ""))
    async with running(text) as gateway, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(joined(gateway, name)) for name in names]
        for client in clients:
            await receive(client)

        async def talk(index: int) -> None:
            for i in range(20):
                await clients[index].send(chat(names[index], str(i)))

        await asyncio.gather(*(talk(index) for index in range(len(names))))

        async def receive_ids(client: object) -> list[str]:
            ids: list[str] = []
            while len(ids) < 160:
                envelope = await receive(client)  # type: ignore[arg-type]
                if envelope["kind"] == "chat":
                    ids.append(envelope["id"])
            return ids

        received = await asyncio.gather(*map(receive_ids, clients))
        assert len(set(received[0])) == 160
        assert all(ids == received[0] for ids in received)


async def test_the_senders_own_bytes_are_relayed() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        text = (
            '{ "from":"alice", "x-unknown" : [1.50, {"b":1,"a":2}],"kind":"chat",\n'
            ' "context":{"id":"c","type":"t","more":null,"metadata":{"k": 1e2}},'
            '"protocol":"mcpp\\/v0.1","id":"m-1","ts":"2025-08-31T12:00:00Z","payload":"\\u00fc"}'
        )
        alice.send(0x81, text.encode())
        assert (await alice.frame())[1] == text.encode()


async def test_a_cut_connection_is_resumed_without_a_gap_or_a_repeat_after_a_long_absence() -> None:
    # While bob is away, far more than the outbox is sent.
    text = config_text(
        max_message_bytes=20_000, outbox_bytes=100_000, messages_per_second=0, history_messages=500
    )
    async with running(text) as gateway, joined(gateway, "alice") as alice:
        async with joined(gateway, "bob") as bob:
            first = chat("alice", "first")
            await alice.send(first)
            await receive_until(bob, id_of(first))
        missed = [chat("alice", "x" * 10_000) for _ in range(100)]
        for envelope in missed:
            await alice.send(envelope)
        await receive_until(alice, id_of(missed[-1]))
        async with joined(gateway, "bob", query={"after": id_of(first)}) as bob:
            welcome = await receive(bob)
            live = chat("alice", "live")
            await alice.send(live)
            seen = await receive_until(bob, id_of(live))
            assert welcome["payload"]["resumed"] is True
            assert welcome["payload"]["replayed"] == len(missed)
            assert [e["id"] for e in seen] == [*map(id_of, missed), id_of(live)]


async def test_a_position_that_left_the_log_is_reported_as_a_gap() -> None:
    text = config_text(history_messages=5)
    async with running(text) as gateway, joined(gateway, "alice") as alice:
        sent = [chat("alice", str(i)) for i in range(10)]
        for envelope in sent:
            await alice.send(envelope)
        await receive_until(alice, id_of(sent[-1]))
        async with joined(gateway, "bob", query={"after": id_of(sent[0]), "last": "2"}) as bob:
            welcome = (await receive(bob))["payload"]
            assert (welcome["resumed"], welcome["replayed"]) == (False, 2)


class LightweightClient(asyncio.Protocol):
    """A lightweight client, for a thousand at once: it joins and waits for certain bytes."""

    def __init__(self, request: bytes, wanted: bytes) -> None:
        self.request = request
        self.wanted = wanted
        self.received = asyncio.get_running_loop().create_future()
        self.tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.wanted in self.tail + data and not self.received.done():
            self.received.set_result(True)
        self.tail = data[-len(self.wanted) :]

    def connection_lost(self, error: Exception | None) -> None:
        if not self.received.done():
            self.received.set_result(False)


@pytest.mark.slow
async def test_a_thousand_connections_may_join_at_once() -> None:
    names = [f"p{i}" for i in range(1000)]
    loop = asyncio.get_running_loop()
    # These clients do not answer pings.
    text = config_text(dict.fromkeys([*names, "alice"], ""), gateway={"ping_seconds": 3600})
    async with running(text) as gateway, raw(gateway, "alice") as alice:
        requests = [
            upgrade_request(gateway.port, f"Authorization: Bearer {token(name)}") for name in names
        ]
        hello = chat("alice", "hello everyone").encode()

        async def listen(request: bytes) -> LightweightClient:
            made = lambda: LightweightClient(request, hello)  # noqa: E731
            return (await loop.create_connection(made, "127.0.0.1", gateway.port))[1]

        clients = await asyncio.gather(*map(listen, requests))
        present: set[str] = set()
        while len(present) < 1000:
            _, presence = await alice.frame()
            payload = json.loads(presence)["payload"]
            entries = payload.get("entries", [payload])  # G-64: most come together
            present.update(each["participant"]["id"] for each in entries)
        alice.send(0x81, hello)
        async with asyncio.timeout(BOUND):
            assert all(await asyncio.gather(*(client.received for client in clients)))
        for client in clients:
            client.transport.abort()


async def test_a_slow_reader_is_closed_with_4001_and_the_others_lose_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "mcpp.gateway")
    text = config_text(
        max_message_bytes=100_000,
        outbox_bytes=400_000,
        messages_per_second=0,
        context_messages_per_second=0,
    )
    async with (
        running(text) as gateway,
        joined(gateway, "alice") as alice,
        joined(gateway, "carol") as carol,
        raw(gateway, "bob") as bob,
    ):
        await receive(carol)
        sent = []
        left = False
        # Bob reads nothing until his connection is closed; the system's buffers vary in size.
        while not left:
            sent.append(chat("alice", "x" * 90_000))
            await alice.send(sent[-1])
            received = await receive_until(alice, id_of(sent[-1]))
            left = any(
                e["kind"] == "system/presence" and e["payload"]["event"] == "leave"
                for e in received
            )
            assert len(sent) < 2000
        received = await receive_until(carol, id_of(sent[-1]))
        assert [e["id"] for e in received if e["kind"] == "chat"] == list(map(id_of, sent))
        assert await bob.close_code() == 4001
    lines = [vars(each) for each in caplog.records if vars(each).get("participant") == "bob"]
    assert [each["msg"] for each in lines] == ["joined", "slow reader closed", "left"]
    # One connection is one `request`, in lines of its pod and address.
    names = ("request", "address", "pod")
    assert len({tuple(each[name] for name in names) for each in lines}) == 1


async def test_a_newer_connection_replaces_the_older_without_a_presence() -> None:
    async with running() as gateway, joined(gateway, "bob") as bob:
        await receive(bob)
        async with joined(gateway, "alice") as old:
            await receive(old)
            async with joined(gateway, "alice") as new:
                await receive(new)
                assert await closed_with(old) == 4500
        events = [(await receive(bob))["payload"]["event"] for _ in range(2)]
        assert events == ["join", "leave"]


async def test_a_person_may_hold_several_connections() -> None:
    text = config_text({"alice": "multiple = true", "bob": ""})
    async with running(text) as gateway, joined(gateway, "bob") as bob:
        await receive(bob)
        async with joined(gateway, "alice") as one, joined(gateway, "alice") as two:
            envelope = chat("alice")
            await one.send(envelope)
            assert await receive_until(two, id_of(envelope))
            assert await receive_until(one, id_of(envelope))
        kinds = [(await receive(bob))["kind"] for _ in range(3)]
        assert kinds == ["system/presence", "chat", "system/presence"]


@asynccontextmanager
async def both_joined(gateway: Gateway) -> AsyncIterator[tuple[ClientConnection, ClientConnection]]:
    """Join @alice and then @bob, and receive both welcomes."""
    async with joined(gateway, "alice") as alice, joined(gateway, "bob") as bob:
        await receive(alice)
        await receive(bob)
        yield alice, bob


async def test_a_revoked_token_closes_its_connections_for_good() -> None:
    async with running() as gateway, both_joined(gateway) as (alice, bob):
        remaining = config_text({"bob": "", "carol": ""})
        gateway.reconfigure(config.parse(remaining, {}))
        assert await closed_with(alice) == 4501
        assert (await receive(bob))["payload"]["event"] == "leave"


async def test_a_changed_token_closes_the_connections_of_the_old_one() -> None:
    async with running() as gateway, joined(gateway, "alice") as alice:
        await receive(alice)
        changed = config_text().replace(token("alice"), "another-token-of-alice")
        gateway.reconfigure(config.parse(changed, {}))
        assert await closed_with(alice) == 4501


async def test_draining_flushes_and_tells_everyone_to_reconnect() -> None:
    async with running() as gateway, joined(gateway, "alice") as alice, raw(gateway, "bob") as bob:
        text = chat("alice")
        await alice.send(text)
        await receive_until(alice, id_of(text))
        drained = asyncio.create_task(gateway.drain())
        assert await bob.close_code() == 4000
        bob.writer.close()
        await asyncio.wait_for(drained, BOUND)
        assert not gateway.connections


async def test_a_filter_is_changed_live_where_the_answer_stands() -> None:
    async with running() as gateway, both_joined(gateway) as (alice, bob):
        inside = mcpp.new_context("reasoning")
        change = mcpp.new_envelope("pod/filter", {"filter": {"main": True}}, sender="bob")
        before, hidden = chat("alice", context=inside), chat("alice", context=inside)
        seen, addressed = chat("alice"), chat("alice", context=inside, to=["bob"])
        await alice.send(before)
        await receive_until(bob, id_of(before))
        await bob.send(mcpp.encode(change).decode())
        answer = (await receive_until(bob, change.id))[-1]
        assert answer["kind"] == "system/filter"
        for envelope in (hidden, seen, addressed):
            await alice.send(envelope)
        received = await receive_until(bob, id_of(addressed))
        assert [e["id"] for e in received] == [id_of(seen), id_of(addressed)]


async def test_idle_contexts_are_forgotten_and_announced_by_themselves() -> None:
    text = config_text(context_idle_seconds=0.1)
    async with running(text) as gateway, joined(gateway, "alice") as alice:
        await receive(alice)
        child = mcpp.new_context("task", id="child", parent="parent")
        await alice.send(chat("alice", context=child))
        await receive(alice)
        expired = [(await receive(alice))["payload"]["context"]["id"] for _ in range(2)]
        assert expired == ["child", "parent"]


async def test_an_own_envelope_comes_back_whatever_the_filter() -> None:
    nothing = json.dumps({"any": []})
    async with running() as gateway, joined(gateway, "alice", query={"filter": nothing}) as alice:
        await receive(alice)
        text = chat("alice")
        await alice.send(text)
        assert (await receive(alice))["id"] == id_of(text)


async def test_a_flood_of_context_ids_is_refused_and_the_others_notice_nothing() -> None:
    text = config_text(max_contexts_per_participant=16, messages_per_second=200, burst=400)
    async with (
        running(text) as gateway,
        raw(gateway, "alice") as alice,
        joined(gateway, "bob") as bob,
    ):
        flood = b"".join(
            raw_frame(0x81, chat("alice", context=mcpp.new_context(id=f"c{i}")).encode())
            for i in range(1_000)
        )
        pod = gateway.pods["demo"]
        alice.writer.write(flood * 20)
        await receive(bob)
        for i in range(20):
            mine = chat("bob", str(i))
            await bob.send(mine)
            assert await receive_until(bob, id_of(mine))
        assert len(pod.tree) == 16
        # Most of the flood still waits at its sender: its frames cost no token.
        assert received(gateway) < 10_000
        assert pod.refused["rate_limited"] < 10_000


async def test_a_flood_of_pings_is_held_back_and_nothing_is_lost() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        text = chat("alice").encode()
        alice.writer.write(raw_frame(0x89, b"") * 1_000)
        # A separate chunk, which is read only when alice is read again.
        pongs = 0
        while pongs < 1_000:
            first = (await alice.frame())[0]
            assert first in (0x89, 0x8A)  # on a slow machine the gateway pings, too
            pongs += first == 0x8A
        alice.send(0x81, text)
        async with joined(gateway, "bob") as bob:
            mine = chat("bob")
            await bob.send(mine)
            received = await receive_until(bob, id_of(mine))
            assert id_of(text.decode()) not in [envelope["id"] for envelope in received]
        while (await alice.frame())[1] != text:
            pass


@pytest.mark.rule("G-38", "G-15")
async def test_what_an_outbox_had_no_room_for_comes_with_the_resumption() -> None:
    text = config_text(max_message_bytes=1024, outbox_bytes=4096)
    async with running(text) as gateway:
        note = mcpp.new_envelope("note", "y" * 800, sender="alice")
        repeated = mcpp.new_envelope("note", None, sender="alice", id=note.id)
        async with joined(gateway, "alice") as alice:
            await alice.send(mcpp.encode(note).decode())
            await receive_until(alice, note.id)
        async with raw(gateway, "alice") as alice_again:
            # Each short repetition is answered with the long original, all of it in one tick.
            last = chat("alice")
            sent = [mcpp.encode(repeated)] * 5 + [last.encode()]
            alice_again.writer.write(b"".join(raw_frame(0x81, each) for each in sent))
            first, data = await alice_again.frame()
            while first != 0x88:
                assert data == mcpp.encode(note)
                first, data = await alice_again.frame()
            assert int.from_bytes(data[:2]) == 4001
        query = {"after": note.id}
        async with joined(gateway, "alice", query=query) as alice:
            assert (await receive(alice))["payload"]["resumed"] is True
            await receive_until(alice, id_of(last))


@pytest.mark.rule("G-38")
async def test_a_burst_larger_than_the_outbox_closes_no_client_that_reads() -> None:
    text = config_text(max_message_bytes=65_536, outbox_bytes=262_144, messages_per_second=0)
    async with running(text) as gateway, joined(gateway, "bob") as bob:
        burst = [chat("alice", "x" * 60_000) for _ in range(100)]
        async with raw(gateway, "alice") as alice:
            alice.writer.write(b"".join(raw_frame(0x81, each.encode()) for each in burst))
            echoes = asyncio.create_task(alice.reader.readexactly(sum(map(len, burst))))
            received = await receive_until(bob, id_of(burst[-1]))
            await echoes
        assert [e["id"] for e in received if e["kind"] == "chat"] == list(map(id_of, burst))


@pytest.mark.rule("G-49")
async def test_a_participant_that_joins_too_often_gets_429() -> None:
    async with running() as gateway:
        request = upgrade_request(gateway.port, f"Authorization: Bearer {token('alice')}")
        answers = [await http(gateway, request) for _ in range(150)]
        assert {status for status, _, _ in answers} == {101, 429}
        waits = [headers["retry-after"] for status, headers, _ in answers if status == 429]
        assert set(waits) == {"1"}
        async with joined(gateway, "bob") as bob:
            assert (await receive(bob))["kind"] == "system/welcome"


@pytest.mark.rule("G-39")
async def test_pings_of_a_client_that_does_not_read_wait_at_the_client() -> None:
    text = config_text(history_bytes=100_000_000, messages_per_second=0)
    async with running(text) as gateway, joined(gateway, "alice") as alice:
        for _ in range(40):
            large = chat("alice", "x" * 500_000)
            await alice.send(large)
            await receive_until(alice, id_of(large))
        reader, writer = await asyncio.open_connection("localhost", gateway.port)
        bearer = f"Authorization: Bearer {token('bob')}"
        writer.write(upgrade_request(gateway.port, bearer, path="/ws?last=100"))
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw_frame(0x89, b"p" * 125) * 400)
        waiting = 0
        for _ in range(5):
            mine = chat("alice")
            await alice.send(mine)
            await receive_until(alice, id_of(mine))
            waiting = gateway.outbox_bytes()
            assert waiting < 2_000_000
        writer.transport.abort()
