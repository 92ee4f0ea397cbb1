"""A gateway in a process of its own, attack programs in others, and an honest client that measures.

with gateway(config) as victim, attack("costly_filters", victim, participants=20):
    assert p99(asyncio.run(measure(victim, seconds=3))) < 0.025
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.gateway.harness import text as envelope_text
from tests.gateway.sockets import RawClient, raw_frame, token

HONEST = ("alice", "bob")
STARTED_SECONDS = 20.0


@dataclass(frozen=True)
class Victim:
    """A running gateway."""

    pid: int
    port: int

    def resident_bytes(self) -> int:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found is not None
        return int(found[1]) * 1024

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def configuration(attackers: int, *, more: Mapping[str, str] | None = None, **limits: float) -> str:
    """Return a configuration with the honest participants and p0, p1, …"""
    lines = ["[gateway]", "port = 0", "ping_seconds = 3600", "[limits]"]
    lines += [f"{name} = {value}" for name, value in limits.items()]
    for name in [*HONEST, *(f"p{number}" for number in range(attackers))]:
        extra = (more or {}).get(name, "")
        lines += [f"[pods.demo.participants.{name}]", f'token = "{token(name)}"', extra]
        if "capabilities" not in extra:
            lines.append('capabilities = [{ kind = "*" }]')
    return "\n".join(lines)


@contextmanager
def gateway(text: str, *, stderr: int | None = None, preexec: Any = None) -> Iterator[Victim]:
    """Run a gateway with a configuration."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "config.toml", Path(folder) / "log.txt"
        path.write_text(text)
        command = [str(Path(sys.executable).parent / "mcpp"), "gateway", "--config", str(path)]
        with log.open("wb") as file:
            process = subprocess.Popen(command, stderr=file, preexec_fn=preexec)
        try:
            deadline = time.monotonic() + STARTED_SECONDS
            while (found := re.search(r"listening .*port=(\d+)", log.read_text())) is None:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.01)
            yield Victim(process.pid, int(found[1]))
        finally:
            process.kill()
            process.wait()


@contextmanager
def attack(program: str, victim: Victim, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run an attack program of `attackers` until the block ends; it has begun when this returns."""
    command = [sys.executable, "-m", "tests.attacks.gateway.attackers", program, str(victim.port)]
    process = subprocess.Popen(
        [*command, json.dumps(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        if process.stdout.readline() != b"started\n":
            raise AssertionError(process.stderr.read().decode())
        yield process
    finally:
        process.kill()
        process.communicate()


async def connect(port: int, name: str, query: str = "") -> RawClient:
    """Join as a participant; the welcome is still unread."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(
        f"GET /ws?{query} HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"Authorization: Bearer {token(name)}\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 101"):
        writer.close()
        raise ConnectionError(head.partition(b"\r\n")[0].decode())
    return RawClient(reader, writer)


def envelope(sender: str, id: str, kind: str = "chat", payload: Any = None, **more: Any) -> bytes:
    """Return an envelope as a masked frame."""
    return raw_frame(0x81, envelope_text(id, sender, kind, payload, **more))


async def measure(victim: Victim, *, seconds: float, pause_seconds: float = 0.008) -> list[float]:
    """Return the latencies of an honest client's echoes, of one envelope at a time."""
    # It receives its own only, or its own speed would be measured.
    client = await connect(victim.port, "alice", "filter=" + quote('{"from":"alice"}'))
    latencies: list[float] = []
    deadline = time.monotonic() + seconds
    number = 0
    while time.monotonic() < deadline:
        id = f"honest-{number}"
        number += 1
        began = time.monotonic()
        client.writer.write(envelope("alice", id))
        while f'"id":"{id}"'.encode() not in (await client.frame())[1]:
            pass
        latencies.append(time.monotonic() - began)
        await asyncio.sleep(pause_seconds)
    client.writer.close()
    return latencies


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of some values."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def p99_of(victim: Victim, *, seconds: float) -> float:
    """Measure an honest client for some seconds and return its 99th percentile."""
    return percentile(asyncio.run(measure(victim, seconds=seconds)), 0.99)
