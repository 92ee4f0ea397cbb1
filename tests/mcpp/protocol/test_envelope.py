"""Envelopes as values: lazy payloads, typed payloads, equality, unknown members."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mcpp import Context, DecodeError, Envelope, decode, encode, new_context, new_envelope
from mcpp.payloads import Chat, Request

TEXT = (
    '{{"protocol":"mcpp/v0.1","id":"m","ts":"2025-08-31T12:00:00Z","from":"a","kind":"chat",'
    '"payload":{}{}}}'
)


def envelope(payload: str = "1", more: str = "") -> Envelope:
    return decode(TEXT.format(payload, more))


def test_the_payload_is_parsed_on_first_use_and_once() -> None:
    message = envelope('{"text":"hi"}')
    assert message.payload == {"text": "hi"}
    assert message.payload is message.payload


def test_a_typed_payload_ignores_members_it_does_not_know() -> None:
    assert envelope('{"text":"hi","more":1}').payload_as(Chat) == Chat(text="hi")


@pytest.mark.rule("E-26")
@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ("{}", "$.payload"),
        ("3", "$.payload"),
        ('{"jsonrpc":"2.0","id":1,"method":2}', "$.payload.method"),
        ('{"jsonrpc":"1.0","id":1,"method":"x"}', "$.payload.jsonrpc"),
    ],
)
def test_a_payload_of_another_type_is_an_error_with_its_path(payload: str, path: str) -> None:
    with pytest.raises(DecodeError) as refusal:
        envelope(payload).payload_as(Request)
    assert refusal.value.path == path
    assert "`$" not in refusal.value.reason


@pytest.mark.rule("E-26")
def test_the_denial_in_the_adr_is_an_envelope_but_not_a_json_rpc_response() -> None:
    with pytest.raises(DecodeError):
        envelope('{"error":"Operation denied after security analysis"}').payload_as(Request)


def test_envelopes_are_equal_by_value_however_they_are_written() -> None:
    assert envelope('{"a":1,"b":"A"}') == envelope('{ "b":"\\u0041", "a":1 }')
    assert hash(envelope("[1]")) == hash(envelope("[1 ]"))


@pytest.mark.parametrize(
    ("one", "other"), [("1", "true"), ("0", "false"), ("null", '"null"'), ("[]", "{}")]
)
def test_json_values_of_different_types_are_not_equal(one: str, other: str) -> None:
    assert envelope(one) != envelope(other)


def test_an_unknown_member_makes_a_difference() -> None:
    assert envelope("1", ',"x":1') != envelope("1")
    assert envelope("1", ',"x":1').extra == {"x": 1}


def test_empty_metadata_is_not_the_same_as_none() -> None:
    assert new_context(id="c", metadata={}) != new_context(id="c")
    assert new_context(id="c").metadata == {}


def test_an_envelope_is_not_equal_to_other_things() -> None:
    assert envelope() != "m"
    assert new_context(id="c") != "c"


def test_envelopes_and_contexts_are_frozen() -> None:
    with pytest.raises(AttributeError):
        envelope().sender = "mallory"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Context(id="c").parent = "p"  # type: ignore[misc]


def test_a_long_payload_is_shortened_in_repr() -> None:
    shown = repr(new_envelope("chat", "x" * 1000, sender="a", context="c"))
    assert "context='c'" in shown
    assert len(shown) < 250


def test_a_payload_reads_as_any_type_that_msgspec_knows() -> None:
    class Location(msgspec.Struct):
        x: int

    assert envelope('{"x":1}').payload_as(Location) == Location(1)
    assert envelope('{"x":1}').payload_as(dict) == {"x": 1}


UNKNOWN = (
    b'{"protocol":"mcpp/v0.1","id":"m","ts":"2025-08-31T12:00:00Z","from":"a","kind":"chat",'
    b'"context":{"id":"c","x":2},"payload":{"text":"hi"},"note":1}'
)


@pytest.mark.rule("E-08")
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
)
def test_a_copy_keeps_unknown_members(copied: Callable[[Envelope], Envelope]) -> None:
    envelope = decode(UNKNOWN)
    assert copied(envelope) == envelope
    assert encode(copied(envelope)) == encode(envelope)


@pytest.mark.rule("E-21")
def test_a_peer_controls_neither_the_path_nor_the_length_of_a_reason() -> None:
    hostile = {"text": "x", "format": "p - at `$.kind`\n" + "z" * 1000}
    with pytest.raises(DecodeError) as raised:
        new_envelope("chat", hostile, sender="a").payload_as(Chat)
    assert raised.value.path == "$.payload.format"
    assert len(raised.value.reason) <= 200
    assert raised.value.reason.isprintable()


def test_members_that_cannot_be_in_a_set_are_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        new_envelope("chat", [{"a": 1}], sender="a").payload_as(set[Any])


@pytest.mark.rule("E-18")
def test_indented_output_decodes_even_where_metadata_has_no_room_for_spaces() -> None:
    context = new_context(metadata={"a": "x" * 2000, "b": [1, 2, 3, 4, 5, 6, 7]})
    envelope = new_envelope("chat", sender="a", context=context)
    assert decode(encode(envelope, indent=2)) == envelope
