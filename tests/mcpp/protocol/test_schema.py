"""The schema and the decoder agree on every value."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from mcpp import DecodeError, Envelope, decode, encode, new_envelope
from mcpp.protocol import schema
from mcpp.testing.strategies import envelopes, json_values
from tests.vectors import SPEC

validator = jsonschema.Draft202012Validator(schema.generate())
messages = jsonschema.Draft202012Validator(
    {"$ref": f"{schema.ID}#/$defs/message"},
    registry=Registry().with_resource(schema.ID, DRAFT202012.create_resource(schema.generate())),
)

ODD_VALUES: tuple[Any, ...] = (
    "",
    "a",
    "a b",
    "a\n",
    "é",
    "x" * 129,
    "2025-02-29T00:00:00Z",
    None,
    1,
    [],
    ["a"],
    {},
)
NAMES = ("protocol", "id", "ts", "from", "to", "kind", "correlation_id", "context", "payload")


def test_the_schema_in_the_repository_is_up_to_date() -> None:
    checked_in = Path(SPEC / "schema" / "envelope.json").read_text()
    assert checked_in == schema.render(), "run: mcpp schema > spec/schema/envelope.json"


def test_the_schema_is_a_valid_json_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema.generate())


@pytest.mark.rule("E-29")
@given(envelopes(), st.data())
def test_schema_and_decoder_agree(envelope: Envelope, data: st.DataObject) -> None:
    value: dict[str, Any] = json.loads(encode(envelope))
    target = value
    if "context" in value and data.draw(st.booleans()):
        target = value["context"]
    for name in data.draw(st.lists(st.sampled_from((*NAMES, "type", "parent")), max_size=2)):
        change = data.draw(st.sampled_from(ODD_VALUES) | json_values(max_leaves=2) | st.just(...))
        if change is ...:
            target.pop(name, None)
        else:
            target[name] = change
    assert validator.is_valid(value) is is_accepted(json.dumps(value))


@pytest.mark.rule("E-26")
@pytest.mark.parametrize(
    ("kind", "payload", "fits"),
    [
        ("chat", {"text": "hi"}, True),
        ("chat", {"text": "hi", "format": "html"}, False),
        ("chat", None, False),
        ("chatter", None, True),
        ("mcp/request:tools/list", {"jsonrpc": "2.0", "id": "m", "method": "tools/list"}, True),
        ("mcp/request:tools/list", {"method": "tools/list"}, False),
        ("mcp/reject", {}, False),
        ("acme/own", [1], True),
    ],
)
def test_the_message_schema_checks_payloads_by_kind(kind: str, payload: object, fits: bool) -> None:
    value = json.loads(encode(new_envelope(kind, payload, sender="a")))
    assert validator.is_valid(value)
    assert messages.is_valid(value) is fits


def is_accepted(text: str) -> bool:
    try:
        decode(text)
    except DecodeError:
        return False
    return True
