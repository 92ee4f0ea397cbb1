"""Serving a pod over streamable HTTP, to many clients at once.

Every client sends a participant's token with each request. The clients of one participant share its
connection to the pod, which is opened with the first request and closed when none has used it for a
while. `/mcp` is the whole pod, `/mcp/NAME` what a single participant offers.
"""

import logging
import socket
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import anyio
import msgspec
import uvicorn
from anyio.abc import TaskGroup, TaskStatus
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

import mcpp
from mcpp.client.local_pod import Address
from mcpp.client.tasks import background
from mcpp.errors import JoinError
from mcpp_agents.mcp_server.server import PodServer
from mcpp_agents.mcp_server.shared_pod import SharedPod
from mcpp_agents.mcp_server.tool_handlers import KEPT_ENVELOPES

PATH: Final = "/mcp"
# Participants that are connected at the same time, and how long one stays without a request.
MAX_MEMBERS: Final = 1000
IDLE_SECONDS: Final = 1800.0
_MAX_VIEWS: Final = 100
# Of a participant's clients of older revisions; one takes about 35 kB. Lost ones stay for a while.
MAX_SESSIONS: Final = 1000
_MAX_TOKEN_BYTES: Final = 8192  # as a gateway accepts (G-04)
_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
# A little less than the official Python SDK accepts.
_MAX_EVENT_BYTES: Final = 1_000_000
_JOIN_SECONDS: Final = 15.0
_SESSION: Final = b"mcp-session-id"
_LOCAL: Final = ["127.0.0.1:*", "localhost:*", "[::1]:*", "127.0.0.1", "localhost", "[::1]"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Key = tuple[bytes, str | None]

logger = logging.getLogger("mcpp.mcp_server")


@dataclass(slots=True)
class _Member:
    """A participant that is connected for its clients. Owns its views."""

    shared: SharedPod
    tasks: TaskGroup
    security: TransportSecuritySettings | None
    views: dict[str | None, StreamableHTTPSessionManager] = field(default_factory=dict)
    sessions: "_Sessions" = field(default_factory=lambda: _Sessions())
    requests: int = 0  # being served
    used_at: float = 0.0
    _opening: anyio.Lock = field(default_factory=anyio.Lock)

    async def view(self, participant: str | None) -> StreamableHTTPSessionManager:
        """Return the MCP server for the pod, or for one participant."""
        async with self._opening:  # one for all: a session is known to one of them only
            manager = self.views.get(participant)
            if manager is None:
                manager = await self.tasks.start(self._run_view, participant)
        return manager

    async def _run_view(
        self,
        participant: str | None,
        *,
        task_status: TaskStatus[StreamableHTTPSessionManager],
    ) -> None:
        server = PodServer(self.shared, participant)
        manager = StreamableHTTPSessionManager(
            server.server,
            security_settings=self.security,
            max_request_body_size=_MAX_BODY_BYTES,
            max_sessions=2 * MAX_SESSIONS,
        )
        async with manager.run():
            self.views[participant] = manager
            task_status.started(manager)
            await server.announce_changes()


class _Sessions:
    """The sessions of a participant's clients, the least recently used first.

    Where there are too many, the first one that serves no request is ended: its client is gone, or
    gets 404 and begins another session, as the protocol says.
    """

    def __init__(self) -> None:
        self._managers: OrderedDict[bytes, StreamableHTTPSessionManager] = OrderedDict()
        self._busy: Counter[bytes] = Counter()

    async def serve(
        self, manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request of a session, one that begins a session, or one without."""
        used = _header(scope, _SESSION)
        is_known = used is not None and self._managers.get(used) is manager
        session = used if is_known else None

        async def watch(message: MutableMapping[str, Any]) -> None:
            nonlocal session
            if message["type"] == "http.response.start":
                if used is None and message["status"] < 400:
                    session = _header(message, _SESSION)
                    self._begin(session, manager)
                elif session is not None and (
                    message["status"] == 404 or scope["method"] == "DELETE"
                ):
                    self._managers.pop(session, None)
            await send(message)

        self._begin(session, manager)
        try:
            await manager.handle_request(scope, receive, watch)
        finally:
            if session is not None:
                self._busy[session] -= 1
                if not self._busy[session]:
                    del self._busy[session]
        if len(self._managers) > MAX_SESSIONS:
            await self._end_one(scope)

    def _begin(self, session: bytes | None, manager: StreamableHTTPSessionManager) -> None:
        if session is not None:
            self._busy[session] += 1
            self._managers[session] = manager
            self._managers.move_to_end(session)

    async def _end_one(self, scope: Scope) -> None:
        idle = next((session for session in self._managers if not self._busy[session]), None)
        if idle is None:
            return

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def ignore(message: MutableMapping[str, Any]) -> None:
            pass

        kept = [each for each in scope["headers"] if each[0] in (b"host", b"origin")]
        headers = [*kept, (_SESSION, idle)]
        manager = self._managers.pop(idle)
        await manager.handle_request(
            {**scope, "method": "DELETE", "headers": headers}, receive, ignore
        )


class _LargeAnswer:
    """Sends an answer as JSON if it is the first event of a stream, and too large for one.

    Clients bound an event (1 MiB in the official Python SDK), but not an answer that is JSON. The
    head waits for the first event, which may be a ping. Once events have been sent, a large answer
    is one of them.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: MutableMapping[str, Any] | None = None
        self._is_done = False

    async def __call__(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and _is_stream(message):
            self._head = message
            return
        head, self._head = self._head, None
        if head is not None:
            answer = _read_large_answer(message.get("body", b""))
            if answer is not None:
                self._is_done = True
                kept = [each for each in head["headers"] if each[0].lower() != b"content-type"]
                headers = [*kept, (b"content-type", b"application/json")]
                await self._send({**head, "headers": headers})
                await self._send({"type": "http.response.body", "body": answer})
                return
            await self._send(head)
        if not self._is_done:
            await self._send(message)


class _Answer(msgspec.Struct):
    id: str | int
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _is_stream(head: MutableMapping[str, Any]) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in head["headers"]
    )


def _read_large_answer(event: bytes) -> bytes | None:
    """Return the answer that an event holds if it is too large; None for any other event."""
    if len(event) <= _MAX_EVENT_BYTES:
        return None
    data = b"\n".join(
        line.removeprefix(b"data:").removeprefix(b" ")
        for line in event.splitlines()
        if line.startswith(b"data:")
    )
    try:
        answer = msgspec.json.decode(data, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None  # a question to the client, or a notification
    return data if answer.result is not msgspec.UNSET else None


class PodHttpServer:
    """An ASGI application that serves a pod. Owns the participants that are connected.

    Args:
        url: the gateway's address.
        ca: a file with the certificate of its authority; see `Address`.
        checks_host: whether only requests to this machine's own names are served, against pages
            that reach it by another name (DNS rebinding).
    """

    def __init__(self, url: str, *, ca: str | None = None, checks_host: bool = True) -> None:
        self._url = url
        self._ca = ca
        self._pod = _pod_in(urlsplit(url).query)
        self._tasks: TaskGroup
        # By the digest of the token, and the pod; None for a token that needs no `pod=`.
        self._members: dict[_Key, _Member] = {}
        self._joining: dict[bytes, anyio.Lock] = {}
        origins = [f"http://{name}" for name in _LOCAL]
        self._security = (
            TransportSecuritySettings(
                enable_dns_rebinding_protection=True,
                allowed_hosts=_LOCAL,
                allowed_origins=origins,
            )
            if checks_host
            else None
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve requests while the block runs."""
        async with background() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._close_idle_members)
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        path, token = scope["path"].rstrip("/"), _bearer(scope)
        if path != PATH and not path.startswith(f"{PATH}/"):
            await _refuse(send, 404, "not found")
        elif token is None:
            await _refuse(send, 401, "send a participant's token: Authorization: Bearer TOKEN")
        else:
            await self._serve(token, path[len(PATH) + 1 :] or None, scope, receive, send)

    async def _serve(
        self, token: str, participant: str | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            named = _pod_in(scope["query_string"].decode("latin-1"))
            member = await self._member(token, self._pod if named is None else named)
        except JoinError as error:
            await _refuse(send, error.status, error.reason)
            return
        except (mcpp.McppError, TimeoutError) as error:
            await _refuse(send, 503, str(error) or "the gateway does not answer")
            return
        if participant is not None and participant not in member.shared.pod.participants:
            await _refuse(send, 404, "this participant is not in the pod")
            return
        if len(member.views) >= _MAX_VIEWS and participant not in member.views:
            await _refuse(send, 503, "too many participants are used")
            return
        member.requests += 1
        try:
            manager = await member.view(participant)
            given = _LargeAnswer(send) if scope["method"] == "POST" else send
            await member.sessions.serve(manager, scope, receive, given)
        finally:
            member.requests -= 1
            member.used_at = anyio.current_time()

    async def _member(self, token: str, pod: str | None) -> _Member:
        """Return the participant that a token belongs to, in the pod that a request names.

        Raises McppError and TimeoutError.
        """
        digest = sha256(token.encode()).digest()
        lock = self._joining.setdefault(digest, anyio.Lock())
        try:
            async with lock:
                member = self._members.get((digest, pod)) or self._unnamed(digest, pod)
                if member is None:
                    if len(self._members) >= MAX_MEMBERS:
                        raise mcpp.McppError("too many participants are connected")
                    with anyio.fail_after(_JOIN_SECONDS):
                        member = await self._join_once(digest, token, pod)
                return member
        finally:
            if not lock.statistics().tasks_waiting:
                self._joining.pop(digest, None)

    def _unnamed(self, digest: bytes, pod: str | None) -> _Member | None:
        """Return the member that joined without `pod=`, if it is in this pod."""
        member = self._members.get((digest, None))
        return member if member is not None and member.shared.pod.name == pod else None

    async def _join_once(self, digest: bytes, token: str, pod: str | None) -> _Member:
        """Join without `pod=` if the token does not need it: requests without it share the member.

        Two connections of one participant would replace each other.
        """
        if pod is not None and self._pod is None and (digest, None) not in self._members:
            try:
                member = await self._join((digest, None), token, self._url)
            except JoinError as error:
                if error.status != 400:  # the token is for several pods (S-06)
                    raise
            else:
                if member.shared.pod.name == pod:
                    return member
        return await self._join((digest, pod), token, _with_pod(self._url, pod))

    async def _join(self, key: _Key, token: str, url: str) -> _Member:
        joined: _Member | Exception | None = None
        done = anyio.Event()

        async def run() -> None:
            nonlocal joined
            try:
                async with AsyncExitStack() as stack:
                    address = Address(url, token, self._ca)
                    connecting = mcpp.connect(address, last=KEPT_ENVELOPES, own=True)
                    pod = await stack.enter_async_context(connecting)
                    tasks = await stack.enter_async_context(background())
                    shared = SharedPod(pod)
                    joined = self._members[key] = _Member(shared, tasks, self._security)
                    joined.used_at = anyio.current_time()
                    done.set()
                    try:
                        await shared.listen()
                    finally:
                        del self._members[key]
                        with anyio.move_on_after(5, shield=True):
                            await shared.close()
            except mcpp.McppError as error:
                if joined is None:
                    joined = error
                else:
                    logger.info("a participant was disconnected: %s", error)
            finally:
                done.set()

        self._tasks.start_soon(run)
        await done.wait()
        if isinstance(joined, _Member):
            return joined
        raise joined or mcpp.McppError("the gateway does not answer")

    async def _close_idle_members(self) -> None:
        while True:
            await anyio.sleep(IDLE_SECONDS / 10)
            now = anyio.current_time()
            for member in list(self._members.values()):
                if not member.requests and now - member.used_at > IDLE_SECONDS:
                    member.tasks.cancel_scope.cancel()


async def serve(app: PodHttpServer, listener: socket.socket) -> None:
    """Serve an application until Ctrl-C or SIGTERM. Raises KeyboardInterrupt in the end."""
    config = uvicorn.Config(
        app,
        log_config=None,  # its lines go the way of all others
        log_level="warning",
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=2,
    )
    async with app.running():
        await uvicorn.Server(config).serve(sockets=[listener])


def _header(message: Scope, wanted: bytes) -> bytes | None:
    return next((value for name, value in message["headers"] if name.lower() == wanted), None)


def _bearer(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"authorization" and value[:7].lower() == b"bearer ":
            if len(value) > _MAX_TOKEN_BYTES + 7:
                return None
            return str(value[7:].strip().decode("latin-1"))
    return None


def _pod_in(query: str) -> str | None:
    """Return the pod that a query names, which a token for several pods needs (S-06)."""
    return next(iter(parse_qs(query, keep_blank_values=True).get("pod", ())), None)


def _with_pod(url: str, pod: str | None) -> str:
    if pod is None:
        return url
    parts = urlsplit(url)
    kept = [part for part in parts.query.split("&") if part and not part.startswith("pod=")]
    return urlunsplit(parts._replace(query="&".join([*kept, f"pod={quote(pod, safe='')}"])))


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})
