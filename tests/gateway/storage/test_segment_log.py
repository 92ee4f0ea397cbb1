"""The file log on a disk that crashes, fails and fills up: what was synced is never lost."""

import errno
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from mcpp_gateway.storage import segments
from mcpp_gateway.storage.segment_log import Recovery, SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import BATCH, STATE, DamagedError, LogFormatError, NewRecord
from tests.gateway.storage.simulated_disk import SimulatedDisk

OPTIONS = SegmentOptions(segment_bytes=4096, chunk_bytes=2048, reserve_bytes=1024)


def payload(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def opened(disk: SimulatedDisk) -> tuple[SegmentLog, Recovery]:
    log = SegmentLog(disk, OPTIONS)
    return log, log.recover()


def started(disk: SimulatedDisk) -> SegmentLog:
    log, recovery = opened(disk)
    assert recovery.state is None
    log.create(NewRecord(STATE, 0, 0.0, b"state"), salt=7)
    return log


class LogMachine(RuleBasedStateMachine):
    """Writes numbered batches, crashes at any point, and checks what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = SimulatedDisk()
        self.written: list[bytes] = []  # every batch given to `write`, by position
        self.acknowledged = 0  # how many of them were synced
        self.first = 0  # the oldest that retention has left
        self.salt = 1
        self.log: SegmentLog

    @initialize()
    def start(self) -> None:
        self.log = started(self.disk)

    # --- the gateway at work ---

    @rule(sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=4), sync=st.booleans())
    def write(self, sizes: list[int], sync: bool) -> None:
        records = []
        for size in sizes:
            number = len(self.written)
            data = payload(number, size)
            records.append(NewRecord(BATCH, number, float(number), data, 1))
            self.written.append(data)
        try:
            self.log.write(records)
            if sync:
                self.log.sync()
        except OSError:
            self.recover(lambda limit: 0)  # the process ends, and comes back with what is there
        else:
            if sync:
                self.acknowledged = len(self.written)

    @rule()
    def roll(self) -> None:
        end = len(self.written)
        if end == int(self.disk.names()[-1].split(".")[0]):
            return
        self.salt += 1
        try:
            self.log.sync()
            self.acknowledged = end
            self.log.roll(NewRecord(STATE, end, float(end), b"state" * 20), self.salt)
        except OSError:
            self.recover(lambda limit: 0)

    @rule()
    def grow(self) -> None:
        try:
            self.log.grow()
        except OSError:
            self.recover(lambda limit: 0)

    @rule()
    def stop(self) -> None:
        try:
            self.log.sync()
            self.acknowledged = len(self.written)
            self.log.stop(len(self.written), float(len(self.written)))
        except OSError:
            self.recover(lambda limit: 0)
        else:
            self.recover(lambda limit: 0, stopped=True)

    @rule(keep=st.integers(0, 20_000))
    def retain(self, keep: int) -> None:
        try:
            self.log.retain(since=None, max_bytes=keep)
        except OSError:
            self.recover(lambda limit: 0)
        self.first = max(self.first, self.log.start)

    # --- what goes wrong ---

    @rule(after=st.integers(1, 12), code=st.sampled_from([errno.EIO, errno.ENOSPC, errno.EDQUOT]))
    def fail_later(self, after: int, code: int) -> None:
        self.disk.fail = {self.disk.calls + after: code}

    @rule(more=st.integers(0, 20_000))
    def fill(self, more: int) -> None:
        self.disk.capacity = self.disk.used + more

    @rule()
    def make_room(self) -> None:
        self.disk.capacity = 1 << 40

    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        seed = data.draw(st.integers(0, 2**32))
        choices = random.Random(seed)
        self.recover(lambda limit: choices.randrange(limit))

    # --- what must hold ---

    def recover(self, choose: Callable[[int], int], *, stopped: bool = False) -> None:
        if not stopped:
            self.disk.crash(choose)
        self.disk.capacity = 1 << 40
        while True:
            try:
                self.log, recovery = opened(self.disk)
                break
            except OSError:  # a recovery may be interrupted, too
                self.disk.crash(choose)
        assert recovery.stopped or not stopped
        self.check(recovery)

    def check(self, recovery: Recovery) -> None:
        assert recovery.state is not None
        end = recovery.state.position + len(recovery.batches)
        assert self.acknowledged <= end <= len(self.written)
        for record in recovery.batches:
            assert record.payload == self.written[record.position]
        # What was not acknowledged may be gone; the log goes on from what is there.
        del self.written[end:]
        self.acknowledged = end
        self.first = max(self.first, self.log.start)

    @invariant()
    def everything_written_is_read_back(self) -> None:
        read = [(record.position, record.payload) for record in self.log.read(self.first)]
        expected = list(enumerate(self.written))[self.log.start :]
        assert read == expected[len(expected) - len(read) :]
        assert len(read) >= len(self.written) - self.first


def test_whatever_the_disk_does_the_log_is_a_prefix_with_all_that_was_acknowledged() -> None:
    run_state_machine_as_test(LogMachine, settings=settings(stateful_step_count=40))


# --- damage ---------------------------------------------------------------------------------------


def stopped_log() -> tuple[SimulatedDisk, list[bytes]]:
    """Return the disk of a log with three segments that was stopped, and what it holds."""
    disk = SimulatedDisk()
    log = started(disk)
    written: list[bytes] = []
    for number in range(24):
        data = payload(number, 100 + 37 * number)
        log.write([NewRecord(BATCH, number, float(number), data, 1)])
        written.append(data)
        log.sync()
        if number in (7, 15):
            assert log.roll(NewRecord(STATE, number + 1, float(number), b"state"), salt=number)
    log.stop(len(written), 99.0)
    return disk, written


def read_all(disk: SimulatedDisk) -> list[bytes]:
    """Open a log as a gateway does, read it from its start, and return what it serves."""
    log, recovery = opened(disk)
    for reason in recovery.unreadable:
        raise DamagedError("a segment", 0, reason)

    return [record.payload for record in log.read(log.start)]


def test_an_undamaged_log_is_read_whole() -> None:
    disk, written = stopped_log()
    assert read_all(disk) == written


@settings(max_examples=300)
@given(data=st.data())
def test_a_flipped_bit_is_detected_or_without_consequence(data: st.DataObject) -> None:
    disk, written = stopped_log()
    name = data.draw(st.sampled_from(disk.names()))
    content = disk.content(name)
    used = len(bytes(content).rstrip(b"\0"))
    at = data.draw(st.integers(0, used - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = read_all(disk)
    except (DamagedError, LogFormatError):
        return
    assert found == written


@settings(max_examples=200)
@given(data=st.data())
def test_a_truncated_file_is_detected_or_without_consequence(data: st.DataObject) -> None:
    disk, written = stopped_log()
    name = data.draw(st.sampled_from(disk.names()))
    content = disk.content(name)
    del content[data.draw(st.integers(0, len(content) - 1)) :]
    try:
        found = read_all(disk)
    except DamagedError:
        return
    assert found == written


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_missing_segment_is_detected(which: int) -> None:
    disk, written = stopped_log()
    disk.remove(disk.names()[which])
    if which == 0:  # as retention leaves it
        assert read_all(disk) == written[8:]
        return
    with pytest.raises(DamagedError):
        read_all(disk)


def test_a_newer_format_is_refused_in_one_line() -> None:
    disk, _ = stopped_log()
    content = disk.content(disk.names()[-1])
    header = segments.decode_header("x", bytes(content[:32]))
    assert header is not None
    newer = segments.encode_header(header, version=9)
    content[: len(newer)] = newer
    with pytest.raises(LogFormatError, match="format version 9; this gateway reads version 1"):
        opened(disk)
