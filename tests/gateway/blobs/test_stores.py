"""The stores of blobs keep the same promises: folders, and a cluster's stream."""

import os
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp.errors import AttachmentError
from mcpp_gateway.blobs.folder import FolderStore
from mcpp_gateway.blobs.store import BlobStore, BlobStoreError, WrongHashError
from mcpp_gateway.cluster.blob_stream import BlobStream
from mcpp_gateway.cluster.cluster_log import new_link
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.cluster.streams import Streams
from mcpp_gateway.config import RetentionSection
from mcpp_gateway.core.attachments import blob_table
from tests.gateway.cluster.test_gateways import QUICK, configure, gateways, url
from tests.gateway.sockets import token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CONTENT = os.urandom(700_000)
HASH = sha256(CONTENT).hexdigest()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["folder", "temporary", "stream"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, anyio_backend: str
) -> AsyncIterator[BlobStore]:
    found: BlobStore
    if request.param == "stream":
        servers: NatsServers = request.getfixturevalue("nats")
        link = new_link(configure(servers).cluster, "g1")
        await link.connect()
        found = BlobStream(link, Streams(link, 1, RetentionSection()), lambda pod: True)
        yield found
        await found.close()
        await link.close()
        return
    found = FolderStore(tmp_path / "data" if request.param == "folder" else None)
    yield found
    await found.close()


async def put(store: BlobStore, content: bytes, participant: str, time: float) -> str:
    writer = await store.begin("demo.x")
    for start in range(0, len(content), 100_000):
        await writer.write(content[start : start + 100_000])
    return await writer.finish(participant, time, None)


async def read(store: BlobStore, hash: str, start: int, end: int) -> bytes:
    reader = await store.open("demo.x", hash)
    data = b""
    while start + len(data) < end:
        data += await reader.read(start + len(data), end - start - len(data))
    await reader.close()
    return data


@pytest.mark.rule("A-01", "A-11")
async def test_a_store_returns_what_it_was_given(store: BlobStore) -> None:
    assert await store.load("demo.x") == []
    assert await put(store, CONTENT, "alice", 5.0) == HASH
    assert await put(store, CONTENT, "b.o:b@x-", 7.0) == HASH
    empty = await put(store, b"", "alice", 6.0)
    assert await read(store, HASH, 0, len(CONTENT)) == CONTENT
    assert await read(store, HASH, 262_140, 262_150) == CONTENT[262_140:262_150]
    found = {each.hash: each for each in await store.load("demo.x")}
    assert found[HASH] == (HASH, len(CONTENT), {"alice": 5.0, "b.o:b@x-": 7.0})
    assert found[empty] == (empty, 0, {"alice": 6.0})
    assert await store.load("demo") == []


@pytest.mark.rule("A-01", "A-11")
async def test_a_store_keeps_nothing_of_what_is_aborted_wrong_or_deleted(store: BlobStore) -> None:
    await store.load("demo.x")
    for expected in (None, "0" * 64):
        writer = await store.begin("demo.x")
        await writer.write(CONTENT)
        if expected is not None:
            with pytest.raises(WrongHashError):
                await writer.finish("alice", 5.0, expected)
        await writer.abort()
    assert await store.load("demo.x") == []
    await put(store, CONTENT, "alice", 5.0)
    await store.delete("demo.x", HASH)
    assert await store.load("demo.x") == []
    with pytest.raises(BlobStoreError):
        await store.open("demo.x", HASH)
    assert await put(store, CONTENT, "alice", 5.0) == HASH
    assert await read(store, HASH, 0, len(CONTENT)) == CONTENT


@pytest.mark.rule("A-11", "G-52")
async def test_what_is_uploaded_at_one_gateway_is_named_and_read_at_another(
    nats: NatsServers,
) -> None:
    async with gateways(configure(nats)) as (first, second):
        async with (
            mcpp.connect(url(first), token=token("a"), options=QUICK) as a,
            mcpp.connect(url(second), token=token("b"), options=QUICK) as b,
        ):
            reference = await a.attach(CONTENT, media_type="image/png")
            with pytest.raises(AttachmentError):
                await b.fetch(reference)
            with pytest.raises(mcpp.Refused) as refused:
                await b.send("chat", "mine", attachments=[reference])
            assert refused.value.code == "no_attachment"
            await a.send("chat", "look", attachments=[reference])
            with anyio.fail_after(10):
                while not (message := await anext(b)).attachments:
                    pass
                assert await message.fetch(reference) == CONTENT
            await b.send("chat", "passed on", attachments=[reference])
        await first.drain()
        # A gateway that starts later knows it from the log and the stream.
        async with (
            gateways(configure(nats), 1) as (third,),
            mcpp.connect(url(third), token=token("b"), options=QUICK) as b,
        ):
            assert await b.fetch(reference) == CONTENT


@pytest.mark.rule("A-15", "A-11")
async def test_a_cluster_deletes_what_was_private_to_a_call(
    nats: NatsServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_table, "CALL_SECONDS", 0.0)
    answering = [
        f'[pods.demo.participants.{name}]\ntoken = "{token(name)}"\n'
        'capabilities = [{ kind = "mcp/response:*" }]'
        for name in "ab"
    ]
    async with (
        gateways(configure(nats, *answering, participants="")) as (first, second),
        mcpp.connect(url(first), token=token("a"), options=QUICK) as a,
        mcpp.connect(url(second), token=token("b"), options=QUICK) as b,
    ):
        for pod, other in ((a, "b"), (b, "a")):
            reference = await pod.attach(CONTENT + other.encode(), private=True)
            await pod.send("mcp/response:x", {}, to=[other], attachments=[reference])
        with anyio.fail_after(10):
            # The stream says only when it is asked.
            while await first.blobs.store.load("demo"):  # noqa: ASYNC110
                await anyio.sleep(0.05)
            while any(len(each.pods["demo"].blobs) for each in (first, second)):  # noqa: ASYNC110
                await anyio.sleep(0.05)
