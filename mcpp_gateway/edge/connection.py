"""One connection: bytes from a socket to texts for the hub, and back.

The handshake, control frames, fragments and everything odd go through websockets' sans-I/O
`ServerProtocol`. Frames are told apart here, so that it only ever gets whole ones; and the common
frame, a text in one piece, never goes there at all (0.7 µs instead of 3.4). The rules of RFC 6455
are the same on both lanes: what the fast lane does not know as legal, it hands over to be judged.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final, cast

from websockets import frames
from websockets.frames import BINARY, CONT, TEXT, Frame
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from mcpp_gateway.edge.admission import SUBPROTOCOL, Admission, Denial
from mcpp_gateway.edge.http import deny, respond, session
from mcpp_gateway.edge.hub import Peer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from websockets.typing import Subprotocol

    from mcpp_gateway.edge.server import Gateway

# From `frames`, where it is the C one if that was built: the one in `utils` takes 3 µs.
apply_mask = frames.apply_mask  # type: ignore[attr-defined]

_MAX_REQUEST_BYTES: Final = 16_384
_MASKED_TEXT: Final = 0x81  # final, no extension bits, opcode text
_CLOSE_SECONDS: Final = 5.0
_LOGGED: Final = (401, 403, 429)  # who tries a door, not who mistypes an address
# Frames that cost no token: refused for the rate, control frames, fragments. A flood of them must
# not cost the others the gateway's time, so above this a participant is not read until the next
# second. Nothing is lost: it waits at the sender.
_UNPAID_PER_SECOND: Final = 500
# G-47: what texts take beyond this is counted as so many of them a second, so that a participant
# has a quarter of each second for it; and a tenth of that once all together have had as much. (A
# small envelope takes 6 µs; a megabyte of records 8 ms, of the costliest numbers to check 200.)
_FREE_SECONDS_A_TEXT: Final = 100e-6
_FREE_SECONDS_A_BYTE: Final = 4e-9
_EXCESS_SECONDS: Final = 0.25
_UNPAID_A_SECOND: Final = _UNPAID_PER_SECOND / _EXCESS_SECONDS

logger = logging.getLogger("mcpp.gateway")

# websockets' own log would repeat ours and, at level DEBUG, hold every header: tokens too.
_silent = logging.getLogger("mcpp.gateway.websockets")
_silent.disabled = True


class ServerConnection(asyncio.Protocol):
    """A socket of the gateway. Owns the transport, what is half received, and its close."""

    __slots__ = (
        "_chunks",
        "_fragments",
        "_gateway",
        "_have",
        "_held",
        "_need",
        "_protocol",
        "_reading",
        "_timer",
        "_transport",
        "full",
        "heard",
        "peer",
    )

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._transport: asyncio.Transport
        self._protocol: ServerProtocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 0
        self._fragments: bytearray | None = None
        self._held = False
        self._reading = True
        self.peer: Peer | None = None
        self.full = False
        self.heard = True

    # --- asyncio's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        self._gateway.connections.add(self)
        self._end_in(self._gateway.config.gateway.handshake_seconds)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        # Chunks are joined only once they make a whole frame: joining at each arrival would let a
        # peer that sends a large frame byte by byte cost us the square of its size.
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks = []
        if self.peer is not None:
            self._read_frames(data, self.peer)
        elif self._protocol is None:
            self._read_request(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._gateway.forget(self)
        if self.peer is not None and not self.peer.closed:
            self._gateway.hub.leave(self.peer)

    def pause_writing(self) -> None:
        self.full = True
        # Whoever does not read what it is owed is not read either, or its pings could fill memory.
        self._set_reading()
        if self.peer is not None:
            self._gateway.hub.report_full(self.peer)

    def resume_writing(self) -> None:
        self.full = False
        self.heard = True  # it reads, though we may not have read from it since it was full
        self._set_reading()
        if self.peer is not None:
            self._gateway.hub.catch_up(self.peer)

    # --- the hub's side -------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes, without ever waiting."""
        self._transport.write(data)

    def set_outbox(self, max_bytes: int) -> None:
        """Set how much may wait before the hub is told that this line is full."""
        self._transport.set_write_buffer_limits(high=max_bytes)

    def close(self, code: int, reason: str = "") -> None:
        """Send a close frame after what was written, and end for good soon after."""
        assert self._protocol is not None
        if self._protocol.state is OPEN:
            self._protocol.fail(code, reason)
            self._send()
            self.release()  # its own goodbye is to be heard

    def ping(self) -> None:
        """Ask for a sign of life, or end the connection if the last question had no answer."""
        if not self.heard:
            self._transport.abort()
        elif self._protocol is not None and self._protocol.state is OPEN:
            self.heard = False
            self._transport.write(b"\x89\x00")

    def hold(self) -> None:
        """Read no more for now: what comes waits in the system's buffers, then at the sender."""
        self._held = True
        self._set_reading()

    def release(self) -> None:
        """Read again, beginning with what was held back in the middle of a chunk."""
        self._held = False
        self._set_reading()
        if self._chunks and self.peer is not None and self._have >= self._need:
            data = b"".join(self._chunks)
            self._chunks = []
            self._read_frames(data, self.peer)

    def _set_reading(self) -> None:
        wanted = not (self._held or self.full)
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    @property
    def waiting_bytes(self) -> int:
        """How much was written and not yet taken by the socket."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """End at once, whatever is still to be sent."""
        self._transport.abort()

    # --- the handshake --------------------------------------------------------------------------

    def _read_request(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n") + 4
        # What begins with no letter, a TLS greeting above all, will never be a request.
        if end < 4 and len(data) <= _MAX_REQUEST_BYTES and data[:1].isalpha():
            self._keep(data, 0)
            return
        # Only the request itself goes to the protocol, so that frames behind it stay ours.
        head, rest = (data[:end], data[end:]) if end >= 4 else (data, b"")
        self._protocol = ServerProtocol(
            max_size=self._gateway.config.limits.max_message_bytes,
            select_subprotocol=_select_subprotocol,
            logger=_silent,
        )
        self._protocol.receive_data(head)
        events = self._protocol.events_received()
        if not events:
            self._refuse(Denial(400, "this is not an HTTP request that the gateway understands"))
            return
        request = events[0]
        assert isinstance(request, Request)
        self._answer(request, rest)

    def _answer(self, request: Request, rest: bytes) -> None:
        headers: dict[str, list[str]] = {}
        for name, value in request.headers.raw_items():
            headers.setdefault(name.lower(), []).append(value)
        path, _, query = request.path.partition("?")
        address = self._address()
        if request.method != "GET":
            self._refuse(Denial(405, "the gateway answers GET alone"))
            return
        if path == "/session":
            found = self._gateway.sign_in(headers, address)
            if isinstance(found, Denial):
                self._refuse(found)
            else:
                self._respond(session(found))
            return
        if path != "/ws":
            answer = respond(self._gateway, path, headers, address)
            if isinstance(answer, Denial):
                self._refuse(answer)
            else:
                self._respond(answer)
            return
        verdict = self._gateway.admit(query, headers, address)
        if isinstance(verdict, Denial):
            self._refuse(verdict)
            return
        assert self._protocol is not None
        response = self._protocol.accept(request)
        self._protocol.send_response(response)
        self._send()
        if response.status_code == 101:
            self._open(verdict, rest)

    def _open(self, admission: Admission, rest: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.peer = self._gateway.join(self, admission)
        if rest:
            self._read_frames(rest, self.peer)

    def _refuse(self, denial: Denial) -> None:
        if denial.status in _LOGGED:
            facts = {"status": denial.status, "reason": denial.reason}
            logger.info("refused at the door", extra={"address": self._address(), **facts})
        if denial.delay_seconds:
            self._end_in(denial.delay_seconds + _CLOSE_SECONDS)
            loop = self._gateway.loop
            loop.call_later(denial.delay_seconds, self._respond, deny(denial))
        else:
            self._respond(deny(denial))

    def _respond(self, response: Response) -> None:
        if not self._transport.is_closing():
            self._transport.write(response.serialize())
            self._end()

    # --- frames ---------------------------------------------------------------------------------

    def _read_frames(self, data: bytes, peer: Peer) -> None:
        """Read the frames of a chunk: all of them, or as many as this tick has room for."""
        gateway = self._gateway
        hub = gateway.hub
        receive, now = hub.receive, hub.clock()
        began, received = gateway.cpu_clock(), hub.received
        member = peer.session.member
        max_bytes = peer.pod.limits.max_message_bytes
        room = gateway.tick_bytes - hub.taken_bytes
        position, end = 0, len(data)
        need = 0
        while position < end and not peer.closed:
            if position > room or member.unpaid > _UNPAID_PER_SECOND:
                gateway.hold(self, a_second=member.unpaid > _UNPAID_PER_SECOND)
                break
            left = end - position
            # The common header by itself: 0.3 µs less than by the general way.
            if left > 8 and data[position + 1] == 0xFE:
                header = 8
                size = data[position + 2] << 8 | data[position + 3]
            else:
                if left < 2:
                    break
                header, size = _read_header(data, position)
                masked = data[position + 1] & 0x80
                if masked and left < header:
                    break
                if not masked:
                    # Illegal, whatever follows: no need to wait for the rest of it.
                    self._judge(data[position : position + header], peer, now)
                    break
            if (header == 8 and size < 126) or (header == 14 and not 65_536 <= size < 1 << 63):
                self.close(1002, "a length in more bytes than it needs")
                break
            if size > max_bytes:
                self._judge(data[position : position + header], peer, now)
                break
            begin = position + header
            stop = begin + size
            if stop > end:
                need = header + size
                break
            if data[position] == _MASKED_TEXT and self._fragments is None:
                text = apply_mask(data[begin:stop], data[begin - 4 : begin])
                if not text.isascii() and not _is_utf8(text):
                    self.close(1007, "not UTF-8")
                    break
                receive(peer, text, now)
            else:
                self._judge(data[position:stop], peer, now)
            position = stop
        hub.taken_bytes += position
        hub.read_bytes += position
        # G-47: processor time, because a busy machine is nobody's fault.
        free = (hub.received - received) * _FREE_SECONDS_A_TEXT + position * _FREE_SECONDS_A_BYTE
        excess = gateway.cpu_clock() - began - free
        if excess > 0:
            hub.excess_seconds += excess
            many = hub.excess_seconds > _EXCESS_SECONDS
            member.unpaid += excess * _UNPAID_A_SECOND * (10 if many else 1)
        if position < end and not peer.closed:
            self._keep(data[position:], need)

    def _judge(self, data: bytes, peer: Peer, now: float) -> None:
        """Let the protocol judge a frame that is not a text in one piece."""
        peer.session.member.unpaid += 1
        protocol = self._protocol
        assert protocol is not None
        protocol.receive_data(data)
        for event in protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode is BINARY:
                protocol.fail(1003, "envelopes are text")
            elif event.opcode in (TEXT, CONT):
                self._join_fragment(event, peer, now)
        self._send()

    def _join_fragment(self, piece: Frame, peer: Peer, now: float) -> None:
        if self._fragments is None:
            self._fragments = bytearray()
        self._fragments += piece.data
        if not piece.fin:
            return
        text = bytes(self._fragments)
        self._fragments = None
        if _is_utf8(text):
            self._gateway.hub.receive(peer, text, now)
        else:
            self.close(1007, "not UTF-8")

    def _keep(self, data: bytes, need: int) -> None:
        self._chunks = [data]
        self._have = len(data)
        self._need = need

    def _send(self) -> None:
        """Send what the protocol has to say; an empty piece is its wish to end the connection."""
        protocol = self._protocol
        assert protocol is not None
        pieces = protocol.data_to_send()
        if b"" in pieces and self.peer is not None and not self.peer.closed:
            self._gateway.hub.part(self.peer)
        for data in pieces:
            if data:
                self._transport.write(data)
            else:
                self._end()

    def _end(self) -> None:
        """Say that nothing more will come. Closing at once could cost the peer what was sent."""
        self._end_in(_CLOSE_SECONDS)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def _end_in(self, seconds: float) -> None:
        """End the connection after a while, unless it ends by itself or is told otherwise."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._gateway.loop.call_later(seconds, self._transport.abort)

    def _address(self) -> str:
        name = self._transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) else "local"


def _read_header(data: bytes, position: int) -> tuple[int, int]:
    """Return how long the header of a masked frame is, and how long its payload."""
    size = data[position + 1] & 0x7F
    if size == 126:
        return 8, int.from_bytes(data[position + 2 : position + 4])
    if size == 127:
        return 14, int.from_bytes(data[position + 2 : position + 10])
    return 6, size


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _select_subprotocol(
    protocol: ServerProtocol, offered: "Sequence[Subprotocol]"
) -> "Subprotocol | None":
    """Select ours where it is offered, and never the one that carries the token."""
    return next((name for name in offered if name == SUBPROTOCOL), None)
