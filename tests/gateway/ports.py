"""Free ports for processes that tests start, and start again.

The system gives the ports of its ephemeral range to outgoing connections and to servers that ask
for port 0: a port found in that range may be taken before the process listens on it, or while the
process restarts. These are outside of that range, and each worker of a test run has its own.
"""

import os
import random
import socket
from typing import Final

_FIRST: Final = 20_000
_PER_WORKER: Final = 3_000  # four workers, below 32,768, where the ephemeral range begins

_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
_next = random.Random(os.urandom(8)).randrange(_PER_WORKER)  # another run may be under way


def free_port() -> int:
    """Return a port that is free, and that no other test of this run was given lately."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return several free ports."""
    return [_take() for _ in range(count)]


def are_free(ports: list[int]) -> bool:
    """Return whether a server could listen on all of these."""
    try:
        for port in ports:
            socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def _take() -> int:
    global _next
    for _ in range(_PER_WORKER):
        port = _FIRST + _worker * _PER_WORKER + _next
        _next = (_next + 1) % _PER_WORKER
        if are_free([port]):
            return port
    raise AssertionError("no port is free")
