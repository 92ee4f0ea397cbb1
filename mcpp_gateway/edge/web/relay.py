"""Requests that another process of this machine answers: bytes are passed on in both directions.

A connection carries one request: the head is written anew with `Connection: close`, and the rest is
passed on unchanged, each side as fast as the other one reads.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from mcpp_gateway.edge.connection import ServerConnection

# Headers of the connection, not of the request (RFC 9110, 7.6.1).
_HOP_BY_HOP: Final = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "upgrade", "expect")
)
_MAX_BUFFER_BYTES: Final = 262_144


def read_head(head: bytes) -> tuple[str, str, dict[str, list[str]]] | None:
    """Return method, target and headers of a request, None if it is not valid."""
    lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        return None
    headers: dict[str, list[str]] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or not value.strip(" \t").isprintable():
            return None
        headers.setdefault(name.lower(), []).append(value.strip(" \t"))
    return parts[0], parts[1], headers


def write_head(method: str, target: str, headers: Mapping[str, Sequence[str]]) -> bytes:
    """Return the head of a request that is the only one on its connection."""
    lines = [f"{method} {target} HTTP/1.1"]
    for name, values in headers.items():
        if name not in _HOP_BY_HOP:
            lines += [f"{name}: {value}" for value in values]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1")


class Relay(asyncio.Protocol):
    """The connection to the other process, for one connection of a client. Owns its transport."""

    def __init__(self, client: "ServerConnection", requester: str) -> None:
        """`requester` is who holds a place for the request (G-70)."""
        self.requester = requester
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._is_over = False

    def send(self, data: bytes) -> None:
        """Pass on what the client sent."""
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        """Read no more from the process, because the client does not read."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on from the process."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """End the request: the client is gone."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    # --- called by asyncio ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to pass bytes on."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_MAX_BUFFER_BYTES)
        if self._is_over:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass on what the process answers."""
        self._client.write(data)

    def eof_received(self) -> bool:
        """Close the connection to the client after what was written."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Close the connection to the client after what was written."""
        self._client.end_relay(self)

    def pause_writing(self) -> None:
        """Read no more from the client."""
        self._client.pause_reading()

    def resume_writing(self) -> None:
        """Read on from the client."""
        self._client.resume_reading()
