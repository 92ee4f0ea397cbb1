"""What verifying a signed token may result in."""

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

from mcpp_gateway.tokens.claims import Grant


@dataclass(frozen=True, slots=True)
class Unverifiable:
    """The key of a token is not known, but may be after a refresh, or after a while."""

    refresh: "asyncio.Future[bool] | None"
    is_new: bool  # whether the refresh began for this token: afterwards the answer is final
    retry_seconds: float
    is_guess: bool = False  # whether known keys were tried, and none has signed it


@dataclass(frozen=True, slots=True)
class BadToken:
    """A token that admits no participant. `reason` is set if it was signed by an issuer."""

    reason: str | None = None


Verdict: TypeAlias = Grant | Unverifiable | BadToken
