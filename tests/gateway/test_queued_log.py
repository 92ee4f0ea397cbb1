"""Logging through a bounded queue: the gateway never waits for whoever reads its log."""

import fcntl
import io
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from mcpp_gateway.log_format import _JsonLines, _TextLines
from mcpp_gateway.queued_log import AUDIT_LOGGER, QueuedHandler


def record(message: str, **facts: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": message, "levelno": logging.INFO, **facts})


@pytest.fixture
def pipe() -> Iterator[tuple[int, QueuedHandler]]:
    """A handler that writes to a pipe, and the end that is not read."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        handler = QueuedHandler(stream)
        yield reading, handler
        os.close(reading)
        handler.close()


@pytest.mark.rule("G-67")
def test_a_pipe_that_is_not_read_stops_nobody(pipe: tuple[int, QueuedHandler]) -> None:
    reading, handler = pipe
    began = time.monotonic()
    for number in range(20_000):
        handler.emit(record(f"line {number} " + "x" * 200))
    assert time.monotonic() - began < 5
    assert handler.dropped > 10_000
    text = b""
    while b"log lines were dropped" not in text:
        text += os.read(reading, 1 << 16)
    assert text.startswith(b"line 0 ")


def test_on_a_terminal_a_progress_bar_is_drawn_in_place() -> None:
    reading, writing = os.openpty()
    with os.fdopen(writing, "w") as stream:
        handler = QueuedHandler(stream)
        handler.setFormatter(_TextLines())
        for share in (0.0, 0.25, 0.999):
            handler.emit(record("indexing", progress=share))
        handler.emit(record("indexed", seconds=3))
        handler.flush()
        text = os.read(reading, 4096).decode()
        handler.close()
    os.close(reading)
    first, *others = text.split("\r\x1b[K")
    assert "indexing [....................] 0 %" in first
    assert "\n" not in "".join([first, *others[:-1]])
    assert [line.partition("] ")[2] for line in others[:-1]] == ["25 %", "99 %"]
    assert others[-1].endswith("indexed seconds=3\r\n")


def test_elsewhere_each_report_of_progress_is_a_line() -> None:
    stream = io.StringIO()
    handler = QueuedHandler(stream)
    handler.setFormatter(_TextLines())
    for share in (0.0, 0.5):
        handler.emit(record("indexing", progress=share))
    handler.close()
    assert [line.partition("indexing ")[2] for line in stream.getvalue().splitlines()] == [
        "[....................] 0 %",
        "[##########..........] 50 %",
    ]


@pytest.mark.rule("G-67")
def test_repeated_lines_are_left_out_and_counted() -> None:
    now, stream = [0.0], io.StringIO()
    handler = QueuedHandler(stream, clock=lambda: now[0])
    handler.setFormatter(logging.Formatter("%(message)s %(left_out)s", defaults={"left_out": 0}))
    for _ in range(500):
        handler.emit(record("request refused", address="127.0.0.1"))
    now[0] = 61.0
    handler.emit(record("request refused", address="127.0.0.1"))
    handler.emit(record("something else"))
    handler.flush()
    lines = stream.getvalue().splitlines()
    assert lines == ["request refused 0"] * 20 + ["request refused 480", "something else 0"]


def joins(participants: Iterable[str], pods: int = 1) -> list[str]:
    """Return the lines of participants that join one pod after another at one time."""
    stream = io.StringIO()
    handler = QueuedHandler(stream, clock=lambda: 0.0)
    handler.setFormatter(_TextLines())
    for number, each in enumerate(participants):
        of = {"address": "10.0.0.7", "pod": f"p{number % pods}", "participant": each}
        handler.emit(record("joined", **of))
        if number % 500 == 499:
            handler.flush()
    handler.close()
    return stream.getvalue().splitlines()


@pytest.mark.rule("G-67")
def test_a_thousand_participants_that_come_back_leave_a_line_each() -> None:
    names = [f"agent-{number}" for number in range(1_000)]
    lines = joins(names)
    assert [line.rpartition("=")[2] for line in lines] == names


@pytest.mark.rule("G-67")
def test_a_participant_that_keeps_reconnecting_hides_no_other() -> None:
    lines = joins(["flapping"] * 5_000 + ["a", "b", "c"])
    assert sum("participant=flapping" in line for line in lines) == 100
    assert [line.partition("participant=")[2] for line in lines[100:]] == [
        "a left_out=4900",
        "b",
        "c",
    ]


@pytest.mark.rule("G-67")
@pytest.mark.parametrize("noisy", [1, 50])
def test_a_thousand_quiet_participants_leave_a_line_each_beside_noisy_ones(noisy: int) -> None:
    names = [f"agent-{number}" for number in range(1_000 - noisy)]
    flapping = [f"flapping-{number % noisy}" for number in range(5_000)]
    mixed = [*flapping, *(each for name in names for each in (name, "flapping-0"))]
    shown = [line.partition("participant=")[2].split()[0] for line in joins(mixed)]
    assert [name for name in shown if name.startswith("agent-")] == names
    assert len(shown) == len(names) + min(100 * noisy, noisy + 1_000)


@pytest.mark.rule("G-67")
def test_lines_of_any_number_of_participants_are_bounded() -> None:
    names = [f"agent-{number}" for number in range(3_000)]
    assert len(joins(names * 3)) == 2_000


@pytest.mark.rule("G-67")
def test_a_participant_that_was_quiet_for_a_minute_is_not_hidden_by_noisy_ones() -> None:
    now, stream = [0.0], io.StringIO()
    handler = QueuedHandler(stream, clock=lambda: now[0])
    handler.setFormatter(_TextLines())

    def join(name: str) -> None:
        handler.emit(record("joined", participant=name))

    join("quiet")
    for second in range(61):
        now[0] = float(second)
        for number in range(200):
            join(f"flapping-{number}")
        handler.flush()
    join("quiet")
    join("flapping-0")  # for more than a minute, too, but it has tried all the time
    handler.close()
    lines = stream.getvalue().splitlines()
    assert "participant=quiet left_out=" in lines[-1]


@pytest.mark.rule("G-67")
def test_a_participant_of_many_pods_has_no_more_lines() -> None:
    lines = joins(["flapping"] * 2_000 + ["other"], pods=20)
    assert (len(lines), "participant=other" in lines[-1]) == (101, True)


@pytest.mark.rule("G-67")
def test_participants_whose_lines_are_counted_are_bounded() -> None:
    handler = QueuedHandler(io.StringIO(), clock=lambda: 0.0)
    for number in range(10_000):
        handler.emit(record("joined", address="10.0.0.7", pod="demo", participant=f"p{number}"))
    assert len(handler._own_repetitions) == 4_096
    handler.close()


@pytest.mark.rule("G-67")
def test_lines_that_a_full_disk_did_not_take_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Path("/dev/full").open("w") as stream:
        handler = QueuedHandler(stream)
        handler.setFormatter(_JsonLines())
        for number in range(5):
            handler.emit(record(f"lost {number}", levelname="INFO", name=AUDIT_LOGGER))
            handler.flush()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(descriptor, stream.fileno())  # there is space again
        os.close(descriptor)
        for number in range(2):
            handler.emit(record(f"kept {number}", levelname="INFO"))
            handler.flush()
        handler.close()
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == [
        "5 log lines were lost: they could not be written",
        "kept 0",
        "kept 1",
    ]


@pytest.mark.rule("G-67")
def test_after_a_torn_line_the_next_one_begins_anew(pipe: tuple[int, QueuedHandler]) -> None:
    reading, handler = pipe
    size = fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(handler._stream.fileno(), False)
    handler.emit(record("t" * (size + 1_000)))
    handler.flush()
    handler.emit(record("lost"))  # the pipe is still full
    handler.flush()
    torn = os.read(reading, 2 * size)
    assert torn == b"t" * size
    handler.emit(record("whole"))
    handler.flush()
    lines = b"\n2 log lines were lost: they could not be written\nwhole\n"
    assert os.read(reading, size) == lines
    handler.emit(record("next"))
    handler.flush()
    assert os.read(reading, size) == b"next\n"


@pytest.mark.rule("G-67")
def test_flushing_writes_all_and_a_closed_reader_is_no_error(
    pipe: tuple[int, QueuedHandler],
) -> None:
    reading, handler = pipe
    handler.emit(record("first"))
    handler.flush()
    assert os.read(reading, 100) == b"first\n"
    other, writing = os.pipe()
    os.close(other)
    with os.fdopen(writing, "w") as stream:
        broken = QueuedHandler(stream)
        broken.emit(record("lost"))
        broken.flush()
        broken.close()
