"""Revocations of signed tokens: by participant or by token id, kept until the tokens expire.

A gateway learns them from the folder of its tokens, from the admin's requests and, in a cluster,
from the other gateways. No I/O here.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from mcpp.errors import McppError
from mcpp_gateway.core.joining.grants import GrantedSettings

MAX_DAYS: Final = 366  # that a token may be valid; so long is a revocation kept
MAX_SECONDS: Final = MAX_DAYS * 86_400.0
MAX_REVOCATIONS: Final = 10_000


Kind = Literal["participant", "token"]
KINDS: Final[tuple[Kind, ...]] = ("participant", "token")


class UnknownNameError(McppError):
    """There is nothing to revoke: no signed token has this id, or names this participant."""

    def __init__(self, name: str, what: str = "signed token of") -> None:
        super().__init__(f"nothing is revoked: no {what} {name!r} is known")
        self.name = name


class TokenFileError(McppError):
    """A file of own tokens exists, and is damaged or cannot be read."""


class NotStoredError(McppError):
    """A revocation is in force, but a restart would forget it."""


class TooManyRevocationsError(McppError):
    """There is no room for a revocation until others have expired."""

    def __init__(self) -> None:
        super().__init__(
            f"nothing is revoked: {MAX_REVOCATIONS} revocations are in force, which is the most; "
            "delete the key that signed the tokens, or take them away from their issuer"
        )


class Revocation(msgspec.Struct, frozen=True):
    """All tokens of a participant that were issued up to a time, or one token."""

    kind: Kind
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
        return is_new

    def revoke(self, revocations: Iterable[Revocation], now: float) -> None:
        """Add new revocations, or raise TooManyRevocationsError and change nothing.

        Only what is new is bounded: forgetting one that is in force would admit its tokens.
        """
        added = tuple(revocations)
        self.add((), now)
        if len(self._known.keys() | {(each.kind, each.value) for each in added}) > MAX_REVOCATIONS:
            raise TooManyRevocationsError
        self.add(added, now)

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
    """Return the revocations that bytes hold. Raises TokenFileError."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenFileError(f"damaged: {error}") from None
