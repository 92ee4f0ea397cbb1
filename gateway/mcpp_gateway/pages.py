"""What the gateway answers to plain HTTP, on the same port: health, metrics and the front page."""

from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from websockets.datastructures import Headers as ResponseHeaders
from websockets.http11 import Response

from mcpp import __version__
from mcpp_gateway.door import Denial, Headers
from mcpp_gateway.metrics import CONTENT_TYPE, render

if TYPE_CHECKING:
    from mcpp_gateway.server import Gateway

_TEXT: Final = "text/plain; charset=utf-8"


def respond(gateway: "Gateway", path: str, headers: Headers, address: str) -> Response:
    """Answer a request that is not for a WebSocket."""
    if path == "/healthz":
        return plain(503, "draining") if gateway.draining else plain(200, "ok")
    denial = _judge(gateway, path, headers, address)
    if denial is not None:
        return plain(denial.status, denial.reason)
    if path == "/metrics":
        return _response(200, CONTENT_TYPE, render(gateway))
    return plain(200, f"MCPP gateway {__version__}. Join with a WebSocket at /ws.")


def plain(status: int, text: str) -> Response:
    """Return a response of one line."""
    return _response(status, _TEXT, f"{text}\n".encode())


def _judge(gateway: "Gateway", path: str, headers: Headers, address: str) -> Denial | None:
    if path == "/metrics":
        return gateway.door.admits_metrics(headers, address, gateway.hub.clock())
    if path == "/":
        return gateway.door.check_origin(headers)
    return Denial(404, "there is nothing here")


def _response(status: int, content_type: str, body: bytes) -> Response:
    headers = ResponseHeaders(
        {
            "Date": formatdate(usegmt=True),
            "Connection": "close",
            "Content-Length": str(len(body)),
            "Content-Type": content_type,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
    )
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        headers["Retry-After"] = "60"
    return Response(status, HTTPStatus(status).phrase, headers, body)
