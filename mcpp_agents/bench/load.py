"""A load for a server that broadcasts: many receivers, a few senders, and no work besides.

The clients often share a machine with the server that they measure, so they have to be lighter
than it. They are sockets around one epoll, without an event loop. Where all messages of a run are
equally long and nothing else is said, messages are counted by bytes, and the kernel throws those
away unread (MSG_TRUNC: nothing is copied); a ping or two is too short to matter. Where others
speak too, a mark is counted.

A sender keeps a window of messages in flight: it has received `senders` messages for each of its
own that came back, so what it receives tells what it may send. A run ends with every message
delivered to every receiver, or with an error that says how many are missing.
"""

import select
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from resource import RUSAGE_SELF, getrusage
from time import perf_counter
from typing import Final, Protocol, Self

from mcpp.errors import McppError

# As much as a receiver takes at once; the rest is there at the next turn.
_CHUNK_BYTES: Final = 1 << 20
_SILENCE_SECONDS: Final = 0.25
_PATIENCE_SECONDS: Final = 60.0
_PULSE_SECONDS: Final = 5.0


class LoadError(McppError):
    """The server did not do what a run needs of it."""


class Wire(Protocol):
    """How to speak to one kind of server."""

    message_bytes: int  # of each message as receivers get it
    mark: bytes | None  # there once in each message; None: count by bytes
    senders_apart: bool  # whoever receives cannot send on the same connection
    pulse: bytes  # what a client says now and then, since it answers no pings; may be nothing

    def greeting(self, index: int) -> bytes:
        """Return what client number `index` says first."""

    def is_greeted(self, answer: bytes) -> bool:
        """Tell whether the server's answer to it is complete. Raises LoadError for a refusal."""

    def messages(self, sender: int, first: int, count: int) -> bytes:
        """Return `count` messages of a sender, numbered from `first`, as it sends them."""


@dataclass(frozen=True)
class Throughput:
    """What one run delivered, and how busy its clients were."""

    deliveries: int
    seconds: float
    client_busy: float

    @property
    def rate(self) -> float:
        """Deliveries a second."""
        return self.deliveries / self.seconds


class _Client:
    """One connection. Owns its socket and what is still to be written to it."""

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

    def __init__(self, sock: socket.socket, wire: Wire, buffer: bytearray) -> None:
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
        """Take what has come and return how many messages have been received in all."""
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
            raise LoadError("the server has closed a connection")
        return self._count

    def begin(self) -> None:
        """Count from here on."""
        self._bytes = self._count = self.sent = 0

    @property
    def received(self) -> int:
        return self._count

    def write(self, data: bytes) -> None:
        """Send as much as goes now, and keep the rest."""
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
        self, address: tuple[str, int], wire: Wire, *, clients: int, senders: int, deaf: int = 0
    ) -> None:
        """Connect the clients. The first `senders` send too; the last `deaf` never read."""
        self._wire = wire
        self._epoll = select.epoll()
        self._buffer = bytearray(_CHUNK_BYTES)
        everyone = [self._connect(address, index) for index in range(clients)]
        self._hearing = everyone[: clients - deaf]
        self._deaf = everyone[clients - deaf :]
        self._senders = everyone[:senders]
        speakers = self._senders
        if wire.senders_apart:
            speakers = [self._connect(address, None) for _ in range(senders)]
        self._speaker_of = dict(zip(self._senders, speakers, strict=True))
        self._numbers = dict.fromkeys(self._senders, 0)
        self._pulse_at = perf_counter() + _PULSE_SECONDS
        self._by_fd = {each.sock.fileno(): each for each in (*self._hearing, *speakers)}
        for client in self._by_fd.values():
            client.sock.setblocking(False)
            self._epoll.register(client.sock, select.EPOLLIN)
        if wire.mark is None:
            self._settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        for client in (*self._by_fd.values(), *self._deaf):
            client.sock.close()

    @property
    def sent(self) -> int:
        """How many messages have been sent in all runs together."""
        return sum(self._numbers.values())

    def flood(self, *, window: int, warm_up: float, seconds: float) -> Throughput:
        """Keep `window` messages of each sender in flight and count what is delivered."""
        self._begin()
        count = len(self._senders)

        def send(sender: _Client) -> None:
            allowed = window + sender.received // count - sender.sent
            if allowed > 0:
                self._send(sender, allowed)

        for sender in self._senders:
            send(sender)
        self._turn(warm_up, send)
        before, began, busy = self._received(), perf_counter(), _cpu_seconds()
        self._turn(seconds, send)
        delivered, took = self._received() - before, perf_counter() - began
        busy = (_cpu_seconds() - busy) / took
        self._finish()
        return Throughput(delivered, took, busy)

    def pace(self, *, rate: float, seconds: float) -> list[float]:
        """Send at a steady rate; return each message's seconds to the last receiver, sorted."""
        self._begin()
        total = max(1, int(rate * seconds))
        sent_at: list[float] = []
        missing = [len(self._hearing)] * total
        known = dict.fromkeys(self._hearing, 0)
        latencies: list[float] = []
        start = perf_counter()
        while len(latencies) < total:
            now = perf_counter()
            if now - start > seconds + _PATIENCE_SECONDS:
                raise LoadError(f"{total - len(latencies)} messages of {total} did not arrive")
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
        sock = socket.create_connection(address, timeout=_PATIENCE_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if index is not None:
            sock.sendall(self._wire.greeting(index))
            answer = b""
            while not self._wire.is_greeted(answer):
                data = sock.recv(_CHUNK_BYTES)
                if not data:
                    raise LoadError(f"the server has closed a connection: {answer[:200]!r}")
                answer += data
        return _Client(sock, self._wire, self._buffer)

    def _begin(self) -> None:
        for client in self._hearing:
            client.begin()

    def _send(self, sender: _Client, count: int) -> None:
        first = self._numbers[sender]
        self._numbers[sender] += count
        sender.sent += count
        speaker = self._speaker_of[sender]
        speaker.write(self._wire.messages(self._senders.index(sender), first, count))
        if speaker.pending:
            self._epoll.modify(speaker.sock, select.EPOLLIN | select.EPOLLOUT)

    def _poll(self, timeout: float) -> Iterator[_Client]:
        """Yield those that have something to read; write what waits to be written."""
        if self._wire.pulse and perf_counter() > self._pulse_at:
            self._pulse_at = perf_counter() + _PULSE_SECONDS
            for each in self._hearing:
                each.write(self._wire.pulse)
        for fd, event in self._epoll.poll(timeout):
            client = self._by_fd[fd]
            if event & select.EPOLLOUT:
                client.write_more()
                if not client.pending:
                    self._epoll.modify(client.sock, select.EPOLLIN)
            if event & ~select.EPOLLOUT:
                yield client

    def _turn(self, seconds: float, heard: Callable[[_Client], None] | None) -> None:
        """Receive for a while, and let senders answer to what they have received."""
        until = perf_counter() + seconds
        while perf_counter() < until:
            for client in self._poll(0.01):
                client.receive()
                if heard is not None and client in self._speaker_of:
                    heard(client)

    def _received(self) -> int:
        return sum(client.received for client in self._hearing)

    def _settle(self) -> None:
        """Take what comes, until there is silence."""
        until = perf_counter() + _PATIENCE_SECONDS
        heard = perf_counter()
        while perf_counter() - heard < _SILENCE_SECONDS:
            if perf_counter() > until:
                raise LoadError("the server does not fall silent")
            for client in self._poll(0.05):
                client.receive()
                heard = perf_counter()

    def _finish(self) -> None:
        """Wait until everyone has received all that was sent, and nothing else."""
        sent = sum(sender.sent for sender in self._senders)
        until = perf_counter() + _PATIENCE_SECONDS
        while any(client.received < sent for client in self._hearing):
            if perf_counter() > until:
                missing = max(sent - client.received for client in self._hearing)
                raise LoadError(f"of {sent} messages, up to {missing} did not arrive")
            self._turn(0.05, None)
        if any(client.received > sent for client in self._hearing):
            raise LoadError("more arrived than was sent")


def _cpu_seconds() -> float:
    usage = getrusage(RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
