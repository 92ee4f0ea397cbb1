"""The command line: finds a command, loads it alone, and ends quietly.

A command is an entry point of the group `mcpp.commands`: its name, and a function that takes the
arguments after the name and returns an exit code. Nothing is imported to list the commands, so
those of our own packages have their line of help here.
"""

import argparse
import difflib
import errno
import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Final, NamedTuple, cast

import mcpp
from mcpp.cli.console import ended_at_once
from mcpp.errors import McppError

GROUP: Final = "mcpp.commands"

_EXIT_FAILURE: Final = 1
_EXIT_USAGE: Final = 2
# As a shell reports a process that SIGINT or SIGPIPE ended.
_EXIT_INTERRUPTED: Final = 130
_EXIT_PIPE_CLOSED: Final = 141
# What a disk says to whoever writes to it: no fault of ours, so no traceback.
_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_Main = Callable[[list[str]], int]


class _Command(NamedTuple):
    help: str
    extra: str | None = None


COMMANDS: Final = {
    "up": _Command("start a pod in this folder (--demo: with agents in it)", "gateway"),
    "token": _Command("add a participant to this folder's pod, or remove one", "gateway"),
    "gateway": _Command("run the gateway with a configuration file", "gateway"),
    "tail": _Command("watch what is said in a pod"),
    "send": _Command("say one thing in a pod"),
    "chat": _Command("talk in a pod", "agents"),
    "bridge": _Command("bring an MCP server into a pod", "agents"),
    "mcp": _Command("serve a pod to an MCP client", "agents"),
    "agent": _Command("have a model take part in a pod", "agents"),
    "approver": _Command("decide on proposals by rules"),
    "memory": _Command("keep what a pod concludes, and give it back", "memory"),
    "bench": _Command("measure a gateway"),
    "schema": _Command("print the JSON Schema of an envelope"),
}


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _EXIT_PIPE_CLOSED
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _discard_output()
        return _complain(f"cannot write: {error.strerror}", _EXIT_FAILURE)
    return code


def _discard_output() -> None:
    # The interpreter flushes once more when it ends: let that go nowhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        _parser().parse_args(arguments)
        _parser().print_help()
        return 0
    name, *rest = arguments
    try:
        return _load(name)(rest)
    except _UnavailableError as error:
        return _complain(str(error), error.code)
    except McppError as error:
        return _complain(f"{name}: {error}", _EXIT_FAILURE)


class _UnavailableError(Exception):
    def __init__(self, reason: str, code: int = _EXIT_FAILURE) -> None:
        super().__init__(reason)
        self.code = code


def _load(name: str) -> _Main:
    known = COMMANDS.get(name)
    entry = _find(name)
    if entry is None:
        if known is None:
            raise _UnavailableError(f"there is no command {name!r}{_suggestion(name)}", _EXIT_USAGE)
        raise _UnavailableError(f"this version has no `mcpp {name}` yet")
    try:
        with ended_at_once():
            return cast(_Main, entry.load())
    except ModuleNotFoundError as error:
        if known is None or known.extra is None or (error.name or "mcpp").startswith("mcpp"):
            raise
        raise _UnavailableError(
            f"`mcpp {name}` needs {error.name}: pip install 'mcpp[{known.extra}]'"
        ) from None


def _find(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=GROUP, name=name)), None)


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, [*COMMANDS, *entry_points(group=GROUP).names], n=1)
    return f"; did you mean {close[0]!r}?" if close else "; `mcpp --help` lists them"


def _complain(reason: str, code: int) -> int:
    sys.stderr.write(f"mcpp: {reason}\n")
    return code


def _parser() -> argparse.ArgumentParser:
    helps = {name: command.help for name, command in COMMANDS.items()}
    for name in sorted(entry_points(group=GROUP).names - COMMANDS.keys()):
        helps[name] = "(added by another package)"
    width = max(map(len, helps))
    lines = [f"  {name:{width}}  {text}" for name, text in helps.items()]
    parser = argparse.ArgumentParser(
        prog="mcpp",
        usage="mcpp [--help] [--version] COMMAND ...",
        description="The message bus on which AI agents, tools and people work together.",
        epilog="\n".join(["commands:", *lines, "", "`mcpp COMMAND --help` tells more about one."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mcpp {mcpp.__version__}")
    return parser
