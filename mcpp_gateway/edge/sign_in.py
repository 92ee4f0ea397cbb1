"""Signing in from a browser: a code in a link, used once, and the session it is exchanged for.

A code is 128 bits, lives two minutes and is taken by its first use, so that a link left behind in
a terminal or a history opens nothing. A session token is signed instead of remembered: a gateway
that restarts with the same key still knows it, and it dies with the token of its participant.

Pure: codes, keys and times are passed in.
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
# Whoever asks for links in a loop pushes out the oldest, and fills no memory.
_OPEN_CODES: Final = 256
_PREFIX: Final = "session~"

Identity: TypeAlias = tuple[str, str]  # pod, participant


class Invitations:
    """The codes that nobody has used yet. Owns them, by their digests."""

    def __init__(self) -> None:
        self._open: dict[bytes, tuple[Identity, float]] = {}

    def add(self, code: str, identity: Identity, now: float) -> None:
        """Let whoever brings this code in, as this participant, for two minutes."""
        self._forget_old(now)
        self._open[_key(code)] = (identity, now + CODE_SECONDS)
        if len(self._open) > _OPEN_CODES:
            del self._open[next(iter(self._open))]

    def redeem(self, code: str, now: float) -> Identity | None:
        """Take a code and return whom it admits; None if it is unknown, used or too old."""
        self._forget_old(now)
        identity, _ = self._open.pop(_key(code), (None, 0.0))
        return identity

    def _forget_old(self, now: float) -> None:
        for key in [key for key, (_, end) in self._open.items() if end <= now]:
            del self._open[key]


class SessionTokens:
    """Issues session tokens and recognises them. Owns the key that signs them, and nothing else.

    `secret` is what the gateway keeps of the participant's own token: once that is changed or gone,
    no signature made with it holds.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, identity: Identity, secret: bytes, now: float) -> str:
        """Return a token that admits a participant for some hours."""
        body = msgspec.json.encode((*identity, now + SESSION_SECONDS))
        return f"{_PREFIX}{_text(body)}.{_text(self._sign(body, secret))}"

    def recognise(
        self, token: str, secrets: Mapping[Identity, bytes], now: float
    ) -> tuple[Identity, float] | None:
        """Return whom a token admits until when; None if it is no session's or no longer good."""
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
    # Looked up by digest: the timing tells nothing about a code.
    return sha256(code.encode(errors="surrogateescape")).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
