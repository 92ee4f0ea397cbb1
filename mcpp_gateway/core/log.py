"""The log of a pod: its interface, and the implementation in memory.

Positions count all envelopes ever appended, from 0. Readers must not assume that the log is in
memory: they read a few entries at a time from a position, which may no longer be there.
"""

from typing import Protocol

import msgspec

from mcpp.protocol.contexts import Lineage


# gc=False: entries hold no cycles, and the collector need not visit a hundred thousand of them.
class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """An envelope in the log: the sender's own text, and the members that filters read."""

    id: str
    sender: str
    to: tuple[str, ...] | frozenset[str] | None
    kind: str
    lineage: Lineage | None
    text: bytes
    about: str | None = None  # the participant of a presence, which does not receive it


class PodLog(Protocol):
    """An ordered, bounded log of broadcast envelopes."""

    @property
    def start(self) -> int:
        """The oldest position that can still be read."""

    @property
    def end(self) -> int:
        """The position that the next entry will have."""

    def append(self, entry: LogEntry) -> None:
        """Append an entry; the oldest entries may be dropped."""

    def find(self, id: str) -> LogEntry | None:
        """Return the entry with an envelope id, if the log still holds it."""

    def after(self, id: str) -> int | None:
        """Return the position after an envelope, if the log still holds it."""

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return up to `limit` entries, starting at a position."""


class MemoryLog:
    """A log in memory, bounded by count and by bytes: of the texts and of the recipients."""

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
    # G-47: as Python objects, recipients take many times the memory that they take in the text.
    return len(entry.text) + 100 * len(entry.to or ())
