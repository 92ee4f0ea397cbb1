"""Runs the `mcpp` commands as processes that join a gateway on a socket."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.interaction.conftest import SocketPod

BOUND = 20.0
MCPP = str(Path(sys.executable).parent / "mcpp")


@dataclass
class RunningCommand:
    """A running command and its output."""

    process: Process
    output: BufferedByteReceiveStream

    async def line(self) -> str:
        """Return the next line of output, from either stream."""
        with anyio.fail_after(BOUND):
            return (await self.output.receive_until(b"\n", 1 << 20)).decode()

    async def line_with(self, text: str) -> str:
        """Return the next line that contains `text`; skip the others."""
        while text not in (line := await self.line()):
            pass
        return line

    async def interrupt(self) -> int:
        """Send SIGINT and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return await self.wait()

    async def wait(self) -> int:
        """Wait until the process ends and return its exit code."""
        with anyio.fail_after(BOUND):
            return await self.process.wait()


@dataclass(frozen=True)
class Commands:
    """Starts commands with the pod's address in their environment."""

    sockets: SocketPod

    def environ(self, name: str) -> dict[str, str]:
        """Return the environment of a command that joins as `name`."""
        if name not in self.sockets._participants:
            self.sockets.add(name)
        return os.environ | {"MCPP_URL": self.sockets.url, "MCPP_TOKEN": self.sockets.token(name)}

    @asynccontextmanager
    async def start(self, name: str, *arguments: str) -> AsyncIterator[RunningCommand]:
        """Run a command for the duration of the block."""
        process = await anyio.open_process(
            [MCPP, *arguments], env=self.environ(name), stdout=PIPE, stderr=STDOUT
        )
        try:
            assert process.stdout is not None
            yield RunningCommand(process, BufferedByteReceiveStream(process.stdout))
        finally:
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.aclose()

    async def run(self, name: str, *arguments: str, input: bytes = b"") -> tuple[int, str, str]:
        """Run a command to its end; return its exit code, standard output and standard error."""
        with anyio.fail_after(BOUND):
            done = await anyio.run_process(
                [MCPP, *arguments], input=input, env=self.environ(name), check=False
            )
        return done.returncode, done.stdout.decode(), done.stderr.decode()
