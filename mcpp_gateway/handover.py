"""Upgrades without a gap: a new process takes over the port and the logs of an old one.

On SIGUSR2 the old process starts the same command again, with its listening sockets as inherited
descriptors. The new one reads its configuration, says that it is ready, and waits. The old one then
stops accepting, closes its clients with 4000 and its logs, and ends. Meanwhile connections wait in
the sockets' queues; the new process accepts them as soon as it has opened the logs.

Sockets may also come from systemd (`LISTEN_FDS`), which keeps them across a restart.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Final

logger = logging.getLogger("mcpp.gateway")

_SOCKETS: Final = "MCPP_LISTEN_FDS"
_READY: Final = "MCPP_READY_FD"
_GO: Final = "MCPP_GO_FD"
_FIRST_OF_SYSTEMD: Final = 3
_READY_SECONDS: Final = 30.0
_IS_READY: Final = b"1"
_REASON_BYTES: Final = 2048  # less than a pipe holds


def inherited_sockets(environment: Mapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the listening sockets that another process has left to this one, or systemd."""
    numbers: Sequence[int] = ()
    if environment.get(_SOCKETS):
        numbers = [int(part) for part in environment[_SOCKETS].split(",")]
    elif environment.get("LISTEN_PID") == str(os.getpid()):
        count = int(environment.get("LISTEN_FDS", "0"))
        numbers = range(_FIRST_OF_SYSTEMD, _FIRST_OF_SYSTEMD + count)
    return [socket.socket(fileno=number) for number in numbers]


def wait_for_predecessor(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Say that this process is ready, and wait until the old one has closed its logs.

    Return whether there is an old one. If it ends in any way, its end of the pipe closes, too.
    """
    if not environment.get(_READY):
        return False
    # Taken out: the numbers soon belong to other files.
    ready, go = int(environment.pop(_READY)), int(environment.pop(_GO))
    os.write(ready, _IS_READY)
    os.close(ready)
    while os.read(go, 1):
        pass
    os.close(go)
    return True


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

    def __init__(self, process: "subprocess.Popen[bytes]", go: int) -> None:
        self._process = process
        self._go = go

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def release(self) -> None:
        """Let it open the logs."""
        os.close(self._go)


async def start_successor(sockets: Sequence[socket.socket]) -> Successor | None:
    """Start this command again, and return it once it is ready; None if it fails.

    Then one line in the log says why.
    """
    ready, ready_there = os.pipe()
    go_there, go = os.pipe()
    numbers = [each.fileno() for each in sockets]
    environment = os.environ | {
        _SOCKETS: ",".join(map(str, numbers)),
        _READY: str(ready_there),
        _GO: str(go_there),
    }
    command = sys.argv if os.access(sys.argv[0], os.X_OK) else [sys.executable, *sys.argv]
    # Not asyncio's: that would end the process together with this one's event loop.
    left = [*numbers, ready_there, go_there]
    process = subprocess.Popen(command, env=environment, pass_fds=left)  # noqa: ASYNC220
    os.close(ready_there)
    os.close(go_there)
    try:
        async with asyncio.timeout(_READY_SECONDS):
            said = await asyncio.to_thread(os.read, ready, _REASON_BYTES)
    except TimeoutError:
        said = b""
    finally:
        os.close(ready)
    if said == _IS_READY:
        return Successor(process, go)
    os.close(go)
    process.kill()
    await asyncio.to_thread(process.wait)
    reason = said.decode(errors="replace") or "see its output"
    logger.error("the new process did not start; this one goes on", extra={"reason": reason})
    return None
