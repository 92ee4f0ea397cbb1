"""A recording: the copy of a log, or of an export, of which a stretch is played."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.core.records import Batch, LogEntry, State, decode_batch, decode_state
from mcpp_gateway.log_tools.backup import back_up
from mcpp_gateway.log_tools.export import import_lines
from mcpp_gateway.log_tools.reader import LogReader, LogToolError, pod_folder
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import BATCH, STATE, DamagedError


class LogRecording:
    """A stretch of a log in a folder of its own. Owns log and index."""

    def __init__(self, folder: Path, first: str | None = None, last: str | None = None) -> None:
        """Open a copy of a log; its stretch is that between two envelopes, both included.

        Raises LogToolError, DamagedError and OSError.
        """
        self.name = folder.name
        self.log = SegmentLog(OsDisk(folder, create=False))
        recovery = self.log.recover()
        if recovery.state is None:
            raise LogToolError("there is no log")
        newest = [recovery.state, *recovery.batches][-1]
        self.start = self.log.start
        self.end = newest.position + newest.entries
        self.index = LogIndex(folder, self.log, decode_state(recovery.state.payload).epoch)
        self.index.start(self.end)
        self._reader = LogReader(folder)
        self._batch: Batch | None = None
        try:
            self._cut(first, last)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the index and close all files."""
        self.index.stop()
        self.log.close()

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return up to `limit` entries from a position on, with their times."""
        found: list[LogEntry] = []
        stop = min(position + limit, self.end)
        while position < stop:
            batch = self._batch_at(position)
            at = position - batch.position
            found += batch.entries[at : at + stop - position]
            position = batch.position + len(batch.entries)
        return found

    def find(self, id: str) -> int | None:
        """Return the position of an envelope."""
        return self.index.find(id)

    def position_at(self, time: float) -> int:
        """Return the position of the first entry that is not older than a time, or the end."""
        return self.log.position_at(time)

    def before(self, position: int) -> tuple[State, list[Batch]] | None:
        """Return the last state before a position, and the batches in between."""
        state: State | None = None
        batches: list[Batch] = []
        for each in reversed(self._reader.segments):
            if each.segment.header.position > position:
                continue
            for record in self._reader.records(each):
                if record.position >= position and state is not None:
                    break
                if record.kind == STATE:
                    state, batches = decode_state(record.payload), []
                elif record.kind == BATCH:
                    batches.append(_until(decode_batch(record.payload), position))
            return None if state is None else (state, batches)
        return None

    def _batch_at(self, position: int) -> Batch:
        batch = self._batch
        if batch is None or not 0 <= position - batch.position < len(batch.entries):
            record = next(self.log.read(position), None)
            if record is None:
                raise UnreadableError("the recording ends here")
            try:
                batch = self._batch = decode_batch(record.payload)
            except msgspec.DecodeError as error:
                raise DamagedError("a segment", record.offset, str(error)) from None
        return batch

    def _cut(self, first: str | None, last: str | None) -> None:
        self.start = self.start if first is None else self._position(first)
        self.end = self.end if last is None else self._position(last) + 1
        if self.start >= self.end:
            raise LogToolError("the recording holds no entries between these envelopes")

    def _position(self, id: str) -> int:
        position = self.find(id)
        if position is None:
            raise LogToolError(f"the recording holds no envelope {id!r}")
        return position


def _until(batch: Batch, position: int) -> Batch:
    return msgspec.structs.replace(batch, entries=batch.entries[: position - batch.position])


@contextmanager
def open_recording(
    source: Path, pod: str | None, first: str | None, last: str | None
) -> Iterator[LogRecording]:
    """Open a copy of a log folder, or of an exported file. The original is not changed.

    Raises McppError and OSError.
    """
    with TemporaryDirectory(prefix="mcpp-replay-") as temporary:
        if source.is_file():
            folder = Path(temporary, _pod_name(source.name.partition(".")[0]))
            with source.open("rb") as lines:
                try:
                    import_lines(lines, folder)
                except LogToolError as error:
                    raise LogToolError(f"{source} is no exported log, {error}") from None
        else:
            original = pod_folder(source, pod).resolve()
            folder = Path(temporary, _pod_name(original.name))
            back_up(original, folder, link=True)
        recording = LogRecording(folder, first, last)
        try:
            yield recording
        finally:
            recording.close()


def _pod_name(name: str) -> str:
    """Return a name that a pod can have."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name).lstrip(".-")[:64] or "replay"
