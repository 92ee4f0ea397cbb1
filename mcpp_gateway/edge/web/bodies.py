"""The body of an HTTP request, as it arrives: of a known length, or in chunks (RFC 9112)."""

from typing import Final

from mcpp_gateway.edge.admission import Headers

_MAX_LINE_BYTES: Final = 256  # of a chunk's size, with extensions; of a trailer
_MAX_TRAILERS: Final = 16
_MAX_DIGITS: Final = 15


class BodyError(Exception):
    """A body that is not valid HTTP, or has no stated length."""


def read_body(headers: Headers) -> "SizedBody | ChunkedBody":
    """Return the body that headers announce. Raises BodyError."""
    codings, lengths = headers.get("transfer-encoding", []), headers.get("content-length", [])
    if codings:
        if [each.lower() for each in codings] != ["chunked"] or lengths:
            raise BodyError("only Transfer-Encoding: chunked is supported, without a length")
        return ChunkedBody()
    match lengths:
        case [text] if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS:
            return SizedBody(int(text))
    raise BodyError("the request needs Content-Length or Transfer-Encoding: chunked")


class SizedBody:
    """A body of a known length; what follows it is ignored."""

    def __init__(self, size: int) -> None:
        self.size: int | None = size
        self._left = size

    @property
    def is_complete(self) -> bool:
        """Whether all of it was fed."""
        return not self._left

    def feed(self, data: bytes) -> bytes:
        """Return the content in what has arrived."""
        content = data[: self._left]
        self._left -= len(content)
        return content


class ChunkedBody:
    """A body in chunks. Owns what has arrived of an incomplete line."""

    def __init__(self) -> None:
        self.size: int | None = None
        self.is_complete = False
        self._line = b""
        self._left = 0  # of the present chunk
        self._after_chunk = False
        self._trailers: int | None = None  # None: the last chunk has not come yet

    def feed(self, data: bytes) -> bytes:
        """Return the content in what has arrived. Raises BodyError."""
        content: list[bytes] = []
        position = 0
        while position < len(data) and not self.is_complete:
            if self._left:
                part = data[position : position + self._left]
                content.append(part)
                position += len(part)
                self._left -= len(part)
                self._after_chunk = not self._left
                continue
            end = data.find(b"\n", position) + 1
            self._line += data[position : end or len(data)]
            if len(self._line) > _MAX_LINE_BYTES:
                raise BodyError("a line of the chunked body is too long")
            if not end:
                break
            position = end
            line, self._line = self._line, b""
            self._read_line(line)
        return b"".join(content)

    def _read_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise BodyError("a line of the chunked body does not end in CR LF")
        line = line[:-2]
        if self._after_chunk:
            if line:
                raise BodyError("a chunk is longer than its size")
            self._after_chunk = False
        elif self._trailers is not None:
            self.is_complete = not line
            self._trailers += 1
            if self._trailers > _MAX_TRAILERS:
                raise BodyError("too many trailers")
        else:
            digits = line.partition(b";")[0].strip(b" \t")
            if not digits or len(digits) > _MAX_DIGITS or digits.strip(b"0123456789abcdefABCDEF"):
                raise BodyError("the size of a chunk is not a number")
            self._left = int(digits, 16)
            if not self._left:
                self._trailers = 0
