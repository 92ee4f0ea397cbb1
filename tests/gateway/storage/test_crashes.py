"""The file log on a disk that crashes, fails and fills up: what was synced is never lost."""

import errno
import math
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from mcpp_gateway.storage.segment_log import Recovery, SegmentLog
from mcpp_gateway.storage.segments import BATCH, STATE, NewRecord
from tests.gateway.storage.logs import opened, payload
from tests.gateway.storage.simulated_disk import SimulatedDisk


class LogMachine(RuleBasedStateMachine):
    """Writes numbered batches, ends at any point in any way, and checks what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.disk: SimulatedDisk
        self.log: SegmentLog
        self.written: list[bytes] = []  # every batch given to `write`, by position
        self.acknowledged = 0  # how many of them were synced
        self.cut = 0  # the position before which retention may have deleted batches
        self.states: list[bytes] = []  # the last state that was synced, and one that may be
        self.salt = 1
        # Whether a recovery failed: what it cleared may come back with the next power failure.
        self.recovery_failed = False

    @initialize(sector=st.sampled_from([64, 512, 4096]), seed=st.integers(0, 2**32))
    def start(self, sector: int, seed: int) -> None:
        self.disk = SimulatedDisk(sector_bytes=sector, choose=random.Random(seed).randrange)
        self.log, recovery = opened(self.disk)
        assert recovery.state is None
        self.states = [b"first"]
        self.log.create(NewRecord(STATE, 0, 0.0, b"first"), salt=7)

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
            self.restart()
        else:
            if sync:
                self.acknowledged = len(self.written)

    @rule(sync=st.booleans())
    def mark(self, sync: bool) -> None:
        if not self.log.needs_mark:
            return
        try:
            self.log.mark()
            if sync:
                self.log.sync_mark()
        except OSError:
            self.restart()

    @rule(size=st.integers(0, 3000))
    def roll(self, size: int) -> None:
        end = len(self.written)
        self.salt += 1
        state = payload(self.salt, size)
        try:
            self.log.sync()
            self.acknowledged = end
            self.states.append(state)
            if self.log.roll(NewRecord(STATE, end, float(end), state), self.salt):
                self.states = [state]
            else:
                self.states.pop()
        except OSError:
            self.restart()

    @rule()
    def grow(self) -> None:
        try:
            self.log.grow()
        except OSError:
            self.restart()

    @rule()
    def stop(self) -> None:
        end = len(self.written)
        full = self.log.room_bytes < 100
        try:
            self.log.sync()
            self.acknowledged = end
            self.log.stop(end, float(end))
        except OSError:
            self.restart()
        else:
            if self.disk.choose(2):
                self.disk.crash()
            recovery = self.recover()
            assert recovery.stopped or full
            assert recovery.dropped_bytes == 0 or self.recovery_failed

    @rule(keep=st.integers(0, 20_000))
    def retain_bytes(self, keep: int) -> None:
        try:
            self.log.retain(since=None, max_bytes=keep)
        except OSError:
            self.cut = max(self.cut, self.log.start)
            self.restart()
        else:
            self.cut = max(self.cut, self.log.start)
            segments = [name for name in self.disk.names() if name.endswith(".seg")]
            assert len(segments) == 1 or self.log.held_bytes <= keep

    @rule(age=st.integers(0, 30))
    def retain_age(self, age: int) -> None:
        since = len(self.written) - age
        try:
            self.log.retain(since=float(since), max_bytes=None)
        except OSError:
            self.cut = max(self.cut, self.log.start)
            self.restart()
        else:
            self.cut = max(self.cut, self.log.start)
            assert self.log.start >= min(since, len(self.written))

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

    @rule()
    def lose_power(self) -> None:
        self.disk.crash()
        self.recover()

    @rule()
    def kill(self) -> None:
        self.recover()

    # --- what must hold ---

    def restart(self) -> None:
        """End the process as after an error: what the page cache holds may survive or not."""
        if self.disk.choose(2):
            self.disk.crash()
        self.recover()

    def recover(self) -> Recovery:
        while True:
            try:
                self.log, recovery = opened(self.disk)
                break
            except OSError as error:  # a recovery may fail and be interrupted, too
                assert error.errno != errno.ENOENT
                self.recovery_failed = True
                if self.disk.choose(2):
                    self.disk.crash()
        self.check(recovery)
        return recovery

    def check(self, recovery: Recovery) -> None:
        assert recovery.state is not None
        assert recovery.state.payload in self.states
        assert recovery.unreadable == []
        end = recovery.state.position + len(recovery.batches)
        assert self.acknowledged <= end <= len(self.written)
        for record in recovery.batches:
            assert record.payload == self.written[record.position]
        assert self.log.start <= self.cut
        # What was not acknowledged may be gone; the log goes on from what is there, which will
        # not be lost any more.
        self.states = [recovery.state.payload]
        del self.written[end:]
        self.acknowledged = end

    @invariant()
    def everything_written_is_read_back(self) -> None:
        if not self.states:
            return
        start = self.log.start
        read = [(record.position, record.payload) for record in self.log.read(start)]
        assert read == list(enumerate(self.written))[start:]

    @invariant()
    def positions_are_found_by_time(self) -> None:
        if not self.states:
            return
        end = len(self.written)
        first = next((record.position for record in self.log.read(0)), end)
        for time in (0.0, end / 2, end - 1.5, float(end)):
            assert self.log.position_at(time) == min(max(first, math.ceil(time)), end)


@pytest.mark.rule("L-05", "L-06", "L-07", "L-26")
def test_whatever_the_disk_does_the_log_is_a_prefix_with_all_that_was_acknowledged() -> None:
    run_state_machine_as_test(LogMachine, settings=settings(stateful_step_count=40))


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_same_for_a_long_time() -> None:
    many = settings(max_examples=20_000, stateful_step_count=60, derandomize=False, database=None)
    run_state_machine_as_test(LogMachine, settings=many)
