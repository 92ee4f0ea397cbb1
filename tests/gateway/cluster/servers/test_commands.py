"""`mcpp up --cluster` and `mcpp cluster` as processes."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcpp_gateway.cluster import commands
from mcpp_gateway.config import parse
from mcpp_gateway.core.cluster.messages import Beat, PodBeat
from tests.gateway.cluster.faults.processes import ClusterProcesses
from tests.gateway.durability.workload import MCPP
from tests.gateway.ports import are_free, free_port

pytestmark = pytest.mark.slow


def _ports(first: int) -> list[int]:
    """Return the ports of gateways and NATS servers, which follow from the first."""
    return [first + offset + number for offset in (0, 100, 200) for number in range(3)]


def _first_port() -> int:
    first = free_port()
    while not are_free(_ports(first)):
        first = free_port()
    return first


def _up(folder: Path, port: int) -> subprocess.Popen[str]:
    command = [MCPP, "up", "--cluster", "3", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "Stop with" in line:
            return process
    raise AssertionError("the cluster did not start")


def _wait_until_free(port: int) -> None:
    deadline = time.monotonic() + 30
    while not are_free(_ports(port)):
        assert time.monotonic() < deadline, "a process of the cluster goes on"
        time.sleep(0.05)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    process = _up(tmp_path, _first_port())
    yield tmp_path
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert process.stdout is not None
    process.stdout.close()


def _pid_of(marker: str) -> int | None:
    """Return the process whose command line contains a text."""
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in each.read_bytes():
                return int(each.parent.name)
        except OSError:  # it has ended meanwhile
            continue
    return None


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_a_process_of_a_local_cluster_that_exits_is_started_again(tmp_path: Path) -> None:
    port = _first_port()
    process = _up(tmp_path, port)
    files = tmp_path / ".mcpp"
    for marker in (f"{files}/cluster/nats-2/nats.conf", f"'{files}/pod.toml', {port + 2}"):
        old = _pid_of(marker)
        assert old is not None
        os.kill(old, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while _pid_of(marker) in (None, old):
            assert time.monotonic() < deadline, f"not started again: {marker}"
            time.sleep(0.05)
    process.kill()  # the new ones end with it, too
    process.communicate(timeout=30)
    _wait_until_free(port)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_all_processes_of_a_local_cluster_end_with_it(tmp_path: Path, how: signal.Signals) -> None:
    port = _first_port()
    process = _up(tmp_path, port)
    process.send_signal(how)
    process.wait(30)
    _wait_until_free(port)
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.parametrize("offset", [1, 101, 202])
def test_a_port_in_use_ends_a_local_cluster_and_is_named(tmp_path: Path, offset: int) -> None:
    port = _first_port()
    with socket.create_server(("127.0.0.1", port + offset)):
        command = [MCPP, "up", "--cluster", "3", "--port", str(port)]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert str(port + offset) in found.stderr
    _wait_until_free(port)


@pytest.mark.rule("G-52")
def test_a_local_cluster_shows_its_gateways_and_leaders(folder: Path) -> None:
    for _ in range(20):
        found = subprocess.run([MCPP, "cluster"], cwd=folder, capture_output=True, text=True)
        shown = found.stdout.partition("\n\n")[0]
        gateways = [line for line in shown.splitlines() if "127.0.0.1:" in line]
        if len(gateways) == 3 and found.returncode == 0:
            break
    else:
        pytest.fail(found.stdout + found.stderr)
    first = min(int(line.split()[1].rpartition(":")[2]) for line in gateways)
    for port in range(first + 100, first + 103):  # other users of the machine reach them, too
        with socket.create_connection(("127.0.0.1", port)) as nats:
            assert b'"auth_required":true' in nats.recv(4096)
    for path in (".mcpp/cluster/password", ".mcpp/cluster/nats-1/nats.conf"):
        assert (folder / path).stat().st_mode & 0o077 == 0
    sent = subprocess.run([MCPP, "send", "hello"], cwd=folder, capture_output=True, text=True)
    assert sent.returncode == 0, sent.stderr
    command = [MCPP, "log", "export", "--config", ".mcpp/pod.toml", "--pod", "local"]
    found = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert "hello" in found.stdout, found.stderr
    command = [MCPP, "token", "ada", "--expires", "1h"]
    signed = subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.strip()
    for line in gateways:
        url = f"ws://{line.split()[1]}/ws"
        command = [MCPP, "send", "hi", "--url", url, "--token", signed]
        for _ in range(20):  # the gateways learn of the folder of tokens by a signal
            sent = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if sent.returncode == 0:
                break
        assert sent.returncode == 0, sent.stderr


def test_a_nats_server_that_is_away_is_named(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path, 1)
    command = [MCPP, "cluster", "--config", str(tmp_path / "gateway.toml")]

    def wait_for(text: str, code: int) -> str:
        for _ in range(40):
            found = subprocess.run(command, capture_output=True, text=True)
            if text in found.stdout and found.returncode == code:
                return found.stdout
        raise AssertionError(found.stdout + found.stderr)

    try:
        cluster.start()
        for number in range(3):  # one of them leads the stream
            wait_for("3 of 3", 0)
            cluster.end_server(number, signal.SIGKILL)
            shown = wait_for("2 of 3", 1)
            assert shown.endswith(f"NATS servers that are away: mcpp-{number + 1}\n")
            cluster.nats.start_one(number)
    finally:
        cluster.close()


def test_a_cluster_that_cannot_be_reached_is_reported_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(
        '[log]\nkind = "jetstream"\n[cluster]\n'
        f'servers = ["nats://gateway:password@127.0.0.1:{free_port()}"]\n'
        '[pods.demo.participants.a]\ntoken = "a-token-for-the-cluster"\n'
    )
    found = subprocess.run(
        [MCPP, "cluster", "--config", str(config)], capture_output=True, text=True
    )
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert "no NATS server answers" in line
    assert "password" not in line


def test_a_port_that_is_refused_is_not_saved(tmp_path: Path) -> None:
    command = [MCPP, "up", "--cluster", "3", "--port", "65500"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (found.returncode, "needs ports up to" in found.stderr) == (2, True)
    assert "65500" not in (tmp_path / ".mcpp" / "pod.toml").read_text()


def test_a_local_pod_that_is_no_cluster_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / ".mcpp").mkdir()
    text = "[pods.local.participants.a]\ntoken = 'a-long-token-1'\n"
    (tmp_path / ".mcpp/pod.toml").write_text(text)
    found = subprocess.run([MCPP, "cluster"], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 2
    assert "mcpp up --cluster 3" in found.stderr


def test_of_two_gateways_that_say_so_the_one_with_the_higher_term_leads(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The other one was replaced, and does not know it yet."""
    text = '[log]\nkind = "jetstream"\n[cluster]\nservers = ["nats://a"]\n'
    config = parse(text + '[pods."a.b".participants.a]\ntoken = "a-long-token-1"\n', {})
    beats = [
        Beat("g1", {"a%b": PodBeat(7, 90)}, address="1.1.1.1:1"),
        Beat("g2", {"a%b": PodBeat(6, 80)}, address="2.2.2.2:2"),
    ]
    copies = {"a.b": commands.Copies(3, [])}
    assert commands._print(config, commands._Overview(beats, copies)) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("a.b")]
    assert line.split()[1:] == ["1.1.1.1:1", "7", "90", "3", "of", "3"]
    assert commands._print(config, commands._Overview(beats, {})) == 1  # copies are unknown
