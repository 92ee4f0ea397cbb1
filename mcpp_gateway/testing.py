"""A gateway without sockets: the real pod and hub in one process, for tests in milliseconds."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
import uuid6

from mcpp.errors import AttachmentError
from mcpp.filters import everything, parse
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.attachments.blob_table import QuotaError
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings, PodCore
from mcpp_gateway.edge.frames import decode_texts
from mcpp_gateway.edge.hub import Hub
from mcpp_gateway.edge.peer import Peer
from mcpp_gateway.edge.read_quota import ReadQuota

_ABNORMAL_CLOSURE = 1006  # what a client sees when a connection ends without a close frame
_TICK_BYTES = 1 << 20


class ManualScheduler:
    """A scheduler that runs its callbacks on demand, the delayed ones too."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Any, *args: Any) -> None:
        """Add a callback to the queue."""
        self._calls.append(partial(callback, *args))

    def call_later(self, delay: float, callback: Any, *args: Any) -> None:
        """Add a callback to the queue; the delay is ignored."""
        self.call_soon(callback, *args)

    def run(self) -> None:
        """Run callbacks until the queue is empty."""
        while self._calls:
            self._calls.popleft()()


class MemoryConnection:
    """One participant's connection to a `MemoryGateway`."""

    def __init__(
        self,
        gateway: "MemoryGateway",
        on_text: Callable[[bytes], None],
        on_close: Callable[[int, str], None],
    ) -> None:
        self._gateway = gateway
        self.on_text = on_text
        self.on_close = on_close
        self.peer: Peer
        self.open = True  # until `on_close` was called

    def send(self, text: bytes) -> None:
        """Send a text to the pod. Everything it causes has been delivered when this returns.

        A text on a connection that the pod has closed is discarded.
        """
        if self.open:
            self._gateway.receive(self, text)

    def close(self) -> None:
        """Leave the pod."""
        if self.open:
            self._gateway.disconnect(self, 1000, "")


class MemoryGateway:
    """A pod whose connections are function calls. Owns the pod and what is not yet delivered."""

    def __init__(
        self,
        participants: Mapping[str, Sequence[Mapping[str, Any]]],
        *,
        pod: str = "test",
        limits: Mapping[str, Any] | None = None,
        multiple: Iterable[str] = (),
        people: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = pod
        self._limits = msgspec.convert(dict(limits or {}), PodLimits)
        several, self._people = set(multiple), set(people)
        self._settings = [
            ParticipantSettings(
                id, Capabilities(patterns), id in several, person=id in self._people
            )
            for id, patterns in participants.items()
        ]
        self._clock = clock
        self._scheduler = ManualScheduler()
        quota = ReadQuota(self._scheduler, clock, tick_bytes=_TICK_BYTES)
        self._hub = Hub(self._scheduler, clock, quota)
        self._connections: set[MemoryConnection] = set()
        self._undelivered: deque[tuple[MemoryConnection, bytes | tuple[int, str]]] = deque()
        self._delivering = False
        self._blobs: dict[str, bytes] = {}
        self._pod = self._new_pod()

    def add(self, participant: str, capabilities: Sequence[Mapping[str, Any]]) -> None:
        """Allow one more participant to join."""
        is_person = participant in self._people
        self._settings.append(
            ParticipantSettings(participant, Capabilities(capabilities), person=is_person)
        )
        self._hub.perform_all(self._pod.reconfigure(self._settings, self._clock()))
        self._deliver()

    def connect(
        self,
        participant: str,
        *,
        on_text: Callable[[bytes], None],
        on_close: Callable[[int, str], None],
        filter: str | None = None,
        after: str | None = None,
        last: int | None = None,
    ) -> MemoryConnection:
        """Join the pod. Raises KeyError for a participant that was not configured."""
        connection = MemoryConnection(self, on_text, on_close)
        connection.peer = self._hub.join(
            self._pod,
            participant,
            _MemoryPeerTransport(self, connection),
            filter=everything if filter is None else parse(filter),
            after=after,
            last=last,
        )
        self._connections.add(connection)
        self._deliver()
        return connection

    def receive(self, connection: MemoryConnection, text: bytes) -> None:
        """Pass one text of a connection to the pod."""
        if connection in self._connections:
            self._hub.receive(connection.peer, text, self._clock())
            self._deliver()

    def tick(self) -> None:
        """Do what is due by the clock, such as expiring idle contexts."""
        self._hub.perform_all(self._pod.tick(self._clock()))
        while self._pod.has_expiries:
            self._hub.perform_all(self._pod.tick(self._clock()))
        for hash in self._pod.blobs.expire(self._pod.journal.start, self._clock()):
            self._blobs.pop(hash, None)
        self._deliver()

    def upload(self, participant: str, data: bytes) -> str:
        """Keep a blob and return its hash. Raises AttachmentError where it does not fit."""
        hash, size = sha256(data).hexdigest(), len(data)
        limits = self._pod.members.limits(participant)
        if size > limits.max_blob_bytes:
            raise AttachmentError(413, f"a blob has at most {limits.max_blob_bytes} bytes")
        try:
            self._pod.blobs.reserve(participant, size)
        except QuotaError as error:
            raise AttachmentError(507, str(error)) from None
        self._pod.blobs.release(participant, size)
        self._pod.blobs.add(participant, hash, size, self._clock())
        self._blobs[hash] = data
        return hash

    def download(self, participant: str, hash: str) -> bytes | None:
        """Return a blob; None if there is none for this participant."""
        pod = self._pod
        rights = pod.members.rights(participant)
        size = pod.blobs.readable_size(rights, hash, pod.journal.committed)
        return None if size is None else self._blobs[hash]

    def cut(self, participant: str) -> None:
        """Drop a participant's connections as a failing network would."""
        for connection in list(self._connections):
            if connection.peer.session.member.settings.id == participant:
                self.disconnect(connection, _ABNORMAL_CLOSURE, "")

    def restart(self) -> None:
        """Lose the log and all connections, as a gateway without a durable log does."""
        self._pod = self._new_pod()
        self._blobs.clear()
        for connection in list(self._connections):
            self.enqueue_close(connection, _ABNORMAL_CLOSURE, "")
        self._deliver()

    def disconnect(self, connection: MemoryConnection, code: int, reason: str) -> None:
        """End a connection and remove it from the pod."""
        self.enqueue_close(connection, code, reason)
        self._hub.leave(connection.peer)
        self._deliver()

    def enqueue_texts(self, connection: MemoryConnection, texts: Iterable[bytes]) -> None:
        """Queue texts for delivery."""
        self._undelivered.extend((connection, text) for text in texts)

    def enqueue_close(self, connection: MemoryConnection, code: int, reason: str) -> None:
        """Take nothing more from a connection, and queue its close for delivery."""
        self._connections.discard(connection)
        self._undelivered.append((connection, (code, reason)))

    def _new_pod(self) -> PodCore:
        return PodCore(self._name, self._settings, self._limits, new_id=lambda: str(uuid6.uuid7()))

    def _deliver(self) -> None:
        """End the tick and call the connections in order. What they send in turn is queued."""
        self._scheduler.run()
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._undelivered:
                connection, item = self._undelivered.popleft()
                if not connection.open:
                    continue
                if isinstance(item, bytes):
                    connection.on_text(item)
                else:
                    connection.open = False
                    connection.on_close(*item)
        finally:
            self._delivering = False


class _MemoryPeerTransport:
    """The hub's end of a MemoryConnection: never full, and delivered in order."""

    full = False
    waiting_bytes = 0

    def __init__(self, gateway: MemoryGateway, connection: MemoryConnection) -> None:
        self._gateway = gateway
        self._connection = connection

    def write(self, data: bytes) -> None:
        self._gateway.enqueue_texts(self._connection, decode_texts(data))

    def close(self, code: int, reason: str) -> None:
        self._gateway.enqueue_close(self._connection, code, reason)

    def set_outbox(self, max_bytes: int) -> None:
        """Do nothing: the queue is unbounded."""
