"""A log handler that never blocks: a bounded queue, a writing thread, and limits on repetition.

What does not fit is dropped and counted; so are lines with the same message beyond a rate, and
lines that cannot be written, such as on a full disk. The counts are logged themselves, once that is
possible. On a terminal, a line about progress is replaced by the line that follows it.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Final, TextIO, TypeVar

PROGRESS: Final = "progress"
"""The attribute of a record about work that goes on: the share that is done."""

AUDIT_LOGGER: Final = "mcpp.gateway.audit"
"""The logger of what admins do; no line about an admin is left out for being repeated (O-09)."""

_CLEAR_LINE: Final = "\r\x1b[K"
_MAX_LINES: Final = 2_000
_MAX_BYTES: Final = 1_000_000
_FLUSH_SECONDS: Final = 1.0
_MINUTE: Final = 60.0
# Lines with the same message: so many at once, and so many a minute after that. There is one such
# allowance for participants' first lines, and one for all further lines.
_REPETITIONS: Final = (1_000, 600)
# Of these, one participant's: others' lines must not be hidden by one that keeps reconnecting.
_OWN_REPETITIONS: Final = (100, 60)
# Those that a peer can cause without being admitted.
_FOREIGN_REPETITIONS: Final = (20, 1)
_MAX_MESSAGES: Final = 256  # different messages that are counted
_MAX_PARTICIPANTS: Final = 4_096  # and messages of theirs that are counted

K = TypeVar("K")
V = TypeVar("V")


class QueuedHandler(logging.Handler):
    """Formats lines and leaves them to its thread. Owns the queue and the thread."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.dropped = 0  # lines that found no room, since they were last reported
        self._lost = 0  # lines that could not be written, since they were last reported
        self._is_torn = False  # whether the last line was written in part
        self._stream = stream
        self._clock = clock
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closing = False
        self._writing = False
        # Of both, what was not used for longest comes first.
        self._messages: dict[str, _Message] = {}
        self._own_repetitions: dict[tuple[str, str], _Repetitions] = {}
        self._is_terminal = stream.isatty()
        self._to_replace = False  # whether the last line is to be replaced by the next one
        self._thread = threading.Thread(target=self._write, name="mcpp-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, unless it is one too many."""
        try:
            is_admins = record.name == AUDIT_LOGGER and not hasattr(record, "participant")
            if not is_admins and not self._may_repeat(record):
                return
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

    def _may_repeat(self, record: logging.LogRecord) -> bool:
        """Return whether a line may be logged, and note in it how many were left out before."""
        text, now = str(record.msg), self._clock()
        message = _entry(self._messages, text, _Message, _MAX_MESSAGES)
        if not self._take(message, record, now):
            message.left_out += 1
            return False
        if message.left_out:
            record.__dict__["left_out"] = message.left_out
            message.left_out = 0
        return True

    def _take(self, message: "_Message", record: logging.LogRecord, now: float) -> bool:
        participant = getattr(record, "participant", None)
        if participant is None:
            is_foreign = hasattr(record, "address")
            return (message.foreign if is_foreign else message.further).take(now)
        key = (str(record.msg), str(participant))  # in all pods: who may join many has no more
        own = _entry(self._own_repetitions, key, _own_repetitions, _MAX_PARTICIPANTS)
        lines = message.further if now - own.asked < _MINUTE else message.first
        return own.take(now) and lines.take(now)

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
                    lines.append(self._count(self.dropped, "dropped: they were not read in time"))
                    self.dropped = 0
            if self._lost:
                report = self._count(self._lost, "lost: they could not be written")
                if self._output([report]):
                    self._lost = 0
            self._lost += len(lines) - self._output(lines)

    def _count(self, number: int, reason: str) -> str:
        """Return a line about lines that are missing."""
        facts = {"name": "mcpp.gateway", "levelno": logging.WARNING, "levelname": "WARNING"}
        record = logging.makeLogRecord({**facts, "msg": f"{number} log lines were {reason}"})
        return f"{self.format(record)}\n"

    def _output(self, lines: list[str]) -> int:
        """Write lines, and return how many were written completely."""
        encoded = [line.encode(errors="backslashreplace") for line in lines]
        torn = b"\n" if self._is_torn else b""
        data = torn + b"".join(encoded)
        left = data
        try:
            descriptor = self._descriptor()
            if descriptor is None:
                self._stream.write(data.decode())
                self._stream.flush()
                left = b""
            # Past the stream's own buffer, whose lock would be held while the process ends.
            while left and descriptor is not None:
                left = left[os.write(descriptor, left) :]
        except (OSError, ValueError):  # there is no other place to report it
            pass
        size = len(data) - len(left) - len(torn)  # of the lines
        if size < 0:
            return 0
        ends = list(accumulate(map(len, encoded)))
        self._is_torn = size not in (0, *ends)
        return sum(end <= size for end in ends)

    def _descriptor(self) -> int | None:
        """Return the stream's descriptor, if it is a file. Raises ValueError if it is closed."""
        try:
            return self._stream.fileno()
        except (AttributeError, OSError):
            return None


class _Repetitions:
    """Lines with one message, of one origin: how many more may be logged."""

    __slots__ = ("_burst", "_left", "_rate", "asked")

    def __init__(self, burst: int, rate: int) -> None:
        self.asked = -_MINUTE  # when a line was last to be logged
        self._burst = burst
        self._rate = rate  # a minute
        self._left = float(burst)

    def take(self, now: float) -> bool:
        self._left = min(self._burst, self._left + (now - self.asked) * self._rate / _MINUTE)
        self.asked = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Message:
    """One message: how many more lines may have it, by their origin, and how many were left out."""

    __slots__ = ("first", "foreign", "further", "left_out")

    def __init__(self) -> None:
        self.first = _Repetitions(*_REPETITIONS)  # of a participant that had none for a minute
        self.further = _Repetitions(*_REPETITIONS)
        self.foreign = _Repetitions(*_FOREIGN_REPETITIONS)
        self.left_out = 0


def _own_repetitions() -> _Repetitions:
    return _Repetitions(*_OWN_REPETITIONS)


def _entry(table: dict[K, V], key: K, new: Callable[[], V], limit: int) -> V:
    """Return an entry, a new one in the place of the one that was not used for longest."""
    found = table.pop(key, None)
    if found is None:
        if len(table) >= limit:
            del table[next(iter(table))]
        found = new()
    table[key] = found
    return found
