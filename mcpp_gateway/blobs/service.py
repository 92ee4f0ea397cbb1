"""Blobs at a gateway: uploads within the quotas, reading by those who may, and deletion.

The table of each pod (`core/attachments`) says who may do what; the store keeps the bytes. Changes
of the store that the table has to follow are made one at a time for each pod, so that a blob which
is uploaded again while it expires is not lost.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mcpp.errors import McppError
from mcpp_gateway.blobs.store import BlobReader, BlobStore, BlobStoreError, BlobWriter
from mcpp_gateway.core.pod import PodCore

logger = logging.getLogger("mcpp.gateway")

_MAX_REQUESTS: Final = 256  # uploads and downloads at the same time
_MAX_REQUESTS_PER_PARTICIPANT: Final = 16


class BlobTooLargeError(McppError):
    """An upload has more bytes than a blob may have."""


class TooManyRequestsError(McppError):
    """Too many uploads and downloads are under way."""


@dataclass(frozen=True, slots=True)
class FoundBlob:
    """A blob that a participant may read."""

    hash: str
    size: int


class BlobService:
    """The blobs of all pods of a gateway. Owns the store, and the tasks that use it."""

    def __init__(self, store: BlobStore, clock: Callable[[], float]) -> None:
        self.store = store
        self.clock = clock
        self._locks: dict[str, asyncio.Lock] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests: Counter[tuple[str, str]] = Counter()

    async def load(self, pod: PodCore) -> None:
        """Learn which blobs of a pod there are. Raises BlobStoreError."""
        uploads = [
            (time, participant, each)
            for each in await self.store.load(pod.name)
            for participant, time in each.uploads.items()
        ]
        for time, participant, each in sorted(uploads, key=lambda upload: upload[0]):
            pod.blobs.add(participant, each.hash, each.size, time)

    def find(self, pod: PodCore, participant: str, hash: str) -> FoundBlob | None:
        """Return a blob; None if it is not there, or not for this participant."""
        rights = pod.members.rights(participant)
        size = pod.blobs.readable_size(rights, hash, pod.journal.committed)
        return None if size is None else FoundBlob(hash, size)

    async def open(self, pod: PodCore, hash: str) -> BlobReader:
        """Open a blob that was found. Raises BlobStoreError."""
        return await self.store.open(pod.name, hash)

    @contextmanager
    def request(self, pod: PodCore, participant: str) -> Iterator[None]:
        """Count an upload or a download while the block runs. Raises TooManyRequestsError."""
        key = (pod.name, participant)
        if self._requests[key] >= _MAX_REQUESTS_PER_PARTICIPANT:
            raise TooManyRequestsError("too many uploads and downloads of this participant")
        if self._requests.total() >= _MAX_REQUESTS:
            raise TooManyRequestsError("too many uploads and downloads")
        self._requests[key] += 1
        try:
            yield
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]

    def check(self, pod: PodCore) -> None:
        """Delete what a pod no longer keeps. Called about once a second."""
        gone = pod.blobs.expire(pod.journal.start, self.clock())
        if gone:
            self.run(self._delete(pod, gone))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that uses the store, which stays open for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Finish what is under way, and release the store."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()

    def lock(self, pod: PodCore) -> asyncio.Lock:
        """Return the lock under which the store and the table of a pod change together."""
        return self._locks.setdefault(pod.name, asyncio.Lock())

    async def _delete(self, pod: PodCore, hashes: list[str]) -> None:
        for hash in hashes:
            async with self.lock(pod):
                if hash in pod.blobs:
                    continue  # uploaded again since
                try:
                    await self.store.delete(pod.name, hash)
                except BlobStoreError as error:
                    # It is found again at the next start.
                    facts = {"pod": pod.name, "hash": hash, "reason": str(error)}
                    logger.warning("a blob cannot be deleted", extra=facts)


class Upload:
    """One upload. Owns what it has reserved of the quotas until `finish` or `abort`."""

    def __init__(self, service: BlobService, pod: PodCore, participant: str) -> None:
        self._service = service
        self._pod = pod
        self._participant = participant
        self._writer: BlobWriter | None = None
        self._reserved = 0
        self.size = 0

    def reserve(self, size: int) -> None:
        """Reserve room for so many bytes in total. Raises BlobTooLargeError and QuotaError."""
        limit = self._pod.members.limits(self._participant).max_blob_bytes
        if size > limit:
            raise BlobTooLargeError(f"a blob has at most {limit} bytes (max_blob_bytes)")
        if size > self._reserved:
            self._pod.blobs.reserve(self._participant, size - self._reserved)
            self._reserved = size

    async def write(self, data: bytes) -> None:
        """Add bytes. Raises BlobTooLargeError, QuotaError and BlobStoreError."""
        self.reserve(self.size + len(data))
        self.size += len(data)
        if self._writer is None:
            self._writer = await self._service.store.begin(self._pod.name)
        if data:
            await self._writer.write(data)

    async def finish(self, hash: str | None = None) -> str:
        """Keep the blob and return its hash. Raises BlobStoreError, WrongHashError."""
        await self.write(b"")
        assert self._writer is not None
        now = self._service.clock()
        async with self._service.lock(self._pod):
            found = await self._writer.finish(self._participant, now, hash)
            self._writer = None
            self._release()
            self._pod.blobs.add(self._participant, found, self.size, now)
        return found

    async def abort(self) -> None:
        """Discard what was uploaded, unless it is complete."""
        self._release()
        if self._writer is not None:
            writer, self._writer = self._writer, None
            await writer.abort()

    def _release(self) -> None:
        self._pod.blobs.release(self._participant, self._reserved)
        self._reserved = 0
