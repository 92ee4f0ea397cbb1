"""Lines over WebSocket: websockets' sans-I/O `ClientProtocol` on the streams of `tcp`.

So the same few lines run on asyncio and on trio, and the rules of RFC 6455 are websockets' own.
"""

import logging
import re
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import anyio
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from mcpp.errors import AddressError, BusyError, JoinError, UnreachableError
from mcpp.session.session import Join
from mcpp.transports.tcp import Stream, open_stream
from mcpp.transports.transport import ABNORMAL, TransportClosed

# Far above any gateway's limit for one message: it is only there against a foreign server.
MAX_TEXT_BYTES: Final = 64 * 2**20
_READ_BYTES: Final = 2**18
_WHOLE_TEXT: Final = 0x81  # final, no extension bits, opcode text
_CLOSE_SECONDS: Final = 1.0

# A line feed behind a token, as files have it, would begin another header.
_is_token = re.compile(r"[A-Za-z0-9._~-]+").fullmatch

# It may be a date too, which no gateway of ours says.
_is_seconds = re.compile(r"[0-9]{1,6}").fullmatch

# At level DEBUG websockets writes every header, and one of them is the token.
_silent = logging.getLogger("mcpp.transports.websocket")
_silent.disabled = True

# What anyio's streams raise when a connection is gone, whichever side and layer it broke on.
_BROKEN: Final = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    OSError,
)


@dataclass(frozen=True, slots=True)
class WebSocketConnector:
    """Opens WebSockets to a pod's URL with a bearer token, which is never part of the URL."""

    url: str
    token: str = field(repr=False)
    ssl_context: ssl.SSLContext | None = None
    silence_seconds: float = 20.0
    unknown_until: float = 0.0  # by the monotonic clock: a new token may not be known before

    @property
    def address(self) -> str:
        """The URL."""
        return self.url

    async def open(self, join: Join) -> "WebSocket":
        """Connect and shake hands."""
        protocol = self._protocol(join)
        uri = protocol.uri
        tls = (self.ssl_context or ssl.create_default_context()) if uri.secure else None
        try:
            stream = await open_stream(uri.host, uri.port, tls)
        except (*_BROKEN, UnicodeError) as error:
            raise UnreachableError(self.url, str(error) or "it broke the connection") from None
        line = WebSocket(stream, protocol, self.silence_seconds)
        try:
            await line.shake_hands()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await stream.aclose()
            if isinstance(error, InvalidStatus):
                raise self._refusal(error.response) from None
            if isinstance(error, TransportClosed | InvalidHandshake):
                raise UnreachableError(self.url, f"the handshake failed: {error}") from None
            raise
        return line

    def _protocol(self, join: Join) -> ClientProtocol:
        if not _is_token(self.token):
            raise AddressError(401, "a token is made of A-Z a-z 0-9 . _ ~ - and nothing else")
        try:
            parts = urlsplit(self.url)
            asked = [*parse_qsl(parts.query, keep_blank_values=True), *join.query().items()]
            query = urlencode(asked)
            uri = parse_uri(urlunsplit(parts._replace(query=query, fragment="")))
        except (InvalidURI, ValueError) as error:
            reason = error.msg if isinstance(error, InvalidURI) else str(error)
            raise AddressError(400, f"{self.url!r} is no address: {reason}") from None
        protocol = ClientProtocol(uri, max_size=MAX_TEXT_BYTES, logger=_silent)
        request = protocol.connect()
        request.headers["Authorization"] = f"Bearer {self.token}"
        protocol.send_request(request)
        return protocol

    def _refusal(self, response: Response) -> JoinError | UnreachableError:
        status = response.status_code
        reason = bytes(response.body or b"").decode(errors="replace").strip()[:200]
        reason = reason or response.reason_phrase
        unknown = status == 401 and time.monotonic() < self.unknown_until
        if status == 429 or status >= 500 or unknown:
            wait = response.headers.get("Retry-After", "")
            seconds = int(wait) if _is_seconds(wait) else None
            return BusyError(self.url, f"{status} {reason}", seconds)
        return JoinError(status, reason)


class WebSocket:
    """One WebSocket. Owns its stream, the protocol's state, and the pieces of a message."""

    def __init__(
        self, stream: Stream, protocol: ClientProtocol, silence_seconds: float = 20.0
    ) -> None:
        self._stream = stream
        self._protocol = protocol
        self._silence_seconds = silence_seconds
        self._texts: list[bytes] = []
        self._pieces: list[bytes] = []
        self._rest = bytearray()
        self._need = 0
        self._writing = False
        self._heard = False

    async def shake_hands(self) -> None:
        """Send the upgrade and wait for its answer."""
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
        """Write texts, each as one frame."""
        if self._protocol.state is State.OPEN:
            for text in texts:
                self._protocol.send_text(text)
            await self._flush()

    async def receive(self) -> Sequence[bytes]:
        """Return the texts that have arrived together."""
        while True:
            if self._texts:
                texts, self._texts = self._texts, []
                return texts
            if self._protocol.state is not State.OPEN:
                raise self._closed()
            await self._read()

    async def keep_alive(self) -> None:
        """Ping a silent line, and break it when not even a pong comes."""
        while True:
            self._heard = False
            await anyio.sleep(self._silence_seconds)
            if not self._heard and self._protocol.state is State.OPEN:
                self._protocol.send_ping(b"")
                await self._flush()
                await anyio.sleep(self._silence_seconds)
                if not self._heard:
                    await self._stream.aclose()
                    return

    async def aclose(self) -> None:
        """Say goodbye and hang up, within a second even if nobody answers."""
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True), suppress(TransportClosed):
            if self._protocol.state is State.OPEN:
                self._protocol.send_close(1000)
                await self._flush()
                while True:  # until the gateway hangs up
                    await self._read()
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()

    async def _read(self) -> None:
        try:
            data = await self._stream.receive(_READ_BYTES)
        except _BROKEN:
            self._protocol.receive_eof()
            raise self._closed() from None
        self._heard = True
        match self._protocol.state:
            case State.OPEN:
                self._split(data)
            case State.CONNECTING:
                self._read_response(data)
            case _:
                self._protocol.receive_data(data)
        await self._flush()

    def _read_response(self, data: bytes) -> None:
        """Give the answer to the upgrade to the protocol, but not the frames behind it."""
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
        """Cut data into frames: plain texts are taken as they are, the rest is the protocol's.

        It sees whole frames only, so it is always between two. This is worth a third of the time
        that receiving takes.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data = bytes(self._rest)
            self._rest.clear()
        start, end = 0, len(data)
        while start < end:
            size = _frame_bytes(data, start, end)
            if size > MAX_TEXT_BYTES:
                self._protocol.receive_data(data[start:])  # which refuses it
                return
            if end - start < size:
                self._rest += data[start:]
                self._need = size
                return
            if data[start] == _WHOLE_TEXT and not self._pieces:
                self._texts.append(data[start + _head_bytes(data[start + 1]) : start + size])
            else:
                self._protocol.receive_data(data[start : start + size])
                self._take_frames()
                if self._protocol.state is not State.OPEN:
                    return
            start += size

    async def _flush(self) -> None:
        # Whoever is writing already takes what the others have added.
        if self._writing:
            return
        self._writing = True
        try:
            while chunks := self._protocol.data_to_send():
                data = b"".join(chunks)
                if data:
                    await self._stream.send(data)
        except _BROKEN:
            pass  # `receive` tells
        except BaseException:
            # Cancelled: part of a frame may have gone, and nothing could follow it.
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
                self._pieces.append(bytes(event.data))
                if event.fin:
                    self._texts.append(b"".join(self._pieces))
                    self._pieces.clear()


def _head_bytes(second: int) -> int:
    """Return the length of an unmasked frame's head by its second byte."""
    return 2 if second < 126 else 4 if second == 126 else 10


def _frame_bytes(data: bytes, start: int, end: int) -> int:
    """Return the length of the frame that begins here, or more than there is if that is unknown."""
    if end - start < 2:
        return 2
    second = data[start + 1]
    if second < 126:
        return second + 2
    head = _head_bytes(second & 0x7F)
    if end - start < head:
        return head
    return head + int.from_bytes(data[start + 2 : start + head])
