"""Reading history, so that it never holds up the event loop.

Pages are read in a helper process, one after another. Until it has started, and where it cannot be
started, a thread reads them, with rests.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol, TypeVar

from mcpp_gateway.core.effects import Effect, ReadHistory
from mcpp_gateway.core.history.pages import Page, Source, read_page
from mcpp_gateway.core.history.query import HistoryError
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.storage.file_source import FileSource
from mcpp_gateway.storage.helper.messages import (
    MAX_WORK_BYTES,
    PAGE_SECONDS,
    PageAnswer,
    PageRequest,
    decode_page,
)
from mcpp_gateway.storage.helper.process import HelperProcess
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog

logger = logging.getLogger("mcpp.gateway")

# After this much work a thread that reads rests.
_WORK_SECONDS: Final = 0.00025
_REST_SECONDS: Final = 0.0005

T = TypeVar("T")


class ReadableLog(Protocol):
    """A log in files, of which pages are read."""

    log: SegmentLog
    index: LogIndex

    def readable(self) -> tuple[int, int]:
        """Return the oldest position that can be read and the end. Called on another thread."""


class HistoryReader:
    """Answers requests for history, one after another. Owns the helper that reads."""

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
        self.helper = HelperProcess()
        self._stopping = False

    def read(self, pod: PodCore, log: ReadableLog, request: ReadHistory) -> None:
        """Begin to read what a request asks for; the pod is given the page later."""
        if not self._stopping:
            self._executor.submit(self._read, pod, log, request)

    def run(self, log: ReadableLog, function: Callable[[Source], T]) -> "asyncio.Future[T]":
        """Call a function with a log, on the thread that reads."""
        return self._loop.run_in_executor(self._executor, lambda: function(_source(log)))

    def close(self) -> None:
        """Drop what waits, and end the helper."""
        self._stopping = True
        self.helper.close()
        self._executor.shutdown(cancel_futures=True)

    # --- on the executor's thread ---------------------------------------------------------------

    def _read(self, pod: PodCore, log: ReadableLog, request: ReadHistory) -> None:
        page: Page | HistoryError | UnreadableError
        try:
            page = self._read_elsewhere(pod, log, request) or self._read_here(pod, log, request)
        except (HistoryError, UnreadableError) as error:
            page = error
        except Exception as error:
            logger.exception("history cannot be read")
            page = UnreadableError(str(error))
        if not self._stopping:
            self._loop.call_soon_threadsafe(self._answer, pod, request, page)

    def _read_here(self, pod: PodCore, log: ReadableLog, request: ReadHistory) -> Page:
        return read_page(
            request.query,
            request.listener,
            _source(log),
            max_bytes=pod.history.max_bytes,
            max_work_bytes=MAX_WORK_BYTES,
            in_time=_Pace().go_on,
        )

    def _read_elsewhere(self, pod: PodCore, log: ReadableLog, asked: ReadHistory) -> Page | None:
        """Let the helper read a page; None if it does not. Raises like `read_page`."""
        start, committed = log.readable()
        index = log.index
        data = self.helper.call(
            PageRequest(
                log=log.log.view(),
                ids=index.ids.view(),
                text=index.text.view(),
                committed=committed,
                start=start,
                query=asked.query.given,
                listener=asked.listener.participant,
                hears=asked.listener.hears.to_json(),
                max_bytes=pod.history.max_bytes,
            )
        )
        if data is None:
            return None
        answer = decode_page(data)
        if answer.damaged:
            index.text.damaged = True
        return _page(answer)

    # --- on the event loop ----------------------------------------------------------------------

    def _answer(
        self, pod: PodCore, request: ReadHistory, page: Page | HistoryError | UnreadableError
    ) -> None:
        self._perform(pod.history.answer(request, page, self._clock()))


def _source(log: ReadableLog) -> FileSource:
    start, committed = log.readable()
    return FileSource(log.log, log.index, committed, start)


def _page(answer: PageAnswer) -> Page:
    """Return the page of an answer. Raises what reading raised."""
    if answer.invalid is not None:
        raise HistoryError(*answer.invalid)
    if answer.unreadable is not None:
        raise UnreadableError(answer.unreadable)
    return answer.page()


class _Pace:
    """How fast a thread reads a page: with rests in between, and not for too long."""

    def __init__(self) -> None:
        self._rested = time.monotonic()
        self._until = self._rested + PAGE_SECONDS

    def go_on(self) -> bool:
        """Rest if it is time to, and return whether there is time for more."""
        now = time.monotonic()
        if now - self._rested > _WORK_SECONDS:
            time.sleep(_REST_SECONDS)
            self._rested = now = time.monotonic()
        return now < self._until
