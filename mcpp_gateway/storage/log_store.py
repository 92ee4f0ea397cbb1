"""The logs of a gateway's pods in one folder: locked, opened, watched and closed together."""

import asyncio
import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import uuid6

from mcpp.errors import McppError
from mcpp_gateway.config import LogSection
from mcpp_gateway.core.effects import Effect
from mcpp_gateway.core.journal import Window
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.records import Batch, State, decode_batch, decode_state
from mcpp_gateway.core.sessions import ParticipantSettings
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.file_journal import FileJournal
from mcpp_gateway.storage.group_writer import (
    GroupWriter,
    Unwritten,
    WriterOptions,
    state_record,
)
from mcpp_gateway.storage.index import LogIndex
from mcpp_gateway.storage.segment_log import Recovery, SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import DamagedError

logger = logging.getLogger("mcpp.gateway")

LOCK: Final = ".lock"  # no pod's name begins with a dot
INDEX: Final = "index.sqlite"
_LOCK_ATTEMPTS: Final = 5
_LOCK_SECONDS: Final = 0.1
_DAY_SECONDS: Final = 86_400.0
# Syncs of different pods run beside each other; those of one pod never do.
_THREADS: Final = 16
_INDEX_RETRY_SECONDS: Final = 30.0


class LogStoreError(McppError):
    """A log that cannot be opened, described in one line."""


@dataclass(slots=True)
class _OpenPod:
    pod: PodCore
    journal: FileJournal
    writer: GroupWriter
    log: SegmentLog
    index: LogIndex | None = None
    index_retry: float | None = None  # when to try again to build it


class LogStore:
    """The logs below one folder. Owns its lock, the writing threads and the open journals."""

    def __init__(
        self,
        section: LogSection,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        perform: Callable[[Iterable[Effect]], None],
        on_commit: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.time = 0.0  # of the newest record found when the logs were opened
        self._section = section
        self._path = Path(section.path)
        self._loop = loop
        self._clock = clock
        self._perform = perform
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="log")
        self._unwritten = Unwritten()
        self._pods: dict[str, _OpenPod] = {}
        self._lock = self._take_lock()

    def open_pod(
        self, name: str, settings: Iterable[ParticipantSettings], limits: PodLimits
    ) -> PodCore:
        """Open a pod's log and return the pod as its log describes it."""
        try:
            return self._open(name, settings, limits)
        except DamagedError as error:
            raise LogStoreError(
                f"the log of pod {name!r} is damaged, {error}; `mcpp log verify` tells more"
            ) from error
        except OSError as error:
            reason = error.strerror or str(error)
            raise LogStoreError(f"cannot open the log of pod {name!r}: {reason}") from error

    @property
    def accepting(self) -> bool:
        """Whether every log has room for participants' envelopes."""
        return all(each.writer.accepting for each in self._pods.values())

    @property
    def unwritten_bytes(self) -> int:
        """The bytes that wait to be written, over all logs."""
        return self._unwritten.bytes

    @property
    def disk_bytes(self) -> int:
        """The bytes that all logs take on the disk."""
        return sum(each.journal.disk_bytes for each in self._pods.values())

    def check(self) -> None:
        """Look after space, age and retention. Called about once a second."""
        if os.fstat(self._lock).st_nlink == 0:
            self._on_failure(FileNotFoundError(f"{self._path} was deleted"))
        now = self._clock()
        for each in self._pods.values():
            each.writer.check()
            if each.index_retry is not None and each.index_retry <= now and each.writer.accepting:
                each.index_retry = None
                self._executor.submit(self._open_index, each)

    def close(self) -> None:
        """Write and sync what waits, and release the folder. Blocks."""
        for each in self._pods.values():
            each.writer.stop()
        self._executor.shutdown()
        for each in self._pods.values():
            if each.index is not None:
                each.index.stop()
        os.close(self._lock)

    # --- private --------------------------------------------------------------------------------

    def _take_lock(self) -> int:
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            reason = error.strerror or str(error)
            raise LogStoreError(f"log.path: cannot use {self._path}: {reason}") from None
        for attempt in range(_LOCK_ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # `mcpp log` takes it for a moment, to find out whether a gateway is running.
                time.sleep(_LOCK_SECONDS if attempt + 1 < _LOCK_ATTEMPTS else 0.0)
            else:
                return descriptor
        os.close(descriptor)
        raise LogStoreError(f"log.path: another gateway uses {self._path}")

    def _open(
        self, name: str, settings: Iterable[ParticipantSettings], limits: PodLimits
    ) -> PodCore:
        section = self._section
        log = SegmentLog(
            OsDisk(self._path / name),
            SegmentOptions(
                segment_bytes=_segment_bytes(section), reserve_bytes=section.reserve_bytes
            ),
        )
        recovery = log.recover()
        _report(name, recovery)
        state, batches = _decode(recovery)
        writer = GroupWriter(
            log,
            _writer_options(section),
            loop=self._loop,
            executor=self._executor,
            clock=self._clock,
            on_failure=self._on_failure,
            unwritten=self._unwritten,
        )
        journal = FileJournal(log, writer, _window(limits, state, batches))
        pod = PodCore(name, settings, limits, new_id=lambda: str(uuid6.uuid7()), journal=journal)
        opened = _OpenPod(pod, journal, writer, log)
        last = batches[-1] if batches else None
        if state is not None:
            self.time = max(self.time, state.time, last.time if last else 0.0)
        now = max(self._clock(), self.time)  # a clock that was set back does not go behind the log
        term = 1 if state is None else max(state.term, last.term if last else 0) + 1
        index = last.index + 1 if last else state.index if state else 0
        boot = _boot_id()

        def snapshot(index: int) -> State:
            time = max(self._clock(), now)
            return pod.snapshot(term=term, index=index, boot=boot, fsync=section.fsync, now=time)

        def commit(end: int) -> None:
            journal.commit(end)
            if opened.index is not None:
                opened.index.advance(end)
            self._perform(pod.release(end))
            self._on_commit()

        first = None
        if state is None:
            log.create(state_record(snapshot(index)), secrets.randbits(32))
        else:
            new_epoch = pod.epoch
            pod.restore(state, batches, now + section.rejoin_seconds)
            if _may_have_lost_its_end(state, recovery, boot):
                pod.epoch = new_epoch
                logger.warning("the log may have lost its end: new epoch", extra={"pod": name})
            if (pod.epoch, section.fsync) != (state.epoch, state.fsync) or (
                section.fsync == "interval" and boot != state.boot
            ):
                first = snapshot(index)
        writer.begin(
            term=term,
            index=index,
            end=journal.end,
            on_commit=commit,
            snapshot=snapshot,
            first=first,
        )
        self._open_index(opened)
        self._pods[name] = opened
        return pod

    # --- the index, without which everything works ----------------------------------------------

    def _open_index(self, opened: _OpenPod) -> None:
        """Open or build a pod's index. Blocks; without space for it, it is tried again later.

        May run on a thread: until it is assigned, nothing else uses the index.
        """
        path = self._path / opened.pod.name / INDEX
        try:
            index = LogIndex(path, opened.log, opened.pod.epoch)
            index.start(opened.journal.committed)
        except (OSError, sqlite3.Error) as error:
            facts = {"pod": opened.pod.name, "reason": str(error)}
            logger.warning("the log has no index, lookups are slower", extra=facts)
            opened.index_retry = self._clock() + _INDEX_RETRY_SECONDS
            return
        opened.index = index
        index.advance(opened.journal.committed)
        opened.journal.use_index(index)


def _report(pod: str, recovery: Recovery) -> None:
    """Log what recovery found, if anything."""
    for reason in recovery.unreadable:
        logger.error("a part of the log cannot be read", extra={"pod": pod, "reason": reason})
    if recovery.dropped_bytes:
        facts = {"pod": pod, "bytes": recovery.dropped_bytes}
        logger.warning("dropped an incomplete write at the end of the log", extra=facts)


def _may_have_lost_its_end(state: State, recovery: Recovery, boot: str) -> bool:
    """Return whether the machine went down before everything acknowledged was synced (G-16).

    What follows the last state was written under the mode and in the boot that it names.
    """
    same_boot = bool(boot) and state.boot == boot  # where that is unknown, assume the worst
    return state.fsync == "interval" and not recovery.stopped and not same_boot


def _decode(recovery: Recovery) -> tuple[State | None, list[Batch]]:
    """Return what was recovered. Raises DamagedError."""
    try:
        state = None if recovery.state is None else decode_state(recovery.state.payload)
        return state, [decode_batch(record.payload) for record in recovery.batches]
    except msgspec.DecodeError as error:
        raise DamagedError("the newest segment", 0, str(error)) from None


def _window(limits: PodLimits, state: State | None, batches: Iterable[Batch]) -> Window:
    """Return the dedupe window at the end of the log (G-29)."""
    end = 0 if state is None else state.position
    window = Window(limits.history_messages, limits.history_bytes, end)
    window.restore(() if state is None else state.window)
    for batch in batches:
        for entry in batch.entries:
            window.append(entry)
        window.trim(window.end)
    return window


def _segment_bytes(section: LogSection) -> int:
    """Return the size of a segment: small enough that what is too much goes soon."""
    return min(section.segment_bytes, (section.retention.max_bytes or 1 << 62) // 10)


def _writer_options(section: LogSection) -> WriterOptions:
    retention = section.retention
    max_age = retention.max_age_days * _DAY_SECONDS or None
    # Ten segments or more within what is kept, so that what is too old goes soon.
    return WriterOptions(
        sync_interval_seconds=section.interval_ms / 1000 if section.fsync == "interval" else None,
        segment_seconds=_DAY_SECONDS if max_age is None else min(_DAY_SECONDS, max_age / 10),
        reserve_bytes=section.reserve_bytes,
        max_age_seconds=max_age,
        max_bytes=retention.max_bytes or None,
    )


def _boot_id() -> str:
    """Return what changes when the machine is started again, or nothing where that is unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
