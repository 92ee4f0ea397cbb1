"""An MCP server that is kept running: opened, watched, and opened again when it ends.

Requests are passed on as they are and results come back as they are, `_meta` included: what is
not ours to read is not ours to change. The official SDK speaks the protocol below, in whichever
revision the server knows.
"""

import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
from anyio.abc import TaskStatus
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.subscriptions import event_to_notification
from mcp_types import CONNECTION_CLOSED
from pydantic import TypeAdapter, ValidationError

from mcpp import McppError, Options
from mcpp.client.tasks import background
from mcpp.protocol.rpc import Failure
from mcpp_agents.bridge.salvage import salvaged
from mcpp_agents.cli.display import one_line

Open = Callable[[], AbstractAsyncContextManager[Any]]

# How long a request waits for a server that is starting, before it is told so.
START_SECONDS: Final = 15.0
# How long a server may take to begin: to be downloaded, perhaps. Then another one is started.
OPEN_SECONDS: Final = 180.0
# How long a server is waited for when an error makes doubtful whether it knows us.
PING_SECONDS: Final = 5.0
# JSON-RPC's range for servers' own errors; the SDK uses it for a closed connection too.
UNAVAILABLE: Final = CONNECTION_CLOSED
# A server that lived this long was healthy: it is opened again at once when it ends.
_HEALTHY_SECONDS: Final = 30.0

# A tool may work for long before it says a word; to be connected takes no time.
_HTTP_TIMEOUT: Final = httpx2.Timeout(30.0, read=300.0)

# What a server that is gone, or was none to begin with, shows itself as.
_TROUBLE: Final = (MCPError, OSError, httpx2.HTTPError, ValidationError, RuntimeError)

# How a server refuses what comes in a session that it does not know, before it has done anything:
# 404 by the protocol, 400 by the reference servers.
_UNREAD: Final = (400, 404)
# What the SDK says for a server that refuses without a word of its own: the status says more.
_STAND_INS: Final = ("Server returned an error response", "Session terminated", "Not Found")

# More resources than anybody watches: a server that names ever new ones must not fill the memory.
_MAX_NEWS: Final = 1000

_ANY_RESULT: Final = TypeAdapter(dict[str, Any])
_LISTS: Final = (
    "notifications/tools/list_changed",
    "notifications/resources/list_changed",
    "notifications/prompts/list_changed",
)

log = logging.getLogger("mcpp")


class StartError(McppError):
    """An MCP server that could not be started even once."""


class _ForgottenError(Failure):
    """The server has refused a request unread, because it does not know the session any more."""


@dataclass(slots=True)
class _Refusal:
    """The status with which a request over HTTP was refused. The SDK keeps it to itself."""

    status: int | None = None

    def told(self, message: str) -> str:
        return message if self.status is None else f"{message} (HTTP {self.status})"


# The SDK posts a request in the context of whoever makes it.
_refusal: ContextVar[_Refusal] = ContextVar("refusal")


def over_stdio(command: list[str], env: Mapping[str, str] = os.environ) -> Open:
    """Return what starts a server as a process. It gets no secrets of the pod."""
    program, *arguments = command
    inherited = {name: value for name, value in env.items() if not name.startswith("MCPP_")}
    # One byte that is no UTF-8 would end the reading, and with it every answer.
    parameters = StdioServerParameters(
        command=program, args=arguments, env=inherited, encoding_error_handler="replace"
    )
    return lambda: stdio_client(parameters)


def over_http(url: str, headers: Mapping[str, str] | None = None) -> Open:
    """Return what connects to a server over streamable HTTP."""

    @asynccontextmanager
    async def open() -> AsyncIterator[Any]:
        client = httpx2.AsyncClient(
            headers=dict(headers or {}),
            timeout=_HTTP_TIMEOUT,
            event_hooks={"response": [_note_refusal]},
        )
        async with client, streamable_http_client(url, http_client=client) as streams:
            yield streams

    return open


async def _note_refusal(response: httpx2.Response) -> None:
    refusal = _refusal.get(None)
    if refusal is not None and response.is_error and response.request.method == "POST":
        refusal.status = response.status_code


class Upstream:
    """An MCP server and the line to it. Owns the client; never answers in the server's name."""

    def __init__(
        self,
        open: Open,
        *,
        backoff: Callable[[int], float] = Options().backoff,  # noqa: B008  (frozen)
        name: str = "the MCP server",
        start_seconds: float = START_SECONDS,
        open_seconds: float = OPEN_SECONDS,
    ) -> None:
        self.name = name
        self._start_seconds = start_seconds
        self._open_seconds = open_seconds
        self._open = open
        self._backoff = backoff
        self._client: Client | None = None
        self._ready = anyio.Event()
        self._ended = anyio.Event()
        self._news: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._has_news = anyio.Event()

    async def keep(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the server open; `started` when it first is.

        Raises StartError for a program that cannot be run at all.
        """
        attempt, known = 0, False
        while True:
            opened_at = anyio.current_time()
            refusal = _Refusal()
            _refusal.set(refusal)
            try:
                with anyio.CancelScope(deadline=opened_at + self._open_seconds) as opening:
                    async with self._telling_patience(), self._opened() as client:
                        opening.deadline = math.inf
                        if not known:
                            known = True
                            task_status.started()
                        else:
                            self._tell_lists()
                        await self._watch(client)
                has = "has not answered" if opening.cancelled_caught else "has ended"
                log.warning("%s %s; starting it again", self.name, has)
            except (*_TROUBLE, ExceptionGroup) as group:
                error = _only(group)
                if not known and isinstance(error, FileNotFoundError | PermissionError):
                    raise StartError(f"{self.name} cannot be started: {error}") from None
                if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
                    log.warning("%s has ended before it had begun; starting it again", self.name)
                else:
                    told = refusal.told(str(error)) if isinstance(error, MCPError) else error
                    log.warning("%s does not answer: %s; trying again", self.name, told)
            attempt = 0 if anyio.current_time() - opened_at > _HEALTHY_SECONDS else attempt + 1
            await anyio.sleep(self._backoff(attempt))

    async def request(
        self, method: str, params: Mapping[str, Any], on_progress: ProgressFnT | None = None
    ) -> dict[str, Any]:
        """Pass a request on and return the server's result.

        When this is cancelled, the server is told so. Raises Failure with the server's error, or
        with one that says that the server is not there.
        """
        try:
            return await self._pass_on(method, params, on_progress)
        except _ForgottenError:
            return await self._pass_on(method, params, on_progress)

    async def news(self) -> tuple[str, Mapping[str, Any]]:
        """Return a notification of the server, waiting for one.

        What it says again before somebody asks for it is told once: of a list that has changed a
        thousand times, only the last state is there to be read.
        """
        while not self._news:
            self._has_news = anyio.Event()
            await self._has_news.wait()
        first = next(iter(self._news))
        return first[0], self._news.pop(first)

    async def _pass_on(
        self, method: str, params: Mapping[str, Any], on_progress: ProgressFnT | None
    ) -> dict[str, Any]:
        with anyio.move_on_after(self._start_seconds):
            await self._ready.wait()
        client = self._client
        if client is None:
            raise Failure(UNAVAILABLE, f"{self.name} is not running; it is being started again")
        request = types.Request[dict[str, Any], str](method=method, params=dict(params))
        refusal = _Refusal()
        _refusal.set(refusal)
        try:
            # The SDK means a model here, but takes any adapter: a model would drop what it does not
            # know.
            return await client.session.send_request(  # type: ignore[type-var]
                request, _ANY_RESULT, progress_callback=on_progress
            )
        except MCPError as error:
            # The SDK's code for a closed connection is one of those that servers may use, too.
            is_over = self._ended.is_set() or self._client is not client
            if is_over or not await self._is_alive(client):
                told = one_line(refusal.told(str(error)))
                log.warning("%s did not answer %s: %s", self.name, method, told)
                self._leave(client)
                raise self._lost(refusal) from None
            message = error.message
            if message in _STAND_INS:
                message = refusal.told(message)
            raise Failure(error.code, message, error.data) from None
        except ValidationError as error:
            log.warning("%s answered %s with nonsense: %s", self.name, method, error)
            raise Failure(UNAVAILABLE, f"{self.name} answered with what is no result") from None

    def _lost(self, refusal: _Refusal) -> Failure:
        if refusal.status is None:
            reason = f"{self.name} ended before it answered; it is being started again"
            return Failure(UNAVAILABLE, reason)
        error = _ForgottenError if refusal.status in _UNREAD else Failure
        refused = f"{self.name} refused it with HTTP {refusal.status}"
        return error(UNAVAILABLE, f"{refused}; it is being connected to again")

    def _leave(self, client: Client) -> None:
        """Have a client closed and another one opened, for which requests wait from now on."""
        if self._client is client:
            self._client = None
            self._ready = anyio.Event()
            self._ended.set()

    async def _is_alive(self, client: Client) -> bool:
        """Tell, after an error, whether the session still stands.

        A server that was started again does not know it, and says so in whatever way it likes; but
        one that does know it takes a ping. The newest revision has no sessions.
        """
        if client.session.discover_result is not None:
            return True
        _refusal.set(_Refusal())  # the ping's own
        ping = types.Request[dict[str, Any], str](method="ping", params={})
        with anyio.move_on_after(PING_SECONDS):
            try:
                await client.session.send_request(ping, _ANY_RESULT)  # type: ignore[type-var]
            except MCPError as error:
                return error.code in (types.METHOD_NOT_FOUND, types.PARSE_ERROR)
            except ValidationError:
                pass  # nonsense, but an answer
        return True  # it may only be busy

    @asynccontextmanager
    async def _telling_patience(self) -> AsyncIterator[None]:
        """Say that a server takes its time to begin: silence looks like success."""

        async def tell() -> None:
            with anyio.move_on_after(self._start_seconds):
                await self._ready.wait()
                return
            log.warning("%s has not answered yet; waiting for it", self.name)

        async with background() as tasks:
            tasks.start_soon(tell)
            yield

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Client]:
        self._ended = anyio.Event()
        client = Client(
            _telling_end(self._open(), self._ended), message_handler=self._hear, cache=None
        )
        async with client:
            self._client = client
            self._ready.set()
            try:
                yield client
            finally:
                self._leave(client)

    async def _watch(self, client: Client) -> None:
        """Wait for the end; where changes have to be asked for, ask."""
        async with background() as tasks:
            if client.session.discover_result is not None:
                tasks.start_soon(self._listen, client)
            await self._ended.wait()

    async def _listen(self, client: Client) -> None:
        try:
            changes = client.listen(
                tools_list_changed=True, resources_list_changed=True, prompts_list_changed=True
            )
            async with changes as events:
                async for event in events:
                    self._tell(event_to_notification(event, {}).method)
        except (ListenNotSupportedError, SubscriptionLost, MCPError) as error:
            log.debug("%s tells no changes: %s", self.name, error)

    async def _hear(self, message: object) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self._tell(message.method, uri=str(message.params.uri))
        elif isinstance(message, types.Notification) and message.method in _LISTS:
            self._tell(message.method)

    def _tell_lists(self) -> None:
        # Another process may offer other things than the one before it.
        for method in _LISTS:
            self._tell(method)

    def _tell(self, method: str, **params: str) -> None:
        self._news[method, params.get("uri", "")] = params
        if len(self._news) > _MAX_NEWS:
            del self._news[next(iter(self._news))]
        self._has_news.set()


@asynccontextmanager
async def _telling_end(
    opening: AbstractAsyncContextManager[Any], ended: anyio.Event
) -> AsyncIterator[Any]:
    """Open a transport that sets an event when the server's side has ended."""
    async with opening as (read, write):
        sender, receiver = anyio.create_memory_object_stream[Any](0)

        async def copy() -> None:
            try:
                async with sender:
                    try:
                        async for item in read:
                            for message in salvaged(item):
                                await sender.send(message)
                    finally:
                        ended.set()  # before those who wait for answers are told
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # our side has closed

        async with background() as tasks, receiver:
            tasks.start_soon(copy)
            yield receiver, write


def _only(error: Exception) -> Exception:
    """Return what went wrong inside the task groups of a transport, if it is trouble we know."""
    while isinstance(error, ExceptionGroup):
        if error.split(_TROUBLE)[1] is not None:
            raise error
        error = error.exceptions[0]
    return error
