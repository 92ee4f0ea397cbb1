"""A proxy that adds a token to requests, for clients that cannot send one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from mcpp.client.tasks import background

_ENDED = (
    anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError,
    anyio.IncompleteRead, OSError,
)  # fmt: skip


@asynccontextmanager
async def token_proxy(port: int, token: str, path: str) -> AsyncIterator[str]:
    """Pass requests on to a port of this machine, with a token and another path; yield the URL.

    Headers that name the proxy, such as Host and Origin, name that port instead.
    """

    async def serve(client: SocketStream) -> None:
        with suppress(*_ENDED):
            async with client, await anyio.connect_tcp("127.0.0.1", port) as server:
                reader = BufferedByteReceiveStream(client)
                head = (await reader.receive_until(b"\r\n\r\n", 1 << 16)).decode("latin-1")
                head = head.replace(f":{own_port}\r\n", f":{port}\r\n")
                first, *lines = head.split("\r\n")
                method, _, version = first.split(" ")
                kept = [line for line in lines if line and line[:11].lower() != "connection:"]
                kept += [f"Authorization: Bearer {token}", "Connection: close"]
                await server.send("\r\n".join([f"{method} {path} {version}", *kept]).encode())
                await server.send(b"\r\n\r\n")
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(pump, reader, server, tasks.cancel_scope)
                    tasks.start_soon(pump, server, client, tasks.cancel_scope)

    async def pump(
        reader: BufferedByteReceiveStream | SocketStream,
        writer: SocketStream,
        ended: anyio.CancelScope,
    ) -> None:
        with suppress(*_ENDED):
            while True:
                await writer.send(await reader.receive())
        ended.cancel()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        own_port = listener.extra(SocketAttribute.local_port)
        async with background() as tasks:
            tasks.start_soon(listener.serve, serve)
            yield f"http://127.0.0.1:{own_port}/mcp"
