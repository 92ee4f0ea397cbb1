"""The pure parts of the cluster, one by one."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from mcpp.filters import parse
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.cluster.leading.leader import Leader
from mcpp_gateway.core.cluster.leading.leadership import Fence, Silence, StreamFence, ranking
from mcpp_gateway.core.cluster.messages import (
    JOIN,
    SEND,
    Beat,
    Command,
    Forward,
    PodBeat,
    RelayedParts,
    decode_beat,
    decode_forward,
    decode_live,
    encode,
)
from mcpp_gateway.core.cluster.ordering import Ordering
from mcpp_gateway.core.cluster.records import (
    ANSWER,
    VERSION,
    Claim,
    ClusterBatch,
    ClusterState,
    Note,
    Record,
    SessionState,
    decode_cluster_state,
    decode_record,
    encode_cluster_state,
    encode_record,
)
from mcpp_gateway.core.effects import LOG_UNREACHABLE, REPLACED
from mcpp_gateway.core.joining.grants import (
    GrantedSettings,
    decode_grant,
    encode_grant,
    have_equal_rights,
)
from mcpp_gateway.core.limits import ParticipantLimits
from mcpp_gateway.core.records import Batch, LogEntry, State
from mcpp_gateway.core.sessions import ParticipantSettings
from tests.gateway.cluster.simulation import SimClient, SimGateway, World, check_settled
from tests.gateway.harness import text

VECTORS = Path(__file__).parent / "vectors"


def batch(term: int, index: int) -> Batch:
    return Batch(term, index, 0, 0.0, [])


def settled_world() -> World:
    world = World(Random(1))
    world.run(2.0)
    return world


def leader(world: World) -> SimGateway:
    return next(each for each in world.gateways.values() if each.pod.is_leader)


def follower(world: World) -> SimGateway:
    return next(each for each in world.gateways.values() if not each.pod.is_leader)


def client_at_leader(world: World) -> tuple[SimClient, SimGateway, Leader]:
    """Connect a client to the gateway that leads; return both, and what decides there."""
    client, leads = world.clients["a"], leader(world)
    client.lose_connection()
    world.run(1.0)
    client.connect(leads)
    world.run(1.0)
    deciding = leads.pod.delegation.leader
    assert deciding is not None
    return client, leads, deciding


@pytest.mark.rule("N-01")
def test_a_batch_counts_only_with_the_term_of_the_last_claim_and_the_next_index() -> None:
    fence = Fence()
    assert fence.admits_claim(Claim(1, "a", 0.0, "e"))
    assert fence.admits(batch(1, 0))
    assert not fence.admits(batch(1, 0))  # repeated
    assert not fence.admits(batch(1, 2))  # one before it was lost
    assert not fence.admits_claim(Claim(1, "b", 0.0, "e"))  # the first claim of a term counts
    assert fence.admits_claim(Claim(2, "b", 0.0, "e"))
    assert not fence.admits(batch(1, 1))  # of the leader that was replaced
    assert fence.admits(batch(2, 1))
    assert fence.leader == "b"


@pytest.mark.rule("N-11", "N-14")
def test_a_stream_without_its_beginning_is_not_judged_by_records_that_it_has_lost() -> None:
    first = 5
    log: list[ClusterBatch | Claim] = [
        ClusterBatch(batch(3, 9), applied=20, expected=9),  # void: nine is the lost log's index
        Claim(4, "a", 0.0, "", applied=5),
        ClusterBatch(batch(4, 2), applied=6, expected=2),
        ClusterBatch(batch(4, 3), applied=7, expected=3),
    ]
    fence = StreamFence(first)
    found = [each for at, record in enumerate(log, first) for each in fence.take(at, record)]
    assert found == log[2:]


@pytest.mark.rule("N-05")
def test_a_gateway_that_was_suspended_suspects_nobody() -> None:
    silence = Silence()
    silence.advance(0.0)
    silence.hear("other")
    silence.advance(1000.0)
    assert silence.seconds("other") < 1.0
    for step in range(20):
        silence.advance(1000.0 + step / 10)
    assert silence.seconds("other") > 1.0


@pytest.mark.rule("N-05")
@pytest.mark.parametrize("is_healed", [False, True])
def test_a_gateway_that_missed_its_own_claim_does_not_stop_the_pod(is_healed: bool) -> None:
    world = settled_world()
    deaf, other = follower(world), leader(world)
    deaf.is_deaf = True
    for _ in range(300):  # it hears no beats, so it claims, and does not learn that it leads
        world.run(0.01)
        if other.pod.replica.fence.leader == deaf.name:
            break
    assert other.pod.replica.fence.leader == deaf.name
    deaf.is_deaf = not is_healed
    client = world.clients["a"]
    client.connect(other)
    client.send("plain")
    world.run(2.0)
    assert not client.unsettled
    world.heal()
    assert check_settled(world) == []


def test_pods_prefer_different_leaders() -> None:
    gateways = ["a", "b", "c"]
    first = {ranking(f"pod{number}", gateways)[0] for number in range(20)}
    assert first == set(gateways)


def test_records_are_ordered_by_their_sequence_numbers() -> None:
    ordering = Ordering(1)
    arrived = [3, 1, 1, 2, 5, 3, 4]
    found = [each for number in arrived for each, _ in ordering.add(number, b"")]
    assert found == [1, 2, 3, 4, 5]
    assert not ordering.is_missing
    ordering.expect(7)
    assert ordering.is_missing
    assert [each for each, _ in ordering.skip(7)] == []
    assert ordering.next == 7


@pytest.mark.rule("N-14")
def test_a_record_that_comes_again_is_told_from_another_one_at_its_place() -> None:
    ordering = Ordering(1)
    assert ordering.is_repeat(1, b"1") is None
    for number in range(1, 10_001):
        list(ordering.add(number, b"%d" % number))
    assert ordering.is_repeat(10_000, b"10000") is True
    assert ordering.is_repeat(10_000 - 4095, b"another") is False
    assert ordering.is_repeat(10_000 - 4096, b"another") is None  # too long ago


@pytest.mark.rule("N-01", "N-03")
@pytest.mark.parametrize("flavours", [["chat", "context"], ["chat", "forged", "chat"]])
def test_a_leader_applies_its_own_texts_at_once_as_others_do_one_by_one(
    flavours: list[str],
) -> None:
    world = settled_world()
    follows = follower(world)
    client, leads, deciding = client_at_leader(world)
    for flavour in flavours:
        client.send(flavour)
    world.run(0.0)
    assert [each.is_plain for each in deciding.in_flight] == [True]
    assert len(leads.pod.delegation.outgoing) == flavours.count("chat") + flavours.count("context")
    world.run(1.0)
    assert not leads.pod.delegation.outgoing
    assert leads.pod.delegation.outgoing.waiting_bytes == 0
    # The outcomes came in the order of the texts, direct answers among them (G-30).
    assert (client.unsettled, client.problems) == ([], [])
    journals = [each.pod.replica.journal for each in (leads, follows)]
    found = [[entry.id for entry in each.read(each.start, 1000)] for each in journals]
    assert found[0] == found[1]
    assert [each.find("a-1") is not None for each in journals] == [True, True]
    check_settled(world)


@pytest.mark.parametrize(("flavour", "on_their_way"), [("chat", 3), ("long", 1)])
def test_what_waits_behind_a_large_record_shares_the_next_one(
    flavour: str, on_their_way: int
) -> None:
    world = settled_world()
    client, _, deciding = client_at_leader(world)
    for _ in range(3):
        client.send(flavour)
        world.run(0.0)  # the end of the tick
    assert len(deciding.in_flight) == on_their_way
    world.run(1.0)
    assert (len(deciding.in_flight), deciding.in_flight_bytes) == (0, 0)
    assert (client.unsettled, client.problems) == ([], [])


@pytest.mark.rule("N-09")
def test_a_leader_that_stops_does_not_name_a_gateway_of_an_older_version() -> None:
    world = settled_world()
    stopping = leader(world)
    others = [each for each in world.gateways.values() if each is not stopping]
    named = ranking("pod", [each.name for each in others])
    stopping.silence.hear(named[0], may_lead=False)
    assert not stopping.pod.delegation.hand_over(stopping.clock())
    world.run(0.05)
    assert stopping.pod.leader == named[1]


@pytest.mark.rule("N-06")
def test_a_join_that_was_withdrawn_does_not_replace_a_newer_connection() -> None:
    world = settled_world()
    cut, other = follower(world), leader(world)
    client = world.clients["a"]
    cut.is_cut = True
    client.connect(cut)
    world.run(0.3)
    client.lose_connection()
    client.connect(other)
    world.run(0.3)
    assert client.welcomed
    world.heal()
    world.run(3.0)
    assert REPLACED not in client.closes
    assert check_settled(world) == []


@pytest.mark.rule("N-06")
def test_a_gateway_that_was_suspended_first_finds_out_which_connections_have_ended() -> None:
    world = settled_world()
    suspended, other = follower(world), leader(world)
    late, client = SimClient(world, "a"), world.clients["a"]
    suspended.pause()
    late.connect(suspended)
    client.connect(other)
    world.run(3.0)
    assert client.welcomed
    # The join waited in the socket; that the connection has ended comes a little later.
    suspended.call(lambda: suspended.pod.delegation.hold(suspended.clock() + 0.3))
    suspended.resume()
    world.run(0.05)
    late.lose_connection()
    world.run(2.0)
    assert REPLACED not in client.closes
    assert client.gateway is other


@pytest.mark.rule("N-06")
def test_a_join_that_is_delayed_on_the_network_does_not_replace_a_newer_connection() -> None:
    world = settled_world()
    first, second = (each for each in world.gateways.values() if not each.pod.is_leader)
    delayed: list[tuple[str, bytes]] = []
    first.forward = lambda gateway, message: delayed.append((gateway, message))  # type: ignore[method-assign]
    late, client = SimClient(world, "a"), world.clients["a"]
    late.connect(first)
    world.run(0.2)
    late.lose_connection()
    client.connect(second)
    world.run(0.2)
    assert client.welcomed
    for gateway, message in delayed:
        world.forward(first, gateway, message)
    world.run(2.0)
    assert REPLACED not in client.closes
    assert "a" in first.pod.participants


@pytest.mark.rule("N-06", "G-34")
def test_a_connection_replaces_one_that_its_gateway_did_not_know_of() -> None:
    world = settled_world()
    first, second = (each for each in world.gateways.values() if not each.pod.is_leader)
    old, new = SimClient(world, "a"), world.clients["a"]
    second.is_deaf = True  # so that it does not see the other session join
    old.connect(first)
    world.run(0.2)
    assert old.welcomed
    new.connect(second)
    second.is_deaf = False
    world.run(2.0)
    assert REPLACED in old.closes
    assert new.welcomed


@pytest.mark.rule("N-06", "G-34", "G-52")
def test_a_connection_at_another_gateway_replaces_the_older_one() -> None:
    world = settled_world()
    first, second = list(world.gateways.values())[:2]
    client = world.clients["a"]
    client.connect(first)
    world.run(0.5)
    peer = client._peer
    client.gateway = None
    client._connection += 1
    client.connect(second)
    world.run(0.5)
    assert client.welcomed
    assert peer is not None
    assert peer.closed
    assert second.pod.replica.roster.sessions_of("a") == ((f"{second.name}/0", 1),)


@pytest.mark.rule("N-07")
def test_a_gateway_that_was_given_up_closes_its_sessions_and_begins_again() -> None:
    world = settled_world()
    cut = follower(world)
    client = world.clients["a"]
    client.connect(cut)
    world.run(0.5)
    cut.is_cut = True
    world.run(5.0)
    assert "a" in leader(world).pod.participants  # it may still come back
    world.heal()
    world.run(1.0)
    assert client.closes == [LOG_UNREACHABLE]
    assert cut.pod.delegation.origin == f"{cut.name}/1"
    world.run(6.0)
    assert "a" not in leader(world).pod.participants
    assert check_settled(world) == []


@pytest.mark.rule("N-05")
def test_a_leader_that_stops_names_its_successor() -> None:
    world = settled_world()
    stopping = leader(world)
    stopping.call(lambda: stopping.pod.stop(stopping.clock()))
    world.run(0.05)
    assert not stopping.pod.delegation.hand_over(stopping.clock())
    world.run(0.05)
    assert stopping.pod.delegation.hand_over(stopping.clock())
    assert leader(world) is not stopping


def _receive(gateway: SimGateway, client: SimClient, data: bytes) -> None:
    assert client._peer is not None
    gateway.hub.receive(client._peer, data, gateway.clock())


@pytest.mark.rule("N-03", "G-27")
@pytest.mark.parametrize("at", [leader, follower])
def test_a_repeated_envelope_is_answered_with_the_original_and_the_log_stays_small(
    at: Callable[[World], SimGateway],
) -> None:
    world = settled_world()
    gateway, client = at(world), world.clients["a"]
    client.connect(gateway)
    world.run(0.5)
    original = text("long", "a", payload="x" * 50_000)
    received: list[bytes] = []
    client.receive = received.append  # type: ignore[assignment,method-assign]
    for each in (original, text("long", "a")):
        gateway.call(partial(_receive, gateway, client, each))
        world.run(0.2)
    assert received == [original, original]
    assert len(world.log[-1]) < 200


@pytest.mark.rule("N-04")
def test_a_leader_that_was_replaced_forgets_what_is_not_committed() -> None:
    world = settled_world()
    old = leader(world)
    client = world.clients["a"]
    client.connect(old)
    world.run(0.5)
    old.is_cut = True
    client.send("context")
    world.run(0.01)
    assert len(old.pod.tree) == 1
    world.run(3.0)
    new = next(each for each in world.gateways.values() if each.pod.is_leader and each is not old)
    assert len(new.pod.tree) == 0
    client.lose_connection()
    old.is_cut = False
    world.run(0.2)
    assert check_settled(world) == []


@pytest.mark.rule("N-08")
def test_a_gateway_that_starts_goes_on_from_a_state() -> None:
    world = settled_world()
    client = world.clients["a"]
    client.connect(leader(world))
    world.run(0.5)
    for _ in range(40):
        client.send("context")
        world.run(0.05)
    assert world.states
    state = decode_cluster_state(world.states[-1])
    assert encode_cluster_state(state) == world.states[-1]
    new = world.start_gateway()
    assert new.ordering.next > state.sequence > 5
    assert new.pod.replica.journal.after("a-2") is not None  # the window's texts were read, too
    assert check_settled(world) == []


@pytest.mark.rule("N-02")
def test_commands_that_reach_a_gateway_before_it_knows_that_it_leads_are_decided() -> None:
    world = settled_world()
    old, new = leader(world), follower(world)
    for other in [each for each in world.gateways.values() if each not in (old, new)]:
        world.kill(other.name)
    new.pod.delegation.hear(Forward("other/0", [Command(1, JOIN, 1, "a")]), new.clock())
    world.kill(old.name)
    while not new.pod.is_leader:
        world.run(0.01)
    world.run(0.02)
    assert new.pod.replica.roster.sessions_of("a") == (("other/0", 1),)


@pytest.mark.rule("N-08")
def test_a_state_is_stored_in_a_quiet_pod_too() -> None:
    world = settled_world()
    world.clients["a"].connect(leader(world))
    world.run(1.0)
    world.clients["a"].send("plain")
    world.run(1.0)
    world.states.clear()
    before = len(world.log)
    leader(world).clock_offset += 3600.0
    world.run(3.0)
    assert decode_cluster_state(world.states[-1]).sequence == len(world.log) == before + 1
    leader(world).clock_offset += 3600.0
    world.run(3.0)
    assert len(world.log) == before + 1  # nothing new, so nothing to store


@pytest.mark.rule("G-16", "N-14")
def test_a_record_at_a_place_that_its_gateway_had_passed_begins_a_new_epoch_for_all() -> None:
    world = settled_world()
    before = {each.pod.epoch for each in world.gateways.values()}
    term, end = leader(world).pod.replica.fence.term, len(world.log)
    world._store(encode_record(Claim(term + 1, "ahead", 0.0, "", applied=end)), None)
    world.run(0.1)
    assert {each.pod.epoch for each in world.gateways.values()} == before
    world._store(encode_record(Claim(term + 2, "ahead", 0.0, "", applied=end + 2)), None)
    world.run(0.1)
    late = world.start_gateway()
    (after,) = {each.pod.epoch for each in world.gateways.values()}
    assert {after} != before
    assert late.pod.replica.snapshot().state.epoch == after


@pytest.mark.rule("G-16", "N-14")
def test_two_losses_of_the_same_records_begin_two_epochs() -> None:
    known, emptied = settled_world().log, list[bytes]()
    epochs: set[str] = set()
    for log in (known, emptied):
        for time in (1.0, 2.0):
            world = World(Random(1), gateways=0)
            world.log += [*log, encode_record(Claim(9, "ahead", time, "", applied=1000))]
            epochs.add(world.start_gateway().pod.epoch)
    assert len(epochs) == 4


@pytest.mark.rule("N-09")
def test_a_gateway_that_meets_a_newer_version_applies_it_and_does_not_claim() -> None:
    world = settled_world()
    old = leader(world)
    behind = follower(world)
    claim = Claim(old.pod.replica.fence.term + 1, "newer", 0.0, "", VERSION + 1)
    fields = [*msgspec.msgpack.decode(encode_record(claim)), {}, [], 0, 0, "a later version's"]
    world._store(msgspec.msgpack.encode(fields), None)
    world.run(10.0)
    assert behind.pod.outdated
    assert behind.pod.leader == "newer"
    assert not any(each.pod.is_leader for each in world.gateways.values())


@pytest.mark.rule("N-09")
def test_a_newer_record_that_cannot_be_read_keeps_a_gateway_from_claiming() -> None:
    world = settled_world()
    world._store(msgspec.msgpack.encode((VERSION, 0, "damaged")), None)
    world.run(0.1)
    assert not any(each.pod.outdated for each in world.gateways.values())
    world._store(msgspec.msgpack.encode((VERSION + 1, 0, "of another form")), None)
    world.run(0.1)
    assert all(each.pod.outdated for each in world.gateways.values())
    world.kill(leader(world).name)
    world.run(10.0)
    assert not any(each.pod.is_leader for each in world.gateways.values())


@pytest.mark.rule("N-09")
def test_a_record_of_an_unknown_kind_is_ignored() -> None:
    assert decode_record(msgspec.msgpack.encode((VERSION + 1, 77, [], {}))) is None


@pytest.mark.rule("N-09")
def test_the_recorded_records_of_version_1_can_be_read() -> None:
    entry = LogEntry("id-1", "a", ("b",), "chat", None, b"{}", time=1.5)
    note = Note(1, ANSWER, "g/0", 3, 2, "", b"{}")
    known: dict[str, Record] = {
        "batch": ClusterBatch(Batch(2, 5, 9, 1.5, [entry]), {"g/0": 3}, (note,), 1, 41, 4),
        "claim": Claim(2, "g", 1.5, "epoch"),
        "later claim": Claim(3, "g", 1.5, "epoch", applied=41),
    }
    recorded = json.loads((VECTORS / "records-1.json").read_text())
    for name, record in known.items():
        assert encode_record(record).hex() == recorded[name]
        found = decode_record(bytes.fromhex(recorded[name]))
        assert found == record


@pytest.mark.rule("N-08", "N-09")
def test_the_recorded_state_of_version_1_can_be_read() -> None:
    inner = State("epoch", 2, 5, 9, 1.5, ("a", "b"), [])
    sessions = (SessionState("g/0", 7, "a", 4),)
    heard, absent, granted = {"g/0": 3}, {"b": 1.25}, {"a": b"grant"}
    state = ClusterState(1, 41, 12, "g", inner, heard, sessions, absent, granted)
    recorded = json.loads((VECTORS / "records-1.json").read_text())
    assert encode_cluster_state(state).hex() == recorded["later state"]  # has the names' owners
    for name in ("state", "later state"):
        assert decode_cluster_state(bytes.fromhex(recorded[name])) == state


@pytest.mark.rule("N-09")
def test_the_recorded_messages_between_gateways_can_be_read() -> None:
    commands = (Command(3, JOIN, 7, "a", b"", 5, b"grant"), Command(4, SEND, 7, "", b"{}"))
    known: dict[str, tuple[Any, Callable[[bytes], object]]] = {
        "forward": (Forward("g/0", list(commands)), decode_forward),
        "live": (RelayedParts("g", [b"{}"]), decode_live),
        "beat": (
            Beat("g", {"demo": PodBeat(2, 41)}, True, "host:1", 7, 1, False, True),
            decode_beat,
        ),
    }
    recorded = json.loads((VECTORS / "messages-1.json").read_text())
    for name, (message, decode_message) in known.items():
        assert encode(message).hex() == recorded[name]
        assert decode_message(bytes.fromhex(recorded[name])) == message
        # A later version may add members at the end.
        longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(encode(message)), "more"])
        assert decode_message(longer) == message


@pytest.mark.rule("N-09", "N-13")
def test_the_recorded_grant_of_version_1_can_be_read() -> None:
    bounds = Capabilities([{"kind": "chat"}, {"kind": "note"}])
    settings = ParticipantSettings(
        "ada",
        Capabilities([{"kind": "*"}]).within(bounds),
        True,
        parse({"kind": "chat"}),
        person=True,
        limits=ParticipantLimits(burst=7),
        at_most=ParticipantLimits(messages_per_second=2.5),
    )
    recorded = json.loads((VECTORS / "records-1.json").read_text())
    known = GrantedSettings("company", settings, 9.5, 2.5, "token-1", "0123abcd")
    assert encode_grant(known).hex() == recorded["grant with a key"]
    latest = decode_grant("ada", bytes.fromhex(recorded["grant with a key"]))
    assert latest.key == "0123abcd"
    later = decode_grant("ada", bytes.fromhex(recorded["later grant"]))
    assert (later.issued, later.token_id, later.key) == (2.5, "token-1", None)
    found = decode_grant("ada", bytes.fromhex(recorded["grant"]))
    assert (found.issuer, found.until, found.token_id) == ("company", 9.5, None)
    assert have_equal_rights(found, later)
    assert have_equal_rights(found, latest)
    assert found.settings.capabilities.bounds is not None
    assert found.settings.hears == settings.hears
