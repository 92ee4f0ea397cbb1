"""Upgrades without a gap: a new process takes over the port and the logs of an old one.

On SIGUSR2 the old process starts the same command again, with its listening sockets as inherited
descriptors. The new one reads its configuration, says that it is ready, and waits. The old one then
stops accepting, closes its clients with 4000 and its logs, and waits in turn. Meanwhile connections
wait in the sockets' queues; the new process accepts them as soon as it has opened the logs, and
says so. Then the old one ends. If the new one ends before that, the old one opens its logs again.

Sockets may also come from systemd (`LISTEN_FDS`), which keeps them across a restart.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Final

logger = logging.getLogger("mcpp.gateway")

_SOCKETS: Final = "MCPP_LISTEN_FDS"
_SOCKETS_OF_SYSTEMD: Final = "LISTEN_FDS"
_READY: Final = "MCPP_READY_FD"
_GO: Final = "MCPP_GO_FD"
_MAIN_PID_OF_SYSTEMD: Final = "SYSTEMD_EXEC_PID"
_FIRST_OF_SYSTEMD: Final = 3
_READY_SECONDS: Final = 30.0
_IS_READY: Final = b"1"
_IS_LISTENING: Final = b"2"
_REASON_BYTES: Final = 2048  # less than a pipe holds


def inherited_sockets(environment: Mapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the listening sockets that another process has left to this one, or systemd."""
    numbers: Sequence[int] = ()
    if environment.get(_SOCKETS):
        numbers = [int(part) for part in environment[_SOCKETS].split(",")]
    elif environment.get("LISTEN_PID") == str(os.getpid()):
        count = int(environment.get(_SOCKETS_OF_SYSTEMD, "0"))
        numbers = range(_FIRST_OF_SYSTEMD, _FIRST_OF_SYSTEMD + count)
    return [socket.socket(fileno=number) for number in numbers]


def ends_with_others(environment: Mapping[str, str] = os.environ, pid: int | None = None) -> bool:
    """Return whether all others end with this process: it is that of a container or a service."""
    own = os.getpid() if pid is None else pid
    return own == 1 or environment.get(_MAIN_PID_OF_SYSTEMD) == str(own)


async def has_kept_address(
    sockets: Sequence[socket.socket],
    host: str,
    port: int,
    environment: Mapping[str, str] = os.environ,
) -> bool:
    """Return whether the sockets of an old process are not where this one was to listen.

    Where systemd opened them, its unit decides on that.
    """
    if not environment.get(_SOCKETS) or _SOCKETS_OF_SYSTEMD in environment:
        return False
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError:
        return True
    hosts = {address[0] for *_, address in found}
    names = [each.getsockname() for each in sockets]
    return any(name[0] not in hosts or port not in (0, name[1]) for name in names)


def wait_for_predecessor(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Say that this process is ready, and wait until the old one has closed its logs.

    Return whether there is an old one. If it ends in any way, its end of the pipe closes, too.
    """
    if not environment.get(_READY):
        return False
    os.write(int(environment[_READY]), _IS_READY)
    go = int(environment.pop(_GO))  # taken out: the number soon belongs to another file
    while os.read(go, 1):
        pass
    os.close(go)
    return True


def confirm_takeover(environment: MutableMapping[str, str] = os.environ) -> None:
    """Say that this process listens, if an old one waits for that."""
    if not environment.get(_READY):
        return
    ready = int(environment.pop(_READY))
    with suppress(OSError):  # the old one was stopped meanwhile
        os.write(ready, _IS_LISTENING)
    os.close(ready)


def report_failure(reason: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Say why this process cannot take over; return whether an old one waits for that."""
    if not environment.get(_READY):
        return False
    try:
        return os.write(int(environment[_READY]), reason.encode()[:_REASON_BYTES]) > 0
    except OSError:  # it has given up
        return False


class Successor:
    """A process that takes over. Owns the pipes to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", ready: int, go: int) -> None:
        self._process = process
        self._ready = ready
        self._go: int | None = go  # closed: it may open the logs

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    async def is_ready(self) -> bool:
        """Wait until it has read its configuration; if it fails, end it and log why."""
        return await self._says(_IS_READY, _READY_SECONDS)

    async def is_listening(self) -> bool:
        """Let it open the logs, and wait until it listens; if it fails, end it and log why.

        There is no time limit: a large log takes its time to read.
        """
        if self._go is not None:
            os.close(self._go)
            self._go = None
        return await self._says(_IS_LISTENING, None)

    def end(self) -> None:
        """Kill it, so that it takes over nothing, and wait until it has closed its files."""
        self._process.kill()
        self._process.wait()
        os.close(self._ready)
        if self._go is not None:
            os.close(self._go)

    async def _says(self, wanted: bytes, seconds: float | None) -> bool:
        said = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                said = await _read(self._ready)
        if said == wanted:
            return True
        self.end()
        _log_failure(said.decode(errors="replace") or "see its output")
        return False


async def start_successor(sockets: Sequence[socket.socket]) -> Successor | None:
    """Start this command again, and return it once it is ready; None if it fails."""
    ready, ready_there = os.pipe()
    go_there, go = os.pipe()
    numbers = [each.fileno() for each in sockets]
    environment = os.environ | {
        _SOCKETS: ",".join(map(str, numbers)),
        _READY: str(ready_there),
        _GO: str(go_there),
    }
    command = sys.argv if os.access(sys.argv[0], os.X_OK) else [sys.executable, *sys.argv]
    try:
        # Not asyncio's: that would end the process together with this one's event loop.
        process = subprocess.Popen(  # noqa: ASYNC220
            command, env=environment, pass_fds=[*numbers, ready_there, go_there]
        )
    except OSError as error:
        os.close(ready)
        os.close(go)
        _log_failure(str(error))
        return None
    finally:
        os.close(ready_there)
        os.close(go_there)
    successor = Successor(process, ready, go)
    try:
        return successor if await successor.is_ready() else None
    except asyncio.CancelledError:  # this process stops, and nothing shall take over
        successor.end()
        raise


async def _read(descriptor: int) -> bytes:
    """Return what a pipe brings next; nothing once its other end is closed."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, _REASON_BYTES)


def _log_failure(reason: str) -> None:
    logger.error("the new process did not start; this one goes on", extra={"reason": reason})
