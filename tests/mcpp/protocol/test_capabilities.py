"""Capabilities: patterns over envelopes that fail closed."""

import datetime
import gc
import json
import weakref
from typing import Any

import pytest

from mcpp.errors import CapabilityError
from mcpp.protocol.capabilities import Capabilities, compile_pattern
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import Envelope
from tests.gateway.harness import text

NO_TEXTS: list[Any] = [None, 1, 1.5, True, False, {}, []]


def envelope(kind: str = "chat", payload: Any = None, **members: Any) -> Envelope:
    return decode(text("x", "a", kind, payload, **members))


def allowed(pattern: dict[str, Any], message: Envelope, where: Lineage | None = None) -> bool:
    return Capabilities([pattern]).allow(message, where)


def matches(pattern: Any, value: Any) -> bool:
    return compile_pattern(pattern)(value)


@pytest.mark.rule("K-01")
def test_one_matching_pattern_is_enough_and_none_allows_nothing() -> None:
    both = Capabilities([{"kind": "chat"}, {"kind": "mcp/*", "to": "files"}])
    assert both.allow(envelope("chat"), None)
    assert both.allow(envelope("mcp/request:tools/list", to=["files"]), None)
    assert not both.allow(envelope("mcp/request:tools/list"), None)
    assert not both.allow(envelope("other"), None)
    assert not Capabilities([]).allow(envelope(), None)


@pytest.mark.rule("K-02")
def test_all_members_of_a_pattern_have_to_match() -> None:
    pattern = {"kind": "chat", "to": "b", "payload": {"n": 1}, "context": False}
    assert allowed(pattern, envelope(to=["b"], payload={"n": 1}))
    assert not allowed(pattern, envelope(to=["c"], payload={"n": 1}))
    assert not allowed(pattern, envelope(to=["b"], payload={"n": 2}))
    assert not allowed(
        pattern, envelope(to=["b"], payload={"n": 1}, context={"id": "c"}), Lineage("c")
    )


@pytest.mark.rule("K-02")
@pytest.mark.parametrize(
    "pattern",
    [{}, {"to": "b"}, {"kind": "*", "from": "a"}, {"kind": "*", "Payload": {}}, "chat", []],
)
def test_a_pattern_without_kind_or_with_an_unknown_key_is_an_error(pattern: Any) -> None:
    with pytest.raises(CapabilityError):
        Capabilities([pattern])


@pytest.mark.rule("K-03")
def test_a_text_is_a_glob_over_texts_only() -> None:
    assert matches("read_*", "read_file")
    assert not any(matches("*", value) for value in NO_TEXTS)


@pytest.mark.rule("K-04")
def test_a_negated_text_matches_other_texts_and_nothing_else() -> None:
    assert matches("!secret*", "public")
    assert not matches("!secret*", "secrets")
    assert not any(matches("!secret*", value) for value in NO_TEXTS)
    assert not matches({"name": "!secret"}, {})
    assert not allowed({"kind": "!mcp/*", "to": "!b"}, envelope())


@pytest.mark.rule("K-05")
def test_a_negated_text_in_a_list_excludes_what_it_matches() -> None:
    pattern = ["read_*", "list_*", "!read_key"]
    assert matches(pattern, "read_file")
    assert matches(pattern, "list_all")
    assert not matches(pattern, "read_key")
    assert not matches(pattern, "write")
    assert matches(["!a", "!b"], "c")
    assert not matches(["!a", "!b"], "b")
    assert matches([1, "x*", None], None)
    assert matches([1, "x*", None], 1)
    assert not matches([1, "!x"], "y")


@pytest.mark.rule("K-05")
@pytest.mark.parametrize("pattern", [[], ["a", []], ["a*", ["!ab"]], [["a"]]])
def test_an_empty_or_nested_list_is_an_error(pattern: Any) -> None:
    with pytest.raises(CapabilityError):
        compile_pattern(pattern)
    with pytest.raises(CapabilityError):
        Capabilities([{"kind": "*", "payload": {"name": pattern}}])


@pytest.mark.rule("K-06")
def test_an_object_requires_each_of_its_keys() -> None:
    pattern = {"params": {"name": "read_*"}}
    assert matches(pattern, {"params": {"name": "read_file", "more": 1}, "id": 2})
    others: list[Any] = [{}, {"params": {}}, {"params": None}, {"params": "read_"}, None, "x"]
    assert not any(matches(pattern, value) for value in others)
    assert matches({}, {"anything": 1})
    assert not matches({}, None)


@pytest.mark.rule("K-07")
def test_other_values_match_exactly_by_their_json_type() -> None:
    assert matches(1, 1)
    assert matches(1, 1.0)
    assert matches(None, None)
    assert matches(True, True)
    assert not matches(True, 1)
    assert not matches(1, True)
    assert not matches(0, False)
    assert not matches(False, 0)
    assert not matches(None, False)
    assert not matches(1, "1")


@pytest.mark.rule("K-08")
def test_a_repeated_key_where_a_rule_reads_does_not_match() -> None:
    twice = json.loads(text("x", "a", payload=None))
    del twice["payload"]
    start = json.dumps(twice, separators=(",", ":"))[:-1].encode()
    hidden = decode(start + b',"payload":{"name":"ok","o":{"k":1,"k":2}}}')
    assert not allowed({"kind": "*", "payload": {"name": "ok"}}, hidden)
    assert not allowed({"kind": "*", "payload": {}}, hidden)
    assert allowed({"kind": "*"}, hidden)
    context = b',"context":{"id":"c","metadata":{"k":1,"k":2}},"payload":0}'
    message = decode(start + context)
    assert not allowed({"kind": "*", "context": {"metadata": {}}}, message, Lineage("c"))
    assert allowed({"kind": "*", "context": {"id": "c"}}, message, Lineage("c"))


@pytest.mark.rule("K-09")
def test_an_array_matches_if_every_element_does() -> None:
    assert allowed({"kind": "*", "to": "a*"}, envelope(to=["a1", "a2"]))
    assert not allowed({"kind": "*", "to": "a*"}, envelope(to=["a1", "b"]))
    assert not allowed({"kind": "*", "to": "*"}, envelope(to=[]))
    assert not allowed({"kind": "*", "to": "*"}, envelope())
    assert matches("a", [["a"], ["a", "a"]])
    assert not matches("a", [["a"], []])
    assert not matches({"n": "!x"}, [{"n": "y"}, {"n": "x"}])


@pytest.mark.rule("K-09")
def test_one_recipient_among_several_cannot_bypass_a_negation() -> None:
    assert not allowed({"kind": "*", "to": ["*", "!admin"]}, envelope(to=["b", "admin"]))


@pytest.mark.rule("K-10")
def test_a_rule_sees_the_fixed_type_and_parent_of_a_context_not_the_claimed_ones() -> None:
    claims = envelope(context={"id": "c", "type": "reasoning", "parent": "mine"})
    fixed = Lineage("c", "task", ("theirs",))
    assert not allowed({"kind": "*", "context": {"type": "reasoning"}}, claims, fixed)
    assert not allowed({"kind": "*", "context": {"parent": "mine"}}, claims, fixed)
    assert allowed({"kind": "*", "context": {"type": "task", "parent": "theirs"}}, claims, fixed)


@pytest.mark.rule("K-10")
def test_missing_members_of_a_context_do_not_match() -> None:
    bare = envelope(context={"id": "c"})
    for key in ("type", "parent", "metadata"):
        assert not allowed({"kind": "*", "context": {key: "*"}}, bare, Lineage("c"))
        assert not allowed({"kind": "*", "context": {key: "!x"}}, bare, Lineage("c"))
    rich = envelope(context={"id": "c", "metadata": {"step": 3}})
    assert allowed({"kind": "*", "context": {"metadata": {"step": 3}}}, rich, Lineage("c"))


@pytest.mark.rule("K-11")
def test_false_is_outside_of_any_context_and_an_empty_object_inside_some() -> None:
    inside, outside = envelope(context={"id": "c"}), envelope()
    assert allowed({"kind": "*", "context": False}, outside)
    assert not allowed({"kind": "*", "context": False}, inside, Lineage("c"))
    assert allowed({"kind": "*", "context": {}}, inside, Lineage("c"))
    assert not allowed({"kind": "*", "context": {}}, outside)
    either = {"kind": "*", "context": [False, {"type": "t"}]}
    assert allowed(either, outside)
    assert allowed(either, inside, Lineage("c", "t"))
    assert not allowed(either, inside, Lineage("c", "u"))


@pytest.mark.rule("K-12")
@pytest.mark.parametrize(
    "pattern",
    [
        {"kind": 1},
        {"kind": True},
        {"kind": {}},
        {"kind": ["chat", 1]},
        {"kind": "*", "to": False},
        {"kind": "*", "to": {"id": "b"}},
        {"kind": "*", "context": True},
        {"kind": "*", "context": "c"},
        {"kind": "*", "context": {"typ": "t"}},
        {"kind": "*", "context": [False, {"typ": "t"}]},
        {"kind": "*", "payload": {"day": datetime.date(2025, 1, 1)}},
        {"kind": "*", "payload": float("nan")},
        {"kind": "*", "payload": [float("inf")]},
    ],
)
def test_a_pattern_that_nothing_could_match_is_an_error(pattern: Any) -> None:
    with pytest.raises(CapabilityError):
        Capabilities([pattern])


@pytest.mark.rule("K-12")
def test_patterns_nest_sixteen_levels_at_most() -> None:
    pattern: Any = "x"
    for _ in range(15):
        pattern = {"a": pattern}
    compile_pattern(pattern)
    with pytest.raises(CapabilityError, match="16 levels"):
        compile_pattern({"a": pattern})


@pytest.mark.rule("G-47")
def test_the_cache_of_decisions_per_kind_is_bounded() -> None:
    rules = Capabilities([{"kind": "a*"}])
    for i in range(5000):
        assert rules.allow(envelope(f"a{i}"), None)
        assert not rules.allow(envelope(f"b{i}"), None)
    assert len(getattr(rules, "_by_kind")) <= 1024  # noqa: B009


@pytest.mark.rule("K-10")
def test_the_example_of_the_decision_record_limits_what_is_sent_in_a_context() -> None:
    rules = Capabilities(
        [
            {"kind": "reflection", "context": {"type": "reasoning"}},
            {"kind": "chat", "context": False},
        ]
    )
    inside = Lineage("r", "reasoning")
    context = {"id": "r"}
    assert rules.allow(envelope("reflection", context=context), inside)
    assert not rules.allow(envelope("reflection"), None)
    assert rules.allow(envelope("chat"), None)
    assert not rules.allow(envelope("chat", context=context), inside)


@pytest.mark.rule("S-15")
def test_compiled_patterns_are_freed_without_the_garbage_collector() -> None:
    gc.disable()
    try:
        pattern = compile_pattern({"params": {"name": ["read_*", "!read_key"]}})
        freed = weakref.ref(pattern)
        del pattern
        assert freed() is None
    finally:
        gc.enable()
