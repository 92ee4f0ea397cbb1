"""The folder of a gateway's own tokens: signing keys, a list of issued tokens, revocations.

    key-ID.pem      Ed25519; the newest signs, all of them verify
    issued.jsonl    one line for each token: its id, participant, pods and expiry, never the token
    revoked.json    what was revoked and has not expired

Files are written whole and renamed, or appended under a lock, so that several commands and gateways
may use the folder at a time.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mcpp_gateway.config import ConfigError
from mcpp_gateway.tokens.keys import KeySetError, VerifyingKey
from mcpp_gateway.tokens.revocations import Revocation, Revocations, decode_revocations
from mcpp_gateway.tokens.signing import IssuedToken, SigningKey, new_token, revocations_of


class TokenStore:
    """The folder of a gateway's tokens. Holds no state: every call reads the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Create the folder and a signing key, where there are none. Raises ConfigError."""
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            with self._lock():
                if not self._key_files():
                    self.add_key()
        except OSError as error:
            raise ConfigError(f"{self.folder}: {error.strerror}") from None

    def add_key(self) -> str:
        """Create a signing key, which signs from now on, and return its id."""
        key = SigningKey.new()
        self._write(f"key-{key.id}.pem", key.pem)
        return key.id

    def public_keys(self) -> tuple[VerifyingKey, ...]:
        """Return the keys that verify own tokens. Raises KeySetError."""
        return tuple(key.verifying() for key in self._keys())

    def sign(
        self,
        participant: str,
        pods: Sequence[str],
        rights: Mapping[str, Any],
        *,
        now: float,
        expires: float,
    ) -> str:
        """Issue a token and note that it was issued. Raises ConfigError."""
        issued = new_token(participant, pods, now, expires)
        try:
            token = list(self._keys())[-1].sign(issued, rights)
        except (KeySetError, IndexError) as error:
            raise ConfigError(f"{self.folder}: no signing key: {error}") from None
        with self._lock():
            kept = [each for each in self.issued() if each.expires > now]
            lines = [msgspec.json.encode(each) for each in (*kept, issued)]
            self._write("issued.jsonl", b"\n".join(lines) + b"\n")
        return token

    def issued(self) -> list[IssuedToken]:
        """Return the issued tokens, expired ones included for a while."""
        try:
            lines = (self.folder / "issued.jsonl").read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [msgspec.json.decode(line, type=IssuedToken) for line in lines]

    def revoke(self, name: str, now: float) -> list[Revocation]:
        """Revoke a token by its id, or all tokens of a participant, and return what was noted."""
        revocations = revocations_of(name, self.issued(), now)
        self.add_revocations(revocations, now)
        return revocations

    def add_revocations(self, revocations: Sequence[Revocation], now: float) -> None:
        """Add revocations to the file."""
        with self._lock():
            known = Revocations()
            known.add([*self.revocations(), *revocations], now)
            self._write("revoked.json", known.encode())

    def revocations(self) -> list[Revocation]:
        """Return what was revoked. Raises msgspec.DecodeError if the file is damaged."""
        try:
            return decode_revocations((self.folder / "revoked.json").read_bytes())
        except FileNotFoundError:
            return []

    def changes(self) -> object:
        """Return a value that differs if keys or revocations have changed."""
        found = []
        for path in (self.folder / "revoked.json", self.folder):
            try:
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                found.append((0, 0, 0))
        return found

    # --- private --------------------------------------------------------------------------------

    def _key_files(self) -> list[Path]:
        return sorted(self.folder.glob("key-*.pem"), key=lambda path: path.stat().st_mtime_ns)

    def _keys(self) -> Iterator[SigningKey]:
        """Yield the keys, oldest first. Raises KeySetError."""
        for path in self._key_files():
            try:
                yield SigningKey(path.stem.removeprefix("key-"), path.read_bytes())
            except OSError as error:
                raise KeySetError(f"{path}: {error}") from None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _write(self, name: str, data: bytes) -> None:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=self.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self.folder / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
