"""The seam between the gateway and where it keeps blobs: a folder, or a cluster's object store.

A store knows content by its SHA-256 and who uploaded it. Who may read it is not its business.
"""

from collections.abc import Container, Sequence
from typing import Final, NamedTuple, Protocol

from mcpp.errors import McppError

_COPY_BYTES: Final = 262_144


class BlobStoreError(McppError):
    """A blob cannot be read or written, described in one line."""


class NoSpaceError(BlobStoreError):
    """There is no room for a blob."""


class WrongHashError(BlobStoreError):
    """An upload is not the content that it was said to be."""


class StoredBlob(NamedTuple):
    """A blob that is kept, and when each participant uploaded it."""

    hash: str
    size: int
    uploads: dict[str, float]


class BlobWriter(Protocol):
    """One upload. Either `finish` or `abort` ends it."""

    async def write(self, data: bytes) -> None:
        """Add bytes. Raises BlobStoreError."""

    async def finish(self, participant: str, time: float, hash: str | None) -> str:
        """Keep the blob, durably, with its uploader, and return its hash. Raises BlobStoreError.

        Raises WrongHashError if it is not the given one.
        """

    async def abort(self) -> None:
        """Discard what was written."""


class BlobReader(Protocol):
    """One blob that is being read. It can be read to its end even if it is deleted meanwhile."""

    async def read(self, offset: int, size: int) -> bytes:
        """Return the bytes at an offset, at most `size`, at least one. Raises BlobStoreError."""

    async def close(self) -> None:
        """Stop reading."""


class BlobStore(Protocol):
    """The blobs of all pods of a gateway."""

    async def load(self, pod: str) -> Sequence[StoredBlob]:
        """Return the blobs of a pod, and remove what interrupted uploads left."""

    async def begin(self, pod: str) -> BlobWriter:
        """Begin an upload. Raises BlobStoreError."""

    async def open(self, pod: str, hash: str) -> BlobReader:
        """Open a blob. Raises BlobStoreError if it is not there."""

    async def delete(self, pod: str, hash: str) -> None:
        """Delete a blob, if it is there. Raises BlobStoreError."""

    async def close(self) -> None:
        """Release what the store holds."""


async def copy_between(
    source: BlobStore, destination: BlobStore, pod: str, hashes: Container[str]
) -> int:
    """Copy blobs of a pod with their uploaders; return how many. Raises BlobStoreError."""
    count = 0
    for blob in await source.load(pod):
        if blob.hash not in hashes:
            continue
        for participant, time in blob.uploads.items():
            reader, writer = await source.open(pod, blob.hash), await destination.begin(pod)
            try:
                offset = 0
                while offset < blob.size:
                    data = await reader.read(offset, _COPY_BYTES)
                    await writer.write(data)
                    offset += len(data)
                await writer.finish(participant, time, blob.hash)
            except BaseException:
                await writer.abort()
                raise
            finally:
                await reader.close()
        count += 1
    return count
