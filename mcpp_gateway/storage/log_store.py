"""The logs of a gateway's pods in one folder: locked, opened, watched and closed together."""

import asyncio
import fcntl
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import uuid6

from mcpp.errors import McppError
from mcpp_gateway.config import LogSection
from mcpp_gateway.core.contexts.live_context import postponed
from mcpp_gateway.core.effects import Effect, ReadHistory
from mcpp_gateway.core.history.pages import Source
from mcpp_gateway.core.journal import Window
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.records import Batch, State, decode_batch, decode_state
from mcpp_gateway.core.sessions import ParticipantSettings
from mcpp_gateway.space_report import SpaceReport
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.file_journal import FileJournal
from mcpp_gateway.storage.group_writer import (
    GroupWriter,
    Unwritten,
    WriterOptions,
    state_record,
)
from mcpp_gateway.storage.helper.process import HelperProcess
from mcpp_gateway.storage.history_reader import HistoryReader
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import Recovery, SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import DamagedError

logger = logging.getLogger("mcpp.gateway")

LOCK: Final = ".lock"  # no pod's name begins with a dot
SEALED: Final = "sealed"  # a file in the folder of a log that goes on elsewhere
_LOCK_ATTEMPTS: Final = 5
_LOCK_SECONDS: Final = 0.1
_DAY_SECONDS: Final = 86_400.0
# Syncs of different pods run beside each other; those of one pod never do.
_THREADS: Final = 16

T = TypeVar("T")


class LogStoreError(McppError):
    """A log that cannot be opened, described in one line."""


@dataclass(slots=True)
class _OpenPod:
    pod: PodCore
    journal: FileJournal
    writer: GroupWriter
    log: SegmentLog
    index: LogIndex
    space: SpaceReport

    def readable(self) -> tuple[int, int]:
        """Return the oldest position that can be read, and the end."""
        return self.journal.start, self.journal.committed


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
        self._history = HistoryReader(loop, clock, perform)
        self._indexer = HelperProcess()
        self._unwritten = Unwritten()
        self._pods: dict[str, _OpenPod] = {}
        self._lock = take_lock(self._path)

    def open_pod(
        self,
        name: str,
        settings: Iterable[ParticipantSettings],
        limits: PodLimits,
        *,
        issuers: Collection[str] = (),
    ) -> PodCore:
        """Open a pod's log and return the pod as its log describes it."""
        try:
            return self._open(name, settings, limits, issuers)
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
    def sync_times(self) -> tuple[float, int]:
        """The seconds that syncs took so far, and their number, over all logs."""
        logs = [each.log for each in self._pods.values()]
        return sum(log.sync_seconds for log in logs), sum(log.syncs for log in logs)

    @property
    def disk_bytes(self) -> int:
        """The bytes that all logs take on the disk."""
        return sum(each.journal.disk_bytes for each in self._pods.values())

    def read_history(self, pod: PodCore, request: ReadHistory) -> None:
        """Read a page of a pod's log on another thread, and let the pod answer with it."""
        self._history.read(pod, self._pods[pod.name], request)

    def read(self, pod: PodCore, function: Callable[[Source], T]) -> "asyncio.Future[T]":
        """Call a function with a pod's log as it is now, on the thread that reads history."""
        return self._history.run(self._pods[pod.name], function)

    def check(self) -> None:
        """Look after space, age and retention. Called about once a second."""
        if os.fstat(self._lock).st_nlink == 0:
            self._on_failure(FileNotFoundError(f"{self._path} was deleted"))
        now = self._clock()
        for each in self._pods.values():
            each.writer.check()
            each.space.check(now, accepting=each.writer.accepting)

    def prepare_stop(self) -> None:
        """Let the next start have little to read: states are written where much has come since."""
        for each in self._pods.values():
            each.writer.prepare_stop()

    def close(self) -> None:
        """Write and sync what waits, and release the folder. Blocks."""
        self._history.close()
        self._indexer.close()
        for each in self._pods.values():
            each.writer.stop()
        self._executor.shutdown()
        for each in self._pods.values():
            each.index.stop()
        os.close(self._lock)

    # --- private --------------------------------------------------------------------------------

    def _open(
        self,
        name: str,
        settings: Iterable[ParticipantSettings],
        limits: PodLimits,
        issuers: Collection[str],
    ) -> PodCore:
        section = self._section
        seal = self._path / name / SEALED
        if seal.exists():
            raise LogStoreError(f"the log of pod {name!r} was moved; to go on here, delete {seal}")
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
        pod = PodCore(
            name,
            settings,
            limits,
            new_id=lambda: str(uuid6.uuid7()),
            journal=journal,
            issuers=issuers,
        )
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
            opened.index.advance(end)
            self._perform(pod.release(end))
            self._on_commit()

        first = None
        if state is None:
            log.create(state_record(snapshot(index)), secrets.randbits(32))
        else:
            new_epoch = pod.epoch
            is_new_fork = not batches and state.is_fork_beginning
            if is_new_fork:  # H-11: idle time begins when it is served
                live = postponed(state.live, now - state.time)
                state = msgspec.structs.replace(state, live=live)
            pod.restore(state, batches, now + section.rejoin_seconds)
            if _may_have_lost_its_end(state, recovery, boot):
                pod.epoch = new_epoch
                logger.warning("the log may have lost its end: new epoch", extra={"pod": name})
            is_changed = (pod.epoch, section.fsync) != (state.epoch, state.fsync)
            is_booted = section.fsync == "interval" and boot != state.boot
            if is_changed or is_booted or is_new_fork:
                first = snapshot(index)
        opened = _OpenPod(
            pod,
            journal,
            writer,
            log,
            LogIndex(self._path / name, log, pod.epoch, self._indexer.index),
            SpaceReport(name),
        )
        journal.use_index(opened.index)
        writer.begin(
            term=term,
            index=index,
            end=journal.end,
            on_commit=commit,
            snapshot=snapshot,
            first=first,
        )
        opened.index.start(journal.committed)
        self._pods[name] = opened
        return pod


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


def take_lock(path: Path) -> int:
    """Lock the logs below a folder, and return what holds the lock. Raises LogStoreError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        reason = error.strerror or str(error)
        raise LogStoreError(f"log.path: cannot use {path}: {reason}") from None
    for attempt in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # `mcpp log` takes it for a moment, to find out whether a gateway is running.
            time.sleep(_LOCK_SECONDS if attempt + 1 < _LOCK_ATTEMPTS else 0.0)
        else:
            return descriptor
    os.close(descriptor)
    raise LogStoreError(f"log.path: another gateway uses {path}")


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
