"""A long replay with a small inbox."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from mcpp import Message, Participant, encode
from mcpp.client.connection import Connection, Options
from mcpp.client.pod import Pod
from mcpp.client.tasks import background
from mcpp.session.resumption import Join
from mcpp.session.session import ClientSession
from tests.mcpp.session.test_session import chat, welcome

pytestmark = pytest.mark.anyio


@dataclass
class LongReplay:
    """A gateway that replays a hundred envelopes at once. Counts the connections."""

    address: str = "here"
    opened: int = 0
    unreadable: bool = False  # whether the last envelope is
    texts: list[bytes] = field(default_factory=list)

    async def open(self, join: Join) -> "LongReplay":
        self.opened += 1
        self.texts = [welcome(replayed=100), *(encode(chat(str(number))) for number in range(100))]
        if self.unreadable:
            self.texts[-1] = b"{}"
        return self

    async def receive(self) -> Sequence[bytes]:
        if not self.texts:
            await anyio.sleep_forever()
        texts, self.texts = self.texts, []
        return texts

    async def send(self, texts: Sequence[bytes]) -> None: ...
    async def keep_alive(self) -> None: ...
    async def aclose(self) -> None: ...


@asynccontextmanager
async def connected(gateway: LongReplay) -> AsyncIterator[Connection]:
    """Connect with a buffer for four messages."""
    session = ClientSession("me", last=100, capacity=4)
    connection = Connection(session, gateway, Options(buffer_messages=4))
    async with background() as tasks:
        await tasks.start(connection.run, tasks)
        yield connection


@pytest.mark.rule("P-11")
async def test_a_replay_is_paused_until_the_reader_catches_up() -> None:
    gateway = LongReplay()
    async with connected(gateway) as connection:
        pod = Pod(connection)
        with anyio.fail_after(5):
            for number in range(100):
                assert (await anext(pod)).text == str(number)
                for _ in range(number % 7):
                    await anyio.lowlevel.checkpoint()
    assert gateway.opened == 1


@pytest.mark.rule("P-11")
async def test_a_replay_is_not_paused_while_an_envelope_waits_to_be_sent() -> None:
    gateway = LongReplay()
    async with connected(gateway) as connection:
        with anyio.fail_after(0.9):  # without a reader
            await Pod(connection).send("chat", wait=False)
            while not connection.session.live:
                await anyio.lowlevel.checkpoint()


@pytest.mark.rule("P-03")
@pytest.mark.parametrize("unreadable", [False, True])
async def test_on_history_runs_at_the_end_of_the_replay_without_a_live_message(
    unreadable: bool,
) -> None:
    agent = Participant("me", last=100)
    restored = anyio.Event()

    @agent.on_history
    def restore(history: list[Message]) -> None:
        assert len(history) == (99 if unreadable else 100)
        restored.set()

    async with connected(LongReplay(unreadable=unreadable)) as connection, background() as tasks:
        tasks.start_soon(agent.serve, Pod(connection))
        with anyio.fail_after(5):
            await restored.wait()
