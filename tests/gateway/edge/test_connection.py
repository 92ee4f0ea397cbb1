"""One connection on a fake socket: bytes in, bytes out."""

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Response

from mcpp_gateway import config, log_format
from mcpp_gateway.edge.admission import AdmissionControl, Denial
from mcpp_gateway.edge.connection import ServerConnection
from mcpp_gateway.edge.frames import decode_texts
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.edge.web import routes
from mcpp_gateway.edge.web.requests import HttpRequest
from tests.gateway.harness import ManualLoop, text
from tests.gateway.sockets import received

CONFIG = """
[limits]
max_message_bytes = 1000
[pods.demo.participants.alice]
token = "alice-token-0123456789"
capabilities = [{ kind = "*" }]
[pods.demo.participants.bob]
token = "bobby-token-0123456789"
capabilities = [{ kind = "*" }]
"""


class RecordingSocket(asyncio.Transport):
    """A transport that records what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.sent = b""
        self.ended = False
        self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class ByteClient:
    """A client that sends and receives bytes through a fake socket."""

    def __init__(self, gateway: Gateway) -> None:
        self.socket = RecordingSocket()
        self.connection = ServerConnection(gateway)
        self.connection.connection_made(self.socket)
        self.loop: Any = gateway.loop

    def upgrade(self, name: str = "alice", **headers: str) -> "ByteClient":
        token = {"alice": "alice-token-0123456789", "bob": "bobby-token-0123456789"}[name]
        self.request("/ws", authorization=f"Bearer {token}", **headers)
        assert self.socket.sent.startswith(b"HTTP/1.1 101 ")
        self.socket.sent = self.socket.sent.partition(b"\r\n\r\n")[2]
        return self

    def request(self, path: str, **headers: str) -> bytes:
        lines = [f"GET {path} HTTP/1.1", "host: localhost:8787"]
        if path.startswith("/ws"):
            lines += ["upgrade: websocket", "connection: upgrade", "sec-websocket-version: 13"]
            lines += ["sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.receive("\r\n".join([*lines, "", ""]).encode("latin-1"))
        return self.socket.sent

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.loop.turn()

    def send(self, data: bytes, opcode: Opcode = Opcode.TEXT, *, fin: bool = True) -> None:
        self.receive(Frame(opcode, data, fin).serialize(mask=True))

    @property
    def close_code(self) -> int | None:
        """The code of the close frame at the end of the output."""
        for reason in range(124):
            at = len(self.socket.sent) - 4 - reason
            if self.socket.sent[at : at + 2] == bytes((0x88, 2 + reason)):
                return Close.parse(self.socket.sent[at + 2 :]).code
        return None


@pytest.fixture
def limits() -> dict[str, str]:
    """Overrides of the configuration, as environment variables."""
    return {}


@pytest.fixture
def gateway(limits: dict[str, str]) -> Iterator[Gateway]:
    loop = ManualLoop()
    found = config.parse(CONFIG, limits)
    gateway = Gateway(found, loop)
    gateway.admission = AdmissionControl(found, 8787)
    yield gateway
    for connection in list(gateway.connections):
        connection.connection_lost(None)
    loop.close()


@pytest.mark.rule("G-01", "G-02")
def test_the_answer_selects_the_protocol_and_never_echoes_the_token(gateway: Gateway) -> None:
    offered = "mcpp.v0.1, mcpp.bearer.alice-token-0123456789"
    answer = ByteClient(gateway).request("/ws?pod=demo", sec_websocket_protocol=offered)
    head = answer.partition(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 101 ")
    assert b"sec-websocket-protocol: mcpp.v0.1" in head
    assert b"bearer" not in head


@pytest.mark.rule("G-02")
def test_a_client_that_offers_no_subprotocol_is_answered_without_one(gateway: Gateway) -> None:
    token = "Bearer alice-token-0123456789"
    head = ByteClient(gateway).request("/ws", authorization=token).partition(b"\r\n\r\n")[0].lower()
    assert b"sec-websocket-protocol" not in head


@pytest.mark.rule("G-03", "G-05", "G-08")
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/ws", {"authorization": "Bearer wrong"}, 401),
        ("/ws", {"authorization": "Bearer \xff"}, 401),
        ("/ws", {}, 401),
        ("/ws?pod=x", {"authorization": "Bearer alice-token-0123456789"}, 403),
        ("/ws?last=x", {"authorization": "Bearer alice-token-0123456789"}, 400),
        ("/ws?%ff=1&%ff=1", {"authorization": "Bearer alice-token-0123456789"}, 400),
        ("/ws", {"origin": "http://evil.example"}, 403),
        ("/nowhere", {}, 404),
    ],
)
def test_a_refused_request_gets_an_http_response(
    gateway: Gateway, path: str, headers: dict[str, str], status: int
) -> None:
    answer = ByteClient(gateway).request(path, **headers)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.mark.parametrize("more", ["", "content-length: 4\r\n"])
@pytest.mark.parametrize("path", ["/ws", "/session", "/healthz", "/", "/nowhere"])
def test_every_path_answers_get_only(gateway: Gateway, path: str, more: str) -> None:
    client = ByteClient(gateway)
    client.receive(f"POST {path} HTTP/1.1\r\nhost: localhost:8787\r\n{more}\r\n".encode())
    assert client.socket.sent.startswith(b"HTTP/1.1 405 ")
    assert client.socket.ended


def test_a_sign_in_code_that_is_not_ascii_is_unknown(gateway: Gateway) -> None:
    answer = ByteClient(gateway).request("/session", mcpp_code="\xff")
    assert answer.startswith(b"HTTP/1.1 401 ")


@pytest.mark.rule("G-07")
def test_a_slow_handshake_is_aborted_after_its_timeout(gateway: Gateway) -> None:
    client = ByteClient(gateway)
    client.receive(b"GET /ws HTTP/1.1\r\n")
    (timer,) = _timers(gateway)
    assert timer.when() - gateway.loop.time() == pytest.approx(10, abs=1)
    timer._run()
    assert client.socket.aborted


@pytest.mark.rule("G-07")
def test_a_tls_greeting_on_a_plain_port_is_answered_at_once(gateway: Gateway) -> None:
    client = ByteClient(gateway)
    client.receive(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    assert client.socket.sent.startswith(b"HTTP/1.1 400 ")
    assert client.socket.ended


@pytest.mark.rule("G-07")
def test_a_completed_handshake_is_not_aborted(gateway: Gateway) -> None:
    client = ByteClient(gateway).upgrade()
    for timer in _timers(gateway):
        if not timer.cancelled():
            timer._run()
    assert not client.socket.aborted


def _timers(gateway: Gateway) -> list[asyncio.TimerHandle]:
    found: list[asyncio.TimerHandle] = getattr(gateway.loop, "_scheduled")  # noqa: B009
    return found


@pytest.mark.rule("G-32")
@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([Frame(Opcode.BINARY, b"x")], 1003),
        ([Frame(Opcode.TEXT, b"\xff")], 1007),
        ([Frame(Opcode.TEXT, b"\xff", False), Frame(Opcode.CONT, b"")], 1007),
        ([Frame(Opcode.TEXT, b"x" * 1001)], 1009),
        ([Frame(Opcode.TEXT, b"x" * 600, False), Frame(Opcode.CONT, b"x" * 600)], 1009),
        ([Frame(Opcode.CONT, b"x")], 1002),
        ([Frame(Opcode.TEXT, b"x", False), Frame(Opcode.TEXT, b"x")], 1002),
        ([Frame(Opcode.TEXT, b"x", rsv1=True)], 1002),
    ],
)
def test_an_illegal_frame_ends_the_connection_with_its_code(
    gateway: Gateway, frames: list[Frame], code: int
) -> None:
    client, bob = ByteClient(gateway).upgrade(), ByteClient(gateway).upgrade("bob")
    for each in frames:
        data = Frame(each.opcode, each.data, each.fin).serialize(mask=True)
        if each.rsv1:
            data = bytes((data[0] | 0x40,)) + data[1:]
        client.receive(data)
    assert client.close_code == code
    assert client.socket.ended
    assert gateway.pods["demo"].participants == ("bob",)
    gateway.hub.flush()  # presence may be delayed
    assert b'"leave"' in bob.socket.sent


@pytest.mark.rule("G-32")
def test_an_unmasked_frame_is_illegal(gateway: Gateway) -> None:
    client = ByteClient(gateway).upgrade()
    client.receive(Frame(Opcode.TEXT, b"x").serialize(mask=False))
    assert client.close_code == 1002


@pytest.mark.rule("G-32", "G-22")
def test_an_illegal_envelope_in_a_legal_frame_ends_nothing(gateway: Gateway) -> None:
    client = ByteClient(gateway).upgrade()
    for data in (b"", b"{}", "é".encode(), b"x" * 1000):
        client.send(data)
    assert client.socket.sent.count(b"invalid_envelope") == 4
    assert not client.socket.ended


def test_fragments_and_single_bytes_make_the_same_envelope(gateway: Gateway) -> None:
    client = ByteClient(gateway).upgrade()
    whole = text("whole", "alice")
    client.send(whole)
    parts = text("parts", "alice")
    client.send(parts[:10], fin=False)
    client.send(b"ping", Opcode.PING)
    client.send(parts[10:], Opcode.CONT)
    for byte in Frame(Opcode.TEXT, text("bytes", "alice")).serialize(mask=True):
        client.receive(bytes((byte,)))
    for data in (whole, parts, text("bytes", "alice")):
        assert data in client.socket.sent
    assert b"\x8a\x04ping" in client.socket.sent


@pytest.mark.rule("G-38")
@pytest.mark.parametrize("limits", [{"MCPP_LIMITS__OUTBOX_BYTES": "8000"}])
def test_the_writes_of_one_tick_fit_into_an_outbox(gateway: Gateway) -> None:
    alice, bob = ByteClient(gateway).upgrade(), ByteClient(gateway).upgrade("bob")
    texts = [text(f"{number}", "alice", payload="x" * 700) for number in range(30)]
    burst = b"".join(Frame(Opcode.TEXT, each).serialize(mask=True) for each in texts)
    gateway.hub.flush()
    bob.socket.sent = b""
    alice.connection.data_received(burst)
    ticks = 0
    while texts[-1] not in bob.socket.sent:
        before = len(bob.socket.sent)
        gateway.loop.turn()  # type: ignore[attr-defined]
        assert len(bob.socket.sent) - before < gateway.config.limits.outbox_bytes
        ticks += 1
        assert ticks < 100
    assert decode_texts(bob.socket.sent) == texts


@pytest.mark.rule("G-38", "G-65")
def test_what_waits_for_a_tick_with_room_costs_nothing_and_comes_first(gateway: Gateway) -> None:
    alice, bob = ByteClient(gateway).upgrade(), ByteClient(gateway).upgrade("bob")
    texts = [text(f"{number}", "alice", payload="x" * 700) for number in range(30)]
    burst = b"".join(Frame(Opcode.TEXT, each).serialize(mask=True) for each in texts)
    gateway.hub.flush()
    bob.socket.sent = b""
    now, spent = gateway.hub.clock() + 1, [0.0]

    def cpu_clock() -> float:
        spent[0] += 0.00001
        return spent[0]

    gateway.hub.clock = lambda: now
    gateway.quota.budget.clock = lambda: now + 0.00001
    gateway.quota.budget.cpu_clock = cpu_clock
    gateway.quota.tick_bytes = 4096
    alice.connection.data_received(burst)
    assert gateway.quota.room_bytes < 0
    read = received(gateway)
    mine = text("mine", "bob")
    bob.connection.data_received(Frame(Opcode.TEXT, mine).serialize(mask=True))
    assert received(gateway) == read
    for _ in range(30):
        gateway.loop.turn()  # type: ignore[attr-defined]
    assert decode_texts(bob.socket.sent) == [*texts[:read], mine, *texts[read:]]


@pytest.mark.rule("G-47", "G-65")
def test_who_owes_cpu_time_waits_until_it_has_repaid_and_nobody_else_does(gateway: Gateway) -> None:
    alice, bob = ByteClient(gateway).upgrade(), ByteClient(gateway).upgrade("bob")
    now, spent = [gateway.hub.clock() + 1], [0.0]

    def cpu_clock() -> float:
        # As if each text took a tenth of a second.
        spent[0] += 0.1
        now[0] += 0.1
        return spent[0]

    gateway.hub.clock = gateway.quota.budget.clock = lambda: now[0]
    gateway.quota.budget.cpu_clock = cpu_clock
    alice.send(text("alice-0", "alice"))
    alice.send(text("alice-1", "alice"))
    gateway.quota.budget.cpu_clock = lambda: spent[0]
    for number in range(50):
        bob.send(text(f"bob-{number}", "bob"))
    gateway.hub.flush()
    assert b"alice-0" in bob.socket.sent
    assert b"alice-1" not in bob.socket.sent
    assert b"bob-49" in alice.socket.sent
    now[0] += 1
    deadline = time.monotonic() + 5
    while b"alice-1" not in bob.socket.sent and time.monotonic() < deadline:
        gateway.loop.turn()  # type: ignore[attr-defined]
    assert b"alice-1" in bob.socket.sent


@pytest.mark.rule("G-65")
def test_the_clock_is_looked_at_within_a_chunk(gateway: Gateway) -> None:
    """Expensive texts that arrive together are spread over several turns."""
    alice, bob = ByteClient(gateway).upgrade(), ByteClient(gateway).upgrade("bob")
    bob.socket.sent = b""
    ticks, began = count(), gateway.hub.clock() + 1
    gateway.hub.clock = lambda: began + next(ticks) * 0.01
    texts = [text(f"alice-{number}", "alice", payload="x" * 500) for number in range(100)]
    alice.connection.data_received(
        b"".join(Frame(Opcode.TEXT, each).serialize(mask=True) for each in texts)
    )
    gateway.hub.flush()
    assert 1 <= len(decode_texts(bob.socket.sent)) < 40
    deadline = time.monotonic() + 5
    while texts[-1] not in bob.socket.sent and time.monotonic() < deadline:
        gateway.loop.turn()  # type: ignore[attr-defined]
    assert texts[-1] in bob.socket.sent


@pytest.mark.rule("G-18", "G-22")
@pytest.mark.parametrize("last", [Frame(Opcode.CLOSE, b"\x03\xe8"), Frame(Opcode.BINARY, b"x")])
def test_texts_before_a_close_frame_are_answered_before_it(gateway: Gateway, last: Frame) -> None:
    client = ByteClient(gateway).upgrade()
    client.socket.sent = b""
    sent = text("x", "alice")
    frames = [Frame(Opcode.TEXT, sent), Frame(Opcode.TEXT, b"{}"), last]
    client.receive(b"".join(each.serialize(mask=True) for each in frames))
    echo, _, rest = client.socket.sent.partition(b"invalid_envelope")
    assert sent in echo
    assert b"\x88" in rest
    assert client.socket.ended


@pytest.mark.rule("G-26")
@pytest.mark.parametrize("limits", [{"MCPP_LIMITS__MESSAGES_PER_SECOND": "0"}])
def test_where_rates_are_not_limited_nothing_is_refused_for_them(gateway: Gateway) -> None:
    client = ByteClient(gateway).upgrade()
    halves = text("halves", "alice", context={"id": "c"})
    frames = [
        Frame(Opcode.TEXT, halves[:9], fin=False),
        Frame(Opcode.CONT, halves[9:]),
        Frame(Opcode.TEXT, text("whole", "alice", context={"id": "c"})),
    ]
    client.receive(b"".join(each.serialize(mask=True) for each in frames))
    assert not gateway.pods["demo"].refused
    assert received(gateway) == 2


@pytest.mark.rule("G-41")
def test_a_client_that_reads_is_alive(gateway: Gateway) -> None:
    client = ByteClient(gateway).upgrade()
    client.connection.pause_writing()  # nothing is read from it from here on
    for _ in range(3):
        client.connection.ping()
        client.connection.resume_writing()
        client.connection.pause_writing()
    assert not client.socket.aborted
    client.connection.ping()
    client.connection.ping()
    assert client.socket.aborted


@pytest.mark.rule("G-41")
def test_a_connection_silent_between_two_pings_is_aborted(gateway: Gateway) -> None:
    client = ByteClient(gateway).upgrade()
    client.connection.ping()
    assert client.socket.sent.endswith(b"\x89\x00")
    client.send(b"", Opcode.PONG)
    client.connection.ping()
    assert not client.socket.aborted
    client.connection.ping()
    assert client.socket.aborted


@pytest.mark.rule("G-42", "G-43")
def test_a_draining_gateway_answers_503(gateway: Gateway) -> None:
    assert ByteClient(gateway).request("/healthz", host="x").startswith(b"HTTP/1.1 200 ")
    gateway.draining = True
    assert ByteClient(gateway).request("/healthz").startswith(b"HTTP/1.1 503 ")
    verdict = gateway.admit("", {}, "127.0.0.1")
    assert isinstance(verdict, Denial)
    assert verdict.status == 503


@pytest.mark.rule("G-44")
def test_metrics_contain_no_ids(gateway: Gateway) -> None:
    client = ByteClient(gateway).upgrade()
    client.send(text("secret-id", "alice", "secret-kind", context={"id": "secret-context"}))
    client.send(b"{}")
    request = HttpRequest("GET", "/metrics", "", {"host": ["localhost"]}, "127.0.0.1")
    response = routes.handle(gateway, request)
    assert isinstance(response, Response)
    assert response.status_code == 200
    body = response.body.decode()
    for line in (
        "mcpp_connections 1.0",
        'mcpp_contexts{pod="demo"} 1.0',
        'mcpp_received_total{pod="demo"} 2.0',
        'mcpp_refused_total{code="invalid_envelope",pod="demo"} 1.0',
    ):
        assert line in body
    assert "secret" not in body
    assert "alice" not in body


@pytest.mark.rule("G-48")
@pytest.mark.parametrize("format", ["text", "json"])
def test_a_name_cannot_forge_a_line_of_the_log(
    format: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("mcpp")
    before = list(logger.handlers), logger.level, logger.propagate
    try:
        log_format.configure(format)
        logging.getLogger("mcpp.gateway").info(
            "one\nline", extra={"participant": "x\r\n2025 error forged \x1b[2J\u2028"}
        )
        logger.handlers[0].flush()
    finally:
        logger.handlers[:], logger.level, logger.propagate = before
    (line,) = capsys.readouterr().err.split("\n")[:-1]
    assert line.isprintable()
    if format == "json":
        assert json.loads(line)["participant"].startswith("x\r\n")
