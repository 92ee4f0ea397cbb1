"""Erasing entries of a log that no gateway uses, and who did so before."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import uuid6

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.payloads import Erased
from mcpp.protocol.codec import decode
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.blobs.folder import BLOBS, delete_blobs, forget_uploader
from mcpp_gateway.core.history.erasing import Erasure
from mcpp_gateway.core.records import decode_batch
from mcpp_gateway.log_tools.reader import LogReader, LogToolError
from mcpp_gateway.storage import erasure as erasures
from mcpp_gateway.storage.disk import OsDisk, sync_path
from mcpp_gateway.storage.index.log_index import TEXT
from mcpp_gateway.storage.log_store import LogStoreError, take_lock
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import BATCH

_ANNOUNCED = kinds.ERASED.encode()


class PastErasure(NamedTuple):
    """One erasure, as the log announces it."""

    time: float
    position: int
    erased: Erased


def erase_entries(folder: Path, erasure: Erasure, *, dry_run: bool = False) -> int:
    """Replace entries by tombstones, for good, and return how many. Raises McppError, OSError."""
    folder = folder.resolve()
    try:
        lock = take_lock(folder.parent)
    except LogStoreError:
        raise LogToolError("a gateway is running on this log; stop it first") from None
    try:
        disk = OsDisk(folder, create=False)
        log = SegmentLog(disk)
        recovery = log.recover()  # completes what was interrupted, an erasure included
        log.close()
        if recovery.state is None:
            raise LogToolError(f"{folder} holds no log")
        if recovery.unreadable:
            # What cannot be read cannot be erased, and should not seem to be.
            raise LogToolError(f"{recovery.unreadable[0]}; nothing was erased")
        if dry_run:
            return erasures.count_entries(disk, erasure)
        return erasures.erase(
            disk,
            erasure,
            new_id=lambda: str(uuid6.uuid7()),
            now=time.time(),
            before_decision=lambda: _remove_words(folder),
            remove_blobs=lambda gone, kept: _remove_blobs(folder / BLOBS, gone, kept, erasure),
        )
    finally:
        os.close(lock)


def past_erasures(folder: Path) -> Iterator[PastErasure]:
    """Yield the erasures of a log, oldest first. Raises McppError and OSError."""
    reader = LogReader(folder)
    for each in reader.segments:
        for record in reader.records(each):
            if record.kind != BATCH or _ANNOUNCED not in record.payload:
                continue
            for position, entry in enumerate(decode_batch(record.payload).entries, record.position):
                if entry.kind == kinds.ERASED and entry.sender == GATEWAY:
                    yield PastErasure(record.time, position, _read_announcement(entry.text))


def _read_announcement(text: bytes) -> Erased:
    try:
        return decode(text).payload_as(Erased)
    except DecodeError as error:
        raise LogToolError(f"an announcement of an erasure is unreadable: {error}") from None


def _remove_words(folder: Path) -> None:
    """Remove the index of words, which is built again."""
    for path in folder.glob(f"{TEXT}*"):
        path.unlink()


def _remove_blobs(
    folder: Path, gone: frozenset[str], kept: frozenset[str], erasure: Erasure
) -> None:
    """Remove blobs that only erased entries named, and the uploads of an erased participant.

    What others name stays, without its uploader.
    """
    if not folder.is_dir():
        return
    delete_blobs(folder, gone)
    if erasure.participant is not None and erasure.context is None:
        forget_uploader(folder, erasure.participant, erasure.before, kept)
    sync_path(folder)
