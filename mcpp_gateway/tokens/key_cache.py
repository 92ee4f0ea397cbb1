"""The keys of one issuer: read when needed, in a thread, and kept while the key server is down.

A token with an unknown key id starts a refresh, as does one without an id that no key has signed:
then only its signature tells that the keys were rotated. The request waits for the refresh, so that
clients do not notice a rotation. Refreshes are `REFRESH_SECONDS` apart: tokens with invented key
ids cost the key server no more than that. Keys are used for up to 24 hours after they were last
read, also by the next process if they are saved.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from mcpp_gateway.tokens.keys import KeySetError, VerifyingKey

logger = logging.getLogger("mcpp.gateway")

REFRESH_SECONDS: Final = 5.0
KEEP_SECONDS: Final = 24 * 3600.0
_NEVER: Final = float("-inf")
_RENEW_SECONDS: Final = 600.0  # so that keys that were withdrawn are not trusted for long

ReadKeys = Callable[[], Sequence[VerifyingKey]]


class KeyCache:
    """The known keys of an issuer. Owns the thread that reads them anew."""

    def __init__(
        self,
        issuer: str,
        read: ReadKeys,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        *,
        renews: bool = True,
    ) -> None:
        self._issuer = issuer
        self._read = read
        self._loop = loop
        self._clock = clock
        self._renews = renews  # False: the keys are fixed
        self._keys: Sequence[VerifyingKey] = ()
        self._fingerprints: frozenset[str] = frozenset()
        self._read_at = _NEVER
        self._tried_at = _NEVER
        # Whether a reload asked for keys, which no refresh since has read.
        self._is_wanted = self._was_wanted = False
        self.refreshing: asyncio.Future[bool] | None = None

    def load(self) -> None:
        """Read the keys in place, before the gateway serves. Raises KeySetError."""
        self._tried_at = self._clock()
        self._store(self._read())

    @property
    def known(self) -> tuple[Sequence[VerifyingKey], float]:
        """The keys, and when they were read."""
        return self._keys, self._read_at

    def restore(self, keys: Sequence[VerifyingKey], read_at: float) -> None:
        """Begin with keys that were read before; those that are too old are not used."""
        self._keys, self._read_at = keys, read_at
        self._fingerprints = frozenset(key.fingerprint for key in keys)

    def has_withdrawn(self, fingerprint: str) -> bool:
        """Return whether keys were read, and this one is not among them any more (S-14)."""
        return self._read_at > _NEVER and fingerprint not in self._fingerprints

    def find(self, id: str | None, algorithm: str) -> Sequence[VerifyingKey]:
        """Return the keys that may have signed a token with this key id, or with none.

        Where the token or the keys have no id, these are those of the algorithm.
        """
        if self.is_stale:
            return ()
        named = [key for key in self._keys if id is not None and key.id == id]
        if named:
            return named
        fitting = [key for key in self._keys if key.algorithm == algorithm]
        return [key for key in fitting if id is None or key.id is None]

    @property
    def retry_seconds(self) -> float | None:
        """The seconds until keys may be read again; None if they are fixed."""
        if not self._renews:
            return None
        return max(0.0, self._tried_at + REFRESH_SECONDS - self._clock())

    @property
    def age_seconds(self) -> float | None:
        """The seconds since the keys were read, infinite before that; None if they are fixed."""
        return self._clock() - self._read_at if self._renews else None

    @property
    def is_stale(self) -> bool:
        """Whether no keys are known, or only such that are too old."""
        return self.age_seconds is not None and self.age_seconds > KEEP_SECONDS

    def renew(self) -> None:
        """Read the keys anew if that is due; called about once a second."""
        is_soon = self.is_stale or self._is_wanted
        due = self._tried_at + (REFRESH_SECONDS if is_soon else _RENEW_SECONDS)
        if self._renews and self._clock() >= due:
            self.refresh()

    def refresh_soon(self) -> None:
        """Read the keys anew, at once or as soon as `REFRESH_SECONDS` are over.

        A refresh that has begun before does not count: it may have read keys that are gone now.
        """
        self._is_wanted = True
        self.renew()

    def refresh(self) -> "asyncio.Future[bool]":
        """Read the keys anew in a thread; the future is whether they could be read."""
        if self.refreshing is None:
            self._tried_at = self._clock()
            self._was_wanted, self._is_wanted = self._is_wanted, False
            self.refreshing = self._loop.create_future()
            name = f"keys-{self._issuer}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        return self.refreshing

    def _run(self) -> None:
        keys: Sequence[VerifyingKey] | None = None
        reason = ""
        try:
            keys = self._read()
        except (KeySetError, OSError) as error:
            reason = str(error)
        except Exception as error:  # requests wait for the end of this, whatever it is
            logger.exception("reading keys has failed", extra={"issuer": self._issuer})
            reason = repr(error)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._finish, keys, reason)

    def _finish(self, keys: Sequence[VerifyingKey] | None, reason: str) -> None:
        if keys is not None:
            self._store(keys)
        else:
            facts = {"issuer": self._issuer, "reason": reason}
            logger.warning("keys of an issuer cannot be read", extra=facts)
            self._is_wanted |= self._was_wanted
        done, self.refreshing = self.refreshing, None
        if done is not None and not done.done():
            done.set_result(keys is not None)

    def _store(self, keys: Sequence[VerifyingKey]) -> None:
        self.restore(keys, self._clock())
