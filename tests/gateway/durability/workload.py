"""Load on a gateway that is killed: numbered messages of SDK clients, and what each of them saw."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import anyio

import mcpp
from mcpp import Gap, Options
from tests.gateway.ports import free_port
from tests.gateway.sockets import token

MCPP = str(Path(sys.executable).parent / "mcpp")
QUICK = Options(
    keep_trying=True, backoff=lambda attempt: random.uniform(0.01, 0.05), buffer_messages=100_000
)
_START_SECONDS = 30.0


class DurableProcess:
    """A gateway with a file log, started and ended as an operator would, or a power failure."""

    def __init__(self, folder: Path, participants: int, **log: object) -> None:
        self.port = free_port()
        self.folder = folder
        self.names = [f"p{number}" for number in range(participants)]
        lines = [
            "[gateway]",
            f"port = {self.port}",
            "drain_seconds = 2.0",
            "[limits]",
            "messages_per_second = 0",
            "context_messages_per_second = 0",
            "[log]",
            'kind = "file"',
            *(f"{key} = {value!r}".replace("'", '"') for key, value in log.items()),
        ]
        for name in (*self.names, "reader"):
            lines += [
                f"[pods.demo.participants.{name}]",
                f'token = "{token(name)}"',
                'capabilities = [{ kind = "*" }]',
            ]
        (folder / "gateway.toml").write_text("\n".join(lines))
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws?pod=demo"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [MCPP, "gateway", "--config", str(self.folder / "gateway.toml")]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        lines: list[str] = []
        for line in self._process.stderr:
            lines.append(line)
            if "listening" in line:
                break
        else:
            raise AssertionError("the gateway did not start:\n" + "".join(lines))
        # Read on, or a full pipe would stop the gateway.
        os.set_blocking(self._process.stderr.fileno(), False)

    def end(self, with_signal: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(with_signal)
        return self.wait()

    def wait(self) -> int:
        """Wait until the gateway has ended by itself, and return its exit code."""
        process, self._process = self._process, None
        assert process is not None
        code = process.wait(_START_SECONDS)
        assert process.stderr is not None
        process.stderr.close()
        return code

    def close(self) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)


class ServedPod(Protocol):
    """A pod as clients reach it, at one gateway or at several."""

    @property
    def url(self) -> str: ...


@dataclass
class Witness:
    """One client: what it sent and had acknowledged, and what it received, by id."""

    name: str
    acknowledged: list[str] = field(default_factory=list)
    received: list[str] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    echo_seconds: list[float] = field(default_factory=list)
    _echoed: anyio.Event = field(default_factory=anyio.Event)

    def acknowledge(self, id: str) -> None:
        self.acknowledged.append(id)
        self._echoed.set()
        self._echoed = anyio.Event()

    async def next_echo(self) -> None:
        await self._echoed.wait()


async def take_part(gateway: ServedPod, witness: Witness, stop: anyio.Event) -> None:
    """Send numbered messages one after another, and note everything that comes."""
    async with mcpp.connect(
        gateway.url,
        token=token(witness.name),
        own=True,
        on_gap=witness.gaps.append,
        options=QUICK,
    ) as pod:

        async def read() -> None:
            async for message in pod:
                if message.kind == "chat":
                    witness.received.append(message.id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            number = 0
            while not stop.is_set():
                began = anyio.current_time()
                echo = await pod.send("chat", {"n": number, "by": witness.name, "pad": "x" * 200})
                witness.echo_seconds.append(anyio.current_time() - began)
                witness.acknowledge(echo.id)
                number += 1
            await pod.send("chat", {"last": True})
            tasks.cancel_scope.cancel()


async def read_log(gateway: ServedPod) -> list[str]:
    """Return the ids of all chat messages in the log, in its order."""
    ids: list[str] = []
    async with mcpp.connect(
        gateway.url, token=token("reader"), last=999_999_999, options=QUICK
    ) as pod:
        for _ in range(pod.replayed):
            message = await anext(pod)
            if message.kind == "chat":
                ids.append(message.id)
    return ids


@asynccontextmanager
async def load(gateway: ServedPod, names: Sequence[str]) -> AsyncIterator[list[Witness]]:
    """Run all clients beside the block, then let each of them finish what it sends."""
    witnesses = [Witness(name) for name in names]
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for witness in witnesses:
            tasks.start_soon(take_part, gateway, witness, stop)
        try:
            yield witnesses
        finally:
            stop.set()


def check(witnesses: list[Witness], log: list[str]) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and everyone saw one order."""
    assert [id for id, count in Counter(log).items() if count > 1] == []
    positions = {id: position for position, id in enumerate(log)}
    for witness in witnesses:
        lost = [id for id in witness.acknowledged if id not in positions]
        assert lost == [], f"{len(lost)} acknowledged messages of {witness.name} are lost"
        assert witness.gaps == []
        seen = [positions[id] for id in witness.received]
        assert seen == list(range(seen[0], seen[0] + len(seen))), f"{witness.name}: gap or reorder"
