"""Checks of the participants: ids, tokens, capabilities and what they may hear."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mcpp.errors import CapabilityError, FilterError
from mcpp.filters import Filter, everything
from mcpp.filters import parse as parse_filter
from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.envelope import PARTICIPANT_PATTERN
from mcpp_gateway.config.errors import BadKeyError
from mcpp_gateway.config.sections import AdminSection, ParticipantSection
from mcpp_gateway.config.warnings import of_length

_is_participant = re.compile(PARTICIPANT_PATTERN).fullmatch
is_token = re.compile(r"[A-Za-z0-9._~-]{1,512}").fullmatch
_PARTICIPANT_RULE: Final = "a participant id has 1 to 64 characters of A-Z a-z 0-9 . _ : @ -"
TOKEN_RULE: Final = "a token has 1 to 512 characters of A-Z a-z 0-9 . _ ~ -"
TOKEN_FORMS: Final = ("token", "token_sha256", "token_file", "token_env")


def id_mistake(id: str) -> str | None:
    """Return why a text cannot be a participant's id (G-09), or None."""
    if not _is_participant(id):
        return _PARTICIPANT_RULE
    return (
        "ids that start with system: are reserved for the gateway"
        if id.startswith("system:")
        else None
    )


def digest(token: str) -> bytes:
    """Return the SHA-256 of a token, which is all that the gateway keeps of it."""
    return hashlib.sha256(token.encode()).digest()


def token_digest(
    participant: ParticipantSection | AdminSection,
    key: str,
    environment: Mapping[str, str],
    folder: Path,
    warnings: list[str],
) -> bytes:
    """Return the digest of a participant's token, from exactly one of its four forms (G-46)."""
    stated = [name for name in TOKEN_FORMS if getattr(participant, name) is not None]
    if len(stated) != 1:
        reason = "needs exactly one of token, token_sha256, token_file, token_env"
        raise BadKeyError(key, reason)
    if participant.token_sha256 is not None:
        if not re.fullmatch(r"[0-9a-fA-F]{64}", participant.token_sha256):
            raise BadKeyError(f"{key}.token_sha256", "must be 64 hexadecimal digits")
        return bytes.fromhex(participant.token_sha256)
    where = f"{key}.{stated[0]}"
    token = participant.token
    if participant.token_file is not None:
        try:
            token = (folder / participant.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise BadKeyError(where, f"cannot read the file: {error.strerror}") from None
        except ValueError:  # its message may quote the token
            raise BadKeyError(where, "cannot read the file: it is not text") from None
    elif participant.token_env is not None:
        token = environment.get(participant.token_env)
        if token is None:
            raise BadKeyError(where, f"the variable {participant.token_env} is not set")
    # The message must not contain the token: it ends up in logs.
    if token is None or not is_token(token):
        raise BadKeyError(where, TOKEN_RULE)
    warnings += of_length(token, where)
    return digest(token)


def read_capabilities(participant: ParticipantSection, key: str) -> Capabilities:
    """Return what a participant may send."""
    try:
        return Capabilities(participant.capabilities)
    except CapabilityError as error:
        raise BadKeyError(f"{key}.capabilities", f"{error.path[1:]} {error.reason}") from None


def read_hears(participant: ParticipantSection, key: str) -> Filter:
    """Return what a participant may hear."""
    if participant.hears is None:
        return everything
    try:
        return parse_filter(participant.hears)
    except FilterError as error:
        raise BadKeyError(f"{key}.hears", f"{error.path[1:]} {error.reason}".strip()) from None
