"""Checks of the issuers of signed tokens."""

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from mcpp.errors import CapabilityError, FilterError
from mcpp.filters import Filter, everything
from mcpp.filters import parse as parse_filter
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.config.checks import check_participant_limits
from mcpp_gateway.config.errors import BadKeyError
from mcpp_gateway.config.sections import AllowSection, IssuerSection

OWN_ISSUER: Final = "gateway"
_MAX_SKEW_SECONDS: Final = 300.0
_is_visible = re.compile(r"[!-~]+").fullmatch
_LOOPBACK: Final = (("http", "127.0.0.1"), ("http", "::1"), ("http", "localhost"))


class IssuerSettings(msgspec.Struct, frozen=True):
    """A checked issuer: where its keys are, and what its tokens may grant."""

    name: str
    audience: str
    keys: str  # a URL or a file
    keys_kind: str  # jwks_url, jwks_file or public_key
    issuer: str | None
    claims: str
    subject: str
    clock_skew_seconds: float
    allow: AllowSection
    hears: Filter


def read_issuer(name: str, section: IssuerSection, folder: Path) -> IssuerSettings:
    """Check an issuer's section."""
    key = f"issuers.{name}"
    if name == OWN_ISSUER:
        raise BadKeyError(key, f"{OWN_ISSUER!r} is the gateway's own issuer")
    forms = ("jwks_url", "jwks_file", "public_key")
    stated = [each for each in forms if getattr(section, each) is not None]
    if len(stated) != 1:
        raise BadKeyError(key, "needs exactly one of jwks_url, jwks_file, public_key")
    (kind,) = stated
    keys = getattr(section, kind)
    if kind != "jwks_url":
        keys = str(folder / keys)
    elif not _is_key_server(keys):
        reason = "must be an https address, in ASCII (http for this machine only)"
        raise BadKeyError(f"{key}.jwks_url", reason)
    if not section.audience:
        raise BadKeyError(f"{key}.audience", "must not be empty: other services' tokens would do")
    if not 0 <= section.clock_skew_seconds <= _MAX_SKEW_SECONDS:
        raise BadKeyError(f"{key}.clock_skew_seconds", f"must be 0 to {_MAX_SKEW_SECONDS:g}")
    allow = section.allow
    check_participant_limits(allow.limits, f"{key}.allow.limits")
    try:
        Capabilities(allow.capabilities)
        hears = everything if allow.hears is None else parse_filter(allow.hears)
    except CapabilityError as error:
        where = f"{key}.allow.capabilities"
        raise BadKeyError(where, f"{error.path[1:]} {error.reason}".strip()) from None
    except FilterError as error:
        raise BadKeyError(f"{key}.allow.hears", f"{error.path[1:]} {error.reason}") from None
    return IssuerSettings(
        name,
        section.audience,
        keys,
        kind,
        section.issuer,
        section.claims,
        section.subject,
        section.clock_skew_seconds,
        allow,
        hears,
    )


def _is_key_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return bool(host and _is_visible(url)) and (
        parts.scheme == "https" or (parts.scheme, host) in _LOOPBACK
    )
