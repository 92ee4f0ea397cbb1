"""The image and the compose files: linted, valid, and their steps work without Docker."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import trustme

from mcpp.cli.main import main
from tests.gateway.ports import free_port
from tests.gateway.sockets import BOUND, config_text, running

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
COMPOSE = [DEPLOY / "compose.yaml", DEPLOY / "cluster" / "compose.yaml"]
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def instructions(name: str) -> list[str]:
    """Return the arguments of the Dockerfile's instructions of one name."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)


def test_the_image_is_built_from_what_it_copies(tmp_path: Path) -> None:
    *copies, from_build = instructions("COPY")
    assert from_build.startswith("--from=build")
    for copy in copies:
        *sources, target = copy.split()
        for source in sources:
            path = ROOT / source
            if path.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, tmp_path / target, ignore=ignored)
            else:
                shutil.copy(path, tmp_path / target)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    assert list(tmp_path.glob("dist/mcpp_pods-*.whl"))


def test_the_image_does_not_run_as_root_and_keeps_its_data_in_a_volume() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert instructions("VOLUME") == ["/var/lib/mcpp"]
    assert len(instructions("FROM")) == 2
    sample = tomllib.loads((DEPLOY / "gateway.toml").read_text())
    for section in ("log", "tokens"):
        assert Path(sample[section]["path"]).parent == Path("/var/lib/mcpp")


@pytest.mark.rule("G-43")
@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "tls"])
async def test_the_images_health_check_tells_whether_the_gateway_admits_participants(
    has_tls: bool, tmp_path: Path
) -> None:
    (check,) = instructions("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    file = tmp_path / "gateway.toml"
    command = [str(BIN / command[0]), *(str(file) if "/" in each else each for each in command[1:])]
    settings: dict[str, str] = {}
    if has_tls:
        issued = trustme.CA().issue_cert("pods.example.org")
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "pem")
        settings = dict.fromkeys(("tls_cert", "tls_key"), str(tmp_path / "pem"))

    async def health() -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await process.communicate()
        return process.returncode, output.decode().strip()

    text = config_text(gateway={"host": "0.0.0.0", **settings}).replace(
        "port = 0", f"port = {free_port()}"
    )
    file.write_text(text.replace("0.0.0.0", "::1"))  # the image's command overrides the host
    async with asyncio.timeout(2 * BOUND):
        async with running(text) as gateway:
            assert await health() == (0, "ok")
            gateway.draining = True
            assert await health() == (1, "mcpp gateway: the gateway answers 503: draining")
        code, message = await health()
        assert (code, "no healthy gateway at 127.0.0.1:" in message) == (1, True)
        file.write_text(config_text())
        code, message = await health()
        assert (code, "gateway.port: 0 is any port" in message) == (2, True)


def test_the_images_command_is_one_that_mcpp_has(capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = instructions("ENTRYPOINT")
    command, name, *options = json.loads(entry)
    assert command == "mcpp"
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in options if option.startswith("--"))


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "hadolint"), "--failure-threshold", "info", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not (BIN / "hadolint").exists(), reason="hadolint is not installed")
def test_the_dockerfile_is_accepted_by_hadolint(tmp_path: Path) -> None:
    done = lint(DEPLOY / "Dockerfile")
    assert done.returncode == 0, done.stdout
    worse = (DEPLOY / "Dockerfile").read_text().replace("USER 10001:10001", "USER root")
    (tmp_path / "Dockerfile").write_text(worse)
    assert "DL3002" in lint(tmp_path / "Dockerfile").stdout


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("useradd") is None, reason="needs root")
def test_the_images_user_is_made_with_its_folder(tmp_path: Path) -> None:
    """The commands of the second stage, below another root."""
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group"):
        (tmp_path / "etc" / name).touch()
    command = instructions("RUN")[-1]
    for old, new in {
        "groupadd ": f"groupadd --prefix {tmp_path} ",
        "useradd ": f"useradd --prefix {tmp_path} ",
        "--owner=mcpp --group=mcpp": "--owner=10001 --group=10001",
        "0700 /var/lib/mcpp": f"0700 {tmp_path}/var/lib/mcpp",
    }.items():
        assert old in command
        command = command.replace(old, new)
    subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True)
    data = (tmp_path / "var/lib/mcpp").stat()
    assert (data.st_uid, data.st_gid, data.st_mode & 0o777) == (10001, 10001, 0o700)
    assert re.search(r"^mcpp:\S:10001:10001:", (tmp_path / "etc/passwd").read_text(), re.MULTILINE)


def valid(path: Path) -> subprocess.CompletedProcess[str]:
    """Check a compose file with the schema of the Compose Specification."""
    program = str(BIN / "check-jsonschema")
    command = [program, "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.parent.name)
def test_the_compose_files_are_valid(path: Path, tmp_path: Path) -> None:
    done = valid(path)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(path.read_text().replace("read_only: true", "read_only: [true]"))
    assert valid(wrong).returncode == 1


def test_the_compose_file_of_the_cluster_names_what_exists() -> None:
    text = (DEPLOY / "cluster/compose.yaml").read_text()
    for name in re.findall(r"\./([\w.]+):", text):
        assert (DEPLOY / "cluster" / name).is_file()
    assert "ARG EXTRAS" in (DEPLOY / "Dockerfile").read_text()
