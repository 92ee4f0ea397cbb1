"""A log handler that never blocks: a bounded queue, a writing thread, and limits on repetition.

What does not fit is dropped and counted; so are lines with the same message beyond a rate. Both
counts are logged themselves, once there is room and at most once a minute. On a terminal, a line
about progress is replaced by the line that follows it.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

PROGRESS: Final = "progress"
"""The attribute of a record about work that goes on: the share that is done."""

_CLEAR_LINE: Final = "\r\x1b[K"
_MAX_LINES: Final = 2_000
_MAX_BYTES: Final = 1_000_000
_FLUSH_SECONDS: Final = 1.0
_MINUTE: Final = 60.0
# Lines with the same message: so many at once, and so many a minute after that.
_REPETITIONS: Final = 1_000
_REPETITIONS_A_MINUTE: Final = 600
# Those that a peer can cause without being admitted.
_FOREIGN_REPETITIONS: Final = 20
_MAX_MESSAGES: Final = 256  # different messages that are counted


class QueuedHandler(logging.Handler):
    """Formats lines and leaves them to its thread. Owns the queue and the thread."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.dropped = 0  # lines that found no room, since they were last reported
        self._stream = stream
        self._clock = clock
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._writing = False
        self._repetitions: dict[str, _Repetition] = {}
        self._is_terminal = stream.isatty()
        self._to_replace = False  # whether the last line is to be replaced by the next one
        self._thread = threading.Thread(target=self._write, name="mcpp-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, unless it is one too many."""
        try:
            repetition = self._repetition(record)
            if not repetition.take(self._clock()):
                return
            if repetition.left_out:
                record.__dict__["left_out"] = repetition.left_out
                repetition.left_out = 0
            self._add(self._ended(self.format(record), hasattr(record, PROGRESS)))
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until what was queued is written, but not for long."""
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._lines or self._writing), timeout=_FLUSH_SECONDS
            )

    def close(self) -> None:
        """Write what is queued and stop the thread, unless the output is not read."""
        self.flush()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        super().close()

    def _ended(self, line: str, is_progress: bool) -> str:
        begin = _CLEAR_LINE if self._to_replace else ""
        self._to_replace = is_progress and self._is_terminal
        return f"{begin}{line}{'' if self._to_replace else chr(10)}"

    def _repetition(self, record: logging.LogRecord) -> "_Repetition":
        message = str(record.msg)
        found = self._repetitions.get(message)
        if found is None:
            if len(self._repetitions) >= _MAX_MESSAGES:
                self._repetitions.clear()
            is_foreign = hasattr(record, "address")
            burst = _FOREIGN_REPETITIONS if is_foreign else _REPETITIONS
            rate = 1 if is_foreign else _REPETITIONS_A_MINUTE
            found = self._repetitions[message] = _Repetition(burst, rate)
        return found

    def _add(self, line: str) -> None:
        with self._changed:
            if len(self._lines) >= _MAX_LINES or self._bytes + len(line) > _MAX_BYTES:
                self.dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify_all()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._closing)
                if not self._lines:
                    return
                self._writing = True
                lines = list(self._lines)
                self._lines.clear()
                self._bytes = 0
                if self.dropped:
                    lines.append(
                        f"{self.dropped} log lines were dropped: they were not read in time\n"
                    )
                    self.dropped = 0
            with suppress(OSError, ValueError):  # there is no other place to report it
                self._output("".join(lines))

    def _output(self, text: str) -> None:
        try:
            descriptor = self._stream.fileno()
        except (AttributeError, OSError):  # it is no file
            self._stream.write(text)
            self._stream.flush()
            return
        # Past the stream's own buffer, whose lock would be held while the process ends.
        data = text.encode(errors="backslashreplace")
        while data:
            data = data[os.write(descriptor, data) :]


class _Repetition:
    """Lines with one message: how many more may be logged, and how many were left out."""

    __slots__ = ("_at", "_burst", "_left", "_rate", "left_out")

    def __init__(self, burst: int, rate: int) -> None:
        self._burst = burst
        self._rate = rate  # a minute
        self._left = float(burst)
        self._at = 0.0
        self.left_out = 0

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self._at) * self._rate / _MINUTE)
        self._at = now
        if self._left < 1:
            self.left_out += 1
            return False
        self._left -= 1
        return True
