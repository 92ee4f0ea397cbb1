"""HTTP responses of the gateway."""

import json
import math
from collections.abc import Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

from websockets.datastructures import Headers as ResponseHeaders
from websockets.http11 import Response

from mcpp_gateway.edge.admission import Denial

_TEXT: Final = "text/plain; charset=utf-8"


def deny(denial: Denial) -> Response:
    """Return the response to a request that was refused."""
    answer = plain(denial.status, denial.reason)
    if denial.retry_after_seconds is not None:
        answer.headers["Retry-After"] = str(math.ceil(denial.retry_after_seconds))
    if denial.allowed:
        answer.headers["Allow"] = denial.allowed
    return answer


def plain(status: int, text: str) -> Response:
    """Return a line of text."""
    return response(status, _TEXT, f"{text}\n".encode())


def json_answer(answer: Any) -> Response:
    """Return a JSON document."""
    return response(200, "application/json", json.dumps(answer).encode())


def response(
    status: int, content_type: str, body: bytes, more: Mapping[str, str] | None = None
) -> Response:
    """Return a response that closes the connection; it is not cached unless `more` says so."""
    headers = ResponseHeaders(
        {
            "Date": formatdate(usegmt=True),
            "Connection": "close",
            "Content-Length": str(len(body)),
            "Content-Type": content_type,
            "X-Content-Type-Options": "nosniff",
            **(more or {"Cache-Control": "no-store"}),
        }
    )
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(status, HTTPStatus(status).phrase, headers, body)
