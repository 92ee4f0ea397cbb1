"""Reading history in a process of its own, so that it never holds up the event loop.

Two threads of one process share the interpreter's lock: on a busy machine, a thread that is
suspended while it holds the lock makes the other one wait. So pages are read in another process
(`history_process`), one after another. It starts with the first request, and ends with this one.
Until it has started, and where it cannot be started, a thread reads the pages, with rests.
"""

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from mcpp_gateway.core.effects import Effect, ReadHistory
from mcpp_gateway.core.history.pages import Listener, Page, entries_until, read_page
from mcpp_gateway.core.history.query import HistoryError
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.records import LogEntry
from mcpp_gateway.storage.file_source import FileSource
from mcpp_gateway.storage.history_process import (
    MAX_WORK_BYTES,
    PAGE_SECONDS,
    PageAnswer,
    PageRequest,
    decode_answer,
    encode,
    read_message,
    write_message,
)
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog

logger = logging.getLogger("mcpp.gateway")

# After this much work a thread that reads rests.
_WORK_SECONDS: Final = 0.00025
_REST_SECONDS: Final = 0.0005
_RESTART_SECONDS: Final = 10.0
_ENTRIES_SECONDS: Final = 2.0
_COMMAND: Final = (sys.executable, "-m", "mcpp_gateway.storage.history_process")


class HistoryReader:
    """Answers requests for history, one after another. Owns the process that reads."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        perform: Callable[[Iterable[Effect]], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._perform = perform
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._start_not_before = 0.0
        self._stopping = False

    def read(self, pod: PodCore, log: SegmentLog, index: LogIndex, request: ReadHistory) -> None:
        """Begin to read what a request asks for; the pod is given the page later."""
        if not self._stopping:
            self._executor.submit(self._read, pod, log, index, request)

    async def entries_until(
        self,
        pod: PodCore,
        log: SegmentLog,
        index: LogIndex,
        listener: Listener,
        id: str,
        limit: int,
    ) -> list[LogEntry]:
        """Return the last entries up to an envelope that a participant may read, oldest first.

        Raises HistoryError and UnreadableError.
        """
        source = FileSource(log, index, pod.journal.committed, pod.journal.start)
        pace = _Pace(_ENTRIES_SECONDS)
        read = partial(entries_until, source, listener, id, limit, pace.go_on)
        return await self._loop.run_in_executor(self._executor, read)

    def close(self) -> None:
        """Drop what waits, and end the process. Blocks until the present page is complete."""
        self._stopping = True
        self._executor.shutdown(cancel_futures=True)
        self._end_process()
        self._starter.shutdown(cancel_futures=True)

    # --- on the executor's thread ---------------------------------------------------------------

    def _read(self, pod: PodCore, log: SegmentLog, index: LogIndex, request: ReadHistory) -> None:
        page: Page | HistoryError | UnreadableError
        try:
            page = self._read_elsewhere(pod, log, index, request) or self._read_here(
                pod, log, index, request
            )
        except (HistoryError, UnreadableError) as error:
            page = error
        except Exception as error:
            logger.exception("history cannot be read")
            page = UnreadableError(str(error))
        if not self._stopping:
            self._loop.call_soon_threadsafe(self._answer, pod, request, page)

    def _read_here(
        self, pod: PodCore, log: SegmentLog, index: LogIndex, request: ReadHistory
    ) -> Page:
        return read_page(
            request.query,
            request.listener,
            FileSource(log, index, pod.journal.committed, pod.journal.start),
            max_bytes=pod.history_bytes,
            max_work_bytes=MAX_WORK_BYTES,
            in_time=_Pace().go_on,
        )

    def _read_elsewhere(
        self, pod: PodCore, log: SegmentLog, index: LogIndex, request: ReadHistory
    ) -> Page | None:
        """Let the process read a page; None if there is none. Raises like `read_page`."""
        process = self._process
        if process is None or not self._ready:
            self._start_process()
            return None
        asked = PageRequest(
            log=log.view(),
            index=index.view(pod.journal.committed),
            start=pod.journal.start,
            query=request.query.given,
            listener=request.listener.id,
            hears=request.listener.hears.to_json(),
            max_bytes=pod.history_bytes,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            write_message(process.stdin, encode(asked))
            data = read_message(process.stdout)
        except OSError:
            data = None
        if data is None:
            logger.warning("the process that reads history has ended")
            self._end_process()
            return None
        answer = decode_answer(data)
        if answer.damaged:
            index.text.damaged = True
        return _page(answer)

    def _start_process(self) -> None:
        """Start the process, and use it once it says that it is ready."""
        now = time.monotonic()
        if self._process is not None or now < self._start_not_before or self._stopping:
            return
        self._start_not_before = now + _RESTART_SECONDS
        try:
            self._process = subprocess.Popen(
                _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            logger.warning("history is read in a thread", extra={"reason": str(error)})
            return
        self._starter.submit(self._await_ready, self._process)

    def _await_ready(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        try:
            self._ready = read_message(process.stdout) is not None
        except OSError:
            return

    def _end_process(self) -> None:
        process, self._process, self._ready = self._process, None, False
        if process is not None:
            process.kill()
            process.communicate()

    # --- on the event loop ----------------------------------------------------------------------

    def _answer(
        self, pod: PodCore, request: ReadHistory, page: Page | HistoryError | UnreadableError
    ) -> None:
        self._perform(pod.answer_history(request, page, self._clock()))


def _page(answer: PageAnswer) -> Page:
    """Return the page of an answer. Raises what reading raised."""
    if answer.invalid is not None:
        raise HistoryError(*answer.invalid)
    if answer.unreadable is not None:
        raise UnreadableError(answer.unreadable)
    return answer.page()


class _Pace:
    """How fast a thread reads a page: with rests in between, and not for too long."""

    def __init__(self, seconds: float = PAGE_SECONDS) -> None:
        self._rested = time.monotonic()
        self._until = self._rested + seconds

    def go_on(self) -> bool:
        """Rest if it is time to, and return whether there is time for more."""
        now = time.monotonic()
        if now - self._rested > _WORK_SECONDS:
            time.sleep(_REST_SECONDS)
            self._rested = now = time.monotonic()
        return now < self._until
