"""Admins: who uses the admin's interface, and what for."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Admin:
    """Whose token a request to the admin's interface has."""

    name: str | None = None  # the subject of a signed token; None: it is the admin's own token
    token_id: str | None = None
    issuer: str | None = None  # of the signed token
    pods: frozenset[str] | None = None  # that it may see and act on; None: everything (O-08)
    refusal: str | None = None  # why the token does not open the interface
