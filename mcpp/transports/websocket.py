"""The WebSocket transport: websockets' sans-I/O `ClientProtocol` on the streams of `tcp`.

The same code runs on asyncio and on trio, and RFC 6455 is left to websockets (15 or later).
"""

import logging
import re
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import anyio
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI, parse_uri
from websockets.version import version as websockets_version

import mcpp
from mcpp.errors import (
    AddressError,
    AttachmentError,
    BusyError,
    ConnectionLostError,
    JoinError,
    TokenRefusedError,
    TokenUnavailableError,
    UnreachableError,
)
from mcpp.session.resumption import Join
from mcpp.transports.http import BlobAddress
from mcpp.transports.tcp import Stream, open_stream
from mcpp.transports.token_sources import TokenSource, read_token
from mcpp.transports.transport import ABNORMAL, TransportClosed

# Far above any gateway's limit for one message; it protects against other servers.
MAX_TEXT_BYTES: Final = 64 * 2**20
USER_AGENT: Final = f"mcpp-pods/{mcpp.__version__} websockets/{websockets_version}"
_READ_BYTES: Final = 2**18
_UNFRAGMENTED_TEXT: Final = 0x81  # final, no extension bits, opcode text
_CLOSE_SECONDS: Final = 1.0
# Half of what a gateway allows a participant, which may be connected twice.
_TRANSFERS: Final = 8

# A line feed at the end of a token, as files have it, would inject another header.
_is_token = re.compile(r"[A-Za-z0-9._~-]+").fullmatch

# Retry-After may also be a date, which our gateway never sends.
_is_seconds = re.compile(r"[0-9]{1,6}").fullmatch

# At level DEBUG websockets logs every header, and with them the token.
_silent = logging.getLogger("mcpp.transports.websocket")
_silent.disabled = True

# What anyio's streams raise when a connection is gone, whichever side or layer closed it.
_BROKEN: Final = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    OSError,
)


@dataclass(slots=True)
class WebSocketConnector:
    """Opens WebSockets to a pod's URL with a bearer token, which is never part of the URL.

    Remembers the token that it used last.
    """

    url: str
    token: TokenSource = field(repr=False)
    ssl_context: ssl.SSLContext | None = None
    silence_seconds: float = 20.0
    _used: str | None = field(default=None, init=False, repr=False, compare=False)
    _room: anyio.Semaphore | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def address(self) -> str:
        """The pod's URL."""
        return self.url

    async def upload(self, hash: str, size: int, content: AsyncIterator[bytes]) -> None:
        """Upload a blob with the same token. Raises AttachmentError."""
        async with self._transfers:
            await (await self._blobs()).upload(hash, size, content)

    async def download(self, hash: str) -> AsyncIterator[bytes]:
        """Yield the content of a blob. Raises AttachmentError."""
        async with self._transfers:
            async for piece in (await self._blobs()).download(hash):
                yield piece

    async def has_newer_token(self) -> bool:
        """Return whether the token has changed since the last connection.

        One that cannot be read now, because it is being replaced, counts as changed.
        """
        try:
            return await read_token(self.token) != self._used
        except TokenUnavailableError:
            return True

    @property
    def _transfers(self) -> anyio.Semaphore:
        """The uploads and downloads at once; others wait, since the gateway would refuse them."""
        if self._room is None:  # made where an event loop runs
            self._room = anyio.Semaphore(_TRANSFERS)
        return self._room

    async def _blobs(self) -> BlobAddress:
        try:
            return BlobAddress(self.url, await self._read_token(), self.ssl_context)
        except ConnectionLostError as error:
            raise AttachmentError(None, str(error)) from None

    async def _read_token(self) -> str:
        try:
            token = await read_token(self.token)
        except TokenUnavailableError as error:
            raise TokenUnavailableError(self.url, error.reason) from None
        self._check_token(token)
        return token

    def check_address(self) -> None:
        """Raise AddressError if the URL is malformed."""
        self._uri(Join())

    async def open(self, join: Join) -> "WebSocket":
        """Connect and complete the handshake."""
        token = self._used = await self._read_token()
        uri = self._uri(join)
        tls = (self.ssl_context or ssl.create_default_context()) if uri.secure else None
        try:
            stream = await open_stream(uri.host, uri.port, tls)
        except (*_BROKEN, UnicodeError) as error:
            refused = "connection refused" if isinstance(error, ConnectionRefusedError) else ""
            reason = refused or str(error) or "the connection broke"
            raise UnreachableError(self.url, reason) from None
        # Only now: many attempts find no gateway, and this is most of the work of one.
        websocket = WebSocket(stream, _protocol(uri, token), self.silence_seconds)
        try:
            await websocket.handshake()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await stream.aclose()
            if isinstance(error, InvalidStatus):
                raise self._refusal(error.response) from None
            if isinstance(error, TransportClosed | InvalidHandshake):
                raise UnreachableError(self.url, f"the handshake failed: {error}") from None
            raise
        return websocket

    def _check_token(self, token: str) -> None:
        if not _is_token(token):
            reason = "a token may contain only A-Z a-z 0-9 . _ ~ -"
            if not isinstance(self.token, str):  # the next one may be right
                raise TokenUnavailableError(self.url, reason if token else "it is empty")
            raise AddressError(self.url, reason)

    def _uri(self, join: Join) -> WebSocketURI:
        try:
            parts = _with_path(urlsplit(self.url))
            query = [*parse_qsl(parts.query, keep_blank_values=True), *join.query().items()]
            return parse_uri(urlunsplit(parts._replace(query=urlencode(query), fragment="")))
        except (InvalidURI, ValueError) as error:
            reason = error.msg if isinstance(error, InvalidURI) else str(error)
            raise AddressError(self.url, f"it is not a WebSocket URL: {reason}") from None

    def _refusal(self, response: Response) -> JoinError | UnreachableError:
        status = response.status_code
        reason = bytes(response.body or b"").decode(errors="replace").strip()[:200]
        reason = reason or response.reason_phrase
        if status == 429 or status >= 500:
            wait = response.headers.get("Retry-After", "")
            seconds = int(wait) if _is_seconds(wait) else None
            return BusyError(self.url, f"{status} {reason}", seconds)
        if status == 401 and not isinstance(self.token, str):
            return TokenRefusedError(status, reason)
        return JoinError(status, reason)


def _protocol(uri: WebSocketURI, token: str) -> ClientProtocol:
    protocol = ClientProtocol(uri, max_size=MAX_TEXT_BYTES, logger=_silent)
    request = protocol.connect()
    request.headers["User-Agent"] = USER_AGENT
    request.headers["Authorization"] = f"Bearer {token}"
    protocol.send_request(request)
    return protocol


def _with_path(parts: SplitResult) -> SplitResult:
    """Return an address with what people leave out: the path `/ws`, and `ws` for `http`."""
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    return parts._replace(scheme=scheme, path="/ws" if parts.path in ("", "/") else parts.path)


class WebSocket:
    """One WebSocket connection. Owns its stream, the protocol's state and message fragments."""

    def __init__(
        self, stream: Stream, protocol: ClientProtocol, silence_seconds: float = 20.0
    ) -> None:
        self._stream = stream
        self._protocol = protocol
        self._silence_seconds = silence_seconds
        self._texts: list[bytes] = []
        self._fragments: list[bytes] = []
        self._rest = bytearray()
        self._need = 0
        self._writing = False
        self._received = False

    async def handshake(self) -> None:
        """Send the upgrade request and wait for the response."""
        await self._flush()
        while self._protocol.state is State.CONNECTING:
            try:
                await self._read()
            except TransportClosed:
                if self._protocol.handshake_exc is None:
                    raise
            if self._protocol.handshake_exc is not None:
                raise self._protocol.handshake_exc

    async def send(self, texts: Sequence[bytes]) -> None:
        """Write each text as one frame."""
        if self._protocol.state is State.OPEN:
            for text in texts:
                self._protocol.send_text(text)
            await self._flush()

    async def receive(self) -> Sequence[bytes]:
        """Return the texts that have arrived, at least one. Raises TransportClosed."""
        while True:
            if self._texts:
                texts, self._texts = self._texts, []
                return texts
            if self._protocol.state is not State.OPEN:
                raise self._closed()
            await self._read()

    async def keep_alive(self) -> None:
        """Ping a silent connection, and close it if nothing arrives, not even a pong."""
        while True:
            self._received = False
            await anyio.sleep(self._silence_seconds)
            if not self._received and self._protocol.state is State.OPEN:
                self._protocol.send_ping(b"")
                await self._flush()
                await anyio.sleep(self._silence_seconds)
                if not self._received:
                    await self._stream.aclose()
                    return

    async def aclose(self) -> None:
        """Send a close frame and close the connection, within a second in any case."""
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True), suppress(TransportClosed):
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                await self._flush()
                while True:  # until the gateway closes the connection
                    await self._read()
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()

    async def _read(self) -> None:
        try:
            data = await self._stream.receive(_READ_BYTES)
        except _BROKEN:
            self._protocol.receive_eof()
            raise self._closed() from None
        self._received = True
        match self._protocol.state:
            case State.OPEN:
                self._split(data)
            case State.CONNECTING:
                self._read_response(data)
            case _:
                self._protocol.receive_data(data)
        await self._flush()

    def _read_response(self, data: bytes) -> None:
        """Pass the upgrade response to the protocol, but not the frames after it."""
        self._rest += data
        head, end, frames = bytes(self._rest).partition(b"\r\n\r\n")
        if not end and len(head) < _READ_BYTES:
            return
        self._rest.clear()
        self._protocol.receive_data(head + end)
        if self._protocol.state is State.OPEN:
            self._split(frames)
        else:
            self._protocol.receive_data(frames)

    def _split(self, data: bytes) -> None:
        """Split data into frames: unfragmented texts are taken as they are, others parsed.

        The protocol gets complete frames only, so it is never inside one. This saves a third of
        the time that receiving takes.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data = bytes(self._rest)
            self._rest.clear()
        start, end = 0, len(data)
        while start < end:
            size = _frame_length(data, start, end)
            if size > MAX_TEXT_BYTES:
                self._protocol.receive_data(data[start:])  # fails the connection
                return
            if end - start < size:
                self._rest += data[start:]
                self._need = size
                return
            if data[start] == _UNFRAGMENTED_TEXT and not self._fragments:
                self._texts.append(data[start + _header_length(data[start + 1]) : start + size])
            else:
                self._protocol.receive_data(data[start : start + size])
                self._take_frames()
                if self._protocol.state is not State.OPEN:
                    return
            start += size

    async def _flush(self) -> None:
        # The task that is writing already also writes what other tasks add.
        if self._writing:
            return
        self._writing = True
        try:
            while chunks := self._protocol.data_to_send():
                data = b"".join(chunks)
                if data:
                    await self._stream.send(data)
        except _BROKEN:
            pass  # `receive` raises TransportClosed
        except BaseException:
            # Cancelled: part of a frame may be written, so nothing can follow it.
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()
            raise
        finally:
            self._writing = False

    def _closed(self) -> TransportClosed:
        frame = self._protocol.close_rcvd
        return (
            TransportClosed(ABNORMAL)
            if frame is None
            else TransportClosed(frame.code, frame.reason)
        )

    def _take_frames(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.CONT):
                self._fragments.append(bytes(event.data))
                if event.fin:
                    self._texts.append(b"".join(self._fragments))
                    self._fragments.clear()


def _header_length(second: int) -> int:
    """Return the length of an unmasked frame's header, given its second byte."""
    return 2 if second < 126 else 4 if second == 126 else 10


def _frame_length(data: bytes, start: int, end: int) -> int:
    """Return the length of the frame at `start`.

    While its header is incomplete, that is a number above the bytes available.
    """
    if end - start < 2:
        return 2
    second = data[start + 1]
    if second < 126:
        return second + 2
    head = _header_length(second & 0x7F)
    if end - start < head:
        return head
    return head + int.from_bytes(data[start + 2 : start + head])
