"""Revocations: none that is in force is forgotten, and each takes one place where it can."""

import pytest

from mcpp_gateway.tokens import revocations
from mcpp_gateway.tokens.revocations import (
    MAX_REVOCATIONS,
    Revocation,
    Revocations,
    TooManyRevocationsError,
)
from mcpp_gateway.tokens.signing import new_token, revoke_name

pytestmark = pytest.mark.rule("S-10")


def full() -> Revocations:
    known = Revocations()
    known.revoke((Revocation("token", f"{n}", 0.0, 200.0) for n in range(MAX_REVOCATIONS)), 0.0)
    return known


def test_no_revocation_is_forgotten_for_another() -> None:
    known = full()
    for until in (10.0, 300.0):
        with pytest.raises(TooManyRevocationsError, match="nothing is revoked"):
            known.revoke([Revocation("participant", "ada", 1.0, until)], 1.0)
    assert len(known) == MAX_REVOCATIONS
    assert not known.covers_token("ada", None, 0.0)
    known.revoke([Revocation("token", "7", 2.0, 300.0)], 2.0)  # it is known already
    known.revoke([Revocation("participant", "ada", 201.0, 300.0)], 201.0)  # others have expired
    assert known.covers_token("ada", None, 0.0)
    assert len(known) == 2


def test_what_other_gateways_have_revoked_is_always_taken() -> None:
    known = full()
    assert known.add([Revocation("participant", "ada", 1.0, 10.0)], 1.0)
    assert known.covers_token("ada", None, 0.0)
    assert len(known) == MAX_REVOCATIONS + 1


def test_tokens_of_a_machine_whose_clock_is_ahead_are_revoked_with_their_participant() -> None:
    issued = [new_token("ada", ["demo"], time, time + 60.0, "key") for time in (90.0, 120.0)]
    known = Revocations()
    known.revoke(revoke_name("ada", issued, 100.0, may_be_unknown=False).revocations, 100.0)
    assert all(known.covers_token("ada", each.id, each.issued) for each in issued)
    later = new_token("ada", ["demo"], 101.0, 161.0, "key")
    assert not known.covers_token("ada", later.id, later.issued)


@pytest.mark.parametrize(
    ("name", "joined", "kinds"),
    [
        ("ada", (), {"participant"}),
        ("ID", (), {"token"}),
        ("eve", ("participant",), {"participant"}),
        ("jti", ("token",), {"token"}),
        ("both", ("participant", "token"), {"participant", "token"}),
        ("unknown", (), {"participant", "token"}),
    ],
)
def test_a_name_that_is_known_takes_one_place(
    name: str, joined: tuple[revocations.Kind, ...], kinds: set[str]
) -> None:
    issued = new_token("ada", ["demo"], 0.0, 10.0, "key")
    name = issued.id if name == "ID" else name
    revoked = revoke_name(name, [issued], 1.0, may_be_unknown=True, joined=joined)
    assert {each.kind for each in revoked.revocations} == kinds
