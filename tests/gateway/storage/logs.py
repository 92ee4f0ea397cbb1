"""Logs for tests: opened, filled and read on any disk."""

import random

from mcpp_gateway.storage.disk import Disk
from mcpp_gateway.storage.segment_log import Recovery, SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import BATCH, STATE, DamagedError, NewRecord
from tests.gateway.storage.simulated_disk import SimulatedDisk

OPTIONS = SegmentOptions(segment_bytes=4096, chunk_bytes=2048, reserve_bytes=1024)


def payload(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def opened(disk: Disk) -> tuple[SegmentLog, Recovery]:
    log = SegmentLog(disk, OPTIONS)
    return log, log.recover()


def started(disk: Disk) -> SegmentLog:
    log, recovery = opened(disk)
    assert recovery.state is None
    log.create(NewRecord(STATE, 0, 0.0, b"state"), salt=7)
    return log


def write(log: SegmentLog, number: int, size: int, time: float | None = None) -> bytes:
    """Write and sync the batch of one position."""
    data = payload(number, size)
    log.write([NewRecord(BATCH, number, float(number) if time is None else time, data, 1)])
    log.sync()
    return data


def roll(log: SegmentLog, number: int, state: bytes = b"state") -> None:
    assert log.roll(NewRecord(STATE, number, float(number), state), salt=number)


def stopped_log() -> tuple[SimulatedDisk, list[bytes]]:
    """Return the disk of a log with three segments that was stopped, and what it holds."""
    disk, log, written = _written_log()
    log.stop(len(written), 99.0)
    return disk, written


def quiet_log() -> tuple[SimulatedDisk, list[bytes]]:
    """Return the same of a log whose writer was killed when nothing waited any more."""
    disk, log, written = _written_log()
    log.mark()
    return disk, written


def _written_log() -> tuple[SimulatedDisk, SegmentLog, list[bytes]]:
    disk = SimulatedDisk()
    log = started(disk)
    written: list[bytes] = []
    for number in range(24):
        written.append(write(log, number, 100 + 37 * number))
        log.mark()  # overwritten by what follows
        if number in (7, 15):
            roll(log, number + 1)
    return disk, log, written


def read_all(disk: Disk) -> list[bytes]:
    """Open a log as a gateway does, read it from its start, and return what it serves."""
    log, recovery = opened(disk)
    for reason in recovery.unreadable:
        raise DamagedError("a segment", 0, reason)
    return [record.payload for record in log.read(log.start)]
