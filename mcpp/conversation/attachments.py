"""Content by reference: `pod.attach` uploads it, `pod.fetch` gets it back and checks it.

Files are read and written on other threads, in pieces, so that a large one takes neither the memory
nor the event loop.
"""

import hashlib
import mimetypes
import os
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from mcpp.errors import AttachmentError, EncodeError
from mcpp.protocol.envelope import MEDIA_TYPE_PATTERN, NAME_PATTERN, Attachment
from mcpp.transports.http import CHUNK_BYTES, BrokenTransferError
from mcpp.transports.transport import Connector, blob_transfer

MAX_FETCH_BYTES: Final = 67_108_864
# The longest waits before a transfer that broke begins again: a gateway that is upgraded or
# restarted is back within that, and with it the connection.
_RETRY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
_UNKNOWN_TYPE: Final = "application/octet-stream"
_is_name = re.compile(NAME_PATTERN).fullmatch
_is_media_type = re.compile(MEDIA_TYPE_PATTERN).fullmatch

T = TypeVar("T")


async def upload(
    connector: Connector,
    content: bytes | str | os.PathLike[str],
    name: str | None,
    media_type: str | None,
    *,
    private: bool = False,
) -> Attachment:
    """Upload content and return the reference to it. Raises AttachmentError and EncodeError."""
    path = None if isinstance(content, bytes | bytearray | memoryview) else Path(content)
    if name is None and path is not None and _is_name(path.name):
        name = path.name
    if name is not None and not _is_name(name):
        raise EncodeError("$.attachments", f"{name!a} is no name of a file")
    if media_type is None:
        media_type = mimetypes.guess_type(name or "")[0] or _UNKNOWN_TYPE
    if not _is_media_type(media_type):
        raise EncodeError("$.attachments", f"{media_type!a} is no media type")
    if path is None:
        data = bytes(content)  # type: ignore[arg-type]
        digest = (await anyio.to_thread.run_sync(hashlib.sha256, data)).hexdigest()
        reference = Attachment(digest, len(data), media_type, name, private)
        await _upload(connector, reference, lambda: _pieces(data))
        return reference
    try:
        digest, size = await anyio.to_thread.run_sync(_digest, path)
        reference = Attachment(digest, size, media_type, name, private)
        await _upload(connector, reference, lambda: _read(path, size))
    except OSError as error:
        raise AttachmentError(None, f"{path}: {error.strerror or error}") from None
    return reference


async def fetch(connector: Connector, attachment: Attachment, max_bytes: int) -> bytes:
    """Return the content of a reference, checked. Raises AttachmentError."""

    async def read() -> bytes:
        return b"".join([piece async for piece in _checked(connector, attachment, max_bytes)])

    return await _persistently(read)


async def fetch_to(
    connector: Connector, attachment: Attachment, path: Path, max_bytes: int
) -> Path:
    """Write the content of a reference to a file: all of it, or the file stays as it was."""
    partial = path.with_name(f".{path.name}.{attachment.hash[:8]}.part")

    async def write() -> None:
        async with await anyio.open_file(partial, "wb") as file:
            async for piece in _checked(connector, attachment, max_bytes):
                await file.write(piece)

    try:
        await _persistently(write)
        await anyio.to_thread.run_sync(os.replace, partial, path)
    except OSError as error:
        raise AttachmentError(None, f"{path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return path


async def _upload(
    connector: Connector, reference: Attachment, content: Callable[[], AsyncIterator[bytes]]
) -> None:
    await _persistently(
        lambda: blob_transfer(connector).upload(reference.hash, reference.size, content())
    )


async def _persistently(transfer: Callable[[], Awaitable[T]]) -> T:
    """Return what a transfer returns; begin it again while the gateway is away (A-16)."""
    for longest in _RETRY_SECONDS:
        with suppress(BrokenTransferError):
            return await transfer()
        await anyio.sleep(random.uniform(longest / 2, longest))
    return await transfer()


async def _checked(
    connector: Connector, attachment: Attachment, max_bytes: int
) -> AsyncIterator[bytes]:
    if attachment.size > max_bytes:
        raise AttachmentError(None, f"{attachment.size} bytes are more than max_bytes: {max_bytes}")
    digest, size = hashlib.sha256(), 0
    async for piece in blob_transfer(connector).download(attachment.hash):
        digest.update(piece)
        size += len(piece)
        if size > attachment.size:
            break
        yield piece
    if size != attachment.size or digest.hexdigest() != attachment.hash:
        raise AttachmentError(None, "the content is not what the reference names")


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]


async def _read(path: Path, size: int) -> AsyncIterator[bytes]:
    """Yield a file's bytes, no more than it had; a file that has changed fails at the gateway."""
    async with await anyio.open_file(path, "rb") as file:
        while size > 0 and (piece := await file.read(min(CHUNK_BYTES, size))):
            size -= len(piece)
            yield piece
    if size:
        raise AttachmentError(None, f"{path} became shorter while it was read")


def _digest(path: Path) -> tuple[str, int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return digest.hexdigest(), file.tell()
