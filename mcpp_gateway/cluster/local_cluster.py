"""A cluster on one machine, for `mcpp up --cluster N`: NATS servers and further gateways.

Ports follow from the pod's: its gateways have the next ones, the NATS servers those above by 100
(clients) and 200 (each other). All of them end with the process that started them, even if that is
killed: the gateways see that their standard input is closed, and a guard does so for the servers.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from mcpp_gateway.cluster.nats_servers import NatsServers, check_free
from mcpp_gateway.config import ConfigError

_CLIENTS: Final = 100
_ROUTES: Final = 200
_STOP_SECONDS: Final = 15.0
_MAX_PORT: Final = 65_535


def server_addresses(port: int, count: int) -> list[str]:
    """Return the addresses of the NATS servers of a local cluster."""
    return [f"nats://127.0.0.1:{port + _CLIENTS + number}" for number in range(count)]


class LocalCluster:
    """The processes of a local cluster, but for the first gateway, which is this process."""

    def __init__(self, config: Path, port: int, count: int, environment: Mapping[str, str]) -> None:
        if count not in (1, 3, 5):
            raise ConfigError("--cluster: must be 1, 3 or 5")
        if port + _ROUTES + count > _MAX_PORT:
            raise ConfigError(f"--cluster: needs ports up to {port + _ROUTES + count}")
        ports = [
            port + offset + number for offset in (_CLIENTS, _ROUTES) for number in range(count)
        ]
        self._servers = NatsServers(config.parent / "cluster", count, ports)
        self._config = config
        self.ports = [port + number for number in range(count)]
        servers = ", ".join(f'"{address}"' for address in self._servers.addresses)
        self.environment = {
            **environment,
            "MCPP_LOG__KIND": "jetstream",
            "MCPP_LOG__PATH": "cluster",
            "MCPP_CLUSTER__SERVERS": f"[{servers}]",
            "MCPP_CLUSTER__REPLICAS": str(count),
        }
        self._gateways: list[subprocess.Popen[bytes]] = []

    def urls(self, url: str) -> str:
        """Return the addresses of all gateways, given that of the first."""
        first = f":{self.ports[0]}/"
        return ",".join(url.replace(first, f":{port}/") for port in self.ports)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the servers and the other gateways while the block runs."""
        for port in self.ports:
            check_free("127.0.0.1", port, "a gateway")
        self._servers.start()
        guard = self._start_guard()
        try:
            # Inherited: SIGHUP would end a gateway that has no handler for it yet.
            handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
            for port in self.ports[1:]:
                self._start_gateway(port)
            signal.signal(signal.SIGHUP, handler)
            try:
                yield
            finally:
                self._stop_gateways()
        finally:
            self._servers.stop()
            guard.kill()
            guard.wait()

    def reload(self) -> None:
        """Have the other gateways reload the configuration."""
        for process in self._gateways:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    def _start_guard(self) -> "subprocess.Popen[bytes]":
        """Start a process that ends the servers when this one is killed."""
        pids = [str(each.pid) for each in self._servers.processes if each is not None]
        return subprocess.Popen(
            ["/bin/sh", "-c", f"cat > /dev/null; kill {' '.join(pids)}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _start_gateway(self, port: int) -> None:
        program = "from mcpp_gateway.demo import end_with_parent; end_with_parent(); "
        program += "import sys; from mcpp_gateway.commands import local_gateway; "
        program += f"sys.exit(local_gateway({str(self._config)!r}, {port}))"
        self._gateways.append(
            subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                env=dict(self.environment),
                start_new_session=True,
            )
        )

    def _stop_gateways(self) -> None:
        for process in self._gateways:
            process.terminate()
        for process in self._gateways:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
