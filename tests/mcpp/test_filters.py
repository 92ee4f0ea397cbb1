"""Filters: the algebra, its JSON, its limits."""

import json
from typing import Any

import pytest

import mcpp
from mcpp import FilterError, filters
from mcpp.client.factory import new_context, new_envelope
from mcpp.filters import Filter, parse
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import Context, Envelope
from mcpp.session.session import ClientSession


def envelope(kind: str = "chat", **members: Any) -> Envelope:
    return new_envelope(kind, sender=members.pop("sender", "a"), **members)


def passes(
    filter: Filter | dict[str, Any], message: Envelope, where: Lineage | None = None
) -> bool:
    chosen = filter if isinstance(filter, Filter) else parse(filter)
    return chosen.matches(message, where)


@pytest.mark.rule("F-01")
@pytest.mark.parametrize(
    "value",
    [
        {},
        {"main": True, "kind": "x"},
        {"descendants": True},
        {"type": "t", "descendants": True},
        {"Main": True},
        {"unknown": 1},
        [],
        "main",
        None,
        True,
        {"any": {"main": True}},
        {"all": "x"},
        {"not": []},
        {"not": [{"main": True}]},
        {"any": [None]},
    ],
)
def test_a_filter_is_an_object_with_one_known_key(value: object) -> None:
    with pytest.raises(FilterError):
        parse(value)


@pytest.mark.rule("F-02")
def test_main_passes_envelopes_outside_any_context() -> None:
    assert passes({"main": True}, envelope())
    assert not passes({"main": True}, envelope(), Lineage("c"))


@pytest.mark.rule("F-02")
@pytest.mark.parametrize("value", [False, 1, "true", None])
def test_main_must_be_true(value: object) -> None:
    with pytest.raises(FilterError, match=r"\$\.main"):
        parse({"main": value})


@pytest.mark.rule("F-03")
def test_type_passes_contexts_of_that_fixed_type() -> None:
    assert passes({"type": "t"}, envelope(context="c"), Lineage("c", "t"))
    assert not passes({"type": "t"}, envelope(context="c"), Lineage("c", "u"))
    assert not passes({"type": "t"}, envelope(context="c"), Lineage("c"))
    assert not passes({"type": "t"}, envelope())


@pytest.mark.rule("F-04")
def test_context_passes_one_context_and_optionally_its_descendants() -> None:
    child = Lineage("child", None, ("parent", "root"))
    assert passes({"context": "child"}, envelope(), child)
    assert not passes({"context": "root"}, envelope(), child)
    assert not passes({"context": "root", "descendants": False}, envelope(), child)
    assert passes({"context": "root", "descendants": True}, envelope(), child)
    assert passes({"context": "parent", "descendants": True}, envelope(), child)
    assert not passes({"context": "other", "descendants": True}, envelope(), child)
    assert not passes({"context": "child", "descendants": True}, envelope())


@pytest.mark.rule("F-04")
@pytest.mark.parametrize("value", [1, "true", None, []])
def test_descendants_is_a_boolean(value: object) -> None:
    with pytest.raises(FilterError, match="descendants"):
        parse({"context": "c", "descendants": value})


@pytest.mark.rule("F-05")
def test_kind_is_a_glob() -> None:
    assert passes({"kind": "mcp/*"}, envelope("mcp/request:tools/list"))
    assert not passes({"kind": "mcp/*"}, envelope("chat"))


@pytest.mark.rule("F-06")
def test_from_and_to_are_ids() -> None:
    message = envelope(sender="a", to=["b", "c"])
    assert passes({"from": "a"}, message)
    assert not passes({"from": "b"}, message)
    assert passes({"to": "c"}, message)
    assert not passes({"to": "a"}, message)
    assert not passes({"to": "a"}, envelope(sender="b"))
    with pytest.raises(FilterError):
        parse({"from": "a*"})


@pytest.mark.rule("F-07")
def test_any_of_nothing_passes_nothing_and_all_of_nothing_everything() -> None:
    assert not passes({"any": []}, envelope())
    assert passes({"all": []}, envelope())
    assert passes({"not": {"any": []}}, envelope())


@pytest.mark.rule("F-07")
def test_any_all_and_not_combine() -> None:
    chat, mcp = {"kind": "chat"}, {"kind": "mcp/*"}
    assert passes({"any": [mcp, chat]}, envelope("chat"))
    assert not passes({"all": [mcp, chat]}, envelope("chat"))
    assert passes({"all": [{"not": mcp}, chat]}, envelope("chat"))


def test_python_operators_build_the_same_algebra() -> None:
    wanted = filters.main_only | filters.kind("mcp/*") & ~filters.sender("noisy")
    assert wanted.to_json() == {
        "any": [{"main": True}, {"all": [{"kind": "mcp/*"}, {"not": {"from": "noisy"}}]}]
    }
    assert ~~filters.main_only is filters.main_only
    assert filters.addressed_to("b").to_json() == {"to": "b"}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {"main": True}
    for _ in range(levels - 1):
        value = {"not": value}
    return value


@pytest.mark.rule("F-08")
def test_a_filter_has_at_most_64_parts_8_levels_and_4096_bytes() -> None:
    parse({"any": [{"main": True}] * 63})
    with pytest.raises(FilterError, match="64 parts"):
        parse({"any": [{"main": True}] * 64})
    parse(nested(8))
    with pytest.raises(FilterError, match="8 levels"):
        parse(nested(9))
    long = {"any": [{"kind": "k" * 128}] * 29}
    assert len(json.dumps(long, separators=(",", ":"))) < 4096
    parse(long)
    long["any"].append({"kind": "k" * 128})
    with pytest.raises(FilterError, match="4096 bytes"):
        parse(long)
    with pytest.raises(FilterError, match="4096 bytes"):
        parse('{"main":true}' + " " * 4096)


@pytest.mark.rule("F-08")
def test_the_globs_of_a_filter_have_at_most_64_stars_together() -> None:
    parse({"any": [{"kind": "*a*"}] * 32})
    with pytest.raises(FilterError, match="64 stars"):
        parse({"any": [{"kind": "*a*"}] * 32 + [{"kind": "a*"}]})


HOSTILE = ["[" * 4000, '{"not":' * 500, "9" * 4096, '"\ud800"', "\x00", ""]


@pytest.mark.rule("F-08", "F-14")
@pytest.mark.parametrize(
    "value",
    [
        *HOSTILE,
        {"type": ""},
        {"type": "a b"},
        {"type": 1},
        {"context": "x" * 129},
        {"context": None},
        {"from": "x" * 65},
        {"to": ["a"]},
        {"kind": ""},
        {"kind": "a\u2028b"},
        {"kind": "\ud800"},
        {"kind": "k" * 513},
        {"kind": "chat\n"},
        {"type": "t\n"},
    ],
)
def test_a_hostile_text_or_one_that_could_never_match_is_a_filter_error(value: object) -> None:
    with pytest.raises(FilterError):
        parse(value)


@pytest.mark.rule("F-15")
@pytest.mark.parametrize(
    "text",
    [
        '{"kind":"a","kind":"b"}',
        '{"not":{"main":true,"main":true}}',
        '{"kind":"a","\\u006bind":"b"}',
    ],
)
def test_a_repeated_key_is_an_error(text: str) -> None:
    with pytest.raises(FilterError, match="twice"):
        parse(text)


@pytest.mark.rule("F-17")
def test_the_five_strategies_have_names() -> None:
    assert filters.everything.to_json() == {"all": []}
    assert filters.main_only.to_json() == {"main": True}
    assert filters.with_types("r", "w").to_json() == {
        "any": [{"main": True}, {"type": "r"}, {"type": "w"}]
    }
    assert filters.conclusions.to_json() == {
        "all": [{"not": {"main": True}}, {"kind": "conclusion"}]
    }
    assert filters.in_context("c").to_json() == {"context": "c"}


@pytest.mark.rule("F-17")
def test_the_five_strategies_select_what_the_decision_record_selects() -> None:
    reasoning = new_context("reasoning", id="r")
    workflow = new_context("workflow", id="w")
    log = [
        envelope(id="main"),
        envelope("reflection", id="thought", context=reasoning),
        envelope("conclusion", id="end", context=reasoning),
        envelope("conclusion", id="loose"),
        envelope("chat", id="step", context=workflow),
        envelope("chat", id="bare", context="r"),
    ]

    def ids(filter: Filter) -> list[str]:
        return [each.id for each in filter.select(log)]

    assert ids(filters.everything) == ["main", "thought", "end", "loose", "step", "bare"]
    assert ids(filters.main_only) == ["main", "loose"]
    assert ids(filters.with_types("reasoning")) == ["main", "thought", "end", "loose", "bare"]
    assert ids(filters.conclusions) == ["end"]
    assert ids(filters.in_context("r")) == ["thought", "end", "bare"]


@pytest.mark.rule("C-14", "C-12")
def test_select_tracks_contexts_and_forgets_expired_ones() -> None:
    log = [
        envelope(id="1", context=Context(id="c", type="t", parent="p")),
        envelope(id="2", context=Context(id="c")),
        envelope(id="3", context=Context(id="p", parent="g")),
        envelope(id="4", context=Context(id="c", type="ignored", parent="ignored")),
        envelope(
            "system/context",
            payload={"event": "expired", "context": {"id": "c"}},
            sender="system:gateway",
            id="5",
        ),
        envelope(id="6", context=Context(id="c")),
    ]

    def ids(value: dict[str, Any]) -> list[str]:
        return [each.id for each in parse(value).select(log)]

    assert ids({"type": "t"}) == ["1", "2", "4"]
    assert ids({"context": "p", "descendants": True}) == ["1", "2", "3", "4"]
    assert ids({"context": "g", "descendants": True}) == ["3", "4"]


def test_errors_name_the_path() -> None:
    with pytest.raises(FilterError, match=r"^\$\.any\[1\]\.not\.kind: "):
        parse({"any": [{"main": True}, {"not": {"kind": 3}}]})


@pytest.mark.parametrize("payload", [None, [], {"context": 1}, {"context": {"id": None}}])
def test_select_ignores_invalid_context_events(payload: Any) -> None:
    odd = new_envelope("system/context", payload, sender="system:gateway")
    assert list(filters.everything.select([odd])) == [odd]


def test_a_filter_may_be_given_as_its_json() -> None:
    assert ClientSession(filter={"main": True}).filter == filters.main_only
    assert (
        mcpp.Participant("x", filter={"main": True}).connect_options["filter"] == filters.main_only
    )
    with pytest.raises(FilterError):
        mcpp.Participant("x", filter={"mian": True})
    with pytest.raises(TypeError, match="is not a filter"):
        mcpp.Participant("x", filter="chat")  # type: ignore[arg-type]
