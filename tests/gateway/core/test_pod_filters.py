"""Filters at the gateway: on join, changed live, and what always passes."""

from typing import Any

import pytest

from mcpp import filters
from mcpp.protocol.codec import decode
from mcpp_gateway.core.effects import Broadcast
from mcpp_gateway.core.pod import GATEWAY
from tests.gateway.stage import Stage, text

NOTHING = ~filters.everything


@pytest.mark.rule("F-09")
def test_what_is_addressed_to_me_and_my_own_pass_every_filter() -> None:
    stage = Stage("a", "b", "c")
    a = stage.join("a")
    b = stage.join("b", filter=NOTHING)
    stage.join("c")
    stage.send(a, id="others")
    stage.send(a, id="to-b", to=["c", "b"])
    stage.send(b, id="own")
    assert [id for id in b.ids if not id.startswith("sys")] == ["to-b", "own"]


@pytest.mark.rule("F-09", "G-35")
def test_each_connection_of_the_addressed_gets_it_exactly_once() -> None:
    stage = Stage("a", "b", multiple=["b"])
    a = stage.join("a")
    seats = [stage.join("b", filter=f) for f in (NOTHING, filters.everything, NOTHING)]
    stage.send(a, id="x", to=["b", "b", "a"])
    assert [seat.ids.count("x") for seat in (*seats, a)] == [1, 1, 1, 1]


@pytest.mark.rule("F-09")
def test_what_always_passes_is_replayed_too() -> None:
    stage = Stage("a", "b", "c")
    a = stage.join("a")
    start = stage.send(a)
    b = stage.join("b")
    stage.send(a, id="others")
    stage.send(a, id="to-b", to=["b"])
    stage.send(b, id="own")
    stage.leave(stage.join("c"))
    stage.leave(b)
    b = stage.join("b", after=start, filter=NOTHING)
    assert [id for id in b.ids if not id.startswith("sys")] == ["to-b", "own"]
    assert b.kinds.count("system/presence") == 2
    assert b.welcome["replayed"] == 4


@pytest.mark.rule("F-11", "F-12", "F-13")
def test_a_filter_changes_where_its_acknowledgement_stands_without_a_capability() -> None:
    stage = Stage("a", "b", capabilities={"b": []})
    a, b = stage.join("a"), stage.join("b")
    stage.send(a, id="1")
    stage.send(b, "pod/filter", id="ask", payload={"filter": {"kind": "rare*"}})
    assert b.last["kind"] == "system/filter"
    assert b.last["correlation_id"] == "ask"
    assert b.last["payload"] == {"filter": {"kind": "rare*"}}
    stage.send(a, id="2")
    stage.send(a, "rarest", id="3")
    stage.send(b, "pod/filter", payload={"filter": {"all": []}})
    stage.send(a, id="4")
    assert [id for id in b.ids if not id.startswith("sys")] == ["1", "3", "4"]
    assert a.kinds.count("system/filter") == 0


@pytest.mark.rule("F-11")
@pytest.mark.parametrize(
    "payload",
    [
        None,
        {},
        [],
        {"filter": None},
        {"filter": '{"main":true}'},
        {"filter": {"main": False}},
        {"filter": {"unknown": 1}},
        {"Filter": {"main": True}},
    ],
)
def test_a_bad_filter_is_refused_and_the_old_one_stays(payload: Any) -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    b = stage.join("b", filter=filters.kind("rare"))
    id = stage.send(b, "pod/filter", payload=payload)
    assert b.last["payload"]["error"] == "invalid_filter"
    assert b.last["correlation_id"] == id
    stage.send(a, id="no")
    stage.send(a, "rare", id="yes")
    assert b.ids[-1] == "yes"
    assert "no" not in b.ids


@pytest.mark.rule("F-15", "F-11")
def test_a_filter_with_a_repeated_key_is_refused() -> None:
    stage = Stage("a")
    a = stage.join("a")
    good = text("x", "a", "pod/filter", {"filter": {"kind": "a"}})
    stage.send_text(a, good.replace(b'{"kind":"a"}', b'{"kind":"a","kind":"b"}'))
    assert a.errors == ["invalid_filter"]


@pytest.mark.rule("F-11")
def test_a_filter_concerns_the_connection_that_asked_for_it() -> None:
    stage = Stage("a", "b", multiple=["b"])
    a, one, two = stage.join("a"), stage.join("b"), stage.join("b")
    stage.send(one, "pod/filter", payload={"filter": {"any": []}})
    stage.send(a, id="x")
    assert "x" not in one.ids
    assert two.ids[-1] == "x"


@pytest.mark.rule("F-10")
def test_a_filter_of_the_query_holds_from_the_first_replayed_envelope_on() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    stage.send(a, "rare", id="1")
    stage.send(a, id="2")
    b = stage.join("b", last=10, filter=filters.kind("rare"))
    stage.send(a, id="3")
    stage.send(a, "rare", id="4")
    assert [id for id in b.ids if not id.startswith("sys")] == ["1", "4"]


@pytest.mark.rule("G-40")
def test_audiences_come_and_go_with_their_filters() -> None:
    stage = Stage("a", "b", "c")
    a = stage.join("a")
    b = stage.join("b", filter=filters.parse({"kind": "x"}))
    c = stage.join("c", filter=filters.parse({"kind": "x"}))

    def reached(kind: str) -> int:
        effect = stage.pod.receive(a.session, text(f"{kind}{stage.now}", "a", kind), stage.now)
        assert isinstance(effect, Broadcast)
        stage.now += 1
        return len(effect.audiences)

    assert reached("x") == 2
    assert reached("y") == 1
    stage.leave(b)
    assert reached("x") == 2
    stage.leave(c)
    assert reached("x") == 1


@pytest.mark.rule("G-47")
def test_what_is_remembered_of_routes_is_bounded_in_number_and_in_size() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    b = stage.join("b", filter=filters.main_only & filters.parse({"to": "p7"}))
    for i in range(20_000):
        stage.pod.receive(a.session, text(str(i), "a", f"k{i}"), stage.now)
    audiences = getattr(stage.pod, "_audiences")  # noqa: B009
    routes = getattr(audiences, "_routes")  # noqa: B009
    assert len(routes) <= 4096
    routes.clear()
    for i in range(100):
        many = [f"p{j}" for j in range(i, 1000)]
        stage.send(a, id=f"many{i}", to=many)
    assert len(routes) == 0
    assert [id for id in b.ids if id.startswith("many")] == [f"many{i}" for i in range(8)]


@pytest.mark.rule("F-18", "C-14")
def test_the_gateway_sends_what_the_filter_selects_from_the_whole_log() -> None:
    stage = Stage("a", "b", "c")
    a, whole = stage.join("a"), stage.join("b")
    wanted = filters.with_types("t") | filters.in_context("root", descendants=True)
    c = stage.join("c", filter=wanted)
    for context in (
        {"id": "x", "parent": "root"},
        {"id": "y", "type": "t"},
        {"id": "y", "parent": "x"},
        {"id": "z", "type": "u"},
        {"id": "z", "parent": "y"},
    ):
        stage.send(a, context=context)
        stage.send(a, context={"id": context["id"]})
    stage.tick(1000)
    stage.send(a, context={"id": "y"})
    stage.send(a)
    log = [decode(each) for each in whole.texts[2:]]
    selected = {each.id for each in wanted.select(log)}
    passed = [each.id for each in log if each.id in selected or each.sender == GATEWAY]
    assert c.ids[1:] == passed
    assert len(passed) < len(log)
