"""A copy of a pod's log in local files, written behind the stream and on no commit path.

A gateway has the latest entries in memory. Older ones are read from this copy: by clients that
resume, by `pod/history`, and for prompts. It has the format of the log in files, so it is read and
indexed by the same code. It is a cache: a copy that is missing, damaged, or of another log is made
again from the stream.

The copy takes every record of the stream in order and decides itself which ones count. A note
beside the segments says which record came last, and what it was, so that a copy goes on where it
stopped, if the stream still holds that record there.
"""

import fcntl
import logging
import os
import secrets
import shutil
import threading
import time
from collections import deque
from collections.abc import Generator
from itertools import count
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from mcpp_gateway.config import ConfigError
from mcpp_gateway.core.cluster.leading.leadership import Fence, StreamFence
from mcpp_gateway.core.cluster.records import BareBatch, Claim, decode_bare
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.core.records import LogEntry, State, encode_state
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.index.log_index import Indexer, LogIndex
from mcpp_gateway.storage.log_store import LOCK
from mcpp_gateway.storage.segment_log import SegmentLog, SegmentOptions
from mcpp_gateway.storage.segment_reader import SegmentReader
from mcpp_gateway.storage.segments import BATCH, STATE, DamagedError, LogFormatError, NewRecord

logger = logging.getLogger("mcpp.gateway")

_COPIES: Final = ".copies"  # no pod's name begins with a dot
_NOTE: Final = "copied"
_VERSION: Final = 1
# Syncs would delay those of a NATS server on the same disk. So only whole segments are synced, and
# what a power failure damages is read from the stream again.
_OPTIONS: Final = SegmentOptions(chunk_bytes=1 << 20, reserve_bytes=0, sync_growth=False)
# Replacing a file makes the file system write it at once. After the process was killed, what was
# not noted is read again.
_NOTE_SECONDS: Final = 1.0
# What may wait to be written. A disk that is slower than this gets no copy.
_MAX_WAITING_BYTES: Final = 128 << 20


class _Note(msgspec.Struct, array_like=True, frozen=True):
    """How far a log is copied."""

    version: int
    epoch: str
    sequence: int  # of the last record of the stream that was taken
    checksum: int  # of that record
    term: int
    index: int
    position: int


_encode_note = msgspec.msgpack.Encoder().encode
_decode_note = msgspec.msgpack.Decoder(_Note).decode


class CopyFolder:
    """The folder of one gateway's copies below the log path. Owns its lock.

    Gateways on one machine may have the same configuration: each takes the first folder that no
    other one uses.
    """

    def __init__(self, path: Path) -> None:
        """Lock a folder. Raises ConfigError."""
        for number in count(1):
            self.path = path / _COPIES / str(number)
            try:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._lock = os.open(self.path / LOCK, flags, 0o600)
            except OSError as error:
                reason = error.strerror or str(error)
                raise ConfigError(f"log.path: cannot use {path}: {reason}") from None
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
            else:
                return

    def close(self) -> None:
        """Release the folder."""
        os.close(self._lock)


class LogCopy:
    """The copy of one pod's log. Owns its folder. One thread writes at a time, others may read."""

    def __init__(self, folder: Path, index_elsewhere: Indexer | None = None) -> None:
        self.sequence = 0  # of the last record that was taken; 0: none
        self.checksum = 0  # of that record
        self.has_failed = False  # nothing more is copied
        self.log: SegmentLog
        self.index: LogIndex
        self._folder = folder
        self._index_elsewhere = index_elsewhere
        self._epoch = ""
        self._fence = StreamFence()
        self._end = 0
        self._reader: SegmentReader | None = None  # None: there is no entry yet
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._written = 0  # the last record that was written, or does not count
        self._noted = 0  # the one that the note names
        self._noted_at = float("-inf")
        self._lock = threading.Lock()  # held while writing

    # --- opening --------------------------------------------------------------------------------

    def open(self, epoch: str) -> None:
        """Continue the copy of an earlier run, if it is of this log. Blocks. Raises OSError."""
        note = self._read_note()
        if note is not None and note.epoch == epoch != "":
            self.log = SegmentLog(OsDisk(self._folder), _OPTIONS)
            try:
                self.log.recover()
                self._end = self.log.view().end_position
            except (DamagedError, LogFormatError, OSError) as error:
                logger.warning("copying the log again", extra={"reason": str(error)})
            else:
                if self._end >= note.position:
                    self._epoch, self.sequence, self.checksum = epoch, note.sequence, note.checksum
                    self._written = self._noted = note.sequence
                    self._fence = StreamFence(fence=Fence(note.term, note.index))
                    self._start_reading(self._end)
                    return
            self.log.close()
        self.reset(epoch, 1)

    def reset(self, epoch: str, first: int) -> None:
        """Begin an empty copy with the first record of the stream. Blocks."""
        self._close_files()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._epoch, self.sequence, self.checksum = epoch, first - 1, 0
        self._fence = StreamFence(first)
        self._reader, self._end = None, 0
        self._written = self._noted = first - 1
        self._noted_at = float("-inf")

    def close(self) -> None:
        """Write what waits, and close the files. Blocks."""
        self._noted_at = float("-inf")
        self.write()
        self._close_files()

    # --- writing --------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Whether records wait to be written."""
        return bool(self._waiting)

    def take(self, sequence: int, record: bytes) -> None:
        """Take a record of the stream if it is the next; it is written later."""
        if sequence != self.sequence + 1:
            return
        self.sequence = sequence
        if self.has_failed:
            return
        self._waiting.append((sequence, record))
        self._waiting_bytes += len(record)
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            self.fail("the disk is too slow")

    def write(self) -> None:
        """Write what waits. May be called on any thread; blocks."""
        with self._lock:
            try:
                self._write_waiting()
                if (
                    self._written != self._noted
                    and time.monotonic() - self._noted_at >= _NOTE_SECONDS
                ):
                    self._write_note()
            except (OSError, DamagedError, msgspec.DecodeError) as error:
                self.fail(str(error))

    def fail(self, reason: str) -> None:
        """Copy nothing more."""
        self.has_failed = True
        self._waiting.clear()
        self._waiting_bytes = 0
        facts = {"folder": str(self._folder), "reason": reason}
        logger.error("the log is not copied any more; old entries cannot be read", extra=facts)

    def retain(self, *, since: float | None, max_bytes: int | None) -> None:
        """Delete what the stream's limits have deleted by now, about. Blocks."""
        with self._lock:
            if self._reader is not None and not self.has_failed:
                self.log.retain(since=since, max_bytes=max_bytes)

    # --- reading: as the archive of a journal ---------------------------------------------------

    @property
    def start(self) -> int:
        """The oldest position that can be read."""
        return self._end if self._reader is None else self._reader.start

    @property
    def end(self) -> int:
        """The position up to which entries are written."""
        return self._end

    def seek(self, id: str, end: int) -> Generator[int, None, int | None]:
        """Return the latest position of an id before `end`."""
        if self._reader is None:
            return None
        return (yield from self._reader.seek(id, min(end, self._end)))

    def read(self, position: int, stop: int) -> list[LogEntry]:
        """Return some entries between two positions. Raises DamagedError."""
        return [] if self._reader is None else self._reader.read(position, min(stop, self._end))

    def readable(self) -> tuple[int, int]:
        """Write what waits, and return the first position and the end. Blocks.

        Raises UnreadableError.
        """
        self.write()
        if self._reader is None or self.has_failed:
            raise UnreadableError("the log is not copied here")
        return self.start, self._end

    # --- private --------------------------------------------------------------------------------

    def _close_files(self) -> None:
        if self._reader is not None:
            self._reader = None
            self.index.stop()
            self.log.close()

    def _start_reading(self, end: int) -> None:
        """Let others read what is written. Blocks while many ids are not indexed."""
        self.index = LogIndex(self._folder, self.log, self._epoch, self._index_elsewhere)
        self.index.start(end)
        reader = SegmentReader(self.log)
        reader.index = self.index
        self._reader = reader

    def _write_waiting(self) -> None:
        records: list[NewRecord] = []
        last = None
        for _ in range(len(self._waiting)):
            last = sequence, data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            try:
                record = decode_bare(data)
            except msgspec.DecodeError:
                continue
            if record is not None:
                for each in self._fence.take(sequence, record):
                    records += self._admit(each)
        if last is None:
            return
        if records:
            self._append(records)
        self._written, self.checksum = last[0], crc32(last[1])

    def _admit(self, record: BareBatch | Claim) -> list[NewRecord]:
        """Return what a record that counts adds to the copy."""
        if isinstance(record, Claim):
            self._epoch = self._epoch or record.epoch
            return []
        batch = record.batch
        if not batch.entries:
            return []
        if self._reader is not None and batch.position < self._end:
            return []  # written before the process ended, and not noted any more
        return [NewRecord(BATCH, batch.position, batch.time, record.payload, len(batch.entries))]

    def _append(self, records: list[NewRecord]) -> None:
        if self._reader is None:
            self.log = SegmentLog(OsDisk(self._folder), _OPTIONS)
            self.log.create(self._state(records[0].position, records[0].time), secrets.randbits(32))
        elif self.log.is_full:
            self.log.sync()
            self.log.roll(self._state(self._end, records[0].time), secrets.randbits(32))
        self.log.grow()
        self.log.write(records)
        end = records[-1].position + records[-1].entries
        if self._reader is None:
            self._start_reading(end)
        else:
            self.index.advance(end)
        self._end = end  # last: what is before it can be read

    def _state(self, position: int, time: float) -> NewRecord:
        """Return the state with which a segment begins; nothing is decided from it."""
        state = State(self._epoch, 0, 0, position, time)
        return NewRecord(STATE, position, time, encode_state(state))

    def _read_note(self) -> _Note | None:
        try:
            note = _decode_note((self._folder / _NOTE).read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        return note if note.version == _VERSION else None

    def _write_note(self) -> None:
        """Note how far the log is copied, once there is an entry."""
        fence = self._fence.fence
        if self._reader is None or fence is None:
            return
        record = self._written, self.checksum
        note = _Note(_VERSION, self._epoch, *record, fence.term, fence.index, self._end)
        self._noted, self._noted_at = self._written, time.monotonic()
        temporary = self._folder / f"{_NOTE}.new"
        temporary.write_bytes(_encode_note(note))
        temporary.replace(self._folder / _NOTE)
