"""The file operations of the durable log, as a seam for fault injection.

`OsDisk` is a folder of the operating system. The tests have another implementation, which loses
unsynced writes, tears and reorders them, and fails on demand.
"""

import fcntl
import os
import sys
from pathlib import Path
from typing import Protocol


class DiskFile(Protocol):
    """One open file. Reads may come from any thread; all else from one at a time."""

    @property
    def size(self) -> int:
        """The file's length in bytes, preallocated space included."""

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes at an offset; fewer at the end of the file."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data` at an offset."""

    def sync(self) -> None:
        """Return when everything written is on stable storage."""

    def allocate(self, size: int) -> None:
        """Grow the file to `size` bytes and reserve their space. Raises OSError ENOSPC."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def close(self) -> None:
        """Close the file."""


class Disk(Protocol):
    """One folder."""

    @property
    def location(self) -> str:
        """The folder's path."""

    def names(self) -> list[str]:
        """Return the names of the files, sorted."""

    def open(self, name: str, *, create: bool = False, write: bool = True) -> DiskFile:
        """Open a file; `create` makes a new one and fails if it exists."""

    def remove(self, name: str) -> None:
        """Delete a file."""

    def rename(self, name: str, to: str) -> None:
        """Give a file another name, atomically, in the place of a file that has it."""

    def sync(self) -> None:
        """Return when created, removed and changed names are on stable storage."""


class OsFile:
    """A file of the operating system. Owns its descriptor."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        have = len(data)
        while have < size and (more := os.pread(self._descriptor, size - have, offset + have)):
            parts.append(more)
            have += len(more)
        return b"".join(parts)

    def write(self, offset: int, data: bytes) -> None:
        written = os.pwrite(self._descriptor, data, offset)
        while written < len(data):
            written += os.pwrite(self._descriptor, data[written:], offset + written)

    def sync(self) -> None:
        if sys.platform == "darwin":  # there fsync leaves the data in the drive's cache
            fcntl.fcntl(self._descriptor, fcntl.F_FULLFSYNC)
        else:
            os.fdatasync(self._descriptor)

    def allocate(self, size: int) -> None:
        present = self.size
        if size <= present:
            return
        if sys.platform == "darwin":
            self.write(present, bytes(size - present))
        else:
            os.posix_fallocate(self._descriptor, present, size - present)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        """Close the file, once no other thread is reading from it."""
        # Left to `__del__`: closed under a reader, the descriptor's number could be another file's.

    def __del__(self) -> None:
        os.close(self._descriptor)


class OsDisk:
    """A folder of the operating system, created if it is missing unless `create` is False."""

    def __init__(self, folder: Path | str, *, create: bool = True) -> None:
        folder = self.folder = Path(folder)
        if not create:
            return
        missing = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in missing:  # the folder's own name has to survive a power loss, too
            sync_path(each.parent)

    @property
    def location(self) -> str:
        return str(self.folder)

    def names(self) -> list[str]:
        with os.scandir(self.folder) as found:
            return sorted(each.name for each in found if each.is_file())

    def open(self, name: str, *, create: bool = False, write: bool = True) -> OsFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return OsFile(os.open(self.folder / name, flags, 0o600))

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def rename(self, name: str, to: str) -> None:
        (self.folder / name).replace(self.folder / to)

    def sync(self) -> None:
        sync_path(self.folder)


def sync_path(path: Path) -> None:
    """Return when a file's content, or a folder's names, are on stable storage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
