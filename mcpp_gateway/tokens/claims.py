"""Claims: which participant a verified token stands for, within what its issuer may grant. No I/O.

A token states less than its issuer's template, never more: an envelope has to match the patterns of
both, limits take the minimum, and `hears` combines by AND.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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

MAX_TOKEN_LENGTH: Final = 8192  # of a signed one, in characters (G-04)
_CACHED_BYTES: Final = 131_072  # of claims; what they are compiled to takes 40 times as much
_LEAST_WEIGHT: Final = 256
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


class _StatedRights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The namespaced claim. A member that is not understood may be a limit, so it is refused."""

    pod: str | list[str] | None = None
    capabilities: list[dict[str, Any]] | None = None
    hears: dict[str, Any] | None = None
    limits: ParticipantLimits = NO_LIMITS
    multiple: bool = False
    person: bool = False
    admin: bool = False


class _Rights(NamedTuple):
    """The namespaced claim, within what its issuer may grant."""

    stated: _StatedRights
    capabilities: Capabilities
    hears: Filter


class RightsReader:
    """Reads what tokens of one issuer state of rights. Owns a cache of what it has compiled.

    Compiling 130 patterns takes 4 ms and 200 kB. Tokens of one holder, and mostly those of all,
    state the same; so do requests with the same token.
    """

    def __init__(self, issuer: str, template: Template, namespace: str) -> None:
        """`namespace` is the claim that holds capabilities, hears, limits, multiple and person."""
        self.issuer = issuer
        self.template = template
        self._namespace = namespace
        self._allowed = Capabilities(template.capabilities)
        self._read: dict[bytes, _Rights | ClaimError] = {}  # the one used last is the last
        self._bytes = 0

    def read(self, claims: Mapping[str, Any]) -> _Rights:
        """Return the rights of a token. Raises ClaimError."""
        stated = claims.get(self._namespace, {})
        text = _encoded(stated, self._namespace)
        found = self._read.pop(text, None)
        if found is None:
            try:
                found = self._compile(stated)
            except ClaimError as error:
                found = error
            self._make_room(_weight(text))
        self._read[text] = found
        if isinstance(found, ClaimError):
            raise ClaimError(str(found))
        return found

    def _make_room(self, weight: int) -> None:
        self._bytes += weight
        while self._bytes > _CACHED_BYTES and self._read:
            oldest = next(iter(self._read))
            del self._read[oldest]
            self._bytes -= _weight(oldest)

    def _compile(self, value: Any) -> _Rights:
        stated = _stated_rights(value, self._namespace)
        for name in ("multiple", "person", "admin"):
            if getattr(stated, name) and not getattr(self.template, name):
                raise ClaimError(f"issuer {self.issuer!r} may not grant {name!r}")
        return _Rights(stated, self._capabilities(stated), _hears(stated, self.template))

    def _capabilities(self, stated: _StatedRights) -> Capabilities:
        if stated.capabilities is None:
            return self._allowed
        try:
            capabilities = Capabilities(stated.capabilities)
        except CapabilityError as error:
            raise ClaimError(f"capabilities{error.path[1:]} {error.reason}") from None
        # Welcomes and refusals show the patterns of the result.
        if {"kind": "*"} in capabilities.patterns:
            return self._allowed
        return capabilities.within(self._allowed)


def read_grant(
    claims: Mapping[str, Any],
    reader: RightsReader,
    *,
    subject: str,
    leeway_seconds: float,
    is_own: bool = False,
    pods: tuple[str, ...],
    now: float,
) -> Grant:
    """Return what verified claims admit. Raises ClaimError.

    Args:
        claims: of a token whose signature, issuer and audience are right.
        reader: of the issuer's tokens.
        subject: the claim that names the participant.
        leeway_seconds: how far the issuer's clock may differ.
        is_own: whether it is one of the gateway's own, which end and are revoked to the second.
        pods: all pods of the gateway.
        now: the time.
    """
    until, issued = _times(claims, leeway_seconds, now, is_own=is_own)
    template = reader.template
    id = claims.get(subject)
    if not isinstance(id, str) or id_mistake(id) is not None:
        raise ClaimError(f"the claim {subject!r} is not a participant id")
    if not template.allows_participant(id):
        raise ClaimError(f"issuer {reader.issuer!r} may not name participant {id!r}")
    stated, capabilities, hears = reader.read(claims)
    settings = ParticipantSettings(
        id,
        capabilities,
        stated.multiple,
        hears,
        person=stated.person,
        limits=template.limits,
        at_most=stated.limits,
    )
    named = (claims.get("pod"), stated.pod)
    allowed = [pod for pod in pods if template.allows_pod(pod)]
    token_id = claims.get("jti")
    _encoded(token_id, "jti")
    return Grant(
        reader.issuer,
        settings,
        until,
        issued,
        token_id if isinstance(token_id, str) else None,
        pods=tuple(pod for pod in allowed if all(_names(each, pod) for each in named)),
        admin=stated.admin,
    )


def _times(
    claims: Mapping[str, Any], leeway_seconds: float, now: float, *, is_own: bool
) -> tuple[float, float]:
    """Return when a token ends, and when it was issued at the earliest. Raises ClaimError."""
    slack_seconds = 0.0 if is_own else leeway_seconds
    expiry, issued = _time(claims, "exp"), _time(claims, "iat")
    begins = _time(claims, "nbf")
    if expiry is None:
        raise ClaimError("the token has no expiry (exp)")
    until = expiry + slack_seconds
    if until <= now:
        raise ClaimError("the token has expired")
    if expiry - now > MAX_SECONDS:
        raise ClaimError(f"the token is valid for more than {MAX_DAYS} days")
    if max(begins or 0.0, issued or 0.0) > now + leeway_seconds:
        raise ClaimError("the token is not valid yet")
    # The earliest time at which it can have been issued: the issuer's clock may be ahead.
    return until, max(0.0, (issued or 0.0) - slack_seconds)


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    # Not NaN, which is smaller than nothing.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise ClaimError(f"the claim {name!r} is not a time")
    return float(value)


def _encoded(value: Any, name: str) -> bytes:
    """Return a claim as bytes; refuse what no text or log of the gateway can hold (S-05)."""
    try:
        return _encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        raise ClaimError(
            f"the claim {name!r} has half of a surrogate pair, or a number of more than 64 bits"
        ) from None


def _weight(text: bytes) -> int:
    return _LEAST_WEIGHT + len(text)


def _stated_rights(value: Any, namespace: str) -> _StatedRights:
    try:
        rights = msgspec.convert(value, _StatedRights)
        check_participant_limits(rights.limits, "limits")
    except msgspec.ValidationError as error:
        raise ClaimError(f"the claim {namespace!r} is not valid: {error}") from None
    except BadKeyError as error:
        raise ClaimError(f"the claim {namespace!r}: {error.key} {error.reason}") from None
    return rights


def _hears(rights: _StatedRights, template: Template) -> Filter:
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
