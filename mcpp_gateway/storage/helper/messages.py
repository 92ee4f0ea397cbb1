"""What the gateway and a helper process tell each other, each message preceded by its length."""

from typing import IO, Any, Final

import msgspec

from mcpp_gateway.core.history.pages import Found, Page
from mcpp_gateway.core.history.query import Span
from mcpp_gateway.core.records import LogEntry
from mcpp_gateway.storage.index.database import DatabaseView, IndexViews
from mcpp_gateway.storage.segment_log import LogView

# A page takes this long at most, and whatever one step takes beyond it.
PAGE_SECONDS: Final = 0.035
MAX_WORK_BYTES: Final = 16 << 20
_LENGTH_BYTES: Final = 4


class PageRequest(msgspec.Struct, kw_only=True, tag="page"):
    """Read a page of history."""

    log: LogView
    ids: DatabaseView
    text: DatabaseView
    committed: int
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


class IndexRequest(msgspec.Struct, kw_only=True, tag="index"):
    """Index a part of a log; only one process may do so at a time."""

    log: LogView
    epoch: str
    ids_generation: int  # of the database
    text_generation: int
    committed: int


class IndexAnswer(msgspec.Struct, kw_only=True):
    """How far ids and texts are indexed, or why not."""

    views: IndexViews | None = None
    error: str = ""


Request = PageRequest | IndexRequest

encode: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_page: Final = msgspec.msgpack.Decoder(PageAnswer).decode
decode_index: Final = msgspec.msgpack.Decoder(IndexAnswer).decode


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
