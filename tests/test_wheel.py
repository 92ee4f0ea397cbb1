"""The wheel: complete, and usable without its extras."""

import os
import re
import shutil
import subprocess
import sys
import venv
from email import message_from_string
from email.message import Message
from importlib.metadata import files, requires
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

import mcpp
from mcpp.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "mcpp": ROOT / "mcpp",
    "mcpp_gateway": ROOT / "mcpp_gateway",
    "mcpp_agents": ROOT / "mcpp_agents",
}
DISTRIBUTION = "mcpp-pods"
# Import names of what only extras and developers install; `import mcpp` works without them.
EXTRAS = {
    *(
        "a2a",
        "anthropic",
        "httpx",
        "httpx2",
        "hypothesis",
        "jsonschema",
        "jsonschema_rs",
        "mcp",
        "mcp_types",
        "numpy",
        "onnxruntime",
    ),
    *("openai", "prometheus_client", "prompt_toolkit", "psycopg", "psycopg_pool", "pydantic"),
    *("pytest", "starlette"),
    *("tokenizers", "uvicorn", "uvloop", "wordllama"),
}
# Command lines that need an extra, and the one they name when it is not installed.
NEEDS_EXTRA = {
    "a2a join": (["http://127.0.0.1:9"], "a2a"),
    "a2a serve": (["parrot", "--http", "0"], "a2a"),
    "agent": (["--model", "openai:m", "--base-url", "http://127.0.0.1:9/v1"], "agent"),
    "bridge": (["odd", "--", "true"], "bridge"),
    "chat": ([], "chat"),
    "mcp": ([], "mcp"),
    "memory serve": (["--file", "memory.db"], "memory"),
    "memory audit": (["--database", "postgresql://localhost/none"], "postgres"),
    "memory join": (["--model", "openai:m", "--base-url", "http://127.0.0.1:9/v1"], "agent"),
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an interpreter that has the wheel and its base requirements only.

    The requirements are copied from the tests' own environment: tests download nothing.
    """
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=True)
    interpreter = folder / "bin" / "python"
    purelib = Path(ask(interpreter, "import sysconfig; print(sysconfig.get_path('purelib'))")[0])
    for name in needed_by(DISTRIBUTION) - {DISTRIBUTION}:
        copy_distribution(name, purelib)
    run(interpreter, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    run(interpreter, "-m", "pip", "check")
    return interpreter


def metadata_of(folder: Path, **environ: str) -> Message:
    """Build a wheel with these environment variables and return its metadata."""
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    inherited = {name: value for name, value in os.environ.items() if name != "MCPP_PROJECT_URL"}
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=inherited | environ)
    with ZipFile(next(folder.glob("*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(wheel.read(name).decode())


def needed_by(name: str) -> set[str]:
    """Return the names of a distribution and its requirements without extras, transitively."""
    found = {name}
    for requirement in map(Requirement, requires(name) or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found |= needed_by(requirement.name)
    return found


def copy_distribution(name: str, target: Path) -> None:
    for file in files(name) or ():
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), target / file)


def run(*command: str | Path, cwd: Path | None = None) -> None:
    subprocess.run(command, check=True, capture_output=True, cwd=cwd)


def run_command(
    python: Path, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python.with_name("mcpp"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        cwd=folder or python.parent,
    )


def ask(python: Path, code: str) -> list[str]:
    return subprocess.check_output([python, "-c", code], text=True, cwd=python.parent).split()


def test_a_release_has_project_links_and_no_relative_links(tmp_path: Path) -> None:
    url = "https://git.example/team/mcpp"
    metadata = metadata_of(tmp_path, MCPP_PROJECT_URL=f"{url}/")
    links = dict(link.split(", ") for link in metadata.get_all("Project-URL", []))
    assert sorted(links) == ["Changelog", "Homepage", "Issues", "Source"]
    assert links["Changelog"] == f"{url}/blob/v{mcpp.__version__}/CHANGELOG.md"
    targets = re.findall(r"\]\((.*?)\)", str(metadata.get_payload()))
    assert f"{url}/raw/v{mcpp.__version__}/docs/pod.svg" in targets
    assert f"{url}/blob/v{mcpp.__version__}/docs/guide.md" in targets
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_without_the_project_s_address_the_readme_is_as_it_is(tmp_path: Path) -> None:
    metadata = metadata_of(tmp_path)
    assert metadata.get_all("Project-URL") is None
    assert metadata.get_payload() == (ROOT / "README.md").read_text()


def test_the_wheel_holds_every_file_of_the_three_packages(python: Path) -> None:
    expected = {
        f"{name}/{path.relative_to(folder)}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    code = f"from importlib.metadata import files; print(*files('{DISTRIBUTION}'), sep='\\n')"
    assert expected <= set(ask(python, code))


def test_the_packages_are_marked_as_typed(python: Path) -> None:
    code = (
        "from importlib.resources import files\n"
        f"print(*(files(name).joinpath('py.typed').is_file() for name in {list(PACKAGES)}))"
    )
    assert set(ask(python, code)) == {"True"}


def test_every_public_name_works_with_the_base_dependencies_alone(python: Path) -> None:
    code = (
        "import sys, mcpp\n"
        "for name in mcpp.__all__: getattr(mcpp, name)\n"
        "envelope = mcpp.new_envelope('chat', {'text': 'hi'}, sender='a')\n"
        "assert mcpp.decode(mcpp.encode(envelope)) == envelope\n"
        "print(*sys.modules)"
    )
    roots = {name.split(".")[0] for name in ask(python, code)}
    assert roots & EXTRAS == set()


def test_the_console_script_is_installed(python: Path) -> None:
    version = subprocess.check_output([python.with_name("mcpp"), "--version"], text=True)
    assert version == f"mcpp {mcpp.__version__}\n"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_help_of_every_command_works_without_extras(python: Path, command: str) -> None:
    result = run_command(python, command, "--help")
    assert result.stderr == ""
    assert result.stdout.startswith(f"usage: mcpp {command}")
    assert result.returncode == 0


@pytest.mark.parametrize("command", NEEDS_EXTRA)
def test_a_command_without_its_extra_names_it_in_one_line(
    python: Path, command: str, tmp_path: Path
) -> None:
    arguments, extra = NEEDS_EXTRA[command]
    result = run_command(python, *command.split(), *arguments, folder=tmp_path)
    assert f"pip install 'mcpp-pods[{extra}]'" in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.returncode == 1


def test_strategies_without_hypothesis_name_the_extra_to_install(python: Path) -> None:
    command = (python, "-c", "import mcpp.testing.strategies")
    result = subprocess.run(command, capture_output=True, text=True, cwd=python.parent)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: mcpp.testing.strategies needs Hypothesis: "
        "pip install 'mcpp-pods[testing]'"
    )


def test_a_pod_runs_with_the_base_dependencies_alone(
    python: Path, tmp_path: Path, free_tcp_port: int
) -> None:
    port = free_tcp_port
    command = (python.with_name("mcpp"), "up", "--port", str(port))
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as gateway:
        try:
            assert gateway.stdout is not None
            assert any("Stop with Ctrl-C" in line for line in gateway.stdout)
            with pytest.raises(HTTPError) as refused:
                urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5)
            with refused.value as answer:
                assert b"pip install 'mcpp-pods[gateway]'" in answer.read()
        finally:
            gateway.terminate()
    assert gateway.returncode == 0
