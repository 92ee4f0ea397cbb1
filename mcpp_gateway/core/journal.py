"""The journal: the pod's log behind a seam, in memory, in files or elsewhere.

Positions count every entry ever appended, from 0. An entry is *decided* once it is appended and
*committed* once it cannot be lost any more: at once in memory, after a sync in files. Readers are
given committed entries only. Nothing outside may assume that a journal is in memory: readers go on
from a position, a few entries at a time, and may find that it is gone.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import count
from typing import Final, Protocol, overload

from mcpp.errors import McppError
from mcpp_gateway.core.records import LogEntry, WindowEntry

# What an entry takes beside its text: 345 bytes, measured. A million small ones took 4.5 times
# their text, so history_bytes counts it (G-29).
ENTRY_BYTES: Final = 384


class UnreadableError(McppError):
    """A part of the log that should be there cannot be read."""


class Journal(Protocol):
    """The ordered record of what a pod accepted."""

    @property
    def kind(self) -> str:
        """What it is, as welcomes state it: memory, file or cluster."""

    @property
    def start(self) -> int:
        """The oldest position that can still be read."""

    @property
    def end(self) -> int:
        """The position that the next entry will have."""

    @property
    def committed(self) -> int:
        """The position before which every entry is committed."""

    @property
    def commits_at_once(self) -> bool:
        """Whether every entry is committed as soon as it is appended."""

    @property
    def accepting(self) -> bool:
        """Whether there is room for participants' envelopes."""

    @property
    def admitting(self) -> bool:
        """Whether there is room for the gateway's own envelopes, such as presence."""

    def append(self, entry: LogEntry) -> None:
        """Add an entry at the end."""

    def find(self, id: str) -> LogEntry | None:
        """Return the entry of an envelope id, if it is in the dedupe window (G-29).

        The text is empty where retention has deleted it.
        """

    def seek(self, id: str) -> Generator[int, None, int | None]:
        """Return the position that follows an envelope, if it can still be read.

        Yields after each bounded piece of work what it cost, see `reading_cost`.
        """

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return some entries from a position on, at most `limit`. Raises UnreadableError.

        The bytes that are read are bounded, too, so there may be fewer than there are.
        """

    def window(self) -> Sequence[WindowEntry]:
        """Return the ids of the dedupe window, oldest first."""

    def resize(self, max_messages: int, max_bytes: int) -> None:
        """Change the bounds of the dedupe window, from the next entry on."""


class MemoryJournal:
    """A log in memory, which is also its dedupe window. Bounded by count and bytes (G-29)."""

    kind: Final = "memory"
    commits_at_once: Final = True
    accepting = True
    admitting = True

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: dict[int, LogEntry] = {}
        self._positions: dict[str, int] = {}
        self.start = 0
        self.end = 0

    @property
    def committed(self) -> int:
        return self.end

    def append(self, entry: LogEntry) -> None:
        end = self.end
        self._entries[end] = entry
        self._positions[entry.id] = end
        self.end = end + 1
        self._bytes += len(entry.text) + ENTRY_BYTES if entry.to is None else entry_bytes(entry)
        while end - self.start >= self._max_messages or self._bytes > self._max_bytes:
            oldest = self._entries.pop(self.start)
            del self._positions[oldest.id]
            self._bytes -= entry_bytes(oldest)
            self.start += 1

    def resize(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes

    def find(self, id: str) -> LogEntry | None:
        position = self._positions.get(id)
        return None if position is None else self._entries[position]

    def after(self, id: str) -> int | None:
        """Return the position that follows an envelope, if it is in the log."""
        position = self._positions.get(id)
        return None if position is None else position + 1

    def seek(self, id: str) -> Generator[int, None, int | None]:
        yield from ()
        return self.after(id)

    def read(self, position: int, limit: int) -> list[LogEntry]:
        stop = min(position + limit, self.end)
        return [self._entries[at] for at in range(max(position, self.start), stop)]

    def window(self) -> Sequence[WindowEntry]:
        return WindowRows(self.start, self._entries.values())


class Window:
    """The dedupe window of a journal that keeps its entries elsewhere, too (G-27, G-29).

    After a restart it holds ids without their texts until enough new entries have come.
    """

    def __init__(self, max_messages: int, max_bytes: int, end: int = 0) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: dict[int, LogEntry | WindowEntry] = {}
        self.positions: dict[str, int] = {}  # by envelope id
        self.start = end
        self.end = end

    def append(self, entry: LogEntry) -> None:
        """Add the entry of the next position."""
        end = self.end
        self._entries[end] = entry
        self.positions[entry.id] = end
        self.end = end + 1
        self._bytes += len(entry.text) + ENTRY_BYTES if entry.to is None else entry_bytes(entry)

    def extend(self, entries: Sequence[LogEntry]) -> None:
        """Add the entries of the next positions: 0.2 µs less for each than one by one."""
        first = self.end
        self._entries.update(enumerate(entries, first))
        self.positions.update(zip([entry.id for entry in entries], count(first), strict=False))
        self.end = first + len(entries)
        sizes = [
            len(entry.text) + ENTRY_BYTES if entry.to is None else entry_bytes(entry)
            for entry in entries
        ]
        self._bytes += sum(sizes)

    def resize(self, max_messages: int, max_bytes: int) -> None:
        """Change the bounds, from the next `trim` on."""
        self._max_messages, self._max_bytes = max_messages, max_bytes

    def restore(self, entries: Iterable[WindowEntry]) -> None:
        """Fill an empty window with ids whose texts are not in memory."""
        for entry in entries:
            if not self._entries:
                self.start = entry.position
            self._entries[entry.position] = entry
            self.positions[entry.id] = entry.position

    def fill(self, position: int, entry: LogEntry) -> None:
        """Add the text of an entry of which only the id was known."""
        if type(self._entries[position]) is WindowEntry:
            self._entries[position] = entry
            self._bytes += entry_bytes(entry)

    def trim(self, committed: int) -> None:
        """Drop the oldest entries while there are too many, but none that is not committed."""
        start, kept_from = self.start, self.end - self._max_messages
        size, max_bytes = self._bytes, self._max_bytes
        entries, positions = self._entries, self.positions
        while start < committed and (start < kept_from or size > max_bytes):
            oldest = entries.pop(start)
            del positions[oldest.id]
            if type(oldest) is LogEntry:
                size -= len(oldest.text) + ENTRY_BYTES if oldest.to is None else entry_bytes(oldest)
            start += 1
        self.start, self._bytes = start, size

    def __getitem__(self, position: int) -> LogEntry | WindowEntry:
        return self._entries[position]

    def snapshot(self) -> Sequence[WindowEntry]:
        """Return the ids of the window, oldest first."""
        return WindowRows(self.start, self._entries.values())


class WindowRows(Sequence[WindowEntry]):
    """The rows of a window as it was. They are made when they are read, on another thread."""

    __slots__ = ("_entries", "_start")

    def __init__(self, start: int, entries: Iterable[LogEntry | WindowEntry]) -> None:
        self._start = start
        self._entries = tuple(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[WindowEntry]:
        # A state is stored every some thousand entries: 0.2 µs a row, and 0.6 by `__getitem__`.
        for position, entry in enumerate(self._entries, self._start):
            yield WindowEntry(entry.id, entry.sender, position)

    @overload
    def __getitem__(self, at: int) -> WindowEntry: ...
    @overload
    def __getitem__(self, at: slice) -> list[WindowEntry]: ...
    def __getitem__(self, at: int | slice) -> WindowEntry | list[WindowEntry]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        entry = self._entries[at]
        position = self._start + range(len(self))[at]
        return WindowEntry(entry.id, entry.sender, position)


def reading_cost(entries: int, size_bytes: int) -> int:
    """Return what reading a part of the log costs, in units of about 4 µs (G-49)."""
    return entries + size_bytes // 4096


def entry_bytes(entry: LogEntry) -> int:
    """Return what an entry counts for in a bound by bytes."""
    # G-47: as a list of its own, `to` takes many times the room that it took in the text.
    return len(entry.text) + len(entry.card) + ENTRY_BYTES + 100 * len(entry.to or ())
