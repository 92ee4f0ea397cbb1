"""Invariants of the codec."""

import json
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcpp import DecodeError, Envelope, decode, encode
from mcpp.protocol.codec import _decode_strictly
from mcpp.protocol.envelope import MAX_DEPTH, raw_extra
from mcpp.protocol.jsontext import check_utf8
from mcpp.testing.strategies import envelopes, hostile_json, json_values, mangled_envelopes
from tests.properties import reference

HEAD = '{"protocol":"mcpp/v0.1","id":"m","ts":"2025-08-31T12:00:00Z","from":"a","kind":"chat",'


def outcome(data: bytes) -> Envelope | None:
    """Return the decoded envelope, or None for a DecodeError."""
    try:
        return decode(data)
    except DecodeError:
        return None


def strict_outcome(data: bytes) -> Envelope | None:
    """The same without the fast path."""
    try:
        check_utf8(data)
        return _decode_strictly(data)
    except DecodeError:
        return None


def read_everything(envelope: Envelope) -> None:
    """Parse what `decode` left raw: it must be valid for later readers."""
    envelope.payload, envelope.extra  # noqa: B018
    if envelope.context is not None:
        envelope.context.metadata, envelope.context.extra  # noqa: B018


def same(one: Envelope | None, other: Envelope | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other and encode(one) == encode(other)


@pytest.mark.rule("E-23", "E-24")
@given(envelopes())
def test_decoding_is_the_inverse_of_encoding_byte_for_byte(envelope: Envelope) -> None:
    text = encode(envelope)
    assert decode(text) == envelope
    assert encode(decode(text)) == text


@given(envelopes(), st.integers(min_value=1, max_value=8))
def test_indented_output_is_the_same_envelope(envelope: Envelope, indent: int) -> None:
    assert decode(encode(envelope, indent=indent)) == envelope


@pytest.mark.rule("E-08")
@given(envelopes())
def test_unknown_members_survive(envelope: Envelope) -> None:
    again = decode(encode(envelope))
    assert raw_extra(again) == raw_extra(envelope)
    assert again.extra == envelope.extra
    if envelope.context is not None and again.context is not None:
        assert raw_extra(again.context) == raw_extra(envelope.context)


@pytest.mark.rule("E-20")
@given(hostile_json() | st.text())
def test_any_input_decodes_or_raises_decode_error(data: bytes | str) -> None:
    try:
        envelope = decode(data)
    except DecodeError as error:
        assert error.path.startswith("$")
        assert error.reason
        assert len(str(error)) < 400
    else:
        read_everything(envelope)


@given(mangled_envelopes() | envelopes().map(encode))
def test_both_paths_and_the_reference_agree(data: bytes) -> None:
    fast = outcome(data)
    assert same(fast, strict_outcome(data))
    assert (fast is not None) is reference.accepts(data)


# Different spellings of one member, and similar spellings of different members.
MEMBERS = (
    '"protocol":"mcpp/v0.1"',
    '"id":"m"',
    '"id":"n"',
    '"\\u0069d":"m"',
    '"ts":"2025-08-31T12:00:00Z"',
    '"ts":"2025-02-29T12:00:00Z"',
    '"from":"a"',
    '"from":"b"',
    '"fr\\u006fm":"b"',
    '"from":"\\u0061"',
    '"from" : "a"',
    '"kind":"chat"',
    '"kind":"\\"x\\\\"',
    '"kind":"a\\/b"',
    '"to":[]',
    '"to":["a","b"]',
    '"to":[ "a" ]',
    '"to":null',
    '"correlation_id":null',
    '"context":{"id":"c"}',
    '"context":{"id":"c","id":"c"}',
    '"context":{"id":"c","metadata":{"a":1e9}}',
    '"context":{"id":"c","metadata":{"a":1e999}}',
    '"context":{"id":"c","x":[]}',
    '"context":null',
    '"payload":1e5',
    '"payload":1e999',
    '"payload":"1e999,[[[[[["',
    '"payload":[1,12,1.5]',
    '"payload":{"from":"a","from":"b"}',
    '"payload":"\\\\"',
    '"payload":"\\\\\\""',
    '"note":null',
    '"note":[0]',
    '"note":1',
    '"note":12',
    '"":{}',
)


@pytest.mark.rule("E-06", "E-07")
@given(st.data())
def test_all_decoders_agree_on_members_in_any_order_number_and_spelling(
    data: st.DataObject,
) -> None:
    base = [MEMBERS[0], MEMBERS[1], MEMBERS[4], MEMBERS[6], MEMBERS[11]]
    dropped = data.draw(st.sampled_from([None, *base]))
    chosen = [member for member in base if member != dropped]
    chosen += data.draw(st.lists(st.sampled_from(MEMBERS), max_size=3))
    chosen = data.draw(st.permutations(chosen))
    comma = data.draw(st.sampled_from((",", ", ", " ,", ",\n\t")))
    text = ("{" + comma.join(chosen) + "}").encode()
    assert same(outcome(text), strict_outcome(text))
    assert (outcome(text) is not None) is reference.accepts(text)


@pytest.mark.rule("E-03")
@given(
    st.lists(st.sampled_from(("[", "{", '["]",', '{"}":0,"":')), min_size=60, max_size=66),
    st.sampled_from(("payload", "context", "note")),
)
@example(["["] * (MAX_DEPTH - 1), "payload")
@example(["["] * MAX_DEPTH, "payload")
@example(["[", "{"] * (MAX_DEPTH // 2), "payload")
def test_depth_is_counted_exactly(openers: list[str], member: str) -> None:
    text = "1"
    for opener in reversed(openers):
        name = '"":' if opener == "{" else ""
        text = opener + name + text + ("]" if opener[0] == "[" else "}")
    levels = len(openers)
    if member == "context":
        text = '{"id":"c","metadata":{"x":' + text + "}}"
        levels += 2
    payload = ',"payload":1}' if member != "payload" else "}"
    data = f'{HEAD}"{member}":{text}{payload}'.encode()
    assert (outcome(data) is not None) is (levels + 1 <= MAX_DEPTH)
    assert same(outcome(data), strict_outcome(data))


@pytest.mark.rule("E-04", "E-05")
@given(
    st.from_regex(r"-?(0|[1-9][0-9]{0,66})(\.[0-9]{1,66})?([eE][+-]?[0-9]{1,5})?", fullmatch=True)
)
@example("1" * 64)
@example("1" * 65)
@example("1" * 62 + "e99")
@example("1" * 61 + "e99")
@example("1e0000000000000000000309")
@example("17e307")
def test_all_decoders_agree_on_numbers_at_any_place(number: str) -> None:
    shapes = ("{}", "[{}]", '{{"a":{}}}', "[ {} ]", '["a",{}]')
    for shape in shapes:
        value = shape.format(number)
        for text in (
            f'{HEAD}"payload":{value}}}',
            f'{HEAD}"context":{{"id":"c","metadata":{{"a":{value}}}}},"payload":{value}}}',
            f'{HEAD}"payload":1,"note":{value}}}',
            f'{HEAD}"payload":["{"x" * 600}",{value}]}}',
        ):
            data = text.encode()
            assert same(outcome(data), strict_outcome(data))
            assert (outcome(data) is not None) is reference.accepts(data)


@pytest.mark.rule("E-22")
@given(json_values(), st.sampled_from((None, 1, 4)))
def test_a_payload_stays_the_senders_bytes(value: object, indent: int | None) -> None:
    payload = json.dumps(value, indent=indent).encode()
    data = HEAD.encode() + b'"payload":' + payload + b"}"
    assert bytes(decode(data).raw_payload) == payload
    assert encode(decode(data)) == data


@pytest.mark.slow
def test_all_decoders_agree_on_twenty_thousand_random_edits() -> None:
    dice = random.Random(2025)
    base = (
        HEAD + '"to":["b","c"],"correlation_id":"q","context":{"id":"c","type":"t","parent":"p",'
        '"metadata":{"k":[1.5,"]"]}},"payload":{"text":"a\\"b\\\\","n":[1,20,3e5,{"x":null}]}}'
    ).encode()
    pieces = [base[i : i + n] for n in (1, 2, 8) for i in range(0, len(base), 3)]
    for _ in range(20_000):
        text = base
        for _ in range(dice.randint(1, 3)):
            start = dice.randrange(len(text))
            end = start + dice.choice((0, 0, 1, 2, 9))
            text = text[:start] + dice.choice((b"", dice.choice(pieces))) + text[end:]
        assert same(outcome(text), strict_outcome(text)), text
        assert (outcome(text) is not None) is reference.accepts(text), text
