"""What the gateway answers to plain HTTP, on the same port: health, metrics and the inspector."""

import json
import math
from collections.abc import Mapping
from email.utils import formatdate
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Final

from websockets.datastructures import Headers as ResponseHeaders
from websockets.http11 import Response

from mcpp_gateway.edge.admission import Denial, Headers, SignIn

if TYPE_CHECKING:
    from mcpp_gateway.edge.server import Gateway

_TEXT: Final = "text/plain; charset=utf-8"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Two policies, and a page must please both: what it may load, and what its scripts may do.
POLICIES: Final = (
    (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; frame-ancestors 'none'"
    ),
    "require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'none'",
)


def respond(gateway: "Gateway", path: str, headers: Headers, address: str) -> Response | Denial:
    """Answer a request that is neither for a WebSocket nor for a session."""
    if path == "/healthz":
        return plain(503, "draining") if gateway.draining else plain(200, "ok")
    if path == "/invitation":
        owner = gateway.door.recognise_owner(headers, address, gateway.hub.clock())
        return owner if isinstance(owner, Denial) else _json({"code": gateway.invite(*owner)})
    denial = _judge(gateway, path, headers, address)
    if denial is not None:
        return denial
    if path == "/metrics":
        return _metrics(gateway)
    return _pages()[path].answer(headers)


def plain(status: int, text: str) -> Response:
    """Return a response of one line."""
    return _response(status, _TEXT, f"{text}\n".encode())


def deny(denial: Denial) -> Response:
    """Return what somebody is told who is not let in."""
    response = plain(denial.status, denial.reason)
    if denial.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(math.ceil(denial.retry_after_seconds))
    return response


def session(found: SignIn) -> Response:
    """Return what a page is told that has signed in."""
    pod, participant = found.standing
    answer = {"pod": pod, "participant": participant}
    if found.token is not None:
        answer["token"] = found.token
    return _json(answer)


def _judge(gateway: "Gateway", path: str, headers: Headers, address: str) -> Denial | None:
    if path == "/metrics":
        return gateway.door.admits_metrics(headers, address, gateway.hub.clock())
    if path in _pages():
        return gateway.door.check_origin(headers)
    return Denial(404, "there is nothing here")


def _metrics(gateway: "Gateway") -> Response | Denial:
    try:
        from mcpp_gateway.edge.metrics import CONTENT_TYPE, render
    except ModuleNotFoundError:
        return Denial(501, "metrics need prometheus_client: pip install 'mcpp[gateway]'")
    return _response(200, CONTENT_TYPE, render(gateway))


class _Page:
    """A file of the inspector, with what its browser may remember it by."""

    def __init__(self, file: Traversable) -> None:
        self._body = file.read_bytes()
        self._type = _TYPES[file.name.rpartition(".")[2]]
        self._etag = f'"{sha256(self._body).hexdigest()[:32]}"'

    def answer(self, headers: Headers) -> Response:
        # no-cache, not no-store: asked for each time, but sent only when it has changed.
        fresh = {"Cache-Control": "no-cache", "ETag": self._etag}
        known = ",".join(headers.get("if-none-match", []))
        if self._etag in map(str.strip, known.split(",")):
            response = _response(304, self._type, b"", fresh)
        else:
            response = _response(200, self._type, self._body, fresh)
        for policy in POLICIES:
            response.headers["Content-Security-Policy"] = policy
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        return response


@cache
def _pages() -> Mapping[str, _Page]:
    """Return the inspector's files by their paths, read once."""
    found: dict[str, _Page] = {}
    pending = [("/inspector", files("mcpp_gateway") / "inspector")]
    while pending:
        path, folder = pending.pop()
        for item in folder.iterdir():
            if item.is_dir():
                pending.append((f"{path}/{item.name}", item))
            elif item.name.rpartition(".")[2] in _TYPES:
                found[f"{path}/{item.name}"] = _Page(item)
    found["/"] = found.pop("/inspector/index.html")
    return found


def _json(answer: Mapping[str, str]) -> Response:
    return _response(200, "application/json", json.dumps(answer).encode())


def _response(
    status: int, content_type: str, body: bytes, more: Mapping[str, str] | None = None
) -> Response:
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
