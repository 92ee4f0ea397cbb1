"""The envelopes of a prompt: the last ones up to a point of the log, as far as they may be read."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.history.pages import Source
from mcpp_gateway.core.history.query import HistoryQuery
from mcpp_gateway.core.records import LogEntry

# As many as `mcpp prompt` reads.
MAX_ENVELOPES: Final = 10_000
MAX_BYTES: Final = 16 << 20
_CHUNK: Final = 100
# Between chunks a thread rests, so that the event loop does not wait for the interpreter's lock.
_REST_SECONDS: Final = 0.0005
_NEWEST_FIRST: Final = HistoryQuery()


class UnknownEnvelopeError(LookupError):
    """The point of the log is not in it, or may not be read."""


@dataclass(slots=True)
class PromptReading:
    """Reads the envelopes of one prompt in chunks, from the newest to the oldest.

    All `listeners` may read them: the participant that asks, and the one whose prompt it is.
    """

    listeners: Sequence[Rights]
    at: str | None  # the id of the last envelope; None: the end of the log
    texts: list[bytes] = field(default_factory=list)
    _bytes: int = 0
    _end: int | None = None

    def read(self, source: Source) -> bool:
        """Read one chunk; return whether there is more to read. Raises UnknownEnvelopeError."""
        if self._end is None:
            self._end = self._find(source)
        start = max(source.start, self._end - _CHUNK)
        if start >= self._end:
            return False
        for found in source.scan(_NEWEST_FIRST, start, self._end):
            if found.entry is None:
                continue
            entry = self._readable(found.entry)
            if entry is None:
                if not self.texts and self.at is not None:
                    raise UnknownEnvelopeError(self.at)
                continue
            self._bytes += len(entry.text)
            if self._bytes > MAX_BYTES or len(self.texts) >= MAX_ENVELOPES:
                return False
            self.texts.append(entry.text)
        self._end = start
        return True

    def read_all(self, source: Source) -> None:
        """Read everything, on a thread. Raises UnknownEnvelopeError and UnreadableError."""
        while self.read(source):
            time.sleep(_REST_SECONDS)

    def _readable(self, entry: LogEntry) -> LogEntry | None:
        """Return what all listeners may read of an entry, or None."""
        readable: LogEntry | None = entry
        for listener in self.listeners:
            if readable is not None:
                readable = listener.read(readable)
        return readable

    def _find(self, source: Source) -> int:
        if self.at is None:
            return source.end
        position = source.find(self.at)
        if position is None or position < source.start:
            raise UnknownEnvelopeError(self.at)
        return position + 1
