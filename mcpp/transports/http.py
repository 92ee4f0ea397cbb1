"""Uploads and downloads of blobs over HTTP/1.1, on the streams of `tcp`.

One request per connection. Only what the gateway sends is understood: a length, or the end of the
connection.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import anyio

from mcpp.errors import AttachmentError
from mcpp.transports.tcp import Stream, open_stream

CHUNK_BYTES: Final = 131_072
_HEAD_BYTES: Final = 16_384
_REASON_BYTES: Final = 1024
_UNAVAILABLE: Final = 503
# Without any progress: the gateway cuts off what is slower.
_IDLE_SECONDS: Final = 60.0
_BROKEN: Final = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    OSError,
)


class BrokenTransferError(AttachmentError):
    """The gateway cannot be reached now, or has ended before the transfer, as in an upgrade."""


@dataclass(frozen=True, slots=True)
class BlobAddress:
    """Where a pod's blobs are: a gateway's WebSocket address, and the token for it."""

    url: str
    token: str
    ssl_context: ssl.SSLContext | None = None

    async def upload(self, hash: str, size: int, content: AsyncIterator[bytes]) -> None:
        """Upload content whose hash and size are known. Raises AttachmentError."""
        headers = f"Content-Length: {size}\r\nContent-Type: application/octet-stream\r\n"
        async with self._request("PUT", hash, headers) as stream:
            try:
                async for piece in content:
                    with anyio.fail_after(_IDLE_SECONDS):
                        await stream.send(piece)
            except (*_BROKEN, TimeoutError):
                pass  # refused before its end: the answer says why
            await _read_head(stream)

    async def download(self, hash: str) -> AsyncIterator[bytes]:
        """Yield the content of a blob as it arrives. Raises AttachmentError."""
        async with self._request("GET", hash, "") as stream:
            piece, left = await _read_head(stream)
            while True:
                left -= len(piece)
                if left < 0:
                    raise AttachmentError(None, "the gateway sends more than it has announced")
                if piece:
                    yield piece
                if not left:
                    return
                with anyio.fail_after(_IDLE_SECONDS):
                    piece = await stream.receive(CHUNK_BYTES)

    @asynccontextmanager
    async def _request(self, method: str, hash: str, headers: str) -> AsyncIterator[Stream]:
        parts = urlsplit(self.url)
        secure = parts.scheme in ("wss", "https")
        tls = (self.ssl_context or ssl.create_default_context()) if secure else None
        host = parts.hostname or ""
        query = f"?{parts.query}" if parts.query.startswith("pod=") else ""
        request = (
            f"{method} /blob/{hash}{query} HTTP/1.1\r\nHost: {parts.netloc.rpartition('@')[2]}\r\n"
            f"Authorization: Bearer {self.token}\r\nConnection: close\r\n{headers}\r\n"
        )
        try:
            with anyio.fail_after(_IDLE_SECONDS):
                stream = await open_stream(host, parts.port or (443 if secure else 80), tls)
            try:
                await stream.send(request.encode())
                yield stream
            finally:
                with anyio.CancelScope(shield=True):
                    await stream.aclose()
        except TimeoutError:
            raise AttachmentError(None, "the gateway does not answer") from None
        except (*_BROKEN, UnicodeError) as error:
            raise BrokenTransferError(None, str(error) or "the connection broke") from None


async def _read_head(stream: Stream) -> tuple[bytes, int]:
    """Return the beginning of the body and its length. Raises AttachmentError for a refusal."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > _HEAD_BYTES:
            raise AttachmentError(None, "the answer is not HTTP")
        with anyio.fail_after(_IDLE_SECONDS):
            data += await stream.receive(_HEAD_BYTES)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (each.partition(":") for each in lines)
    }
    status, length = first.split(" ")[1:2], headers.get("content-length", "")
    if not (status and status[0].isdigit() and length.isdigit()):
        raise AttachmentError(None, "the answer is not HTTP")
    code, size = int(status[0]), int(length)
    if code < 300:
        return body, size
    while len(body) < min(size, _REASON_BYTES):
        body += await stream.receive(_REASON_BYTES)
    refusal = BrokenTransferError if code == _UNAVAILABLE else AttachmentError
    raise refusal(code, body[:_REASON_BYTES].decode(errors="replace").strip())
