"""A cluster on one machine, for `mcpp up --cluster N`: NATS servers and further gateways.

Ports follow from the pod's: its gateways have the next ones, the NATS servers those above by 100
(clients) and 200 (each other). One that exits is started again. All of them end with the process
that started them, even if that is killed: the gateways see that their standard input is closed, and
a guard does so for each server.
"""

import logging
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from mcpp_gateway import config as configuration
from mcpp_gateway.cluster.nats_servers import NatsServers, check_free, server_address
from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.private_files import kept_secret

logger = logging.getLogger("mcpp.gateway")

_FOLDER: Final = "cluster"  # beside the configuration of the pod
_POD: Final = "pod.toml"
_CLIENTS: Final = 100
_ROUTES: Final = 200
_STOP_SECONDS: Final = 15.0
_MAX_PORT: Final = 65_535
_WATCH_SECONDS: Final = 0.25
_PAUSE_SECONDS: Final = 0.5
_MAX_PAUSE_SECONDS: Final = 10.0
_STABLE_SECONDS: Final = 60.0  # a process that has run for so long has no failures behind it


def load(path: Path) -> Config:
    """Load the configuration of a cluster's gateways, or of a pod that runs as a local cluster.

    The latter does not say so itself: `mcpp up --cluster` does. Raises ConfigError.
    """
    config = configuration.load(path)
    if config.log.kind == "jetstream":
        return config
    folder = path.absolute().parent / _FOLDER
    count = _size(folder) if path.name == _POD else 0
    if not count:
        hint = "; `mcpp up --cluster 3` runs it as a cluster" if path.name == _POD else ""
        raise ConfigError(f'{path}: log.kind is "{config.log.kind}", not "jetstream"{hint}')
    password, first = _password(folder), config.gateway.port + _CLIENTS
    servers = [server_address("127.0.0.1", first + number, password) for number in range(count)]
    cluster = msgspec.structs.replace(config.cluster, servers=servers, replicas=count)
    log = msgspec.structs.replace(config.log, kind="jetstream", path=str(folder))
    return msgspec.structs.replace(config, cluster=cluster, log=log)


def _password(folder: Path) -> str:
    """Return the password of the NATS servers: other users of the machine reach their ports."""
    folder.mkdir(mode=0o700, exist_ok=True)
    return kept_secret(folder / "password", secrets.token_urlsafe().encode()).decode()


def _size(folder: Path) -> int:
    """Return how many NATS servers have their files in a folder."""
    return len(list(folder.glob("nats-*")))


def check_ports(port: int, count: int) -> None:
    """Raise ConfigError if a local cluster cannot have this size, or begin at this port."""
    if count not in (1, 3, 5):
        raise ConfigError("--cluster: must be 1, 3 or 5")
    if port + _ROUTES + count > _MAX_PORT:
        raise ConfigError(f"--cluster: needs ports up to {port + _ROUTES + count}")


class Restarts:
    """When processes that exited are started again: after pauses that double, up to a bound."""

    def __init__(self) -> None:
        self._pauses: dict[str, float] = {}  # the last one, by the process's name
        self._due: dict[str, float] = {}
        self._started: dict[str, float] = {}

    def __contains__(self, name: str) -> bool:
        """Return whether a process waits to be started again."""
        return name in self._due

    def fail(self, name: str, now: float) -> float:
        """Take note that a process exited, or could not be started. Return the pause."""
        started = self._started.pop(name, now)
        last = 0.0 if now - started >= _STABLE_SECONDS else self._pauses.get(name, 0.0)
        pause = min(max(2 * last, _PAUSE_SECONDS), _MAX_PAUSE_SECONDS)
        self._pauses[name], self._due[name] = pause, now + pause
        return pause

    def is_due(self, name: str, now: float) -> bool:
        """Return whether the pause of a process is over."""
        return now >= self._due[name]

    def start(self, name: str, now: float) -> None:
        """Take note that a process was started again."""
        del self._due[name]
        self._started[name] = now


class LocalCluster:
    """The processes of a local cluster, but for the first gateway, which is this process."""

    def __init__(self, config: Path, port: int, count: int, environment: Mapping[str, str]) -> None:
        check_ports(port, count)
        folder = config.parent / _FOLDER
        if _size(folder) not in (0, count):
            raise ConfigError(
                f"--cluster: the log in {folder} was kept by {_size(folder)} NATS servers, and "
                f"{count} may lose a part of it: use --cluster {_size(folder)}, or move the folder "
                "away to begin with an empty log"
            )
        ports = [
            port + offset + number for offset in (_CLIENTS, _ROUTES) for number in range(count)
        ]
        self._servers = NatsServers(folder, count, ports, _password(folder))
        self._config = config
        self.ports = [port + number for number in range(count)]
        servers = ", ".join(f'"{address}"' for address in self._servers.addresses)
        self.environment = {
            **environment,
            "MCPP_LOG__KIND": "jetstream",
            "MCPP_LOG__PATH": _FOLDER,
            "MCPP_CLUSTER__SERVERS": f"[{servers}]",
            "MCPP_CLUSTER__REPLICAS": str(count),
        }
        self._gateways: dict[int, subprocess.Popen[bytes]] = {}  # by port
        self._guards: dict[int, subprocess.Popen[bytes]] = {}  # by the number of the server
        self._stopping = threading.Event()

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
        watcher = threading.Thread(target=self._watch, name="cluster", daemon=True)
        try:
            for number in range(len(self.ports)):
                self._start_guard(number)
            # Inherited: SIGHUP would end a gateway that has no handler for it yet.
            handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
            for port in self.ports[1:]:
                self._start_gateway(port)
            signal.signal(signal.SIGHUP, handler)
            watcher.start()
            try:
                yield
            finally:
                self._stopping.set()
                watcher.join()
                self._stop_gateways()
        finally:
            self._servers.stop()
            for number in list(self._guards):
                self._end_guard(number)

    def reload(self) -> None:
        """Have the other gateways reload the configuration."""
        for process in list(self._gateways.values()):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    def _watch(self) -> None:
        """Start processes again that exit, until the cluster stops."""
        restarts = Restarts()
        while not self._stopping.wait(_WATCH_SECONDS):
            for name, code, start in list(self._exited()):
                now = time.monotonic()
                if name not in restarts:
                    logger.error("%s exited (%d); restarting it", name, code)
                    restarts.fail(name, now)
                elif restarts.is_due(name, now):
                    try:
                        start()
                        restarts.start(name, now)
                    except OSError as error:  # such as no memory, or no space
                        logger.warning("cannot start %s: %s", name, error)
                        restarts.fail(name, now)

    def _exited(self) -> Iterator[tuple[str, int, Callable[[], None]]]:
        """Yield the processes that have exited: a name, the exit code, how to start it again."""
        for number, server in enumerate(self._servers.processes):
            if server is not None and server.poll() is not None:
                yield f"NATS server {number + 1}", server.returncode, partial(self._restart, number)
        for port, gateway in self._gateways.items():
            if gateway.poll() is not None:
                start = partial(self._start_gateway, port)
                yield f"the gateway at port {port}", gateway.returncode, start

    def _restart(self, number: int) -> None:
        self._end_guard(number)  # another process may get the number of the old one
        self._servers.start_one(number)
        try:
            self._start_guard(number)
        except OSError:
            server = self._servers.processes[number]
            assert server is not None
            server.kill()  # it would outlive this process
            raise

    def _start_guard(self, number: int) -> None:
        """Start a process that ends a server when this one is killed."""
        server = self._servers.processes[number]
        assert server is not None
        self._guards[number] = subprocess.Popen(
            ["/bin/sh", "-c", f"cat > /dev/null; kill {server.pid}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _end_guard(self, number: int) -> None:
        guard = self._guards.pop(number, None)
        if guard is not None:
            guard.kill()
            guard.wait()

    def _start_gateway(self, port: int) -> None:
        program = "from mcpp_gateway.demo import end_with_parent; end_with_parent(); "
        program += "import sys; from mcpp_gateway.commands import local_gateway; "
        program += f"sys.exit(local_gateway({str(self._config)!r}, {port}))"
        self._gateways[port] = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            env=dict(self.environment),
            start_new_session=True,
        )

    def _stop_gateways(self) -> None:
        for process in self._gateways.values():
            process.terminate()
        for process in self._gateways.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
