"""The log in memory: bounded by count and bytes, read from positions."""

import tracemalloc

import pytest

from mcpp.protocol.codec import decode
from mcpp_gateway.core.journal import ENTRY_BYTES, MemoryJournal, Window
from mcpp_gateway.core.records import LogEntry
from tests.gateway.harness import text


def entry(id: str, size: int = 10, to: frozenset[str] | None = None) -> LogEntry:
    return LogEntry(id, "a", to, "chat", None, b"x" * size)


def filled(log: MemoryJournal, count: int) -> MemoryJournal:
    for i in range(count):
        log.append(entry(str(i)))
    return log


@pytest.mark.rule("G-29")
def test_the_oldest_go_first_when_there_are_too_many() -> None:
    log = filled(MemoryJournal(3, 100_000), 5)
    assert (log.start, log.end) == (2, 5)
    assert [each.id for each in log.read(0, 100)] == ["2", "3", "4"]
    assert log.find("1") is None
    assert log.after("1") is None


@pytest.mark.rule("G-29")
def test_the_oldest_go_first_when_they_are_too_large() -> None:
    log = filled(MemoryJournal(1000, 3 * (ENTRY_BYTES + 10) + 5), 5)
    assert [each.id for each in log.read(0, 100)] == ["2", "3", "4"]
    log.append(entry("large", 2 * ENTRY_BYTES + 30))
    assert [each.id for each in log.read(0, 100)] == ["large"]
    log.append(entry("larger", 2 * ENTRY_BYTES + 36))
    assert log.read(0, 100) == []
    assert log.start == log.end == 7


@pytest.mark.rule("G-29")
def test_a_window_stays_within_its_bytes_while_it_moves_on() -> None:
    window = Window(1000, 3 * (ENTRY_BYTES + 10) + 5)
    for number in range(2000):
        window.append(entry(str(number), to=frozenset("b") if number % 2 else None))
        window.trim(window.end)
    window.append(entry("large", 2 * ENTRY_BYTES + 30))
    window.trim(window.end)
    assert list(window.positions) == ["large"]


@pytest.mark.rule("G-12")
def test_positions_go_on_behind_an_envelope() -> None:
    log = filled(MemoryJournal(10, 100_000), 5)
    position = log.after("2")
    assert position is not None
    assert [each.id for each in log.read(position, 1)] == ["3"]
    assert log.after("4") == log.end
    assert log.read(log.end, 10) == []
    found = log.find("2")
    assert found is not None
    assert found.id == "2"


@pytest.mark.rule("G-29")
def test_a_log_of_nothing_remembers_nothing() -> None:
    log = filled(MemoryJournal(0, 1000), 3)
    assert log.start == log.end == 3
    assert log.find("2") is None


@pytest.mark.rule("G-47")
def test_long_lists_of_recipients_count_for_the_room_they_take() -> None:
    log = MemoryJournal(1000, 10_000)
    for i in range(20):
        log.append(entry(str(i), to=frozenset(str(i) for i in range(50))))
    assert log.end - log.start == 1


@pytest.mark.rule("G-29", "G-47")
def test_small_entries_take_no_more_memory_than_they_count() -> None:
    """A million of them took 4.5 times their text, which alone was counted."""
    limit = 4_000_000
    tracemalloc.start()
    try:
        log = MemoryJournal(1_000_000, limit)
        before, _ = tracemalloc.get_traced_memory()
        for number in range(30_000):
            data = text(f"m-{number}", "a")
            read = decode(data)
            log.append(LogEntry(read.id, "a", None, read.kind, None, data))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert log.start > 0
    assert taken < 1.25 * limit
