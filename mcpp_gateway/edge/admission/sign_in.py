"""Signing in from a browser: invitation codes, and the session tokens they are exchanged for.

A code has 128 bits, is valid for two minutes and works once, so that a link left in a terminal or
in a browser's history is useless. A session token is signed, not stored: a gateway that restarts
with the same key still accepts it, and it becomes invalid with the participant's own token.

No I/O: codes, keys and times are passed in.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from hmac import digest as sign
from typing import Final, TypeAlias

import msgspec

CODE_BYTES: Final = 16
CODE_SECONDS: Final = 120.0
SESSION_SECONDS: Final = 12 * 3600.0
# Above these the oldest code is dropped: of a participant, so that it cannot displace others'; and
# of all, which bounds memory.
_MAX_OWN_CODES: Final = 16
_MAX_CODES: Final = 256
_PREFIX: Final = "session~"

Identity: TypeAlias = tuple[str, str]  # pod, participant


class Invitations:
    """The codes that are not used yet. Owns them, by digest."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[Identity, float]] = {}

    def add(self, code: str, identity: Identity, now: float) -> None:
        """Accept a code for a participant, once and for two minutes."""
        self._remove_expired(now)
        own = [key for key, (owner, _) in self._open.items() if owner == identity]
        if len(own) >= _MAX_OWN_CODES:
            del self._open[own[0]]
        self._open[_key(code)] = (identity, now + CODE_SECONDS)
        if len(self._open) > _MAX_CODES:
            del self._open[next(iter(self._open))]

    def redeem(self, code: str, now: float) -> Identity | None:
        """Use a code up and return its participant; None if it is unknown, used or expired."""
        self._remove_expired(now)
        identity, _ = self._open.pop(_key(code), (None, 0.0))
        return identity

    def _remove_expired(self, now: float) -> None:
        for key in [key for key, (_, end) in self._open.items() if end <= now]:
            del self._open[key]


class SessionTokens:
    """Issues and verifies session tokens. Owns the signing key.

    `secret` is the digest of the participant's own token. It is part of what is signed, so that a
    changed or removed token invalidates the sessions.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, identity: Identity, secret: bytes, now: float) -> str:
        """Return a session token for a participant, valid for `SESSION_SECONDS`."""
        body = msgspec.json.encode((*identity, now + SESSION_SECONDS))
        return f"{_PREFIX}{_text(body)}.{_text(self._sign(body, secret))}"

    def recognise(
        self, token: str, secrets: Mapping[Identity, bytes], now: float
    ) -> tuple[Identity, float] | None:
        """Return the participant and the expiry of a session token; None if it is not valid."""
        if not token.startswith(_PREFIX):
            return None
        try:
            body, signature = map(_bytes, token.removeprefix(_PREFIX).split("."))
            pod, participant, end = msgspec.json.decode(body, type=tuple[str, str, float])
        except (ValueError, msgspec.DecodeError):
            return None
        identity = (pod, participant)
        secret = secrets.get(identity)
        if secret is None or end <= now:
            return None
        return (identity, end) if compare_digest(self._sign(body, secret), signature) else None

    def _sign(self, body: bytes, secret: bytes) -> bytes:
        return sign(self._key, secret + body, "sha256")


def _key(code: str) -> bytes:
    # Looked up by digest: the timing reveals nothing about a code. websockets 16 decodes headers
    # with surrogateescape.
    return sha256(code.encode(errors="surrogateescape")).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
