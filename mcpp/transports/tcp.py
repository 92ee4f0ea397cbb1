"""TCP and TLS streams: anyio's on trio, a faster one on asyncio.

anyio's stream for asyncio pauses and resumes reading around every read and yields after every
write, which takes a third of the time of a round trip. So asyncio gets its own implementation.
"""

import asyncio
import ipaddress
import ssl
from collections import deque
from typing import Any, Final, Protocol, cast

import anyio

# Stop reading from the socket while more than this is buffered.
_UNREAD_BYTES: Final = 2**20


class Stream(Protocol):
    """A bidirectional byte stream."""

    async def receive(self, max_bytes: int) -> bytes:
        """Return the available bytes. Raises anyio.EndOfStream or another anyio error."""

    async def send(self, item: bytes) -> None:
        """Write all bytes."""

    async def aclose(self) -> None:
        """Close the stream at once."""


async def open_stream(host: str, port: int, tls: ssl.SSLContext | None) -> Stream:
    """Connect to a host. Raises OSError, of which ssl.SSLError is a subclass."""
    if _on_asyncio():
        loop = asyncio.get_running_loop()
        # A single address needs no Happy Eyeballs, where asyncio may leak a socket when cancelled;
        # uvloop's loop does not know the argument.
        races = isinstance(loop, asyncio.BaseEventLoop) and not _is_address(host)
        options: dict[str, Any] = {"happy_eyeballs_delay": 0.25} if races else {}
        _, stream = await loop.create_connection(_AsyncioStream, host, port, ssl=tls, **options)
        return stream
    if tls is None:
        return await anyio.connect_tcp(host, port)
    return await anyio.connect_tcp(
        host, port, tls=True, ssl_context=tls, tls_standard_compatible=False
    )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _on_asyncio() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:
        return False


class _AsyncioStream(asyncio.Protocol):
    """A stream on asyncio. Owns its transport and the bytes not yet received."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._ended = False
        self._reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    # --- called by asyncio ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _UNREAD_BYTES:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._writable.set()
        self._wake()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # --- the Stream interface ---

    async def receive(self, max_bytes: int) -> bytes:
        while not self._unread:
            if self._ended:
                raise anyio.EndOfStream
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        data = b"".join(self._unread) if len(self._unread) > 1 else self._unread[0]
        self._unread.clear()
        if self._unread_bytes > _UNREAD_BYTES:
            self._transport.resume_reading()
        self._unread_bytes = 0
        return data

    async def send(self, item: bytes) -> None:
        if self._transport.is_closing():
            raise anyio.BrokenResourceError
        self._transport.write(item)
        if not self._writable.is_set():
            await self._writable.wait()

    async def aclose(self) -> None:
        self._transport.abort()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
