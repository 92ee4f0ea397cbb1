"""Chats that follow each other without a person are stopped after `max_hops`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.contexts.hops import Hops
from mcpp_gateway.core.pod import ParticipantSettings
from tests.gateway.cluster.harness import ClusterPodHarness, FollowingPodHarness
from tests.gateway.harness import FREE, HarnessClient, PodHarness

EVERY_POD = pytest.mark.parametrize(
    "harness_type", [PodHarness, ClusterPodHarness, FollowingPodHarness]
)
HarnessType = Callable[..., PodHarness]
NAMES = ("anna", "bot", "bat")


def pod_with_people(
    harness_type: HarnessType, people: Iterable[str] = ("anna",), **limits: Any
) -> tuple[PodHarness, dict[str, HarnessClient]]:
    harness = harness_type(*NAMES, limits={**FREE, "max_hops": 4, **limits})
    set_people(harness, people)
    return harness, {name: harness.join(name) for name in NAMES}


def set_people(harness: PodHarness, people: Iterable[str]) -> None:
    everything, persons = Capabilities([{"kind": "*"}]), set(people)
    wanted = [ParticipantSettings(id, everything, person=id in persons) for id in NAMES]
    harness.perform(harness.pod.reconfigure(wanted, harness.now))
    for other in getattr(harness, "_gateways", {}).values():
        other.reconfigure(wanted, harness.now)


def loops(client: HarnessClient) -> list[dict[str, Any]]:
    return [each["payload"] for each in client.seen if each["kind"] == "system/loop"]


@EVERY_POD
@pytest.mark.rule("G-84", "G-85")
def test_two_agents_that_answer_each_other_are_stopped_until_a_person_joins_in(
    harness_type: HarnessType,
) -> None:
    harness, clients = pod_with_people(harness_type)
    last = harness.send(clients["anna"], id="hello")
    for number in range(6):
        name = ("bot", "bat")[number % 2]
        last = harness.send(clients[name], correlation_id=last, id=f"answer-{number}")
        if clients[name].errors:
            break
    assert number == 4
    refused = clients["bot"].last
    assert refused["payload"]["error"] == "loop_suspected"
    assert refused["correlation_id"] == "answer-4"
    assert [loops(client) for client in clients.values()] == [
        [{"participant": "bot", "hops": 5}]
    ] * 3
    # A second attempt is refused, too, and not announced again.
    harness.send(clients["bot"], correlation_id="answer-3")
    assert clients["bot"].errors == ["loop_suspected"] * 2
    assert len(loops(clients["anna"])) == 1
    go_on = harness.send(clients["anna"], correlation_id="answer-3")
    harness.send(clients["bot"], correlation_id=go_on, id="again")
    assert clients["bat"].ids[-1] == "again"


@EVERY_POD
@pytest.mark.rule("G-84")
def test_chats_that_answer_nothing_count_in_their_context(harness_type: HarnessType) -> None:
    harness, clients = pod_with_people(harness_type)
    here: dict[str, Any] = {"context": {"id": "c", "type": "task"}}
    for _ in range(4):
        harness.send(clients["bot"])
        harness.send(clients["bat"], **here, correlation_id="unknown")
    assert clients["bot"].errors == clients["bat"].errors == []
    harness.send(clients["bot"])
    harness.send(clients["bat"], **here)
    assert clients["bot"].errors == clients["bat"].errors == ["loop_suspected"]
    assert loops(clients["anna"])[1]["context"] == {"id": "c", "type": "task"}
    harness.send(clients["anna"])
    harness.send(clients["bot"])
    harness.send(clients["bat"], **here)
    assert len(clients["bot"].errors) == 1
    assert len(clients["bat"].errors) == 2


@EVERY_POD
@pytest.mark.rule("G-84")
def test_answering_the_same_chat_over_and_over_is_a_loop(harness_type: HarnessType) -> None:
    harness, clients = pod_with_people(harness_type)
    root = harness.send(clients["anna"])
    for _ in range(5):
        harness.send(clients["bot"], correlation_id=root)
    harness.send(clients["bat"], correlation_id=root)
    assert clients["bot"].errors == ["loop_suspected"]
    assert clients["bat"].errors == []


@EVERY_POD
@pytest.mark.rule("G-84")
def test_only_chats_count_and_only_in_pods_with_a_person(harness_type: HarnessType) -> None:
    harness, clients = pod_with_people(harness_type)
    for kind in ("mcp/notification:notifications/progress", "reflection", "live/text"):
        for _ in range(10):
            harness.send(clients["bot"], kind)
    for _ in range(10):
        harness.send(clients["anna"])
    assert clients["bot"].errors == clients["anna"].errors == []
    for people, max_hops in (((), 4), (("anna",), 0)):
        harness, clients = pod_with_people(harness_type, people, max_hops=max_hops)
        for _ in range(10):
            harness.send(clients["bot"])
        assert clients["bot"].errors == []


@EVERY_POD
@pytest.mark.rule("G-84", "G-20", "G-27")
def test_a_repeated_chat_is_echoed_and_a_loop_comes_before_the_checks_of_contexts(
    harness_type: HarnessType,
) -> None:
    harness, clients = pod_with_people(harness_type)
    for number in range(4):
        harness.send(clients["bot"], id=f"n-{number}", context={"id": "c"})
    harness.send(clients["bot"], id="n-3", context={"id": "c"})
    assert clients["bot"].last["id"] == "n-3"
    harness.send(clients["bot"], context={"id": "c", "parent": "c"})
    assert clients["bot"].errors == ["loop_suspected"]
    assert next(iter(harness.pod.tree)).messages == 4


@EVERY_POD
@pytest.mark.rule("G-84")
def test_a_person_who_is_configured_later_finds_the_chats_counted(
    harness_type: HarnessType,
) -> None:
    harness, clients = pod_with_people(harness_type, ())
    for _ in range(10):
        harness.send(clients["bot"])
    assert clients["bot"].errors == []
    set_people(harness, ["anna"])
    harness.send(clients["bot"])
    assert clients["bot"].errors == ["loop_suspected"]
    set_people(harness, [])
    harness.send(clients["bot"])
    assert len(clients["bot"].errors) == 1


@pytest.mark.rule("G-84", "G-51")
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_hops_read_from_the_log_are_those_that_were_counted(data: st.DataObject) -> None:
    harness, clients = pod_with_people(PodHarness)
    ids: list[str | None] = [None]
    for _ in range(data.draw(st.integers(1, 30))):
        members: dict[str, Any] = {}
        answered, context = data.draw(st.sampled_from(ids)), data.draw(st.sampled_from([None, "c"]))
        if answered is not None:
            members["correlation_id"] = answered
        if context is not None:
            members["context"] = {"id": context}
        ids.append(harness.send(clients[data.draw(st.sampled_from(NAMES))], **members))
    counted = harness.pod._decisions.hops
    assert counted is not None
    read = Hops(4, harness.pod.members.is_person)
    read.read(harness.pod.journal)
    for name in Hops.__slots__:
        if name not in ("_is_person", "max_hops"):
            assert getattr(read, name) == getattr(counted, name), name


@pytest.mark.rule("G-84", "G-47")
def test_what_is_remembered_of_chats_is_bounded() -> None:
    harness, clients = pod_with_people(PodHarness, max_hops=1_000_000, history_messages=100)
    for number in range(10_100):
        harness.send(clients["bot"], id=f"n-{number}", context={"id": f"c-{number % 50}"})
    hops = harness.pod._decisions.hops
    assert hops is not None
    assert len(hops._chats) == 10_000
