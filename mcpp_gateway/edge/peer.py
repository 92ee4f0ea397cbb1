"""A peer: one session's connection, with what the current tick owes to it alone."""

from typing import Protocol

from mcpp_gateway.core.pod import Audience, PodCore, Session
from mcpp_gateway.edge.read_quota import ReadAccount


class PeerTransport(Protocol):
    """The part of a connection that the hub needs."""

    def write(self, data: bytes) -> None:
        """Send bytes without waiting."""

    def close(self, code: int, reason: str) -> None:
        """Close the connection after what was written."""

    def set_outbox(self, max_bytes: int) -> None:
        """Set how many bytes may be unsent before the hub is notified that the outbox is full."""

    @property
    def full(self) -> bool:
        """Whether more bytes are unsent than the outbox holds."""

    @property
    def waiting_bytes(self) -> int:
        """How many written bytes are unsent."""


class Traffic:
    """What was received from, and written to, the connections of one pod."""

    __slots__ = ("delivered", "received", "received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received = 0  # texts
        self.delivered = 0  # envelopes, once for each connection
        self.received_bytes = 0
        self.sent_bytes = 0


class Peer:
    """A session's connection as the hub sees it. Only the hub changes it."""

    __slots__ = (
        "account",
        "audience",
        "caught_up_to",
        "closed",
        "first",
        "inserts",
        "owed_bytes",
        "pod",
        "session",
        "stop",
        "traffic",
        "transport",
    )

    def __init__(self, pod: PodCore, transport: PeerTransport, traffic: Traffic) -> None:
        self.pod = pod
        self.traffic = traffic
        self.transport = transport
        self.session: Session
        self.account: ReadAccount
        self.audience: Audience | None = None  # None: catching up, or closed
        self.closed = False
        self.first = 0  # index of the audience's first frame in this tick that is for this peer
        self.inserts: list[tuple[int, bytes]] | None = None  # before which frame, and what
        self.owed_bytes = 0  # size of the inserts
        self.caught_up_to = 0  # value of `ReadQuota.read_bytes` at this peer's last catch-up
        # Index of the audience's frame in this tick at which the outbox was full. Nothing from
        # there on is sent: a resumption from a later envelope would hide the gap.
        self.stop: int | None = None

    def take_owed(self, frames: list[bytes]) -> bytes:
        """Return the audience's frames of this tick with the inserts in place, and clear them."""
        parts: list[bytes] = []
        if self.stop is not None:
            frames = frames[: self.stop]
            self.stop = 0
        at = self.first
        for index, data in self.inserts or ():
            parts += frames[at:index]
            parts.append(data)
            at = index
        parts += frames[at:]
        self.first = 0
        self.inserts = None
        self.owed_bytes = 0
        return b"".join(parts)
