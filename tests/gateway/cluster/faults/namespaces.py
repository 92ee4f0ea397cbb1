"""A cluster in which every process has a network namespace of its own, to be partitioned.

A route to nowhere in one namespace makes its packets to another one vanish: in both namespaces it
is a partition of the pair, in one of them a one-way loss.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from mcpp_gateway.cluster.nats_servers import NatsServers
from tests.gateway.cluster.faults.processes import ClusterProcesses
from tests.gateway.ports import free_ports

_NETWORK = "10.199.77"
_numbers = count()


def are_available() -> bool:
    """Whether this process may create network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"mcpp-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Namespaces:
    """Namespaces on one bridge: 0 to 2 for gateways, 3 to 5 for NATS servers."""

    def __init__(self, size: int = 6) -> None:
        self.size = size
        self._prefix = f"mc{os.getpid() % 100_000}x{next(_numbers)}"

    def name(self, number: int) -> str:
        return f"{self._prefix}n{number}"

    def host(self, number: int) -> str:
        return f"{_NETWORK}.{number + 10}"

    @contextmanager
    def existing(self) -> Iterator[None]:
        bridge = f"{self._prefix}b"
        try:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("addr", "add", f"{_NETWORK}.1/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
            for number in range(self.size):
                self._add(number, bridge)
            yield
        finally:
            for number in range(self.size):
                subprocess.run(
                    ["ip", "netns", "del", self.name(number)], capture_output=True, check=False
                )
            subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)

    def cut(self, one: int, other: int) -> None:
        """Make packets from one to the other vanish."""
        _ip("-n", self.name(one), "route", "add", "blackhole", f"{self.host(other)}/32")

    def join(self, one: int, other: int) -> None:
        """Undo a cut."""
        _ip("-n", self.name(one), "route", "del", "blackhole", f"{self.host(other)}/32")

    def _add(self, number: int, bridge: str) -> None:
        name, outer, inner = self.name(number), f"{self._prefix}v{number}", "eth0"
        _ip("netns", "add", name)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name)
        _ip("link", "set", outer, "master", bridge, "up")
        _ip("-n", name, "addr", "add", f"{self.host(number)}/24", "dev", inner)
        _ip("-n", name, "link", "set", inner, "up")
        _ip("-n", name, "link", "set", "lo", "up")


class NamespacedServers(NatsServers):
    """NATS servers, each in its namespace."""

    def __init__(self, folder: Path, servers: int, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        super().__init__(folder, servers, free_ports(2 * servers))

    def host(self, number: int) -> str:
        return self._namespaces.host(3 + number)

    def command(self, number: int, config: Path) -> list[str]:
        name = self._namespaces.name(3 + number)
        return ["ip", "netns", "exec", name, *super().command(number, config)]


class NamespacedCluster(ClusterProcesses):
    """A cluster whose processes are each in a namespace."""

    def __init__(self, folder: Path, participants: int, namespaces: Namespaces) -> None:
        self._namespaces = namespaces
        super().__init__(folder, participants)

    def host(self, number: int) -> str:
        return self._namespaces.host(number)

    def new_servers(self, folder: Path, count: int) -> NatsServers:
        return NamespacedServers(folder, count, self._namespaces)

    def command(self, number: int) -> list[str]:
        name = self._namespaces.name(number)
        return ["ip", "netns", "exec", name, *super().command(number)]
