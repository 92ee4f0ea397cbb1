"""The process that serves the pods to MCP clients, at `/mcp` (G-70).

It is the command `mcpp mcp`, found by its entry point; the gateway does not import it. It starts
with the first request and joins the gateway as the participants whose tokens the clients send.
"""

import asyncio
import logging
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from mcpp.agent.shares import Shares

MAX_MCP_BODY_BYTES: Final = 4 * 1024 * 1024  # as the process accepts
_START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 3.0
_MAX_REQUESTS: Final = 1000  # at the same time, event streams included

logger = logging.getLogger("mcpp.gateway")


class McpService:
    """The process behind `/mcp`. Owns it, and the folder of its socket."""

    def __init__(self, url: str, log_format: Literal["text", "json"]) -> None:
        """Describe the process; `url` is the address at which it joins the gateway."""
        self.requests = Shares(_MAX_REQUESTS)  # of participants, by pod and name
        self._url = url
        self._log_format = log_format
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()

    @property
    def is_installed(self) -> bool:
        """Whether the command and what it needs are installed."""
        return find_spec("mcp") is not None and find_spec("uvicorn") is not None

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Connect a protocol to the process; start it if it does not run.

        Raises OSError and TimeoutError if it does not answer.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_START_SECONDS):
            await self._start()
            while True:
                try:
                    await loop.create_unix_connection(lambda: protocol, str(self._path))
                except (FileNotFoundError, ConnectionRefusedError):
                    if self._process is None or self._process.returncode is not None:
                        raise
                    await asyncio.sleep(_POLL_SECONDS)
                else:
                    return

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(_STOP_SECONDS):
                    await process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def _path(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "mcp.sock"

    async def _start(self) -> None:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="mcpp-")  # only for this user
            [entry] = entry_points(group="mcpp.commands", name="mcp")
            arguments = ["--http", str(self._path), "--url", self._url]
            logs = ""
            if self._log_format == "json":  # the command keeps what is configured before
                logs = (
                    "from mcpp_gateway.log_format import configure; "
                    "configure('json', is_gateway=False); "
                )
            program = (
                f"from mcpp_gateway.demo import end_with_parent; end_with_parent(); {logs}"
                f"from {entry.module} import {entry.attr}; raise SystemExit("
                f"{entry.attr}({arguments!r}))"
            )
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE, start_new_session=True
            )
            logger.info("serving MCP clients", extra={"pid": self._process.pid})
