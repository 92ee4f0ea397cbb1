"""What keeps the processes of `mcpp up --cluster` running."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mcpp_gateway.cluster.local_cluster import LocalCluster, Restarts
from mcpp_gateway.config import ConfigError

PORT = 40_000


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_pauses_between_restarts_grow_to_ten_seconds_and_stay_there() -> None:
    restarts, now, pauses = Restarts(), 0.0, list[float]()
    for _ in range(2000):
        pauses.append(restarts.fail("a", now))
        now += pauses[-1]
        assert restarts.is_due("a", now)
        restarts.start("a", now)
    assert pauses[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]
    assert set(pauses[5:]) == {10.0}


def test_a_process_that_ran_for_a_minute_is_restarted_soon() -> None:
    restarts = Restarts()
    for _ in range(10):
        restarts.fail("a", 0.0)
        restarts.start("a", 0.0)
    assert restarts.fail("a", 59.0) == 10.0
    restarts.start("a", 60.0)
    assert restarts.fail("a", 120.0) == 0.5


def test_a_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LocalCluster(tmp_path / "pod.toml", PORT, 3, os.environ)
    old = cluster._gateways[PORT + 1] = subprocess.Popen(["/bin/sh", "-c", "exit 1"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    watcher = threading.Thread(target=cluster._watch)
    watcher.start()
    try:
        wait_for(lambda: f"cannot start the gateway at port {PORT + 1}" in caplog.text)
        monkeypatch.setattr(sys, "executable", "/bin/true")
        wait_for(lambda: cluster._gateways[PORT + 1] is not old)
    finally:
        cluster._stopping.set()
        watcher.join()
        cluster._gateways[PORT + 1].communicate()


@pytest.mark.parametrize("count", [1, 5])
def test_the_files_of_a_local_cluster_are_used_with_as_many_servers_only(
    tmp_path: Path, count: int
) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"cluster/nats-{number}").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"was kept by 3 NATS servers.*use --cluster 3"):
        LocalCluster(tmp_path / "pod.toml", PORT, count, os.environ)
    LocalCluster(tmp_path / "pod.toml", PORT, 3, os.environ)


@pytest.mark.parametrize("left", [b"", b"half"])
def test_a_password_that_a_crash_has_cut_short_is_replaced_once(
    tmp_path: Path, left: bytes
) -> None:
    pod, folder = tmp_path / "pod.toml", tmp_path / "cluster"
    folder.mkdir()
    (folder / "password").write_bytes(left)
    first = LocalCluster(pod, 8787, 1, {}).environment["MCPP_CLUSTER__SERVERS"]
    assert (folder / "password").read_text() in first
    assert len((folder / "password").read_bytes()) > 40
    assert (folder / "password").stat().st_mode & 0o777 == 0o600
    assert LocalCluster(pod, 8787, 1, {}).environment["MCPP_CLUSTER__SERVERS"] == first
    assert [each.name for each in folder.iterdir()] == ["password"]
