"""The file log: damage, foreign files, retention and reading beside the writer."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import BATCH, STATE, DamagedError, LogFormatError, NewRecord
from tests.gateway.storage.logs import (
    OPTIONS,
    opened,
    payload,
    quiet_log,
    read_all,
    roll,
    started,
    stopped_log,
    write,
)
from tests.gateway.storage.simulated_disk import SimulatedDisk, SimulatedFile

NewLog: TypeAlias = Callable[[], tuple[SimulatedDisk, list[bytes]]]
ended = pytest.mark.parametrize("log", [stopped_log, quiet_log])


@ended
def test_an_undamaged_log_is_read_completely(log: NewLog) -> None:
    disk, written = log()
    assert opened(disk)[1].dropped_bytes == 0
    assert read_all(disk) == written


@pytest.mark.rule("L-26")
def test_a_mark_of_the_segment_before_does_not_count() -> None:
    log = started(SimulatedDisk())
    for number in range(2):  # segments whose records have the same sizes
        write(log, number, 100)
        assert log.needs_mark
        log.mark()
        roll(log, number + 1)


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.rule("L-08", "L-26")
@ended
@settings(max_examples=300)
@given(data=st.data())
def test_a_flipped_bit_is_detected_or_without_consequence(log: NewLog, data: st.DataObject) -> None:
    disk, written = log()
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


@pytest.mark.rule("L-08", "L-26")
@ended
@settings(max_examples=200)
@given(data=st.data())
def test_a_truncated_file_is_detected_or_without_consequence(
    log: NewLog, data: st.DataObject
) -> None:
    disk, written = log()
    name = data.draw(st.sampled_from(disk.names()))
    content = disk.content(name)
    del content[data.draw(st.integers(0, len(content) - 1)) :]
    try:
        found = read_all(disk)
    except DamagedError:
        return
    assert found == written


@pytest.mark.rule("L-08")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_missing_segment_is_detected(which: int) -> None:
    disk, written = stopped_log()
    disk.remove(disk.names()[which])
    if which == 0:  # as retention leaves it
        assert read_all(disk) == written[8:]
        return
    with pytest.raises(DamagedError, match="the segment that follows it is missing"):
        read_all(disk)


@pytest.mark.rule("L-08")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_segment_of_another_log_is_not_served(which: int) -> None:
    disk, _ = stopped_log()
    other = SimulatedDisk()
    log = started(other)
    for number in range(24):
        write(log, number, 50)
        if number in (7, 15):
            assert log.roll(NewRecord(STATE, number + 1, 0.0, b"state"), salt=1000 + number)
    log.stop(24, 99.0)
    name = disk.names()[which]
    disk.content(name)[:] = other.content(name)
    with pytest.raises(DamagedError, match="the segment that follows it is missing"):
        read_all(disk)


def test_a_renamed_segment_is_detected() -> None:
    disk, _ = stopped_log()
    last = disk.names()[-1]
    disk.add(segments.segment_name(40), bytes(disk.content(last)))
    with pytest.raises(DamagedError, match="its header is that of"):
        read_all(disk)


@pytest.mark.rule("L-09")
def test_the_log_behind_damage_is_served() -> None:
    disk, written = stopped_log()
    disk.content(disk.names()[0])[0:1] = b"?"
    log, recovery = opened(disk)
    assert [reason.split(" is damaged")[0] for reason in recovery.unreadable] == [disk.names()[0]]
    assert [record.payload for record in log.read(0)] == written[8:]


@pytest.mark.rule("L-08")
def test_a_damaged_newest_segment_is_neither_deleted_nor_replaced() -> None:
    disk = SimulatedDisk()
    log = started(disk)
    write(log, 0, 100)
    roll(log, 1)
    disk.content(disk.names()[-1])[40] ^= 1  # its only record is the state
    before = {name: bytes(disk.content(name)) for name in disk.names()}
    with pytest.raises(DamagedError, match="beginning is unreadable"):
        opened(disk)
    assert {name: bytes(disk.content(name)) for name in disk.names()} == before


@pytest.mark.rule("L-02")
@pytest.mark.parametrize("checksum", [True, False])
def test_a_newer_format_is_refused_in_one_line(checksum: bool) -> None:
    disk, _ = stopped_log()
    content = disk.content(disk.names()[-1])
    header = segments.decode_header(disk.names()[-1], bytes(content[:32]))
    assert header is not None
    newer = segments.encode_header(header, version=9)
    content[: len(newer)] = newer
    content[12] ^= not checksum
    with pytest.raises(LogFormatError, match="format version 9; this program reads version 1"):
        opened(disk)


@pytest.mark.rule("L-01")
@pytest.mark.parametrize("name", ["notes.txt", "zzz.seg", "99.seg", "00000000000000000040.seg.tmp"])
def test_other_files_are_left_alone(name: str) -> None:
    disk, written = stopped_log()
    disk.add(name, b"anything")
    assert read_all(disk) == written
    assert bytes(disk.content(name)) == b"anything"


@pytest.mark.rule("L-06")
@pytest.mark.parametrize("data", [b"", bytes(4096), b"MCPPSEG"])
def test_a_segment_whose_creation_was_interrupted_is_deleted(data: bytes) -> None:
    disk = SimulatedDisk()
    log = started(disk)
    written = [write(log, number, 100) for number in range(3)]
    disk.add(segments.segment_name(3), data)
    assert read_all(disk) == written
    assert disk.names() == [segments.segment_name(0)]


@pytest.mark.rule("L-06")
@pytest.mark.parametrize("sealed", [True, False])
def test_an_interrupted_roll_is_completed(sealed: bool) -> None:
    """The seal reached the disk and the truncation behind it did not, or neither did."""
    disk = SimulatedDisk()
    log = started(disk)
    written = [write(log, number, 100) for number in range(3)]
    name = disk.names()[0]
    before = bytes(disk.content(name))
    roll(log, 3)
    after = bytes(disk.content(name))
    disk.content(name)[:] = (after if sealed else before).ljust(len(before), b"\0")
    if not sealed:
        disk.content(name)[:] = before
    assert read_all(disk) == written
    assert bytes(disk.content(name)) == after


@pytest.mark.rule("L-06")
def test_clearing_an_interrupted_write_keeps_the_reserved_space() -> None:
    disk = SimulatedDisk()
    log = started(disk)
    write(log, 0, 100)
    size = len(disk.content(disk.names()[0]))
    at = log.written_bytes
    disk.content(disk.names()[0])[at : at + 5] = b"torn!"
    disk.capacity = disk.used
    log, recovery = opened(disk)
    assert recovery.dropped_bytes == 5
    assert len(disk.content(disk.names()[0])) == size
    assert log.room_bytes > 0


@pytest.mark.rule("L-05")
def test_a_failed_sync_while_growing_is_never_taken_for_a_full_disk() -> None:
    disk = SimulatedDisk()
    log = started(disk)
    log.write([NewRecord(BATCH, 0, 0.0, payload(0, 2000), 1)])
    disk.fail = {disk.calls + 2: errno.ENOSPC}  # allocate, sync
    with pytest.raises(OSError, match="No space"):
        log.grow()


@pytest.mark.rule("L-05")
@pytest.mark.parametrize("call", range(1, 6))
def test_a_segment_that_could_not_be_created_does_not_come_back(call: int) -> None:
    disk = SimulatedDisk()
    log = started(disk)
    written = [write(log, 0, 100)]
    disk.fail = {disk.calls + call: errno.ENOSPC}
    assert not log.roll(NewRecord(STATE, 1, 1.0, b"state"), salt=5)
    written.append(write(log, 1, 100))
    disk.crash()
    assert read_all(disk) == written


@pytest.mark.rule("L-05", "L-06")
def test_a_removal_that_was_not_synced_is_made_durable_by_the_next_start() -> None:
    disk = SimulatedDisk()
    log = started(disk)
    written = [write(log, 0, 100)]
    # The new segment's name reaches the disk although the sync fails; its removal does not.
    disk.fail = {disk.calls + 5: errno.EIO, disk.calls + 7: errno.EIO}
    answers = iter([1, 0])
    disk.choose = lambda limit: next(answers)
    with pytest.raises(OSError, match="Input/output"):
        log.roll(NewRecord(STATE, 1, 1.0, b"state"), salt=5)
    assert disk.fail == {}
    log, _ = opened(disk)  # the process was started again, and the machine was not
    written.append(write(log, 1, 100))
    disk.choose = lambda limit: 0
    disk.crash()
    assert read_all(disk) == written


@pytest.mark.rule("L-04")
def test_rolling_an_empty_segment_replaces_its_state() -> None:
    disk = SimulatedDisk()
    log = started(disk)
    assert log.newest_is_empty
    assert log.roll(NewRecord(STATE, 0, 5.0, b"second"), salt=9)
    assert log.newest_created == 5.0
    written = [write(log, 0, 100)]
    assert disk.names() == [segments.segment_name(0)]
    log, recovery = opened(disk)
    assert recovery.state is not None
    assert recovery.state.payload == b"second"
    assert [record.payload for record in recovery.batches] == written


# --- retention ------------------------------------------------------------------------------------


@pytest.mark.rule("L-10")
def test_what_is_too_old_is_hidden_at_once_and_deleted_with_its_segment() -> None:
    disk, _ = stopped_log()
    log, _ = opened(disk)
    assert log.retain(since=5.0, max_bytes=None) == 0
    assert log.start == 5
    assert log.retain(since=12.0, max_bytes=None) == 1
    assert log.start == 12
    assert len(disk.names()) == 2
    assert log.retain(since=1000.0, max_bytes=None) == 1
    assert log.start == 24
    assert len(disk.names()) == 1


@pytest.mark.rule("L-10")
def test_retention_deletes_segments_that_cannot_be_served_too() -> None:
    disk, _ = stopped_log()
    first, second, third = disk.names()
    disk.content(second)[0:1] = b"?"
    log, recovery = opened(disk)
    assert recovery.unreadable
    assert log.disk_bytes == disk.used
    assert log.retain(since=None, max_bytes=log.held_bytes - 1) == 1
    assert disk.names() == [second, third]
    assert log.retain(since=1000.0, max_bytes=None) == 1
    assert disk.names() == [third]
    assert first not in disk.names()


@pytest.mark.rule("L-10")
def test_an_interrupted_retention_leaves_no_hole() -> None:
    for call in range(1, 5):
        disk, written = stopped_log()
        log, _ = opened(disk)
        disk.fail = {disk.calls + call: errno.EIO}
        with pytest.raises(OSError, match="Input/output"):
            log.retain(since=None, max_bytes=0)
        disk.crash()
        found = read_all(disk)
        assert found == written[len(written) - len(found) :]


def test_positions_are_found_among_equal_times() -> None:
    disk = SimulatedDisk()
    log = started(disk)
    times = [1.0] * 30 + [2.0] * 60 + [3.0] * 30
    for number, time in enumerate(times):
        write(log, number, 2500, time)
    assert [log.position_at(time) for time in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)] == [
        *(0, 0, 30, 30, 90, 90),
        120,
    ]


# --- reading --------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(position=st.integers(0, 30))
def test_reading_begins_with_the_batch_that_holds_the_position(position: int) -> None:
    disk, written = stopped_log()
    log, _ = opened(disk)
    assert [record.payload for record in log.read(position)] == written[position:]


def test_a_reader_never_skips_what_retention_deletes_meanwhile(tmp_path: Path) -> None:
    log = SegmentLog(OsDisk(tmp_path), OPTIONS)
    log.recover()
    log.create(NewRecord(STATE, 0, 0.0, b"state"), salt=1)
    for number in range(40):
        write(log, number, 100)
        roll(log, number + 1)
    reader = log.read(0)
    assert next(reader).position == 0
    log.retain(since=35.0, max_bytes=None)
    with pytest.raises(DamagedError, match="deleted by retention"):
        next(reader)


@pytest.mark.rule("L-08")
def test_a_segment_that_was_deleted_by_hand_is_reported(tmp_path: Path) -> None:
    log = SegmentLog(OsDisk(tmp_path), OPTIONS)
    log.recover()
    log.create(NewRecord(STATE, 0, 0.0, b"state"), salt=1)
    for number in range(40):
        write(log, number, 100)
        roll(log, number + 1)
    (tmp_path / segments.segment_name(2)).unlink()
    with pytest.raises(DamagedError, match="the file is missing"):
        list(log.read(2))


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


def test_a_bounded_number_of_files_is_open(tmp_path: Path) -> None:
    log = SegmentLog(OsDisk(tmp_path), OPTIONS)
    log.recover()
    log.create(NewRecord(STATE, 0, 0.0, b"state"), salt=1)
    before = open_files()
    for number in range(60):
        write(log, number, 100)
        roll(log, number + 1)
    assert len(list(log.read(0))) == 60
    log.retain(since=None, max_bytes=1 << 40)
    assert log.disk_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert open_files() <= before + 20


# --- reserved space -------------------------------------------------------------------------------


@given(st.binary(max_size=40), st.sampled_from([0, 1, 7, 262_140, 262_144, 600_000]))
def test_the_zeros_at_the_end_of_a_file_are_found(data: bytes, zeros: int) -> None:
    disk = SimulatedDisk()
    disk.add("file", data + bytes(zeros))
    assert segments.used_bytes(disk.open("file")) == len(data.rstrip(b"\0"))


@pytest.mark.rule("L-18")
def test_recovery_reads_reserved_space_once(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimulatedDisk()
    log = SegmentLog(disk)
    log.recover()
    log.create(NewRecord(STATE, 0, 0.0, b"state"), salt=7)
    write(log, 0, 100)
    (name,) = disk.names()
    sizes: list[int] = []
    read = SimulatedFile.read

    def count(file: SimulatedFile, offset: int, size: int) -> bytes:
        data = read(file, offset, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(SimulatedFile, "read", count)
    again = SegmentLog(disk)
    assert len(again.recover().batches) == 1
    assert sum(sizes) < 1.02 * len(disk.content(name))


@pytest.mark.rule("L-18", "L-08")
def test_a_lost_part_in_front_of_a_synced_record_is_damage_wherever_that_is() -> None:
    disk = SimulatedDisk()
    log = started(disk)
    for number in range(8):
        write(log, number, 4000)
        log.grow()
    content = disk.content(disk.names()[-1])
    at = bytes(content).index(payload(1, 4000))
    end = bytes(content).index(payload(7, 4000)) - 100
    content[at:end] = bytes(end - at)
    with pytest.raises(DamagedError):
        opened(disk)
