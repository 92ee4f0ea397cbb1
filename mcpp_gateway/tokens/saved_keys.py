"""Keys of issuers on the disk, so that a restart does not need their key servers (S-08).

There is one file for each key server, in the folder of the logs or of the gateway's own tokens. It
holds public keys, but they decide who is admitted: a file that another user could have written is
not used.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec

from mcpp_gateway.private_files import read_own, write_private
from mcpp_gateway.tokens.keys import KeySetError, VerifyingKey, read_key_set

logger = logging.getLogger("mcpp.gateway")

_SKEW_SECONDS: Final = 300.0  # the clock may have been set back a little since


class _SavedKeySet(msgspec.Struct, frozen=True):
    url: str
    fetched: float  # Unix time
    key_set: str  # as the key server sent it


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_SavedKeySet).decode


class SavedKeys:
    """Files of key sets in a folder; without a folder nothing is kept. Holds no state."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def save(self, url: str, key_set: bytes, now: float) -> None:
        """Keep a key set that was fetched now. A failure is logged: the keys are in use anyway."""
        if self._folder is None:
            return
        try:
            saved = _SavedKeySet(url, now, key_set.decode())
            write_private(self._path(self._folder, url), _encode(saved))
        except (OSError, ValueError) as error:
            facts = {"url": url, "reason": str(error)}
            logger.warning("keys of an issuer cannot be saved", extra=facts)

    def load(self, url: str, now: float) -> tuple[Sequence[VerifyingKey], float] | None:
        """Return the keys that were saved and when they were fetched; None if there are none."""
        if self._folder is None:
            return None
        path = self._path(self._folder, url)
        try:
            with suppress(FileNotFoundError):
                saved = _decode(read_own(path, (os.geteuid(),)))
                if saved.url == url and saved.fetched <= now + _SKEW_SECONDS:
                    return read_key_set(saved.key_set.encode()), min(saved.fetched, now)
        except (OSError, msgspec.DecodeError, KeySetError, ValueError) as error:
            facts = {"path": str(path), "reason": str(error)}
            logger.warning("saved keys of an issuer cannot be used", extra=facts)
        return None

    def _path(self, folder: Path, url: str) -> Path:
        # No pod's name begins with a dot.
        return folder / f".issuer-keys-{sha256(url.encode()).hexdigest()[:16]}.json"
