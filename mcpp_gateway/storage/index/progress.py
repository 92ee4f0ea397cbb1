"""Reports on an index that is built again: a progress bar on a terminal, log lines elsewhere."""

import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger("mcpp.gateway")

# Fewer entries than this are indexed in a second or two: not worth a report.
_LEAST_ENTRIES: Final = 20_000
_REPORT_SECONDS: Final = 1.0


class IndexProgress:
    """How far one database of an index has come since it was last complete."""

    least_entries = _LEAST_ENTRIES
    report_seconds = _REPORT_SECONDS

    def __init__(self, what: str, pod: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._pod = pod
        self._clock = clock
        self._first: int | None = None  # where the work began; None while there is not much
        self._began = 0.0
        self._reported = 0.0

    def update(self, indexed_to: int, end: int) -> None:
        """Report that the log is indexed up to a position, of which `end` is the last."""
        now = self._clock()
        if self._first is None:
            if end - indexed_to < self.least_entries:
                return
            self._first, self._began = indexed_to, now
        elif indexed_to < end and now - self._reported < self.report_seconds:
            return
        self._reported = now
        if indexed_to < end:
            done = (indexed_to - self._first) / (end - self._first)
            self._log(f"indexing the {self._what} of the log", progress=round(done, 3))
        else:
            entries, self._first = end - self._first, None
            seconds = round(now - self._began, 1)
            self._log(f"indexed the {self._what} of the log", entries=entries, seconds=seconds)

    def _log(self, message: str, **facts: float) -> None:
        logger.info(message, extra={"pod": self._pod, **facts})
