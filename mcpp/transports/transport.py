"""The interface between a session and the network: connections that carry texts.

A `Connector` opens connections, a `Transport` is one. `websocket` implements both for WebSocket;
`MemoryTransport` connects a participant to a gateway's core in the same process.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, runtime_checkable

import anyio

from mcpp.errors import AttachmentError
from mcpp.session.resumption import Join

# RFC 6455: the connection ended without a close frame.
ABNORMAL = 1006


class TransportClosed(Exception):  # noqa: N818  (an event of every connection, not an error)
    """The connection has ended; `code` says whether to reconnect."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Transport(Protocol):
    """One connection to a gateway. One task calls `receive`; any task may call the rest."""

    async def send(self, texts: Sequence[bytes]) -> None:
        """Write texts in order. Only `receive` reports that the connection has ended.

        Cancelling this may end the connection, because part of a text may be written.
        """

    async def receive(self) -> Sequence[bytes]:
        """Return the next texts, at least one. Raises TransportClosed."""

    async def keep_alive(self) -> None:
        """Run beside `receive` and close the connection if the peer is dead."""

    async def aclose(self) -> None:
        """Close the connection in an orderly way, within a short time."""


class Connector(Protocol):
    """Opens connections to one pod for one participant."""

    @property
    def address(self) -> str:
        """The address, for log lines and error messages."""

    async def open(self, join: Join) -> Transport:
        """Open a connection.

        Raises UnreachableError where a retry may help, JoinError or AddressError where not.
        """


@runtime_checkable
class BlobTransfer(Protocol):
    """A connector that can also transfer blobs, with the same token."""

    async def upload(self, hash: str, size: int, content: AsyncIterator[bytes]) -> None:
        """Upload a blob. Raises AttachmentError."""

    def download(self, hash: str) -> AsyncIterator[bytes]:
        """Yield the content of a blob as it arrives. Raises AttachmentError."""


@runtime_checkable
class TokenRenewal(Protocol):
    """A connector whose token may change."""

    async def has_newer_token(self) -> bool:
        """Return whether the next connection would use another token than the last one."""


def blob_transfer(connector: Connector) -> BlobTransfer:
    """Return a connector that can transfer blobs. Raises AttachmentError if this one cannot."""
    if not isinstance(connector, BlobTransfer):
        raise AttachmentError(None, "this transport carries no attachments")
    return connector


class MemoryLink(Protocol):
    """A participant's connection as seen by a gateway in the same process."""

    def send(self, text: bytes) -> None: ...
    def close(self) -> None: ...


class MemoryTransport:
    """A connection within the process. Owns the texts that have arrived but were not received."""

    def __init__(
        self, attach: Callable[[Callable[[bytes], None], Callable[[int, str], None]], MemoryLink]
    ) -> None:
        """Connect by calling `attach(on_text, on_close)`."""
        self._texts: list[bytes] = []
        self._closed: TransportClosed | None = None
        self._arrived = anyio.Event()
        self._link = attach(self._on_text, self._on_close)

    async def send(self, texts: Sequence[bytes]) -> None:
        for text in texts:
            if self._closed is None:
                self._link.send(text)
        # Not before: if cancelled there, unsent texts would count as sent on a live connection.
        await anyio.lowlevel.checkpoint()

    async def receive(self) -> Sequence[bytes]:
        while not self._texts:
            if self._closed is not None:
                raise TransportClosed(self._closed.code, self._closed.reason)
            self._arrived = anyio.Event()
            await self._arrived.wait()
        texts, self._texts = self._texts, []
        return texts

    async def keep_alive(self) -> None:
        """Do nothing: there is no network that could fail."""

    async def aclose(self) -> None:
        if self._closed is None:
            self._link.close()
            self._on_close(1000, "")

    def _on_text(self, text: bytes) -> None:
        self._texts.append(text)
        self._arrived.set()

    def _on_close(self, code: int, reason: str) -> None:
        self._closed = self._closed or TransportClosed(code, reason)
        self._arrived.set()
