"""Grants: what signed tokens admit, as gateways tell each other and the log keeps it.

A participant with a signed token is configured nowhere. So its join carries what the token admits
to the leader, and the log to all gateways: each of them may lead next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mcpp.filters import everything, parse
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.limits import NO_LIMITS, ParticipantLimits
from mcpp_gateway.core.sessions import ParticipantSettings


@dataclass(frozen=True, slots=True)
class GrantedSettings:
    """The settings of a participant, from whose token, and until when."""

    issuer: str
    settings: ParticipantSettings
    until: float
    issued: float = 0.0  # by the gateway's clock, at the earliest
    token_id: str | None = None
    key: str | None = None  # fingerprint of the key that signed it


class _Grant(msgspec.Struct, frozen=True, array_like=True):
    issuer: str
    until: float
    capabilities: Sequence[Mapping[str, Any]]
    bounds: Sequence[Mapping[str, Any]] | None = None  # what the issuer may grant
    multiple: bool = False
    hears: Mapping[str, Any] | None = None
    person: bool = False
    limits: ParticipantLimits = NO_LIMITS
    at_most: ParticipantLimits = NO_LIMITS
    issued: float = 0.0
    token_id: str | None = None
    key: str | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Grant).decode


def encode_grant(granted: GrantedSettings) -> bytes:
    """Return a grant as bytes, without the participant's id."""
    settings = granted.settings
    bounds = settings.capabilities.bounds
    return _encode(
        _Grant(
            granted.issuer,
            granted.until,
            settings.capabilities.patterns,
            None if bounds is None else bounds.patterns,
            settings.multiple,
            None if settings.hears == everything else settings.hears.to_json(),
            settings.person,
            settings.limits,
            settings.at_most,
            granted.issued,
            granted.token_id,
            granted.key,
        )
    )


def decode_grant(participant: str, data: bytes) -> GrantedSettings:
    """Return the grant that bytes hold. Raises msgspec.DecodeError, CapabilityError, FilterError.

    The last two cannot happen with what a gateway of this version has encoded.
    """
    grant = _decode(data)
    capabilities = Capabilities(grant.capabilities)
    if grant.bounds is not None:
        capabilities = capabilities.within(Capabilities(grant.bounds))
    settings = ParticipantSettings(
        participant,
        capabilities,
        grant.multiple,
        everything if grant.hears is None else parse(grant.hears),
        person=grant.person,
        limits=grant.limits,
        at_most=grant.at_most,
    )
    return GrantedSettings(
        grant.issuer, settings, grant.until, grant.issued, grant.token_id, grant.key
    )


def have_equal_rights(one: GrantedSettings, other: GrantedSettings) -> bool:
    """Return whether two tokens of a participant admit the same."""
    return _rights(one) == _rights(other)


def _rights(granted: GrantedSettings) -> bytes:
    return encode_grant(GrantedSettings(granted.issuer, granted.settings, until=0.0))
