"""Cancelling a request before its echo."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import pytest

from mcpp import decode
from mcpp.client.connection import Connection, Options
from mcpp.client.pod import Pod
from mcpp.client.tasks import background
from mcpp.session.resumption import Join
from mcpp.session.session import ClientSession
from tests.mcpp.session.test_session import welcome

pytestmark = pytest.mark.anyio

WELCOME = welcome(participants=[{"id": "me"}, {"id": "files"}])


@dataclass
class SilentTransport:
    """A transport whose gateway sends only a welcome. Owns what was written to it."""

    address: str = "here"
    kinds: list[str] = field(default_factory=list)
    written: anyio.Event = field(default_factory=anyio.Event)
    texts: list[bytes] = field(default_factory=lambda: [WELCOME])

    async def open(self, join: Join) -> "SilentTransport":
        return self

    async def receive(self) -> Sequence[bytes]:
        if not self.texts:
            await anyio.sleep_forever()
        return [self.texts.pop()]

    async def send(self, texts: Sequence[bytes]) -> None:
        self.kinds += [decode(text).kind for text in texts]
        self.written.set()

    async def keep_alive(self) -> None: ...
    async def aclose(self) -> None: ...


@pytest.mark.rule("P-18", "P-21")
@pytest.mark.parametrize(
    ("asked", "taken_back"),
    [
        ("mcp/request:tools/call:t", "mcp/notification:notifications/cancelled"),
        ("mcp/proposal:tools/call:t", "mcp/withdraw"),
    ],
)
async def test_what_may_have_been_logged_is_taken_back(asked: str, taken_back: str) -> None:
    transport = SilentTransport()
    connection = Connection(ClientSession("me"), transport, Options())
    pod = Pod(connection)
    ask = pod.call if asked.startswith("mcp/request") else pod.propose
    async with background() as tasks:
        await tasks.start(connection.run, tasks)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as asking:
                asking.start_soon(ask, "files", "t")
                await transport.written.wait()
                asking.cancel_scope.cancel()
    assert transport.kinds == [asked, taken_back]
    assert not connection._responses
