"""What a participant may hear, and filters that are compiled together."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import filters
from mcpp.filters import Filter
from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.contexts import Lineage
from mcpp_gateway.core.hearing.filter_counts import FilterCounts
from mcpp_gateway.core.hearing.matcher import Matcher
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.history.erasing import Erasure, tombstone
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings
from mcpp_gateway.core.records import (
    UNKNOWN_TYPE,
    Batch,
    LogEntry,
    decode_batch,
    encode_batch,
)
from tests.gateway.harness import FREE, HarnessClient, PodHarness
from tests.properties.hearing_oracle import may_hear
from tests.properties.test_hears import GLOBS, GUESTS, IDS, KINDS, TYPES, random_filter

NO_REASONING = {"not": {"type": "reasoning"}}
ALL = Capabilities([{"kind": "*"}])


def restricted(hears: dict[str, Any], **limits: Any) -> PodHarness:
    """Return a pod in which `guest` may hear only a part."""
    harness = PodHarness("a", "b", "guest", limits={**FREE, **limits})
    settings = [
        ParticipantSettings("a", ALL),
        ParticipantSettings("b", ALL),
        ParticipantSettings("guest", ALL, False, filters.parse(hears)),
    ]
    harness.perform(harness.pod.reconfigure(settings, harness.now))
    return harness


def chats(client: HarnessClient) -> list[str]:
    return [each["id"] for each in client.seen if each["from"] != "system:gateway"]


@pytest.mark.rule("F-19", "F-09", "K-15")
def test_hears_restricts_live_delivery_and_replay_but_not_what_is_for_the_participant() -> None:
    harness = restricted(NO_REASONING)
    a, guest = harness.join("a"), harness.join("guest")
    thought = {"id": "c", "type": "reasoning"}
    harness.send(a, id="main")
    harness.send(a, id="thought", context=thought)
    harness.send(a, id="asked", to=["guest"], context=thought)
    harness.send(guest, id="own", context=thought)
    assert chats(guest) == ["main", "asked", "own"]
    for options in ({"after": "main"}, {"last": 100}):
        harness.leave(guest)
        guest = harness.join("guest", **options)
        assert chats(guest)[-2:] == ["asked", "own"]
        assert "thought" not in chats(guest)
    assert chats(a) == ["main", "thought", "asked", "own"]


@pytest.mark.rule("F-19")
def test_an_own_filter_cannot_widen_what_may_be_heard() -> None:
    harness = restricted({"main": True})
    a, guest = harness.join("a"), harness.join("guest", filter=filters.everything)
    harness.send(guest, "pod/filter", payload={"filter": {"any": [{"type": "t"}, {"all": []}]}})
    harness.send(a, id="hidden", context={"id": "c", "type": "t"})
    harness.send(a, id="seen")
    assert chats(guest) == ["seen"]
    harness.send(guest, "pod/filter", payload={"filter": {"kind": "other"}})
    harness.send(a, id="unwanted")
    harness.send(a, "other", id="wanted")
    assert chats(guest) == ["seen", "wanted"]


@pytest.mark.rule("F-20", "C-11", "C-12", "G-10")
def test_contexts_that_may_not_be_heard_are_not_told_of() -> None:
    harness = restricted(NO_REASONING, context_idle_seconds=10)
    a, guest = harness.join("a"), harness.join("guest")
    for number in range(6):
        harness.send(a, context={"id": f"secret-{number}", "type": "reasoning"})
        harness.send(a, context={"id": f"open-{number}", "type": "plan"})
    late = harness.join("b")
    assert len(late.welcome["contexts"]) == 12
    harness.leave(guest)
    guest = harness.join("guest")
    assert {each["type"] for each in guest.welcome["contexts"]} == {"plan"}
    harness.tick(11)
    (told,) = [each for each in guest.seen if each["kind"] == "system/context"]
    assert {each["id"] for each in told["payload"]["contexts"]} == {f"open-{n}" for n in range(6)}
    (complete,) = [each for each in a.seen if each["kind"] == "system/context"]
    assert complete["id"] == told["id"]
    assert len(complete["payload"]["contexts"]) == 12
    harness.send(a, context={"id": "secret-0"})
    harness.send(a, context={"id": "open-0"})
    revived = [each["payload"] for each in guest.seen if each["kind"] == "system/context"][1:]
    assert [each["context"]["id"] for each in revived] == ["open-0"]
    assert "secret" not in b"".join(guest.texts).decode()


@pytest.mark.rule("F-19")
def test_a_changed_right_applies_from_the_next_envelope_on() -> None:
    harness = restricted({"main": True})
    a, guest = harness.join("a"), harness.join("guest")
    harness.send(a, id="hidden", context={"id": "c"})
    settings = [ParticipantSettings(name, ALL) for name in ("a", "b", "guest")]
    harness.perform(harness.pod.reconfigure(settings, harness.now))
    harness.send(a, id="seen", context={"id": "c"})
    assert chats(guest) == ["seen"]


@pytest.mark.rule("F-21")
def test_ids_and_places_may_be_noticed() -> None:
    harness = restricted({"main": True})
    a, guest = harness.join("a"), harness.join("guest")
    harness.send(a, id="hidden", context={"id": "c"})
    harness.send(guest, id="hidden")
    assert guest.errors == ["duplicate_id"]
    harness.leave(guest)
    assert harness.join("guest", after="hidden").welcome["resumed"] is True


@pytest.mark.rule("F-23", "F-18")
def test_filters_compiled_together_pass_what_each_passes() -> None:
    """For random sets of filters that come and go, and random envelopes."""
    random = Random(7)
    matcher: Matcher[int] = Matcher()
    present: dict[int, Filter] = {}
    for step in range(3000):
        if present and random.random() < 0.3:
            gone = random.choice([*present])
            del present[gone]
            matcher.remove(gone)
        else:
            present[step] = filters.parse(random_filter(random))
            matcher.add(step, present[step])
        lineage = None
        if random.random() < 0.7:
            above = tuple(random.sample(IDS, random.randrange(3)))
            lineage = Lineage(random.choice(IDS), random.choice((None, *TYPES)), above)
        to = tuple(random.sample(GUESTS, random.randrange(3))) or None
        kind = random.choice((*KINDS, f"new-{step}x"))
        entry = LogEntry("id", random.choice(GUESTS), to, kind, lineage, b"")
        expected = {key for key, each in present.items() if each.matches(entry, lineage)}
        assert set(matcher.matching(entry, lineage)) == expected
    for key in [*present]:
        matcher.remove(key)
    assert matcher.globs == 0
    assert GLOBS


def wide_filter(number: int, parts: int = 63) -> dict[str, Any]:
    return {"any": [{"kind": f"k{number}-{i}*"} for i in range(parts)]}


@pytest.mark.rule("F-22")
def test_too_many_different_filters_are_refused_and_the_previous_one_stays() -> None:
    limits = {**FREE, "max_filters_per_pod": 20}
    harness = PodHarness("a", "b", "c", limits=limits)
    a = harness.join("a", filter=filters.parse(wide_filter(1)))  # counts 8
    b = harness.join("b", filter=filters.parse(wide_filter(2)))
    c = harness.join("c")
    harness.send(c, "pod/filter", payload={"filter": wide_filter(3)})
    assert c.errors == ["filter_limit"]
    harness.send(b, id="still-everything")
    assert c.ids[-1] == "still-everything"
    harness.send(c, "pod/filter", payload={"filter": wide_filter(2)})  # the same as b's
    assert c.errors == ["filter_limit"]
    harness.send(a, "pod/filter", payload={"filter": wide_filter(4)})  # counts no more than before
    assert a.errors == []
    # It replaces its connection.
    assert harness.pod.members.join_refusal("c", filters.parse(wide_filter(5))) is None
    harness.leave(c)
    assert harness.pod.members.join_refusal("c", filters.parse(wide_filter(5))) is not None
    assert harness.pod.members.join_refusal("c", filters.parse(wide_filter(2))) is None
    harness.leave(b)
    assert harness.pod.members.join_refusal("c", filters.parse(wide_filter(5))) is None


@pytest.mark.rule("G-66")
def test_connections_are_limited_by_participant_and_pod() -> None:
    limits = {**FREE, "max_connections_per_participant": 3, "max_connections_per_pod": 5}
    harness = PodHarness("many", "a", "b", "c", limits=limits, multiple=["many"])
    pod, free = harness.pod, filters.everything
    joined = [harness.join("many") for _ in range(3)]
    assert "max_connections_per_participant" in (pod.members.join_refusal("many", free) or "")
    harness.join("a")
    harness.join("b")
    assert "max_connections_per_pod" in (pod.members.join_refusal("c", free) or "")
    assert pod.members.join_refusal("a", free) is None  # it replaces its own
    harness.leave(joined[0])
    assert pod.members.join_refusal("c", free) is None


@pytest.mark.rule("F-22")
def test_counts_of_filters_end_with_those_who_use_them() -> None:
    counts, random = FilterCounts(PodLimits()), Random(3)
    used: list[tuple[str, Filter]] = []
    for _ in range(2000):
        if used and random.random() < 0.5:
            counts.remove(*used.pop(random.randrange(len(used))))
        else:
            one = (random.choice(GUESTS), filters.parse(random_filter(random)))
            used.append(one)
            counts.add(*one)
    for each in used:
        counts.remove(*each)
    assert counts.total == 0
    assert counts.allow("a", filters.parse(wide_filter(0)))


@pytest.mark.rule("F-20", "H-10")
@given(st.integers(0, 2**32))
def test_a_tombstone_is_heard_only_where_the_original_was_whatever_it_was(seed: int) -> None:
    """Against the oracle, for every kind and recipient that the original may have had."""
    random = Random(seed)
    hears = random_filter(random)
    lineage = random.choice([None, Lineage("c1", "t", ("c2",)), Lineage("c3")])
    original = LogEntry("e", random.choice(GUESTS), None, random.choice(KINDS), lineage, b"{}")
    rights = Rights("me", filters.parse(hears))
    if rights.view(tombstone(original, 0.0)) is None:
        return
    for kind in (*KINDS, "none", "x"):
        for to in (None, *((name,) for name in GUESTS)):
            envelope = {"from": original.sender, "kind": kind, "to": to}
            assert may_hear("me", hears, envelope, lineage), (hears, envelope)


@pytest.mark.rule("F-20", "H-10")
def test_tombstones_and_erasures_of_what_may_not_be_heard_are_withheld() -> None:
    thought = Lineage("c", "reasoning")
    hidden = tombstone(LogEntry("t", "a", None, "chat", thought, b"{}"), 0.0)
    plain = tombstone(LogEntry("m", "a", None, "chat", None, b"{}"), 0.0)
    named = tombstone(LogEntry("k", "a", ("guest",), "plan/x", None, b"{}"), 0.0)
    by_type = Rights("guest", filters.parse(NO_REASONING))
    assert [by_type.view(each) is None for each in (hidden, plain, named)] == [True, False, False]
    by_kind = Rights("guest", filters.parse({"not": {"kind": "plan/*"}}))
    assert [by_kind.view(each) is None for each in (hidden, plain, named)] == [True, True, True]
    own = Rights("a", filters.parse({"kind": "none"}))
    assert own.view(named) == named.text
    erasure = Erasure(context="c")
    announced = erasure.announcement("x", 1, 0.0, (thought,))
    assert by_type.view(announced) is None
    assert by_kind.view(announced) == announced.text
    below = LogEntry("d", "a", None, "chat", Lineage("d", "t", ("c", "root")), b"{}")
    found = erasure.erased_context(below)
    assert found is not None
    assert (found.id, found.type, found.ancestors) == ("c", UNKNOWN_TYPE, ("root",))
    everyone = Erasure(participant="a").announcement("y", 3, 0.0)
    assert by_type.view(everyone) == everyone.text


@pytest.mark.rule("F-20", "H-10")
@pytest.mark.parametrize(
    ("hears", "heard"),
    [
        (NO_REASONING, False),
        ({"type": "reasoning"}, False),
        ({"any": [{"type": "reasoning"}, {"not": {"type": "reasoning"}}]}, True),
        ({"any": [{"context": "c"}, {"type": "plan"}]}, True),
        ({"not": {"context": "root", "descendants": True}}, False),
        ({"not": {"kind": "plan/*"}}, True),
        ({"all": []}, True),
    ],
)
def test_an_erased_context_of_unknown_type_is_announced_where_every_type_may_be_heard(
    hears: dict[str, Any], heard: bool
) -> None:
    """Nothing is left in the context itself, only below it."""
    below = LogEntry("d", "a", None, "chat", Lineage("d", "t", ("c", "root")), b"{}")
    erasure = Erasure(context="c")
    context = erasure.erased_context(below)
    assert context is not None
    announced = erasure.announcement("x", 1, 0.0, (context,))
    [restored] = decode_batch(encode_batch(Batch(1, 0, 0, 0.0, (announced,)))).entries
    assert (Rights("guest", filters.parse(hears)).view(restored) is not None) == heard
