"""A gateway that is killed and started again, and the clients that come back."""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp import Options, connect
from tests.agents.processes import MCPP

pytestmark = pytest.mark.anyio


def token(number: int) -> str:
    return f"attack-token-{number:08d}"


@contextmanager
def running(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a gateway, and kill it at the end."""
    process = subprocess.Popen(
        [MCPP, "gateway", "--config", str(config)], stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def write_config(folder: Path, port: int, participants: int) -> Path:
    lines = ["[gateway]", f"port = {port}", "[log]", 'kind = "file"', f'path = "{folder}/log"']
    for number in range(participants):
        lines += [f"[pods.demo.participants.p{number}]", f'token = "{token(number)}"']
        lines += ['capabilities = [{ kind = "*" }]']
    path = folder / "gateway.toml"
    path.write_text("\n".join(lines))
    return path


async def until(condition: Callable[[], bool], seconds: float) -> None:
    with anyio.fail_after(seconds):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.02)


def processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.rule("P-12")
@pytest.mark.parametrize(
    ("clients", "seconds"),
    [(50, 20.0), pytest.param(1000, 3.0, marks=[pytest.mark.torture, pytest.mark.timeout(600)])],
)
async def test_clients_come_back_soon_after_a_kill(
    clients: int, seconds: float, tmp_path: Path, free_tcp_port: int
) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * clients + 100:
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    config = write_config(tmp_path, free_tcp_port, clients)
    pods: list[mcpp.Pod] = []

    async def participate(number: int) -> None:
        url = f"ws://127.0.0.1:{free_tcp_port}/ws?pod=demo"
        options = Options(keep_trying=True)
        async with connect(url, token=token(number), options=options) as pod:
            pods.append(pod)
            async for _ in pod:
                pass

    def are_back() -> bool:
        return all(pod.connected for pod in pods)

    async with anyio.create_task_group() as tasks:
        with running(config):
            for number in range(clients):
                tasks.start_soon(participate, number)
            await until(lambda: len(pods) == clients and are_back(), 300)
        await until(lambda: not any(pod.connected for pod in pods), 20)
        began, spent = time.monotonic(), processor_seconds()
        with running(config):
            await until(are_back, 60)
            took, spent = time.monotonic() - began, processor_seconds() - spent
            tasks.cancel_scope.cancel()
    # The time is a goal for a machine with nothing else to do; the work is one for any machine.
    assert spent <= 0.5 + 0.006 * clients, f"{spent:.2f} s of processor time"
    if os.getloadavg()[0] < 2:
        assert took <= seconds, f"{took:.2f} s"
