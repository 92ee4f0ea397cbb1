"""Revocations of signed tokens: by participant or by token id, kept until the tokens expire.

A gateway learns them from the folder of its tokens, from the admin's requests and, in a cluster,
from the other gateways. No I/O here.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from mcpp_gateway.core.joining.grants import GrantedSettings

MAX_DAYS: Final = 366  # that a token may be valid; so long is a revocation kept
MAX_SECONDS: Final = MAX_DAYS * 86_400.0
MAX_REVOCATIONS: Final = 10_000


class Revocation(msgspec.Struct, frozen=True):
    """All tokens of a participant that were issued up to a time, or one token."""

    kind: Literal["participant", "token"]
    value: str
    before: float  # tokens issued later are valid again
    until: float  # when the last of these tokens has expired


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Revocation]).decode


class Revocations:
    """The revocations that are in force. Owns them."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Revocation] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Revocation]:
        return iter(self._known.values())

    def add(self, revocations: Iterable[Revocation], now: float) -> bool:
        """Add revocations and forget those whose tokens have expired. Return whether any is new."""
        is_new = False
        for each in revocations:
            key: tuple[str, str] = (each.kind, each.value)
            known = self._known.get(key)
            if each.until > now and (known is None or each.before > known.before):
                until = each.until if known is None else max(each.until, known.until)
                self._known[key] = msgspec.structs.replace(each, until=until)
                is_new = True
        for key in [key for key, each in self._known.items() if each.until <= now]:
            del self._known[key]
        while len(self._known) > MAX_REVOCATIONS:  # the soonest to expire
            del self._known[min(self._known, key=lambda key: self._known[key].until)]
        return is_new

    def covers(self, grant: GrantedSettings) -> bool:
        """Return whether what a token admits was revoked."""
        return self.covers_token(grant.settings.id, grant.token_id, grant.issued)

    def covers_token(self, participant: str, token_id: str | None, issued: float) -> bool:
        """Return whether a token was revoked, by its participant or its id."""
        found = self._known.get(("participant", participant))
        if found is not None and issued <= found.before:
            return True
        return token_id is not None and ("token", token_id) in self._known

    def encode(self) -> bytes:
        """Return all revocations as bytes."""
        return _encode(list(self._known.values()))


def decode_revocations(data: bytes) -> list[Revocation]:
    """Return the revocations that bytes hold. Raises msgspec.DecodeError."""
    return _decode(data)
