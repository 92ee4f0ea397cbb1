"""Upgrades: a new process takes over the port and the log while participants talk."""

import asyncio
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
import trustme

import mcpp
from mcpp_gateway.config import load, parse
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.handover import ends_with_others, start_successor
from mcpp_gateway.process import serve
from mcpp_gateway.storage.log_store import take_lock
from tests.gateway.durability.workload import MCPP
from tests.gateway.sockets import config_text, token

pytestmark = pytest.mark.anyio
OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
BOUND = 60.0
CONFIG = """
[gateway]
port = {port}
[limits]
messages_per_second = 0
[log]
kind = "file"
path = "data"
[pods.demo.participants.alice]
token = "token-of-alice-0123456789"
capabilities = [{{ kind = "*" }}]
[pods.demo.participants.bob]
token = "token-of-bob-0123456789"
"""
SERVING_TLS = 'port = 0\ntls_cert = "cert.pem"\ntls_key = "key.pem"'
BROKEN_TLS = '[gateway]\ntls_cert = "keys.json"\ntls_key = "keys.json"\nport = '
BROKEN_KEYS = '[issuers.company]\njwks_file = "keys.json"\naudience = "mcpp"\n'
RUN = "import sys; from mcpp.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class UpgradedGateway:
    """A gateway whose process changes. Its log file says which one listens."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        self._log = folder / "stderr"
        self.pid = 0

    async def wait_for_next(self) -> None:
        async with asyncio.timeout(BOUND):
            while (found := self._listening()) == self.pid:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        self.pid = found

    def _listening(self) -> int:
        found = re.findall(r" listening .*pid=(\d+)", self._log.read_text())
        return int(found[-1]) if found else 0

    async def upgrade(self) -> None:
        os.kill(self.pid, signal.SIGUSR2)
        await self.wait_for_next()


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[UpgradedGateway]:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = int(free.getsockname()[1])
    (folder / "gateway.toml").write_text(CONFIG.format(port=port))
    (folder / "run.py").write_text(RUN)
    gateway = UpgradedGateway(folder, port)
    with (folder / "stderr").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "run.py", "gateway", "--config", "gateway.toml", cwd=folder, stderr=log
        )
    reaping = asyncio.create_task(process.wait())  # it ends with the first upgrade
    try:
        await gateway.wait_for_next()
        yield gateway
    finally:
        with suppress(ProcessLookupError):
            os.kill(gateway.pid, signal.SIGTERM)
        await reaping


async def upgrades(folder: Path, count: int) -> list[float]:
    """Upgrade some times while two participants talk; return the longest pauses that they saw."""
    async with asyncio.timeout(10 * BOUND), started(folder) as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/ws?pod=demo"
        acknowledged: list[str] = []
        heard: list[str] = []
        pauses: list[float] = []
        async with (
            mcpp.connect(url, token=token("alice")) as alice,
            mcpp.connect(url, token=token("bob")) as bob,
        ):

            async def talk() -> None:
                last = time.monotonic()
                while True:
                    await alice.send("chat", {"text": str(len(acknowledged))})
                    acknowledged.append(str(len(acknowledged)))
                    now = time.monotonic()
                    pauses.append(now - last)
                    last = now

            async def listen() -> None:
                async for message in bob:
                    if message.kind == "chat":
                        heard.append(message.text)

            tasks = [asyncio.create_task(talk()), asyncio.create_task(listen())]
            longest = []
            for _ in range(count):
                pauses.clear()
                await gateway.upgrade()
                said = len(acknowledged)  # by the old process; the pause ends after this
                while len(acknowledged) < said + 50:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                longest.append(max(pauses))
            tasks[0].cancel()
            while not heard or int(heard[-1]) < len(acknowledged) - 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            tasks[1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert heard[: len(acknowledged)] == acknowledged
        assert heard == sorted(set(heard), key=int)
    return longest


@pytest.mark.rule("O-04")
@pytest.mark.slow
async def test_nothing_is_lost_when_a_new_process_takes_over(tmp_path: Path) -> None:
    assert len(await upgrades(tmp_path, 3)) == 3


@pytest.mark.rule("O-04")
@pytest.mark.torture
async def test_clients_resume_within_a_second_in_twenty_upgrades(tmp_path: Path) -> None:
    longest = await upgrades(tmp_path, 20)
    assert max(longest) < 1.0, longest


@pytest.mark.rule("O-04")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "mistake", "reason"),
    [
        ("[log]", "nonsense", "not valid TOML"),
        ("[log]", BROKEN_KEYS + "[log]", "keys.json: not a JWK set"),
        ("[gateway]\nport = ", BROKEN_TLS, "gateway.tls_cert: cannot load"),
    ],
)
async def test_a_process_that_cannot_start_changes_nothing(
    tmp_path: Path, before: str, mistake: str, reason: str
) -> None:
    async with asyncio.timeout(2 * BOUND), started(tmp_path) as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/ws?pod=demo"

        def lines() -> list[str]:
            found = (tmp_path / "stderr").read_text().splitlines()
            return [line for line in found if " joined " not in line]

        async with mcpp.connect(url, token=token("alice")) as alice:
            known = len(lines())
            (tmp_path / "keys.json").write_text("no keys")
            config = tmp_path / "gateway.toml"
            config.write_text(config.read_text().replace(before, mistake))
            os.kill(gateway.pid, signal.SIGUSR2)
            while "this one goes on" not in (said := lines()[-1]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert reason in said  # in one line
            assert lines().index(said) == known
            await alice.send("chat", "still here")


@pytest.mark.rule("O-04")
@pytest.mark.slow
async def test_the_old_process_opens_its_log_again_if_the_new_one_cannot(tmp_path: Path) -> None:
    async with asyncio.timeout(2 * BOUND), started(tmp_path) as gateway:
        url = f"ws://127.0.0.1:{gateway.port}/ws?pod=demo"
        log, config = tmp_path / "stderr", tmp_path / "gateway.toml"
        async with mcpp.connect(url, token=token("alice")) as alice:
            before = await alice.send("chat", "before")
            good = config.read_text()
            (tmp_path / "file").touch()
            config.write_text(good.replace('"data"', '"file"'))
            os.kill(gateway.pid, signal.SIGUSR2)
            while log.read_text().count(" listening ") < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert set(re.findall(r"pid=(\d+)", log.read_text())) == {str(gateway.pid)}
            (reason,) = re.findall(r"this one goes on reason=(.*)", log.read_text())
            assert reason == '"log.path: cannot use file: File exists"'
            await alice.send("chat", "after")
            kept = [each async for each in alice.history({"kind": "chat"})]
            assert [each.text for each in kept] == ["before", "after"]
            assert kept[0].id == before.id
            config.write_text(good)  # and the next one can
            await gateway.upgrade()
            await alice.send("chat", "upgraded")


@pytest.mark.rule("O-04")
async def test_a_gateway_that_stops_during_an_upgrade_ends_the_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "alive")
    program = tmp_path / "slow.py"
    program.write_text("import time\nwith open('alive', 'w'):\n    time.sleep(60)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    async with asyncio.timeout(BOUND / 2):
        upgrade = asyncio.create_task(start_successor([]))
        await asyncio.sleep(0)
        with await asyncio.to_thread((tmp_path / "alive").open) as alive:
            upgrade.cancel()
            await asyncio.to_thread(alive.read)  # until it has ended


@pytest.mark.rule("O-04")
async def test_signals_do_not_end_a_process_that_does_not_listen_yet(tmp_path: Path) -> None:
    config = tmp_path / "gateway.toml"
    config.write_text(CONFIG.format(port=0))
    ready, ready_there = os.pipe()
    go_there, go = os.pipe()
    pipes = {"MCPP_READY_FD": str(ready_there), "MCPP_GO_FD": str(go_there)}
    command = [str(MCPP), "gateway", "--config", str(config)]
    process = subprocess.Popen(  # noqa: ASYNC220
        command, env=os.environ | pipes, pass_fds=[ready_there, go_there]
    )
    try:
        async with asyncio.timeout(BOUND):
            assert await asyncio.to_thread(os.read, ready, 1) == b"1"
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGUSR2)
            os.close(ready_there)
            os.close(go)
            assert await asyncio.to_thread(os.read, ready, 1) == b"2"
            process.terminate()
            assert await asyncio.to_thread(process.wait) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ready)
        os.close(go_there)


class StoppedWhileDraining(Gateway):
    """A gateway that is asked to stop once more while it hands over."""

    async def drain(self, *, handing_over: bool = False) -> None:
        assert handing_over
        await super().drain(handing_over=True)
        self.on_drain_request()  # as SIGTERM does


@pytest.mark.rule("O-04")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what ends with a process of its own
async def test_a_signal_while_draining_is_not_lost_in_an_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "slow.py"  # ready, but it never listens
    program.write_text(
        "import os, time\nos.write(int(os.environ['MCPP_READY_FD']), b'1')\ntime.sleep(60)"
    )
    monkeypatch.setattr(sys, "argv", [str(program)])
    caplog.set_level("INFO", "mcpp.gateway")
    config = parse(config_text(), {})

    async def upgrade(gateway: Gateway) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)

    async with asyncio.timeout(BOUND / 2):
        await serve(config, lambda: config, upgrade, create=StoppedWhileDraining)
    (pid,) = (vars(each)["pid"] for each in caplog.records if each.message == "handed over")
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, pid, 0)


async def test_what_runs_beside_a_gateway_is_stopped_while_it_still_serves() -> None:
    """The demo's agents say what they leave unfinished before they go."""
    config = parse(config_text(), {})
    served: list[bytes] = []
    ports: list[int] = []

    async def stop(gateway: Gateway) -> None:
        ports.append(gateway.port)
        os.kill(os.getpid(), signal.SIGTERM)

    def stopping() -> None:
        with socket.create_connection(("127.0.0.1", ports[0]), BOUND) as client:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            served.append(client.recv(64))

    async with asyncio.timeout(BOUND):
        await serve(config, lambda: config, stop, stopping=stopping)
    assert served[0].startswith(b"HTTP/1.1 200")


class SlowToListenAgain(Gateway):
    """A gateway that listens once; then it waits, as for a cluster that is out of reach."""

    listened = 0

    async def _listen(
        self, inherited: Sequence[socket.socket], certificate: ssl.SSLContext | None
    ) -> None:
        SlowToListenAgain.listened += 1
        if SlowToListenAgain.listened == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        await super()._listen(inherited, certificate)


@pytest.mark.rule("O-04")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what ends with a process of its own
async def test_a_signal_ends_a_process_that_opens_its_log_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ending.py"  # ready, but it ends before it listens
    program.write_text("import os\nos.write(int(os.environ['MCPP_READY_FD']), b'1')")
    monkeypatch.setattr(sys, "argv", [str(program)])
    text = f'{config_text()}\n[log]\nkind = "file"\npath = "{tmp_path / "data"}"'
    config = parse(text, {})

    async def upgrade(gateway: Gateway) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)

    async with asyncio.timeout(BOUND / 2):
        await serve(config, lambda: config, upgrade, create=SlowToListenAgain)
    assert SlowToListenAgain.listened == 2
    os.close(take_lock(tmp_path / "data"))  # its log is closed


@pytest.mark.rule("O-04")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what ends with a process of its own
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_an_upgrade_with_a_log_in_memory_says_that_it_is_lost(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "next.py"
    program.write_text(
        "import os\nready, go = int(os.environ['MCPP_READY_FD']), int(os.environ['MCPP_GO_FD'])\n"
        "os.write(ready, b'1')\nos.read(go, 1)\nos.write(ready, b'2')"
    )
    monkeypatch.setattr(sys, "argv", [str(program)])
    config = parse(f'{config_text()}\n[log]\nkind = "{kind}"\npath = "{tmp_path / "data"}"', {})

    async def upgrade(gateway: Gateway) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)

    async with asyncio.timeout(BOUND / 2):
        await serve(config, lambda: config, upgrade)
    assert ("the log is in memory" in caplog.text) == (kind == "memory")


@pytest.mark.rule("O-04")
async def test_no_process_is_started_that_would_end_with_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SYSTEMD_EXEC_PID", str(os.getpid()))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "absent")])
    config = parse(config_text(), {})

    async def upgrade(gateway: Gateway) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)
        while "no new process is started" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not gateway.draining
        os.kill(os.getpid(), signal.SIGTERM)

    async with asyncio.timeout(BOUND / 2):
        await serve(config, lambda: config, upgrade)
    assert ends_with_others({}, pid=1)
    assert not ends_with_others({"SYSTEMD_EXEC_PID": "2"}, pid=3)


@pytest.mark.skipif(shutil.which("pgrep") is None, reason="pgrep is not installed")
async def test_the_documented_command_finds_the_gateway_and_not_its_shell(tmp_path: Path) -> None:
    found = re.search(r"\$\((pgrep .*gateway\.toml')\)", OPERATIONS.read_text())
    assert found is not None
    path = tmp_path / "gateway.toml"
    path.write_text(config_text())
    command = f"{MCPP} gateway --config {path} 2>&1 | cat"
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", command, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = b" "
    async with asyncio.timeout(BOUND):
        while (listening := re.search(rb" listening .*pid=(\d+)", line)) is None:
            line = await process.stdout.readline()
            assert line, "it has ended"
        pid = int(listening[1])
        finding = found[1].replace("gateway.toml", str(path))
        finder = await asyncio.create_subprocess_shell(finding, stdout=asyncio.subprocess.PIPE)
        answer, _ = await finder.communicate()
        os.kill(pid, signal.SIGTERM)
        await process.communicate()
    assert list(map(int, answer.split())) == [pid]


@pytest.mark.rule("O-04")
@pytest.mark.parametrize(
    ("host", "port", "systemd", "is_kept"),
    [
        ("127.0.0.1", "{port}", False, False),
        ("127.0.0.1", "0", False, False),
        ("127.0.0.1", "9", False, True),
        ("127.0.0.2", "{port}", False, True),
        ("127.0.0.1", "9", True, False),  # the unit's address counts
    ],
)
async def test_a_new_process_says_that_it_does_not_listen_where_it_was_to(
    host: str,
    port: str,
    systemd: bool,
    is_kept: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inherited = socket.create_server(("127.0.0.1", 0))
    number = inherited.getsockname()[1]
    monkeypatch.setenv("MCPP_LISTEN_FDS", str(inherited.detach()))
    if systemd:
        monkeypatch.setenv("LISTEN_FDS", "1")
    address = f'host = "{host}"\nport = {port.format(port=number)}'
    config = parse(config_text().replace("port = 0", address), {})

    async def started(gateway: Gateway) -> None:
        assert gateway.port == number
        os.kill(os.getpid(), signal.SIGTERM)

    async with asyncio.timeout(BOUND / 2):
        await serve(config, lambda: config, started)
    assert ("still at the old address" in caplog.text) == is_kept


def open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


@pytest.mark.rule("O-04")
async def test_a_command_that_is_gone_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = tmp_path / "mcpp"
    program.write_text("#!/removed/bin/python\n")  # its environment is being replaced
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "gateway"])
    opened = open_files()
    assert await start_successor([]) is None
    assert open_files() == opened
    (record,) = caplog.records
    assert "this one goes on" in record.getMessage()


@pytest.mark.rule("O-04")
async def test_files_that_are_damaged_during_an_upgrade_do_not_end_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old process is gone when the files are read again."""
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG.format(port=0).replace("port = 0", SERVING_TLS))
    ready, ready_there = os.pipe()
    go_there, go = os.pipe()
    monkeypatch.setenv("MCPP_READY_FD", str(ready_there))
    monkeypatch.setenv("MCPP_GO_FD", str(go_there))
    listening = asyncio.Event()

    def damage() -> None:
        assert os.read(ready, 1) == b"1"
        (tmp_path / "cert.pem").write_text("nonsense")
        os.close(go)

    async def started(gateway: Gateway) -> None:
        listening.set()

    thread = threading.Thread(target=damage)
    thread.start()
    async with asyncio.timeout(BOUND):
        serving = asyncio.create_task(serve(load(path, {}), lambda: load(path, {}), started))
        await listening.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving
    thread.join()
    os.close(ready)
    found = [record for record in caplog.records if record.levelname == "ERROR"]
    assert {record.getMessage().partition(";")[0] for record in found} == {
        "configuration not reloaded"
    }
