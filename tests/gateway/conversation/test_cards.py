"""Cards: kept and announced by the gateway, and never read by it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from mcpp import filters
from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.cards import card_digest
from mcpp_gateway.core.joining.cards import MAX_CARDS_BYTES, Cards
from mcpp_gateway.core.pod import ParticipantSettings
from mcpp_gateway.core.records import Batch as LogBatch
from mcpp_gateway.core.records import decode_batch, decode_state, encode_batch, encode_state
from mcpp_gateway.core.system_envelopes import MAX_WELCOME_BYTES
from tests.gateway.cluster.harness import ClusterPodHarness, FollowingPodHarness
from tests.gateway.harness import FREE, HarnessClient, PodHarness

EVERY_POD = pytest.mark.parametrize(
    "harness_type", [PodHarness, ClusterPodHarness, FollowingPodHarness]
)
HarnessType = Callable[..., PodHarness]
CARD = {"description": "Finds things.", "tools": [{"name": "search"}]}
DIGEST = card_digest(json.dumps(CARD, separators=(",", ":")).encode())


def announce(harness: PodHarness, client: HarnessClient, card: Any) -> str:
    return harness.send(client, "pod/card", payload={"card": card})


def answers(client: HarnessClient) -> list[Any]:
    return [each["payload"] for each in client.seen if each["kind"] == "system/card"]


def updates(client: HarnessClient) -> list[tuple[str, str | None]]:
    found = [
        each["payload"]["participant"] for each in client.seen if each["kind"] == "system/update"
    ]
    return [(info["id"], info.get("card")) for info in found]


@EVERY_POD
@pytest.mark.rule("G-86", "G-87", "G-10", "G-33")
def test_a_card_is_kept_announced_once_and_read_by_others(harness_type: HarnessType) -> None:
    harness = harness_type("a", "b", "c")
    a, b = harness.join("a"), harness.join("b")
    request = announce(harness, a, CARD)
    assert answers(a) == [{"participant": "a", "digest": DIGEST}]
    assert (
        next(each for each in a.seen if each["kind"] == "system/card")["correlation_id"] == request
    )
    assert updates(b) == [("a", DIGEST)]
    end = harness.pod.journal.end
    announce(harness, a, CARD)
    assert harness.pod.journal.end == end
    assert len(answers(a)) == 2
    harness.send(b, "pod/card", payload={"participant": "a"})
    assert answers(b) == [{"participant": "a", "digest": DIGEST, "card": CARD}]
    c = harness.join("c")
    assert {each["id"]: each.get("card") for each in c.welcome["participants"]} == {
        "a": DIGEST,
        "b": None,
        "c": None,
    }
    # It outlives its participant's connection, whose next join is announced with it.
    harness.leave(a)
    harness.tick(60.0)
    a = harness.join("a")
    assert a.welcome["you"]["card"] == DIGEST
    joined = [each["payload"] for each in b.seen if each["kind"] == "system/presence"][-1]
    assert joined["participant"]["card"] == DIGEST
    announce(harness, a, None)
    assert updates(b)[-1] == ("a", None)
    harness.send(b, "pod/card", payload={"participant": "a"})
    assert b.errors == ["no_card"]


@EVERY_POD
@pytest.mark.rule("G-87", "G-20")
def test_what_is_not_a_card_is_refused(harness_type: HarnessType) -> None:
    harness = harness_type("a", limits={**FREE, "max_message_bytes": 1 << 20})
    a = harness.join("a")
    end = harness.pod.journal.end
    payloads: tuple[Any, ...] = (
        {"card": []},
        {"card": {"x": "y" * 65_536}},
        {},
        {"participant": 1},
        None,
        [],
    )
    for payload in payloads:
        harness.send(a, "pod/card", payload=payload)
    assert a.errors == ["invalid_card"] * 6
    text = (
        b'{"protocol":"mcpp/v0.1","id":"r","ts":"2026-01-01T00:00:00Z","from":"a",'
        b'"kind":"pod/card","payload":{"card":{},"card":{"x":1}}}'
    )
    harness.send_text(a, text)
    assert a.errors[-1] == "invalid_card"
    assert harness.pod.journal.end == end
    # What a card contains is its participant's: the gateway keeps its bytes.
    spaced = text.replace(b'"card":{},"card":{"x":1}', b'"card":{ "x" :1, "x": 2}')
    harness.send_text(a, spaced)
    assert harness.pod.members.cards.get("a") == b'{ "x" :1, "x": 2}'


@EVERY_POD
@pytest.mark.rule("G-87", "F-19")
def test_a_card_is_read_by_those_who_may_hear_its_participant(harness_type: HarnessType) -> None:
    harness = harness_type("a", "b", "guest")
    everything = Capabilities([{"kind": "*"}])
    hears = filters.parse({"not": {"from": "a"}})
    wanted = [
        ParticipantSettings("a", everything),
        ParticipantSettings("b", everything),
        ParticipantSettings("guest", Capabilities([]), False, hears),
    ]
    harness.perform(harness.pod.reconfigure(wanted, harness.now))
    a, b, guest = harness.join("a"), harness.join("b"), harness.join("guest")
    for client in (a, b, guest):
        announce(harness, client, CARD)
    for name in ("a", "b", "guest", "unknown"):
        harness.send(guest, "pod/card", payload={"participant": name})
    assert guest.errors == ["no_card", "no_card"]
    assert [each["participant"] for each in answers(guest)] == ["guest", "b", "guest"]


@EVERY_POD
@pytest.mark.rule("G-86", "G-47")
def test_the_cards_of_a_pod_are_bounded_together(harness_type: HarnessType) -> None:
    names = [f"p{number}" for number in range(70)]
    harness = harness_type(*names, limits={**FREE, "max_message_bytes": 1 << 20})
    large = {"x": "y" * 65_000}
    clients = [harness.join(name) for name in names]
    for client in clients:
        announce(harness, client, large)
    refused = [client for client in clients if client.errors == ["card_limit"]]
    assert len(refused) == 70 - MAX_CARDS_BYTES // len(json.dumps(large, separators=(",", ":")))
    announce(harness, clients[0], None)
    announce(harness, refused[0], large)
    assert refused[0].errors == ["card_limit"]


@pytest.mark.rule("G-11", "G-86")
def test_digests_count_in_the_bound_of_a_welcome() -> None:
    names = [f"participant-{number:05}-{'x' * 40}" for number in range(2_000)]
    harness = PodHarness(*names)
    for name in names[:-1]:
        harness.pod.members.cards.set(name, name.encode())
        harness.pod.members.add(name)
    client = harness.join(names[-1])
    assert len(client.texts[0]) <= MAX_WELCOME_BYTES
    assert client.welcome["more"] is True


@pytest.mark.rule("G-86", "G-51")
def test_cards_survive_in_the_log_and_in_its_states() -> None:
    harness = PodHarness("a", "b", "c")
    a, b = harness.join("a"), harness.join("b")
    announce(harness, a, CARD)
    state = harness.pod.snapshot(term=1, index=0, boot="", now=harness.now)
    position = harness.pod.journal.end
    announce(harness, a, {"description": "another"})
    announce(harness, b, CARD)
    announce(harness, b, None)
    entries = harness.pod.journal.read(position, 100)
    batch = LogBatch(1, 0, position, harness.now, entries)
    restored = PodHarness("a", "b", "c").pod
    restored.restore(decode_state(encode_state(state)), [decode_batch(encode_batch(batch))], 0.0)
    assert restored.members.cards.get("a") == b'{"description":"another"}'
    assert restored.members.cards.get("b") is None
    assert restored.members.present["a"].card == card_digest(b'{"description":"another"}')


@pytest.mark.rule("G-29", "G-47")
def test_a_log_in_memory_counts_the_cards_that_it_holds() -> None:
    limits = {**FREE, "history_messages": 1_000, "history_bytes": 1 << 20}
    harness = PodHarness("a", limits={**limits, "max_message_bytes": 1 << 20})
    a = harness.join("a")
    for number in range(60):
        announce(harness, a, {"x": f"{number:05}" + "y" * 60_000})
    journal = harness.pod.journal
    held = journal.read(journal.start, 1_000)
    assert sum(len(entry.card) for entry in held) <= 1 << 20
    for number in range(200):
        harness.send(a, id=f"n-{number}", payload={"text": "z" * 10_000})
    held = journal.read(journal.start, 1_000)
    assert sum(len(entry.text) + len(entry.card) for entry in held) <= 1 << 20


def test_a_set_of_cards_forgets_those_of_unknown_participants() -> None:
    cards = Cards()
    cards.set("a", b"{}")
    cards.set("b", b'{"x":1}')
    cards.keep(["b"])
    assert [card.participant for card in cards.snapshot()] == ["b"]
    assert cards.has_room("c", MAX_CARDS_BYTES - 7)
    assert not cards.has_room("c", MAX_CARDS_BYTES)
