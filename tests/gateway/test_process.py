"""The gateway as a process: signals, files and exit codes."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from mcpp.client import local_pod
from mcpp.client.local_pod import LocalPod
from mcpp_gateway.commands import gateway
from tests.gateway.ports import free_port
from tests.gateway.sockets import (
    BOUND,
    chat,
    config_text,
    id_of,
    receive,
    receive_until,
    token,
    upgrade_request,
)

pytestmark = pytest.mark.anyio

MCPP = str(Path(sys.executable).parent / "mcpp")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Process:
    """A running command and its output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.output = ""

    async def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the output matches a pattern, on either stream."""
        assert self.process.stdout is not None
        async with asyncio.timeout(BOUND):
            while not (match := re.search(pattern, self.output)):
                line = await self.process.stdout.readline()
                assert line, f"exited without output {pattern!r}: {self.output}"
                self.output += line.decode()
        return match

    async def exit_code(self) -> int:
        async with asyncio.timeout(BOUND):
            return await self.process.wait()


@asynccontextmanager
async def started(*arguments: str, folder: Path, **environ: str) -> AsyncIterator[Process]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MCPP_")}
    process = await asyncio.create_subprocess_exec(
        MCPP,
        *arguments,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=inherited | environ,
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [MCPP, *arguments], cwd=folder, capture_output=True, text=True, timeout=BOUND, check=False
    )


@asynccontextmanager
async def joined(url: str, secret: str) -> AsyncIterator[tuple[ClientConnection, Any]]:
    headers = {"Authorization": f"Bearer {secret}"}
    async with connect(url, additional_headers=headers, close_timeout=1) as client:
        yield client, (await receive(client))["payload"]


async def closed_with(client: ClientConnection) -> int | None:
    async with asyncio.timeout(BOUND):
        await client.wait_closed()
    return client.close_code


async def port_of(process: Process) -> int:
    return int((await process.wait_for(r"listening .*port=(\d+)"))[1])


async def test_sigterm_drains_and_exits_with_0(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(config_text())
    async with started("gateway", "--config", "gateway.toml", folder=tmp_path) as process:
        url = f"ws://127.0.0.1:{await port_of(process)}/ws"
        async with joined(url, token("alice")) as (alice, _):
            process.process.send_signal(signal.SIGTERM)
            assert await closed_with(alice) == 4000
        assert await process.exit_code() == 0


async def test_a_client_that_does_not_go_cannot_hold_up_the_drain(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(config_text(gateway={"drain_seconds": 0.2}))
    async with started("gateway", "--config", "gateway.toml", folder=tmp_path) as process:
        port = await port_of(process)
        with socket.create_connection(("127.0.0.1", port)) as silent:
            head = (
                "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade"
            )
            key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13"
            bearer = f"Authorization: Bearer {token('alice')}"
            silent.sendall(f"{head}\r\n{key}\r\n{bearer}\r\n\r\n".encode())
            silent.settimeout(BOUND)
            assert silent.recv(12) == b"HTTP/1.1 101"
            process.process.send_signal(signal.SIGINT)
            assert await process.exit_code() == 0


async def test_sighup_reloads_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(config_text())
    async with started("gateway", "--config", "gateway.toml", folder=tmp_path) as process:
        url = f"ws://127.0.0.1:{await port_of(process)}/ws"
        async with joined(url, token("alice")) as (alice, _), joined(url, token("bob")) as (bob, _):
            file.write_text("[limits]\nburst = no")
            process.process.send_signal(signal.SIGHUP)
            await process.wait_for("configuration not reloaded")
            text = chat("alice")
            await alice.send(text)
            await receive_until(alice, id_of(text))
            file.write_text(config_text({"bob": "", "dave": ""}))
            process.process.send_signal(signal.SIGHUP)
            assert await closed_with(alice) == 4501
            async with joined(url, token("dave")) as (_, welcome):
                assert welcome["you"]["id"] == "dave"
            assert (await receive_until(bob, id_of(text)))[-1]["kind"] == "chat"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[limits]\nburts = 1\n", r"gateway\.toml:2: limits\.burts"),
        ("[gateway]\nport = 'x'\n", r"gateway\.toml:2: gateway\.port"),
        ("[[[", "not valid TOML"),
        (
            "[gateway]\ntls_cert = 'no.pem'\ntls_key = 'no.pem'\n",
            "tls_cert: cannot load 'no.pem'",
        ),
        ("[gateway]\nhost = '256.1.1.1'\n", "gateway.host"),
        ("[gateway]\nhost = 'a..b'\n", "gateway.host"),
        ("[gateway]\nallowed_origins = ['http://[::1']\n", "gateway.allowed_origins"),
        ("[gateway]\nhost = 'a\\u0000b'\n".replace("'", '"'), "gateway.host"),
        (
            "[gateway]\ntls_cert = 'x\\u0000'\ntls_key = 'y'\n".replace("'", '"'),
            "gateway.tls_cert",
        ),
        ("[limits]\nmessages_per_second = 1e-320\n", "limits.messages_per_second"),
        ("[limits]\noutbox_bytes = 99999999999999999999\n", "limits.outbox_bytes"),
        ('[limits]\n"bu\\nrts" = 1\n', "limits"),
    ],
)
def test_a_bad_configuration_is_one_readable_line_and_exit_code_2(
    tmp_path: Path, text: str, expected: str
) -> None:
    pod = f'\n[pods.demo.participants.alice]\ntoken = "{token("alice")}"\n'
    (tmp_path / "gateway.toml").write_text(text + pod)
    ended = run("gateway", "--config", "gateway.toml", folder=tmp_path)
    assert ended.returncode == 2
    assert re.match(f"mcpp gateway: .*{expected}", ended.stderr)
    assert ended.stderr.count("\n") == 1


def test_a_port_in_use_is_one_readable_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        (tmp_path / "gateway.toml").write_text(config_text())
        ended = run("gateway", "--config", "gateway.toml", "--port", str(port), folder=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == (
        f"mcpp gateway: gateway.port: {port} is in use; stop the other process or choose a --port\n"
    )


@pytest.mark.parametrize("port", ["-1", "99999", "http"])
def test_a_port_that_is_none_is_reported_by_its_option(
    port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        gateway(["--config", "gateway.toml", f"--port={port}"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"mcpp gateway: error: argument --port: must be 0 to 65535, not {port!r}"


def test_a_folder_that_cannot_be_made_is_one_readable_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / ".mcpp").touch()
    ended = run("up", folder=tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ".mcpp cannot be created" in ended.stderr


@pytest.mark.parametrize("port", ["0", "-1", "65536", "http"])
def test_a_local_pod_needs_a_fixed_port(tmp_path: Path, port: str) -> None:
    result = run("up", f"--port={port}", folder=tmp_path)
    assert result.returncode == 2
    assert "--port" in result.stderr.splitlines()[-1]
    assert not (tmp_path / ".mcpp").exists()


async def test_up_makes_a_pod_that_only_its_owner_can_read(tmp_path: Path) -> None:
    async with started("up", "--port", str(free_port()), folder=tmp_path) as process:
        url = (await process.wait_for(r"agents +(ws://\S+)"))[1]
        assert stat.S_IMODE((tmp_path / ".mcpp").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / ".mcpp" / "pod.toml").stat().st_mode) == 0o600
        again = run("up", folder=tmp_path)
        assert again.returncode == 2
        assert "already running" in again.stderr
        secret = run("token", "helper", folder=tmp_path).stdout.strip()
        async with joined(url, secret) as (helper, welcome):
            assert welcome["you"]["id"] == "helper"
            assert run("token", "helper", "--revoke", folder=tmp_path).returncode == 0
            assert await closed_with(helper) == 4501
        process.process.send_signal(signal.SIGINT)
        assert await process.exit_code() == 0


async def test_a_new_participant_s_token_is_valid_as_soon_as_it_is_returned(tmp_path: Path) -> None:
    async with started("up", "--port", str(free_port()), folder=tmp_path) as process:
        url = (await process.wait_for(r"agents +(ws://\S+)"))[1]
        pod = LocalPod(tmp_path / ".mcpp")
        for number in range(20):
            name = f"agent-{number}"
            async with joined(url, await asyncio.to_thread(pod.add, name)) as (_, welcome):
                assert welcome["you"]["id"] == name
        removed = pod.token("agent-0")
        assert await asyncio.to_thread(pod.remove, "agent-0")
        with pytest.raises(InvalidStatus, match="401"):
            async with joined(url, removed or ""):
                pass


async def test_adding_a_participant_does_not_wait_for_a_file_that_the_gateway_rejects(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_pod, "RELOAD_SECONDS", 0.1)
    async with started("up", "--port", str(free_port()), folder=tmp_path) as process:
        await process.wait_for("Stop with Ctrl-C")
        pod = LocalPod(tmp_path / ".mcpp")
        pod.path.write_text(f"{pod.path.read_text()}\n[limits]\nburts = 1\n")
        assert await asyncio.to_thread(pod.add, "alice") == pod.token("alice")
        assert "the gateway has not loaded" in caplog.text
        await process.wait_for("configuration not reloaded")


async def test_a_pod_moves_to_another_port_and_agents_find_it_there(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        assert run("up", "--port", str(taken), folder=tmp_path).returncode == 2
    port, later = free_port(), free_port()
    async with started("up", "--port", str(port), folder=tmp_path) as process:
        assert f":{port}/" in (await process.wait_for(r"agents +(ws://\S+)"))[1]
    async with started("up", folder=tmp_path, MCPP_GATEWAY__PORT=str(later)) as process:
        assert await port_of(process) == later
        assert f":{later}/" in (await process.wait_for(r"agents +(ws://\S+)"))[1]
    assert f":{later}/" in LocalPod(tmp_path / ".mcpp").url


async def test_a_pod_that_was_killed_comes_up_again_with_its_tokens_and_its_log(
    tmp_path: Path,
) -> None:
    epochs = []
    secret = ""
    for _ in range(2):
        async with started("up", "--port", str(free_port()), folder=tmp_path) as process:
            url = (await process.wait_for(r"agents +(ws://\S+)"))[1]
            secret = secret or run("token", "helper", folder=tmp_path).stdout.strip()
            async with joined(url, secret) as (_, welcome):
                epochs.append(welcome["pod"]["epoch"])
                process.process.kill()
                await process.exit_code()
    assert len(set(epochs)) == 1


def test_a_token_without_a_pod_fails_with_a_hint(tmp_path: Path) -> None:
    ended = run("token", "helper", folder=tmp_path)
    assert ended.returncode == 2
    assert "mcpp up" in ended.stderr


async def test_logs_can_be_json_lines(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(config_text(gateway={"log_format": "json"}))
    async with started("gateway", "--config", "gateway.toml", folder=tmp_path) as process:
        line = (await process.wait_for(r'\{.*"listening".*\}'))[0]
        assert json.loads(line)["event"] == "listening"


def test_a_gateway_without_a_pod_fails(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text("")
    ended = run("gateway", "--config", "gateway.toml", folder=tmp_path)
    assert ended.returncode == 2
    assert "no pods; add" in ended.stderr


@pytest.mark.rule("O-03")
async def test_limits_are_reloaded_with_a_signal(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(config_text(max_message_bytes=1024))
    async with started("gateway", "--config", "gateway.toml", folder=tmp_path) as process:
        url = f"ws://127.0.0.1:{await port_of(process)}/ws"
        file.write_text(config_text(max_message_bytes=100_000))
        process.process.send_signal(signal.SIGHUP)
        await process.wait_for("configuration reloaded")
        async with joined(url, token("alice")) as (alice, welcome):
            assert welcome["limits"]["max_message_bytes"] == 100_000
            await alice.send(chat("alice", "x" * 3000))
            await alice.send(chat("alice", "x" * 200_000))
            assert await closed_with(alice) == 1009


async def test_a_draining_gateway_tells_those_who_ask(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(config_text(gateway={"drain_seconds": 2.0}))
    async with started("gateway", "--config", "gateway.toml", folder=tmp_path) as process:
        port = await port_of(process)
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall(upgrade_request(port, f"Authorization: Bearer {token('alice')}"))
            silent.settimeout(BOUND)
            assert silent.recv(12) == b"HTTP/1.1 101"
            process.process.send_signal(signal.SIGTERM)
            await process.wait_for("draining")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(BOUND):
                assert b" 503 " in await reader.readline()
            writer.close()
        assert await process.exit_code() == 0


@pytest.mark.parametrize(
    ("command", "entry"),
    [
        ("gateway", "mcpp_gateway.commands:gateway"),
        ("up", "mcpp_gateway.commands:up"),
        ("token", "mcpp_gateway.tokens.commands:main"),
        ("admin", "mcpp_gateway.admin.commands:main"),
    ],
)
def test_help_needs_no_extras(command: str, entry: str) -> None:
    module, _, name = entry.partition(":")
    extras = ["prometheus_client", "uvloop", "hypothesis", "mcp", "jwt", "cryptography"]
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({extras}))\n"
        f"from {module} import {name}\n"
        f"{name}(['--help'])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"usage: mcpp {command} ")
