"""Uploads and downloads over real sockets: quotas, ranges, slow and broken clients."""

import asyncio
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.edge.web import blobs
from tests.gateway.sockets import (
    BOUND,
    config_text,
    http,
    joined,
    receive,
    receive_until,
    running,
    token,
)

pytestmark = pytest.mark.anyio

PICTURE = bytes(range(256)) * 1200  # more than one piece
HASH = sha256(PICTURE).hexdigest()


def request(
    method: str, path: str, *lines: str, body: bytes = b"", participant: str = "alice"
) -> bytes:
    head = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {token(participant)}",
        *lines,
    ]
    if method in ("POST", "PUT") and not any("Transfer" in line for line in lines):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


async def upload(gateway: Gateway, content: bytes, participant: str = "alice") -> tuple[int, bytes]:
    asked = request("POST", "/blob", body=content, participant=participant)
    status, _, body = await http(gateway, asked)
    return status, body


async def status_of(gateway: Gateway, participant: str, hash: str = HASH) -> int:
    asked = request("GET", f"/blob/{hash}", participant=participant)
    return (await http(gateway, asked))[0]


def named(
    id: str, sender: str, size: int = len(PICTURE), hash: str = HASH, **members: object
) -> str:
    envelope = {
        "protocol": "mcpp/v0.1",
        "id": id,
        "ts": "2025-08-31T12:00:00Z",
        "from": sender,
        "kind": "chat",
        "attachments": [{"hash": hash, "size": size, "media_type": "image/png"}],
        "payload": {"text": "look"},
        **members,
    }
    return json.dumps(envelope)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND):
        while not is_so():  # noqa: ASYNC110  (files have no events)
            await asyncio.sleep(0.01)


def files(gateway: Gateway) -> list[Path]:
    folder = gateway.blobs.store._blobs("demo")  # type: ignore[attr-defined]
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.rule("A-01", "A-05")
async def test_an_upload_comes_back_as_it_was_and_runs_nowhere() -> None:
    async with running() as gateway:
        status, body = await upload(gateway, PICTURE)
        assert (status, json.loads(body)) == (201, {"hash": HASH, "size": len(PICTURE)})
        status, headers, body = await http(gateway, request("GET", f"/blob/{HASH}"))
        assert (status, body) == (200, PICTURE)
        assert headers["content-type"] == "application/octet-stream"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-disposition"].startswith("attachment")
        assert headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert headers["etag"] == f'"{HASH}"'
        status, headers, body = await http(gateway, request("GET", f"/blob/{'0' * 64}"))
        assert status == 404


@pytest.mark.rule("A-01")
async def test_content_that_has_another_hash_is_not_kept() -> None:
    async with running() as gateway:
        wrong = request("PUT", f"/blob/{HASH}", body=PICTURE[:-1])
        assert (await http(gateway, wrong))[0] == 422
        assert files(gateway) == []
        right = request("PUT", f"/blob/{HASH}", body=PICTURE)
        assert (await http(gateway, right))[0] == 201


@pytest.mark.rule("A-01")
async def test_chunks_of_any_size_are_put_together_and_bad_ones_refused() -> None:
    async with running() as gateway:
        sizes = (1, 7, 70_000, len(PICTURE))
        parts, start = [], 0
        for size in sizes:
            part = PICTURE[start : start + size]
            parts.append(b"%X;x=y\r\n%b\r\n" % (len(part), part))
            start += len(part)
        chunked = "Transfer-Encoding: chunked"
        body = b"".join(parts) + b"0\r\nTrailer: x\r\n\r\n"
        asked = request("POST", "/blob", chunked) + body
        assert json.loads((await http(gateway, asked))[2])["hash"] == HASH
        for bad in (
            b"x\r\n",
            b"-1\r\n",
            b"2\r\nabc\r\n",
            b"1" * 300,
            b"1\nx\n",
            b"F" * 16 + b"\r\n",
        ):
            asked = request("POST", "/blob", chunked) + bad
            assert (await http(gateway, asked))[0] == 400, bad
        both = request("POST", "/blob", chunked, "Content-Length: 5") + body
        assert (await http(gateway, both))[0] == 400
        unknown = request("GET", "/blob").replace(b"GET", b"POST")
        assert (await http(gateway, unknown))[0] == 411


@pytest.mark.rule("A-05")
@pytest.mark.parametrize(
    ("asked", "status", "start", "end"),
    [
        ("bytes=0-0", 206, 0, 1),
        ("bytes=10-", 206, 10, len(PICTURE)),
        ("bytes=-5", 206, len(PICTURE) - 5, len(PICTURE)),
        ("bytes=5-99999999", 206, 5, len(PICTURE)),
        ("bytes=0-1,4-5", 200, 0, len(PICTURE)),
        ("lines=0-1", 200, 0, len(PICTURE)),
        ("bytes=5-2", 200, 0, len(PICTURE)),
        (f"bytes={len(PICTURE)}-", 416, 0, 0),
        ("bytes=-0", 416, 0, 0),
    ],
)
async def test_one_range_is_served(asked: str, status: int, start: int, end: int) -> None:
    async with running() as gateway:
        await upload(gateway, PICTURE)
        found = await http(gateway, request("GET", f"/blob/{HASH}", f"Range: {asked}"))
        assert found[0] == status
        assert found[2] == PICTURE[start:end]
        if status == 206:
            assert found[1]["content-range"] == f"bytes {start}-{end - 1}/{len(PICTURE)}"


@pytest.mark.rule("A-05")
async def test_caches_can_ask_whether_they_are_right() -> None:
    async with running() as gateway:
        await upload(gateway, PICTURE)
        tag = f'If-None-Match: W/"x", "{HASH}"'
        status, _, body = await http(gateway, request("GET", f"/blob/{HASH}", tag))
        assert (status, body) == (304, b"")
        stale = ('If-Range: "other"', "Range: bytes=0-1")
        assert (await http(gateway, request("GET", f"/blob/{HASH}", *stale)))[0] == 200
        asked = request("HEAD", f"/blob/{HASH}")
        reader, writer = await asyncio.open_connection("localhost", gateway.port)
        writer.write(asked)
        answer = await asyncio.wait_for(reader.read(), BOUND)
        assert f"Content-Length: {len(PICTURE)}".encode() in answer
        assert answer.endswith(b"\r\n\r\n")
        writer.close()


@pytest.mark.rule("A-06", "G-20")
async def test_an_envelope_gives_others_what_its_sender_has() -> None:
    only_notes = 'hears = { kind = "note" }'
    text = config_text({"alice": "", "bob": "", "carol": only_notes})
    async with running(text) as gateway:
        await upload(gateway, PICTURE)
        assert await status_of(gateway, "bob") == 404
        async with joined(gateway, "alice") as alice, joined(gateway, "bob") as bob:
            await bob.send(named("stolen", "bob"))
            refused = (await receive_until_kind(bob, "system/error"))["payload"]
            assert (refused["error"], refused["hash"]) == ("no_attachment", HASH)
            await alice.send(named("lie", "alice", size=5))
            assert (await receive_until_kind(alice, "system/error"))["correlation_id"] == "lie"
            assert await status_of(gateway, "bob") == 404
            await alice.send(named("given", "alice"))
            await receive_until(bob, "given")
            assert await status_of(gateway, "bob") == 200
            assert await status_of(gateway, "carol") == 404
            await bob.send(named("passed on", "bob", kind="note").replace("passed on", "on"))
            await receive_until(bob, "on")
            assert await status_of(gateway, "carol") == 200


async def receive_until_kind(client: ClientConnection, kind: str) -> Any:
    while (found := await receive(client))["kind"] != kind:
        pass
    return found


@pytest.mark.rule("A-01")
async def test_a_request_needs_a_token_a_known_method_and_an_own_origin() -> None:
    async with running() as gateway:
        asked = request("POST", "/blob", body=b"x")
        wrong = asked.replace(token("alice").encode(), b"no-token-at-all-0123456789")
        assert (await http(gateway, wrong))[0] == 401
        foreign = request("POST", "/blob", "Origin: https://evil.example", body=b"x")
        assert (await http(gateway, foreign))[0] == 403
        other = request("POST", "/blob?pod=other", body=b"x")
        assert (await http(gateway, other))[0] == 403
        for method, path in (
            ("GET", "/blob"),
            ("DELETE", f"/blob/{HASH}"),
            ("POST", f"/blob/{HASH}"),
        ):
            assert (await http(gateway, request(method, path, body=b"x")))[0] == 405
        for path in ("/blob/../gateway.toml", f"/blob/{HASH.upper()}", "/blob/x", f"/blob/{HASH}/"):
            assert (await http(gateway, request("GET", path)))[0] == 404
        assert files(gateway) == []


@pytest.mark.rule("A-02")
async def test_uploads_stay_within_the_quotas() -> None:
    text = config_text(
        max_blob_bytes=30_000, max_blob_bytes_per_participant=50_000, max_blob_bytes_per_pod=70_000
    )
    async with running(text) as gateway:
        assert (await upload(gateway, bytes(30_001)))[0] == 413
        endless = (
            request("POST", "/blob", "Transfer-Encoding: chunked") + b"7531\r\n" + bytes(30_001)
        )
        assert (await http(gateway, endless))[0] == 413
        assert (await upload(gateway, b"a" * 30_000))[0] == 201
        assert (await upload(gateway, b"b" * 30_000))[0] == 507
        assert (await upload(gateway, b"c" * 15_000))[0] == 201
        assert (await upload(gateway, b"d" * 30_000, "bob"))[0] == 507  # 45,000 of 70,000 are used
        assert (await upload(gateway, b"d" * 20_000, "bob"))[0] == 201
        assert len(gateway.pods["demo"].blobs) == 3
        names = [path.name for path in files(gateway)]
        assert len(names) == 6
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in files(gateway))


@pytest.mark.rule("A-02")
async def test_an_upload_that_ends_early_leaves_nothing() -> None:
    async with running(config_text(max_blob_bytes_per_participant=1_000_000)) as gateway:
        for _ in range(3):
            _, writer = await asyncio.open_connection("localhost", gateway.port)
            writer.write(request("POST", "/blob", body=bytes(900_000))[:-1000])
            await writer.drain()
            await until(lambda: bool(files(gateway)))
            assert (await upload(gateway, bytes(900_000)))[0] == 507  # it is reserved
            writer.close()
            await until(lambda: not files(gateway))
        assert gateway.pods["demo"].blobs.used_bytes == 0
        assert (await upload(gateway, bytes(900_000)))[0] == 201


@pytest.mark.rule("A-04")
async def test_slow_clients_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "_IDLE_SECONDS", 0.3)
    async with running() as gateway:
        reader, writer = await asyncio.open_connection("localhost", gateway.port)
        writer.write(request("POST", "/blob", body=PICTURE)[:-1])
        answer = await asyncio.wait_for(reader.read(), BOUND)
        assert answer.startswith(b"HTTP/1.1 408")
        writer.close()
        large = bytes(20_000_000)
        await upload(gateway, large)
        reader, writer = await asyncio.open_connection("localhost", gateway.port, limit=1)
        writer.write(request("GET", f"/blob/{sha256(large).hexdigest()}"))
        await until(lambda: not gateway.connections)  # it does not read, and is aborted
        writer.close()
        assert not gateway.blobs._requests


@pytest.mark.rule("A-04")
async def test_a_participant_cannot_take_all_places() -> None:
    async with running() as gateway:
        clients = []
        for _ in range(16):
            reader, writer = await asyncio.open_connection("localhost", gateway.port)
            writer.write(request("POST", "/blob", body=PICTURE)[:-1])
            clients.append((reader, writer))
        await until(lambda: gateway.blobs._requests.total() == 16)
        assert (await upload(gateway, PICTURE))[0] == 429
        assert (await upload(gateway, PICTURE, "bob"))[0] == 201
        for reader, writer in clients:
            writer.write(PICTURE[-1:])
            assert (await asyncio.wait_for(reader.read(), BOUND)).startswith(b"HTTP/1.1 201")
            writer.close()


@pytest.mark.rule("A-09")
async def test_a_blob_goes_when_neither_upload_nor_log_keeps_it() -> None:
    text = config_text(history_messages=5, blob_grace_seconds=0.2)
    async with running(text) as gateway:
        await upload(gateway, PICTURE)
        await upload(gateway, b"never named")
        async with joined(gateway, "alice") as alice:
            await alice.send(named("m0", "alice"))
            await receive_until(alice, "m0")
            await until(lambda: len(files(gateway)) <= 2)
            assert await status_of(gateway, "bob") == 200
            for number in range(1, 7):
                plain = json.loads(named(f"m{number}", "alice"))
                del plain["attachments"]
                await alice.send(json.dumps(plain))
            await receive_until(alice, "m6")
            await until(lambda: not files(gateway))
            assert await status_of(gateway, "bob") == 404
