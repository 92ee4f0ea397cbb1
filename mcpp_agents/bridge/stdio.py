"""The transport to an MCP server in a process: one JSON-RPC message on each line (MCP's stdio).

The MCP SDK has one, too. This one bounds the length of a line, answers for what cannot be read,
and logs what is not JSON-RPC only now and then.
"""

import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
from anyio.abc import Process
from mcp.shared.message import SessionMessage

from mcpp_agents.bridge.recovery import read_line, refuse_line
from mcpp_agents.bridge.server_process import server_process
from mcpp_agents.lines import Lines

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
