"""Terminals: programs that an agent runs through the bridge, if the bridge allows that.

A program begins in the working folder, in a process group of its own that ends with it, with its
time limit, or with the bridge. Its output is kept up to a limit. It is not confined to the folder.
"""

import logging
import secrets
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process, TaskGroup

from mcpp import McppError
from mcpp_agents.acp.limits import AcpLimits
from mcpp_agents.bridge.server_process import server_process

_READ_BYTES: Final = 2**16
_POLL_SECONDS: Final = 0.05
# Both streams in one, and nothing to read: `sh` becomes the program.
_RUN: Final = ("/bin/sh", "-c", 'exec "$@" 2>&1 </dev/null', "sh")
_SHELL: Final = ("/bin/sh", "-c")
# The bytes of a character in UTF-8 after its first: at most three.
_CONTINUATION: Final = bytes(range(0x80, 0xC0))
_MAX_CONTINUATION_BYTES: Final = 3

logger = logging.getLogger("mcpp.acp")


class TerminalError(McppError):
    """There is no such terminal, there are too many, or the program cannot be run."""


@dataclass(eq=False, slots=True)
class Terminal:
    """A program and the end of its output."""

    session_id: str
    max_bytes: int
    output: bytes = b""
    truncated: bool = False
    exit_code: int | None = None
    signal: str | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    @property
    def text(self) -> str:
        """The output; what was cut off at its beginning leaves whole characters."""
        start = 0
        if self.truncated:
            head = self.output[:_MAX_CONTINUATION_BYTES]
            start = len(head) - len(head.lstrip(_CONTINUATION))
        return self.output[start:].decode(errors="replace")

    def add(self, chunk: bytes) -> None:
        """Add output; the oldest is dropped beyond the limit."""
        self.output += chunk
        if len(self.output) > self.max_bytes:
            self.truncated = True
            self.output = self.output[len(self.output) - self.max_bytes :]


class Terminals:
    """The terminals of an agent. Owns their processes."""

    def __init__(self, environment: Mapping[str, str], limits: AcpLimits) -> None:
        self._environment = environment
        self._limits = limits
        self._terminals: dict[str, Terminal] = {}
        self._tasks: TaskGroup | None = None

    async def serve(self) -> None:
        """Run the programs until cancelled, then end them."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    async def create(
        self,
        session_id: str,
        command: str,
        args: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        max_bytes: int | None,
    ) -> str:
        """Run a program and return its terminal's id. Without arguments it is a shell's line.

        Raises TerminalError.
        """
        if self._tasks is None:
            raise TerminalError("the bridge is ending")
        if len(self._terminals) >= self._limits.terminals:
            raise TerminalError(f"{len(self._terminals)} terminals are open; release one")
        limit = self._limits.terminal_bytes
        terminal = Terminal(
            session_id, limit if max_bytes is None else max(0, min(max_bytes, limit))
        )
        program = (command, *args) if args else (*_SHELL, command)
        id = secrets.token_hex(8)
        self._terminals[id] = terminal
        env = {**self._environment, **environment}
        self._tasks.start_soon(self._run, terminal, (*_RUN, *program), env, folder)
        return id

    def get(self, session_id: str, id: str) -> Terminal:
        """Return a terminal of a session. Raises TerminalError."""
        terminal = self._terminals.get(id)
        if terminal is None or terminal.session_id != session_id:
            raise TerminalError("there is no such terminal")
        return terminal

    async def kill(self, session_id: str, id: str) -> None:
        """End a program; its output stays. Raises TerminalError."""
        terminal = self.get(session_id, id)
        terminal.scope.cancel()
        await terminal.ended.wait()

    async def release(self, session_id: str, id: str) -> None:
        """End a program and forget its output. Raises TerminalError."""
        await self.kill(session_id, id)
        self._terminals.pop(id, None)

    async def end_session(self, session_id: str) -> None:
        """End all programs of a session."""
        for id, terminal in list(self._terminals.items()):
            if terminal.session_id == session_id:
                with suppress(TerminalError):
                    await self.release(session_id, id)

    async def _run(
        self, terminal: Terminal, command: Sequence[str], env: Mapping[str, str], folder: Path
    ) -> None:
        try:
            with terminal.scope:
                async with server_process(command, env, folder) as process:
                    with anyio.move_on_after(self._limits.terminal_seconds) as running:
                        await _follow(process, terminal)
                    if running.cancelled_caught:
                        terminal.add(b"\n(ended: its time limit)\n")
                    _note_end(process, terminal)
        except (OSError, ValueError) as error:
            terminal.add(f"cannot be run: {error}\n".encode())
            terminal.exit_code = 127
        finally:
            if terminal.exit_code is None and terminal.signal is None:
                terminal.signal = "SIGKILL"
            terminal.ended.set()


async def _follow(process: Process, terminal: Terminal) -> None:
    """Read a program's output until it has ended; its children may keep the pipe open."""
    assert process.stdout is not None
    is_open = True
    while process.returncode is None or is_open:
        is_late = process.returncode is not None
        with anyio.move_on_after(_POLL_SECONDS) as waiting:
            try:
                terminal.add(await process.stdout.receive(_READ_BYTES))
            except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
                is_open = False
                await anyio.sleep(0 if is_late else _POLL_SECONDS)
        if is_late and waiting.cancelled_caught:
            return


def _note_end(process: Process, terminal: Terminal) -> None:
    code = process.returncode
    if code is not None and code < 0:
        try:
            terminal.signal = signal.Signals(-code).name
        except ValueError:  # a real-time signal, most of which have no name
            terminal.signal = f"SIG{-code}"
    else:
        terminal.exit_code = code
