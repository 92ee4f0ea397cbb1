"""The hub: one batch per tick, with direct texts in their places."""

import json
from collections.abc import Iterator

import pytest

from mcpp import filters
from mcpp_gateway.edge.hub import CATCH_UP_BYTES
from tests.gateway.harness import HubHarness, ManualLoop, RecordingTransport


def ids(client: RecordingTransport) -> list[str]:
    envelopes = [json.loads(each) for each in client.texts]
    return [each.get("correlation_id", each["id"]) for each in envelopes]


def own(client: RecordingTransport) -> list[str]:
    return [id for id in ids(client) if not id.startswith("sys")]


@pytest.fixture
def loop() -> Iterator[ManualLoop]:
    loop = ManualLoop()
    yield loop
    loop.close()


@pytest.mark.rule("G-18", "G-40")
def test_a_tick_is_one_write_and_the_same_bytes_for_everyone_with_the_same_filter(
    loop: ManualLoop,
) -> None:
    harness = HubHarness(loop, "a", "b", "c")
    a, b, c = harness.join("a"), harness.join("b"), harness.join("c")
    loop.turn()
    before = [len(client.writes) for client in (a, b, c)]
    for i in range(50):
        harness.send(a, f"{i}")
    loop.turn()
    assert [len(client.writes) for client in (a, b, c)] == [count + 1 for count in before]
    assert a.writes[-1] is b.writes[-1] is c.writes[-1]
    assert own(b) == [f"{i}" for i in range(50)]


@pytest.mark.rule("G-44", "G-80")
def test_the_bytes_that_are_written_are_counted(loop: ManualLoop) -> None:
    harness = HubHarness(loop, "a", "b", "c")
    a, b, c = harness.join("a"), harness.join("b"), harness.join("c")
    loop.turn()
    traffic = harness.hub.traffic[harness.pod]
    counted, written = traffic.sent_bytes, [len(client.writes) for client in (a, b, c)]
    for sender in (a, b):
        harness.send(sender, "part", "live/text")
        harness.send(sender, "bad", "system/x")
        harness.send(sender, "same")
    loop.turn()
    new = [client.writes[count:] for client, count in zip((a, b, c), written, strict=True)]
    assert traffic.sent_bytes - counted == sum(len(data) for writes in new for data in writes)


def with_a_refusal(
    loop: ManualLoop,
) -> tuple[HubHarness, RecordingTransport, RecordingTransport]:
    """Return a pod in whose current tick @a has sent an envelope and @b one that is refused."""
    harness = HubHarness(loop, "a", "b")
    a, b = harness.join("a"), harness.join("b")
    loop.turn()
    harness.send(a, "1")
    harness.send(b, "bad", "system/x")
    return harness, a, b


@pytest.mark.rule("G-30", "G-17")
def test_direct_texts_are_inserted_where_they_were_caused(loop: ManualLoop) -> None:
    harness, a, b = with_a_refusal(loop)
    harness.send(a, "2")
    harness.send(b, "2")
    harness.send(a, "3")
    harness.send(b, "ask", "pod/filter", payload={"filter": {"kind": "rare"}})
    harness.send(a, "4")
    harness.send(a, "5", "rare")
    harness.send(b, "ask2", "pod/filter", payload={"filter": {"all": []}})
    harness.send(a, "6")
    loop.turn()
    harness.send(a, "7")
    loop.turn()
    assert own(b) == ["1", "bad", "2", "2", "3", "ask", "5", "ask2", "6", "7"]
    assert own(a) == ["1", "2", "3", "4", "5", "6", "7"]


@pytest.mark.rule("F-09")
def test_extra_recipients_get_envelopes_in_their_order(
    loop: ManualLoop,
) -> None:
    harness = HubHarness(loop, "a", "b")
    a, b = harness.join("a"), harness.join("b", filter=filters.kind("rare"))
    loop.turn()
    for i in range(12):
        kind = "rare" if i % 3 == 0 else "often"
        harness.send(a, str(i), kind, **({"to": ["b"]} if i % 3 == 1 else {}))
    loop.turn()
    assert own(b) == [str(i) for i in range(12) if i % 3 != 2]


@pytest.mark.rule("G-18")
def test_a_connection_that_comes_in_the_middle_of_a_tick_gets_the_rest_of_it(
    loop: ManualLoop,
) -> None:
    harness = HubHarness(loop, "a", "b")
    a = harness.join("a")
    loop.turn()
    harness.send(a, "1")
    b = harness.join("b")
    harness.send(a, "2")
    loop.turn()
    assert own(b) == ["2"]
    assert own(a) == ["1", "2"]


@pytest.mark.rule("G-34")
def test_a_replaced_connection_first_gets_what_it_was_owed(loop: ManualLoop) -> None:
    harness = HubHarness(loop, "a", "b")
    a, b = harness.join("a"), harness.join("b")
    loop.turn()
    harness.send(a, "1")
    newer = harness.join("b", last=1)
    harness.send(a, "2")
    loop.turn()
    assert b.closed == 4500
    assert own(b) == ["1"]
    assert own(newer) == ["1", "2"]


@pytest.mark.rule("G-38", "G-31")
def test_a_stopped_reader_is_closed_and_the_others_notice_only_that_it_left(
    loop: ManualLoop,
) -> None:
    harness = HubHarness(loop, "a", "b", "c", outbox_bytes=5000)
    a, b, c = harness.join("a"), harness.join("b"), harness.join("c")
    loop.turn()
    b.reads = False
    for i in range(20):
        harness.send(a, str(i), payload="x" * 500)
        loop.turn()
    loop.turn()
    assert b.closed == 4001
    assert own(a) == own(c) == [str(i) for i in range(20)]
    assert harness.pod.participants == ("a", "c")
    missed = own(b)
    again = harness.join("b", after=missed[-1])
    assert missed + own(again) == own(a)


@pytest.mark.rule("G-38", "G-15")
def test_a_reader_that_stops_at_the_end_of_its_replay_does_not_go_live_on_a_full_connection(
    loop: ManualLoop,
) -> None:
    harness = HubHarness(loop, "a", "b", outbox_bytes=200_000)
    a = harness.join("a")
    for i in range(10):
        harness.send(a, str(i), payload="x" * 7000)
    loop.turn()
    b = harness.join("b", last=20, reads=False)
    loop.turn()
    assert b.full
    for i in range(200):
        harness.send(a, f"later{i}", payload="x" * 7000)
        loop.turn()
    # It is still behind: what it has not read waits in the log and not in its outbox.
    assert b.waiting < CATCH_UP_BYTES + 8000
    while b.full:
        harness.drain(b)
        loop.turn()
    b.reads = True
    harness.send(a, "end")
    loop.turn()
    assert own(b) == own(a)


@pytest.mark.rule("G-15")
def test_a_resumption_catches_up_however_busy_the_gateway_is(loop: ManualLoop) -> None:
    harness = HubHarness(loop, "a", "b", history_messages=200)
    a = harness.join("a")
    harness.send(a, "first")

    def tick(number: int) -> None:
        for i in range(40):
            harness.send(a, f"{number}-{i}", payload="x" * 7000)
        harness.quota.read_bytes += 40 * 7200  # as connections do
        loop.turn()

    for number in range(4):
        tick(number)
    b = harness.join("b", after="first")
    for number in range(4, 20):
        tick(number)
    assert b.closed is None
    wanted = [f"{number}-{i}" for number in range(20) for i in range(40)]
    assert [id for id in ids(b) if "-" in id and not id.startswith("sys")] == wanted


def join_behind(harness: HubHarness) -> tuple[RecordingTransport, RecordingTransport]:
    """Join @a, which sends 140 kB, and @b, which asks for it and reads nothing."""
    a = harness.join("a")
    for i in range(20):
        harness.send(a, str(i), payload="x" * 7000)
    return a, harness.join("b", last=20, reads=False)


@pytest.mark.rule("G-15", "G-33")
def test_a_connection_that_fell_behind_the_log_is_closed_and_leaves(loop: ManualLoop) -> None:
    harness = HubHarness(loop, "a", "b", history_messages=20)
    a, b = join_behind(harness)
    loop.turn()
    for i in range(100):
        harness.send(a, f"later{i}")
    harness.drain(b)
    loop.turn()
    assert b.closed == 4002
    assert harness.pod.participants == ("a",)


@pytest.mark.rule("G-39", "G-33")
def test_a_client_that_only_sends_while_behind_is_closed_and_leaves(loop: ManualLoop) -> None:
    harness = HubHarness(loop, "a", "b", outbox_bytes=5000)
    _, b = join_behind(harness)
    for i in range(1000):
        if b.closed is None:
            harness.send(b, f"bad{i}", "system/x")
    assert b.closed == 4001
    assert harness.pod.participants == ("a",)


@pytest.mark.rule("G-38", "G-47")
def test_short_repetitions_of_a_long_envelope_do_not_pile_up_within_a_tick(
    loop: ManualLoop,
) -> None:
    harness = HubHarness(loop, "a", "b", outbox_bytes=4_000_000)
    a, b = harness.join("a"), harness.join("b")
    harness.send(a, "long", payload="x" * 1_000_000)
    loop.turn()
    for _ in range(400):
        harness.send(a, "long")
    loop.turn()
    loop.turn()
    assert sum(map(len, a.writes)) < 6_000_000
    assert a.closed == 4001
    assert own(b) == ["long"]


@pytest.mark.rule("G-35")
def test_several_connections_of_one_participant_keep_their_own_filters(loop: ManualLoop) -> None:
    harness = HubHarness(loop, "a", "many")
    a = harness.join("a")
    one, two = harness.join("many"), harness.join("many", filter=filters.kind("rare"))
    loop.turn()
    harness.send(a, "1")
    harness.send(one, "2")
    harness.send(a, "3", "rare")
    loop.turn()
    assert own(one) == ["1", "2", "3"]
    assert own(two) == ["2", "3"]


def test_a_lost_connection_is_owed_nothing(loop: ManualLoop) -> None:
    harness, a, b = with_a_refusal(loop)
    harness.hub.leave(harness.peers[b])
    count = len(b.writes)
    loop.turn()
    assert len(b.writes) == count
    assert own(a) == ["1"]
