"""What a log is: its extent in positions, time and bytes, read from headers."""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from mcpp_gateway.core.records import Origin, decode_state
from mcpp_gateway.log_tools.reader import LogReader
from mcpp_gateway.storage import segments
from mcpp_gateway.storage.segments import BATCH, DamagedError


class LogInfo(NamedTuple):
    """The facts of a log."""

    pod: str
    format_version: int
    epoch: str
    origin: dict[str, Any] | None  # of a fork
    segments: int
    start: int  # the first position
    end: int  # the position that the next entry will have
    first_time: float
    last_time: float
    data_bytes: int
    disk_bytes: int  # with reserved space and the index
    in_use: bool
    stopped: bool
    unfinished_bytes: int
    damage: tuple[str, ...]  # what headers and the newest segment show; `verify` reads everything


def inspect(folder: Path) -> LogInfo:
    """Return the facts of a pod's log, of a damaged one too. Raises McppError and OSError."""
    reader = LogReader(folder, tolerant=True)
    damage = list(reader.damage)
    if not reader.segments:
        raise damage[0]
    newest, epoch, end, data_bytes = reader.segments[-1], "", 0, 0
    origin: Origin | None = None
    first_time = reader.segments[0].segment.header.created
    last_time = newest.segment.header.created
    try:
        for record in reader.records(newest):
            if record.kind == segments.STATE:
                state = decode_state(record.payload)
                epoch, origin = state.epoch, state.origin
            elif record.kind == BATCH:
                last_time = record.time
            end, data_bytes = record.position + record.entries, record.end
    except DamagedError as error:
        damage.append(error)
    data_bytes += sum(each.segment.size_bytes for each in reader.segments[:-1])
    return LogInfo(
        pod=reader.pod,
        format_version=segments.VERSION,
        epoch=epoch,
        origin=None if origin is None else origin.to_json(),
        segments=len(reader.segments),
        start=reader.segments[0].segment.header.position,
        end=end,
        first_time=first_time,
        last_time=last_time,
        data_bytes=data_bytes,
        disk_bytes=sum(map(_disk_bytes, folder.iterdir())),
        in_use=reader.running,
        stopped=reader.stopped,
        unfinished_bytes=reader.unfinished_bytes,
        damage=tuple(map(str, damage)),
    )


def _disk_bytes(path: Path) -> int:
    with suppress(FileNotFoundError):  # a running gateway may delete it meanwhile
        return path.stat().st_blocks * 512 if path.is_file() else 0
    return 0
