"""The logs of a gateway's pods in one folder: locked, opened, watched and closed together."""

import asyncio
import fcntl
import logging
import os
import secrets
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
from mcpp_gateway.core.records import Batch, State, decode_batch, decode_state, encode_state
from mcpp_gateway.core.sessions import ParticipantSettings
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.file_journal import FileJournal
from mcpp_gateway.storage.group_writer import GroupWriter, WriterOptions
from mcpp_gateway.storage.index import LogIndex
from mcpp_gateway.storage.segment_log import Recovery, SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import STATE, DamagedError, NewRecord

logger = logging.getLogger("mcpp.gateway")

LOCK: Final = ".lock"  # no pod's name begins with a dot
INDEX: Final = "index.sqlite"
_LOCK_ATTEMPTS: Final = 5
_LOCK_SECONDS: Final = 0.1
_DAY_SECONDS: Final = 86_400.0
# Syncs of different pods run beside each other; those of one pod never do.
_THREADS: Final = 16


class LogStoreError(McppError):
    """A log that cannot be opened, described in one line."""


@dataclass(slots=True)
class _OpenPod:
    pod: PodCore
    journal: FileJournal
    writer: GroupWriter
    index: LogIndex


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
        return sum(each.writer.unwritten_bytes for each in self._pods.values())

    @property
    def disk_bytes(self) -> int:
        """The bytes that all logs take on the disk."""
        return sum(each.journal.disk_bytes for each in self._pods.values())

    def check(self) -> None:
        """Look after space, age and retention. Called about once a second."""
        if os.fstat(self._lock).st_nlink == 0:
            self._on_failure(FileNotFoundError(f"{self._path} was deleted"))
        for each in self._pods.values():
            each.writer.check()

    def close(self) -> None:
        """Write and sync what waits, and release the folder. Blocks."""
        for each in self._pods.values():
            each.writer.stop()
            each.index.stop()
        self._executor.shutdown()
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
        folder = self._path / name
        log = SegmentLog(
            OsDisk(folder),
            SegmentOptions(
                segment_bytes=_segment_bytes(section), reserve_bytes=section.reserve_bytes
            ),
        )
        recovery = log.recover()
        for reason in recovery.unreadable:
            logger.error("a part of the log cannot be read", extra={"pod": name, "reason": reason})
        if recovery.dropped_bytes:
            facts = {"pod": name, "bytes": recovery.dropped_bytes}
            logger.warning("dropped an incomplete write at the end of the log", extra=facts)
        state, batches = _decode(recovery)
        writer = GroupWriter(
            log,
            _writer_options(section),
            loop=self._loop,
            executor=self._executor,
            clock=self._clock,
            on_failure=self._on_failure,
        )
        window = _window(limits, state, batches)
        journal = FileJournal(log, writer, window)
        pod = PodCore(name, settings, limits, new_id=lambda: str(uuid6.uuid7()), journal=journal)
        term, index = 1, 0
        last = batches[-1] if batches else None
        if state is not None:
            self.time = max(self.time, state.time, last.time if last else 0.0)
        now = max(self._clock(), self.time)  # a clock that was set back does not go behind the log
        if state is None:
            first = pod.snapshot(term=term, index=index, boot=_boot_id(), now=now)
            log.create(NewRecord(STATE, 0, now, encode_state(first)), secrets.randbits(32))
        else:
            term = max(state.term, last.term if last else 0) + 1
            index = last.index + 1 if last else state.index
            new_epoch = pod.epoch
            pod.restore(state, batches, now + section.rejoin_seconds)
            if section.fsync == "interval" and not recovery.stopped and state.boot != _boot_id():
                # The machine went down, and what was not yet synced may be lost (G-16).
                pod.epoch = new_epoch
                now_lost = pod.snapshot(term=term, index=index, boot=_boot_id(), now=now)
                log.write([NewRecord(STATE, journal.end, now, encode_state(now_lost))])
                log.sync()
                logger.warning("the log may have lost its end: new epoch", extra={"pod": name})
        found = LogIndex(folder / INDEX, log, pod.epoch)
        journal.use_index(found)

        def commit(end: int) -> None:
            journal.commit(end)
            found.advance(end)
            self._perform(pod.release(end))
            self._on_commit()

        def snapshot(index: int) -> State:
            return pod.snapshot(term=term, index=index, boot=_boot_id(), now=self._clock())

        writer.begin(
            term=term,
            index=index,
            end=journal.end,
            on_commit=commit,
            snapshot=snapshot,
        )
        found.start(journal.end)
        self._pods[name] = _OpenPod(pod, journal, writer, found)
        return pod


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
