"""The log behind history: a seam, so that it may live in memory, in a file or elsewhere.

Positions count every envelope ever appended, from 0. Nothing outside may assume that the log is in
memory: readers go on from a position, a few entries at a time, and may find that it is gone.
"""

from typing import Protocol

import msgspec

from mcpp.protocol.contexts import Lineage


# gc=False: entries hold no cycles, and a hundred thousand of them need not be visited.
class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """An envelope as the log keeps it: the sender's own text, and what filters ask about."""

    id: str
    sender: str
    to: tuple[str, ...] | frozenset[str] | None
    kind: str
    lineage: Lineage | None
    text: bytes
    about: str | None = None  # the participant that a presence is about, who does not get it


class Log(Protocol):
    """An ordered, bounded record of what was broadcast."""

    @property
    def start(self) -> int:
        """The oldest position that can still be read."""

    @property
    def end(self) -> int:
        """The position that the next entry will have."""

    def append(self, entry: LogEntry) -> None:
        """Add an entry at the end; the oldest may go."""

    def find(self, id: str) -> LogEntry | None:
        """Return the entry of an envelope id, if it is still there."""

    def after(self, id: str) -> int | None:
        """Return the position that follows an envelope, if it is still there."""

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return up to `limit` entries from a position on."""


class MemoryLog:
    """A log in memory, bounded by count and by bytes: those of the texts and of long lists `to`."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: dict[int, LogEntry] = {}
        self._positions: dict[str, int] = {}
        self.start = 0
        self.end = 0

    def append(self, entry: LogEntry) -> None:
        end = self.end
        self._entries[end] = entry
        self._positions[entry.id] = end
        self.end = end + 1
        self._bytes += len(entry.text) if entry.to is None else _size(entry)
        while end - self.start >= self._max_messages or self._bytes > self._max_bytes:
            oldest = self._entries.pop(self.start)
            del self._positions[oldest.id]
            self._bytes -= _size(oldest)
            self.start += 1

    def find(self, id: str) -> LogEntry | None:
        position = self._positions.get(id)
        return None if position is None else self._entries[position]

    def after(self, id: str) -> int | None:
        position = self._positions.get(id)
        return None if position is None else position + 1

    def read(self, position: int, limit: int) -> list[LogEntry]:
        stop = min(position + limit, self.end)
        return [self._entries[at] for at in range(max(position, self.start), stop)]


def _size(entry: LogEntry) -> int:
    # G-47: as a list of its own, `to` takes many times the room that it took in the text.
    return len(entry.text) + 100 * len(entry.to or ())
