"""Pages: what one answer to a query holds, and where the next one goes on.

A source offers the entries that may match, in the order of the query. What it offers is checked
here, so a source may use an index that finds too much. Work is bounded: a page ends early if there
was too much to look at, and says where to go on.
"""

from collections.abc import Callable, Iterator
from math import inf, nextafter
from typing import Final, NamedTuple, Protocol

import msgspec

from mcpp_gateway.core.hearing.filter_counts import filter_weight
from mcpp_gateway.core.hearing.matcher import Selector
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.history.query import HistoryError, HistoryQuery, Span
from mcpp_gateway.core.records import LogEntry

MAX_PAGE_BYTES: Final = 262_144
# What looking at an entry counts for, besides its bytes if its words are searched.
_ENTRY_BYTES: Final = 256
_FOLDING_COST: Final = 8  # a character may become eighteen
# Looked at for a page in place: a few milliseconds (G-47), and one long text more.
MAX_WORK_BYTES: Final = 524_288


class Found(NamedTuple):
    """An entry where it stands. Without one: everything up to this position was looked at."""

    position: int
    time: float
    entry: LogEntry | None


class Source(Protocol):
    """The committed part of a log, as queries read it."""

    @property
    def start(self) -> int:
        """The oldest position that can be read."""

    @property
    def end(self) -> int:
        """The end of the committed log."""

    @property
    def indexed_to(self) -> int:
        """The position up to which words are found by an index."""

    def find(self, id: str) -> int | None:
        """Return the position of an envelope."""

    def position_at(self, time: float) -> int:
        """Return the position of the first entry that is not older than a time, or the end."""

    def scan(self, query: HistoryQuery, start: int, end: int) -> Iterator[Found]:
        """Yield every entry between two positions that may match, in the query's order."""


class Page(NamedTuple):
    """One answer to a query."""

    found: list[Found]
    rest: Span | None  # None: there is nothing more
    start: int
    end: int
    indexed_to: int


def read_page(
    query: HistoryQuery,
    listener: Rights,
    source: Source,
    *,
    max_bytes: int = MAX_PAGE_BYTES,
    max_work_bytes: int = MAX_WORK_BYTES,
    in_time: Callable[[], bool] = lambda: True,
) -> Page:
    """Return the first page of a query, or the one that its cursor asks for.

    Raises HistoryError and UnreadableError.
    """
    rest = query.rest or _span(query, source)
    start = max(rest.start, source.start)
    end = source.end if rest.end is None else min(rest.end, source.end)
    page: list[Found] = []
    size = work = 0
    more: Span | None = None
    selector = Selector(query.filter)
    entry_bytes = _ENTRY_BYTES * (1 + filter_weight(query.filter))
    # An index would find words in what the listener may not hear, and time and pages would tell.
    hidden = listener.restricted and query.words is not None
    scanned = msgspec.structs.replace(query, words=None) if hidden else query
    for found in source.scan(scanned, start, end):
        entry = found.entry
        if entry is not None:
            work += entry_bytes + (0 if query.words is None else _folding_bytes(entry.text))
            readable = listener.read(entry)
            if (
                readable is not None
                and selector.passes(readable, readable.lineage)
                and (query.words is None or query.words.match(readable.text))
            ):
                page.append(found._replace(entry=readable))
                size += len(readable.text)
        full = len(page) >= query.limit or size >= max_bytes
        if full or work >= max_work_bytes or not in_time():
            more = _beyond(found.position, Span(start, rest.end), query, end)
            break
    return Page(page, more, source.start, source.end, source.indexed_to)


def _folding_bytes(text: bytes) -> int:
    """Return what searching a text counts for: folding other characters than ASCII takes longer."""
    return len(text) if text.isascii() else _FOLDING_COST * len(text)


def _beyond(position: int, span: Span, query: HistoryQuery, end: int) -> Span | None:
    """Return what is left of a span behind a position."""
    if query.newest_first:
        return Span(span.start, position) if position > span.start else None
    return Span(position + 1, span.end) if position + 1 < end else None


def _span(query: HistoryQuery, source: Source) -> Span:
    start, end = 0, source.end if query.newest_first else None
    if isinstance(query.after, str):
        start = _position(query.after, "after", source) + 1
    elif query.after is not None:
        start = source.position_at(_next_time(query.after))
    if isinstance(query.before, str):
        end = _position(query.before, "before", source)
    elif query.before is not None:
        found = source.position_at(query.before)
        # An end of the log as it is now would cut off what is appended before that time.
        end = found if query.newest_first or found < source.end else None
    return Span(start, end)


def _position(id: str, member: str, source: Source) -> int:
    position = source.find(id)
    if position is None:
        raise HistoryError(member, "is not an envelope of the log")
    return position


def _next_time(time: float) -> float:
    """Return the smallest number that is larger: bounds are exclusive."""
    return nextafter(time, inf)


class JournalInMemory(Protocol):
    """A journal whose committed entries are all in memory."""

    @property
    def start(self) -> int:
        """The oldest position that can be read."""

    @property
    def end(self) -> int:
        """The end of the log."""

    def after(self, id: str) -> int | None:
        """Return the position that follows an envelope."""

    def read(self, position: int, limit: int) -> list[LogEntry]:
        """Return entries from a position on."""


class MemorySource:
    """A log in memory, which is searched from one end."""

    def __init__(self, journal: JournalInMemory) -> None:
        self._journal = journal
        self.start = journal.start
        self.end = self.indexed_to = journal.end

    def find(self, id: str) -> int | None:
        """Return the position of an envelope."""
        behind = self._journal.after(id)
        return None if behind is None else behind - 1

    def position_at(self, time: float) -> int:
        """Return the position of the first entry that is not older than a time, or the end."""
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            if self._journal.read(middle, 1)[0].time < time:
                low = middle + 1
            else:
                high = middle
        return low

    def scan(self, query: HistoryQuery, start: int, end: int) -> Iterator[Found]:
        """Yield every entry between two positions, in the query's order."""
        order = range(start, end)
        for position in reversed(order) if query.newest_first else order:
            entry = self._journal.read(position, 1)[0]
            yield Found(position, entry.time, entry)
