"""The log in memory: bounded by count and bytes, read from positions."""

import pytest

from mcpp_gateway.core.journal import MemoryJournal
from mcpp_gateway.core.records import LogEntry


def entry(id: str, size: int = 10, to: frozenset[str] | None = None) -> LogEntry:
    return LogEntry(id, "a", to, "chat", None, b"x" * size)


def filled(log: MemoryJournal, count: int) -> MemoryJournal:
    for i in range(count):
        log.append(entry(str(i)))
    return log


@pytest.mark.rule("G-29")
def test_the_oldest_go_first_when_there_are_too_many() -> None:
    log = filled(MemoryJournal(3, 1000), 5)
    assert (log.start, log.end) == (2, 5)
    assert [each.id for each in log.read(0, 100)] == ["2", "3", "4"]
    assert log.find("1") is None
    assert log.after("1") is None


@pytest.mark.rule("G-29")
def test_the_oldest_go_first_when_they_are_too_large() -> None:
    log = filled(MemoryJournal(1000, 35), 5)
    assert [each.id for each in log.read(0, 100)] == ["2", "3", "4"]
    log.append(entry("large", 30))
    assert [each.id for each in log.read(0, 100)] == ["large"]
    log.append(entry("larger", 36))
    assert log.read(0, 100) == []
    assert log.start == log.end == 7


@pytest.mark.rule("G-12")
def test_positions_go_on_behind_an_envelope() -> None:
    log = filled(MemoryJournal(10, 1000), 5)
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
