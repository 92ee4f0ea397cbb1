"""The folder of a gateway's own tokens: signing keys, a list of issued tokens, revocations.

    key-N-….pem     Ed25519; the one with the highest number signs, all of them verify
    issued.jsonl    one line for each token: its id, participant, pods and expiry, never the token
    revoked.json    what was revoked and has not expired

Files are written whole and renamed, under a lock, so that several commands and gateways may use the
folder at a time. They belong to the owner of the folder, also if a command of root writes them:
otherwise the gateway could not read what was revoked.
"""

import fcntl
import logging
import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from mcpp_gateway.config import ConfigError
from mcpp_gateway.private_files import (
    WRITABLE_BY_ALL,
    give_to_owner,
    read_own,
    read_unlinked,
    write_private,
)
from mcpp_gateway.tokens.keys import KeySetError, VerifyingKey
from mcpp_gateway.tokens.revocations import (
    Revocation,
    Revocations,
    TokenFileError,
    decode_revocations,
)
from mcpp_gateway.tokens.signing import (
    IssuedToken,
    Revoked,
    SigningKey,
    check_key_id,
    new_token,
    revoke_name,
)

_is_number = re.compile(r"[0-9]{1,9}").fullmatch

logger = logging.getLogger("mcpp.gateway")


class TokenStore:
    """The folder of a gateway's tokens. Holds no state: every call reads the files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def create(self) -> None:
        """Create the folder and a signing key, where there are none. Raises ConfigError."""
        try:
            self._make_folder()
            with self._lock():
                if not self._key_files():
                    self._add_key()
        except OSError as error:
            raise ConfigError(f"{error.filename or self.folder}: {error.strerror}") from None

    def check_user(self) -> None:
        """Raise ConfigError if the gateway could not read what this user would write here.

        Where the folder is root's, as a mounted volume may be, its permissions decide.
        """
        user = os.geteuid()
        try:
            owner = self.folder.stat().st_uid
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"{self.folder}: {error.strerror}") from None
        if user in (0, owner) or (owner == 0 and os.access(self.folder, os.W_OK | os.X_OK)):
            return
        reason = f"belongs to the user {_user_name(owner)}: run this as that user, or as root"
        raise ConfigError(f"{self.folder}: {reason}")

    def add_key(self) -> str:
        """Create a signing key, which signs from now on, and return its id. Raises OSError."""
        with self._lock():
            return self._add_key()

    def delete_key(self, id: str) -> None:
        """Delete a signing key; if it was the only one, create another. Raises ConfigError."""
        try:
            with self._lock():
                names = self.key_ids()
                check_key_id(id, names)
                if names == [id]:
                    self._add_key()
                (self.folder / f"key-{id}.pem").unlink()
        except OSError as error:
            raise ConfigError(f"{self.folder}: {error.strerror}") from None

    def key_ids(self) -> list[str]:
        """Return the ids of the signing keys; the last one signs. Raises OSError."""
        return [_key_id(path) for path in self._key_files()]

    def public_keys(self, known: Sequence[VerifyingKey] = ()) -> tuple[VerifyingKey, ...]:
        """Return the keys that verify own tokens.

        A key is gone when its file is. Of a file that cannot be read now, or is being written, the
        key in `known` is returned, if there is one. Raises OSError if the folder cannot be read,
        and KeySetError if a file cannot and no key is known yet.
        """
        keys: list[VerifyingKey] = []
        for path in self._key_files():
            try:
                keys.append(self._read_key(path).verifying())
            except KeySetError as error:
                if not known:
                    raise
                logger.error("a key cannot be read", extra={"reason": str(error)})  # noqa: TRY400
                keys += [key for key in known if key.id == _key_id(path)]
        return tuple(keys)

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
        try:
            key = self._read_key(self._key_files()[-1])
            issued = new_token(participant, pods, now, expires, key.id)
            token = key.sign(issued, rights)
        except (KeySetError, IndexError) as error:
            raise ConfigError(f"{self.folder}: no signing key: {error}") from None
        with self._lock():
            kept = [line for _, line in self._issued_lines() if not _is_over(line, now)]
            self._write("issued.jsonl", b"\n".join([*kept, msgspec.json.encode(issued)]) + b"\n")
        return token

    def issued(self) -> list[IssuedToken]:
        """Return the issued tokens, expired ones included for a while. Raises TokenFileError.

        A damaged line is left out, with a warning: it must not keep others from being revoked.
        """
        found: list[IssuedToken] = []
        for number, line in self._issued_lines():
            try:
                found.append(_decode_issued(line))
            except TokenFileError as error:
                # One text, as a command shows no facts of log lines.
                path = self.folder / "issued.jsonl"
                logger.warning(f"{path}: line {number} is left out: {error}")
        return found

    def check(self) -> None:
        """Check that keys and revocations can be read.

        Raises KeySetError, OSError and TokenFileError.
        """
        self.public_keys()
        self.revocations()

    def check_issued(self) -> None:
        """Raise TokenFileError if the list of issued tokens cannot be read or has a bad line."""
        for number, line in self._issued_lines():
            try:
                _decode_issued(line)
            except TokenFileError as error:
                path = self.folder / "issued.jsonl"
                raise TokenFileError(f"{path}: line {number}: {error}") from None

    def is_issued_readable(self) -> bool:
        """Return whether the list of issued tokens can be read, and has no damaged line."""
        try:
            self.check_issued()
        except TokenFileError:
            return False
        return True

    def revoke(self, name: str, now: float, *, may_be_unknown: bool = False) -> Revoked:
        """Revoke a token by its id, or all tokens of a participant.

        Raises UnknownNameError if no such token was issued, unless it `may_be_unknown`, or a
        damaged line of the list may be about it.
        """
        unsure = may_be_unknown or not self.is_issued_readable()
        revoked = revoke_name(name, self.issued(), now, may_be_unknown=unsure)
        self.add_revocations(revoked.revocations, now)
        return revoked

    def add_revocations(self, revocations: Sequence[Revocation], now: float) -> None:
        """Add revocations to the file. Raises TokenFileError and TooManyRevocationsError."""
        with self._lock():
            known = Revocations()
            known.add(self.revocations(), now)
            known.revoke(revocations, now)
            self._write("revoked.json", known.encode())

    def revocations(self) -> list[Revocation]:
        """Return what was revoked. Raises TokenFileError."""
        data = self._read("revoked.json")
        try:
            return [] if data is None else decode_revocations(data)
        except TokenFileError as error:
            raise TokenFileError(f"{self.folder / 'revoked.json'}: {error}") from None

    def changes(self) -> object:
        """Return a value that differs if keys or revocations have changed."""
        try:
            with os.scandir(self.folder) as entries:
                return {each.name: _version(each) for each in entries if _is_watched(each.name)}
        except OSError as error:
            return error.errno

    # --- private --------------------------------------------------------------------------------

    def _add_key(self) -> str:
        # Not the time of the file tells which key signs: a copy of the folder may have another.
        number = max((_number(path) for path in self._key_files()), default=0) + 1
        key = SigningKey.new(f"{number}-")
        self._write(f"key-{key.id}.pem", key.pem)
        return key.id

    def _key_files(self) -> list[Path]:
        """Return the files of the keys, oldest first. Raises OSError."""
        # Not `glob`, for which a folder that cannot be read has no files.
        found = [path for path in self.folder.iterdir() if _is_key(path.name)]
        return sorted(found, key=lambda path: (_number(path), path.name))

    def _read_key(self, path: Path) -> SigningKey:
        try:
            # Nobody else may add a key: it would sign tokens for any participant.
            users = (0, os.geteuid(), self.folder.stat().st_uid)
            return SigningKey(_key_id(path), read_own(path, users, WRITABLE_BY_ALL))
        except OSError as error:
            raise KeySetError(f"{path}: {error.strerror}") from None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        descriptor = self._open_lock()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _open_lock(self) -> int:
        path, flags = self.folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return os.open(path, flags)
        give_to_owner(descriptor, self.folder)
        return descriptor

    def _make_folder(self) -> None:
        """Create the folder, which belongs to the owner of the one above if root creates it."""
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            return
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            give_to_owner(descriptor, self.folder.parent)
        finally:
            os.close(descriptor)

    def _read(self, name: str) -> bytes | None:
        """Return a file, None if there is none. Raises TokenFileError."""
        path = self.folder / name
        try:
            return read_unlinked(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TokenFileError(f"{path}: {error.strerror}") from None

    def _issued_lines(self) -> Iterator[tuple[int, bytes]]:
        """Return the lines of the list of issued tokens, numbered. Raises TokenFileError."""
        return enumerate((self._read("issued.jsonl") or b"").splitlines(), 1)

    def _write(self, name: str, data: bytes) -> None:
        write_private(self.folder / name, data, for_folder_owner=True)


def _decode_issued(line: bytes) -> IssuedToken:
    try:
        return msgspec.json.decode(line, type=IssuedToken)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TokenFileError(f"damaged: {error}") from None


def _is_over(line: bytes, now: float) -> bool:
    """Return whether a line is of an expired token; a damaged one may be of one to be revoked."""
    try:
        return _decode_issued(line).expires <= now
    except TokenFileError:
        return False


def _user_name(id: int) -> str:
    try:
        return repr(pwd.getpwuid(id).pw_name)
    except KeyError:
        return str(id)


def _is_key(name: str) -> bool:
    return name.startswith("key-") and name.endswith(".pem")


def _is_watched(name: str) -> bool:
    return name == "revoked.json" or _is_key(name)


def _key_id(path: Path) -> str:
    return path.stem.removeprefix("key-")


def _number(path: Path) -> int:
    """Return the number that the id of a key begins with; 0 for one that has none."""
    number = _key_id(path).partition("-")[0]
    return int(number) if _is_number(number) else 0


def _version(entry: os.DirEntry[str]) -> tuple[int, int, int]:
    try:
        status = entry.stat()
    except OSError:  # deleted just now
        return 0, 0, 0
    return status.st_ctime_ns, status.st_size, status.st_ino  # changed also by `chmod`
