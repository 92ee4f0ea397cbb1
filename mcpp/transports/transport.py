"""The one seam between a session and the world: lines that carry texts.

A `Connector` opens lines, a `Transport` is one. The WebSocket is in `websocket`; the one here
stays in memory, and joins a participant to a gateway's core in the same process.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import anyio

from mcpp.session.session import Join

# RFC 6455: the line broke without a close frame.
ABNORMAL = 1006


class TransportClosed(Exception):  # noqa: N818  (an event of every line, not an error of ours)
    """The line is gone; `code` says whether to come back."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Transport(Protocol):
    """One line to a gateway. `receive` is called by one task, the others by any."""

    async def send(self, texts: Sequence[bytes]) -> None:
        """Write texts in order. A broken line is told by `receive` alone.

        When this is cancelled half way, the line breaks: part of a text may have gone.
        """

    async def receive(self) -> Sequence[bytes]:
        """Return the next texts, at least one. Raises TransportClosed."""

    async def keep_alive(self) -> None:
        """Run beside `receive` and break a line on which the other side is dead."""

    async def aclose(self) -> None:
        """End the line in an orderly way, soon."""


class Connector(Protocol):
    """Opens lines to one pod for one participant."""

    @property
    def address(self) -> str:
        """Where they lead, for messages to people."""

    async def open(self, join: Join) -> Transport:
        """Open a line.

        Raises UnreachableError where trying again may help, and JoinError where it does not.
        """


class MemoryLink(Protocol):
    """A participant's end at a gateway in the same process."""

    def send(self, text: bytes) -> None: ...
    def close(self) -> None: ...


class MemoryTransport:
    """A line within the process. Owns what has arrived and was not yet received."""

    def __init__(
        self, attach: Callable[[Callable[[bytes], None], Callable[[int, str], None]], MemoryLink]
    ) -> None:
        """Join by calling `attach(on_text, on_close)`."""
        self._texts: list[bytes] = []
        self._closed: TransportClosed | None = None
        self._arrived = anyio.Event()
        self._link = attach(self._on_text, self._on_close)

    async def send(self, texts: Sequence[bytes]) -> None:
        for text in texts:
            if self._closed is None:
                self._link.send(text)
        # Not before: cancelled there, texts would count as sent on a line that is still up.
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
        """A function call cannot hang in the network."""

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
