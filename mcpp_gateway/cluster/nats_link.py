"""The connection to the NATS servers. The only module that knows the client library.

Sending never waits: messages are queued and written by one task. What is sent while no server can
be reached is dropped, because everything that matters is sent again by its owner. Replies arrive on
one subject of this gateway and are given to the function that was registered for their second part.

The library connects again by itself, but not always: an error that a server reports closes it for
good, a write to a closed socket can end its task, and it waits for the last bytes to a server that
does not read. So a client that stays unconnected is given up, and a new one takes its place.
"""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Final, NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from mcpp.errors import McppError

logger = logging.getLogger("mcpp.gateway")

_RECONNECT_SECONDS: Final = 0.1
_CONNECT_SECONDS: Final = 2
_PING_SECONDS: Final = 2
_ANSWER_SECONDS: Final = 5.0
_QUEUE_BYTES: Final = 64 << 20
_CHECK_SECONDS: Final = 0.5
_REPLACE_SECONDS: Final = 3.0  # longer than the library takes where another server answers
_CLOSE_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 10.0
# With uvloop, a write to a closed socket raises RuntimeError; the library lets it pass, and its own
# assertions, too.
_FAILURES: Final = (NatsError, OSError, RuntimeError, AttributeError, AssertionError)


class LinkError(McppError):
    """The NATS servers do not answer, or refuse."""


class NatsMessage(NamedTuple):
    """A message from the servers."""

    subject: str
    data: bytes
    headers: Mapping[str, str]

    @property
    def status(self) -> str:
        """The status of an answer without content: 503 is no responders, 204 the end of several."""
        return self.headers.get("Status", "")


Handler = Callable[[NatsMessage], None]


class NatsLink:
    """One connection for all pods. Owns it, and what waits to be sent."""

    def __init__(
        self,
        servers: list[str],
        *,
        prefix: str,
        gateway: str,
        credentials: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.prefix = prefix
        self.replies = f"{prefix}.reply.{gateway}"
        self._servers = servers
        self._gateway = gateway
        self._credentials = credentials
        self._tls = tls
        self._client = Client()
        self._subscriptions: list[tuple[str, Handler]] = []
        self._keeper: asyncio.Task[None] | None = None
        self._logged: dict[str, float] = {}  # when each error was logged last
        self._queue: deque[tuple[str, bytes, str, dict[str, str] | None]] = deque()
        self._queue_bytes = 0
        self._queued = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None
        self._numbers = count(1)
        self._requests: dict[str, asyncio.Queue[NatsMessage]] = {}
        self._on_reply: dict[str, Handler] = {}

    async def connect(self) -> None:
        """Connect, trying until a server answers.

        Raises LinkError if a server does not accept the credentials or certificates, or is not to
        be trusted: the library would try again without end.
        """
        refused = asyncio.get_running_loop().create_future()

        async def on_error(error: Exception) -> None:
            await self._log_error(error)
            if _is_final(error) and not refused.done():
                refused.set_result(error)

        connecting = asyncio.ensure_future(self._connect(on_error))
        try:
            await asyncio.wait((connecting, refused), return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                raise LinkError(f"cluster.servers: {refused.result()}")
            self._client = await connecting
        finally:
            refused.cancel()
            connecting.cancel()
        self._sender = asyncio.create_task(self._send_queue())
        self._keeper = asyncio.create_task(self._keep_connected())
        await self.subscribe(f"{self.replies}.>", self._receive_reply)

    async def _connect(self, on_error: Callable[[Exception], Awaitable[None]]) -> Client:
        """Return a client that has connected, trying until a server answers. Raises LinkError."""
        options = {} if self._credentials is None else {"user_credentials": self._credentials}
        while True:
            client = Client()
            try:
                await client.connect(
                    self._servers,
                    name=f"mcpp gateway {self._gateway}",
                    error_cb=on_error,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type]
                    connect_timeout=_CONNECT_SECONDS,
                    ping_interval=_PING_SECONDS,
                    max_outstanding_pings=2,
                    pending_size=_QUEUE_BYTES,
                    tls=self._tls,
                    **options,  # type: ignore[arg-type]
                )
                return client
            except (NatsError, OSError, ValueError) as error:
                raise LinkError(f"cluster.servers: {error}") from None
            except _FAILURES as error:  # a server ended while it was asked
                await on_error(error)
            finally:
                if not client.is_connected:
                    await _close(client)

    async def close(self) -> None:
        """Send what waits, and close the connection."""
        if self._sender is None or self._keeper is None:
            return  # it was never connected
        self._sender.cancel()
        self._keeper.cancel()
        if self._client.is_connected:
            try:
                while self._queue:
                    subject, data, reply, headers = self._queue.popleft()
                    await self._client.publish(subject, data, reply, headers)
                await asyncio.wait_for(self._client.flush(), _CLOSE_SECONDS)
            except _FAILURES:
                logger.debug("the last messages were not sent")
        await _close(self._client)

    @property
    def is_connected(self) -> bool:
        """Whether a server can be reached."""
        return self._client.is_connected

    @property
    def max_payload(self) -> int:
        """The largest message that the servers accept."""
        return self._client.max_payload

    @property
    def queued_bytes(self) -> int:
        """How much waits to be sent to the servers."""
        return self._queue_bytes

    def send(
        self, subject: str, data: bytes, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send a message soon, in order; drop it if no server can be reached."""
        if not self._client.is_connected or self._queue_bytes > _QUEUE_BYTES:
            return
        self._queue.append((subject, data, reply, headers))
        self._queue_bytes += len(data)
        self._queued.set()

    def on_reply(self, name: str, handler: Handler) -> None:
        """Let a function take the replies to `{replies}.{name}.…`."""
        self._on_reply[name] = handler

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Call a function for every message of a subject, also after the connection was lost."""
        self._subscriptions.append((subject, handler))
        await self._subscribe(self._client, subject, handler)

    async def _subscribe(self, client: Client, subject: str, handler: Handler) -> None:
        async def receive(message: Msg) -> None:
            handler(NatsMessage(message.subject, message.data, message.headers or {}))

        await client.subscribe(subject, cb=receive)

    async def request(
        self, subject: str, data: bytes, headers: dict[str, str] | None = None
    ) -> NatsMessage:
        """Send a request and return its answer. Raises LinkError."""
        return (await self.request_many(subject, data, most=1, headers=headers))[0]

    async def request_many(
        self,
        subject: str,
        data: bytes,
        *,
        most: int = 1 << 30,
        headers: dict[str, str] | None = None,
    ) -> list[NatsMessage]:
        """Send a request and return its answers: until one has a status, or there are enough.

        Raises LinkError.
        """
        name = str(next(self._numbers))
        queue = self._requests[name] = asyncio.Queue()
        found: list[NatsMessage] = []
        try:
            self.send(subject, data, f"{self.replies}.request.{name}", headers)
            while len(found) < most:
                message = await asyncio.wait_for(queue.get(), _ANSWER_SECONDS)
                found.append(message)
                if message.status:
                    break
        except TimeoutError:
            raise LinkError(f"no answer to {subject}") from None
        finally:
            del self._requests[name]
        return found

    def _receive_reply(self, message: NatsMessage) -> None:
        _, _, _, kind, name = message.subject.split(".", 4)
        if kind == "request":
            queue = self._requests.get(name)
            if queue is not None:
                queue.put_nowait(message)
        elif kind in self._on_reply:
            self._on_reply[kind](message)

    async def _keep_connected(self) -> None:
        """Replace a client that does not connect again by itself."""
        loop = asyncio.get_running_loop()
        connected_at = loop.time()
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            if self._client.is_connected:
                connected_at = loop.time()
            elif loop.time() - connected_at >= _REPLACE_SECONDS:
                logger.warning("connecting to the cluster anew")
                await self._replace()
                connected_at = loop.time()

    async def _replace(self) -> None:
        closing = asyncio.create_task(_close(self._client))
        try:
            self._client = await self._connect(self._log_error)
            for subject, handler in self._subscriptions:
                await self._subscribe(self._client, subject, handler)
        except (LinkError, *_FAILURES) as error:
            await self._log_error(error)
            await _close(self._client)  # to be tried again
        await closing

    async def _log_error(self, error: Exception) -> None:
        """Log an error, the same one now and then: a server may be away for long."""
        reason, now = str(error) or type(error).__name__, asyncio.get_running_loop().time()
        if now - self._logged.get(reason, float("-inf")) >= _LOG_SECONDS:
            self._logged = {**self._logged, reason: now} if len(self._logged) < 100 else {}
            logger.warning("cluster connection", extra={"reason": reason})

    async def _send_queue(self) -> None:
        queue = self._queue
        while True:
            await self._queued.wait()
            self._queued.clear()
            while queue:
                subject, data, reply, headers = queue.popleft()
                self._queue_bytes -= len(data)
                try:
                    await self._client.publish(subject, data, reply, headers)
                except _FAILURES as error:
                    logger.warning("not sent to the cluster", extra={"reason": str(error)})


async def _close(client: Client) -> None:
    """Close a client. One that hangs is left: its socket ends with the server or the process."""
    try:
        await asyncio.wait_for(client.close(), _CLOSE_SECONDS)
    except _FAILURES:
        logger.debug("a connection to the cluster was not closed properly")


def _is_final(error: Exception) -> bool:
    """Return whether a server refuses this gateway, or is not to be trusted."""
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError):
        return False  # it ended during the handshake
    return isinstance(error, ssl.SSLError) or "uthorization" in str(error)
