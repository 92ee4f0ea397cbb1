"""A gateway's own tokens: signing keys, claims, and which were issued. No I/O."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from mcpp_gateway.config import ConfigError
from mcpp_gateway.tokens.claims import MAX_TOKEN_LENGTH
from mcpp_gateway.tokens.keys import KeySetError, VerifyingKey
from mcpp_gateway.tokens.revocations import (
    KINDS,
    MAX_SECONDS,
    Kind,
    Revocation,
    UnknownNameError,
)

ISSUER_CLAIM: Final = "mcpp-gateway"
OWN_CLAIMS: Final = "mcpp"


class IssuedToken(msgspec.Struct, frozen=True):
    """A token that was issued, without the token itself."""

    id: str
    participant: str
    pods: list[str]
    issued: float
    expires: float
    key: str | None = None  # the id of the key that signed it


class SigningKey(msgspec.Struct, frozen=True):
    """A key that signs and verifies own tokens."""

    id: str
    pem: bytes

    @classmethod
    def new(cls, prefix: str = "") -> "SigningKey":
        """Return a new key, whose id begins with a prefix."""
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return cls(prefix + secrets.token_hex(4), pem)

    def verifying(self) -> VerifyingKey:
        """Return what verifies its signatures. Raises KeySetError."""
        return VerifyingKey(self.id, "EdDSA", self._private().public_key())

    def sign(self, issued: IssuedToken, rights: Mapping[str, Any]) -> str:
        """Return the token that was issued. Raises KeySetError and ConfigError."""
        claims = {
            "iss": ISSUER_CLAIM,
            "sub": issued.participant,
            "pod": issued.pods[0] if len(issued.pods) == 1 else issued.pods,
            "iat": issued.issued,
            "exp": issued.expires,
            "jti": issued.id,
            OWN_CLAIMS: dict(rights),
        }
        token = jwt.encode(claims, self._private(), algorithm="EdDSA", headers={"kid": self.id})
        if len(token) > MAX_TOKEN_LENGTH:
            reason = f"more than the {MAX_TOKEN_LENGTH} that a gateway accepts; state fewer rights"
            raise ConfigError(f"the token would have {len(token)} characters, {reason}")
        return token

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

    def public_keys(self, known: Sequence[VerifyingKey] = ()) -> Sequence[VerifyingKey]:
        """Return the keys that verify own tokens; `known` are those of the call before.

        Raises KeySetError and OSError.
        """

    def revocations(self) -> list[Revocation]:
        """Return what was revoked. Raises TokenFileError."""

    def changes(self) -> object:
        """Return a value that differs if keys or revocations have changed."""


def new_token(
    participant: str, pods: Sequence[str], now: float, expires: float, key: str
) -> IssuedToken:
    """Return what is noted about a token that is issued now, and signed by a key."""
    return IssuedToken(secrets.token_hex(8), participant, list(pods), now, expires, key)


def check_key_id(id: str, known: Sequence[str]) -> None:
    """Raise ConfigError if there is no key with an id."""
    if id not in known:
        raise ConfigError(f"no key {id!r}; there are: {', '.join(known) or 'none'}")


class Revoked(NamedTuple):
    """What revokes a name, and whether an own token with it was issued."""

    revocations: list[Revocation]
    was_issued: bool


def revoke_name(
    name: str,
    issued: Sequence[IssuedToken],
    now: float,
    *,
    may_be_unknown: bool,
    joined: Collection[Kind] = (),
) -> Revoked:
    """Return what revokes a token by its id, or all tokens of a participant.

    A name that is not known may be that of another issuer's token, or of a participant: then both
    are revoked. Raises UnknownNameError instead, unless it `may_be_unknown`.

    Args:
        name: of a participant, or a token's id.
        issued: the own tokens that are known.
        now: Unix time.
        may_be_unknown: whether another issuer may have signed a token with this name.
        joined: what the name is of tokens that have joined.
    """
    until = now + MAX_SECONDS
    found: dict[Kind, float] = dict.fromkeys(joined, until)
    ids = {each.id: each.expires for each in issued if each.id == name}
    own = [each for each in issued if each.participant == name]
    was_issued = bool(ids or own)
    if ids:
        found["token"] = ids[name]
    elif own:
        found["participant"] = until
    if not found:
        if not may_be_unknown:
            raise UnknownNameError(name)
        found = dict.fromkeys(KINDS, until)
    revocations = [Revocation(kind, name, now, end) for kind, end in found.items()]
    # Signed by a machine whose clock is ahead of this one's: issued later, as it seems.
    ahead = [each for each in own if each.issued > now]
    revocations += [Revocation("token", each.id, now, each.expires) for each in ahead]
    return Revoked(revocations, was_issued)
