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
