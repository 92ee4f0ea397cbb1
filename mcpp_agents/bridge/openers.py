"""Ways to open an MCP server: as a process, over streamable HTTP, over HTTP with SSE."""

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from mcpp import McppError
from mcpp_agents.bridge.server_process import server_environment
from mcpp_agents.bridge.stdio import stdio_streams
from mcpp_agents.lines import MAX_LINE_BYTES

Open = Callable[[], AbstractAsyncContextManager[Any]]

# A tool may work for minutes before it answers; connecting is quick.
_HTTP_TIMEOUT: Final = httpx2.Timeout(30.0, read=300.0)
_PROBE_SECONDS: Final = 10.0
# What a server of the older transport, HTTP with SSE, answers to a POST at its address.
_NOT_STREAMABLE: Final = (404, 405)

logger = logging.getLogger("mcpp.bridge")


class StartError(McppError):
    """The MCP server's program cannot be run."""


@dataclass(slots=True)
class HttpStatus:
    """The HTTP status of a refused request, which the SDK does not expose."""

    status: int | None = None

    def append_to(self, message: str) -> str:
        """Return a message with the status, if there is one."""
        return message if self.status is None else f"{message} (HTTP {self.status})"


# The SDK posts a request in the context of the task that makes it.
http_status: Final[ContextVar[HttpStatus]] = ContextVar("http_status")


def over_stdio(
    command: list[str], names: Sequence[str] = (), env: Mapping[str, str] = os.environ
) -> Open:
    """Return an opener that starts a server as a process.

    Of the environment it gets what every program needs, and the variables named.

    Raises StartError for a name that is not set.
    """
    try:
        environment = server_environment(names, env)
    except KeyError as error:
        raise StartError(f"the environment has no {error.args[0]}") from None
    return lambda: stdio_streams(command, environment)


def over_http(
    url: str, headers: Mapping[str, str] | None = None, auth: httpx2.Auth | None = None
) -> Open:
    """Return an opener that connects to a server over HTTP.

    The transport is streamable HTTP. Where the server refuses that, and offers the older transport
    with SSE at the same address, it is that one from then on.
    """
    return _HttpServer(url, dict(headers or {}), auth).open


@dataclass(slots=True)
class _HttpServer:
    """A server at an address. Owns what is known of its transport."""

    url: str
    headers: dict[str, str]
    auth: httpx2.Auth | None
    is_sse: bool = False
    _refusals: list[int] = field(default_factory=list)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        if not self.is_sse and self._refusals and self._refusals[0] in _NOT_STREAMABLE:
            self.is_sse = await self._offers_sse()
        self._refusals.clear()
        if self.is_sse:
            opening = sse_client(self.url, self.headers, auth=self.auth)
            async with opening as streams:
                yield streams
            return
        async with (
            self._client(event_hooks={"response": [self._record]}) as client,
            streamable_http_client(
                self.url, http_client=client, max_sse_event_size=MAX_LINE_BYTES
            ) as streams,
        ):
            yield streams

    def _client(self, **options: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers=self.headers, timeout=_HTTP_TIMEOUT, auth=self.auth, **options
        )

    async def _record(self, response: httpx2.Response) -> None:
        if response.request.method != "POST" or response.request.url != self.url:
            return
        if not response.is_error:
            self._refusals = [0]  # it is streamable: a later refusal means something else
        elif not self._refusals:
            self._refusals.append(response.status_code)
        recorded = http_status.get(None)
        if recorded is not None and response.is_error:
            recorded.status = response.status_code

    async def _offers_sse(self) -> bool:
        """Return whether the address begins a stream of events that names where to post."""
        request = {"Accept": "text/event-stream"}
        try:
            with anyio.fail_after(_PROBE_SECONDS):
                async with self._client().stream("GET", self.url, headers=request) as response:
                    kind = response.headers.get("content-type", "")
                    if response.is_error or not kind.startswith("text/event-stream"):
                        logger.warning("%s is not the address of an MCP server", self.url)
                        return False
                    async for chunk in response.aiter_text():
                        return "event: endpoint" in chunk
        except (httpx2.HTTPError, TimeoutError):
            pass
        return False
