"""Participants of signed tokens that have left: what the pod keeps of them, and how much."""

import gc
import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from mcpp.filters import parse
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.joining.absent_grants import MAX_ABSENT_BYTES
from mcpp_gateway.core.joining.grants import GrantedSettings, have_equal_rights
from mcpp_gateway.core.joining.members import Members
from mcpp_gateway.core.limits import ParticipantLimits, PodLimits
from mcpp_gateway.core.sessions import ParticipantSettings

NOW, UNTIL = 1_000_000.0, 1_000_600.0
LIMITS = ParticipantLimits(max_contexts_per_participant=3)


def granted(id: str, *patterns: dict[str, Any], **options: Any) -> GrantedSettings:
    capabilities = Capabilities(patterns or [{"kind": "chat"}])
    settings = ParticipantSettings(id, capabilities, **options)
    return GrantedSettings("company", settings, UNTIL, token_id=f"token-of-{id}")


def members(*grants: GrantedSettings) -> Members:
    """Return members of whom none is present any more."""
    found = Members([], PodLimits())
    for each in grants:
        found.grant(each, NOW)
    found.forget_owners(NOW, ["company"])
    return found


@pytest.mark.rule("S-15", "S-01")
def test_a_participant_that_has_left_keeps_its_rights_until_its_token_expires() -> None:
    hears = parse({"kind": "chat"})
    ada = granted("ada", {"kind": "c*"}, hears=hears, person=True, at_most=LIMITS)
    found = members(ada)
    assert found.is_person("ada")
    assert found.has_persons
    assert found.knows("ada")
    assert found.known() == ("ada",)
    assert found.limits("ada").max_contexts_per_participant == 3
    assert found.caps() == {"ada": 3}
    assert found.joined_kinds("token-of-ada") == {"token"}
    again = found.granted("ada")
    assert again is not None
    assert have_equal_rights(again, ada)
    found.forget_owners(NOW, ["company"])
    assert found.rights("ada").hears == hears
    found.forget_owners(UNTIL, ["company"])
    assert not found.known()
    assert found.owner("ada") is None


@pytest.mark.rule("S-15")
def test_little_is_kept_of_participants_that_have_left() -> None:
    count = 40
    patterns = [{"kind": f"chat{i}", "payload": {"x" * 20: "y" * 20}} for i in range(60)]
    tracemalloc.start()
    try:
        found = members(*(granted(f"user-{i}", *patterns) for i in range(count)))
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.known()) == count
    assert kept / count < 3000


@pytest.mark.rule("S-15", "S-04")
def test_an_issuer_with_too_many_names_loses_those_that_joined_first_and_no_other_issuer_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mcpp_gateway.core.joining.members.MAX_NAMES", 3)
    found = members(granted("ada"))
    found.add("u0")
    for i in (0, 1, 2, 3, 4, 1):
        found.grant(replace(granted(f"u{i}"), issuer="other"), NOW)
    found.forget_owners(NOW, ["company", "other"])
    owners = {each.participant: each.issuer for each in found.owners()}
    assert owners == {"ada": "company", "u0": "other", "u4": "other", "u1": "other"}
    assert not found.knows("u2")


@pytest.mark.rule("S-15", "S-04")
def test_beyond_the_bound_the_rights_of_those_that_left_first_are_forgotten() -> None:
    noise = random.Random(7)
    count = MAX_ABSENT_BYTES // 100_000
    found = members(
        *(
            granted(f"user-{i}", {"kind": "chat", "payload": noise.randbytes(100_000).hex()})
            for i in range(count)
        )
    )
    assert not found.knows("user-0")
    assert found.owner("user-0") == "company"
    assert found.settings(f"user-{count - 1}") is not None
    assert 0.7 * count < len(found.known()) < count
