"""The committed log of a clustered pod, as far as this gateway holds it in memory.

Entries are appended when they come from the log, so all of them are committed. After a start, the
window may hold ids whose texts have not been read.
"""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import Final

from mcpp_gateway.core.journal import Window
from mcpp_gateway.core.records import LogEntry, WindowEntry


class ClusterJournal:
    """The latest entries of the log, which are also its dedupe window (G-29)."""

    kind: Final = "cluster"
    accepting: Final = True

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.admitting = True  # whether the log can be reached
        self._bounds = max_messages, max_bytes
        self._window = Window(max_messages, max_bytes)
        self._readable_from = 0
        self._sequences: deque[tuple[int, int]] = deque()  # first position, sequence of its record

    @property
    def start(self) -> int:
        """The oldest position that can be read here."""
        return max(self._window.start, self._readable_from)

    @property
    def end(self) -> int:
        """The position that the next entry will have."""
        return self._window.end

    @property
    def committed(self) -> int:
        """The same: what is not committed is not here."""
        return self._window.end

    def restore(self, end: int, entries: Iterable[WindowEntry], sequence: int) -> None:
        """Begin at a position with ids whose texts are not known here."""
        self._window = Window(*self._bounds, end)
        self._window.restore(entries)
        self._readable_from = end
        self._sequences.clear()
        if self._window.start < end:
            self._sequences.append((self._window.start, sequence))

    def begin_record(self, sequence: int) -> None:
        """Take note of the record that the next entries come from."""
        self._sequences.append((self._window.end, sequence))

    def append(self, entry: LogEntry) -> None:
        """Add the next entry of the log."""
        self._window.append(entry)

    def trim(self) -> None:
        """Drop the oldest entries while there are too many."""
        window, sequences = self._window, self._sequences
        window.trim(window.end)
        while len(sequences) > 1 and sequences[1][0] <= window.start:
            sequences.popleft()

    @property
    def window_sequence(self) -> int:
        """The sequence number of the record that holds the first entry; 0: there is none."""
        return self._sequences[0][1] if self._sequences else 0

    def find(self, id: str) -> LogEntry | None:
        """Return the entry of an id of the dedupe window. Its text is empty if it is not here."""
        position = self._window.position(id)
        if position is None:
            return None
        entry = self._window[position]
        if isinstance(entry, LogEntry):
            return entry
        return LogEntry(entry.id, entry.sender, None, "", None, b"")

    def after(self, id: str) -> int | None:
        """Return the position that follows an envelope, if it can be read here."""
        position = self._window.position(id)
        return None if position is None or position + 1 < self.start else position + 1

    def seek(self, id: str) -> Generator[int, None, int | None]:
        """Return the same, as a journal does that may have to read for it."""
        yield from ()
        return self.after(id)

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return up to `limit` entries from a position on."""
        found: list[LogEntry] = []
        for at in range(max(position, self.start), min(position + limit, self.end)):
            entry = self._window[at]
            assert isinstance(entry, LogEntry), "only what can be read here"
            found.append(entry)
        return found

    def fill(self, position: int, entries: Iterable[LogEntry]) -> None:
        """Add the texts of a record from before the state that this gateway began with.

        A record that does not count holds other ids, or the same envelopes at the same place.
        """
        window = self._window
        for at, entry in enumerate(entries, position):
            if window.start <= at < window.end and window[at].id == entry.id:
                window.fill(at, entry)
        while self._readable_from > window.start:
            if not isinstance(window[self._readable_from - 1], LogEntry):
                break
            self._readable_from -= 1

    def window(self) -> Sequence[WindowEntry]:
        """Return the ids of the dedupe window, oldest first."""
        return self._window.snapshot()
