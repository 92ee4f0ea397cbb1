"""HTTP requests as the routes see them."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs

from mcpp_gateway.edge.admission import Headers

MAX_BODY_BYTES: Final = 8192


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request, with the address that it came from."""

    method: str
    path: str
    query: str
    headers: Headers
    address: str
    body: bytes = b""
    id: str = ""  # of its connection, as in log lines

    @property
    def pod(self) -> str | None:
        """The pod that the query names, if any."""
        return next(iter(parse_qs(self.query, keep_blank_values=True).get("pod", ())), None)


def content_length(headers: Headers) -> int | None:
    """Return the stated length of a body, 0 if none is; None if it is not valid."""
    match headers.get("content-length", ["0"]):
        case [text] if text.isascii() and text.isdigit() and len(text) < 20:
            return int(text)
    return None


def body_length(headers: Headers) -> int | None:
    """Return how many bytes of body follow; None if that is unknown or too much."""
    if "transfer-encoding" in headers:
        return None
    length = content_length(headers)
    return None if length is None or length > MAX_BODY_BYTES else length
