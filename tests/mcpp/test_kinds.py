"""Parsing and building kinds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import Kind
from mcpp.kinds import decoded
from mcpp.protocol.codec import is_kind
from mcpp.testing.strategies import kinds


@pytest.mark.rule("E-25")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("chat", Kind("chat")),
        ("mcp/request:tools/list", Kind("mcp/request", "tools/list")),
        ("mcp/request:tools/call:read_file", Kind("mcp/request", "tools/call", "read_file")),
        ("mcp/request:tools/call:a:b", Kind("mcp/request", "tools/call", "a:b")),
        ("x:", Kind("x", "")),
        ("x::y", Kind("x", "", "y")),
        ("x:y:a%20b%25", Kind("x", "y", "a b%")),
        ("x:y:%F0%9F%98%80", Kind("x", "y", "😀")),
    ],
)
def test_a_kind_is_split_at_its_first_two_colons(text: str, kind: Kind) -> None:
    assert Kind.parse(text) == kind
    assert str(kind) == text


@pytest.mark.rule("E-25")
@given(kinds())
def test_building_a_kind_is_the_inverse_of_parsing_it(kind: str) -> None:
    assert str(Kind.parse(kind)) == kind


@pytest.mark.rule("E-15", "E-25")
@given(st.text(min_size=1, max_size=40))
def test_any_name_has_one_spelling_in_a_kind(name: str) -> None:
    text = str(Kind("mcp/request", "prompts/get", name))
    assert is_kind(text)
    assert Kind.parse(text).name == name
    assert decoded(text) == f"mcp/request:prompts/get:{name}"


@pytest.mark.parametrize("kind", [Kind("a", None, "n"), Kind("a:b"), Kind("a", "b:c", "d")])
def test_parts_that_would_not_parse_back_are_an_error(kind: Kind) -> None:
    with pytest.raises(ValueError, match="kind"):
        str(kind)
