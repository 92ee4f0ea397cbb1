"""Bounds how many guesses of tokens are looked at, per address and in all (G-06).

Wrong tokens from one address are answered more and more slowly, then with 429; from then on only
some of the tokens from there are looked at at all, and only some of all tokens while many are
wrong.
"""

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from mcpp_gateway.core.rates import Bucket, Rate

_FREE_FAILURES: Final = 3
_MAX_FAILURES: Final = 10
_MAX_DELAY_SECONDS: Final = 4.0
_FORGET_SECONDS: Final = 60.0
_MAX_ADDRESSES: Final = 4096
# Tokens that are looked at from an address with many wrong ones. So many that others behind the
# same address get in when they try again, and so few that guessing is hopeless.
_LOOKS_PER_ADDRESS: Final = Rate.per_second(5, 10)
# Wrong tokens in all. Above that, only addresses from which a right one has come are looked at.
_WRONG_IN_ALL: Final = Rate.per_second(100, 500)
_UNSEEN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Denial:
    """A request is refused: HTTP status and reason, to be sent after a delay."""

    status: int
    reason: str
    delay_seconds: float = 0.0
    retry_after_seconds: float | None = None
    allowed: str = ""  # the method, for a status of 405


class _Guesser:
    """An address with wrong tokens."""

    __slots__ = ("failures", "last", "looks")

    def __init__(self, now: float) -> None:
        self.failures = 0
        self.last = now
        self.looks = Bucket(_LOOKS_PER_ADDRESS)


class Throttle:
    """Counts wrong tokens per address and in all, for a bounded number of addresses (G-06)."""

    def __init__(self) -> None:
        self._guessers: OrderedDict[str, _Guesser] = OrderedDict()
        self._trusted: OrderedDict[str, None] = OrderedDict()
        self._wrong = Bucket(_WRONG_IN_ALL)
        # Wrong tokens (401) and those not looked at (429); of signed ones also those that have
        # ended (401), are not for that pod or name (403), or cannot be verified now (503).
        self.failures = {401: 0, 403: 0, 429: 0, 503: 0}

    def refuse_unseen(self, address: str, now: float) -> Denial | None:
        """Refuse to look at a token if too many from there, or in all, were wrong."""
        key = _network(address)
        guesser = self._guessers.get(key)
        wait = 0.0
        if guesser is not None and guesser.failures >= _MAX_FAILURES:
            _forget(guesser, now)
            if guesser.failures >= _MAX_FAILURES:
                wait = guesser.looks.take(now)
        if not wait and key not in self._trusted and self._wrong.wait(now):
            wait = _UNSEEN_SECONDS
        if not wait:
            return None
        self.failures[429] += 1
        reason = "too many wrong tokens; try again"
        return Denial(429, reason, retry_after_seconds=max(_UNSEEN_SECONDS, wait))

    def record_success(self, address: str) -> None:
        """Remember an address from which a right token came."""
        key = _network(address)
        self._trusted[key] = None
        self._trusted.move_to_end(key)
        if len(self._trusted) > _MAX_ADDRESSES:
            self._trusted.popitem(last=False)

    def count(self, denial: Denial) -> Denial:
        """Count a refusal that is no guess, and return it."""
        if denial.status in self.failures:
            self.failures[denial.status] += 1
        return denial

    def record_failure(self, address: str, now: float) -> Denial:
        """Count a wrong token and return how to answer it."""
        key = _network(address)
        self._wrong.charge(1, now)
        self.failures[401] += 1
        guesser = self._guessers.pop(key, None) or _Guesser(now)
        self._guessers[key] = guesser
        if len(self._guessers) > _MAX_ADDRESSES:
            self._guessers.popitem(last=False)
        _forget(guesser, now)
        failures = guesser.failures + 1
        # Stored up to the maximum only, or a minute's wait would not be enough.
        guesser.failures, guesser.last = min(failures, _MAX_FAILURES), now
        if failures > _MAX_FAILURES:
            return Denial(
                429,
                "too many wrong tokens from this address; wait a minute",
                retry_after_seconds=_FORGET_SECONDS,
            )
        slow = max(0, failures - _FREE_FAILURES)
        delay = min(_MAX_DELAY_SECONDS, 0.125 * 2**slow) if slow else 0.0
        return Denial(401, "unknown or missing token", delay)


def _forget(guesser: _Guesser, now: float) -> None:
    """Forget one wrong token for each minute without one."""
    forgotten = int((now - guesser.last) / _FORGET_SECONDS)
    if forgotten:
        guesser.failures = max(0, guesser.failures - forgotten)
        guesser.last += forgotten * _FORGET_SECONDS


def _network(address: str) -> str:
    """Return the key of an address: itself, or its /64 for IPv6, which one machine may hold."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))
