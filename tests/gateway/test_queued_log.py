"""Logging through a bounded queue: the gateway never waits for whoever reads its log."""

import io
import logging
import os
import time
from collections.abc import Iterator

import pytest

from mcpp_gateway.log_format import _TextLines
from mcpp_gateway.queued_log import QueuedHandler


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
