"""Properties of `decode` and `encode` that the vectors do not cover."""

import threading
from collections.abc import Callable

import pytest

from mcpp import DecodeError, Envelope, decode, encode
from mcpp.protocol.jsontext import decode_unambiguous

TEXT = (
    b'{"protocol":"mcpp/v0.1","id":"m","ts":"2025-08-31T12:00:00Z","from":"a","kind":"chat",'
    b'"payload":{"text":"hi"}}'
)


def refusal(action: Callable[[], object]) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        action()
    return caught.value


@pytest.mark.parametrize(
    "data",
    [TEXT, TEXT.decode(), bytearray(TEXT), memoryview(TEXT)],
    ids=["bytes", "str", "bytearray", "memoryview"],
)
def test_every_type_of_bytes_and_text_decodes(data: bytes | str) -> None:
    assert decode(data) == decode(TEXT)


@pytest.mark.parametrize("data", [None, 1, ["a"], {}, set()], ids=repr)
def test_other_types_raise_decode_error(data: bytes) -> None:
    assert refusal(lambda: decode(data)).path == "$"


def test_text_with_a_lone_surrogate_is_refused() -> None:
    assert refusal(lambda: decode(TEXT.decode().replace("hi", "\ud800"))).path == "$"


def test_a_decode_error_names_the_path_and_what_to_change() -> None:
    error = refusal(lambda: decode(TEXT.replace(b'"a"', b'"a b"')))
    assert str(error) == "$.from: must be 1 to 64 of A-Z a-z 0-9 . _ : @ -"
    assert isinstance(error, ValueError)


@pytest.mark.rule("E-07")
def test_a_null_optional_member_is_absent() -> None:
    nulls = b'"to":null,"kind":"chat","correlation_id":null,"context":null'
    assert decode(TEXT.replace(b'"kind":"chat"', nulls)) == decode(TEXT)


@pytest.mark.rule("E-21")
def test_the_input_is_not_quoted_in_a_decode_error() -> None:
    name = "x" * 100_000
    error = refusal(lambda: decode(TEXT[:-1] + f',"{name}":1,"{name}":2}}'.encode()))
    assert len(str(error)) < 100


def test_readable_output_keeps_the_order_of_members() -> None:
    readable = encode(decode(TEXT), indent=2).decode()
    assert readable.startswith('{\n  "protocol": "mcpp/v0.1",\n  "id": "m",')
    assert readable.endswith('"payload": {\n    "text": "hi"\n  }\n}')


@pytest.mark.rule("E-03")
@pytest.mark.parametrize("opener", [b"[", b'{"":'])
@pytest.mark.parametrize("size", [100, 500, 520, 1_000, 100_000])
def test_a_thread_with_the_smallest_stack_survives_deep_nesting(opener: bytes, size: int) -> None:
    data = TEXT[: TEXT.index(b'{"text"')] + opener * (size // len(opener))
    outcomes: list[Envelope | DecodeError] = []

    def run() -> None:
        try:
            outcomes.append(decode(data))
        except DecodeError as error:
            outcomes.append(error)

    previous = threading.stack_size(64 * 1024)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(previous)
    thread.join()
    assert [type(outcome) for outcome in outcomes] == [DecodeError]


@pytest.mark.rule("E-06")
@pytest.mark.parametrize(
    "text",
    [b'{"a":1,"a":2}', b'[{"b":{"a":1,"\\u0061":1}}]', b'{"":0,"":0}'],
)
def test_decode_unambiguous_rejects_a_repeated_key(text: bytes) -> None:
    assert refusal(lambda: decode_unambiguous(text, "$.payload")).path == "$.payload"


@pytest.mark.parametrize("text", [b"NaN", b"{", b"\xff", b"[" * 100_000, b"9" * 5000, b""])
def test_decode_unambiguous_raises_decode_error_only(text: bytes) -> None:
    assert refusal(lambda: decode_unambiguous(text, "$.payload")).path == "$.payload"


def test_decode_unambiguous_returns_the_value() -> None:
    assert decode_unambiguous(b'{"a":[1,{"b":null}],"c":{"a":1.5}}', "$.payload") == {
        "a": [1, {"b": None}],
        "c": {"a": 1.5},
    }
