"""Copying a log, beside a gateway that may be writing to it.

Closed segments never change, so they are copied, or linked, as they are. The newest is copied up to
its last complete record and sealed, so the copy opens like a log that was stopped in an orderly
way. It is copied first: what retention deletes meanwhile is then missing at the copy's beginning
only.
"""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from mcpp_gateway.blobs.folder import BLOBS, copy_blobs
from mcpp_gateway.log_tools.new_folder import new_folder
from mcpp_gateway.log_tools.reader import LogReader, OpenSegment
from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import sync_path
from mcpp_gateway.storage.recovery import END_BYTES
from mcpp_gateway.storage.segments import HEADER_BYTES, SEAL, NewRecord

_COPY_BYTES: Final = 1 << 22


class Backup(NamedTuple):
    """What was copied."""

    segments: int
    start: int
    end: int
    blobs: int


def back_up_pods(
    pods: Iterable[Path], destination: Path, *, link: bool = False
) -> dict[str, Backup]:
    """Copy the folders of several pods into a new one, as a log path holds them.

    Raises McppError and OSError.
    """
    with new_folder(destination) as folder:
        return {pod.name: back_up(pod, folder / pod.name, link=link) for pod in pods}


def back_up(source: Path, destination: Path, *, link: bool = False) -> Backup:
    """Copy a pod's folder to a new one. Raises McppError and OSError."""
    reader = LogReader(source)
    *closed, newest = reader.segments
    with new_folder(destination) as folder:
        end = _copy_newest(reader, newest, folder)
        for each in reversed(closed):
            _copy_closed(reader, each, folder, link=link)
        # Last: what the copied log names was uploaded before.
        blobs = copy_blobs(source / BLOBS, folder / BLOBS, link=link)
    return Backup(len(closed) + 1, reader.segments[0].segment.header.position, end, blobs)


def _copy_newest(reader: LogReader, each: OpenSegment, folder: Path) -> int:
    """Copy the newest segment up to its last complete record, and return the log's end."""
    position, end, last = each.segment.header.position, HEADER_BYTES, None
    for record in reader.records(each):
        if record.kind == SEAL and record.payload != segments.STOPPED:
            break  # of a segment that is not part of the copy
        last, end = record, record.end
        position = record.position + record.entries
    assert last is not None
    tail = b""
    if last.kind != SEAL:
        seal = NewRecord(SEAL, position, max(time.time(), last.time), segments.STOPPED)
        salt = each.segment.header.salt
        tail = segments.encode_record(seal, salt=salt, offset=end, durable=end)
    _copy(each, folder, end, tail + bytes(END_BYTES))
    return position


def _copy_closed(reader: LogReader, each: OpenSegment, folder: Path, *, link: bool) -> None:
    segment, file, following = each
    assert following is not None
    reader.await_seal(segment, file, following)
    if link:
        try:
            os.link(reader.folder / segment.name, folder / segment.name)
        except (
            OSError
        ):  # another file system, or deleted by retention: the open file is still there
            pass
        else:
            return
    _copy(each, folder, file.size, b"")


def _copy(each: OpenSegment, folder: Path, size: int, tail: bytes) -> None:
    path = folder / each.segment.name
    with path.open("wb") as copy:
        for offset in range(0, size, _COPY_BYTES):
            copy.write(each.file.read(offset, min(_COPY_BYTES, size - offset)))
        copy.write(tail)
    path.chmod(0o600)
    sync_path(path)
