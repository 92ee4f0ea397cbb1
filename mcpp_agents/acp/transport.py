"""The lines between the bridge and an agent: JSON-RPC over a process's standard streams.

The package `acp` has a transport, too. This one bounds the length of a line and the number of
requests at once, handles updates one after another, and drops what would end the connection: the
agent may be hostile. Reading waits while an update is handled, so an agent that writes faster than
the pod accepts messages has to wait.
"""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import Process

from mcpp_agents.lines import Lines, find_id, parse_line

OnUpdate = Callable[[Any], Awaitable[None]]

_UPDATE: Final = "session/update"
_BUSY: Final = {"code": -32000, "message": "too many requests at once"}
_UNREADABLE: Final = {"code": -32700, "message": "the message is not JSON-RPC, or too long"}
_MAX_ERROR_CHARS: Final = 500
_READ_BYTES: Final = 2**18
_GONE: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)

logger = logging.getLogger("mcpp.acp")


class AgentTransport:
    """The messages of one agent's process. Owns what was read of them, and counts its requests."""

    def __init__(
        self, process: Process, on_update: OnUpdate, *, max_requests: int, write_seconds: float
    ) -> None:
        self.ended = anyio.Event()
        self.updated_at = 0.0  # when it has sent its last update
        self._process = process
        self._on_update = on_update
        self._max_requests = max_requests
        self._write_seconds = write_seconds
        self._requests = 0
        self._lines = Lines()
        self._read: list[tuple[bytes, int]] = []  # complete lines, the next one last
        self._writing = anyio.Lock()
        self._has_warned = False

    async def send(self, message: dict[str, Any]) -> None:
        """Write a message. Raises ConnectionError if the agent has ended or does not read."""
        if "method" not in message:
            self._requests -= 1
        data = json.dumps(message, separators=(",", ":"), default=str).encode() + b"\n"
        assert self._process.stdin is not None
        with anyio.move_on_after(self._write_seconds) as writing:
            try:
                async with self._writing:
                    await self._process.stdin.send(data)
            except _GONE as error:
                raise ConnectionError("the agent has ended") from error
        if writing.cancelled_caught:
            self.ended.set()
            raise ConnectionError("the agent does not read")

    async def receive(self) -> dict[str, Any] | None:
        """Return the next request or response, None at the end. Updates are handled here."""
        while True:
            if not self._read and not await self._fill():
                self.ended.set()
                return None
            line, size = self._read.pop()
            message = self._parse(line) if size == len(line) else _unreadable(line)
            if message is None:
                self._warn(size)
                await self._refuse(line)
            elif message.get("method") == _UPDATE:
                self.updated_at = anyio.current_time()
                await self._on_update(message.get("params"))
            elif "method" not in message:
                return message
            elif "id" in message:
                self._requests += 1
                if self._requests <= self._max_requests:
                    return message
                await self.send({"jsonrpc": "2.0", "id": message["id"], "error": _BUSY})

    async def close(self) -> None:
        """Do nothing: who started the process ends it."""

    async def _fill(self) -> bool:
        assert self._process.stdout is not None
        try:
            while not self._read:
                chunk = await self._process.stdout.receive(_READ_BYTES)
                self._read = list(self._lines.split(chunk))[::-1]
        except _GONE:
            return False
        # Others run even if the agent never stops writing.
        await anyio.lowlevel.checkpoint()
        return True

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        text = line.decode(errors="replace")
        try:
            return _checked(msgspec.json.decode(text))
        except (msgspec.DecodeError, RecursionError):
            pass
        message = parse_line(text)
        return _unreadable(line) if message is None else _checked(message)

    async def _refuse(self, line: bytes) -> None:
        """Answer a request that cannot be read, for which the agent would wait."""
        id = find_id(line)
        if id is not None and _has_method(line):
            self._requests += 1
            await self.send({"jsonrpc": "2.0", "id": id, "error": _UNREADABLE})

    def _warn(self, size_bytes: int) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("the agent wrote a line of %d bytes that is not JSON-RPC", size_bytes)


def _checked(message: Any) -> dict[str, Any] | None:
    """Return a message in which the package `acp` finds the types that it expects."""
    if not isinstance(message, dict):
        return None
    id = message.get("id")
    if "id" in message and (not isinstance(id, int | str) or isinstance(id, bool)):
        return None
    if "method" in message:
        params = message.get("params")
        if not isinstance(message["method"], str):
            return None
        if isinstance(params, dict):
            params.pop("_meta", None)  # the package would let its members replace parameters
        return message
    if "id" not in message:
        return None
    if "error" in message:
        return {"jsonrpc": "2.0", "id": id, "error": _error(message["error"])}
    return message


def _error(error: Any) -> dict[str, Any]:
    given = error if isinstance(error, dict) else {}
    code, data = given.get("code"), given.get("data")
    text = str(given.get("message") or "no reason given")
    if data is not None:
        text = f"{text}: {json.dumps(data, default=str)}"
    is_code = isinstance(code, int) and not isinstance(code, bool)
    return {"code": code if is_code else -32603, "message": text[:_MAX_ERROR_CHARS]}


def _unreadable(line: bytes) -> dict[str, Any] | None:
    """Return an error for the request of ours that a line seems to answer."""
    id = find_id(line)
    if id is None or _has_method(line):
        return None
    return {"jsonrpc": "2.0", "id": id, "error": _UNREADABLE}


def _has_method(line: bytes) -> bool:
    """Return whether a line that cannot be read seems to be a request."""
    return b'"method"' in line[:512] + line[-512:]
