"""One connection of a client: handshake, WebSocket life cycle, closing.

Frames are parsed in `frames`; how much is read is decided by `read_quota`; texts go to the hub.
websockets' sans-I/O `ServerProtocol` does the handshake, control frames and fragments.
"""

import asyncio
import logging
import secrets
from contextlib import suppress
from functools import partial
from http import HTTPMethod
from itertools import count
from typing import TYPE_CHECKING, Final, cast

from websockets import http11
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from mcpp_gateway.core.effects import SLOW_READER
from mcpp_gateway.edge.admission import SUBPROTOCOL, Admission, Denial
from mcpp_gateway.edge.cpu_budget import (
    FREE_SECONDS_PER_BYTE,
    FREE_SECONDS_PER_TEXT,
    may_be_long,
)
from mcpp_gateway.edge.frames import FrameError, FrameParser, RawFrame, close_code
from mcpp_gateway.edge.peer import Peer
from mcpp_gateway.edge.session_log import log_session
from mcpp_gateway.edge.web import blobs, routes
from mcpp_gateway.edge.web.relay import Relay, read_head, write_head
from mcpp_gateway.edge.web.requests import HttpRequest, body_length
from mcpp_gateway.edge.web.responses import deny
from mcpp_gateway.prompts.service import PROMPT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from websockets.typing import Subprotocol

    from mcpp_gateway.edge.server import Gateway

_MAX_REQUEST_BYTES: Final = 16_384
# G-04: a signed token may have 8,192 characters; websockets reads lines of that many bytes.
http11.MAX_LINE_LENGTH = _MAX_REQUEST_BYTES
# How much of a chunk is parsed before the clock is looked at, and how long a turn may take.
_SLICE_BYTES: Final = 2048
_SLICE_SECONDS: Final = 0.002
_OTHER_METHODS: Final = frozenset((*HTTPMethod, "QUERY")) - {HTTPMethod.GET}
_CLOSE_SECONDS: Final = 5.0
_CLIENT_CHARACTERS: Final = 100
_ADMIN_POST: Final = b"POST /admin/"
_LOGGED_STATUSES: Final = (401, 403, 429)  # authentication failures, not 404s

logger = logging.getLogger("mcpp.gateway")

# Disabled: it would repeat our own log lines and, at level DEBUG, log headers that hold tokens.
_protocol_logger = logging.getLogger("mcpp.gateway.websockets")
_protocol_logger.disabled = True


_numbers = count(secrets.randbits(20) << 12)


class ServerConnection(asyncio.Protocol):
    """A client's socket. Owns the transport, the handshake and the close."""

    __slots__ = (
        "_answering",
        "_awaits_large_text",
        "_exchange",
        "_gateway",
        "_hub",
        "_parser",
        "_protocol",
        "_quota",
        "_reading",
        "_reading_paused",
        "_relay",
        "_request_head",
        "_timer",
        "_transport",
        "address",
        "alive",
        "client",
        "full",
        "path",
        "peer",
        "request",
    )

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._hub = gateway.hub
        self._quota = gateway.quota
        self._transport: asyncio.Transport
        self._protocol: ServerProtocol | None = None
        self._parser = FrameParser(gateway.config.limits.max_message_bytes)
        self._timer: asyncio.TimerHandle | None = None
        self._request_head = b""
        self._answering: asyncio.Task[Response | Denial | Admission] | None = None
        self._relay: Relay | None = None
        self._exchange: blobs.BlobExchange | None = None
        self._reading = True
        self._reading_paused = False
        self._awaits_large_text = False
        self.address = self.client = self.path = ""
        self.request = f"{next(_numbers):x}"  # names this connection in the log
        self.peer: Peer | None = None
        self.full = False
        self.alive = True  # whether anything was received or read since the last ping

    # --- called by asyncio ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass of it
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if isinstance(name, tuple) else "local"
        self._gateway.connections.add(self)
        self._abort_after(self._gateway.config.gateway.handshake_seconds)

    def data_received(self, data: bytes) -> None:
        self.alive = True
        peer = self.peer
        if peer is not None:
            if self._parser.pending:
                data = self._parser.join(data)
                if not data:
                    return
            self._read_frames(data, peer)
        elif self._relay is not None:
            self._relay.send(data)
        elif self._exchange is not None:
            self._exchange.send(data)
        elif self._protocol is None:
            self._read_request(self._request_head + data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._answering is not None:
            self._answering.cancel()
        if self._relay is not None:
            self._relay.close()
        if self._exchange is not None:
            self._exchange.close()
        self._gateway.forget(self)
        if self.peer is not None and not self.peer.closed:
            self._hub.leave(self.peer)

    def pause_writing(self) -> None:
        self.full = True
        # A client that does not read is not read from either, or its pings could fill memory.
        self._set_reading()
        if self.peer is not None:
            self._hub.on_outbox_full(self.peer)
        elif self._relay is not None:
            self._relay.pause()

    def resume_writing(self) -> None:
        self.full = False
        self.alive = True  # it reads, although we may not have read from it while it was full
        self._set_reading()
        if self.peer is not None:
            self._hub.catch_up(self.peer)
        elif self._relay is not None:
            self._relay.resume()
        elif self._exchange is not None:
            self._exchange.resume()

    # --- called by the hub, the quota and the gateway -------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes without waiting."""
        self._transport.write(data)

    def set_outbox(self, max_bytes: int) -> None:
        """Set how many bytes may be unsent before the hub is notified that the outbox is full."""
        self._transport.set_write_buffer_limits(high=max_bytes)

    def limit_messages(self) -> None:
        """Apply the participant's message size, as it is now (O-03)."""
        peer = self.peer
        if peer is None:
            return
        limits = peer.pod.members.limits(peer.session.member.settings.id)
        self._parser.max_bytes = limits.max_message_bytes
        for name in ("max_size", "max_message_size"):  # websockets 15, and later
            if hasattr(self._protocol, name):
                setattr(self._protocol, name, limits.max_message_bytes)

    def close(self, code: int, reason: str = "") -> None:
        """Send a close frame after what was written; abort if the client does not close in time."""
        assert self._protocol is not None
        if self._protocol.state is OPEN:
            if code == SLOW_READER:
                log_session("slow reader closed", self, logging.WARNING)
            self._protocol.fail(code, reason)
            self._send()
        self.resume_reading()  # to see the client close its side

    def ping(self) -> None:
        """Send a ping, or abort the connection if nothing has arrived since the last one (G-41)."""
        if not self.alive:
            self._transport.abort()
        elif self._protocol is not None and self._protocol.state is OPEN:
            self.alive = False
            self._transport.write(b"\x89\x00")

    def pause_reading(self) -> None:
        """Stop reading: what arrives waits in the system's buffers, then at the sender."""
        self._reading_paused = True
        self._set_reading()

    def resume_reading(self) -> None:
        """Read on, starting with what was received and not yet parsed."""
        self._reading_paused = False
        self._set_reading()
        if self.peer is not None and (data := self._parser.take_pending()):
            self._read_frames(data, self.peer)

    def _set_reading(self) -> None:
        wanted = not (self._reading_paused or self.full)
        if wanted != self._reading and not self._transport.is_closing():
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    @property
    def has_joined(self) -> bool:
        """Whether its pod has let it join; in a cluster, the log decides on that."""
        return self.peer is not None and self.peer.session.joined > 0.0

    @property
    def is_open(self) -> bool:
        """Whether it is a WebSocket that neither side has begun to close."""
        return self._protocol is not None and self._protocol.state is OPEN

    @property
    def waiting_bytes(self) -> int:
        """How many written bytes the socket has not accepted yet."""
        return self._transport.get_write_buffer_size()

    def ending(self) -> dict[str, object]:
        """Return the close code and reason, ours or the client's, for the log."""
        protocol = self._protocol
        close = protocol and (protocol.close_sent or protocol.close_rcvd)
        return {"code": close.code, "reason": close.reason} if close else {"reason": "lost"}

    def abort(self) -> None:
        """Close at once and discard unsent data."""
        self._transport.abort()

    # --- the handshake --------------------------------------------------------------------------

    def _read_request(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n") + 4
        # Data that starts with no letter, such as a TLS greeting, will never become a request.
        if end < 4 and len(data) <= _MAX_REQUEST_BYTES and data[:1].isalpha():
            self._request_head = data
            return
        # Only the request goes to the protocol; any frames that follow it are parsed here.
        head, rest = (data[:end], data[end:]) if end >= 4 else (data, b"")
        self._protocol = ServerProtocol(
            max_size=self._gateway.config.limits.max_message_bytes,
            select_subprotocol=_select_subprotocol,
            logger=_protocol_logger,
        )
        target = head.partition(b" ")[2].partition(b" ")[0].decode("latin-1")
        if routes.is_relayed(target):
            self._read_relayed(head, rest)
            return
        if blobs.is_blob(target):
            self._read_blob(head, rest)
            return
        method = head.partition(b" ")[0].decode("latin-1")
        if method in _OTHER_METHODS:
            self._read_other(head, rest)
            return
        self._protocol.receive_data(head)
        events = self._protocol.events_received()
        if events:
            request = events[0]
            assert isinstance(request, Request)
            self._answer(method, request, rest)
        else:
            self._refuse(Denial(400, "not a valid HTTP request"))

    def _read_other(self, head: bytes, rest: bytes) -> None:
        """Read a request that is no GET, as websockets 16 cannot; only the admin's have a body."""
        parsed = read_head(head)
        has_body = head.startswith(_ADMIN_POST)
        length = body_length(parsed[2]) if parsed is not None and has_body else 0
        if parsed is None or length is None:
            self._refuse(Denial(400, "not a valid HTTP request"))
        elif len(rest) < length:
            self._protocol = None
            self._request_head = head + rest  # until the rest of it arrives
        else:
            request = self._request(*parsed, body=rest[:length])
            self._give(routes.handle(self._gateway, request), Request(request.path, Headers()), b"")

    def _request(
        self, method: str, target: str, headers: dict[str, list[str]], body: bytes = b""
    ) -> HttpRequest:
        """Return the request of this connection, and learn from it where it comes from (G-88)."""
        self.address = self._gateway.admission.client_address(self.address, headers)
        path, _, query = target.partition("?")
        self.path = path
        return HttpRequest(method, path, query, headers, self.address, body, self.request)

    def _answer(self, method: str, request: Request, rest: bytes) -> None:
        headers: dict[str, list[str]] = {}
        for name, value in request.headers.raw_items():
            headers.setdefault(name.lower(), []).append(value)
        parsed = self._request(method, request.path, headers)
        self.client = headers.get("user-agent", [""])[0][:_CLIENT_CHARACTERS]
        self._give(routes.handle(self._gateway, parsed), request, rest)

    def _give(self, answer: routes.Answer, request: Request, rest: bytes) -> None:
        if isinstance(answer, Admission):
            self._upgrade(request, answer, rest)
        elif isinstance(answer, asyncio.Task):
            self._abort_after(PROMPT_SECONDS + _CLOSE_SECONDS)
            self._answering = answer
            answer.add_done_callback(partial(self._answered, request, rest))
        elif isinstance(answer, Denial):
            self._refuse(answer)
        else:
            assert isinstance(answer, Response)  # what is relayed was read by `_read_relayed`
            self._respond(answer)

    def _read_relayed(self, head: bytes, rest: bytes) -> None:
        """Read a request that another process answers. websockets only reads GET requests."""
        parsed = read_head(head)
        if parsed is None:
            self._refuse(Denial(400, "not a valid HTTP request"))
            return
        method, target, headers = parsed
        request = self._request(method, target, headers)
        answer = routes.handle(self._gateway, request)
        if isinstance(answer, Denial):
            self._refuse(answer)
            return
        service = self._gateway.mcp
        assert service is not None
        assert isinstance(answer, routes.RelayRequest)
        if not service.requests.take(answer.requester):
            self._refuse(Denial(503, "too many requests", retry_after_seconds=1))
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._request_head = b""
        self.pause_reading()  # until it is connected
        self._relay = Relay(self, answer.requester)
        task = self._gateway.loop.create_task(service.connect(self._relay))
        data = write_head(method, target, headers) + rest
        task.add_done_callback(lambda done: self._begin_relay(done, data))

    def _read_blob(self, head: bytes, rest: bytes) -> None:
        """Read a request about a blob, whose content passes through in pieces."""
        parsed = read_head(head)
        if parsed is None:
            self._refuse(Denial(400, "not a valid HTTP request"))
            return
        method, target, headers = parsed
        request = self._request(method, target, headers)
        answer = blobs.handle(self._gateway, request, self)
        if isinstance(answer, Denial):
            self._refuse(answer)
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._request_head = b""
        self._exchange = answer
        if rest:
            answer.send(rest)
        answer.start()

    def end_exchange(self, answer: Response | None) -> None:
        """Send the answer to a request about a blob, if it is not sent yet, and close."""
        self._exchange = None
        self.resume_reading()
        if answer is not None:
            self._respond(answer)
        elif not self._transport.is_closing():
            self._end_output()

    def _begin_relay(self, connecting: "asyncio.Task[None]", data: bytes) -> None:
        assert self._relay is not None
        if connecting.cancelled() or connecting.exception() is not None:
            self._release_place(self._relay)
            self._relay = None
            self._refuse(Denial(503, "MCP clients are not served now", retry_after_seconds=5))
        else:
            self._relay.send(data)
            self.resume_reading()

    def end_relay(self, relay: Relay) -> None:
        """Close the connection: the other process has answered."""
        self._release_place(relay)
        if not self._transport.is_closing():
            self._end_output()

    def _release_place(self, relay: Relay) -> None:
        if self._gateway.mcp is not None:
            self._gateway.mcp.requests.release(relay.requester)

    def _answered(
        self, request: Request, rest: bytes, task: "asyncio.Task[Response | Denial | Admission]"
    ) -> None:
        self._answering = None
        if task.cancelled() or self._transport.is_closing():
            return
        answer = task.result()
        if isinstance(answer, Admission):
            self._upgrade(request, answer, rest)
        elif isinstance(answer, Denial):
            self._refuse(answer)
        else:
            self._respond(answer)

    def _upgrade(self, request: Request, admission: Admission, rest: bytes) -> None:
        assert self._protocol is not None
        response = self._protocol.accept(request)
        self._protocol.send_response(response)
        self._send()
        if response.status_code == 101:
            self._open(admission, rest)

    def _open(self, admission: Admission, rest: bytes) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._request_head = b""
        self.peer = self._gateway.join(self, admission)
        self.limit_messages()
        if rest:
            self._read_frames(rest, self.peer)

    def _refuse(self, denial: Denial) -> None:
        if denial.status in _LOGGED_STATUSES:
            facts = {"status": denial.status, "reason": denial.reason, "path": self.path}
            log_session("request refused", self, **facts)
        if denial.delay_seconds:
            self._abort_after(denial.delay_seconds + _CLOSE_SECONDS)
            loop = self._gateway.loop
            loop.call_later(denial.delay_seconds, self._respond, deny(denial))
        else:
            self._respond(deny(denial))

    def _respond(self, response: Response) -> None:
        if not self._transport.is_closing():
            self._transport.write(response.serialize())
            self._end_output()

    # --- frames ---------------------------------------------------------------------------------

    def _read_frames(self, data: bytes, peer: Peer) -> None:
        """Receive the texts of a chunk: all of them, or as many as the quotas allow."""
        hub, quota, parser = self._hub, self._quota, self._parser
        budget = quota.budget
        member, account = peer.session.member, peer.account
        quota.renew(account, member)
        if peer.closed:
            return
        room = quota.room_bytes
        now, cpu_now = hub.clock(), budget.cpu_clock()
        if (account.repaid_at > now or budget.tick_is_used or room < 0) and not quota.has_turn(
            account, len(data), now
        ):
            parser.keep(data)
            self._pause(peer, now, len(data))
            return
        traffic = peer.traffic
        received, unpaid = traffic.received, member.rate_limited
        evaluated = peer.pod.filter_work.parts
        has_more = False
        if not account.is_exhausted(member):
            try:
                has_more = parser.parse(data, min(room, _SLICE_BYTES), hub, self, peer, now)
                # G-65: a chunk of expensive texts must not take longer than a turn.
                while has_more and parser.parsed <= room and hub.clock() - now < _SLICE_SECONDS:
                    limit = min(room, parser.parsed + _SLICE_BYTES)
                    has_more = parser.parse(data, limit, hub, self, peer, now, parser.parsed)
            except FrameError as error:
                self.close(error.code, error.reason)
        else:
            parser.parsed = 0
        parsed = parser.parsed
        over_quota = account.is_exhausted(member)
        quota.count_read(parsed)
        traffic.received_bytes += parsed
        paid = traffic.received - received - (member.rate_limited - unpaid)
        free = paid * FREE_SECONDS_PER_TEXT + parsed * FREE_SECONDS_PER_BYTE
        excess = budget.measure(now, cpu_now, free)
        if excess:
            quota.charge(peer.pod, account, excess, peer.pod.filter_work.parts - evaluated, now)
        if peer.closed:
            return
        if parsed < len(data):
            parser.keep(data[parsed:])
            if over_quota:
                quota.pause_for_second(self)
                return
            if self._awaits_large_text:
                self._awaits_large_text = False
                quota.pause_for_large_text(self, account)
                return
        if has_more or account.repaid_at > now:
            self._pause(peer, now, len(data) - parsed if has_more else 0)

    def _pause(self, peer: Peer, now: float, waiting_bytes: int) -> None:
        """Stop reading until the participant has its turn again, if it has to wait for it."""
        if self._quota.budget.wait(peer.account, now):
            self._quota.pause_for_debt(self, peer.account)
        elif waiting_bytes:
            self._quota.pause_for_turn(self, peer.account, waiting_bytes, now)

    def admit_large(self, text: bytes, now: float) -> bool:
        """Return whether a large text may be received now: others may have used the time (G-65)."""
        if self._quota.budget.long_repaid_at <= now:
            return True
        if type(text) is RawFrame or may_be_long(text):  # fragments are still masked
            self._awaits_large_text = True
            return False
        return True

    def receive_frame(self, peer: Peer, data: bytes, now: float) -> bool:
        """Pass a frame that is not an unfragmented text to the WebSocket protocol."""
        peer.account.charge_frame()
        protocol = self._protocol
        assert protocol is not None
        if self._parser.in_message and data[0] & 0x0F == Opcode.CLOSE:
            # Legal between fragments (RFC 6455, 5.4), but websockets refuses it with 1002.
            code = close_code(data)
            if code is not None:
                protocol.fail(code)
                self._send()
                return True
        protocol.receive_data(data)
        for event in protocol.events_received():
            assert isinstance(event, Frame)
            if event.opcode is Opcode.BINARY:
                protocol.fail(1003, "envelopes are text")
            elif event.opcode in (Opcode.TEXT, Opcode.CONT):
                text = self._parser.add_fragment(event)
                if text is not None:
                    self._hub.receive(peer, text, now)
        self._send()
        return peer.closed or peer.account.is_exhausted(peer.session.member)

    def _send(self) -> None:
        """Send the protocol's output; an empty item asks to close the connection."""
        protocol = self._protocol
        assert protocol is not None
        output = protocol.data_to_send()
        if b"" in output and self.peer is not None and not self.peer.closed:
            self._hub.flush_and_leave(self.peer)
        for data in output:
            if data:
                self._transport.write(data)
            else:
                self._end_output()

    def _end_output(self) -> None:
        """Close the sending side. Closing both sides could lose data that is on its way."""
        self._abort_after(_CLOSE_SECONDS)
        if self._transport.can_write_eof():
            with suppress(OSError):  # the client is gone: asyncio has not noticed yet
                self._transport.write_eof()
        else:
            self._transport.close()

    def _abort_after(self, seconds: float) -> None:
        """Abort the connection after a timeout, which replaces the previous one."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._gateway.loop.call_later(seconds, self._transport.abort)


def _select_subprotocol(
    protocol: ServerProtocol, offered: "Sequence[Subprotocol]"
) -> "Subprotocol | None":
    """Select our subprotocol if it is offered, and never the one that carries the token."""
    return next((name for name in offered if name == SUBPROTOCOL), None)
