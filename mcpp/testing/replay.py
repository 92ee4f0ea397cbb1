"""A run of an agent against a recording: others are replayed, the agent is compared.

The agent joins where the recording says so, or before everything else. An envelope of another
participant is sent when the agent has said all that stands before it in the recording. So the
agent sees the recorded order, and what it says may come earlier than recorded, but not later.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio

from mcpp import kinds
from mcpp.agent.participant import Participant
from mcpp.client.local_pod import ANYTHING
from mcpp.errors import DecodeError, McppError
from mcpp.filters import Filter
from mcpp.payloads import Error, Presence, PresenceEntry
from mcpp.protocol.codec import decode, encode
from mcpp.protocol.envelope import Envelope
from mcpp.session.resumption import Join
from mcpp.testing.comparison import Comparison, IdMap, are_alike, difference
from mcpp.testing.pod import MemoryConnector, MemoryPod
from mcpp.testing.recording import Divergence, RecordedEnvelope, RecordingError
from mcpp.transports.transport import MemoryLink, Transport

# A recording was accepted once; here it runs as fast as it can.
_LIMITS: Final = {
    "messages_per_second": 0,
    "context_messages_per_second": 0,
    "max_contexts_per_participant": 10_000,
    "context_idle_seconds": 86_400.0,
    "max_message_bytes": 16_777_216,
}
# After a first difference the agent may never say the rest.
_IMPATIENT_SECONDS: Final = 0.2
_MAX_DIVERGENCES: Final = 20


class ReplayRun:
    """One run. Owns the pod, the replayed participants, and what the agent has said."""

    def __init__(
        self,
        name: str,
        entries: Sequence[RecordedEnvelope],
        agent: Participant,
        *,
        compare: Comparison,
        ignore: Filter,
    ) -> None:
        self._name = name
        self._entries = entries
        self._agent = agent
        self._compare = compare
        self._ignore = ignore
        self._pod = _TappedPod(agent.name, self._listen, limits=_LIMITS)
        self._added: set[str] = set()
        self._links: dict[str, MemoryLink] = {}
        self._refusal: Error | None = None
        self._ids = IdMap()
        self._own_contexts = _contexts_of(agent.name, entries)
        self._position = 0
        self._said_at: dict[str, int] = {}  # the position that had been replayed
        self._said: list[Envelope] = []  # and not yet found in the recording
        self._said_and_ignored: list[Envelope] = []
        self._answered = {one.envelope.correlation_id for one in entries}
        self._changed = anyio.Event()
        self._divergences: list[Divergence] = []
        self._started = False

    async def run(self, seconds: float) -> list[Divergence]:
        """Replay everything and return the differences."""
        async with AsyncExitStack() as stack:
            await self._join_present(stack)
            for position, envelope in self._entries:
                self._position = position
                if len(self._divergences) >= _MAX_DIVERGENCES:
                    break
                if envelope.kind == kinds.PRESENCE:
                    await self._change_presence(envelope, stack)
                elif envelope.kind == kinds.TOMBSTONE:
                    continue  # its content is unknown
                elif envelope.sender == self._agent.name:
                    wait = min(seconds, _IMPATIENT_SECONDS) if self._divergences else seconds
                    await self._expect(position, envelope, wait)
                elif not envelope.kind.startswith("system/"):
                    self._say(position, envelope)
            with anyio.move_on_after(seconds):
                await anyio.wait_all_tasks_blocked()
            self._divergences += [
                Divergence("unexpected", self._said_at[envelope.id], said=envelope)
                for envelope in self._said[: _MAX_DIVERGENCES - len(self._divergences)]
            ]
        return self._divergences

    # --- participants ---

    async def _join_present(self, stack: AsyncExitStack) -> None:
        """Connect those that were there before the recording began."""
        events: dict[str, bool] = {}  # whether what comes first is a join
        for _, envelope in self._entries:
            for presence in _presences(envelope):
                events.setdefault(presence.participant.id, presence.event == "join")
            if not envelope.kind.startswith("system/"):
                events.setdefault(envelope.sender, False)
        for name, joins in events.items():
            if not joins and name != self._agent.name:
                self._connect(name, ANYTHING)
        if not events.get(self._agent.name):
            await self._start(stack, ANYTHING)

    async def _change_presence(self, envelope: Envelope, stack: AsyncExitStack) -> None:
        for presence in _presences(envelope):
            name = presence.participant.id
            if name == self._agent.name:
                if presence.event == "join" and not self._started:
                    await self._start(stack, presence.participant.capabilities)
            elif presence.event == "join":
                self._connect(name, presence.participant.capabilities)
            elif name in self._links:
                self._links.pop(name).close()

    async def _start(self, stack: AsyncExitStack, capabilities: Sequence[Any]) -> None:
        self._started = True
        self._add(self._agent.name, capabilities)
        await stack.enter_async_context(self._pod.run(self._agent))

    def _connect(self, name: str, capabilities: Sequence[Any]) -> None:
        if name in self._links:
            return
        self._add(name, capabilities)
        self._links[name] = self._pod.gateway.connect(
            name,
            on_text=self._note_refusal,
            on_close=lambda code, reason: None,
            filter=None,
            after=None,
            last=None,
        )

    def _add(self, name: str, capabilities: Sequence[Any]) -> None:
        if name not in self._added:
            self._added.add(name)
            try:
                self._pod.add(name, capabilities)
            except McppError as error:
                raise RecordingError(self._name, f"{name} cannot join: {error}") from error

    # --- replaying ---

    def _say(self, position: int, envelope: Envelope) -> None:
        if envelope.sender not in self._links:  # it left, but the recording says more
            self._connect(envelope.sender, ANYTHING)
        self._refusal = None
        self._links[envelope.sender].send(encode(self._ids.translate(envelope)))
        if self._refusal is not None:
            reason = f"the pod refuses what {envelope.sender} said, {self._refusal.message}"
            raise RecordingError(f"{self._name}, position {position}", reason)

    def _note_refusal(self, text: bytes) -> None:
        if b'"system/error"' in text:
            envelope = _decoded(text)
            if envelope is not None and envelope.kind == kinds.ERROR:
                self._refusal = envelope.payload_as(Error)

    # --- comparing ---

    def _listen(self, text: bytes) -> None:
        envelope = _decoded(text)
        if (
            envelope is not None
            and envelope.sender == self._agent.name
            and envelope.id not in self._said_at
        ):
            self._said_at[envelope.id] = self._position
            is_ignored = self._ignore.matches(envelope, None)
            (self._said_and_ignored if is_ignored else self._said).append(envelope)
            self._changed.set()

    async def _expect(self, position: int, recorded: Envelope, seconds: float) -> None:
        if self._ignore.matches(recorded, None):
            # It does not count, but the answer to it needs its new id.
            if recorded.id in self._answered:
                await self._await(recorded, self._said_and_ignored, "kind", seconds)
            return
        if await self._await(recorded, self._said, self._compare, seconds):
            return
        said = next((one for one in self._said if one.kind == recorded.kind), None)
        self._report(position, recorded, said)
        if said is not None:
            self._pair(recorded, said, self._said)

    async def _await(
        self, recorded: Envelope, heard: list[Envelope], compare: Comparison, seconds: float
    ) -> bool:
        """Wait until the agent has said what was recorded; return whether it has."""
        with anyio.move_on_after(seconds):
            while True:
                for said in heard:
                    if are_alike(self._expected(recorded, said), said, compare):
                        self._pair(recorded, said, heard)
                        return True
                self._changed = anyio.Event()
                await self._changed.wait()
        return False

    def _pair(self, recorded: Envelope, said: Envelope, heard: list[Envelope]) -> None:
        heard.remove(said)
        self._ids = self._ids.with_pair(recorded, said, self._own_contexts)

    def _expected(self, recorded: Envelope, said: Envelope) -> Envelope:
        return self._ids.with_pair(recorded, said, self._own_contexts).translate(recorded)

    def _report(self, position: int, recorded: Envelope, said: Envelope | None) -> None:
        if said is None:
            self._divergences.append(Divergence("missing", position, recorded))
            return
        found = difference(self._expected(recorded, said), said, self._compare)
        self._divergences.append(Divergence("different", position, recorded, said, found))


class _TappedPod(MemoryPod):
    """A pod that shows what one participant receives, its echoes included."""

    def __init__(self, name: str, on_text: Any, **options: Any) -> None:
        super().__init__(**options)
        self._tapped = name
        self._on_text = on_text

    def connector(self, name: str) -> Any:
        inner = super().connector(name)
        return _TappedConnector(inner, self._on_text) if name == self._tapped else inner


class _TappedConnector:
    def __init__(self, inner: MemoryConnector, on_text: Any) -> None:
        self._inner = inner
        self._on_text = on_text
        self.address = inner.address

    async def open(self, join: Join) -> "_TappedTransport":
        return _TappedTransport(await self._inner.open(join), self._on_text)


class _TappedTransport:
    """A transport that passes each text on before it is received."""

    def __init__(self, inner: Transport, on_text: Any) -> None:
        self._on_text = on_text
        self._inner = inner
        self.send = inner.send
        self.keep_alive = inner.keep_alive
        self.aclose = inner.aclose

    async def receive(self) -> Sequence[bytes]:
        texts = await self._inner.receive()
        for text in texts:
            self._on_text(text)
        return texts


def _contexts_of(agent: str, entries: Sequence[RecordedEnvelope]) -> set[str]:
    """Return the contexts that the agent was the first to send in."""
    creators: dict[str, str] = {}
    for _, envelope in entries:
        if envelope.context is not None:
            creators.setdefault(envelope.context.id, envelope.sender)
    return {id for id, creator in creators.items() if creator == agent}


def _presences(envelope: Envelope) -> list[PresenceEntry]:
    if envelope.kind != kinds.PRESENCE:
        return []
    try:
        return envelope.payload_as(Presence).each()
    except DecodeError:
        return []


def _decoded(text: bytes) -> Envelope | None:
    try:
        return decode(text)
    except DecodeError:
        return None  # a page of history may be nested deeper
