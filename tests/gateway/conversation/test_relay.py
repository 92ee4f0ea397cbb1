"""Live parts: relayed, never logged, and the first to be left out."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp import filters
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.pod import ParticipantSettings
from mcpp_gateway.edge.hub import LIVE_BYTES, live_room
from tests.gateway.cluster.harness import ClusterPodHarness, FollowingPodHarness
from tests.gateway.harness import FREE, HarnessClient, PodHarness

HARNESSES = [PodHarness, ClusterPodHarness, FollowingPodHarness]
EVERY_POD = pytest.mark.parametrize("harness_type", HARNESSES)
HarnessType = Callable[..., PodHarness]


def parts(client: HarnessClient) -> list[str]:
    return [each["id"] for each in client.seen if each["kind"].startswith("live/")]


def log(harness: PodHarness) -> list[dict[str, Any]]:
    journal = harness.pod.journal
    found = journal.read(journal.start, journal.end - journal.start)
    return [without_gateway_id(json.loads(entry.text)) for entry in found]


def without_gateway_id(envelope: dict[str, Any]) -> dict[str, Any]:
    if envelope["from"] == "system:gateway":
        del envelope["id"]
    return envelope


@EVERY_POD
@pytest.mark.rule("G-80")
def test_a_live_part_reaches_the_others_and_is_in_no_log(harness_type: HarnessType) -> None:
    harness = harness_type("a", "b", "c", multiple=["a"])
    a, tab, b = harness.join("a"), harness.join("a"), harness.join("b")
    harness.send(a, id="said")
    harness.send(a, "live/text", id="part", correlation_id="final")
    harness.send(a, "live/text", id="part", correlation_id="final")
    assert parts(a) == []
    assert parts(tab) == parts(b) == ["part", "part"]
    assert a.errors == []
    assert [each["id"] for each in log(harness) if "id" in each] == ["said"]
    late = harness.join("c", last=100)
    assert parts(late) == []
    assert (
        late.welcome["position"] == harness.pod.journal.read(harness.pod.journal.end - 1, 1)[0].id
    )
    harness.send(a, "chat", id="part")
    assert b.ids[-1] == "part"


@EVERY_POD
@pytest.mark.rule("G-80", "F-09")
def test_a_live_part_passes_filters_and_rights_even_where_it_is_addressed(
    harness_type: HarnessType,
) -> None:
    harness = harness_type("a", "b", "guest")
    everything = Capabilities([{"kind": "*"}])
    hears = filters.parse({"not": {"type": "reasoning"}})
    harness.perform(
        harness.pod.reconfigure(
            [
                ParticipantSettings("a", everything),
                ParticipantSettings("b", everything),
                ParticipantSettings("guest", everything, False, hears),
            ],
            harness.now,
        )
    )
    a = harness.join("a")
    b = harness.join("b", filter=filters.parse({"not": {"kind": "live/*"}}))
    guest = harness.join("guest")
    harness.send(a, "reflection", context={"id": "c", "type": "reasoning"})
    harness.send(a, "live/text", id="main", to=["b"])
    # The type is that of the tree, whatever the part says.
    harness.send(a, "live/text", id="thought", to=["b", "guest"], context={"id": "c"})
    harness.send(a, "live/text", id="lie", context={"id": "c", "type": "task", "parent": "x"})
    assert parts(b) == []
    assert parts(guest) == ["main"]


@EVERY_POD
@pytest.mark.rule("G-81", "G-20")
def test_a_live_part_needs_the_capability_and_a_context_that_has_begun(
    harness_type: HarnessType,
) -> None:
    may = {"kind": "live/text"}
    not_here = [{"kind": "live/text", "context": {"type": "open"}}]
    harness = harness_type(
        "a", "b", "c", capabilities={"a": [{"kind": "chat"}, may], "c": not_here}
    )
    a, b, c = harness.join("a"), harness.join("b"), harness.join("c")
    harness.send(a, "live/other", id="kind")
    harness.send(a, "live/text", context={"id": "new", "type": "task"})
    harness.send(b, "chat", context={"id": "child", "parent": "above"})
    harness.send(a, "live/text", context={"id": "above"})
    harness.send(a, "live/text", id="ok", context={"id": "child"})
    harness.send(a, "live/text", payload={"text": "x" * 16_384})
    harness.send(c, "live/text", context={"id": "child", "type": "open"})
    assert a.errors == [
        "capability_violation",
        "context_not_live",
        "context_not_live",
        "invalid_envelope",
    ]
    assert c.errors == ["capability_violation"]
    assert parts(b) == ["ok"]


@EVERY_POD
@pytest.mark.rule("G-81", "G-21", "C-16")
def test_live_parts_cost_the_rates_of_participant_and_context(harness_type: HarnessType) -> None:
    harness = harness_type(
        "a",
        "b",
        limits={
            **FREE,
            "messages_per_second": 1,
            "burst": 7,
            "context_messages_per_second": 1,
            "context_burst": 3,
        },
    )
    a, b = harness.join("a"), harness.join("b")
    harness.send(b, "chat", context={"id": "c"})
    for _ in range(4):
        harness.send(a, "live/text", context={"id": "c"})
    for _ in range(4):
        harness.send(a, "live/text")
    scopes = [each["payload"]["scope"] for each in a.seen if each["kind"] == "system/error"]
    assert scopes.count("participant") == 1
    assert scopes.count("context") >= 1
    assert len(parts(b)) == 7 - scopes.count("context")


@EVERY_POD
@pytest.mark.rule("G-80", "P-71")
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_live_parts_change_nothing_that_follows_from_the_log(
    harness_type: HarnessType, data: st.DataObject
) -> None:
    """Two pods get the same envelopes, one of them live parts in between."""
    plain, live = harness_type("a", "b", "c"), harness_type("a", "b", "c")
    pods = (plain, live)
    clients = [{name: pod.join(name) for name in "abc"} for pod in pods]
    contexts = st.sampled_from(
        [None, {"id": "x"}, {"id": "x", "type": "t"}, {"id": "y", "parent": "x"}]
    )
    ids = st.sampled_from([f"i-{number}" for number in range(8)])
    for _ in range(data.draw(st.integers(1, 12))):
        sender, context, id = data.draw(st.sampled_from("abc")), data.draw(contexts), data.draw(ids)
        members: dict[str, Any] = {} if context is None else {"context": context}
        step = data.draw(st.sampled_from(["say", "live", "live", "rejoin", "tick"]))
        if step == "live":
            live.send(clients[1][sender], "live/text", id=id, correlation_id="i-1", **members)
            continue
        for pod, each in zip(pods, clients, strict=True):
            if step == "say":
                pod.send(each[sender], id=id, **members)
            elif step == "tick":
                pod.tick(200.0)
            else:
                pod.leave(each[sender])
                each[sender] = pod.join(sender, after=id)
    assert log(plain) == log(live)
    assert plain.pod.tree.snapshot() == live.pod.tree.snapshot()
    for name in "abc":
        seen = [
            [
                without_gateway_id(envelope)
                for envelope in each[name].seen
                if not envelope["kind"].startswith("live/")
                and "context_not_live" not in str(envelope["payload"])
            ]
            for each in clients
        ]
        for one, other in zip(*seen, strict=True):
            assert {**one, "payload": shown(one)} == {**other, "payload": shown(other)}


def shown(envelope: dict[str, Any]) -> Any:
    payload = envelope["payload"]
    if envelope["kind"] != "system/welcome":
        return payload
    return {name: payload[name] for name in ("resumed", "replayed", "contexts")}


class _StoppedClient(HarnessClient):
    """A connection whose client does not read: everything that is written to it waits."""

    limit = 0

    @property
    def waiting_bytes(self) -> int:
        return sum(map(len, self.texts))

    def set_outbox(self, max_bytes: int) -> None:
        self.limit = max_bytes


@pytest.mark.rule("G-82", "G-38")
def test_live_parts_are_left_out_for_a_slow_reader_and_never_close_it() -> None:
    limits = {**FREE, "outbox_bytes": 1 << 20, "max_message_bytes": 1 << 18}
    harness = PodHarness("a", "b", "slow", limits=limits)
    a, b = harness.join("a"), harness.join("b")
    slow = _StoppedClient()
    slow.peer = harness.hub.join(
        harness.pod, "slow", slow, filter=filters.everything, after=None, last=None
    )
    harness.tick()
    room = live_room(harness.pod)
    for _ in range(200):
        harness.send(a, "live/text", payload={"text": "x" * 8_000})
    assert len(parts(b)) == 200
    assert 0 < sum(len(text) for text in slow.texts) <= room + 4096
    assert harness.hub.live_dropped >= 190
    harness.send(a, "chat", id="logged")
    assert slow.ids[-1] == "logged"
    # What is logged has the whole outbox, beside the parts that are unsent.
    assert slow.limit == limits["outbox_bytes"] + room
    assert slow.closed is None


@pytest.mark.rule("G-82", "G-47")
def test_what_is_kept_of_live_parts_within_a_tick_is_bounded() -> None:
    harness = PodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    part = b'{"protocol":"mcpp/v0.1","id":"%d","ts":"2026-01-01T00:00:00Z","from":"a",'
    for number in range(100):
        text = part % number + b'"kind":"live/text","payload":{"text":"' + b"x" * 4_000 + b'"}}'
        harness.hub.receive(a.peer, text, harness.now)
    harness.tick()
    size = sum(len(each) for each in b.texts if b"live/text" in each)
    assert LIVE_BYTES // 2 < size <= LIVE_BYTES


@pytest.mark.rule("G-82", "G-68")
def test_a_crowded_pod_has_less_room_for_unsent_live_parts() -> None:
    limits = {**FREE, "pod_outbox_bytes": 1 << 24}
    harness = PodHarness("a", multiple=["a"], limits=limits)
    harness.join("a")
    alone = live_room(harness.pod)
    for _ in range(63):
        harness.join("a")
    assert alone == LIVE_BYTES
    assert live_room(harness.pod) * 64 <= limits["pod_outbox_bytes"] // 8


@pytest.mark.rule("G-83")
def test_a_part_of_another_gateway_is_relayed_where_its_context_is_live() -> None:
    harness = ClusterPodHarness("a", "b")
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, context={"id": "c", "type": "t"})
    there = harness._gateways["there"]
    here = harness._gateways["here"]
    for id, context in (("one", "c"), ("two", "unknown")):
        text = (
            f'{{"protocol":"mcpp/v0.1","id":"{id}","ts":"2026-01-01T00:00:00Z","from":"z",'
            f'"kind":"live/text","context":{{"id":"{context}"}},"payload":{{}}}}'
        ).encode()
        effect = here.relay(text, harness.now)
        harness.perform([] if effect is None else [effect])
    assert here.relay(b"{}", harness.now) is None
    assert parts(a) == parts(b) == ["one"]
    assert there.journal.end == here.journal.end
