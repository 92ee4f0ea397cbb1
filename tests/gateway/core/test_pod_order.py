"""Order of delivery: broadcasts, checks, refusals, repetitions."""

import json
from typing import Any

import pytest

from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.codec import decode
from mcpp_gateway.core.effects import Broadcast
from mcpp_gateway.core.pod import ParticipantSettings
from tests.gateway.harness import FREE, PodHarness, text

ONE_TOKEN = {"messages_per_second": 1, "burst": 1}


@pytest.mark.rule("G-18")
def test_everyone_sees_one_order_and_the_sender_is_one_of_them() -> None:
    harness = PodHarness("a", "b", "c")
    a, b, c = harness.join("a"), harness.join("b"), harness.join("c")
    sent = [harness.send(client, to=["c"]) for client in (a, b, c, b, a)]
    for client in (a, b, c):
        assert [id for id in client.ids if id.startswith("m-")] == sent


@pytest.mark.rule("G-19")
def test_the_senders_own_bytes_are_relayed() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    odd = (
        b'{ "payload":[1e2 ,"\\u00e9"],"x-new":null, "kind":"chat","from":"a",'
        b'"ts":"2025-08-31T12:00:00+02:00","id":"1","context":{"metadata":{"b":1,"a":2},"id":"c","y":{}},'
        b'"protocol":"mcpp/v0.1"}'
    )
    effect = harness.pod.receive(a.session, odd, harness.now)
    assert isinstance(effect, Broadcast)
    assert effect.text is odd
    harness.perform([effect])
    assert b.texts[-1] == odd
    assert a.texts[-1] == odd


@pytest.mark.rule("G-24")
def test_a_participant_cannot_send_as_another() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    before = list(b.texts)
    id = harness.send(a, sender="b")
    assert a.last["payload"]["error"] == "sender_mismatch"
    assert a.last["correlation_id"] == id
    assert b.texts == before


@pytest.mark.rule("G-24")
def test_no_participant_can_send_as_the_gateway() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    harness.send(a, sender="system:gateway")
    assert a.errors == ["sender_mismatch"]


@pytest.mark.rule("G-25", "K-14")
@pytest.mark.parametrize(
    "kind", ["system/presence", "system/welcome", "system/", "pod/", "pod/x", "tombstone"]
)
def test_reserved_kinds_are_refused_whatever_the_capabilities(kind: str) -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    before, end = list(b.texts), harness.pod.journal.end
    harness.send(a, kind, context={"id": "c"})
    assert a.errors == ["reserved_kind"]
    assert b.texts == before
    assert harness.pod.journal.end == end
    assert len(harness.pod.tree) == 0


@pytest.mark.rule("G-25")
@pytest.mark.parametrize("kind", ["system", "pod", "System/x", "podcast/x"])
def test_kinds_that_only_look_reserved_are_ordinary(kind: str) -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    id = harness.send(a, kind)
    assert b.ids[-1] == id


@pytest.mark.rule("G-20")
def test_each_check_comes_before_the_next() -> None:
    """One envelope with every fault, corrected one at a time."""
    limits = {
        **FREE,
        "max_context_depth": 2,
        "max_contexts_per_participant": 4,
        "context_messages_per_second": 0.001,
        "context_burst": 1,
    }
    harness = PodHarness(
        "a", "b", limits=limits, capabilities={"a": [{"kind": "ok*"}, {"kind": "seed"}]}
    )
    a, b = harness.join("a"), harness.join("b")
    taken = harness.send(b)
    harness.send(a, "seed", context={"id": "c1", "parent": "p"})
    harness.send(a, "seed", context={"id": "c2", "parent": "q"})
    assert a.errors == []
    context: dict[str, Any] = {"id": "c1", "parent": "c1"}
    bad: dict[str, Any] = {"kind": "system/x", "sender": "b", "id": taken, "context": context}

    def code() -> str:
        given = dict(bad)
        harness.send_text(a, text(given.pop("id"), given.pop("sender"), given.pop("kind"), **given))
        return a.errors[-1]

    bad["correlation_id"] = 1
    assert code() == "invalid_envelope"
    del bad["correlation_id"]
    assert code() == "sender_mismatch"
    bad["sender"] = "a"
    assert code() == "reserved_kind"
    bad["kind"] = "no"
    assert code() == "capability_violation"
    bad["kind"] = "ok"
    assert code() == "duplicate_id"
    bad["id"] = "fresh"
    assert code() == "context_cycle"
    bad["context"] = {"id": "c1", "parent": "other"}
    assert code() == "context_parent_changed"
    bad["context"] = {"id": "new", "parent": "c1"}
    assert code() == "context_depth_exceeded"
    bad["context"] = {"id": "new"}
    assert code() == "context_limit"
    bad["context"] = {"id": "c1"}
    assert code() == "rate_limited"
    assert a.last["payload"]["scope"] == "context"


# Texts of @a: invalid, in another name, of a reserved kind, a change of the filter.
COSTING = [
    b"nonsense",
    text("x", "b"),
    text("x", "a", "system/x"),
    text("x", "a", "pod/filter", {"filter": {"main": True}}),
]


@pytest.mark.rule("G-20", "G-21")
@pytest.mark.parametrize("data", [*COSTING, text("x", "a", "forbidden"), text("first", "a")])
def test_with_an_empty_bucket_the_answer_is_rate_limited_whatever_else_is_wrong(
    data: bytes,
) -> None:
    rules = {"a": [{"kind": "chat"}]}
    harness = PodHarness("a", "b", limits=ONE_TOKEN, capabilities=rules)
    a = harness.join("a")
    harness.send(a, id="first")
    harness.send_text(a, data)
    assert a.errors == ["rate_limited"]
    assert a.last["payload"]["scope"] == "participant"


@pytest.mark.rule("G-21")
@pytest.mark.parametrize("data", [*COSTING, text("x", "a", "pod/filter", "wrong")])
def test_a_refused_envelope_costs_a_token_too(data: bytes) -> None:
    harness = PodHarness("a", limits=ONE_TOKEN)
    a = harness.join("a")
    harness.send_text(a, data)
    assert "rate_limited" not in a.errors
    harness.send(a)
    assert a.errors[-1] == "rate_limited"


@pytest.mark.rule("G-21", "G-27")
def test_a_repetition_costs_a_token_too() -> None:
    harness = PodHarness("a", limits={"messages_per_second": 1, "burst": 2})
    a = harness.join("a")
    harness.send(a, id="x")
    harness.send(a, id="x")
    harness.send(a, id="x")
    assert a.ids.count("x") == 2
    assert a.errors == ["rate_limited"]


@pytest.mark.rule("G-26")
def test_after_the_stated_seconds_there_is_a_token_again() -> None:
    harness = PodHarness("a", limits={"messages_per_second": 3, "burst": 1})
    a = harness.join("a")
    harness.send(a)
    harness.send(a)
    harness.now += a.last["payload"]["retry_after_seconds"]
    id = harness.send(a)
    assert a.ids[-1] == id


@pytest.mark.rule("G-26")
def test_a_reconnection_does_not_fill_the_bucket() -> None:
    harness = PodHarness("a", limits=ONE_TOKEN)
    a = harness.join("a")
    harness.send(a)
    harness.leave(a)
    a = harness.join("a")
    harness.send(a)
    assert a.errors == ["rate_limited"]


@pytest.mark.rule("G-26", "G-35")
def test_all_connections_of_a_participant_share_one_bucket() -> None:
    harness = PodHarness("a", limits=ONE_TOKEN, multiple=["a"])
    one, two = harness.join("a"), harness.join("a")
    harness.send(one)
    harness.send(two)
    assert two.errors == ["rate_limited"]


@pytest.mark.rule("G-22")
def test_a_refusal_reaches_its_sender_alone_and_leaves_no_trace() -> None:
    harness = PodHarness("a", "b", multiple=["a"], capabilities={"a": [{"kind": "chat"}]})
    a, other, b = harness.join("a"), harness.join("a"), harness.join("b")
    before = len(other.texts), len(b.texts), harness.pod.journal.end
    id = harness.send(a, "secret", context={"id": "c"})
    assert a.last["kind"] == "system/error"
    assert a.last["from"] == "system:gateway"
    assert a.last["correlation_id"] == id
    assert a.last["payload"] == {
        "error": "capability_violation",
        "message": a.last["payload"]["message"],
        "attempted_kind": "secret",
        "your_capabilities": [{"kind": "chat"}],
    }
    assert (len(other.texts), len(b.texts), harness.pod.journal.end) == before
    assert len(harness.pod.tree) == 0
    again = harness.send(a)
    assert a.ids[-1] == b.ids[-1] == again


@pytest.mark.rule("G-28")
def test_the_id_of_a_refused_envelope_may_be_used() -> None:
    harness = PodHarness("a", "b", capabilities={"a": [{"kind": "chat"}]})
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, "secret", id="x")
    harness.send(b, id="x")
    assert b.last["id"] == "x"
    assert b.last["from"] == "b"


@pytest.mark.rule("G-28")
def test_the_id_of_an_envelope_to_the_gateway_is_neither_compared_nor_remembered() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, id="x")
    harness.send(b, "pod/filter", id="x", payload={"filter": {"all": []}})
    assert b.last["kind"] == "system/filter"
    harness.send(b, "pod/filter", id="y", payload={"filter": {"all": []}})
    harness.send(a, id="y")
    assert b.ids[-1] == "y"


@pytest.mark.rule("G-23")
@pytest.mark.parametrize(
    ("data", "correlation_id"),
    [
        (b'{"id":"x"}', "x"),
        (b'{"id":"x","id":"y"}', None),
        (b'{"id":"x","\\u0069d":"x"}', None),
        (b'{"id":"not an id"}', None),
        (b'{"id":7}', None),
        (b'{"id":"x"', None),
        (b'[{"id":"x"}]', None),
        (b'{"a":{"id":"x"}}', None),
        (b"\xff", None),
        ('{"id":"x"}'.encode("utf-16-le"), None),
        (b"[" * 60_000, None),
        (b'{"id":"x","a":' + b"9" * 5_000 + b"}", "x"),
    ],
)
def test_an_error_is_correlated_only_where_one_valid_id_can_be_read(
    data: bytes, correlation_id: str | None
) -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    harness.send_text(a, data)
    assert a.errors == ["invalid_envelope"]
    assert a.last.get("correlation_id") == correlation_id


@pytest.mark.rule("G-27")
def test_a_repetition_brings_the_original_to_the_connection_that_asked() -> None:
    harness = PodHarness("a", "b", multiple=["a"])
    a, other, b = harness.join("a"), harness.join("a"), harness.join("b")
    harness.send(a, id="x", payload="first", context={"id": "c"})
    original = a.texts[-1]
    before = len(other.texts), len(b.texts), harness.pod.journal.end
    harness.send(a, id="x", payload="second", context={"id": "d", "parent": "e"})
    assert a.texts[-2:] == [original, original]
    assert (len(other.texts), len(b.texts), harness.pod.journal.end) == before
    assert [node.id for node in harness.pod.tree] == ["c"]


@pytest.mark.rule("G-28")
def test_an_id_that_another_has_used_is_refused() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, id="x")
    harness.send(b, id="x")
    assert b.errors == ["duplicate_id"]
    assert a.ids.count("x") == 1


@pytest.mark.rule("G-28")
def test_the_gateways_ids_are_taken_too() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    presence = a.last
    assert presence["kind"] == "system/presence"
    harness.send(b, id=presence["id"])
    assert b.errors == ["duplicate_id"]


@pytest.mark.rule("G-29")
def test_an_id_is_remembered_for_as_long_as_the_history() -> None:
    harness = PodHarness("a", limits={**FREE, "history_messages": 2})
    a = harness.join("a")
    harness.send(a, id="x")
    harness.send(a, id="y")
    end = harness.pod.journal.end
    harness.send(a, id="x")
    assert harness.pod.journal.end == end
    harness.send(a, id="z")
    harness.send(a, id="x")
    assert harness.pod.journal.end == end + 2


@pytest.mark.rule("G-30")
def test_direct_envelopes_stand_where_they_were_caused() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    harness.send(b, id="1")
    harness.send(a, "system/x", id="bad")
    harness.send(b, id="2")
    harness.send(a, "pod/filter", id="ask", payload={"filter": {"all": []}})
    harness.send(b, id="3")
    shown = [envelope.get("correlation_id", envelope["id"]) for envelope in a.seen[-5:]]
    assert shown == ["1", "bad", "2", "ask", "3"]


@pytest.mark.rule("G-37", "K-13")
def test_changed_capabilities_hold_from_the_next_envelope_on() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.send(a)
    changed = [{"kind": "other"}]
    settings = [
        ParticipantSettings("a", Capabilities(changed)),
        ParticipantSettings("b", Capabilities([])),
    ]
    count = len(a.texts)
    harness.perform(harness.pod.reconfigure(settings, harness.now))
    assert len(a.texts) == count
    harness.send(a)
    assert a.errors == ["capability_violation"]
    assert harness.join("b").welcome["participants"][0] == {"id": "a", "capabilities": changed}


@pytest.mark.rule("G-37")
def test_a_participant_no_longer_configured_is_closed_for_good() -> None:
    harness = PodHarness("a", "b", multiple=["a"])
    one, two, b = harness.join("a"), harness.join("a"), harness.join("b")
    harness.perform(
        harness.pod.reconfigure([ParticipantSettings("b", Capabilities([]))], harness.now)
    )
    assert one.closed == two.closed == 4501
    assert b.closed is None
    assert b.last["payload"] == {
        "event": "leave",
        "participant": {"id": "a", "capabilities": [{"kind": "*"}]},
    }
    assert harness.pod.participants == ("b",)


@pytest.mark.rule("G-37")
def test_a_revoked_token_closes_every_connection_and_leaves_once() -> None:
    harness = PodHarness("a", "b", multiple=["a"])
    one, two, b = harness.join("a"), harness.join("a"), harness.join("b")
    harness.perform(harness.pod.revoke("a", harness.now))
    assert one.closed == two.closed == 4501
    assert b.kinds.count("system/presence") == 1
    assert harness.pod.revoke("a", harness.now) == []


@pytest.mark.rule("G-40")
def test_connections_with_the_same_filter_share_one_audience() -> None:
    harness = PodHarness("a", *(f"p{i}" for i in range(100)))
    a = harness.join("a")
    for i in range(100):
        harness.join(f"p{i}")
    effect = harness.pod.receive(a.session, text("x", "a"), harness.now)
    assert isinstance(effect, Broadcast)
    assert len(effect.audiences) == 1
    assert len(effect.audiences[0].sessions) == 101


@pytest.mark.rule("G-22")
def test_refusals_are_counted_by_code() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    harness.send(a, sender="b")
    harness.send(a, sender="b")
    harness.send_text(a, b"{}")
    assert harness.pod.refused == {"sender_mismatch": 2, "invalid_envelope": 1}


def test_system_texts_are_valid_envelopes() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.send(a, "system/x", context={"id": "c"})
    harness.send(a, context={"id": "c"})
    harness.send(a, "pod/filter", payload={"filter": {"main": True}})
    harness.join("b")
    harness.tick(1000)
    assert {decode(each).kind for each in a.texts} == {
        "chat",
        "system/welcome",
        "system/error",
        "system/filter",
        "system/presence",
        "system/context",
    }
    assert json.loads(a.texts[0])["ts"] == "1970-01-01T00:16:40.000000Z"
