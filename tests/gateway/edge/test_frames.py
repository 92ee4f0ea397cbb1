"""Frames: the encoder against websockets' own, and the parser on every kind of frame."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from mcpp_gateway.edge.frames import (
    FrameError,
    FrameParser,
    RawFrame,
    close_code,
    decode_texts,
    encode_text,
)

MAX_BYTES = 100_000
SIZES = [0, 1, 125, 126, 65_535, 65_536]


class FrameRecorder:
    """Records what a parser finds, and stops it after `most` frames."""

    def __init__(self, most: int = 1_000_000, *, admits_large: bool = True) -> None:
        self.found: list[bytes] = []
        self._most = most
        self._admits_large = admits_large

    def receive(self, peer: None, text: bytes, now: float) -> bool:
        self.found.append(text)
        return len(self.found) >= self._most

    receive_frame = receive

    def admit_large(self, text: bytes, now: float) -> bool:
        return self._admits_large


def parse(
    parser: FrameParser, data: bytes, limit: int = 1 << 30, most: int = 1_000_000
) -> list[bytes]:
    recorder = FrameRecorder(most)
    parser.parse(data, limit, recorder, recorder, None, 0.0)
    return recorder.found


def masked(payload: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> bytes:
    return Frame(opcode, payload, fin).serialize(mask=True)


@pytest.mark.parametrize("size", [*SIZES, 1_048_576])
def test_an_encoded_text_is_the_frame_that_websockets_would_send(size: int) -> None:
    data = encode_text(b"x" * size)
    assert data == Frame(Opcode.TEXT, b"x" * size).serialize(mask=False)
    assert decode_texts(data + data) == [b"x" * size] * 2


@pytest.mark.parametrize("size", SIZES)
def test_a_text_of_any_length_is_unmasked(size: int) -> None:
    text = b"x" * size
    assert parse(FrameParser(MAX_BYTES), masked(text) + masked(b"next")) == [text, b"next"]


@given(st.lists(st.text(max_size=300), max_size=6), st.lists(st.integers(1, 400), min_size=1))
def test_texts_do_not_depend_on_how_the_bytes_are_split(texts: list[str], cuts: list[int]) -> None:
    payloads = [each.encode() for each in texts]
    data = b"".join(map(masked, payloads))
    parser = FrameParser(MAX_BYTES)
    found: list[bytes] = []
    while data:
        size = cuts[len(data) % len(cuts)]
        chunk, data = data[:size], data[size:]
        if parser.pending:
            chunk = parser.join(chunk)
        if chunk:
            found += parse(parser, chunk)
            if parser.parsed < len(chunk):
                parser.keep(chunk[parser.parsed :])
    assert found == payloads


@pytest.mark.parametrize(
    "data",
    [
        masked(b"x", Opcode.PING),
        masked(b"x", Opcode.BINARY),
        masked(b"x" * 200, fin=False),
        bytes((0xC1,)) + masked(b"x")[1:],
    ],
    ids=["control", "binary", "fragment", "reserved bit"],
)
def test_any_other_frame_is_passed_on_as_it_is(data: bytes) -> None:
    found = parse(FrameParser(MAX_BYTES), masked(b"before") + data + masked(b"after"))
    assert found == [b"before", data, b"after"]
    assert [type(each) for each in found] == [bytes, RawFrame, bytes]


@pytest.mark.parametrize(
    ("data", "header"),
    [
        (Frame(Opcode.TEXT, b"x" * 200).serialize(mask=False), 8),
        (masked(b"x" * (MAX_BYTES + 1)), 14),
    ],
    ids=["unmasked", "oversized"],
)
def test_an_illegal_frame_is_passed_on_without_waiting_for_its_payload(
    data: bytes, header: int
) -> None:
    parser = FrameParser(MAX_BYTES)
    assert parse(parser, data[:header]) == [data[:header]]
    assert parser.parsed == 0


@pytest.mark.rule("G-32")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\xfe\x00\x7d" + bytes(4 + 125), 1002),
        (b"\x81\xff" + (65_535).to_bytes(8) + bytes(4), 1002),
        (b"\x81\xff" + (1 << 63).to_bytes(8) + bytes(4), 1002),
        (masked(b"\xff"), 1007),
        (masked(b"\xff" * 200), 1007),
    ],
    ids=["padded 16-bit length", "padded 64-bit length", "negative length", "short", "long"],
)
def test_an_illegal_length_or_text_is_an_error_with_its_close_code(data: bytes, code: int) -> None:
    with pytest.raises(FrameError) as caught:
        parse(FrameParser(MAX_BYTES), data)
    assert caught.value.code == code


def test_a_text_within_a_fragmented_message_is_left_to_the_protocol() -> None:
    parser = FrameParser(MAX_BYTES)
    assert parser.add_fragment(Frame(Opcode.TEXT, b"a", fin=False)) is None
    (frame,) = parse(parser, masked(b"x" * 200))
    assert type(frame) is RawFrame
    assert parser.add_fragment(Frame(Opcode.CONT, b"b")) == b"ab"
    assert parse(parser, masked(b"x" * 200)) == [b"x" * 200]


def test_parsing_stops_behind_the_limit_or_when_the_receiver_returns_true() -> None:
    parser = FrameParser(MAX_BYTES)
    frames = [masked(b"x" * 200) for _ in range(5)]
    assert len(parse(parser, b"".join(frames), limit=len(frames[0]) + 1)) == 2
    assert parser.parsed == 2 * len(frames[0])
    assert len(parse(parser, b"".join(frames), most=3)) == 3
    assert parser.parsed == 3 * len(frames[0])
    assert parse(parser, b"".join(frames), limit=-1) == []
    assert parser.parsed == 0


@pytest.mark.rule("G-65")
@pytest.mark.parametrize("fragmented", [False, True])
def test_a_large_text_waits_until_it_is_admitted_and_what_follows_it_waits_too(
    fragmented: bool,
) -> None:
    large = masked(b"x" * 70_000)
    parser = FrameParser(MAX_BYTES)
    if fragmented:  # the last fragment is small, and completes a large text
        large = masked(b"x", Opcode.CONT)
        parser.add_fragment(Frame(Opcode.TEXT, b"x" * 70_000, fin=False))
    data = large + masked(b"next")
    recorder = FrameRecorder(admits_large=False)
    parser.parse(data, 1 << 30, recorder, recorder, None, 0.0)
    assert recorder.found == []
    parser.keep(data[parser.parsed :])
    assert parser.take_pending() == data


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", 1000),
        (b"\x03\xe8bye", 1000),
        (b"\x0f\xa0", 4000),
        (b"\x03\xed", None),  # 1005 must not be sent
        (b"\x00", None),
        (b"\x03\xe8\xff", None),
    ],
)
def test_the_code_of_a_close_frame_is_read_if_it_is_legal(payload: bytes, code: int | None) -> None:
    frame = Frame(Opcode.CLOSE, payload).serialize(mask=True)
    assert close_code(frame) == code
