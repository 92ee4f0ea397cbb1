"""Forking a log: a new log that begins with another one's entries up to a position.

Records are copied as they are. Behind the last one follows a state with an epoch of its own and
with the origin, so the fork is another log (G-16) that remembers where it comes from.
"""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import uuid6

from mcpp_gateway.blobs.folder import BLOBS, copy_blobs
from mcpp_gateway.core.contexts.live_context import postponed
from mcpp_gateway.core.journal import Window
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.records import (
    Batch,
    Origin,
    State,
    WindowEntry,
    decode_batch,
    decode_state,
    encode_batch,
    encode_state,
)
from mcpp_gateway.log_tools.new_folder import new_folder
from mcpp_gateway.log_tools.reader import LogReader, LogToolError
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.segment_log import SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import BATCH, STATE, DamagedError, NewRecord, Record

_OPTIONS: Final = SegmentOptions(chunk_bytes=8 << 20, reserve_bytes=0)


class Fork(NamedTuple):
    """What was written."""

    entries: int
    epoch: str
    position: int  # of the last entry that both logs have


def fork(source: Path, destination: Path, id: str) -> Fork:
    """Write the entries of a log up to an envelope into a new folder. Raises McppError, OSError."""
    reader = LogReader(source)
    position = find_entry(reader, id)
    if position is None:
        raise LogToolError(f"the log holds no envelope {id!r}")
    with new_folder(destination) as folder:
        forking = _Forking(SegmentLog(OsDisk(folder), _OPTIONS))
        for record in _records_to(reader, position):
            forking.copy(record, position)
        made = forking.finish(reader.pod, id, position)
        copy_blobs(source / BLOBS, folder / BLOBS, link=True, hashes=forking.named)
        return made


def find_entry(reader: LogReader, id: str) -> int | None:
    """Return the latest position of an envelope. Raises DamagedError."""
    key = id.encode()
    for each in reversed(reader.segments):
        found = None
        for record in reader.records(each):
            if record.kind == BATCH and key in record.payload:
                for at, entry in enumerate(_decode(record).entries, record.position):
                    found = at if entry.id == id else found
        if found is not None:
            return found
    return None


def _records_to(reader: LogReader, position: int) -> Iterator[Record]:
    """Yield the records of a log up to the batch that holds a position."""
    for each in reader.segments:
        if each.segment.header.position > position:
            return
        for record in reader.records(each):
            if record.position > position:
                return
            yield record


def _decode(record: Record) -> Batch:
    try:
        return decode_batch(record.payload)
    except msgspec.DecodeError as error:
        raise DamagedError("a segment", record.offset, str(error)) from None


class _Forking:
    """Writes the new log. Owns the last state, and the batches behind it."""

    def __init__(self, log: SegmentLog) -> None:
        log.recover()
        self._log = log
        self._state: State | None = None
        self._batches: list[Batch] = []
        self._count = 0
        self.named: frozenset[str] = frozenset()  # the blobs that the fork names

    def copy(self, record: Record, position: int) -> None:
        """Copy a record, a batch without the entries behind a position."""
        if record.kind == STATE:
            self._copy_state(record)
        elif record.kind == BATCH:
            batch, payload = _decode(record), record.payload
            kept = batch.entries[: position - batch.position + 1]
            if len(kept) < len(batch.entries):
                batch = msgspec.structs.replace(batch, entries=kept)
                payload = encode_batch(batch)
            self._log.grow()
            self._log.write([NewRecord(BATCH, batch.position, batch.time, payload, len(kept))])
            self._batches.append(batch)
            self._count += len(kept)

    def finish(self, pod: str, id: str, position: int) -> Fork:
        """Write the state in which the fork begins, and the seal of an orderly stop."""
        state, batches = self._state, self._batches
        if state is None or not (batches or state.position == position + 1):
            raise LogToolError("the log holds no state before this envelope")
        last = batches[-1] if batches else None
        now = max(time.time(), last.time if last else state.time)
        core = PodCore("fork", (), PodLimits(), new_id=str)
        core.restore(state, batches, 0.0)
        live, dormant = core.tree.snapshot()
        named, privately = core.blobs.snapshot()
        forked = State(
            str(uuid6.uuid7()),
            last.term if last else state.term,
            last.index + 1 if last else state.index,
            position + 1,
            now,
            tuple(core.participants),
            _window(state, batches),
            # The time between the two is not idle time of the fork.
            postponed(live, now - (last.time if last else state.time)),
            dormant,
            origin=Origin(pod, state.epoch, position, id),
            named=named,
            named_privately=privately,
        )
        self.named = frozenset(each.hash for each in (*named, *privately))
        self._log.grow()
        self._log.write([NewRecord(STATE, position + 1, now, encode_state(forked))])
        self._log.stop(position + 1, now)
        self._log.close()
        return Fork(self._count, forked.epoch, position)

    def _copy_state(self, record: Record) -> None:
        state = decode_state(record.payload)
        copy = NewRecord(STATE, record.position, record.time, record.payload)
        if self._state is None:
            self._log.create(copy, secrets.randbits(32))
        else:
            self._log.sync()
            if not self._log.roll(copy, secrets.randbits(32)):
                raise LogToolError("there is no space left on the disk")
        self._state, self._batches = state, []


def _window(state: State, batches: list[Batch]) -> tuple[WindowEntry, ...]:
    """Return the dedupe window at the end of the log, as large as it was."""
    size = max(len(state.window), PodLimits().history_messages)
    window = Window(size, 1 << 62, state.position)
    window.restore(state.window)
    for batch in batches:
        for entry in batch.entries:
            window.append(entry)
    window.trim(window.end)
    return tuple(window.snapshot())
