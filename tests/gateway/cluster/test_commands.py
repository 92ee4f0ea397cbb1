"""`mcpp up --cluster` and `mcpp cluster` as processes."""

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.durability.workload import MCPP, free_port

pytestmark = pytest.mark.slow


def _are_free(first: int) -> bool:
    try:
        for port in (first + offset + number for offset in (0, 100, 200) for number in range(3)):
            socket.create_server(("127.0.0.1", port)).close()
    except (OSError, OverflowError):
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    port = free_port()
    while not _are_free(port):  # the ports of gateways and NATS servers follow from it
        port = free_port()
    command = [MCPP, "up", "--cluster", "3", "--port", str(port)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "Stop with" in line:
            break
    else:
        raise AssertionError("the cluster did not start")
    yield tmp_path
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    process.stdout.close()


@pytest.mark.rule("G-52")
def test_a_local_cluster_shows_its_gateways_and_leaders(folder: Path) -> None:
    for _ in range(20):
        found = subprocess.run([MCPP, "cluster"], cwd=folder, capture_output=True, text=True)
        gateways = [line for line in found.stdout.splitlines() if "127.0.0.1:" in line]
        if len(gateways) == 3 and found.returncode == 0:
            break
    else:
        pytest.fail(found.stdout + found.stderr)
    sent = subprocess.run([MCPP, "send", "hello"], cwd=folder, capture_output=True, text=True)
    assert sent.returncode == 0, sent.stderr


def test_a_cluster_that_cannot_be_reached_is_reported_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(
        '[log]\nkind = "jetstream"\n[cluster]\n'
        f'servers = ["nats://127.0.0.1:{free_port()}"]\n'
        '[pods.demo.participants.a]\ntoken = "a-token-for-the-cluster"\n'
    )
    found = subprocess.run(
        [MCPP, "cluster", "--config", str(config)], capture_output=True, text=True
    )
    assert found.returncode == 2
    assert "no NATS server answers" in found.stderr.splitlines()[-1]
