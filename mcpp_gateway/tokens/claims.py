"""Claims: which participant a verified token stands for, within what its issuer may grant. No I/O.

A token states less than its issuer's template, never more: an envelope has to match the patterns of
both, limits take the minimum, and `hears` combines by AND.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mcpp.errors import CapabilityError, FilterError
from mcpp.filters import Filter, everything
from mcpp.filters import parse as parse_filter
from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.globs import compile_glob
from mcpp_gateway.config.checks import check_participant_limits
from mcpp_gateway.config.errors import BadKeyError
from mcpp_gateway.config.participants import id_mistake
from mcpp_gateway.core.joining.grants import GrantedSettings
from mcpp_gateway.core.limits import NO_LIMITS, ParticipantLimits
from mcpp_gateway.core.sessions import ParticipantSettings
from mcpp_gateway.tokens.revocations import MAX_DAYS, MAX_SECONDS

_encode = msgspec.msgpack.Encoder().encode


class ClaimError(Exception):
    """A token that is signed well, but does not admit anyone; the reason is for its holder."""


@dataclass(frozen=True, slots=True)
class Template:
    """What an issuer may grant."""

    pods: tuple[str, ...] = ("*",)
    participants: tuple[str, ...] = ("*",)
    capabilities: tuple[Mapping[str, Any], ...] = ({"kind": "*"},)
    hears: Filter = everything
    limits: ParticipantLimits = NO_LIMITS
    multiple: bool = False
    person: bool = False
    admin: bool = False

    def allows_pod(self, pod: str) -> bool:
        """Return whether tokens of the issuer may be for a pod."""
        return _matches(self.pods, pod)

    def allows_participant(self, id: str) -> bool:
        """Return whether tokens of the issuer may name a participant."""
        return _matches(self.participants, id)


@dataclass(frozen=True, slots=True)
class Grant(GrantedSettings):
    """What a token admits: a participant, to some pods, until it expires."""

    pods: tuple[str, ...] = ()
    admin: bool = False


class _Rights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The namespaced claim. A member that is not understood may be a limit, so it is refused."""

    pod: str | list[str] | None = None
    capabilities: list[dict[str, Any]] | None = None
    hears: dict[str, Any] | None = None
    limits: ParticipantLimits = NO_LIMITS
    multiple: bool = False
    person: bool = False
    admin: bool = False


def read_grant(
    claims: Mapping[str, Any],
    *,
    issuer: str,
    template: Template,
    namespace: str,
    subject: str,
    leeway_seconds: float,
    pods: tuple[str, ...],
    now: float,
) -> Grant:
    """Return what verified claims admit. Raises ClaimError.

    Args:
        claims: of a token whose signature, issuer and audience are right.
        issuer: the name of the issuer in the configuration.
        template: what the issuer may grant.
        namespace: the claim that holds capabilities, hears, limits, multiple and person.
        subject: the claim that names the participant.
        leeway_seconds: how far the issuer's clock may differ.
        pods: all pods of the gateway.
        now: the time.
    """
    until, issued = _times(claims, leeway_seconds, now)
    id = claims.get(subject)
    if not isinstance(id, str) or id_mistake(id) is not None:
        raise ClaimError(f"the claim {subject!r} is not a participant id")
    if not template.allows_participant(id):
        raise ClaimError(f"issuer {issuer!r} may not name participant {id!r}")
    for name in (namespace, "jti"):
        _check_encodable(claims.get(name), name)
    rights = _rights(claims.get(namespace, {}), namespace)
    for name in ("multiple", "person", "admin"):
        if getattr(rights, name) and not getattr(template, name):
            raise ClaimError(f"issuer {issuer!r} may not grant {name!r}")
    capabilities, hears = _capabilities(rights, template), _hears(rights, template)
    settings = ParticipantSettings(
        id,
        capabilities,
        rights.multiple,
        hears,
        person=rights.person,
        limits=template.limits,
        at_most=rights.limits,
    )
    stated = rights.pod if claims.get("pod") is None else claims["pod"]
    allowed = tuple(pod for pod in pods if template.allows_pod(pod) and _names(stated, pod))
    token_id = claims.get("jti")
    return Grant(
        issuer,
        settings,
        until,
        issued,
        token_id if isinstance(token_id, str) else None,
        pods=allowed,
        admin=rights.admin,
    )


def _times(claims: Mapping[str, Any], leeway_seconds: float, now: float) -> tuple[float, float]:
    expiry, issued = _time(claims, "exp"), _time(claims, "iat")
    begins = _time(claims, "nbf")
    if expiry is None:
        raise ClaimError("the token has no expiry (exp)")
    until = expiry + leeway_seconds
    if until <= now:
        raise ClaimError("the token has expired")
    if expiry - now > MAX_SECONDS:
        raise ClaimError(f"the token is valid for more than {MAX_DAYS} days")
    if max(begins or 0.0, issued or 0.0) > now + leeway_seconds:
        raise ClaimError("the token is not valid yet")
    # The earliest time at which it can have been issued: the issuer's clock may be ahead.
    return until, max(0.0, (issued or 0.0) - leeway_seconds)


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    # Not NaN, which is smaller than nothing.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise ClaimError(f"the claim {name!r} is not a time")
    return float(value)


def _check_encodable(value: Any, name: str) -> None:
    """Refuse what JSON can write and no text or log of the gateway can hold (S-05)."""
    try:
        _encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        raise ClaimError(
            f"the claim {name!r} has half of a surrogate pair, or a number of more than 64 bits"
        ) from None


def _rights(value: Any, namespace: str) -> _Rights:
    try:
        rights = msgspec.convert(value, _Rights)
        check_participant_limits(rights.limits, "limits")
    except msgspec.ValidationError as error:
        raise ClaimError(f"the claim {namespace!r} is not valid: {error}") from None
    except BadKeyError as error:
        raise ClaimError(f"the claim {namespace!r}: {error.key} {error.reason}") from None
    return rights


def _capabilities(rights: _Rights, template: Template) -> Capabilities:
    allowed = Capabilities(template.capabilities)
    if rights.capabilities is None:
        return allowed
    try:
        stated = Capabilities(rights.capabilities)
    except CapabilityError as error:
        raise ClaimError(f"capabilities{error.path[1:]} {error.reason}") from None
    # Welcomes and refusals show the patterns of the result.
    return allowed if {"kind": "*"} in stated.patterns else stated.within(allowed)


def _hears(rights: _Rights, template: Template) -> Filter:
    if rights.hears is None:
        return template.hears
    try:
        stated = parse_filter(rights.hears)
        return stated if template.hears == everything else template.hears & stated
    except FilterError as error:
        raise ClaimError(f"hears{error.path[1:]} {error.reason}") from None


def _names(stated: Any, pod: str) -> bool:
    if stated is None:
        return True  # the issuer's pods
    return pod in stated if isinstance(stated, list) else stated == pod


def _matches(patterns: tuple[str, ...], text: str) -> bool:
    return any(compile_glob(pattern)(text) for pattern in patterns)
