"""The command line: listing, loading and suggesting commands, and exit codes."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mcpp import __version__
from mcpp.cli import main
from mcpp.client import local_pod
from mcpp.protocol import schema

MCPP = Path(sys.executable).with_name("mcpp")
AddCommand = Callable[[str, str], None]
IMPORTING = """
from mcpp.cli.extras import importing

def main(argv):
    with importing("other"):
        import absent
"""


@pytest.fixture
def add_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddCommand:
    """Install a distribution that adds one command."""

    def add(name: str, source: str) -> None:
        metadata = tmp_path / "acme-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        module = f"acme_{tmp_path.name}"
        (metadata / "entry_points.txt").write_text(f"[mcpp.commands]\n{name} = {module}:main\n")
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    return add


def test_help_lists_every_command_and_imports_none(
    add_command: AddCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command("acme", "raise SystemError('imported')")
    with pytest.raises(SystemExit) as end:
        main.main(["--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert set(main.COMMANDS) | {"acme"} <= set(shown.split())


def test_without_arguments_it_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 0
    assert "commands:" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--version"])
    assert capsys.readouterr().out == f"mcpp {__version__}\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gatway", "mcpp: there is no command 'gatway'; did you mean 'gateway'?\n"),
        ("xyzzy", "mcpp: there is no command 'xyzzy'; `mcpp --help` lists them\n"),
    ],
)
def test_an_unknown_command_is_a_usage_error_with_a_suggestion(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main([name]) == 2
    assert capsys.readouterr().err == message


def test_a_command_gets_its_arguments_as_they_are(
    add_command: AddCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command("acme", "def main(argv):\n    print(argv)\n    return 7\n")
    assert main.main(["acme", "NAME", "--", "ls", "--help"]) == 7
    assert capsys.readouterr().out == "['NAME', '--', 'ls', '--help']\n"


@pytest.mark.parametrize(
    ("source", "extra"),
    [
        ("import absent.part\n", "bridge"),
        ("def main(argv):\n    import absent.part\n", "bridge"),
        (IMPORTING, "other"),
    ],
)
def test_a_command_without_its_extra_says_what_to_install(
    source: str, extra: str, add_command: AddCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    add_command("bridge", source)
    assert main.main(["bridge"]) == 1
    assert capsys.readouterr().err == (
        f"mcpp bridge needs absent: pip install 'mcpp-pods[{extra}]'\n"
    )


def test_a_missing_module_of_our_own_is_a_traceback(add_command: AddCommand) -> None:
    add_command("bridge", "import mcpp.absent\n")
    with pytest.raises(ModuleNotFoundError):
        main.main(["bridge"])


# Packages that the SDK itself needs, and the ones of the standard library.
_BASE = {"anyio", "msgspec", "uuid6", "websockets", "idna", "sniffio", "typing_extensions"}
_WITHOUT_EXTRAS = """
import sys

allowed = {allowed!r} | set(sys.stdlib_module_names)

class WithoutExtras:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and not top.startswith(("mcpp", "_")):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, WithoutExtras())
from mcpp.cli.main import main
sys.exit(main([{command!r}, "--help"]))
"""


@pytest.mark.parametrize("command", main.COMMANDS)
def test_the_help_of_every_command_works_without_extras(command: str) -> None:
    program = _WITHOUT_EXTRAS.format(allowed=_BASE, command=command)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(f"usage: mcpp {command}".encode())


@pytest.mark.parametrize(
    ("statement", "code", "printed"),
    [
        ("__import__('mcpp').decode('{}')", 1, "mcpp acme: $.protocol: is missing\n"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_an_mcpp_error_is_reported_in_one_line_and_ctrl_c_not_at_all(
    add_command: AddCommand,
    capsys: pytest.CaptureFixture[str],
    statement: str,
    code: int,
    printed: str,
) -> None:
    add_command("acme", f"def main(argv):\n    {statement}\n")
    assert main.main(["acme"]) == code
    assert capsys.readouterr().err == printed


def test_a_local_pod_that_does_not_run_is_named_with_the_command_that_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in os.environ if name.startswith("MCPP_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    pod = local_pod.create()
    pod.set_port(1)  # no program listens there
    assert main.main(["send", "hello"]) == 1
    reason = f"no gateway answers at {pod.url}: connection refused; `mcpp up` starts it"
    assert capsys.readouterr().err == f"mcpp send: {reason}\n"
    other = "ws://127.0.0.1:1/ws?pod=other"
    assert main.main(["send", "--url", other, "--token", "x", "hello"]) == 1
    assert (
        capsys.readouterr().err == f"mcpp send: no gateway answers at {other}: connection refused\n"
    )


def test_a_closed_pipe_ends_it_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run([MCPP, "schema"], stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_reported_in_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run([MCPP, "schema"], stdout=full, stderr=subprocess.PIPE)
    expected = b"mcpp: cannot write: No space left on device\n"
    assert (result.returncode, result.stderr) == (1, expected)


def test_the_schema_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["schema"]) == 0
    assert capsys.readouterr().out == schema.render()


def test_help_takes_less_than_200_milliseconds_of_work() -> None:
    assert min(cpu_seconds_of([MCPP, "--help"]) for _ in range(5)) < 0.2


def cpu_seconds_of(command: list[Path | str]) -> float:
    """Return the CPU time of a process, which does not depend on the machine's load."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.parametrize("imported", ["mcpp.cli.main", "argparse", "mcpp.protocol.schema"])
def test_ctrl_c_during_an_import_ends_it_silently(imported: str) -> None:
    program = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {imported!r}:\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "            except KeyboardInterrupt:\n"
        "                raise SystemError('half a class') from None\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from mcpp.cli.console import main\n"
        "sys.argv[1:] = ['schema']\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize(
    "command", ["tail", "search", "show", "send", "call", "chat", "approver", "prompt", "mcp"]
)
def test_commands_of_participants_have_the_same_flags(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main([command, "--help"])
    text = capsys.readouterr().out
    assert all(flag in text for flag in ("--as NAME", "--url URL", "--token TOKEN"))
    assert ("--last N" in text) == (command in ("tail", "search", "chat", "prompt"))
