"""Blobs of an exported log: which ones its lines name, and a folder that holds them.

The folder has the form of `POD/blobs/`: a file for each hash, and an empty one for each uploader.
"""

import hashlib
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from mcpp_gateway.blobs.folder import BLOBS, UNKNOWN_UPLOADER, copy_blobs, delete_blobs
from mcpp_gateway.log_tools.new_folder import new_folder
from mcpp_gateway.log_tools.reader import LogToolError
from mcpp_gateway.storage.disk import sync_path

# In a member `text` the quotes are escaped, so this is never part of one.
_MEMBER: Final = b'"attachments":'


class _NamingLine(msgspec.Struct):
    attachments: tuple[str, ...] = ()


_decode = msgspec.json.Decoder(_NamingLine).decode


class NamedBlobs:
    """The blobs that the lines of an export name. Owns the hashes seen so far."""

    def __init__(self) -> None:
        self.hashes: set[str] = set()

    def add(self, line: bytes) -> None:
        """Read a line."""
        if _MEMBER not in line or line.startswith(b'{"state"'):
            return
        try:
            self.hashes.update(_decode(line).attachments)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # the import says what is wrong with it

    def watch(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Read lines while they are passed on."""
        for line in lines:
            self.add(line)
            yield line


def export_blobs(pod: Path, destination: Path, hashes: Container[str]) -> int:
    """Copy blobs of a pod's folder to a new one; return how many. Raises McppError and OSError."""
    with new_folder(destination) as folder:
        return copy_blobs(pod / BLOBS, folder, link=False, hashes=hashes)


def import_blobs(source: Path, pod: Path, hashes: Container[str]) -> int:
    """Copy exported blobs into a pod's folder, checked; return how many.

    Raises LogToolError and OSError.
    """
    if not source.is_dir():
        raise LogToolError(f"{source} is not a folder")
    folder = pod / BLOBS
    copy_blobs(source, folder, link=False, hashes=hashes)
    found = list(folder.iterdir())
    contents = [path for path in found if "." not in path.name]
    for path in contents:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != path.name:
                raise LogToolError(f"{source / path.name} is not the content that its name says")
        if not any(other.name.startswith(f"{path.name}.") for other in found):
            (folder / f"{path.name}.{UNKNOWN_UPLOADER}").touch(mode=0o600)
    kept = {path.name for path in contents}
    delete_blobs(folder, {path.name.partition(".")[0] for path in found} - kept)
    sync_path(folder)
    return len(contents)
