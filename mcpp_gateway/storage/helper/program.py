"""The program of a helper process.

`python -m mcpp_gateway.storage.helper.program` reads requests from standard input and writes
answers to standard output. What is committed, and how far the index is, comes with every request.
It ends with its input, or when no process reads its answers.
"""

import logging
import os
import signal
import sqlite3
import time
from contextlib import suppress
from typing import IO, Final

from mcpp.filters import parse
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.history.pages import read_page
from mcpp_gateway.core.history.query import HistoryError, parse_query
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.file_source import FileSource
from mcpp_gateway.storage.helper.messages import (
    MAX_WORK_BYTES,
    PAGE_SECONDS,
    IndexAnswer,
    IndexRequest,
    PageAnswer,
    PageRequest,
    Request,
    decode_request,
    encode,
    read_message,
    write_message,
)
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import LogView, SegmentLog

_NICE: Final = 5
# Where all cores are busy, accepting envelopes comes first (L-27).
_INDEXING_NICE: Final = 19
_INDEX_SECONDS: Final = 0.5


class _Logs:
    """The logs that were asked for so far, by folder."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], tuple[SegmentLog, LogIndex]] = {}

    def read(self, request: PageRequest) -> PageAnswer:
        log, index = self._follow(request.log, "", request.committed)
        index.ids.show(request.ids)
        index.text.show(request.text)
        until = time.monotonic() + PAGE_SECONDS
        try:
            page = read_page(
                parse_query(request.query),
                Rights(request.listener, parse(request.hears)),
                FileSource(log, index, request.committed, request.start),
                max_bytes=request.max_bytes,
                max_work_bytes=MAX_WORK_BYTES,
                in_time=lambda: time.monotonic() < until,
            )
        except HistoryError as error:
            return PageAnswer(invalid=(error.member, error.reason))
        except UnreadableError as error:
            return PageAnswer(unreadable=str(error))
        entries = [
            (position, at, entry.text, entry.erased)
            for position, at, entry in page.found
            if entry is not None
        ]
        damaged, index.text.damaged = index.text.damaged, False
        return PageAnswer(
            entries=entries,
            rest=page.rest,
            start=page.start,
            end=page.end,
            indexed_to=page.indexed_to,
            damaged=damaged,
        )

    def index(self, request: IndexRequest) -> IndexAnswer:
        with suppress(OSError):  # a sandbox may forbid it
            os.setpriority(os.PRIO_PROCESS, 0, _INDEXING_NICE)
        _, index = self._follow(request.log, request.epoch, request.committed)
        index.ids.generation = request.ids_generation
        index.text.generation = request.text_generation
        try:
            index.index_here(_INDEX_SECONDS)
        except (sqlite3.Error, OSError) as error:
            return IndexAnswer(error=str(error))
        finally:
            index.close()  # the gateway may write it next
        return IndexAnswer(views=index.views())

    def _follow(self, view: LogView, epoch: str, committed: int) -> tuple[SegmentLog, LogIndex]:
        found = self._open.get((view.folder, epoch))
        if found is None:
            disk = OsDisk(view.folder, create=False)
            log = SegmentLog(disk)
            found = self._open[view.folder, epoch] = log, LogIndex(disk.folder, log, epoch)
        found[0].follow(view)
        found[1].committed = committed
        return found


def main() -> None:
    """Answer requests until the input ends."""
    # A terminal sends it to both processes, and the gateway decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(_NICE)
    # The gateway meets the same damage, and reports it; lines of two processes would mix.
    logging.getLogger("mcpp").addHandler(logging.NullHandler())
    requests, answers = (os.fdopen(os.dup(each), mode, 0) for each, mode in ((0, "rb"), (1, "wb")))
    with suppress(BrokenPipeError):  # the gateway was killed while it waited for an answer
        _serve(requests, answers)


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    write_message(answers, b"ready")
    logs = _Logs()
    while (data := read_message(requests)) is not None:
        request = decode_request(data)
        write_message(answers, encode(_answer(logs, request)))


def _answer(logs: _Logs, request: Request) -> PageAnswer | IndexAnswer:
    # Whatever goes wrong, the gateway reports it and goes on.
    if isinstance(request, PageRequest):
        try:
            return logs.read(request)
        except Exception as error:
            return PageAnswer(unreadable=repr(error))
    try:
        return logs.index(request)
    except Exception as error:
        return IndexAnswer(error=repr(error))


if __name__ == "__main__":
    main()
