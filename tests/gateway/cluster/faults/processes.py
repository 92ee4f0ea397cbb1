"""A real cluster for fault tests: gateways and NATS servers as processes, ended in every way."""

import os
import signal
import subprocess
from pathlib import Path

import anyio

from mcpp_gateway.cluster.nats_servers import NatsServers
from tests.gateway.durability.workload import MCPP
from tests.gateway.ports import free_ports
from tests.gateway.sockets import token

_END_SECONDS = 30.0


class ClusterProcesses:
    """Three gateways and three NATS servers on this machine."""

    def __init__(self, folder: Path, participants: int, *, servers: int = 3) -> None:
        self._folder = folder
        self.names = [f"p{number}" for number in range(participants)]
        self.nats = self.new_servers(folder / "nats", servers)
        self.ports = free_ports(3)
        self.gateways: list[subprocess.Popen[bytes] | None] = [None] * 3
        (folder / "gateway.toml").write_text(self._config(servers))

    @property
    def url(self) -> str:
        return ",".join(self.urls)

    @property
    def urls(self) -> list[str]:
        return [
            f"ws://{self.host(number)}:{port}/ws?pod=demo" for number, port in enumerate(self.ports)
        ]

    def host(self, number: int) -> str:
        return "127.0.0.1"

    def new_servers(self, folder: Path, count: int) -> NatsServers:
        return NatsServers(folder, count, free_ports(2 * count))

    def command(self, number: int) -> list[str]:
        config = str(self._folder / "gateway.toml")
        port = str(self.ports[number])
        return [MCPP, "gateway", "--config", config, "--host", self.host(number), "--port", port]

    def environment(self, number: int) -> dict[str, str] | None:
        return None  # that of this process

    def start(self) -> None:
        self.nats.start()
        for number in range(len(self.gateways)):
            self.start_gateway(number)

    def start_gateway(self, number: int) -> None:
        with (self._folder / f"gateway-{number}.log").open("ab") as log:
            self.gateways[number] = subprocess.Popen(
                self.command(number), stdout=log, stderr=log, env=self.environment(number)
            )

    def end_gateway(self, number: int, how: signal.Signals) -> None:
        _end(self.gateways[number], how)
        self.gateways[number] = None

    def end_server(self, number: int, how: signal.Signals) -> None:
        _end(self.nats.processes[number], how)
        self.nats.processes[number] = None

    def signal_gateway(self, number: int, what: signal.Signals) -> None:
        process = self.gateways[number]
        assert process is not None
        process.send_signal(what)

    def signal_server(self, number: int, what: signal.Signals) -> None:
        process = self.nats.processes[number]
        assert process is not None
        process.send_signal(what)

    async def leader(self) -> int | None:
        """Return the number of the gateway that leads, by the metrics."""
        for number, port in enumerate(self.ports):
            if self.gateways[number] is not None and await _leads(self.host(number), port):
                return number
        return None

    async def wait_for_leader(self) -> int:
        with anyio.fail_after(30):
            while (found := await self.leader()) is None:  # noqa: ASYNC110  (another process)
                await anyio.sleep(0.02)
        return found

    async def wait_for_gateway(self, number: int) -> None:
        """Wait until a gateway accepts connections. On a busy machine a start takes 20 s."""
        with anyio.fail_after(120):
            while True:
                try:
                    stream = await anyio.connect_tcp(self.host(number), self.ports[number])
                except OSError:
                    await anyio.sleep(0.02)
                else:
                    return await stream.aclose()

    def close(self) -> None:
        """End all processes. Fails if a gateway had ended by itself."""
        ended = [
            (self._folder / f"gateway-{number}.log").read_text()
            for number, process in enumerate(self.gateways)
            if process is not None and process.poll() is not None
        ]
        for process in self.gateways:
            if process is not None:
                process.kill()
                process.wait(_END_SECONDS)
        for process in self.nats.processes:
            if process is not None:
                process.send_signal(signal.SIGCONT)
        self.nats.stop()
        assert not ended, ended

    def _config(self, servers: int) -> str:
        addresses = ", ".join(f'"{each}"' for each in self.nats.addresses)
        lines = [
            "[gateway]",
            "drain_seconds = 2.0",
            'metrics_token = "metrics-of-the-cluster"',
            "[limits]",
            "messages_per_second = 0",
            "context_messages_per_second = 0",
            "history_messages = 1_000_000",
            "history_bytes = 1_000_000_000",
            "[log]",
            'kind = "jetstream"',
            "[cluster]",
            f"servers = [{addresses}]",
            f"replicas = {servers}",
        ]
        for name in (*self.names, "reader"):
            lines += [
                f"[pods.demo.participants.{name}]",
                f'token = "{token(name)}"',
                'capabilities = [{ kind = "*" }]',
            ]
        return "\n".join(lines)


def _end(process: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
    assert process is not None
    os.kill(process.pid, how)
    process.wait(_END_SECONDS)


async def _leads(host: str, port: int) -> bool:
    """Ask one gateway's metrics; one that does not answer does not lead."""
    request = (
        f"GET /metrics HTTP/1.1\r\nHost: {host}:{port}\r\n"
        "Authorization: Bearer metrics-of-the-cluster\r\n\r\n"
    ).encode()
    text = b""
    with anyio.move_on_after(1):
        try:
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(request)
                async for part in stream:
                    text += part
        except OSError:
            return False
    return b"mcpp_cluster_leads 1.0" in text
