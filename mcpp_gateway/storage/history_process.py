"""The process that reads pages of history, and how it is talked to.

`python -m mcpp_gateway.storage.history_process` reads requests from standard input and writes
answers to standard output, each preceded by its length. It reads files only; what is committed, and
how far the index is, comes with every request. It ends with its input.
"""

import os
import signal
import time
from contextlib import suppress
from typing import IO, Any, Final

import msgspec

from mcpp.filters import parse
from mcpp_gateway.core.history.pages import Found, Listener, Page, read_page
from mcpp_gateway.core.history.query import HistoryError, Span, parse_query
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.core.records import LogEntry
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.file_source import FileSource
from mcpp_gateway.storage.index.log_index import IndexView, LogIndex
from mcpp_gateway.storage.segment_log import LogView, SegmentLog

# A page takes this long at most, and whatever one step takes beyond it.
PAGE_SECONDS: Final = 0.035
MAX_WORK_BYTES: Final = 16 << 20
_LENGTH_BYTES: Final = 4
_NICE: Final = 5


class PageRequest(msgspec.Struct, kw_only=True):
    """What a page is read from, and what for."""

    log: LogView
    index: IndexView
    start: int
    query: dict[str, Any]
    listener: str
    hears: dict[str, Any]
    max_bytes: int


class PageAnswer(msgspec.Struct, kw_only=True):
    """A page, or why there is none."""

    entries: list[tuple[int, float, bytes, bool]] = []
    rest: tuple[int, int | None] | None = None
    start: int = 0
    end: int = 0
    indexed_to: int = 0
    invalid: tuple[str, str] | None = None
    unreadable: str | None = None
    damaged: bool = False  # whether the index has to be built again

    def page(self) -> Page:
        """Return the page. Of its entries, only what an answer shows is there."""
        found = [
            Found(position, time, LogEntry("", "", None, "", None, text, erased=erased))
            for position, time, text, erased in self.entries
        ]
        rest = None if self.rest is None else Span(*self.rest)
        return Page(found, rest, self.start, self.end, self.indexed_to)


encode: Final = msgspec.msgpack.Encoder().encode
decode_answer: Final = msgspec.msgpack.Decoder(PageAnswer).decode
_decode_request: Final = msgspec.msgpack.Decoder(PageRequest).decode


def write_message(stream: IO[bytes], data: bytes) -> None:
    """Write a message. Raises OSError."""
    rest = memoryview(len(data).to_bytes(_LENGTH_BYTES) + data)
    while rest:
        rest = rest[stream.write(rest) or 0 :]


def read_message(stream: IO[bytes]) -> bytes | None:
    """Return the next message; None at the end of the stream. Raises OSError."""
    length = _read(stream, _LENGTH_BYTES)
    return None if length is None else _read(stream, int.from_bytes(length))


def _read(stream: IO[bytes], size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        data = stream.read(size)
        if not data:
            return None
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


class _Logs:
    """The logs that were asked for so far, by folder."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[SegmentLog, LogIndex]] = {}

    def answer(self, request: PageRequest) -> PageAnswer:
        log, index = self._follow(request)
        until = time.monotonic() + PAGE_SECONDS
        try:
            page = read_page(
                parse_query(request.query),
                Listener(request.listener, parse(request.hears)),
                FileSource(log, index, request.index.committed, request.start),
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

    def _follow(self, request: PageRequest) -> tuple[SegmentLog, LogIndex]:
        view = request.log
        found = self._open.get(view.folder)
        if found is None:
            disk = OsDisk(view.folder, create=False)
            log = SegmentLog(disk)
            found = self._open[view.folder] = log, LogIndex(disk.folder, log, "")
        found[0].follow(view)
        found[1].follow(request.index)
        return found


def main() -> None:
    """Answer requests until the input ends."""
    # A terminal sends it to both processes, and the gateway decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(_NICE)
    requests, answers = (os.fdopen(os.dup(each), mode, 0) for each, mode in ((0, "rb"), (1, "wb")))
    write_message(answers, b"ready")
    logs = _Logs()
    while (data := read_message(requests)) is not None:
        try:
            answer = logs.answer(_decode_request(data))
        except Exception as error:  # the gateway reports it, and goes on
            answer = PageAnswer(unreadable=repr(error))
        write_message(answers, encode(answer))


if __name__ == "__main__":
    main()
