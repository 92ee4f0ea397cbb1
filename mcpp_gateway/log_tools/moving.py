"""`mcpp log export` and `mcpp log import`: a log as lines, its blobs in a folder, and back."""

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

import uuid6

from mcpp.cli.extras import importing
from mcpp_gateway.cluster import local_cluster
from mcpp_gateway.config import Config
from mcpp_gateway.log_format import escape
from mcpp_gateway.log_tools import export as exports
from mcpp_gateway.log_tools import exported_blobs as blobs
from mcpp_gateway.log_tools.exported_blobs import NamedBlobs
from mcpp_gateway.log_tools.reader import LogToolError, pod_folder


def export_log(arguments: argparse.Namespace) -> int:
    """Write a log as lines, and its blobs to a folder. Raises McppError and OSError."""
    config = _cluster(arguments)
    named = NamedBlobs()
    with _output(arguments.output) as output:
        try:
            if config is not None:
                asyncio.run(_export_stream(config, arguments, output, named))
            else:
                for line in named.watch(_folder_lines(arguments)):
                    output.write(line + b"\n")
            output.flush()
            if arguments.blobs is not None:
                # After the lines: what they name was uploaded before.
                _report_blobs("exported", named, _export_blobs(config, arguments, named))
        except BaseException:
            if arguments.output is not None:
                arguments.output.unlink(missing_ok=True)
            raise
    if arguments.blobs is None:
        _report_blobs("exported", named, 0)
    return 0


def import_log(arguments: argparse.Namespace) -> int:
    """Create a log from lines and a folder of blobs. Raises McppError and OSError."""
    config = _cluster(arguments)
    new_epoch = str(uuid6.uuid7()) if arguments.new_epoch else None
    named, copied = NamedBlobs(), 0

    def complete(folder: Path) -> None:
        nonlocal copied
        if arguments.blobs is not None:
            copied = blobs.import_blobs(arguments.blobs, folder, named.hashes)

    with _input(arguments.input) as given:
        lines = named.watch(given)
        if config is None:
            folder = arguments.folder / (arguments.pod or "")
            found, place = exports.import_lines(lines, folder, new_epoch, complete), str(folder)
        else:
            with importing("cluster"):
                from mcpp_gateway.cluster import transfer
            pod, place = arguments.pod, f"the cluster, pod {arguments.pod}"
            work = transfer.import_lines(
                lines,
                config,
                pod,
                new_epoch=new_epoch,
                replace=arguments.replace,
                complete=complete,
            )
            found = asyncio.run(work)
    also = f" and {copied} blob{'s'[: copied != 1]}" if copied else ""
    what = f"{found.entries} entries{also}"
    sys.stdout.write(f"{what} imported into {escape(place)}, epoch {found.epoch}\n")
    _report_blobs("imported", named, copied)
    return 0


async def _export_stream(
    config: Config, arguments: argparse.Namespace, output: BinaryIO, named: NamedBlobs
) -> None:
    with importing("cluster"):
        from mcpp_gateway.cluster import transfer
    async for line in transfer.export(config, arguments.pod, seal=arguments.seal):
        named.add(line)
        output.write(line + b"\n")


def _export_blobs(config: Config | None, arguments: argparse.Namespace, named: NamedBlobs) -> int:
    if config is None:
        folder = pod_folder(arguments.folder, arguments.pod)
        return blobs.export_blobs(folder, arguments.blobs, named.hashes)
    from mcpp_gateway.cluster import transfer

    work = transfer.export_blobs(config, arguments.pod, arguments.blobs, named.hashes)
    return asyncio.run(work)


def _report_blobs(what: str, named: NamedBlobs, count: int) -> None:
    """Report blobs that the log names and that did not come along."""
    missing = len(named.hashes) - count
    if missing:
        number = f"{missing} blob{'s'[: missing != 1]}"
        verb = "is" if missing == 1 else "are"
        hint = "" if count else "; --blobs FOLDER names a folder for them"
        reason = f"{number} that the log names {verb} not {what}{hint}"
        sys.stderr.write(f"mcpp log: {reason}\n")


def _cluster(arguments: argparse.Namespace) -> Config | None:
    """Return the configuration of the cluster that a command names; None if it names a folder."""
    if (arguments.folder is None) == (arguments.config is None):
        raise LogToolError("name either a folder, or a configuration with --config")
    if arguments.config is None:
        return None
    config = local_cluster.load(arguments.config)
    if arguments.pod not in config.pods:
        names = ", ".join(config.pods)
        raise LogToolError(f"choose a pod of the configuration with --pod: {names}")
    return config


def _folder_lines(arguments: argparse.Namespace) -> Iterator[bytes]:
    """Return the lines of a log in files; sealed first, or without what is damaged, if asked."""
    folder = pod_folder(arguments.folder, arguments.pod)
    if arguments.seal:
        exports.seal(folder)
    if not arguments.readable:
        return exports.export(folder)
    lines, damage = exports.export_readable(folder)
    for each in damage:
        sys.stderr.write(f"mcpp log: left out: {escape(each)}\n")
    return lines


def _output(path: Path | None) -> "nullcontext[BinaryIO] | BinaryIO":
    if path is None:
        return nullcontext(sys.stdout.buffer)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.fdopen(os.open(path, flags, 0o600), "wb")  # as private as the log
    except FileExistsError:
        raise LogToolError(f"{path} exists") from None


def _input(path: Path | None) -> "nullcontext[BinaryIO] | BinaryIO":
    return nullcontext(sys.stdin.buffer) if path is None else path.open("rb")
