"""Harnesses that run a pod and the real hub without sockets, with a clock that the test moves.

`PodHarness` delivers everything at once. `HubHarness` delivers when its event loop is turned, and
its transports can be full.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from mcpp.filters import everything
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.effects import Effect
from mcpp_gateway.core.journal import Journal, MemoryJournal
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings, PodCore, Session
from mcpp_gateway.edge.frames import decode_texts
from mcpp_gateway.edge.hub import Hub
from mcpp_gateway.edge.peer import Peer
from mcpp_gateway.edge.read_quota import ReadQuota
from mcpp_gateway.testing import ManualScheduler

EVERYTHING: Sequence[Mapping[str, Any]] = ({"kind": "*"},)
JOIN_DEFAULTS: dict[str, Any] = {"filter": everything, "after": None, "last": None}
FREE: Mapping[str, Any] = {"messages_per_second": 0, "context_messages_per_second": 0}


def text(id: str, sender: str, kind: str = "chat", payload: Any = None, **members: Any) -> bytes:
    """Return an envelope as a participant would send it."""
    envelope = {
        "protocol": "mcpp/v0.1",
        "id": id,
        "ts": "2025-08-31T12:00:00Z",
        "from": sender,
        "kind": kind,
        **members,
        "payload": payload,
    }
    return json.dumps(envelope, separators=(",", ":")).encode()


@dataclass(eq=False)
class HarnessClient:
    """One connection as its participant sees it. `full` makes the hub send no history."""

    full: bool = False
    texts: list[bytes] = field(default_factory=list)
    closed: int | None = None
    peer: Peer = field(init=False)

    def write(self, data: bytes) -> None:
        self.texts += decode_texts(data)

    def close(self, code: int, reason: str) -> None:
        self.closed = code

    def set_outbox(self, max_bytes: int) -> None:
        pass

    @property
    def waiting_bytes(self) -> int:
        return 0

    @property
    def session(self) -> Session:
        return self.peer.session

    @property
    def seen(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.texts]

    @property
    def ids(self) -> list[str]:
        return [envelope["id"] for envelope in self.seen]

    @property
    def kinds(self) -> list[str]:
        return [envelope["kind"] for envelope in self.seen]

    @property
    def last(self) -> dict[str, Any]:
        return self.seen[-1]

    @property
    def welcome(self) -> dict[str, Any]:
        first = self.seen[0]
        assert first["kind"] == "system/welcome"
        payload: dict[str, Any] = first["payload"]
        return payload

    @property
    def errors(self) -> list[str]:
        """The codes of all refusals."""
        return [
            envelope["payload"]["error"]
            for envelope in self.seen
            if envelope["kind"] == "system/error"
        ]


class PodHarness:
    """A pod whose effects the real hub performs at once."""

    def __init__(
        self,
        *ids: str,
        limits: Mapping[str, Any] = FREE,
        capabilities: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        multiple: Iterable[str] = (),
        log: Journal | None = None,
    ) -> None:
        self.now = 1000.0
        self.pod = self._new_pod(ids, limits, capabilities or {}, multiple, log)
        self._message_numbers = count()
        self._scheduler = ManualScheduler()
        quota = ReadQuota(self._scheduler, lambda: self.now, tick_bytes=1 << 20)
        self.hub = Hub(self._scheduler, lambda: self.now, quota)

    def _new_pod(
        self,
        ids: Iterable[str],
        limits: Mapping[str, Any],
        capabilities: Mapping[str, Sequence[Mapping[str, Any]]],
        multiple: Iterable[str],
        log: Journal | None,
    ) -> PodCore:
        return _new_pod(ids, limits, capabilities, multiple, log)

    def join(self, id: str, *, behind: bool = False, **options: Any) -> HarnessClient:
        """Join a participant; with `behind` even the welcome is left to `catch_up`."""
        client = HarnessClient(full=behind)
        client.peer = self.hub.join(self.pod, id, client, **(JOIN_DEFAULTS | options))
        self._scheduler.run()
        return client

    def catch_up(self, client: HarnessClient, max_bytes: int = 1 << 20) -> None:
        texts, effect = self.pod.catch_up(client.session, max_bytes)
        client.texts += texts
        self.perform([] if effect is None else [effect])

    def send(
        self, client: HarnessClient, kind: str = "chat", *, id: str | None = None, **members: Any
    ) -> str:
        """Send an envelope and return its id."""
        id = id or f"m-{next(self._message_numbers)}"
        sender = members.pop("sender", client.session.member.settings.id)
        self.send_text(client, text(id, sender, kind, **members))
        return id

    def send_text(self, client: HarnessClient, data: bytes) -> None:
        self.hub.receive(client.peer, data, self.now)
        self._scheduler.run()

    def leave(self, client: HarnessClient) -> None:
        self.hub.leave(client.peer)
        self._scheduler.run()

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.perform(self.pod.tick(self.now))

    def perform(self, effects: Iterable[Effect]) -> None:
        self.hub.perform_all(effects)
        self._scheduler.run()


def _new_pod(
    ids: Iterable[str],
    limits: Mapping[str, Any],
    capabilities: Mapping[str, Sequence[Mapping[str, Any]]],
    multiple: Iterable[str],
    log: Journal | None = None,
) -> PodCore:
    numbers = count()
    settings = [
        ParticipantSettings(id, Capabilities(capabilities.get(id, EVERYTHING)), id in set(multiple))
        for id in ids
    ]
    return PodCore(
        "test", settings, PodLimits(**limits), new_id=lambda: f"sys-{next(numbers)}", journal=log
    )


class DelayedJournal:
    """A journal in memory that commits only when it is told to."""

    kind = "file"
    commits_at_once = False
    accepting = True
    admitting = True

    def __init__(self, max_messages: int, max_bytes: int = 1 << 20) -> None:
        self._journal = MemoryJournal(max_messages, max_bytes)
        self.committed = 0
        self.append = self._journal.append
        self.find = self._journal.find
        self.seek = self._journal.seek
        self.read = self._journal.read
        self.window = self._journal.window
        self.resize = self._journal.resize

    @property
    def start(self) -> int:
        return self._journal.start

    @property
    def end(self) -> int:
        return self._journal.end

    def uncommitted(self) -> list[bytes]:
        return [entry.text for entry in self.read(self.committed, self.end - self.committed)]


class RecordingTransport:
    """A transport that records what is written to it.

    Like asyncio's transports, it reports being full once, and again only after it was read.
    """

    def __init__(self, on_full: Callable[["RecordingTransport"], None]) -> None:
        self.writes: list[bytes] = []
        self.waiting = 0
        self.reads = True
        self.full = False
        self.closed: int | None = None
        self._outbox = 0
        self._on_full = on_full

    def write(self, data: bytes) -> None:
        assert self.closed is None
        self.writes.append(data)
        if not self.reads:
            self.waiting += len(data)
            if self.waiting > self._outbox and not self.full:
                self.full = True
                self._on_full(self)

    def close(self, code: int, reason: str) -> None:
        self.closed = code

    def set_outbox(self, max_bytes: int) -> None:
        self._outbox = max_bytes

    @property
    def waiting_bytes(self) -> int:
        return self.waiting

    @property
    def texts(self) -> list[bytes]:
        return decode_texts(b"".join(self.writes))


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop that runs one tick when the test says so."""

    def turn(self) -> None:
        self.call_soon(self.stop)
        self.run_forever()


class HubHarness:
    """A hub with one pod and transports that record; texts arrive when the loop is turned."""

    def __init__(
        self, loop: ManualLoop, *ids: str, journal: Journal | None = None, **limits: float
    ) -> None:
        self.loop = loop
        self.now = 1000.0
        self.quota = ReadQuota(loop, lambda: self.now, tick_bytes=1 << 20)
        self.hub = Hub(loop, lambda: self.now, self.quota)
        multiple = [id for id in ids if id.startswith("m")]
        self.pod = _new_pod(ids, {**FREE, **limits}, {}, multiple, journal)
        self.peers: dict[RecordingTransport, Peer] = {}

    def join(self, id: str, *, reads: bool = True, **options: Any) -> RecordingTransport:
        transport = RecordingTransport(self._on_outbox_full)
        transport.reads = reads
        self.peers[transport] = self.hub.join(self.pod, id, transport, **(JOIN_DEFAULTS | options))
        return transport

    def _on_outbox_full(self, transport: RecordingTransport) -> None:
        if transport in self.peers:  # like a connection: only once it has joined
            self.hub.on_outbox_full(self.peers[transport])

    def send(
        self, transport: RecordingTransport, id: str, kind: str = "chat", **members: object
    ) -> None:
        peer = self.peers[transport]
        sender = peer.session.member.settings.id
        self.hub.receive(peer, text(id, sender, kind, **members), self.now)

    def drain(self, transport: RecordingTransport) -> None:
        """Read all that a transport holds, and notify the hub as a connection would."""
        transport.waiting = 0
        if transport.full:
            transport.full = False
            self.hub.catch_up(self.peers[transport])
