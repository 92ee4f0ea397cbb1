"""Public keys of issuers, from a JWK set or a PEM file. No I/O.

Each key has one algorithm, which follows from the key and not from a token: so a token can neither
choose `none` nor use a public key as the secret of an HMAC.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)
from jwt import PyJWK
from jwt.exceptions import PyJWTError

PublicKey = Ed25519PublicKey | EllipticCurvePublicKey | RSAPublicKey

MAX_KEYS: Final = 64
_RSA_BITS: Final = range(2048, 8193)
# Verifying with a larger exponent takes up to a hundred times as long, for forged tokens, too.
_MAX_RSA_EXPONENT: Final = 2**32


class KeySetError(Exception):
    """A key or a key set that cannot be used."""


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """A public key with its id, if it has one, and the algorithm of its signatures."""

    id: str | None
    algorithm: str
    key: PublicKey
    fingerprint: str = field(init=False)  # names the key itself: ids may be missing, or used again

    def __post_init__(self) -> None:
        data = self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        object.__setattr__(self, "fingerprint", sha256(data).hexdigest()[:32])


def read_key_set(data: bytes) -> tuple[VerifyingKey, ...]:
    """Return the keys of a JWK set that can verify tokens; others are skipped.

    Raises KeySetError if the data is no JWK set or has no such key.
    """
    try:
        document = json.loads(data)
        items = document["keys"] if isinstance(document, dict) else None
    except (ValueError, KeyError, RecursionError):
        items = None
    if not isinstance(items, list):
        raise KeySetError("not a JWK set")
    keys = tuple(_usable(items[:MAX_KEYS]))
    if not keys:
        raise KeySetError("the JWK set has no key for EdDSA, ES256 or RS256")
    return keys


def read_public_key(pem: bytes) -> tuple[VerifyingKey, ...]:
    """Return the key of a PEM text. Raises KeySetError."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise KeySetError("not a public key in PEM format") from None
    algorithm = algorithm_of(key)
    if algorithm is None or not isinstance(key, PublicKey):
        raise KeySetError("not a key for EdDSA (Ed25519), ES256 or RS256 (2048 to 8192 bits)")
    return (VerifyingKey(None, algorithm, key),)


def algorithm_of(key: object) -> str | None:
    """Return the algorithm of a key's signatures; None if it is not accepted."""
    if isinstance(key, Ed25519PublicKey):
        return "EdDSA"
    if isinstance(key, EllipticCurvePublicKey):
        return "ES256" if isinstance(key.curve, SECP256R1) else None
    if isinstance(key, RSAPublicKey):
        is_quick = key.public_numbers().e <= _MAX_RSA_EXPONENT
        return "RS256" if key.key_size in _RSA_BITS and is_quick else None
    return None


def _usable(items: list[Any]) -> Iterator[VerifyingKey]:
    for item in items:
        if not isinstance(item, Mapping) or item.get("kty") not in ("OKP", "EC", "RSA"):
            continue
        # Only the public part is read, even if the set holds a private key by mistake.
        public = {name: item[name] for name in ("kty", "crv", "x", "y", "n", "e") if name in item}
        try:
            key = PyJWK(public, algorithm=_guess(item)).key
        except (PyJWTError, ValueError, TypeError, UnsupportedAlgorithm):
            continue
        algorithm = algorithm_of(key)
        stated = item.get("alg")
        if algorithm is None or stated not in (None, algorithm):
            continue
        if item.get("use", "sig") == "sig":
            id = item.get("kid")
            yield VerifyingKey(id if isinstance(id, str) else None, algorithm, key)


def _guess(item: Mapping[str, Any]) -> str:
    return {"OKP": "EdDSA", "EC": "ES256", "RSA": "RS256"}[item["kty"]]
