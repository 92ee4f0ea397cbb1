"""An in-memory pod: the real gateway's core without sockets, so that a test takes milliseconds.

async def test_the_agent_answers(pod: MemoryPod) -> None:
    async with pod.run(agent), pod.connect("alice") as alice:
        await alice.send("chat", {"text": "hello"})
        assert (await anext(alice)).text == "hello to you"
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from typing import Any, Protocol

import anyio
import msgspec

from mcpp.agent.participant import Participant
from mcpp.client.connection import Options
from mcpp.client.joining import open_pod
from mcpp.client.local_pod import ANYTHING
from mcpp.client.pod import OnGap, Pod
from mcpp.errors import AttachmentError, McppError
from mcpp.filters import Filter
from mcpp.session.resumption import Join
from mcpp.session.session import ClientSession
from mcpp.transports.transport import MemoryLink, MemoryTransport


def _at_once(attempt: int) -> float:
    return 0.0


class PodBackend(Protocol):
    """The gateway interface that MemoryPod uses; the entry point `mcpp.testing` provides it."""

    def add(self, participant: str, capabilities: Sequence[Mapping[str, Any]]) -> None: ...
    def connect(
        self,
        participant: str,
        *,
        on_text: Callable[[bytes], None],
        on_close: Callable[[int, str], None],
        filter: str | None,
        after: str | None,
        last: int | None,
    ) -> MemoryLink: ...
    def upload(self, participant: str, data: bytes) -> str: ...
    def download(self, participant: str, hash: str) -> bytes | None: ...
    def cut(self, participant: str) -> None: ...
    def restart(self) -> None: ...
    def tick(self) -> None: ...


class MemoryPod:
    """An in-memory pod for tests.

    Any participant may connect, with all capabilities unless `add` restricts them.
    """

    def __init__(self, *, limits: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Create a pod.

        Args:
            limits: the gateway's limits, as in `[limits]` of its configuration.
            options: for the gateway; `clock=` replaces its clock.

        Raises McppError if mcpp is not installed as a distribution, but only on the path.
        """
        (found,) = entry_points(group="mcpp.testing", name="gateway") or (None,)
        if found is None:
            raise McppError("the in-memory pod needs an installed mcpp: pip install mcpp-pods")
        self.gateway: PodBackend = found.load()({}, limits=limits or {}, **options)
        self._known: set[str] = set()

    def add(self, name: str, capabilities: Sequence[Mapping[str, Any]] = ANYTHING) -> None:
        """Add a participant with these capabilities."""
        self._known.add(name)
        self.gateway.add(name, capabilities)

    @asynccontextmanager
    async def connect(
        self,
        name: str,
        *,
        filter: Filter | Mapping[str, Any] | None = None,
        last: int | None = None,
        after: str | None = None,
        own: bool = False,
        live: bool = False,
        on_gap: OnGap | None = None,
        options: Options = Options(backoff=_at_once),  # noqa: B008  (frozen)
    ) -> AsyncIterator[Pod]:
        """Connect like `mcpp.connect`, but by name instead of url and token."""
        session = ClientSession(
            name,
            filter=filter,
            last=last,
            after=after,
            live=live,
            capacity=options.buffer_messages,
            capacity_bytes=options.buffer_bytes,
        )
        connector = self.connector(name)
        async with open_pod(session, connector, own=own, on_gap=on_gap, options=options) as pod:
            yield pod

    @asynccontextmanager
    async def run(self, agent: Participant) -> AsyncIterator[Pod]:
        """Run an agent while the block runs; an exception in one of its handlers is raised."""
        options = agent.connect_options
        options["options"] = replace(options["options"], backoff=_at_once)
        async with agent.run_in_background(self.connect(agent.name, **options)) as pod:
            yield pod

    def connector(self, name: str) -> "MemoryConnector":
        """Return a participant's connector."""
        if name not in self._known:
            self.add(name)
        return MemoryConnector(self.gateway, name)

    def cut(self, name: str) -> None:
        """Break a participant's connection as a failing network would; it reconnects."""
        self.gateway.cut(name)

    def restart(self) -> None:
        """Restart the gateway: its log is lost, and all participants reconnect."""
        self.gateway.restart()

    def tick(self) -> None:
        """Have the gateway expire what is idle by its clock."""
        self.gateway.tick()


@dataclass(frozen=True, slots=True)
class MemoryConnector:
    """Connects to a gateway in the same process."""

    gateway: PodBackend
    name: str
    address: str = "memory"

    async def open(self, join: Join) -> MemoryTransport:
        """Join and return the transport."""
        filter = None
        if join.filter is not None:
            filter = msgspec.json.encode(join.filter.to_json()).decode()
        await anyio.lowlevel.checkpoint()
        return MemoryTransport(
            lambda on_text, on_close: self.gateway.connect(
                self.name,
                on_text=on_text,
                on_close=on_close,
                filter=filter,
                after=join.after,
                last=join.last,
            )
        )

    async def upload(self, hash: str, size: int, content: AsyncIterator[bytes]) -> None:
        """Upload a blob. Raises AttachmentError where it does not fit."""
        self.gateway.upload(self.name, b"".join([piece async for piece in content]))

    async def download(self, hash: str) -> AsyncIterator[bytes]:
        """Yield the content of a blob. Raises AttachmentError if there is none for it."""
        data = self.gateway.download(self.name, hash)
        if data is None:
            raise AttachmentError(404, "there is no such blob for you")
        yield data
