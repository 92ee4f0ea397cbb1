"""The connection to real NATS servers, through a proxy that breaks it in ways of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest

from mcpp_gateway.cluster.nats_link import LinkError, NatsLink
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.cluster.streams import JetStreamError, Streams
from mcpp_gateway.config import RetentionSection

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Proxy:
    """Passes bytes on between clients and a server. Owns the connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Event()
        self._reading.set()
        self.connections = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """Serve while the block runs; yields the address."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            for client in self._clients:
                client.transport.abort()

    def report(self, error: str) -> None:
        """Tell all clients that a server has met an error."""
        for client in self._clients:
            client.write(f"-ERR '{error}'\r\n".encode())

    def stop_reading(self) -> None:
        """Read nothing more from the present connections, and end none of them."""
        self._reading.clear()
        self._reading = asyncio.Event()
        self._reading.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._clients.append(writer)
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        for pair in ((reader, server_writer), (server_reader, writer)):
            task = asyncio.create_task(self._pass_on(*pair, self._reading))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reading: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await reading.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def new_link(address: str) -> NatsLink:
    return NatsLink([address], prefix="test", gateway="here")


async def echo(link: NatsLink, text: bytes, heard: asyncio.Queue[bytes]) -> None:
    """Send a text until it comes back: what is sent while nothing is connected is dropped."""
    with anyio.fail_after(30):
        while True:
            link.send("test.echo", text)
            with anyio.move_on_after(0.5):
                while await heard.get() != text:
                    pass
                return


@pytest.mark.rule("G-53")
@pytest.mark.parametrize("harm", ["an error", "a stalled connection"])
async def test_a_connection_that_the_library_gives_up_is_made_anew(
    nats: NatsServers, harm: str
) -> None:
    proxy = Proxy(nats.ports[0])
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    async with proxy.running() as address:
        link = new_link(address)
        await link.connect()
        try:
            await link.subscribe("test.echo", lambda message: heard.put_nowait(message.data))
            await echo(link, b"before", heard)
            if harm == "an error":
                proxy.report("Maximum Subscriptions Exceeded")
            else:
                proxy.stop_reading()
                for _ in range(32):  # more than the sockets hold: closing waits for the rest
                    link.send("test.other", bytes(1_000_000))
            with anyio.fail_after(30):
                while proxy.connections < 2 or not link.is_connected:  # noqa: ASYNC110
                    await anyio.sleep(0.02)
            await echo(link, b"after", heard)
        finally:
            await link.close()


@pytest.mark.rule("N-10")
async def test_what_jetstream_does_not_answer_is_not_taken_for_an_end(nats: NatsServers) -> None:
    link = new_link(nats.addresses[0])
    await link.connect()
    streams = Streams(link, 1, RetentionSection())
    try:
        with pytest.raises(JetStreamError, match="stream not found"):
            await streams.first("demo")
        with pytest.raises(LinkError, match="503"):  # nothing answers for this stream
            await streams.read("demo", 1)
        await streams.create("demo")
        assert await streams.first("demo") == 1
        assert await streams.read("demo", 1) == []
        assert await streams.stored(streams.log_stream("demo"), seq=1) is None
        await streams.append("demo", [b"one", b"two"])
        assert await streams.stored(streams.log_stream("demo"), seq=2) == (2, b"two")
        found = [each async for part in streams.read_all("demo", 1, 2) for each in part]
        assert found == [(1, b"one"), (2, b"two")]
    finally:
        await link.close()
