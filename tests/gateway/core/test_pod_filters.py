"""Filters at the gateway: on join, changed while live, and exceptions."""

from typing import Any

import pytest

from mcpp import filters
from mcpp.protocol.codec import decode
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.effects import Broadcast
from tests.gateway.harness import PodHarness, text

NOTHING = ~filters.everything


@pytest.mark.rule("F-09")
def test_what_is_addressed_to_me_and_my_own_pass_every_filter() -> None:
    harness = PodHarness("a", "b", "c")
    a = harness.join("a")
    b = harness.join("b", filter=NOTHING)
    harness.join("c")
    harness.send(a, id="others")
    harness.send(a, id="to-b", to=["c", "b"])
    harness.send(b, id="own")
    assert [id for id in b.ids if not id.startswith("sys")] == ["to-b", "own"]


@pytest.mark.rule("F-09", "G-35")
def test_each_connection_of_the_addressed_gets_it_exactly_once() -> None:
    harness = PodHarness("a", "b", multiple=["b"])
    a = harness.join("a")
    clients = [harness.join("b", filter=f) for f in (NOTHING, filters.everything, NOTHING)]
    harness.send(a, id="x", to=["b", "b", "a"])
    assert [client.ids.count("x") for client in (*clients, a)] == [1, 1, 1, 1]


@pytest.mark.rule("F-09")
def test_what_always_passes_is_replayed_too() -> None:
    harness = PodHarness("a", "b", "c")
    a = harness.join("a")
    start = harness.send(a)
    b = harness.join("b")
    harness.send(a, id="others")
    harness.send(a, id="to-b", to=["b"])
    harness.send(b, id="own")
    harness.leave(harness.join("c"))
    harness.leave(b)
    b = harness.join("b", after=start, filter=NOTHING)
    assert [id for id in b.ids if not id.startswith("sys")] == ["to-b", "own"]
    assert b.kinds.count("system/presence") == 2
    assert b.welcome["replayed"] == 4


@pytest.mark.rule("F-11", "F-12", "F-13")
def test_a_filter_changes_where_its_acknowledgement_stands_without_a_capability() -> None:
    harness = PodHarness("a", "b", capabilities={"b": []})
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, id="1")
    harness.send(b, "pod/filter", id="ask", payload={"filter": {"kind": "rare*"}})
    assert b.last["kind"] == "system/filter"
    assert b.last["correlation_id"] == "ask"
    assert b.last["payload"] == {"filter": {"kind": "rare*"}}
    harness.send(a, id="2")
    harness.send(a, "rarest", id="3")
    harness.send(b, "pod/filter", payload={"filter": {"all": []}})
    harness.send(a, id="4")
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
    harness = PodHarness("a", "b")
    a = harness.join("a")
    b = harness.join("b", filter=filters.kind("rare"))
    id = harness.send(b, "pod/filter", payload=payload)
    assert b.last["payload"]["error"] == "invalid_filter"
    assert b.last["correlation_id"] == id
    harness.send(a, id="no")
    harness.send(a, "rare", id="yes")
    assert b.ids[-1] == "yes"
    assert "no" not in b.ids


@pytest.mark.rule("F-15", "F-11")
def test_a_filter_with_a_repeated_key_is_refused() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    good = text("x", "a", "pod/filter", {"filter": {"kind": "a"}})
    harness.send_text(a, good.replace(b'{"kind":"a"}', b'{"kind":"a","kind":"b"}'))
    assert a.errors == ["invalid_filter"]


@pytest.mark.rule("F-11")
def test_a_filter_concerns_the_connection_that_asked_for_it() -> None:
    harness = PodHarness("a", "b", multiple=["b"])
    a, one, two = harness.join("a"), harness.join("b"), harness.join("b")
    harness.send(one, "pod/filter", payload={"filter": {"any": []}})
    harness.send(a, id="x")
    assert "x" not in one.ids
    assert two.ids[-1] == "x"


@pytest.mark.rule("F-10")
def test_a_filter_of_the_query_holds_from_the_first_replayed_envelope_on() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.send(a, "rare", id="1")
    harness.send(a, id="2")
    b = harness.join("b", last=10, filter=filters.kind("rare"))
    harness.send(a, id="3")
    harness.send(a, "rare", id="4")
    assert [id for id in b.ids if not id.startswith("sys")] == ["1", "4"]


@pytest.mark.rule("G-40")
def test_audiences_come_and_go_with_their_filters() -> None:
    harness = PodHarness("a", "b", "c")
    a = harness.join("a")
    b = harness.join("b", filter=filters.parse({"kind": "x"}))
    c = harness.join("c", filter=filters.parse({"kind": "x"}))

    def reached(kind: str) -> int:
        effect = harness.pod.receive(
            a.session, text(f"{kind}{harness.now}", "a", kind), harness.now
        )
        assert isinstance(effect, Broadcast)
        harness.now += 1
        return len(effect.audiences)

    assert reached("x") == 2
    assert reached("y") == 1
    harness.leave(b)
    assert reached("x") == 2
    harness.leave(c)
    assert reached("x") == 1


@pytest.mark.rule("G-47")
def test_what_is_remembered_of_routes_is_bounded_in_number_and_in_size() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    b = harness.join("b", filter=filters.main_only & filters.parse({"to": "p7"}))
    for i in range(20_000):
        harness.pod.receive(a.session, text(str(i), "a", f"k{i}"), harness.now)
    delivery = getattr(harness.pod, "_delivery")  # noqa: B009
    routes = getattr(delivery, "_routes")  # noqa: B009
    assert len(routes) <= 4096
    routes.clear()
    for i in range(100):
        many = [f"p{j}" for j in range(i, 1000)]
        harness.send(a, id=f"many{i}", to=many)
    assert len(routes) == 0
    assert [id for id in b.ids if id.startswith("many")] == [f"many{i}" for i in range(8)]


@pytest.mark.rule("F-18", "C-14")
def test_the_gateway_sends_what_the_filter_selects_from_the_whole_log() -> None:
    harness = PodHarness("a", "b", "c")
    a, whole = harness.join("a"), harness.join("b")
    wanted = filters.with_types("t") | filters.in_context("root", descendants=True)
    c = harness.join("c", filter=wanted)
    for context in (
        {"id": "x", "parent": "root"},
        {"id": "y", "type": "t"},
        {"id": "y", "parent": "x"},
        {"id": "z", "type": "u"},
        {"id": "z", "parent": "y"},
    ):
        harness.send(a, context=context)
        harness.send(a, context={"id": context["id"]})
    harness.tick(1000)
    harness.send(a, context={"id": "y"})
    harness.send(a)
    log = [decode(each) for each in whole.texts[2:]]
    selected = {each.id for each in wanted.select(log)}
    passed = [each.id for each in log if each.id in selected or each.sender == GATEWAY]
    assert c.ids[1:] == passed
    assert len(passed) < len(log)
