"""Erasing entries of a log that no gateway uses."""

import os
import time
from pathlib import Path

import uuid6

from mcpp_gateway.core.history.erasing import Erasure
from mcpp_gateway.log_tools.reader import LogToolError
from mcpp_gateway.storage import erasure as erasures
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.index.log_index import TEXT
from mcpp_gateway.storage.log_store import LogStoreError, take_lock
from mcpp_gateway.storage.segment_log import SegmentLog


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
        )
    finally:
        os.close(lock)


def _remove_words(folder: Path) -> None:
    """Remove the index of words, which is built again."""
    for path in folder.glob(f"{TEXT}*"):
        path.unlink()
