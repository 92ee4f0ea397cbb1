"""The commands `mcpp log` and `mcpp fork`."""

import argparse
import getpass
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from mcpp.client.factory import local_now
from mcpp.errors import McppError, TimeError
from mcpp.times import FORMS, parse_time
from mcpp_gateway.core.history.erasing import Erasure
from mcpp_gateway.log_format import escape
from mcpp_gateway.log_tools import backup as backups
from mcpp_gateway.log_tools import erase as erasing
from mcpp_gateway.log_tools import fork as forks
from mcpp_gateway.log_tools import info as infos
from mcpp_gateway.log_tools.moving import export_log, import_log
from mcpp_gateway.log_tools.reader import LogToolError, pod_folder, pod_folders
from mcpp_gateway.log_tools.verify import Verification

_EXIT_FAILURE: Final = 1
_PROGRESS_SECONDS: Final = 2.0
_MAX_NAME: Final = 128
_FOLDER_HELP: Final = "the folder of a pod's log, or the gateway's log path"


def main(argv: list[str]) -> int:
    """Inspect, check, export, import or copy the log of a pod."""
    arguments = _parser().parse_args(argv)
    command: Callable[[argparse.Namespace], int] = arguments.command
    return _reported("log", lambda: command(arguments))


def _reported(name: str, run: Callable[[], int]) -> int:
    """Run a command; report an error in one line."""
    try:
        _allow_open_files()
        return run()
    except BrokenPipeError:
        raise
    except McppError as error:
        return _fail(name, error)
    except OSError as error:
        named = "" if error.filename is None else f"{error.filename}: "
        return _fail(name, f"{named}{error.strerror or error}")


def fork(argv: list[str]) -> int:
    """Begin a new log with the entries of another one."""
    parser = argparse.ArgumentParser(
        prog="mcpp fork",
        description="Write a new log that begins with the entries of a log up to an envelope. It "
        "has its own epoch and remembers its origin. Configure a pod of the new name to run it. "
        "A gateway may be running on the original.",
    )
    parser.add_argument("folder", type=Path, metavar="POD", help=_FOLDER_HELP)
    parser.add_argument("--pod", help="the pod, if the log path holds several")
    parser.add_argument("--at", required=True, metavar="ID", help="the last envelope of both")
    parser.add_argument(
        "new", metavar="NEW", help="the name of the new pod beside the old one, or a new folder"
    )
    arguments = parser.parse_args(argv)

    def run() -> int:
        source = pod_folder(arguments.folder, arguments.pod).resolve()
        new = arguments.new
        destination = Path(new) if "/" in new else source.parent / new
        made = forks.fork(source, destination, arguments.at)
        print(f"{made.entries} entries in {escape(str(destination))}, epoch {made.epoch}")
        return 0

    return _reported("fork", run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp log",
        description="Work on the log of a pod in files; export and import also in a cluster. "
        "Everything but import, erase and --seal may be used while a gateway runs on the log.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], help: str, *, cluster: bool = False
    ) -> _Parser:
        added = commands.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        added.set_defaults(command=run)
        count = "?" if cluster else None
        added.add_argument("folder", type=Path, nargs=count, metavar="FOLDER", help=_FOLDER_HELP)
        added.add_argument("--pod", help="the pod, if the log path holds several")
        if cluster:
            added.add_argument(
                "--config",
                type=Path,
                metavar="FILE",
                help="instead of a folder: a gateway's configuration, for its cluster; needs --pod",
            )
        return added

    info = add(
        "info",
        _info,
        "show positions, times, sizes and the state of a log; exit code 1 if it is damaged",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    add("verify", _verify, "check every record of a log; exit code 1 if there is a problem")
    export = add("export", export_log, "write a log as lines of JSON", cluster=True)
    export.add_argument(
        "--seal", action="store_true", help="first let nothing be added any more: to move the log"
    )
    export.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="a new file that only you can read, instead of standard output",
    )
    export.add_argument(
        "--readable", action="store_true", help="leave out what is damaged, and name it"
    )
    export.add_argument(
        "--blobs", type=Path, metavar="FOLDER", help="copy the attachments to this new folder, too"
    )
    imports = add(
        "import",
        import_log,
        "create a log from exported lines, in an empty folder or in a cluster",
        cluster=True,
    )
    imports.add_argument(
        "--replace", action="store_true", help="delete a sealed log of this pod in the cluster"
    )
    imports.add_argument("--input", type=Path, metavar="FILE", help="instead of standard input")
    imports.add_argument(
        "--blobs", type=Path, metavar="FOLDER", help="the attachments, as they were exported"
    )
    imports.add_argument(
        "--new-epoch",
        action="store_true",
        help="make it another log: clients of the original do not resume in it",
    )
    backup = add(
        "backup",
        _backup,
        "copy the log of a pod, or of all pods, to a new folder",
    )
    backup.add_argument("destination", type=Path, metavar="DEST", help="a new or empty folder")
    backup.add_argument(
        "--link", action="store_true", help="use hard links for closed segments where possible"
    )
    erase = add("erase", _erase, "erase what was said in a context, or by a participant, for good")
    erase.add_argument("--context", metavar="ID", help="in this context and its descendants")
    erase.add_argument("--participant", metavar="NAME", help="sent by this participant")
    erase.add_argument(
        "--before", type=_moment, metavar="TIME", help=f"only what is older: {FORMS}"
    )
    erase.add_argument(
        "--by", type=_name, metavar="NAME", help="who erases, for the audit (default: your login)"
    )
    erase.add_argument("--dry-run", action="store_true", help="only count the entries")
    erasures = add("erasures", _erasures, "list who erased what and when")
    erasures.add_argument("--json", action="store_true", help="print JSON lines")
    return parser


_Parser = argparse.ArgumentParser


def _info(arguments: argparse.Namespace) -> int:
    found = infos.inspect(pod_folder(arguments.folder, arguments.pod))
    if arguments.json:
        print(json.dumps(found._asdict()))
        return _EXIT_FAILURE if found.damage else 0
    if found.damage:
        state = "damaged; `mcpp log verify` reads everything"
    elif found.in_use:
        state = "in use by a running gateway"
    elif found.stopped:
        state = "stopped in an orderly way"
    else:
        state = "interrupted"
        if found.unfinished_bytes:
            state += f"; {found.unfinished_bytes} bytes of an incomplete write"
    rows = {
        "pod": found.pod,
        "epoch": found.epoch,
        "format": f"version {found.format_version}",
        "entries": f"{found.end - found.start}, positions {found.start} to {found.end}",
        "time": f"{_time(found.first_time)} to {_time(found.last_time)}",
        "segments": f"{found.segments}, {found.data_bytes:,} bytes",
        "disk": f"{found.disk_bytes:,} bytes, with reserved space and index",
        "state": state,
    }
    if found.origin is not None:
        origin = found.origin
        rows["origin"] = f"pod {origin['pod']}, epoch {origin['epoch']}, up to {origin['id']}"
    for name, value in rows.items():
        print(f"{name:9} {escape(value)}")
    for each in found.damage:
        print(f"damage    {escape(each)}")
    return _EXIT_FAILURE if found.damage else 0


def _verify(arguments: argparse.Namespace) -> int:
    verification = Verification(pod_folder(arguments.folder, arguments.pod))
    told = time.monotonic()

    def progress(entries: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told > _PROGRESS_SECONDS:
            told = now
            print(f"{entries} entries checked", file=sys.stderr)

    problems = verification.run(progress)
    for problem in problems:
        print(escape(problem))
    reader = verification.reader
    if reader.unfinished_bytes and not reader.running:
        size = reader.unfinished_bytes
        print(f"an incomplete write of {size} bytes at the end; the next start removes it")
    found = f"{len(problems)} problem{'s'[: len(problems) != 1]}"
    print(f"{verification.entries} entries in {len(reader.segments)} segments, {found}")
    return _EXIT_FAILURE if problems else 0


def _backup(arguments: argparse.Namespace) -> int:
    path, destination = arguments.folder, arguments.destination
    pods = pod_folders(path) if arguments.pod is None and path.is_dir() else []
    if pods and pods != [path]:
        copied = backups.back_up_pods(pods, destination, link=arguments.link)
    else:
        source = pod_folder(path, arguments.pod)
        copied = {source.name: backups.back_up(source, destination, link=arguments.link)}
    for pod, found in copied.items():
        size = f"{found.segments} segment{'s'[: found.segments != 1]}"
        also = f", {found.blobs} blob{'s'[: found.blobs != 1]}" if found.blobs else ""
        print(f"{escape(pod)}: {size}{also} copied, positions {found.start} to {found.end}")
    return 0


def _erase(arguments: argparse.Namespace) -> int:
    if arguments.context is None and arguments.participant is None:
        raise LogToolError("say what to erase, with --context or --participant")
    erasure = Erasure(
        context=arguments.context,
        participant=arguments.participant,
        before=arguments.before,
        by=arguments.by or _login(),
    )
    folder = pod_folder(arguments.folder, arguments.pod)
    count = erasing.erase_entries(folder, erasure, dry_run=arguments.dry_run)
    what = "would be erased" if arguments.dry_run else "erased"
    print(f"{_entries(count)} {what}")
    return 0


def _erasures(arguments: argparse.Namespace) -> int:
    for at, position, erased in erasing.past_erasures(pod_folder(arguments.folder, arguments.pod)):
        if arguments.json:
            facts = {"time": at, "position": position, **msgspec.to_builtins(erased)}
            print(json.dumps({name: each for name, each in facts.items() if each is not None}))
            continue
        words = [_time(at), f"{erased.by or 'unknown'}:", _entries(erased.entries)]
        words += [f"of {erased.participant}"] if erased.participant is not None else []
        words += [f"in context {erased.context}"] if erased.context is not None else []
        words += [f"before {_time(erased.before)}"] if erased.before is not None else []
        print(escape(" ".join(words)))
    return 0


def _entries(entries: int) -> str:
    """Return a number of entries in words."""
    return f"{entries} {'entry' if entries == 1 else 'entries'}"


def _moment(text: str) -> float:
    """Return the Unix time of a time as people write it."""
    try:
        return parse_time(text, local_now()).timestamp()
    except TimeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _name(text: str) -> str:
    if not 1 <= len(text) <= _MAX_NAME or not text.isprintable():
        raise argparse.ArgumentTypeError(f"must be a name of 1 to {_MAX_NAME} characters")
    return text


def _login() -> str:
    """Return the name of the user who runs this, or the number if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in some containers
        return f"user {os.getuid()}"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _allow_open_files() -> None:
    """Raise the soft limit of open files: a segment's file stays open against retention."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _fail(name: str, error: object) -> int:
    print(f"mcpp {name}: {escape(error)}", file=sys.stderr)
    return _EXIT_FAILURE
