"""The journal of a replay: the part of a recording that has been played."""

from collections.abc import Generator
from typing import Final, Protocol

from mcpp_gateway.core.records import Batch, LogEntry, State, WindowEntry


class RecordedLog(Protocol):
    """A recorded stretch of a log, which does not change."""

    @property
    def start(self) -> int:
        """The position of its first entry."""

    @property
    def end(self) -> int:
        """The position behind its last entry."""

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return up to `limit` entries from a position on, with their times."""

    def find(self, id: str) -> int | None:
        """Return the position of an envelope."""

    def position_at(self, time: float) -> int:
        """Return the position of the first entry that is not older than a time, or the end."""

    def before(self, position: int) -> tuple[State, list[Batch]] | None:
        """Return a state, and the batches between it and a position; None if there is none."""


class ReplayJournal:
    """What has been played of a recording. Nothing can be appended."""

    kind: Final = "file"
    commits_at_once: Final = False
    accepting: Final = False
    admitting: Final = True

    def __init__(self, recording: RecordedLog) -> None:
        self.recording = recording
        self.start = recording.start
        self.end = recording.start

    @property
    def committed(self) -> int:
        """The position before which everything was played."""
        return self.end

    def append(self, entry: LogEntry) -> None:
        """Refuse: the recording does not change."""
        raise AssertionError("a replay is read-only")

    def resize(self, max_messages: int, max_bytes: int) -> None:
        """Do nothing: nothing is accepted, so nothing is repeated."""

    def find(self, id: str) -> LogEntry | None:
        """Return None: nothing is accepted, so nothing is repeated."""
        return None

    def seek(self, id: str) -> Generator[int, None, int | None]:
        """Return the position that follows an envelope, if it was played."""
        yield from ()
        position = self.recording.find(id)
        if position is None or not self.start <= position < self.end:
            return None
        return position + 1

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return up to `limit` entries from a position on that were played."""
        position = max(position, self.start)
        limit = min(limit, self.end - position)
        return self.recording.read(position, limit) if limit > 0 else []

    def window(self) -> tuple[WindowEntry, ...]:
        """Return nothing: there is no dedupe window."""
        return ()
