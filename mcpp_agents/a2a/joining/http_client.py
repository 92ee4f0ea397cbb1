"""HTTP to a remote agent that is not trusted: bounded in bytes and time, to one origin only."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

import httpx

# Sixteen times what a gateway accepts in an envelope by default.
MAX_RESPONSE_BYTES: Final = 16 * 1024 * 1024
# An agent may think for long between two events of a stream.
_READ_SECONDS: Final = 300.0
_CONNECT_SECONDS: Final = 15.0
_PORTS: Final = {"http": 80, "https": 443}


def origin_of(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a URL. Raises ValueError for one that is not HTTP."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"{url!r} is not an HTTP address")
    return parts.scheme, parts.hostname.lower(), parts.port or _PORTS[parts.scheme]


def new_client(
    origins: Iterable[str],
    headers: Mapping[str, str],
    *,
    max_bytes: int = MAX_RESPONSE_BYTES,
    read_seconds: float = _READ_SECONDS,
) -> httpx.AsyncClient:
    """Return a client that talks to these origins only, follows no redirect and stops at a bound.

    The headers may hold a credential, and a card may name any address, such as one inside of our
    network (server-side request forgery): so an address of another origin is refused.
    """
    allowed = frozenset(map(origin_of, origins))
    return httpx.AsyncClient(
        transport=_BoundedTransport(allowed, max_bytes),
        # Compressed, a few bytes could be gigabytes.
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(read_seconds, connect=_CONNECT_SECONDS),
        follow_redirects=False,
        trust_env=False,
    )


class _BoundedTransport(httpx.AsyncBaseTransport):
    """Refuses other origins, compressed answers, and answers that are too long."""

    def __init__(self, allowed: frozenset[tuple[str, str, int]], max_bytes: int) -> None:
        self._allowed = allowed
        self._max_bytes = max_bytes
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if origin_of(str(request.url)) not in self._allowed:
            raise httpx.RequestError(f"{request.url.host} is not an allowed origin")
        response = await self._inner.handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx.RequestError("the answer is compressed")
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _BoundedStream(response.stream, self._max_bytes)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx.AsyncByteStream):
    """A body that ends with an error beyond a number of bytes."""

    def __init__(self, inner: httpx.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._left = max_bytes
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._left -= len(chunk)
            if self._left < 0:
                raise httpx.RequestError(f"the answer is longer than {self._max_bytes} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
