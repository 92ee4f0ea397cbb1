"""Every vector of the specification, in both directions, against the decoder and the schema."""

import json

import jsonschema
import pytest

from mcpp import DecodeError, decode, encode
from mcpp.protocol import schema
from tests import vectors
from tests.properties import reference
from tests.vectors import Vector

VALID = vectors.load("valid")
INVALID = vectors.load("invalid")
# Rules about the text of an envelope, which a schema of its value cannot express.
BEYOND_A_SCHEMA = {"E-01", "E-02", "E-03", "E-04", "E-05", "E-06", "E-18", "E-21", "E-33"}

is_envelope = jsonschema.Draft202012Validator(schema.generate()).is_valid


@pytest.mark.parametrize("vector", VALID, ids=str)
def test_a_valid_vector_is_accepted_and_encoded_canonically(vector: Vector) -> None:
    envelope = decode(vector.input)
    assert encode(envelope) == vector.canonical
    assert decode(vector.canonical) == envelope
    assert encode(decode(vector.canonical)) == vector.canonical


@pytest.mark.parametrize("vector", VALID, ids=str)
def test_a_valid_vector_passes_the_schema_and_the_reference(vector: Vector) -> None:
    assert is_envelope(json.loads(vector.input))
    assert reference.accepts(vector.input)


@pytest.mark.parametrize("vector", INVALID, ids=str)
def test_an_invalid_vector_is_refused_at_its_path(vector: Vector) -> None:
    with pytest.raises(DecodeError) as refusal:
        decode(vector.input)
    assert refusal.value.path == vector.path
    assert not reference.accepts(vector.input)


@pytest.mark.parametrize("vector", [v for v in INVALID if v.rule not in BEYOND_A_SCHEMA], ids=str)
def test_an_invalid_vector_fails_the_schema_where_a_schema_can_express_the_rule(
    vector: Vector,
) -> None:
    assert not is_envelope(json.loads(vector.input))


def test_the_examples_of_the_sub_context_adr_are_among_the_valid_vectors() -> None:
    kinds = [decode(v.input).kind for v in VALID if v.name.startswith("adr-")]
    assert sorted(kinds) == [
        "conclusion",
        "mcp/proposal:tools/call",
        "mcp/response:tools/call",
        "reflection",
        "reflection",
        "reflection",
    ]
