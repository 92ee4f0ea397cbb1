"""The command line: finds a command, imports only that command, and runs it.

A command is an entry point of the group `mcpp.commands`: a name, and a function that takes the
arguments after the name and returns an exit code. Listing the commands imports none of them, so the
help lines of our own commands are here. A package that a command needs and that is not installed
becomes one line naming the command's extra (see `mcpp.cli.extras`).
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
from mcpp.cli.console import default_interrupt
from mcpp.cli.extras import MissingExtraError, missing_extra
from mcpp.errors import McppError, UnreachableError

GROUP: Final = "mcpp.commands"

_EXIT_FAILURE: Final = 1
_EXIT_USAGE: Final = 2
# As a shell reports a process ended by SIGINT or SIGPIPE.
_EXIT_INTERRUPTED: Final = 130
_EXIT_PIPE_CLOSED: Final = 141
# Errors of the output device: reported in one line, without a traceback.
_OUTPUT_ERRORS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

_Main = Callable[[list[str]], int]


class _Command(NamedTuple):
    help: str
    extra: str | None = None


COMMANDS: Final = {
    "up": _Command("start a pod in this folder (--demo: with agents)", "gateway"),
    "token": _Command("add or remove a participant in this folder's pod", "gateway"),
    "gateway": _Command("run the gateway with a configuration file", "gateway"),
    "admin": _Command("look at a running gateway, and act on it", "gateway"),
    "cluster": _Command("show the gateways and leaders of a cluster", "cluster"),
    "log": _Command("inspect, check, export, copy or erase a pod's log", "gateway"),
    "replay": _Command("replay a recorded stretch of a pod", "gateway"),
    "fork": _Command("begin a new pod with the past of another one", "gateway"),
    "tail": _Command("show a pod's messages"),
    "search": _Command("find messages of the past"),
    "show": _Command("print a context of the past as a transcript"),
    "send": _Command("send one message to a pod"),
    "call": _Command("call a participant's tool"),
    "chat": _Command("chat in a pod", "chat"),
    "bridge": _Command("connect an MCP server or a coding agent to a pod", "bridge"),
    "mcp": _Command("serve a pod to an MCP client", "mcp"),
    "a2a": _Command("connect a pod with A2A agents and clients", "a2a"),
    "link": _Command("mirror chosen contexts between two pods"),
    "agent": _Command("run a model as a participant in a pod", "agent"),
    "prompt": _Command("show what a participant's model sees, or check what it saw"),
    "approver": _Command("decide on proposals by rules"),
    "memory": _Command("store and search what a pod concludes", "memory"),
    "otel": _Command("export a pod's contexts as traces", "otel"),
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
        if error.errno not in _OUTPUT_ERRORS:
            raise
        _discard_output()
        return _fail(f"cannot write: {error.strerror}", _EXIT_FAILURE)
    return code


def _discard_output() -> None:
    # The interpreter flushes once more at exit: discard that.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        _parser().parse_args(arguments)
        _parser().print_help()
        return 0
    name, *rest = arguments
    known = COMMANDS.get(name)
    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    if entry is None:
        return _fail(f"there is no command {name!r}{_suggestion(name)}", _EXIT_USAGE)
    try:
        return _load(entry)(rest)
    except ModuleNotFoundError as error:
        missing = missing_extra(error, None if known is None else known.extra)
        if missing is None:
            raise
        return _fail_without_extra(name, missing)
    except MissingExtraError as error:
        return _fail_without_extra(name, error)
    except UnreachableError as error:
        return _fail(f"{error}{_how_to_start(error.url)}", _EXIT_FAILURE, name)
    except McppError as error:
        return _fail(str(error), _EXIT_FAILURE, name)


def _how_to_start(url: str) -> str:
    """Return a hint if the address is that of the local pod, which does not run."""
    from mcpp.client import local_pod  # not for `mcpp --help`

    pod = local_pod.find()
    return "; `mcpp up` starts it" if pod is not None and pod.url == url else ""


def _load(entry: EntryPoint) -> _Main:
    with default_interrupt():
        return cast(_Main, entry.load())


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, entry_points(group=GROUP).names, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; `mcpp --help` lists them"


def _fail(reason: str, code: int, command: str = "") -> int:
    prefix = f"mcpp {command}" if command else "mcpp"
    sys.stderr.write(f"{prefix}: {reason}\n")
    return code


def _fail_without_extra(name: str, missing: MissingExtraError) -> int:
    sys.stderr.write(f"mcpp {name} {missing}\n")
    return _EXIT_FAILURE


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
        epilog="\n".join(["commands:", *lines, "", "`mcpp COMMAND --help` describes one."]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mcpp {mcpp.__version__}")
    return parser
