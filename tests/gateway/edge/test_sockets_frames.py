"""RFC 6455 over real sockets, on the fast lane and through the protocol."""

import asyncio
import json

import pytest

from tests.gateway.sockets import (
    chat,
    config_text,
    id_of,
    joined,
    raw,
    raw_frame,
    receive,
    running,
)

pytestmark = pytest.mark.anyio

TEXT, CONTINUATION, BINARY, CLOSE, PING, PONG = 0x1, 0x0, 0x2, 0x8, 0x9, 0xA
FINAL = 0x80


@pytest.mark.parametrize(
    ("first", "payload", "masked", "code"),
    [
        (FINAL | BINARY, b"binary", True, 1003),
        (FINAL | TEXT, b"\xff\xfe", True, 1007),
        (FINAL | TEXT, b"\xed\xa0\x80", True, 1007),
        (FINAL | TEXT, b"a" * 2000, True, 1009),
        (FINAL | TEXT, b"unmasked", False, 1002),
        (FINAL | 0x40 | TEXT, b"reserved bit", True, 1002),
        (FINAL | 0x3, b"reserved opcode", True, 1002),
        (FINAL | CONTINUATION, b"nothing begun", True, 1002),
        (PING, b"a control frame in parts", True, 1002),
        (FINAL | PING, b"a" * 126, True, 1002),
        (FINAL | CLOSE, b"\x00", True, 1002),
        (FINAL | CLOSE, b"\x03\xed", True, 1002),  # 1005 must not be sent
        (FINAL | CLOSE, b"\x03\xe8\xff", True, 1007),
    ],
)
async def test_an_illegal_frame_closes_with_the_code_of_the_rfc(
    first: int, payload: bytes, masked: bool, code: int
) -> None:
    text = config_text(max_message_bytes=1024)
    async with running(text) as gateway, raw(gateway, "alice") as alice:
        alice.send(first, payload, masked=masked)
        assert await alice.close_code() == code


async def test_an_illegal_frame_does_not_affect_other_connections() -> None:
    async with running() as gateway, joined(gateway, "bob") as bob:
        await receive(bob)
        async with raw(gateway, "alice") as alice:
            alice.send(FINAL | BINARY, b"")
            assert await alice.close_code() == 1003
        events = [(await receive(bob))["payload"]["event"] for _ in range(2)]
        assert events == ["join", "leave"]
        text = chat("bob")
        await bob.send(text)
        assert (await receive(bob))["id"] == id_of(text)


@pytest.mark.rule("G-42")
async def test_a_drain_does_not_wait_for_a_client_that_was_refused_and_has_closed() -> None:
    async with running() as gateway:
        async with raw(gateway, "alice") as alice:
            alice.send(FINAL | BINARY, b"")
            assert await alice.close_code() == 1003
        async with asyncio.timeout(2):  # without its end of the connection, it would take 5
            await gateway.drain()


async def test_a_text_in_fragments_with_a_ping_between_is_one_envelope() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        text = chat("alice", "grüße").encode()
        # Also in the middle of a character.
        middle = text.index("ü".encode()) + 1
        alice.send(TEXT, text[:10])
        alice.send(CONTINUATION, text[10:middle])
        alice.send(FINAL | PING, b"still there?")
        alice.send(FINAL | CONTINUATION, text[middle:])
        assert await alice.frame() == (FINAL | PONG, b"still there?")
        assert await alice.frame() == (FINAL | TEXT, text)


async def test_a_text_between_fragments_is_a_protocol_error() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        alice.send(TEXT, b"begun")
        alice.send(FINAL | TEXT, chat("alice").encode())
        assert await alice.close_code() == 1002


async def test_fragments_that_are_not_utf8_together_close_with_1007() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        alice.send(TEXT, b"\xc3")
        alice.send(FINAL | CONTINUATION, b"\x28")
        assert await alice.close_code() == 1007


async def test_a_fragment_that_is_not_utf8_closes_before_the_message_is_complete() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        alice.send(TEXT, b"gr\xc3\xbc\xc3")
        alice.send(CONTINUATION, b"\x9fe \xf4\x90")
        assert await alice.close_code() == 1007


async def test_a_close_between_fragments_is_answered_with_its_code() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        alice.send(TEXT, b"begun")
        alice.send(FINAL | CLOSE, b"\x03\xe8bye")
        assert await alice.close_code() == 1000


async def test_fragments_that_are_too_large_together_close_with_1009() -> None:
    text = config_text(max_message_bytes=1024)
    async with running(text) as gateway, raw(gateway, "alice") as alice:
        for _ in range(3):
            alice.send(TEXT if _ == 0 else CONTINUATION, b"a" * 500)
        assert await alice.close_code() == 1009


async def test_the_fast_lane_takes_over_again_after_every_other_frame() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        for _ in range(3):
            text = chat("alice").encode()
            alice.send(FINAL | PING, b"p")
            alice.send(FINAL | TEXT, text)
            assert await alice.frame() == (FINAL | PONG, b"p")
            assert await alice.frame() == (FINAL | TEXT, text)


@pytest.mark.parametrize("size", [10, 500, 70_000], ids=["7 bits", "16 bits", "64 bits"])
async def test_a_frame_that_comes_byte_by_byte_is_one_envelope(size: int) -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        text = chat("alice", "x" * size).encode()
        frame = raw_frame(FINAL | TEXT, text)
        for byte in frame[:20]:
            alice.writer.write(bytes([byte]))
            await alice.writer.drain()
        alice.writer.write(frame[20:-1])
        alice.writer.write(frame[-1:])
        assert await alice.frame() == (FINAL | TEXT, text)


async def test_many_frames_in_one_segment_are_answered_in_order() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        texts = [chat("alice", str(i)).encode() for i in range(50)]
        alice.writer.write(b"".join(raw_frame(FINAL | TEXT, text) for text in texts))
        assert [(await alice.frame())[1] for _ in texts] == texts


async def test_an_illegal_envelope_does_not_end_the_connection() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        alice.send(FINAL | TEXT, b"[" * 100_000)
        alice.send(FINAL | TEXT, b'{"id":"mine","from":"a","from":"b"}')
        alice.send(FINAL | TEXT, chat("alice").encode())
        first, second = [json.loads((await alice.frame())[1]) for _ in range(2)]
        assert first["payload"]["error"] == second["payload"]["error"] == "invalid_envelope"
        assert "correlation_id" not in first
        assert second["correlation_id"] == "mine"
        assert json.loads((await alice.frame())[1])["kind"] == "chat"


async def test_a_close_is_answered_with_its_own_code() -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        alice.send(FINAL | CLOSE, (1000).to_bytes(2) + b"done")
        assert await alice.close_code() == 1000
        assert await alice.reader.read() == b""


async def test_a_peer_that_no_longer_answers_pings_is_dropped() -> None:
    text = config_text(gateway={"ping_seconds": 1.0})
    async with running(text) as gateway, joined(gateway, "bob") as bob:
        await receive(bob)
        async with raw(gateway, "alice"):
            assert (await receive(bob))["payload"]["event"] == "join"
            # No task reads for alice, so no pong is sent.
            assert (await receive(bob))["payload"]["event"] == "leave"
        await asyncio.wait_for(await bob.ping(), 5)


@pytest.mark.rule("G-32")
@pytest.mark.parametrize(
    "header",
    [b"\x81\xfe\x00\x01", b"\x81\xff" + (300).to_bytes(8), b"\x81\xff" + (1 << 63).to_bytes(8)],
    ids=["16 bits for 1", "64 bits for 300", "top bit"],
)
async def test_a_length_in_more_bytes_than_it_needs_is_a_protocol_error(header: bytes) -> None:
    async with running() as gateway, raw(gateway, "alice") as alice:
        alice.writer.write(header + b"mask" + b"x" * 300)
        assert await alice.close_code() == 1002
