"""Blobs in files: `POD/blobs/HASH`, and an empty file `POD/blobs/HASH.PARTICIPANT` per uploader.

The folder is the only record, so there is nothing that could disagree with it. An upload is
written to a file of another name and synced; then it gets its own name, the uploader's file is
made, and the folder is synced. Only then is it acknowledged. What an end of the process leaves in
between is a file whose name begins with a dot, or a blob without an uploader: both are removed at
the next start.
"""

import asyncio
import errno
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from mcpp_gateway.blobs.store import BlobStoreError, NoSpaceError, StoredBlob, WrongHashError
from mcpp_gateway.storage.disk import sync_path

BLOBS: Final = "blobs"
UNKNOWN_UPLOADER: Final = "~"  # erased, or not exported; no participant has this name
_THREADS: Final = 4
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

T = TypeVar("T")


class FolderStore:
    """Blobs below a folder; without one, below a temporary folder. Owns its threads."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs")

    async def load(self, pod: str) -> Sequence[StoredBlob]:
        if self._folder is None:
            return []
        folder = self._blobs(pod)
        return await self.run(lambda: load_folder(folder))

    async def begin(self, pod: str) -> "_FileWriter":
        folder = self._blobs(pod)
        return await self.run(lambda: _FileWriter(folder, self))

    async def open(self, pod: str, hash: str) -> "_FileReader":
        path = self._blobs(pod) / hash
        return await self.run(lambda: _FileReader(path, self))

    async def delete(self, pod: str, hash: str) -> None:
        folder = self._blobs(pod)
        await self.run(lambda: delete_blobs(folder, [hash]))

    async def close(self) -> None:
        self._threads.shutdown()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _blobs(self, pod: str) -> Path:
        """Return the folder of a pod's blobs; the temporary one is made when it is needed first."""
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="mcpp-blobs-")
            self._folder = Path(self._temporary.name)
        return self._folder / pod / BLOBS

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function that reads or writes files on another thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except OSError as error:
            kind = NoSpaceError if error.errno in _NO_SPACE else BlobStoreError
            raise kind(error.strerror or str(error)) from error


class BlobFolder(FolderStore):
    """Blobs in one folder: those of a single pod, such as an export."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._only = folder

    def _blobs(self, pod: str) -> Path:
        return self._only


class _FileWriter:
    """A file that is being written. Owns its descriptor."""

    def __init__(self, folder: Path, store: FolderStore) -> None:
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync_path(folder.parent)
        self._folder = folder
        self._store = store
        self._path = folder / f".{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o600)
        self._hash = hashlib.sha256()

    async def write(self, data: bytes) -> None:
        await self._store.run(lambda: self._write(data))

    async def finish(self, participant: str, time: float, hash: str | None) -> str:
        return await self._store.run(lambda: self._finish(participant, time, hash))

    async def abort(self) -> None:
        await self._store.run(self._abort)

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]

    def _finish(self, participant: str, time: float, expected: str | None) -> str:
        hash = self._hash.hexdigest()
        if expected not in (None, hash):
            raise WrongHashError(f"the content has the hash {hash}")
        os.fsync(self._file)
        # A blob that is there already stays: others may be reading it.
        if not (self._folder / hash).exists():
            self._path.rename(self._folder / hash)
        marker = self._folder / f"{hash}.{participant}"
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.utime(marker, (time, time))
        sync_path(self._folder)
        self._abort()
        return hash

    def _abort(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._path.unlink(missing_ok=True)


class _FileReader:
    """An open file. Owns its descriptor."""

    def __init__(self, path: Path, store: FolderStore) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._store = store

    async def read(self, offset: int, size: int) -> bytes:
        data = await self._store.run(lambda: os.pread(self._file, size, offset))
        if not data:
            raise BlobStoreError("the file is shorter than it was")
        return data

    async def close(self) -> None:
        await self._store.run(lambda: os.close(self._file))


def load_folder(folder: Path) -> list[StoredBlob]:
    """Return the blobs of a folder, and remove what interrupted uploads left. Raises OSError."""
    sizes: dict[str, int] = {}
    uploads: dict[str, dict[str, float]] = {}
    if not folder.is_dir():
        return []
    for each in os.scandir(folder):
        hash, _, participant = each.name.partition(".")
        if not hash:
            Path(each).unlink()
        elif participant:
            uploads.setdefault(hash, {})[participant] = each.stat().st_mtime
        else:
            sizes[hash] = each.stat().st_size
    for hash in sizes.keys() ^ uploads.keys():
        delete_blobs(folder, [hash])
    return [StoredBlob(hash, sizes[hash], uploads[hash]) for hash in sizes.keys() & uploads.keys()]


def delete_blobs(folder: Path, hashes: Iterable[str]) -> None:
    """Delete blobs, the content first, so that nothing is left but names. Raises OSError."""
    for hash in hashes:
        (folder / hash).unlink(missing_ok=True)
        for marker in folder.glob(f"{hash}.*"):
            marker.unlink(missing_ok=True)


def forget_uploader(
    folder: Path, participant: str, before: float | None, kept: Container[str]
) -> None:
    """Remove a participant's uploads, of all times or before one. Raises OSError.

    Blobs that others uploaded, or that are to be kept, stay without this uploader.
    """
    uploaders: dict[str, set[str]] = {}
    for each in folder.iterdir():
        hash, _, uploader = each.name.partition(".")
        if hash and uploader:
            uploaders.setdefault(hash, set()).add(uploader)
    for hash, found in uploaders.items():
        marker = folder / f"{hash}.{participant}"
        if participant not in found or (before is not None and marker.stat().st_mtime >= before):
            continue
        if found <= {participant, UNKNOWN_UPLOADER} and hash not in kept:
            delete_blobs(folder, [hash])
        else:
            marker.rename(folder / f"{hash}.{UNKNOWN_UPLOADER}")


def copy_blobs(
    source: Path, destination: Path, *, link: bool, hashes: Container[str] | None = None
) -> int:
    """Copy, or link, blobs with their uploaders; return how many. Raises OSError.

    What is deleted meanwhile is left out. Without `hashes`, all are copied.
    """
    if not source.is_dir():
        return 0
    destination.mkdir(mode=0o700, exist_ok=True)
    count = 0
    for each in sorted(source.iterdir()):
        hash, _, participant = each.name.partition(".")
        if not hash or (hashes is not None and hash not in hashes):
            continue
        with suppress(FileNotFoundError):
            if participant:
                shutil.copy2(each, destination / each.name)
            else:
                _copy(each, destination / each.name, link=link)
                count += 1
    sync_path(destination)
    return count


def _copy(source: Path, destination: Path, *, link: bool) -> None:
    if link:
        try:
            os.link(source, destination)
        except FileNotFoundError:
            raise
        except OSError:  # another file system
            pass
        else:
            return
    shutil.copy2(source, destination)
    with destination.open("rb") as copy:
        os.fsync(copy.fileno())
