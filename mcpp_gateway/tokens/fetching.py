"""Fetches a JWK set over HTTP, within bounds of time and size. Blocking: it runs in a thread."""

import http.client
import io
import socket
import ssl
import threading
import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from mcpp_gateway.tokens.keys import KeySetError

MAX_BYTES: Final = 262_144
MAX_SECONDS: Final = 5.0
_CHUNK_BYTES: Final = 16_384
_MAX_RECEIVED_BYTES: Final = 2 * MAX_BYTES  # with heads, sizes of chunks and trailers


class _LimitedInput(io.RawIOBase):
    """What a socket receives, up to a limit: `http.client` reads some parts without one."""

    def __init__(self, stream: io.RawIOBase) -> None:
        self._stream = stream
        self._left = _MAX_RECEIVED_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        size: int | None = self._stream.readinto(buffer)
        self._left -= size or 0
        if self._left < 0:
            raise KeySetError(f"the key server sent more than {_MAX_RECEIVED_BYTES} bytes")
        return size

    def close(self) -> None:
        self._stream.close()
        super().close()


class _LimitedResponse(http.client.HTTPResponse):
    """An answer of which so much is read at most."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fp: Any = io.BufferedReader(_LimitedInput(self.fp.detach()))


def fetch(url: str) -> bytes:
    """Return what a URL holds. Raises KeySetError, also for redirects and what takes too long."""
    try:
        return _fetch(urlsplit(url))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise KeySetError(str(error) or type(error).__name__) from None


def _fetch(url: SplitResult) -> bytes:
    deadline = time.monotonic() + MAX_SECONDS
    line = _connection(url)
    line.response_class = _LimitedResponse
    stream: socket.socket | None = None

    def cut_off() -> None:
        found = stream or line.sock
        if found is not None:
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)

    # Each read has its time, but a server may send a byte at a time: in the end it is cut off.
    cut = threading.Timer(MAX_SECONDS, cut_off)
    cut.daemon = True
    cut.start()
    try:
        path = f"{url.path or '/'}{'?' + url.query if url.query else ''}"
        line.request("GET", path, headers={"Accept": "application/json", "Connection": "close"})
        stream = line.sock  # the line forgets it if the server is to close it
        response = line.getresponse()
        if response.status != 200:
            raise KeySetError(f"the key server answered {response.status}")
        return _read(stream, response, deadline)
    finally:
        cut.cancel()
        line.close()


def _connection(url: SplitResult) -> http.client.HTTPConnection:
    host = url.hostname or ""
    if url.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, url.port, timeout=MAX_SECONDS, context=context)
    return http.client.HTTPConnection(host, url.port, timeout=MAX_SECONDS)


def _read(stream: socket.socket, response: http.client.HTTPResponse, deadline: float) -> bytes:
    data = b""
    while (left := deadline - time.monotonic()) > 0:
        if not response.isclosed():
            stream.settimeout(left)  # a server that sends a byte at a time ends, too
        chunk = response.read1(_CHUNK_BYTES)
        data += chunk
        if len(data) > MAX_BYTES:
            raise KeySetError(f"the key set has more than {MAX_BYTES} bytes")
        if not chunk and time.monotonic() < deadline:  # not because it was cut off
            return data
    raise KeySetError(f"the key server took longer than {MAX_SECONDS:g} s")
