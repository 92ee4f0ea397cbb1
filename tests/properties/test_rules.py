"""Properties of filters, globs and capabilities that hold for every expression."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import filters
from mcpp.filters import Filter, parse
from mcpp.protocol.capabilities import Capabilities, compile_pattern
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.globs import compile_glob
from tests.gateway.harness import text
from tests.properties.test_pod_machine import expressions, names

chosen = st.builds(parse, expressions)
lineages = st.none() | st.builds(
    Lineage, names, st.sampled_from([None, "t", "u"]), st.lists(names, max_size=2).map(tuple)
)
envelopes = st.builds(
    lambda sender, kind, to: decode(text("x", sender, kind, **({} if to is None else {"to": to}))),
    st.sampled_from("abc"),
    st.sampled_from(["chat", "rare", "mcp/x"]),
    st.none() | st.lists(st.sampled_from("abc"), max_size=2),
)


@pytest.mark.rule("F-01", "F-18")
@given(chosen, envelopes, lineages)
def test_a_filter_is_unchanged_by_a_json_round_trip(
    wanted: Filter, message: Any, where: Lineage | None
) -> None:
    again = parse(json.dumps(wanted.to_json()))
    assert again == wanted
    assert again.matches(message, where) == wanted.matches(message, where)


@pytest.mark.rule("F-07")
@given(chosen, chosen, envelopes, lineages)
def test_filters_follow_de_morgan(
    left: Filter, right: Filter, message: Any, where: Lineage | None
) -> None:
    def passes(wanted: Filter) -> bool:
        return wanted.matches(message, where)

    assert passes(~(left & right)) == passes(~left | ~right)
    assert passes(~(left | right)) == passes(~left & ~right)
    assert passes(left & right) == (passes(left) and passes(right))
    assert passes(left | right) == (passes(left) or passes(right))
    assert passes(~left) != passes(left)
    assert passes(left & filters.everything) == passes(left)


few = st.text("ab*", max_size=12)


@pytest.mark.rule("F-16")
@given(few, st.text("ab*", max_size=12))
def test_a_glob_matches_what_the_equivalent_regular_expression_matches(
    pattern: str, subject: str
) -> None:
    naive = ".*".join(map(re.escape, re.split(r"\*+", pattern)))
    expected = re.fullmatch(naive, subject, re.DOTALL) is not None
    assert compile_glob(pattern)(subject) is expected


class Watched(str):
    """A string that counts how many of its characters are searched."""

    __slots__ = ()
    looked = 0

    def find(self, part: str, start: int = 0, end: int | None = None) -> int:  # type: ignore[override]
        stop = len(self) if end is None else end
        found = super().find(part, start, stop)
        Watched.looked += (stop if found < 0 else found + len(part)) - start
        return found


@pytest.mark.rule("F-16", "G-47")
@given(stars=st.integers(1, 60), size=st.integers(1, 3000))
def test_no_character_is_searched_twice_however_many_stars(stars: int, size: int) -> None:
    subject = Watched("a" * size)
    Watched.looked = 0
    assert compile_glob("*a" * stars + "*b*")(subject) is False
    assert Watched.looked <= size


values: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["x", "xy", "z", "", 0, 1, 1.0, True, False, None]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("pq"), inner),
    max_leaves=6,
)
texts = st.sampled_from(["x", "x*", "*", "!x", "!x*", "!"])
plain = st.sampled_from([0, 1, True, False, None])
patterns: st.SearchStrategy[Any] = st.recursive(
    texts | plain | st.lists(texts | plain, min_size=1, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("pq"), inner, max_size=2),
    max_leaves=4,
)


def with_one_key_less(value: Any) -> list[Any]:
    """Return the values with one key removed, at any depth."""
    if not isinstance(value, dict):
        return []
    found = [{other: value[other] for other in value if other != key} for key in value]
    found += [{**value, key: less} for key in value for less in with_one_key_less(value[key])]
    return found


@pytest.mark.rule("K-06", "K-04")
@given(patterns, st.dictionaries(st.sampled_from("pq"), values))
def test_removing_a_key_never_turns_a_denial_into_a_permission(
    pattern: Any, value: dict[str, Any]
) -> None:
    test = compile_pattern(pattern)
    if not test(value):
        assert not any(test(less) for less in with_one_key_less(value))


@pytest.mark.rule("K-09")
@given(patterns, st.lists(values, max_size=3), values)
def test_one_more_element_never_turns_a_denial_into_a_permission(
    pattern: Any, elements: list[Any], more: Any
) -> None:
    test = compile_pattern(pattern)
    if elements and not test(elements):
        assert not test([*elements, more])


@pytest.mark.rule("K-05")
@given(st.lists(texts, min_size=1, max_size=4), texts.map(lambda each: "!" + each.lstrip("!")))
def test_one_more_negation_never_allows_more(pattern: list[str], negation: str) -> None:
    subjects = ["x", "xy", "z", ""]
    if all(each.startswith("!") for each in pattern):
        pattern = [*pattern, "*"]
    before, after = compile_pattern(pattern), compile_pattern([*pattern, negation])
    assert all(before(subject) for subject in subjects if after(subject))


@pytest.mark.rule("K-01", "K-12")
@given(st.lists(patterns, max_size=3), values)
def test_compiled_rules_never_raise_and_another_rule_only_allows_more(
    rules: list[Any], payload: Any
) -> None:
    message = decode(text("x", "a", payload=payload))
    found = [{"kind": "chat", "payload": rule} for rule in rules]
    decisions = [Capabilities(found[:n]).allow(message, None) for n in range(len(found) + 1)]
    assert decisions == sorted(decisions)
