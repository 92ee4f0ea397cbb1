"""The dedupe window: the latest envelopes, by which repeated ids are recognised (G-27, G-29)."""

from collections.abc import Iterable

from mcpp_gateway.core.log import LogEntry
from mcpp_gateway.core.records import WindowEntry


class Window:
    """The latest entries of a log. Owns them; bounded by their number and bytes (G-47)."""

    def __init__(self, max_messages: int, max_bytes: int, end: int = 0) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: dict[int, LogEntry | WindowEntry] = {}
        self._positions: dict[str, int] = {}
        self.start = end
        self.end = end

    def append(self, entry: LogEntry) -> None:
        """Add the entry of the next position."""
        self._entries[self.end] = entry
        self._positions[entry.id] = self.end
        self.end += 1
        self._bytes += _size(entry)

    def trim(self, committed: int) -> None:
        """Drop the oldest entries while there are too many, but none that is not committed."""
        while self.start < committed and (
            self.end - self.start > self._max_messages or self._bytes > self._max_bytes
        ):
            oldest = self._entries.pop(self.start)
            del self._positions[oldest.id]
            if type(oldest) is LogEntry:
                self._bytes -= _size(oldest)
            self.start += 1

    def restore(self, entries: Iterable[WindowEntry]) -> None:
        """Fill an empty window with ids that were recovered without their texts."""
        for entry in entries:
            if not self._entries:
                self.start = self.end = entry.position
            self._entries[entry.position] = entry
            self._positions[entry.id] = entry.position
            self.end = entry.position + 1

    def position(self, id: str) -> int | None:
        """Return the position of an envelope id, if the window holds it."""
        return self._positions.get(id)

    def __getitem__(self, position: int) -> LogEntry | WindowEntry:
        return self._entries[position]

    def snapshot(self) -> tuple[WindowEntry, ...]:
        """Return the ids of the window, oldest first."""
        return tuple(
            WindowEntry(entry.id, entry.sender, position)
            for position, entry in self._entries.items()
        )


def _size(entry: LogEntry) -> int:
    # G-47: as a list of its own, `to` takes many times the room that it took in the text.
    return len(entry.text) + 100 * len(entry.to or ())
