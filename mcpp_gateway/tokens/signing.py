"""A gateway's own tokens: signing keys, claims, and which were issued. No I/O."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from mcpp_gateway.tokens.keys import KeySetError, VerifyingKey
from mcpp_gateway.tokens.revocations import MAX_SECONDS, Revocation

ISSUER_CLAIM: Final = "mcpp-gateway"
OWN_CLAIMS: Final = "mcpp"


class IssuedToken(msgspec.Struct, frozen=True):
    """A token that was issued, without the token itself."""

    id: str
    participant: str
    pods: list[str]
    issued: float
    expires: float


class SigningKey(msgspec.Struct, frozen=True):
    """A key that signs and verifies own tokens."""

    id: str
    pem: bytes

    @classmethod
    def new(cls) -> "SigningKey":
        """Return a new key."""
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return cls(secrets.token_hex(4), pem)

    def verifying(self) -> VerifyingKey:
        """Return what verifies its signatures. Raises KeySetError."""
        return VerifyingKey(self.id, "EdDSA", self._private().public_key())

    def sign(self, issued: IssuedToken, rights: Mapping[str, Any]) -> str:
        """Return the token that was issued. Raises KeySetError."""
        claims = {
            "iss": ISSUER_CLAIM,
            "sub": issued.participant,
            "pod": issued.pods[0] if len(issued.pods) == 1 else issued.pods,
            "iat": issued.issued,
            "exp": issued.expires,
            "jti": issued.id,
            OWN_CLAIMS: dict(rights),
        }
        return jwt.encode(claims, self._private(), algorithm="EdDSA", headers={"kid": self.id})

    def _private(self) -> Ed25519PrivateKey:
        try:
            key = load_pem_private_key(self.pem, None)
        except ValueError as error:
            raise KeySetError(f"key {self.id}: {error}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise KeySetError(f"key {self.id}: not an Ed25519 key")
        return key


class OwnTokens(Protocol):
    """Where own tokens are kept, as a gateway sees it: a folder, or the cluster."""

    def public_keys(self) -> Sequence[VerifyingKey]:
        """Return the keys that verify own tokens. Raises KeySetError."""

    def revocations(self) -> list[Revocation]:
        """Return what was revoked. Raises msgspec.DecodeError."""

    def changes(self) -> object:
        """Return a value that differs if keys or revocations have changed."""


def new_token(participant: str, pods: Sequence[str], now: float, expires: float) -> IssuedToken:
    """Return what is noted about a token that is issued now."""
    return IssuedToken(secrets.token_hex(8), participant, list(pods), now, expires)


def revocations_of(name: str, issued: Iterable[IssuedToken], now: float) -> list[Revocation]:
    """Return what revokes a token by its id, or all tokens of a participant.

    A name that is no own token's id may be that of another issuer's token, or of a participant.
    """
    for each in issued:
        if each.id == name:
            return [Revocation("token", name, now, each.expires)]
    return [Revocation(kind, name, now, now + MAX_SECONDS) for kind in ("participant", "token")]
