"""Blobs of a cluster: pieces in one stream of JetStream, which every gateway reads and writes.

| subject below `PREFIX.POD.blob` | holds |
|---|---|
| `data.UPLOAD.NUMBER` | a piece of the content, under the random id of its upload |
| `name.HASH` | which upload has the content, and its size; the first one counts |
| `by.HASH.PARTICIPANT` | when a participant uploaded it |

Each is acknowledged when a quorum has it. Pieces are read one at a time, so nothing of the client
library's consumers is needed, and a range costs its own pieces only. A complete upload is announced
to all gateways; one that was missed is found when the gateway is started again.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from mcpp_gateway.blobs.store import BlobStoreError, NoSpaceError, StoredBlob, WrongHashError
from mcpp_gateway.cluster.nats_link import LinkError, NatsLink, NatsMessage
from mcpp_gateway.cluster.streams import Streams, token

_PIECE_BYTES: Final = 262_144
_READ_AT_ONCE: Final = 256
_ATTEMPTS: Final = 20
_RETRY_SECONDS: Final = 0.05
_LOAD_ATTEMPTS: Final = 60  # each may wait for an answer, and an election takes seconds
_LOAD_RETRY_SECONDS: Final = 0.5
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_NO_ROOM: Final = (10023, 10047, 10077)  # resources, storage, the stream's limit


class _Name(msgspec.Struct, array_like=True):
    upload: str
    size: int


class Announcement(msgspec.Struct, array_like=True):
    """A complete upload."""

    hash: str
    size: int
    participant: str
    time: float


_encode = msgspec.msgpack.Encoder().encode
_decode_name = msgspec.msgpack.Decoder(_Name).decode
_decode_time = msgspec.msgpack.Decoder(float).decode
_decode_announcement = msgspec.msgpack.Decoder(Announcement).decode


class BlobStream:
    """The blobs of all pods of a cluster, as one gateway uses them."""

    def __init__(self, link: NatsLink, streams: Streams, may_delete: Callable[[str], bool]) -> None:
        self._link = link
        self._streams = streams
        self._may_delete = may_delete  # whether this gateway leads a pod
        self._stream = f"{link.prefix.upper()}=BLOBS"
        self._is_open = False
        self.on_upload: Callable[[str, Announcement], None] = lambda pod, upload: None

    async def load(self, pod: str) -> Sequence[StoredBlob]:
        """Return the blobs of a pod. While servers restart, it is tried again, as for the log."""
        for _ in range(_LOAD_ATTEMPTS - 1):
            try:
                return await self._load(pod)
            except BlobStoreError:
                await asyncio.sleep(_LOAD_RETRY_SECONDS)
        return await self._load(pod)

    async def _load(self, pod: str) -> Sequence[StoredBlob]:
        async with _as_store_errors():
            await self._open()
            names = [item async for item in self._list(f"{self._prefix(pod)}.name.*")]
            uploads: dict[str, dict[str, float]] = {}
            async for subject, data in self._list(f"{self._prefix(pod)}.by.*.*"):
                hash, participant = subject.split(".")[-2:]
                time = _decode_time(data)
                uploads.setdefault(hash, {})[bytes.fromhex(participant).decode()] = time
        return [
            StoredBlob(hash, _decode_name(data).size, uploads[hash])
            for subject, data in names
            if (hash := subject.rpartition(".")[2]) in uploads
        ]

    async def begin(self, pod: str) -> "_StreamWriter":
        return _StreamWriter(self, pod, self._prefix(pod))

    async def open(self, pod: str, hash: str) -> "_StreamReader":
        async with _as_store_errors():
            name = _decode_name(await self.get(f"{self._prefix(pod)}.name.{hash}"))
        return _StreamReader(self, f"{self._prefix(pod)}.data.{name.upload}")

    async def delete(self, pod: str, hash: str) -> None:
        if not self._may_delete(pod):
            return  # the leader's log decides, and it deletes
        prefix = self._prefix(pod)
        async with _as_store_errors():
            name = _decode_name(await self.get(f"{prefix}.name.{hash}"))
            await self.purge(f"{prefix}.name.{hash}")
            await self.purge(f"{prefix}.by.{hash}.*")
            await self.purge(f"{prefix}.data.{name.upload}.*")

    async def close(self) -> None:
        """Do nothing: the connection is the cluster's."""

    # --- for writers and readers ----------------------------------------------------------------

    async def put(self, subject: str, data: bytes, *, is_new: bool = False) -> bool:
        """Store a message; return False if there is one and it has to be new. Raises LinkError."""
        headers = {_EXPECTED: "0"} if is_new else None
        answer = await self._link.request(subject, data, headers)
        if answer.status:
            raise LinkError(f"JetStream answered {answer.status}")
        error = msgspec.json.decode(answer.data).get("error")
        if error is None:
            return True
        if is_new and error.get("err_code") in (10071, 10164):  # another sequence number
            return False
        if error.get("err_code") in _NO_ROOM:
            raise NoSpaceError("the cluster has no space left for blobs")
        raise LinkError(f"a blob was not stored: {error.get('description')}")

    async def get(self, subject: str) -> bytes:
        """Return a message. A server may not have it yet that answers. Raises LinkError."""
        for _ in range(_ATTEMPTS):
            found = await self._link.request(f"$JS.API.DIRECT.GET.{self._stream}.{subject}", b"")
            if not found.status:
                return found.data
            await asyncio.sleep(_RETRY_SECONDS)
        raise LinkError("there is no such blob")

    async def purge(self, subject: str) -> None:
        """Delete messages. Raises LinkError."""
        await self._streams.call(f"STREAM.PURGE.{self._stream}", {"filter": subject})

    def announce(self, pod: str, upload: Announcement) -> None:
        """Tell all gateways of a complete upload."""
        self._link.send(f"{self._link.prefix}.{token(pod)}.blobs", _encode(upload))

    # --- private --------------------------------------------------------------------------------

    def _prefix(self, pod: str) -> str:
        return f"{self._link.prefix}.{token(pod)}.blob"

    async def _open(self) -> None:
        if self._is_open:
            return
        subjects = [f"{self._link.prefix}.*.blob.>"]
        await self._streams.ensure(
            self._streams.config(self._stream, subjects, max_msgs_per_subject=1)
        )
        await self._link.subscribe(f"{self._link.prefix}.*.blobs", self._receive)
        self._is_open = True

    def _receive(self, message: NatsMessage) -> None:
        try:
            upload = _decode_announcement(message.data)
        except msgspec.DecodeError:
            return  # of a newer version
        self.on_upload(message.subject.split(".")[1].replace("%", "."), upload)

    async def _list(self, subject: str) -> AsyncIterator[tuple[str, bytes]]:
        sequence = 1
        while True:
            request: dict[str, Any] = {
                "seq": sequence,
                "batch": _READ_AT_ONCE,
                "next_by_subj": subject,
            }
            found = await self._link.request_many(
                f"$JS.API.DIRECT.GET.{self._stream}", msgspec.json.encode(request)
            )
            items = [message for message in found if not message.status]
            for message in items:
                yield message.headers["Nats-Subject"], message.data
            if not items:
                return
            sequence = int(items[-1].headers["Nats-Sequence"]) + 1


class _StreamWriter:
    """An upload. Owns what does not fill a piece yet."""

    def __init__(self, stream: BlobStream, pod: str, prefix: str) -> None:
        self._stream = stream
        self._pod = pod
        self._prefix = prefix
        self._upload = secrets.token_hex(16)
        self._rest = b""
        self._pieces = 0
        self._size = 0
        self._hash = hashlib.sha256()

    async def write(self, data: bytes) -> None:
        self._hash.update(data)
        self._size += len(data)
        self._rest += data
        async with _as_store_errors():
            while len(self._rest) >= _PIECE_BYTES:
                await self._put(self._rest[:_PIECE_BYTES])
                self._rest = self._rest[_PIECE_BYTES:]

    async def finish(self, participant: str, time: float, hash: str | None) -> str:
        found = self._hash.hexdigest()
        if hash not in (None, found):
            raise WrongHashError(f"the content has the hash {found}")
        async with _as_store_errors():
            if self._rest:
                await self._put(self._rest)
            name = _encode(_Name(self._upload, self._size))
            is_first = await self._stream.put(f"{self._prefix}.name.{found}", name, is_new=True)
            by = f"{self._prefix}.by.{found}.{participant.encode().hex()}"
            await self._stream.put(by, _encode(time))
        if not is_first:
            await self.abort()  # it is there already
        self._stream.announce(self._pod, Announcement(found, self._size, participant, time))
        return found

    async def abort(self) -> None:
        if self._pieces:
            async with _as_store_errors():
                await self._stream.purge(f"{self._prefix}.data.{self._upload}.*")

    async def _put(self, piece: bytes) -> None:
        await self._stream.put(f"{self._prefix}.data.{self._upload}.{self._pieces}", piece)
        self._pieces += 1


class _StreamReader:
    """A blob that is read piece by piece."""

    def __init__(self, stream: BlobStream, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix

    async def read(self, offset: int, size: int) -> bytes:
        number, start = divmod(offset, _PIECE_BYTES)
        async with _as_store_errors():
            piece = await self._stream.get(f"{self._prefix}.{number}")
        data = piece[start : start + size]
        if not data:
            raise BlobStoreError("a piece is shorter than it was")
        return data

    async def close(self) -> None:
        """Do nothing: pieces are asked for one by one."""


@asynccontextmanager
async def _as_store_errors() -> AsyncIterator[None]:
    try:
        yield
    except (LinkError, msgspec.DecodeError, ValueError) as error:
        raise BlobStoreError(str(error)) from None
