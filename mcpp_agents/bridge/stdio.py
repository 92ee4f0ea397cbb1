"""The transport to an MCP server in a process: one JSON-RPC message on each line (MCP's stdio).

The MCP SDK has one, too. This one bounds the length of a line, answers for what cannot be read,
and logs what is not JSON-RPC only now and then.
"""

import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import Process
from mcp.shared.message import SessionMessage

from mcpp_agents.bridge.recovery import read_line, refuse_line
from mcpp_agents.bridge.server_process import server_process

# Eight times what a gateway accepts in an envelope by default.
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
# What is kept of a longer line, at each end, to find the id of the request that it answers.
_KEPT_BYTES: Final = 4096
_REPORT_SECONDS: Final = 10.0

_GONE: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)

logger = logging.getLogger("mcpp.bridge")


@asynccontextmanager
async def stdio_streams(
    command: Sequence[str], environment: Mapping[str, str]
) -> AsyncIterator[Any]:
    """Run a server and yield the streams of its messages, as the SDK's client expects them.

    Raises OSError if the program cannot be run.
    """
    async with server_process(command, environment) as process:
        inward, incoming = anyio.create_memory_object_stream[SessionMessage](0)
        outgoing, outward = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as tasks, incoming, outgoing:
            tasks.start_soon(_read, process, inward)
            tasks.start_soon(_write, process, outward, inward)
            try:
                yield incoming, outgoing
            finally:
                tasks.cancel_scope.cancel()


async def _read(process: Process, inward: Any) -> None:
    assert process.stdout is not None
    lines, noise = Lines(), _Noise()
    with suppress(*_GONE, anyio.EndOfStream):
        async with inward:
            while True:
                chunk = await process.stdout.receive(2**18)
                # Others run even if the server never stops writing.
                await anyio.lowlevel.checkpoint()
                for line, size in lines.split(chunk):
                    messages = read_line(line) if size == len(line) else refuse_line(line)
                    if not messages:
                        noise.count(size)
                    for message in messages:
                        await inward.send(message)


async def _write(process: Process, outward: Any, inward: Any) -> None:
    assert process.stdin is not None
    try:
        async with outward:
            async for item in outward:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode(errors="replace") + b"\n")
    except _GONE:
        # The server may still run: end the reading side, so that no request waits for an answer.
        await inward.aclose()


@dataclass(slots=True)
class Lines:
    """Splits bytes into lines. Of a line that is too long it keeps both ends."""

    max_bytes: int = MAX_LINE_BYTES
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0
    _tail: bytes = b""

    def split(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        """Add bytes; yield each complete line with its length, also where less of it is kept."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._add(chunk[start:end])
            yield b"".join(self._parts) + self._tail, self._size
            self._parts, self._size, self._tail = [], 0, b""
            start = end + 1
        self._add(chunk[start:])

    def _add(self, part: bytes) -> None:
        was_long = self._size > self.max_bytes
        self._size += len(part)
        if self._size <= self.max_bytes:
            self._parts.append(part)
            return
        if not was_long:
            whole = b"".join(self._parts)
            self._parts, part = [whole[:_KEPT_BYTES] + b" "], whole[_KEPT_BYTES:] + part
        self._tail = (self._tail + part)[-_KEPT_BYTES:]


@dataclass(slots=True)
class _Noise:
    """Counts what is not JSON-RPC, and reports it at intervals."""

    _lines: int = 0
    _bytes: int = 0
    _report_at: float = 0.0

    def count(self, size_bytes: int) -> None:
        self._lines += 1
        self._bytes += size_bytes
        if time.monotonic() >= self._report_at:
            logger.warning(
                "the MCP server wrote %d lines (%d bytes) that are not JSON-RPC",
                self._lines,
                self._bytes,
            )
            self._lines, self._bytes = 0, 0
            self._report_at = time.monotonic() + _REPORT_SECONDS
