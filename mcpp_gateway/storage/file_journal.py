"""A pod's journal in files: the latest entries in memory, all of them in segments."""

from collections.abc import Generator, Sequence
from typing import Final

from mcpp_gateway.core.journal import Window
from mcpp_gateway.core.records import LogEntry, WindowEntry
from mcpp_gateway.storage.group_writer import GroupWriter
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segment_reader import SegmentReader
from mcpp_gateway.storage.segments import DamagedError


class FileJournal:
    """The log of one pod, kept in a folder. Owns the window of the latest entries."""

    kind: Final = "file"
    commits_at_once: Final = False

    def __init__(self, log: SegmentLog, writer: GroupWriter, window: Window) -> None:
        self.committed = window.end
        self.end = window.end  # the position that the next entry will have
        self._log = log
        self._segments = SegmentReader(log)
        self._writer = writer
        self._window = window

    @property
    def start(self) -> int:
        """The oldest position that can still be read."""
        return self._segments.start

    @property
    def accepting(self) -> bool:
        """Whether participants' envelopes can be taken."""
        writer = self._writer  # `GroupWriter.accepting` without a call: this is asked every time
        return writer.room_bytes > writer.unwritten_bytes

    @property
    def admitting(self) -> bool:
        """Whether the gateway's own envelopes can be taken."""
        return self._writer.admitting

    @property
    def disk_bytes(self) -> int:
        """The bytes that the segments take on the disk."""
        return self._log.disk_bytes

    def use_index(self, index: LogIndex) -> None:
        """Look up ids that are not in the window in this index."""
        self._segments.index = index

    def append(self, entry: LogEntry) -> None:
        """Add an entry at the end. It is committed later."""
        self._window.append(entry)
        self._writer.append(entry)
        self.end += 1

    def find(self, id: str) -> LogEntry | None:
        """Return the entry of an envelope id of the dedupe window.

        Its text is empty if retention has deleted it.
        """
        position = self._window.positions.get(id)
        if position is None:
            return None
        entry = self._window[position]
        if isinstance(entry, LogEntry):
            return entry
        try:
            found = self.read(position, 1) if position >= self.start else []
        except DamagedError:
            found = []
        return found[0] if found else LogEntry(entry.id, entry.sender, None, "", None, b"")

    def seek(self, id: str) -> Generator[int, None, int | None]:
        """Return the position that follows an envelope, if it can still be read."""
        position = self._window.positions.get(id)
        if position is None:
            position = yield from self._segments.seek(id, self._window.start)
        return None if position is None or position < self.start else position + 1

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return some entries from a position on, at most `limit`.

        Raises DamagedError where the segments cannot be read.
        """
        position = max(position, self.start)
        stop = min(position + limit, self.end)
        found: list[LogEntry] = []
        for at in range(position, stop) if position >= self._window.start else ():
            entry = self._window[at]
            if not isinstance(entry, LogEntry):
                break
            found.append(entry)
        return found or self._segments.read(position, min(stop, self.committed))

    def commit(self, end: int) -> None:
        """Take note that everything before a position is durable."""
        self.committed = end
        self._window.trim(end)

    def resize(self, max_messages: int, max_bytes: int) -> None:
        """Change the bounds of the dedupe window."""
        self._window.resize(max_messages, max_bytes)

    def window(self) -> Sequence[WindowEntry]:
        """Return the dedupe window for a state."""
        return self._window.snapshot()
