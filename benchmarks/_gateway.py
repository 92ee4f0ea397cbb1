"""A gateway in a separate process, and clients light enough not to be the bottleneck."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from mcpp_agents.bench.wire import GatewayWire

# A realistic set: twenty patterns, one of which reads the payload.
CAPABILITIES = [
    *(f'{{ kind = "x{i}/*" }}' for i in range(18)),
    '{ kind = "mcp/request:*", payload = { params = { name = "read_*" } } }',
    '{ kind = "chat" }',
]


def token(index: int) -> str:
    return f"benchmark-token-{index:08d}"


@dataclass(frozen=True)
class GatewayProcess:
    """A running gateway and its resource usage."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pid)

    def main_cpu_seconds(self) -> float:
        """Return the CPU time of the thread that serves the clients."""
        return cpu_seconds(self.pid, self.pid)

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        match = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert match is not None
        return int(match[1]) * 1024


def cpu_seconds(pid: int, thread: int | None = None) -> float:
    """Return the CPU time that a process, or one thread of it, has used."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    fields = Path(path).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def gateway(
    participants: int,
    limits: Mapping[str, float],
    core: int = 0,
    log: Path | None = None,
    more: Sequence[str] = (),
) -> Iterator[GatewayProcess]:
    """Run a gateway for participants p0, p1, …, pinned to one core if there are several.

    `log` is the folder of its log; without one the log is in memory, unless `more` lines of the
    configuration say otherwise.
    """
    # The clients do not answer pings.
    settings = ["[gateway]", "port = 0", "ping_seconds = 3600"]
    lines = [*settings, "[limits]", *(f"{k} = {v}" for k, v in limits.items())]
    if log is not None:
        lines += ["[log]", 'kind = "file"', f'path = "{log}"']
    lines += more
    for index in range(participants):
        lines += [
            f"[pods.bench.participants.p{index}]",
            f'token = "{token(index)}"',
            f"capabilities = [{', '.join(CAPABILITIES)}]",
        ]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("\n".join(lines))
        file.flush()
        command = [str(Path(sys.executable).parent / "mcpp"), "gateway", "--config", file.name]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stderr is not None
            match, said = None, ""
            while match is None:  # a cluster that is not ready yet is reported first
                line = process.stderr.readline()
                said += line
                assert line, said
                match = re.search(r"listening .*port=(\d+)", line)
            if (os.cpu_count() or 1) > 1:
                os.sched_setaffinity(process.pid, {core})
            # The log is not read any further.
            process.stderr.close()
            yield GatewayProcess(process.pid, int(match[1]))
        finally:
            process.terminate()
            process.wait()


def wire_to(running: GatewayProcess, receivers: int, senders: int, **options: Any) -> GatewayWire:
    """Return what the clients of a load need to talk to a gateway."""
    return GatewayWire(
        f"127.0.0.1:{running.port}",
        "/ws",
        [token(index) for index in range(receivers)],
        senders=[f"p{index}" for index in range(senders)],
        **options,
    )


class LoadClient(asyncio.Protocol):
    """A participant that joins and discards what it receives."""

    def __init__(self, greeting: bytes) -> None:
        self.greeting = greeting
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.greeting)

    def data_received(self, data: bytes) -> None:
        if not self.joined.done():
            assert data.startswith(b"HTTP/1.1 101"), data
            self.joined.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.joined.done():
            self.joined.set_exception(error or ConnectionError("closed before joining"))


async def join(running: GatewayProcess, indices: range) -> list[LoadClient]:
    """Join all participants concurrently and return their clients."""
    loop = asyncio.get_running_loop()
    wire = wire_to(running, indices.stop, senders=0)

    async def one(index: int) -> LoadClient:
        greeting = wire.greeting(index)
        made = loop.create_connection(lambda: LoadClient(greeting), "127.0.0.1", running.port)
        _, client = await made
        await client.joined
        return client

    return list(await asyncio.gather(*map(one, indices)))
