"""An MCP server that is kept running: opened, monitored, and opened again when it ends.

Requests and results are forwarded unchanged, `_meta` included. The official SDK implements the
protocol underneath, in the newest revision that the server supports.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
from anyio.abc import TaskStatus
from mcp import Client, MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import CONNECTION_CLOSED
from pydantic import TypeAdapter, ValidationError

from mcpp import Options
from mcpp.client.tasks import background
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.bridge.headers import CapabilityWriter, drop_invalid_tools, keep_capabilities
from mcpp_agents.bridge.openers import HttpStatus, Open, StartError, http_status
from mcpp_agents.bridge.recovery import admit_task, recover_answers, without_placeholder
from mcpp_agents.bridge.request_spans import RequestSpans
from mcpp_agents.bridge.server_questions import ServerQuestions
from mcpp_agents.bridge.state import tasks
from mcpp_agents.bridge.state.notifications import LIST_CHANGES, RESOURCE_UPDATED, Notifications
from mcpp_agents.bridge.state.subscriptions import SUBSCRIBE, Subscriptions, receive_changes
from mcpp_agents.cli.display import one_line

# How long a request waits for a server that is starting before it fails.
START_SECONDS: Final = 15.0
# How long a server may take to start, including a download. Then it is started again.
OPEN_SECONDS: Final = 180.0
# How long to wait for a ping after an error that may mean that the session is lost.
PING_SECONDS: Final = 5.0
# JSON-RPC's range for servers' own errors; the SDK uses it for a closed connection too.
UNAVAILABLE: Final = CONNECTION_CLOSED
# A server that ran this long was healthy: the backoff starts anew when it ends.
_HEALTHY_SECONDS: Final = 30.0

# Errors by which the SDK reports a server that has ended, or that is not an MCP server.
_SERVER_ERRORS: Final = (
    MCPError,
    OSError,
    httpx2.HTTPError,
    ValidationError,
    RuntimeError,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
)

# Statuses by which a server refuses a request of an unknown session, before processing it: 404 by
# the protocol, 400 by the reference servers.
_UNKNOWN_SESSION: Final = (400, 404)
# The SDK's own texts for a refusal without a message; the HTTP status says more.
_GENERIC_MESSAGES: Final = ("Server returned an error response", "Session terminated", "Not Found")

_MAX_LIST_PAGES: Final = 20

_ANY_RESULT: Final = TypeAdapter(dict[str, Any])

logger = logging.getLogger("mcpp.bridge")


class _SessionUnknownError(Failure):
    """The server no longer knows the session, and refused the request without processing it."""


class Upstream:
    """An MCP server and the connection to it. Owns the client."""

    def __init__(
        self,
        open: Open,
        *,
        backoff: Callable[[int], float] = Options().backoff,  # noqa: B008  (frozen)
        name: str = "the MCP server",
        questions: ServerQuestions | None = None,
        start_seconds: float = START_SECONDS,
        open_seconds: float = OPEN_SECONDS,
    ) -> None:
        self.name = name
        self._questions = questions
        self._start_seconds = start_seconds
        self._open_seconds = open_seconds
        self._open = open
        self._backoff = backoff
        self.client: Client | None = None
        self.notifications = Notifications()
        self._has_listed_tools = False
        self._subscriptions = Subscriptions()
        self._ready = anyio.Event()
        self._ended = anyio.Event()

    async def keep_running(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the server open until cancelled; call `started` when it is open for the first time.

        Raises StartError for a program that cannot be run at all.
        """
        attempt, is_known = 0, False
        while True:
            opened_at = anyio.current_time()
            status = HttpStatus()
            http_status.set(status)
            try:
                with anyio.CancelScope(deadline=opened_at + self._open_seconds) as opening:
                    async with self._slow_start_warning(), self._opened() as client:
                        opening.deadline = math.inf
                        if not is_known:
                            is_known = True
                            task_status.started()
                        else:
                            self.notifications.add_list_changes()
                        await self._wait_for_end(client)
                has = "has not answered" if opening.cancelled_caught else "has ended"
                logger.warning("%s %s; starting it again", self.name, has)
            except (*_SERVER_ERRORS, ExceptionGroup) as group:
                error = _only(group)
                if not is_known and isinstance(error, FileNotFoundError | PermissionError):
                    raise StartError(f"{self.name} cannot be started: {error}") from None
                if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
                    logger.warning("%s ended while it was starting; starting it again", self.name)
                else:
                    is_mcp = isinstance(error, MCPError)
                    reason = status.append_to(str(error)) if is_mcp else error
                    logger.warning("%s does not answer: %s; trying again", self.name, reason)
                    if status.status == 401:
                        logger.warning("%s wants a token: use --header or --oauth", self.name)
            attempt = 0 if anyio.current_time() - opened_at > _HEALTHY_SECONDS else attempt + 1
            await anyio.sleep(self._backoff(attempt))

    async def request(
        self, method: str, params: Mapping[str, Any], on_progress: ProgressFnT | None = None
    ) -> dict[str, Any]:
        """Forward a request and return the server's result.

        Cancelling this cancels the request at the server. Raises Failure with the server's error,
        or with `UNAVAILABLE` if the server is not running.
        """
        try:
            return await self._forward(method, params, on_progress)
        except _SessionUnknownError:
            return await self._forward(method, params, on_progress)

    async def change_subscription(
        self, method: str, params: Mapping[str, Any], participant: str
    ) -> dict[str, Any]:
        """Subscribe or unsubscribe a participant to a resource. Raises Failure.

        A server of a newer revision sees it in the next stream of changes that is opened.
        """
        is_news = self._subscriptions.change(method, params.get("uri"), participant)
        return await self.request(method, params) if is_news and not self.is_newer else {}

    @property
    def is_newer(self) -> bool:
        """Whether the server is open and of a newer revision of MCP, which has no sessions."""
        return self.client is not None and self.client.session.discover_result is not None

    async def _forward(
        self, method: str, params: Mapping[str, Any], on_progress: ProgressFnT | None
    ) -> dict[str, Any]:
        with anyio.move_on_after(self._start_seconds):
            await self._ready.wait()
        client = self.client
        if client is None:
            raise Failure(UNAVAILABLE, f"{self.name} is not running; it is being started again")
        status = HttpStatus()
        http_status.set(status)
        try:
            if method == rpc.TOOLS_CALL:
                await self._list_tools(client)
            given = keep_capabilities(dict(params))
            about_task = method in tasks.METHODS and method != tasks.LIST
            kind = tasks.TaskRequest if about_task else types.Request[dict[str, Any], str]
            request = kind(method=method, params=given)
            # The SDK's signature asks for a model, but any adapter works. A model would drop the
            # members that it does not know.
            result: dict[str, Any] = await client.session.send_request(  # type: ignore[type-var]
                request, _ANY_RESULT, progress_callback=on_progress
            )
        except MCPError as error:
            # Servers may use the SDK's code for a closed connection too, so do not rely on it.
            is_over = self._ended.is_set() or self.client is not client
            if is_over or not await self._is_alive(client):
                reason = one_line(status.append_to(str(error)))
                logger.warning("%s did not answer %s: %s", self.name, method, reason)
                self._discard(client)
                raise self._unanswered(status.status) from None
            message = error.message
            if message in _GENERIC_MESSAGES:
                message = status.append_to(message)
            raise Failure(error.code, message, error.data) from None
        except ValidationError as error:
            logger.warning("%s returned an invalid answer to %s: %s", self.name, method, error)
            raise Failure(UNAVAILABLE, f"{self.name} returned an invalid answer") from None
        is_list = method == "tools/list" and client.session.discover_result is not None
        return drop_invalid_tools(result) if is_list else without_placeholder(result)

    async def _list_tools(self, client: Client) -> None:
        """Have the SDK list the tools of a server of a newer revision, whose headers it needs."""
        if self._has_listed_tools or client.session.discover_result is None:
            return
        cursor: str | None = None
        for _ in range(_MAX_LIST_PAGES):
            page = await client.session.list_tools(
                params=types.PaginatedRequestParams(cursor=cursor)
            )
            cursor = page.next_cursor
            if cursor is None:
                break
        self._has_listed_tools = True

    def _unanswered(self, status: int | None) -> Failure:
        if status is None:
            reason = f"{self.name} ended before it answered; it is being started again"
            return Failure(UNAVAILABLE, reason)
        error = _SessionUnknownError if status in _UNKNOWN_SESSION else Failure
        return error(UNAVAILABLE, f"{self.name} refused it with HTTP {status}; reconnecting")

    def _discard(self, client: Client) -> None:
        """Have a client closed and a new one opened; requests wait for the new one."""
        if self.client is client:
            self.client = None
            self._ready = anyio.Event()
            self._ended.set()

    async def _is_alive(self, client: Client) -> bool:
        """Return whether the session is still valid after an error.

        A restarted server reports an unknown session in its own way, but a server that knows the
        session answers a ping. The newest revision of MCP has no sessions.
        """
        if client.session.discover_result is not None:
            return True
        http_status.set(HttpStatus())  # for the ping
        ping = types.Request[dict[str, Any], str](method="ping", params={})
        with anyio.move_on_after(PING_SECONDS):
            try:
                await client.session.send_request(ping, _ANY_RESULT)  # type: ignore[type-var]
            except MCPError as error:
                return error.code in (types.METHOD_NOT_FOUND, types.PARSE_ERROR)
            except ValidationError:
                pass  # invalid, but an answer
        return True  # no answer: it may be busy

    @asynccontextmanager
    async def _slow_start_warning(self) -> AsyncIterator[None]:
        """Log a warning if the server is slow to start."""

        async def warn() -> None:
            with anyio.move_on_after(self._start_seconds):
                await self._ready.wait()
                return
            logger.warning("%s has not answered yet; waiting for it", self.name)

        async with background() as running:
            running.start_soon(warn)
            yield

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Client]:
        self._ended = anyio.Event()
        self._has_listed_tools = False
        client = Client(
            _monitored(self._open(), self._ended),
            message_handler=self._receive_notification,
            cache=None,
            extensions=[tasks.TaskExtension(self.notifications.add)],
            **({} if self._questions is None else self._questions.callbacks),
        )
        async with client:
            self.client = client
            self._ready.set()
            try:
                yield client
            finally:
                self._discard(client)

    async def _wait_for_end(self, client: Client) -> None:
        """Wait until the server ends; subscribe to its changes where the revision needs that."""
        async with background() as running:
            if client.session.discover_result is not None:
                running.start_soon(
                    receive_changes, client, self._subscriptions, self._add_notification
                )
            for uri in self._subscriptions.uris if client.session.initialize_result else ():
                running.start_soon(self._renew, uri)  # a new session knows no subscriptions
            await self._ended.wait()

    async def _renew(self, uri: str) -> None:
        with suppress(Failure):
            await self.request(SUBSCRIBE, {"uri": uri})

    async def _receive_notification(self, message: object) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self._add_notification(message.method, str(message.params.uri))
        elif isinstance(message, types.Notification) and message.method in LIST_CHANGES:
            self._add_notification(message.method)

    def _add_notification(self, method: str, uri: str = "") -> None:
        if method == LIST_CHANGES[0]:
            self._has_listed_tools = False
        self.notifications.add(method, uri, {"uri": uri} if method == RESOURCE_UPDATED else None)


@asynccontextmanager
async def _monitored(
    opening: AbstractAsyncContextManager[Any], ended: anyio.Event
) -> AsyncIterator[Any]:
    """Open a transport that recovers unparsable answers and sets `ended` when the server ends."""
    spans = RequestSpans()
    async with opening as (read, write):
        sender, receiver = anyio.create_memory_object_stream[Any](0)

        async def copy() -> None:
            try:
                async with sender:
                    try:
                        async for item in read:
                            for message in recover_answers(item):
                                spans.answer(message)
                                await sender.send(admit_task(message))
                    finally:
                        ended.set()  # before pending requests fail
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                pass  # our side was closed

        async with background() as running, receiver:
            running.start_soon(copy)
            yield receiver, CapabilityWriter(write, spans)


def _only(error: Exception) -> Exception:
    """Return the error inside a transport's task groups; re-raise a group with unexpected ones."""
    while isinstance(error, ExceptionGroup):
        if error.split(_SERVER_ERRORS)[1] is not None:
            raise error
        error = error.exceptions[0]
    return error
