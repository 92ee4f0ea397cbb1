"""The files of the local pod: how they are made, changed and found."""

import os
import signal
import stat
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcpp.client import local_pod
from mcpp.errors import LocalPodError, PodNotFoundError


@pytest.fixture
def pod(tmp_path: Path) -> local_pod.LocalPod:
    return local_pod.create(tmp_path, pod="demo", port=9000)


def test_a_new_pod_is_for_its_owner_alone(pod: local_pod.LocalPod) -> None:
    pod.add("alice")
    assert stat.S_IMODE(pod.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(pod.path.stat().st_mode) == 0o600


def test_making_a_pod_twice_keeps_the_first(tmp_path: Path, pod: local_pod.LocalPod) -> None:
    token = pod.add("alice")
    assert local_pod.create(tmp_path, pod="other").token("alice") == token


def test_a_pod_is_found_from_the_directories_below_it(
    tmp_path: Path, pod: local_pod.LocalPod
) -> None:
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert local_pod.find(below) == pod


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "ws://127.0.0.1:8787/ws?pod=local"),
        ("0.0.0.0", "ws://127.0.0.1:8787/ws?pod=local"),
        ("::", "ws://[::1]:8787/ws?pod=local"),
    ],
)
def test_the_url_is_one_that_can_be_reached(tmp_path: Path, host: str, url: str) -> None:
    assert local_pod.create(tmp_path, host=host).url == url


def test_with_a_certificate_the_url_is_a_secure_one(pod: local_pod.LocalPod) -> None:
    pod.path.write_text(pod.path.read_text().replace("port", 'tls_cert = "cert.pem"\nport'))
    assert pod.url == "wss://127.0.0.1:9000/ws?pod=demo"


def test_a_port_that_cannot_be_changed_safely_is_an_error(pod: local_pod.LocalPod) -> None:
    pod.set_port(9001)
    assert pod.url == "ws://127.0.0.1:9001/ws?pod=demo"
    pod.path.write_text(pod.path.read_text().replace("port = 9001\n", ""))
    with pytest.raises(LocalPodError, match=r"edit .*pod\.toml"):
        pod.set_port(9002)


def test_a_token_is_a_long_random_text_of_its_own(pod: local_pod.LocalPod) -> None:
    tokens = {pod.add(name) for name in ("a", "b", "c")}
    assert len(tokens) == 3
    assert all(len(token) == 43 for token in tokens)


def test_adding_a_participant_again_changes_nothing(pod: local_pod.LocalPod) -> None:
    token = pod.add("alice", [{"kind": "chat"}])
    before = pod.path.read_text()
    assert pod.add("alice") == token
    assert pod.path.read_text() == before


def test_what_is_added_reads_back_as_a_gateway_would_read_it(pod: local_pod.LocalPod) -> None:
    rule = {"kind": "mcp/*", "payload": {"params": {"name": ["read_*", '!"odd"'], "n": 1}}}
    token = pod.add("alice@home.org", [rule], multiple=True)
    document = tomllib.loads(pod.path.read_text())
    assert document["pods"]["demo"]["participants"] == {
        "alice@home.org": {"token": token, "capabilities": [rule], "multiple": True}
    }
    assert document["gateway"] == {"host": "127.0.0.1", "port": 9000}


def test_comments_are_preserved_when_participants_change(pod: local_pod.LocalPod) -> None:
    pod.path.write_text(pod.path.read_text() + "\n# mine\n[limits]\nburst = 10  # small\n")
    before = pod.path.read_text()
    pod.add("alice")
    pod.add("b.c")
    assert before.rstrip() in pod.path.read_text()
    assert pod.remove("alice")
    assert pod.participants == ["b.c"]
    assert pod.remove("b.c")
    assert "# mine\n[limits]\nburst = 10  # small" in pod.path.read_text()
    assert not pod.remove("b.c")


def test_a_participant_without_its_own_table_is_not_removed(pod: local_pod.LocalPod) -> None:
    inline = '[pods.demo.participants]\nalice = { token = "0123456789abcdef" }\n'
    pod.path.write_text(inline)
    with pytest.raises(LocalPodError, match="edit"):
        pod.remove("alice")
    assert pod.path.read_text() == inline


@pytest.mark.parametrize("name", ["", "two words", "system:gateway", "x" * 65])
def test_a_name_that_the_protocol_forbids_is_refused(pod: local_pod.LocalPod, name: str) -> None:
    with pytest.raises(LocalPodError):
        pod.add(name)


def test_writers_at_the_same_time_lose_nothing(pod: local_pod.LocalPod) -> None:
    names = [f"agent-{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        tokens = dict(zip(names, pool.map(pod.add, names), strict=True))
    assert {name: pod.token(name) for name in names} == tokens
    assert sorted(path.name for path in pod.folder.iterdir()) == ["lock", "pod.toml"]


def test_a_running_gateway_reloads_for_a_new_participant(pod: local_pod.LocalPod) -> None:
    reloaded = threading.Event()
    before = signal.signal(signal.SIGHUP, lambda *_: reloaded.set())
    try:
        with pod.running():
            pod.add("alice")
            assert reloaded.wait(5)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_starting_gateway_survives_a_reload(pod: local_pod.LocalPod) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with pod.running():
            pod.add("alice")  # were it not expected, this process would end here
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_pid_of_a_dead_gateway_is_not_signalled(pod: local_pod.LocalPod) -> None:
    # Were it signalled, this process would end here.
    (pod.folder / "gateway.pid").write_text(f"{os.getpid()}\n")
    assert pod.reload() is False


def test_a_second_gateway_for_the_same_pod_is_refused(pod: local_pod.LocalPod) -> None:
    with pod.running(), pytest.raises(LocalPodError, match="already running"), pod.running():
        pass
    assert pod.reload() is False


def test_the_environment_comes_before_the_local_pod(
    pod: local_pod.LocalPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pod.folder.parent)
    environ = {"MCPP_URL": "wss://pods.example/ws?pod=x", "MCPP_TOKEN": "secret"}
    assert local_pod.locate("me", environ) == local_pod.Address(
        "wss://pods.example/ws?pod=x", "secret"
    )
    assert pod.participants == []


def test_an_agent_that_the_local_pod_does_not_know_is_added(
    pod: local_pod.LocalPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pod.folder.parent)
    address = local_pod.locate("me", {})
    assert address == local_pod.Address(pod.url, pod.token("me") or "")
    assert local_pod.locate("me", {}) == local_pod.Address(pod.url, address.token)


def test_without_any_pod_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PodNotFoundError, match="mcpp up"):
        local_pod.locate("me", {})
    with pytest.raises(PodNotFoundError, match="MCPP_TOKEN is not set, and there is no other"):
        local_pod.locate("me", {"MCPP_URL": "ws://localhost/ws"})
