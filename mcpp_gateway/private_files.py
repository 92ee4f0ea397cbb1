"""Files that only the gateway's user may read: written whole, so that a reader finds no part."""

import errno
import os
import stat
import tempfile
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Final

from mcpp_gateway.storage.disk import sync_path

WRITABLE_BY_ALL: Final = stat.S_IWOTH
WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_MAX_BYTES: Final = 1 << 20
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_own(path: Path, users: Container[int], unwanted_mode: int = WRITABLE_BY_OTHERS) -> bytes:
    """Return a file of one of these users. Raises OSError, also for one that others may write."""
    with os.fdopen(os.open(path, _READ), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in users or status.st_mode & unwanted_mode:
            raise PermissionError(errno.EACCES, "another user may have written it")
        return file.read(_MAX_BYTES)


def read_unlinked(path: Path) -> bytes:
    """Return a file that is no symbolic link. Raises OSError.

    In a folder of another user, a link would make root read, and pass on, any file.
    """
    with os.fdopen(os.open(path, _READ), "rb") as file:
        return file.read()


def write_private(path: Path, data: bytes, *, for_folder_owner: bool = False) -> None:
    """Write a file of one user alone (mode 0600), and give it its name when it is complete.

    It belongs to this user; `for_folder_owner` makes a file that root writes belong to the owner of
    the folder.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if for_folder_owner:
                give_to_owner(file.fileno(), path.parent)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        sync_path(path.parent)  # a power failure must not bring the old file back
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def give_to_owner(descriptor: int, folder: Path) -> None:
    """Make a file that root has just created belong to the owner of a folder. Raises OSError."""
    owner = folder.stat()
    if os.geteuid() == 0 != owner.st_uid:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def kept_secret(path: Path, new: bytes) -> bytes:
    """Return the secret that a file holds, or store the new one.

    A shorter one is left by a crash or a full disk; an empty one would be no secret.
    """
    with suppress(FileNotFoundError):
        secret = path.read_bytes()
        if len(secret) >= len(new):
            return secret
    write_private(path, new)
    return new
