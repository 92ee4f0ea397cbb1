"""A gateway on a real port, and two clients: websockets' own, and one that sends raw frames."""

import asyncio
import base64
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect

import mcpp
from mcpp_gateway import config
from mcpp_gateway.edge.server import Gateway

BOUND = 30.0  # seconds that a step may take before the test fails


def token(participant: str) -> str:
    return f"token-of-{participant}-0123456789"


def config_text(
    participants: Mapping[str, str] | None = None,
    *,
    gateway: Mapping[str, Any] | None = None,
    **limits: float,
) -> str:
    """Return a configuration: participants with extra TOML lines each, settings and limits."""
    lines = ["[gateway]", "port = 0"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in (gateway or {}).items()]
    lines += ["[limits]", *(f"{name} = {value}" for name, value in limits.items())]
    for participant, more in (participants or {"alice": "", "bob": "", "carol": ""}).items():
        lines += [
            f'[pods.demo.participants."{participant}"]',
            f'token = "{token(participant)}"',
            'capabilities = [{ kind = "*" }]' if "capabilities" not in more else "",
            more,
        ]
    return "\n".join(lines)


@asynccontextmanager
async def running(text: str | None = None) -> AsyncIterator[Gateway]:
    """Run a gateway in the current event loop."""
    parsed = config.parse(text or config_text(), {})
    gateway = Gateway(parsed, asyncio.get_running_loop())
    await gateway.listen()
    try:
        yield gateway
    finally:
        await gateway.drain()


@asynccontextmanager
async def joined(
    gateway: Gateway,
    participant: str,
    *,
    query: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[ClientConnection]:
    """Join with websockets' client; the welcome is still unread."""
    extra = "".join(f"&{name}={quote(value)}" for name, value in (query or {}).items())
    scheme = "ws" if tls is None else "wss"
    async with connect(
        f"{scheme}://localhost:{gateway.port}/ws?pod=demo{extra}",
        additional_headers={"Authorization": f"Bearer {token(participant)}"},
        ssl=tls,
        max_size=None,
        open_timeout=BOUND,
        close_timeout=1,
        **options,
    ) as client:
        yield client


async def receive(client: ClientConnection) -> Any:
    """Return the next envelope as a JSON value."""
    async with asyncio.timeout(BOUND):
        return json.loads(await client.recv())


async def receive_until(client: ClientConnection, id: str) -> list[Any]:
    """Return the envelopes up to the one with this id or correlation id."""
    found: list[Any] = []
    while not found or id not in (found[-1]["id"], found[-1].get("correlation_id")):
        found.append(await receive(client))
    return found


def chat(sender: str, text: str = "hello", **members: Any) -> str:
    return mcpp.encode(mcpp.new_envelope("chat", {"text": text}, sender=sender, **members)).decode()


def id_of(text: str) -> str:
    return mcpp.decode(text).id


@dataclass
class RawClient:
    """A client that sends any frame, legal or not."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, first: int, payload: bytes = b"", *, masked: bool = True) -> None:
        """Send one frame whose first byte is `first`."""
        self.writer.write(raw_frame(first, payload, masked=masked))

    async def frame(self) -> tuple[int, bytes]:
        """Return the next frame: its first byte and its payload."""
        async with asyncio.timeout(BOUND):
            first, size = await self.reader.readexactly(2)
            if size == 126:
                size = int.from_bytes(await self.reader.readexactly(2))
            elif size == 127:
                size = int.from_bytes(await self.reader.readexactly(8))
            return first, await self.reader.readexactly(size)

    async def close_code(self) -> int:
        """Read up to the close frame and return its code."""
        while True:
            first, payload = await self.frame()
            if first == 0x88:
                return int.from_bytes(payload[:2])


def raw_frame(first: int, payload: bytes, *, masked: bool = True) -> bytes:
    size = len(payload)
    bit = 0x80 if masked else 0
    head = (
        bytes([first, bit | size])
        if size < 126
        else bytes([first, bit | 126]) + size.to_bytes(2)
        if size < 65536
        else bytes([first, bit | 127]) + size.to_bytes(8)
    )
    if not masked:
        return head + payload
    mask = os.urandom(4)
    repeated = (mask * (size // 4 + 1))[:size]
    xored = int.from_bytes(payload) ^ int.from_bytes(repeated)  # 100 times as fast as by bytes
    return head + mask + xored.to_bytes(size)


def upgrade_request(port: int, *lines: str, path: str = "/ws?pod=demo") -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    head = [
        f"GET {path} HTTP/1.1",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
    ]
    if not any(line.lower().startswith("host:") for line in lines):
        head.append(f"Host: localhost:{port}")
    return "\r\n".join([*head, *lines, "", ""]).encode()


@asynccontextmanager
async def raw(gateway: Gateway, participant: str) -> AsyncIterator[RawClient]:
    """Join with a `RawClient`; the welcome is read."""
    reader, writer = await asyncio.open_connection("localhost", gateway.port)
    writer.write(upgrade_request(gateway.port, f"Authorization: Bearer {token(participant)}"))
    try:
        async with asyncio.timeout(BOUND):
            await reader.readuntil(b"\r\n\r\n")
        client = RawClient(reader, writer)
        await client.frame()
        yield client
    finally:
        writer.close()


def received(gateway: Gateway) -> int:
    """Return how many texts the pod `demo` has received."""
    return gateway.hub.traffic[gateway.pods["demo"]].received


async def http(gateway: Gateway, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes and return the response's status, headers and body."""
    reader, writer = await asyncio.open_connection("localhost", gateway.port)
    try:
        writer.write(request)
        async with asyncio.timeout(BOUND):
            head = await reader.readuntil(b"\r\n\r\n")
            status_line, *lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines if line)
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return int(status_line.split()[1]), headers, body
    finally:
        writer.close()
