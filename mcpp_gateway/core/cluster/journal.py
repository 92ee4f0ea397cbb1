"""The committed log of a clustered pod, as this gateway can read it.

Entries are appended when they come from the log, so all of them are committed. The latest are in
memory; after a start, some of those may be ids whose texts have not been read. What is older comes
from the archive, a copy of the log that is written behind it.
"""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from mcpp_gateway.core.journal import UnreadableError, Window
from mcpp_gateway.core.records import LogEntry, WindowEntry


class Archive(Protocol):
    """A copy of the log, from its beginning up to an end that follows the log."""

    @property
    def start(self) -> int:
        """The oldest position that can be read."""

    @property
    def end(self) -> int:
        """The position up to which the log is copied."""

    def seek(self, id: str, end: int) -> Generator[int, None, int | None]:
        """Return the latest position of an id before `end`; yields what reading cost."""

    def read(self, position: int, stop: int) -> list[LogEntry]:
        """Return some entries between two positions. Raises UnreadableError."""


class ClusterJournal:
    """The log of a clustered pod. Owns the latest entries, the dedupe window (G-29)."""

    kind: Final = "cluster"
    commits_at_once: Final = True
    accepting: Final = True

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.admitting = True  # whether the log can be reached
        self.archive: Archive | None = None  # None: what is not in memory cannot be read
        self._bounds = max_messages, max_bytes
        self._window = Window(max_messages, max_bytes)
        # The next entry or entries of the log; without a call: 0.1 µs.
        self.append, self.extend = self._window.append, self._window.extend
        self._readable_from = 0
        self._sequences: deque[tuple[int, int]] = deque()  # first position, sequence of its record

    @property
    def start(self) -> int:
        """The oldest position that can be read here."""
        in_memory, archive = self._in_memory_from, self.archive
        if archive is None or archive.end < in_memory:
            return in_memory
        return min(archive.start, in_memory)

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
        self.append, self.extend = self._window.append, self._window.extend
        self._window.restore(entries)
        self._readable_from = end
        self._sequences.clear()
        if self._window.start < end:
            self._sequences.append((self._window.start, sequence))

    def resize(self, max_messages: int, max_bytes: int) -> None:
        """Change the bounds of the window."""
        self._bounds = max_messages, max_bytes
        self._window.resize(max_messages, max_bytes)

    def begin_record(self, sequence: int) -> None:
        """Take note of the record that the next entries come from."""
        self._sequences.append((self._window.end, sequence))

    def trim(self) -> None:
        """Drop the oldest entries while there are too many."""
        window, sequences = self._window, self._sequences
        # What is not copied yet stays in memory, or it could not be read in between.
        window.trim(window.end if self.archive is None else min(window.end, self.archive.end))
        while len(sequences) > 1 and sequences[1][0] <= window.start:
            sequences.popleft()

    @property
    def window_sequence(self) -> int:
        """The sequence number of the record that holds the first entry; 0: there is none."""
        return self._sequences[0][1] if self._sequences else 0

    def find(self, id: str) -> LogEntry | None:
        """Return the entry of an id of the dedupe window. Its text is empty if it is not here."""
        position = self._window.positions.get(id)
        if position is None:
            return None
        entry = self._window[position]
        if isinstance(entry, LogEntry):
            return entry
        found: list[LogEntry] = []
        with suppress(UnreadableError):
            found = self.read(position, 1) if position >= self.start else []
        return found[0] if found else LogEntry(entry.id, entry.sender, None, "", None, b"")

    def after(self, id: str) -> int | None:
        """Return the position that follows an envelope, if it is in memory."""
        position = self._window.positions.get(id)
        return None if position is None or position + 1 < self._in_memory_from else position + 1

    def seek(self, id: str) -> Generator[int, None, int | None]:
        """Return the position that follows an envelope, if it can be read here."""
        position = self._window.positions.get(id)
        if position is None and self.archive is not None:
            position = yield from self.archive.seek(id, self._in_memory_from)
        return None if position is None or position + 1 < self.start else position + 1

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return some entries from a position on, at most `limit`. Raises UnreadableError."""
        position = max(position, self.start)
        stop, in_memory = min(position + limit, self.end), self._in_memory_from
        if position < in_memory:
            assert self.archive is not None, "what is not in memory is in the archive"
            return self.archive.read(position, min(stop, in_memory))
        found: list[LogEntry] = []
        for at in range(position, stop):
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

    @property
    def _in_memory_from(self) -> int:
        return max(self._window.start, self._readable_from)
