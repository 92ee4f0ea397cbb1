"""Many expiries and many presences at once: told together, bounded a tick, nothing left out."""

import json
from typing import Any

import pytest

from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import read_context_change
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings, PodCore
from mcpp_gateway.core.records import Batch, State, decode_batch, encode_batch
from tests.gateway.harness import FREE, HubHarness, ManualLoop, PodHarness

MANY = 2000
NAMES = tuple(f"p{number}" for number in range(60))


def fill(harness: PodHarness, senders: int = 4) -> None:
    """Open many contexts, each with long names and several senders."""
    clients = [harness.join(f"p{number}") for number in range(senders)]
    for number in range(MANY):
        context = {"id": f"{'c' * 100}-{number}", "type": "t" * 100}
        for client in clients[: 1 + number % senders]:
            harness.send(client, context=context)


@pytest.mark.rule("C-18", "C-11", "C-10")
def test_contexts_that_expire_together_are_told_together_bit_by_bit_and_all_of_them() -> None:
    limits = {**FREE, "max_contexts_per_participant": MANY, "max_contexts_per_pod": MANY}
    harness = PodHarness(*NAMES, "reader", limits=limits)
    reader = harness.join("reader")
    fill(harness)
    reader.texts.clear()
    harness.now += 1000
    ticks = 0
    while harness.pod.has_expiries or not ticks:
        before = sum(map(len, reader.texts))
        harness.tick()
        assert sum(map(len, reader.texts)) - before < 100_000
        ticks += 1
    assert 5 < ticks < 50
    assert len(reader.texts) == ticks
    told = [read_context_change(decode(each)) for each in reader.texts]
    ids = [info.id for change in told if change is not None for info in change.contexts]
    assert sorted(ids) == sorted(f"{'c' * 100}-{number}" for number in range(MANY))
    assert harness.pod.expired == MANY
    first = reader.seen[0]["payload"]["contexts"][1]
    assert first["messages"] == len(first["participants"]) == 2
    assert first.keys() == {"id", "type", "creator", "messages", "participants", "started", "last"}


def presences(envelopes: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return who joined and left, one by one."""
    found = []
    for each in envelopes:
        if each["kind"] == "system/presence":
            payload = each["payload"]
            for entry in payload.get("entries", [payload]):
                found.append((entry["event"], entry["participant"]["id"]))
    return found


@pytest.mark.rule("G-64", "G-33", "G-14")
def test_a_storm_of_joins_and_leaves_is_told_in_few_envelopes_with_nothing_left_out() -> None:
    loop = ManualLoop()
    harness = HubHarness(loop, "watcher", *NAMES)
    watcher = harness.join("watcher")
    expected = []
    peers = {}
    for _ in range(5):
        for name in NAMES:
            peers[name] = harness.join(name)
            expected.append(("join", name))
        for name in NAMES:
            harness.hub.leave(harness.peers[peers[name]])
            expected.append(("leave", name))
    harness.now += 1
    harness.hub.perform_all(harness.pod.tick(harness.now))
    harness.hub.flush()
    seen = [json.loads(each) for each in watcher.texts]
    assert presences(seen) == expected
    assert sum(each["kind"] == "system/presence" for each in seen) < 25
    loop.close()


@pytest.mark.rule("G-64", "G-14", "G-18")
def test_who_joins_in_a_storm_misses_nothing_and_does_not_hear_of_itself() -> None:
    loop = ManualLoop()
    harness = HubHarness(loop, "watcher", *NAMES)
    watcher = harness.join("watcher")
    joined = {name: harness.join(name) for name in NAMES}
    last = NAMES[-1]
    assert not harness.peers[joined[last]].session.member.announced
    harness.send(watcher, "before")
    harness.send(joined[last], "first")  # its join comes before what it sends
    harness.send(watcher, "after")
    for _ in range(5):
        loop.turn()
    harness.hub.flush()
    kinds = [json.loads(each) for each in watcher.texts]
    assert presences(kinds) == [("join", name) for name in NAMES]
    order = [each["id"] for each in kinds if each["kind"] == "chat"]
    assert order == ["before", "first", "after"]
    position = [each["id"] for each in kinds].index("first")
    assert ("join", last) in presences(kinds[:position])
    for name, transport in joined.items():
        envelopes = [json.loads(each) for each in transport.texts]
        assert envelopes[0]["kind"] == "system/welcome"
        assert name not in [who for _, who in presences(envelopes)]
        # Everyone who joined later than this participant was told to it, in the welcome or after.
        known = {each["id"] for each in envelopes[0]["payload"]["participants"]}
        assert known | {who for _, who in presences(envelopes)} == {"watcher", *NAMES}
        assert [each["id"] for each in envelopes if each["kind"] == "chat"] == order
    loop.close()


@pytest.mark.rule("G-64", "G-51")
def test_presence_of_several_is_kept_and_read_again_after_a_restart() -> None:
    loop = ManualLoop()
    harness = HubHarness(loop, *NAMES)
    for name in NAMES:
        harness.join(name)
    harness.pod.announce(harness.now)
    loop.close()
    entries = harness.pod.journal.read(0, 1000)
    assert max(len(entry.about) for entry in entries) > 1
    batch = decode_batch(encode_batch(Batch(1, 0, 0, 1000.0, entries)))
    assert [entry.about for entry in batch.entries] == [entry.about for entry in entries]
    settings = [ParticipantSettings(name, Capabilities([])) for name in NAMES]
    pod = PodCore("test", settings, PodLimits(), new_id=lambda: "x")
    pod.restore(State("e", 1, 0, 0, 0.0), [batch], rejoin_until=2000.0)
    assert set(pod.participants) == set(NAMES)


@pytest.mark.rule("G-64")
def test_one_join_is_told_at_once_and_in_the_short_form() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.join("b")
    assert a.last["payload"]["event"] == "join"
    assert a.last["payload"]["participant"]["id"] == "b"
