"""Verifies signed tokens: finds the issuer and the key, checks the signature, reads the claims."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import jwt
from jwt.exceptions import InvalidAudienceError, MissingRequiredClaimError, PyJWTError

from mcpp_gateway.tokens.claims import ClaimError, Grant, RightsReader, read_grant
from mcpp_gateway.tokens.key_cache import KeyCache
from mcpp_gateway.tokens.keys import VerifyingKey
from mcpp_gateway.tokens.verdicts import BadToken, Unverifiable, Verdict

_ALGORITHMS: Final = ("EdDSA", "ES256", "RS256")
_TRIED_KEYS: Final = 4  # each costs a forged token 0.1 ms of this process


@dataclass(frozen=True, slots=True)
class Issuer:
    """A configured issuer."""

    issuer: str | None  # the claim `iss`; None: not checked
    audience: str | None
    keys: KeyCache
    rights: RightsReader
    subject: str = "sub"
    leeway_seconds: float = 30.0
    is_own: bool = False  # whether it is the gateway itself, or another gateway of the cluster

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.rights.issuer


class Issuers:
    """The configured issuers. Owns nothing: keys and rights are cached by each."""

    def __init__(self, issuers: Iterable[Issuer], pods: Iterable[str]) -> None:
        self._issuers = tuple(issuers)
        self._pods = tuple(pods)

    def verify(self, token: str, now: float, *, may_refresh: bool = True) -> Verdict:
        """Return what a token admits.

        With `may_refresh`, an unknown key is looked for at its issuer's key server.
        """
        try:
            unverified = jwt.decode_complete(token, options={"verify_signature": False})
        except (PyJWTError, ValueError, RecursionError, TypeError):
            return BadToken()
        header, claims = unverified["header"], unverified["payload"]
        # An extension that must be understood (RFC 7515, 4.1.11) and is not.
        if header.get("alg") not in _ALGORITHMS or "crit" in header or "b64" in header:
            return BadToken()
        key_id = header.get("kid")
        if not isinstance(key_id, str | None):
            return BadToken()
        waiting: Unverifiable | None = None
        refusal = BadToken()
        not_granted: BadToken | None = None  # by the first issuer whose key has signed it
        was_tried = False
        for issuer in self._candidates(claims):
            keys = issuer.keys.find(key_id, header["alg"])
            try:
                found = _verify(token, keys, header["alg"], issuer)
            except ClaimError as error:  # another issuer may have the same keys
                refusal = BadToken(str(error))
                continue
            if found is not None:
                claims, key = found
                grant = self._grant(claims, issuer, now)
                if isinstance(grant, Grant):
                    return replace(grant, key=key.fingerprint)
                not_granted = not_granted or grant
                continue
            was_tried = was_tried or bool(keys)
            if not any(key.id is not None and key.id == key_id for key in keys):
                waiting = waiting or _unverifiable(issuer, may_refresh)
        if not_granted is not None:
            return not_granted
        if waiting is None:
            return refusal
        return replace(waiting, is_guess=was_tried and refusal.reason is None)

    def _candidates(self, claims: Mapping[str, Any]) -> list[Issuer]:
        """Return the issuers that a token may be of, those first that it names.

        Public keys are known to everyone: an issuer may list those of another.
        """
        unnamed = [each for each in self._issuers if each.issuer is None]
        stated = claims.get("iss")
        if stated is None:
            return unnamed
        return [*(each for each in self._issuers if each.issuer == stated), *unnamed]

    def _grant(self, claims: Mapping[str, Any], issuer: Issuer, now: float) -> Grant | BadToken:
        try:
            return read_grant(
                claims,
                issuer.rights,
                subject=issuer.subject,
                leeway_seconds=issuer.leeway_seconds,
                is_own=issuer.is_own,
                pods=self._pods,
                now=now,
            )
        except ClaimError as error:
            return BadToken(str(error))


def _unverifiable(issuer: Issuer, may_refresh: bool) -> Unverifiable | None:
    keys = issuer.keys
    wait = keys.retry_seconds
    if wait is None:
        return None  # its keys are fixed
    refresh = None
    if may_refresh:
        refresh = keys.refreshing or (None if wait else keys.refresh())
    return Unverifiable(refresh, not wait, max(1.0, wait))


def _verify(
    token: str, keys: Iterable[VerifyingKey], algorithm: str, issuer: Issuer
) -> tuple[Mapping[str, Any], VerifyingKey] | None:
    """Return the claims of a token and its key, None if none of the keys signed it.

    Raises ClaimError if one did, for another audience.
    """
    fitting = [key for key in keys if key.algorithm == algorithm]
    for key in fitting[:_TRIED_KEYS]:
        claims = _read(token, key, issuer)
        if claims is not None:
            return claims, key
    return None


def _read(token: str, key: VerifyingKey, issuer: Issuer) -> Mapping[str, Any] | None:
    try:
        claims: Mapping[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=[key.algorithm],
            audience=issuer.audience,
            issuer=issuer.issuer,
            options={
                # Where the claims are read, with a reason and by the time that was passed in.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_sub": False,
                "verify_jti": False,
                "verify_aud": issuer.audience is not None,
            },
        )
    except (InvalidAudienceError, MissingRequiredClaimError):  # checked after the signature
        raise ClaimError("the token is not for this audience (aud)") from None
    except (PyJWTError, ValueError, TypeError, RecursionError):
        return None
    return claims
