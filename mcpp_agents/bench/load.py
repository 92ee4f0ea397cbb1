"""A load generator for servers that broadcast: many receivers, of which a few send too.

The clients often share a machine with the server, so they must use less CPU than it does. They are
sockets around one epoll, without an event loop. If all messages of a run have the same length and
no others are sent, messages are counted by bytes, and the kernel discards those unread (MSG_TRUNC:
nothing is copied); a ping or two is too short to matter. If other clients send too, a marker is
counted instead.

A sender keeps a window of messages in flight: for each of its own messages that comes back it
receives `senders` messages, so the number received tells how many it may send. A run ends when
every message has reached every receiver, or with an error that gives the number missing.
"""

import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Final, Protocol, Self

from mcpp import McppError

_CHUNK_BYTES: Final = 1 << 20  # read at once; the rest is read in the next round
_SILENCE_SECONDS: Final = 0.25
_TIMEOUT_SECONDS: Final = 60.0
_KEEPALIVE_SECONDS: Final = 5.0


class LoadError(McppError):
    """The server refused the load, or did not deliver it."""


class WireProtocol(Protocol):
    """The wire protocol of one kind of server."""

    message_bytes: int  # the length of a message as it is received
    mark: bytes | None  # occurs once in each message; None: count by bytes
    separate_senders: bool  # a receiving connection cannot send
    keepalive: bytes  # sent at intervals, since clients answer no pings; may be empty

    def greeting(self, index: int) -> bytes:
        """Return the first bytes that client number `index` sends."""

    def is_greeted(self, answer: bytes) -> bool:
        """Return whether the server's answer to the greeting is complete. Raises LoadError."""

    def messages(self, sender: int, first: int, count: int) -> bytes:
        """Return a sender's `count` messages, numbered from `first`, as it sends them."""


@dataclass(frozen=True)
class Throughput:
    """The deliveries of one run, and the share of CPU time that its clients used."""

    deliveries: int
    seconds: float
    client_busy: float

    @property
    def rate(self) -> float:
        """Deliveries a second."""
        return self.deliveries / self.seconds


class _Client:
    """One connection. Owns its socket and the bytes waiting to be written."""

    __slots__ = (
        "_buffer",
        "_bytes",
        "_count",
        "_mark",
        "_size",
        "_tail",
        "pending",
        "sent",
        "sock",
    )

    def __init__(self, sock: socket.socket, wire: WireProtocol, buffer: bytearray) -> None:
        self.sock = sock
        self.pending = b""
        self.sent = 0
        self._buffer = buffer
        self._size = wire.message_bytes
        self._mark = wire.mark
        self._tail = b""
        self._bytes = 0
        self._count = 0

    def receive(self) -> int:
        """Read what has arrived; return the number of messages received in this run."""
        if self._mark is None:
            got = self.sock.recv_into(self._buffer, _CHUNK_BYTES, socket.MSG_TRUNC)
            self._bytes += got
            self._count = self._bytes // self._size
        else:
            data = self._tail + self.sock.recv(_CHUNK_BYTES)
            got = len(data) - len(self._tail)
            self._count += data.count(self._mark)
            self._tail = data[1 - len(self._mark) :]
        if not got:
            raise LoadError("the server closed a connection")
        return self._count

    def reset(self) -> None:
        """Set the counters to zero."""
        self._bytes = self._count = self.sent = 0

    @property
    def received(self) -> int:
        return self._count

    def write(self, data: bytes) -> None:
        """Send as much as the socket accepts, and keep the rest."""
        if self.pending:
            self.pending += data
            return
        try:
            done = self.sock.send(data)
        except BlockingIOError:
            done = 0
        self.pending = data[done:]

    def write_more(self) -> None:
        data, self.pending = self.pending, b""
        self.write(data)


class Load:
    """Clients of one server. Owns their sockets; use as a context manager."""

    def __init__(
        self,
        address: tuple[str, int],
        wire: WireProtocol,
        *,
        clients: int,
        senders: int,
        stalled: int = 0,
    ) -> None:
        """Connect the clients. The first `senders` send too; the last `stalled` never read."""
        self._wire = wire
        self._epoll = select.epoll()
        self._buffer = bytearray(_CHUNK_BYTES)
        connected = [self._connect(address, index) for index in range(clients)]
        self._receivers = connected[: clients - stalled]
        self._stalled = connected[clients - stalled :]
        self._senders = connected[:senders]
        writers = self._senders
        if wire.separate_senders:
            writers = [self._connect(address, None) for _ in range(senders)]
        self._writer_of = dict(zip(self._senders, writers, strict=True))
        self._numbers = dict.fromkeys(self._senders, 0)
        self._keepalive_at = perf_counter() + _KEEPALIVE_SECONDS
        self._by_fd = {each.sock.fileno(): each for each in (*self._receivers, *writers)}
        for client in self._by_fd.values():
            client.sock.setblocking(False)
            self._epoll.register(client.sock, select.EPOLLIN)
        if wire.mark is None:
            self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        for client in (*self._by_fd.values(), *self._stalled):
            client.sock.close()

    @property
    def sent(self) -> int:
        """The number of messages sent in all runs together."""
        return sum(self._numbers.values())

    def measure_throughput(self, *, window: int, warm_up: float, seconds: float) -> Throughput:
        """Keep `window` messages of each sender in flight and count the deliveries."""
        self._reset()
        count = len(self._senders)

        def send(sender: _Client) -> None:
            allowed = window + sender.received // count - sender.sent
            if allowed > 0:
                self._send(sender, allowed)

        for sender in self._senders:
            send(sender)
        self._receive_for(warm_up, send)
        before, began, busy = self._received(), perf_counter(), _cpu_seconds()
        self._receive_for(seconds, send)
        delivered, took = self._received() - before, perf_counter() - began
        busy = (_cpu_seconds() - busy) / took
        self._finish()
        return Throughput(delivered, took, busy)

    def measure_latency(self, *, rate: float, seconds: float) -> list[float]:
        """Send at a steady rate; return each message's seconds to the last receiver, sorted."""
        self._reset()
        total = max(1, int(rate * seconds))
        sent_at: list[float] = []
        missing = [len(self._receivers)] * total
        known = dict.fromkeys(self._receivers, 0)
        latencies: list[float] = []
        start = perf_counter()
        while len(latencies) < total:
            now = perf_counter()
            if now - start > seconds + _TIMEOUT_SECONDS:
                raise LoadError(f"{total - len(latencies)} of {total} messages did not arrive")
            while len(sent_at) < total and start + len(sent_at) / rate <= now:
                self._send(self._senders[len(sent_at) % len(self._senders)], 1)
                sent_at.append(now)
            for client in self._poll(0):
                count = min(client.receive(), total)
                now = perf_counter()
                for number in range(known.get(client, count), count):
                    missing[number] -= 1
                    if not missing[number]:
                        latencies.append(now - sent_at[number])
                known[client] = count
        return sorted(latencies)

    # --- private --------------------------------------------------------------------------------

    def _connect(self, address: tuple[str, int], index: int | None) -> _Client:
        sock = socket.create_connection(address, timeout=_TIMEOUT_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if index is not None:
            sock.sendall(self._wire.greeting(index))
            answer = b""
            while not self._wire.is_greeted(answer):
                data = sock.recv(_CHUNK_BYTES)
                if not data:
                    raise LoadError(f"the server closed a connection: {answer[:200]!r}")
                answer += data
        return _Client(sock, self._wire, self._buffer)

    def _reset(self) -> None:
        for client in self._receivers:
            client.reset()

    def _send(self, sender: _Client, count: int) -> None:
        first = self._numbers[sender]
        self._numbers[sender] += count
        sender.sent += count
        writer = self._writer_of[sender]
        writer.write(self._wire.messages(self._senders.index(sender), first, count))
        if writer.pending:
            self._epoll.modify(writer.sock, select.EPOLLIN | select.EPOLLOUT)

    def _poll(self, timeout: float) -> Iterator[_Client]:
        """Yield the clients that have data to read; write pending data."""
        if self._wire.keepalive and perf_counter() > self._keepalive_at:
            self._keepalive_at = perf_counter() + _KEEPALIVE_SECONDS
            for each in self._receivers:
                each.write(self._wire.keepalive)
        for fd, event in self._epoll.poll(timeout):
            client = self._by_fd[fd]
            if event & select.EPOLLOUT:
                client.write_more()
                if not client.pending:
                    self._epoll.modify(client.sock, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                yield client

    def _receive_for(self, seconds: float, on_sender: Callable[[_Client], None] | None) -> None:
        """Receive for a while; call `on_sender` for each sender that has received something."""
        until = perf_counter() + seconds
        while perf_counter() < until:
            for client in self._poll(0.01):
                client.receive()
                if on_sender is not None and client in self._writer_of:
                    on_sender(client)

    def _received(self) -> int:
        return sum(client.received for client in self._receivers)

    def _settle(self) -> None:
        """Receive until nothing more arrives."""
        until = perf_counter() + _TIMEOUT_SECONDS
        last_data_at = perf_counter()
        while perf_counter() - last_data_at < _SILENCE_SECONDS:
            if perf_counter() > until:
                raise LoadError("the server does not stop sending")
            for client in self._poll(0.05):
                client.receive()
                last_data_at = perf_counter()

    def _finish(self) -> None:
        """Wait until every receiver has all messages. Raises LoadError if one has too many."""
        sent = sum(sender.sent for sender in self._senders)
        until = perf_counter() + _TIMEOUT_SECONDS
        while any(client.received < sent for client in self._receivers):
            if perf_counter() > until:
                missing = max(sent - client.received for client in self._receivers)
                raise LoadError(f"up to {missing} of {sent} messages did not arrive")
            self._receive_for(0.05, None)
        if any(client.received > sent for client in self._receivers):
            raise LoadError("more messages arrived than were sent")


def _cpu_seconds() -> float:
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
