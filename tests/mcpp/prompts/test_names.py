"""Tool names and call ids that every API accepts."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp.prompts import EXPAND, PromptBuilder, call_id, expand_tool, tool_name
from tests.mcpp.prompts.logs import LogBuilder

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
PARTICIPANT = st.text("aB0._:@-", min_size=1, max_size=64)
TOOL = st.text(min_size=1, max_size=80) | st.text("ab_", min_size=1, max_size=6)


def test_a_plain_name_is_readable() -> None:
    assert tool_name("crm", "search_records") == "crm__search_records"


@given(st.tuples(PARTICIPANT, TOOL), st.tuples(PARTICIPANT, TOOL))
def test_names_are_one_to_one_and_fit_every_alphabet(
    one: tuple[str, str], other: tuple[str, str]
) -> None:
    assert NAME.fullmatch(tool_name(*one))
    assert (tool_name(*one) == tool_name(*other)) == (one == other)
    assert tool_name(*one) != EXPAND


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a_", "b"), ("a", "_b")),
        (("a__b", "c"), ("a", "b__c")),
        (("a.b", "c"), ("a_b", "c")),
        (("a" * 64, "x"), ("a" * 64, "y")),
        (("a", "tool!"), ("a", "tool?")),
    ],
)
def test_similar_names_do_not_collide(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert tool_name(*one) != tool_name(*other)


def test_a_digested_name_cannot_be_forged_by_a_plain_one() -> None:
    digested = tool_name("a.b", "c")
    server, _, tool = digested.partition("__")
    assert tool_name(server, tool) != digested


@given(st.text("aZ0._:~-", min_size=1, max_size=128), st.text("aZ0._:~-", min_size=1, max_size=128))
def test_call_ids_fit_the_strictest_api_and_do_not_collide(one: str, other: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", call_id(one))
    assert (call_id(one) == call_id(other)) == (one == other)


def test_expand_is_defined_for_every_api() -> None:
    given = expand_tool("anthropic")
    schema = given.pop("input_schema")
    assert schema["required"] == ["handle"]
    assert set(given) == {"name", "description"}
    function = {**given, "parameters": schema}
    assert expand_tool("openai_chat") == {"type": "function", "function": function}
    # The Responses API treats a schema as strict by default.
    assert expand_tool("openai_responses") == {"type": "function", **function, "strict": True}
    with pytest.raises(ValueError, match="unknown API"):
        expand_tool("other")


def test_an_expand_call_keeps_its_offered_name() -> None:
    log = LogBuilder()
    log.call("expand", {"handle": "x"}, server="analyst")
    messages = PromptBuilder("analyst").build(log.envelopes).anthropic()["messages"]
    assert messages[1]["content"][0]["name"] == EXPAND
