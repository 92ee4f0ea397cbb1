"""A long replay with a small inbox."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import pytest

from mcpp import encode
from mcpp.client.connection import Connection, Options
from mcpp.client.pod import Pod
from mcpp.client.tasks import background
from mcpp.session.session import ClientSession, Join
from tests.mcpp.session.test_session import chat, welcome

pytestmark = pytest.mark.anyio


@dataclass
class LongReplay:
    """A gateway that replays a hundred envelopes at once. Counts the connections."""

    address: str = "here"
    opened: int = 0
    texts: list[bytes] = field(default_factory=list)

    async def open(self, join: Join) -> "LongReplay":
        self.opened += 1
        self.texts = [welcome(replayed=100), *(encode(chat(str(number))) for number in range(100))]
        return self

    async def receive(self) -> Sequence[bytes]:
        if not self.texts:
            await anyio.sleep_forever()
        texts, self.texts = self.texts, []
        return texts

    async def send(self, texts: Sequence[bytes]) -> None: ...
    async def keep_alive(self) -> None: ...
    async def aclose(self) -> None: ...


@pytest.mark.rule("P-11")
async def test_a_replay_is_paused_until_the_reader_catches_up() -> None:
    gateway = LongReplay()
    connection = Connection(
        ClientSession("me", last=100, capacity=4), gateway, Options(buffer_messages=4)
    )
    pod = Pod(connection)
    async with background() as tasks:
        await tasks.start(connection.run, tasks)
        with anyio.fail_after(5):
            for number in range(100):
                assert (await anext(pod)).text == str(number)
                for _ in range(number % 7):
                    await anyio.lowlevel.checkpoint()
    assert gateway.opened == 1


@pytest.mark.rule("P-11")
async def test_a_replay_is_not_paused_while_an_envelope_waits_to_be_sent() -> None:
    gateway = LongReplay()
    connection = Connection(
        ClientSession("me", last=100, capacity=4), gateway, Options(buffer_messages=4)
    )
    pod = Pod(connection)
    async with background() as tasks:
        await tasks.start(connection.run, tasks)
        with anyio.fail_after(0.9):  # without a reader
            await pod.send("chat", wait=False)
            while not connection.session.live:
                await anyio.lowlevel.checkpoint()
