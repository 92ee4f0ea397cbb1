"""The gateway's HTTP routes: joining, signing in, health, metrics and the inspector's files."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Final, TypeAlias

from websockets.datastructures import Headers as ResponseHeaders
from websockets.http11 import Response

from mcpp_gateway.edge.admission import Admission, Denial, Headers
from mcpp_gateway.prompts.service import PromptError

if TYPE_CHECKING:
    from mcpp_gateway.edge.server import Gateway

_TEXT: Final = "text/plain; charset=utf-8"
_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Two policies, both enforced: what a page may load, and what its scripts may do.
POLICIES: Final = (
    (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; frame-ancestors 'none'"
    ),
    "require-trusted-types-for 'script'; trusted-types 'none'; base-uri 'none'; form-action 'none'",
)


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """An HTTP request, with the address that it came from."""

    method: str
    path: str
    query: str
    headers: Headers
    address: str


# An Admission asks the connection to upgrade to a WebSocket; a Task is awaited.
Answer: TypeAlias = "Response | Denial | Admission | asyncio.Task[Response | Denial]"


def handle(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Answer a request by the route of its path; any other path is a file of the inspector."""
    if request.method != "GET":
        return Denial(405, "only GET is supported")
    route = _ROUTES.get(request.path)
    if route is not None:
        return route(gateway, request)
    page = _pages().get(request.path)
    if page is None:
        return Denial(404, "not found")
    return gateway.admission.check_origin(request.headers) or page.answer(request.headers)


def deny(denial: Denial) -> Response:
    """Return the response to a request that was refused."""
    response = _plain(denial.status, denial.reason)
    if denial.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(math.ceil(denial.retry_after_seconds))
    return response


# --- routes --------------------------------------------------------------------------------------


def _join(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Admit a participant to its pod."""
    return gateway.admit(request.query, request.headers, request.address)


def _sign_in(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Sign a browser in: exchange its code for a session token, or recognise its token."""
    found = gateway.admission.sign_in(request.headers, request.address, gateway.hub.clock())
    if isinstance(found, Denial):
        return found
    pod, participant = found.identity
    answer = {"pod": pod, "participant": participant}
    if found.token is not None:
        answer["token"] = found.token
    return _json(answer)


def _invite(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Give the owner of a token a code that signs a browser in."""
    owner = gateway.admission.recognise_owner(request.headers, request.address, gateway.hub.clock())
    return owner if isinstance(owner, Denial) else _json({"code": gateway.invite(*owner)})


def _prompt(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Compute what a participant's model would be shown (H-40)."""
    headers, now = request.headers, gateway.hub.clock()
    found = gateway.admission.recognise(headers, request.address, now)
    if isinstance(found, Denial):
        return found
    pod, participant = found

    async def answer() -> Response | Denial:
        try:
            body = await gateway.prompts.answer(gateway.pods[pod], participant, request.query)
        except PromptError as error:
            return Denial(error.status, error.reason)
        return _response(200, "application/json", body, {"Cache-Control": "no-store"})

    return gateway.loop.create_task(answer())


def _health(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Report whether the gateway admits participants (G-43)."""
    if gateway.draining:
        return _plain(503, "draining")
    if not gateway.is_log_reachable:
        return _plain(503, "the cluster's log is out of reach")
    return _plain(200, "ok") if gateway.has_space else _plain(503, "no space left for the log")


def _metrics(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Return the metrics in Prometheus' text format (G-44)."""
    denial = gateway.admission.check_metrics(request.headers, request.address, gateway.hub.clock())
    if denial is not None:
        return denial
    try:
        from mcpp_gateway.edge.metrics import CONTENT_TYPE, render
    except ModuleNotFoundError:
        return Denial(501, "metrics need prometheus_client: pip install 'mcpp-pods[gateway]'")
    return _response(200, CONTENT_TYPE, render(gateway))


_ROUTES: Final[Mapping[str, Callable[["Gateway", HttpRequest], Answer]]] = {
    "/ws": _join,
    "/session": _sign_in,
    "/invitation": _invite,
    "/prompt": _prompt,
    "/healthz": _health,
    "/metrics": _metrics,
}


# --- the inspector's files -----------------------------------------------------------------------


class _Page:
    """A file of the inspector, with its ETag."""

    def __init__(self, file: Traversable) -> None:
        self._body = file.read_bytes()
        self._type = _TYPES[file.name.rpartition(".")[2]]
        self._etag = f'"{sha256(self._body).hexdigest()[:32]}"'

    def answer(self, headers: Headers) -> Response:
        # no-cache, not no-store: the browser revalidates, and the file is sent only if it changed.
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
    """Return the inspector's files by path. They are read once."""
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


# --- responses -----------------------------------------------------------------------------------


def _plain(status: int, text: str) -> Response:
    return _response(status, _TEXT, f"{text}\n".encode())


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
