"""The commands as people run them: processes that join a gateway on a socket."""

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

from tests.interaction.conftest import SocketVenue

BOUND = 20.0
MCPP = str(Path(sys.executable).parent / "mcpp")


@dataclass
class Command:
    """A running command."""

    process: Process
    output: BufferedByteReceiveStream

    async def line(self) -> str:
        """Return the next line that it writes, on either stream."""
        with anyio.fail_after(BOUND):
            return (await self.output.receive_until(b"\n", 1 << 20)).decode()

    async def says(self, text: str) -> str:
        """Return the first line with this text in it."""
        while text not in (line := await self.line()):
            pass
        return line

    async def interrupted(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return await self.ended()

    async def ended(self) -> int:
        """Wait for the end and return the exit code."""
        with anyio.fail_after(BOUND):
            return await self.process.wait()


@dataclass(frozen=True)
class Commands:
    """Starts commands that find the pod in their environment."""

    venue: SocketVenue

    def environ(self, name: str) -> dict[str, str]:
        """Return the environment of a command that joins as `name`."""
        if name not in self.venue._participants:
            self.venue.add(name)
        return os.environ | {"MCPP_URL": self.venue.url, "MCPP_TOKEN": self.venue.token(name)}

    @asynccontextmanager
    async def start(self, name: str, *arguments: str) -> AsyncIterator[Command]:
        """Run a command beside the block."""
        process = await anyio.open_process(
            [MCPP, *arguments], env=self.environ(name), stdout=PIPE, stderr=STDOUT
        )
        try:
            assert process.stdout is not None
            yield Command(process, BufferedByteReceiveStream(process.stdout))
        finally:
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.aclose()

    async def run(self, name: str, *arguments: str, input: bytes = b"") -> tuple[int, str, str]:
        """Run a command to its end; return its exit code and what it wrote."""
        with anyio.fail_after(BOUND):
            done = await anyio.run_process(
                [MCPP, *arguments], input=input, env=self.environ(name), check=False
            )
        return done.returncode, done.stdout.decode(), done.stderr.decode()
