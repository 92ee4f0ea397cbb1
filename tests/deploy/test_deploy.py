"""What is in `deploy/` works: the proxy with a real nginx, the units of systemd, the cluster."""

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

import mcpp
from mcpp_gateway import config
from mcpp_gateway.cluster.nats_servers import find_program
from mcpp_gateway.edge.server import Gateway
from tests.gateway.ports import free_port
from tests.gateway.sockets import BOUND, config_text, running, token

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin")
SYSTEMD_ANALYZE = shutil.which("systemd-analyze")
ACTIVATE = shutil.which("systemd-socket-activate")
SYSUSERS = shutil.which("systemd-sysusers")
RUNUSER = shutil.which("runuser", path="/usr/sbin:/sbin:/usr/bin")


def other_user() -> str:
    """Return a user that may run this Python, as one in /opt may be run: not root, if possible."""
    places = (Path(sys.executable), Path(sys.executable).resolve(), ROOT)
    folders = [folder for place in places for folder in place.parents]
    is_open = all(folder.stat().st_mode & 0o005 == 0o005 for folder in folders)
    return "nobody" if is_open else "root"


def own_folder(path: Path, user: str) -> Path:
    """Create a folder as StateDirectory does."""
    path.parent.chmod(0o755)
    path.mkdir(mode=0o700)
    shutil.chown(path, user)
    return path


def test_the_sample_configuration_is_valid() -> None:
    text = (DEPLOY / "gateway.toml").read_text()
    parsed = config.parse(text, {"MCPP_TOKEN_ALICE": "x" * 32})
    assert parsed.log.kind == "file"
    assert list(tomllib.loads(text)["pods"]) == list(parsed.pods)


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is not installed")
def test_the_units_exposure_is_at_most_two() -> None:
    command = [str(SYSTEMD_ANALYZE), "security", "--offline=yes", "--threshold=20", "--no-pager"]
    done = subprocess.run(
        [*command, str(DEPLOY / "mcpp-gateway.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout.splitlines()[-1:]
    assert re.search(r"exposure level for mcpp-gateway.service: [01]\.\d", done.stdout)


@pytest.mark.skipif(SYSTEMD_ANALYZE is None, reason="systemd-analyze is not installed")
def test_the_units_are_valid(tmp_path: Path) -> None:
    names = ("mcpp-gateway.service", "mcpp-gateway.socket")
    for name in names:
        text = (DEPLOY / name).read_text()
        (tmp_path / name).write_text(text.replace("/opt/mcpp/bin/mcpp", sys.executable))
    units = [str(tmp_path / name) for name in names]
    command = [str(SYSTEMD_ANALYZE), "verify", "--man=no", "--recursive-errors=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "mcpp-gateway" not in done.stderr, done.stderr


def unit() -> dict[str, str]:
    """Return the settings of the unit."""
    lines = (DEPLOY / "mcpp-gateway.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and line[0] not in "#[")


def test_the_samples_folders_belong_to_the_units_user() -> None:
    state = f"/var/lib/{unit()['StateDirectory']}"
    sample = tomllib.loads((DEPLOY / "gateway.toml").read_text())
    for section in ("log", "tokens"):  # neither in the other's folder
        assert Path(sample[section]["path"]).parent == Path(state)
    user = re.search(r"^u (\S+) .* (/\S+)$", (DEPLOY / "mcpp.sysusers.conf").read_text(), re.M)
    assert user is not None
    assert user.groups() == (unit()["User"], state)
    script = (DEPLOY / "mcpp-as-gateway").read_text()
    program, *arguments = unit()["ExecStart"].split()
    assert f"runuser -u {unit()['User']} -- {program} " in script
    assert unit()["EnvironmentFile"].removeprefix("-") in script
    assert arguments == ["gateway", "--config", "/etc/mcpp/gateway.toml"]


@pytest.mark.skipif(SYSUSERS is None or os.getuid() != 0, reason="needs systemd-sysusers and root")
def test_the_units_user_is_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    path = str(DEPLOY / "mcpp.sysusers.conf")
    subprocess.run([str(SYSUSERS), f"--root={tmp_path}", path], check=True, capture_output=True)
    found = (tmp_path / "etc/passwd").read_text()
    assert re.search(r"^mcpp:x:\d+:\d+:MCPP gateway:/var/lib/mcpp:/usr/sbin/nologin$", found, re.M)


def environment_of(folder: Path, secrets: bytes) -> subprocess.CompletedProcess[str]:
    """Run `mcpp-as-gateway` with a program that prints its environment."""
    (folder / "tokens.env").write_bytes(secrets)
    script = (DEPLOY / "mcpp-as-gateway").read_text()
    program = "import json, os; print(json.dumps(dict(os.environ)))"
    for old, new in {
        "/etc/mcpp/tokens.env": str(folder / "tokens.env"),
        "runuser -u mcpp -- /opt/mcpp/bin/mcpp": f"{sys.executable} -c '{program}'",
    }.items():
        assert old in script
        script = script.replace(old, new)
    (folder / "run").write_text(script)
    command = ["/bin/sh", str(folder / "run")]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_secrets_are_read_as_systemd_reads_them_and_never_run(tmp_path: Path) -> None:
    """The expected values are those that a unit with the same EnvironmentFile gets."""
    hostile = f"a$HOME`touch {tmp_path}/run-1`$(touch {tmp_path}/run-2);touch {tmp_path}/run-3&"
    secrets = f"""
# a comment
; another one: A=1
PLAIN=value
  INDENTED=value
HOSTILE={hostile}
SPACES = no key
DOUBLE="two words # $HOME"
SINGLE='a "b" \\ $c'
BEFORE=  value
AFTER=value\t
EQUALS=a=b==
QUOTED_WITHIN=["nats://a","nats://b"]
EMPTY=
GLOB=*
"""
    refused = environment_of(tmp_path, secrets.encode())
    assert (refused.returncode, "not KEY=VALUE" in refused.stderr) == (2, True)
    secrets = secrets.replace("SPACES = no key\n", "") + "LAST=value"
    done = environment_of(tmp_path, secrets.encode())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: found.get(name) for name in re.findall(r"^ *([A-Z_]+)=", secrets, re.M)} == {
        "PLAIN": "value",
        "INDENTED": "value",
        "HOSTILE": hostile,
        "DOUBLE": "two words # $HOME",
        "SINGLE": 'a "b" \\ $c',
        "BEFORE": "value",
        "AFTER": "value",
        "EQUALS": "a=b==",
        "QUOTED_WITHIN": '["nats://a","nats://b"]',
        "EMPTY": "",
        "GLOB": "*",
        "LAST": "value",
    }
    assert not list(tmp_path.glob("run-*"))


@pytest.mark.parametrize(
    "line", ["A=a\\b", 'A="a\\"b"', "A='a'b'", "A='a", 'A="', "export A=1", "A"]
)
def test_secrets_that_systemd_would_read_otherwise_are_refused(tmp_path: Path, line: str) -> None:
    done = environment_of(tmp_path, f"{line}\n".encode())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("mcpp-as-gateway: ")


@pytest.mark.skipif(RUNUSER is None or os.getuid() != 0, reason="needs runuser and root")
async def test_tokens_are_signed_as_the_units_user_and_admit() -> None:
    """The steps of the unit and of `mcpp-as-gateway`, with another user and other folders."""
    user = other_user()
    with tempfile.TemporaryDirectory(prefix="mcpp-") as name:
        folder = Path(name)
        state, port = own_folder(folder / "state", user), free_port()
        (folder / "tokens.env").write_text(f"MCPP_TOKEN_ALICE={token('alice')}\n")
        (folder / "tokens.env").chmod(0o600)
        text = (DEPLOY / "gateway.toml").read_text().replace("/var/lib/mcpp", str(state))
        (folder / "gateway.toml").write_text(text.replace("8787", str(port)))
        script = (DEPLOY / "mcpp-as-gateway").read_text()
        for old, new in {
            "/etc/mcpp/tokens.env": str(folder / "tokens.env"),
            "/opt/mcpp/bin/mcpp": str(Path(sys.executable).parent / "mcpp"),
            "runuser -u mcpp": f"runuser -u {user}",
        }.items():
            script = script.replace(old, new)
        (folder / "run").write_text(script)

        async def run(*arguments: str) -> asyncio.subprocess.Process:
            command = ["/bin/sh", str(folder / "run"), *arguments]
            command += ["--config", str(folder / "gateway.toml")]
            pipe = asyncio.subprocess.PIPE
            return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)

        async with asyncio.timeout(3 * BOUND):
            checked = await run("gateway", "--check")
            output, errors = await checked.communicate()
            assert checked.returncode == 0, errors.decode()
            assert b"WARNING" not in output
            gateway = await run("gateway")
            try:
                assert gateway.stderr is not None
                while b"listening" not in (line := await gateway.stderr.readline()):
                    assert line
                done = await run("token", "ada", "--pod", "main", "--expires", "1h")
                signed, errors = await done.communicate()
                assert done.returncode == 0, errors.decode()
                url = f"ws://127.0.0.1:{port}/ws?pod=main"
                async with mcpp.connect(url, token=signed.decode().strip()) as ada:
                    await ada.send("chat", "hello")
            finally:
                gateway.terminate()
                await gateway.communicate()
        for path in (state / "tokens").iterdir():
            assert (path.owner(), path.stat().st_mode & 0o077) == (user, 0)


@pytest.mark.skipif(ACTIVATE is None, reason="systemd-socket-activate is not installed")
async def test_the_gateway_serves_a_socket_that_systemd_has_opened(tmp_path: Path) -> None:
    port = free_port()
    # The socket counts, and not the port of the configuration.
    config_file = tmp_path / "gateway.toml"
    config_file.write_text(config_text().replace("port = 0", f"port = {free_port()}"))
    program = str(Path(sys.executable).parent / "mcpp")
    process = await asyncio.create_subprocess_exec(
        str(ACTIVATE),
        f"--listen=127.0.0.1:{port}",
        program,
        "gateway",
        "--config",
        str(config_file),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(6 * BOUND):
            await process.stderr.readline()  # it listens, and starts the gateway when one connects
            url = f"ws://127.0.0.1:{port}/ws?pod=demo"
            async with mcpp.connect(url, token=token("alice")) as alice:
                assert (await alice.send("chat", "hello")).sender == "alice"
            process.terminate()
            await process.communicate()
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@asynccontextmanager
async def proxied(folder: Path, gateway_port: int) -> AsyncIterator[tuple[int, ssl.SSLContext]]:
    """Run nginx with the example's configuration; yield its port and who to trust."""
    assert NGINX is not None
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "authority.pem")
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    port = free_port()
    site = (DEPLOY / "nginx.conf").read_text()
    for old, new in {
        "listen 443 ssl": f"listen 127.0.0.1:{port} ssl",
        "127.0.0.1:8787": f"127.0.0.1:{gateway_port}",
        "/etc/ssl/pods.example.org.pem": str(folder / "cert.pem"),
        "/etc/ssl/private/pods.example.org.key": str(folder / "key.pem"),
    }.items():
        assert old in site
        site = site.replace(old, new)
    paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in paths)
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr;"
        f"events {{}} http {{ access_log off; {temporary} {site} }}"
    )
    process = await asyncio.create_subprocess_exec(
        NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), stderr=asyncio.subprocess.PIPE
    )
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    try:
        async with asyncio.timeout(BOUND):
            while True:
                assert process.returncode is None, await process.stderr.read()  # type: ignore[union-attr]
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.sleep(0.01)
                else:
                    writer.close()
                    break
        yield port, trust
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def status(
    port: int, trust: ssl.SSLContext, path: str, *lines: str, source: str = "127.0.0.1"
) -> int:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trust, server_hostname="localhost", local_addr=(source, 0)
    )
    head = (f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", "")
    writer.write("\r\n".join(head).encode())
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_participants_talk_through_the_proxy_and_metrics_stay_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        asyncio.timeout(3 * BOUND),
        running(config_text()) as gateway,
        proxied(tmp_path, gateway.port) as (port, trust),
    ):
        assert await status(port, trust, "/healthz") == 200
        assert await status(port, trust, "/") == 200
        assert await status(port, trust, "/metrics") == 404
        monkeypatch.setenv("MCPP_CA", str(tmp_path / "authority.pem"))
        url = f"wss://localhost:{port}/ws?pod=demo"
        async with (
            mcpp.connect(url, token=token("alice")) as alice,
            mcpp.connect(url, token=token("bob")) as bob,
        ):
            await alice.send("chat", "x" * 100_000)
            assert (await anext(bob)).text == "x" * 100_000


@pytest.mark.rule("G-04")
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_the_longest_token_gets_through_the_proxy(tmp_path: Path) -> None:
    longest, answers = "x" * 8192, []
    async with (
        asyncio.timeout(3 * BOUND),
        running(config_text()) as gateway,
        proxied(tmp_path, gateway.port) as (port, trust),
    ):
        header = f"Authorization: Bearer {longest}"
        answers.append(await status(port, trust, "/session", header))
        offered = f"Sec-WebSocket-Protocol: mcpp.v0.1, mcpp.bearer.{longest}"
        upgrade = ("Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13")
        answers.append(await status(port, trust, "/ws?pod=demo", *upgrade, offered))
    assert answers == [401, 401], "the gateway's own answer to a token that it does not know"


@pytest.mark.rule("G-88")
@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_a_client_behind_the_proxy_that_guesses_tokens_locks_out_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    sample = tomllib.loads((DEPLOY / "gateway.toml").read_text())["gateway"]
    text = config_text(gateway={"trusted_proxies": sample["trusted_proxies"]})
    async with (
        asyncio.timeout(3 * BOUND),
        running(text) as gateway,
        proxied(tmp_path, gateway.port) as (port, trust),
    ):

        async def guess(source: str, number: int = 0) -> int:
            invented = f"X-Forwarded-For: 198.51.100.{number}"
            return await status(port, trust, "/session", invented, source=source)

        guesses = [asyncio.create_task(guess("127.0.0.2", number)) for number in range(11)]
        for done in asyncio.as_completed(guesses):
            if await done == 429:
                break
        else:
            pytest.fail("no guess was refused")
        for each in guesses:
            each.cancel()
        assert await guess("127.0.0.2") == 429
        assert await guess("127.0.0.3") == 401
    addresses = {vars(each)["address"] for each in caplog.records if "address" in vars(each)}
    assert addresses == {"127.0.0.2", "127.0.0.3"}


def start_server(path: Path, name: str) -> subprocess.Popen[bytes]:
    environment = {"NAME": name, "NATS_PASSWORD": "secret123"}
    command = [find_program(), "-c", str(path)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


@pytest.mark.slow
async def test_the_files_of_the_cluster_start_one(tmp_path: Path) -> None:
    """The sample configurations, with the names of hosts replaced by loopback."""
    ports = [free_port() for _ in range(6)]
    servers = []
    routes = [f"nats://127.0.0.1:{port}" for port in ports[3:]]
    try:
        for number in range(3):
            text = (DEPLOY / "cluster/nats.conf").read_text()
            text = re.sub(r"routes: \[.*\]", f"routes: [{', '.join(routes)}]", text)
            text = text.replace("0.0.0.0:4222", f"127.0.0.1:{ports[number]}")
            text = text.replace("0.0.0.0:6222", f"127.0.0.1:{ports[3 + number]}")
            text = text.replace("http: 127.0.0.1:8222", "")
            text = text.replace("/data", str(tmp_path / f"nats-{number}"))
            (tmp_path / f"{number}.conf").write_text(text)
            servers.append(start_server(tmp_path / f"{number}.conf", f"nats-{number}"))
        addresses = [f"nats://gateway:secret123@127.0.0.1:{port}" for port in ports[:3]]
        environment = {
            "MCPP_TOKEN_ALICE": token("alice"),
            "MCPP_CLUSTER__SERVERS": json.dumps(addresses),
            "MCPP_GATEWAY__PORT": "0",
            "MCPP_LOG__PATH": str(tmp_path / "copies"),
        }
        parsed = config.load(DEPLOY / "cluster/gateway.toml", environment)
        gateway = Gateway(parsed, asyncio.get_running_loop())
        async with asyncio.timeout(60):
            await gateway.listen()
            address = f"ws://127.0.0.1:{gateway.port}/ws"
            async with mcpp.connect(address, token=token("alice")) as alice:
                await alice.send("chat", "hello")
            await gateway.drain()
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(10)
