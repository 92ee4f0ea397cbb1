"""The gateway's HTTP routes: joining, signing in, health, metrics and the inspector's files."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from websockets.http11 import Response

from mcpp.errors import McppError
from mcpp_gateway.edge.admission import Admission, Denial
from mcpp_gateway.edge.admission.control import CODE_HEADER
from mcpp_gateway.edge.web.admin import interface as admin
from mcpp_gateway.edge.web.mcp_service import MAX_MCP_BODY_BYTES
from mcpp_gateway.edge.web.pages import pages
from mcpp_gateway.edge.web.requests import HttpRequest, content_length
from mcpp_gateway.edge.web.responses import json_answer, plain, response
from mcpp_gateway.prompts.service import PromptError

if TYPE_CHECKING:
    from mcpp_gateway.edge.server import Gateway


MCP_PATH: Final = "/mcp"

_OUT_OF_REACH: Final = Denial(503, "the cluster's log is out of reach", retry_after_seconds=5)


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """Asks the connection to pass the request on to the process that serves MCP clients.

    `requester` is whose place it takes: pod and participant.
    """

    requester: str


# An Admission asks the connection to upgrade to a WebSocket; a Task is awaited.
Decision: TypeAlias = "Admission | Denial | asyncio.Task[Admission | Denial]"
Answer: TypeAlias = "Response | RelayRequest | Decision | asyncio.Task[Response | Denial]"


def is_relayed(target: str) -> bool:
    """Return whether another process answers requests to this target."""
    path = target.partition("?")[0]
    return path == MCP_PATH or path.startswith(f"{MCP_PATH}/")


def handle(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Answer a request by the route of its path; any other path is a file of the inspector."""
    if request.path.startswith(admin.PREFIX):
        return admin.handle(gateway, request)
    if is_relayed(request.path):
        return _mcp(gateway, request)
    if request.method != "GET":
        return Denial(405, "only GET is supported", allowed="GET")
    route = _ROUTES.get(request.path)
    if route is not None:
        return route(gateway, request)
    page = pages().get(request.path)
    if page is None:
        return Denial(404, "not found")
    return gateway.admission.check_origin(request.headers) or page.answer(request.headers)


# --- routes --------------------------------------------------------------------------------------


def _join(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Admit a participant to its pod."""
    return gateway.admit(request.query, request.headers, request.address)


def _sign_in(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Sign a browser in: exchange its code for a session token, or recognise its token."""
    codes = request.headers.get(CODE_HEADER, [])
    if gateway.cluster is None or len(codes) != 1:
        return _signed_in(gateway, request)

    async def answer() -> Response | Denial:
        denial = gateway.admission.check_sign_in(
            request.headers, request.address, gateway.hub.clock()
        )
        if denial is not None:
            return denial
        try:
            await gateway.fetch_invitation(codes[0])
        except McppError:
            return _OUT_OF_REACH
        return _signed_in(gateway, request)

    return gateway.loop.create_task(answer())


def _signed_in(gateway: "Gateway", request: HttpRequest) -> Response | Denial:
    found = gateway.admission.sign_in(
        request.headers, request.address, gateway.hub.clock(), request.pod
    )
    if isinstance(found, Denial):
        return found
    pod, participant = found.identity
    answer = {"pod": pod, "participant": participant}
    if found.token is not None:
        answer["token"] = found.token
    return json_answer(answer)


def _invite(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Give the owner of a token a code that signs a browser in."""
    owner = gateway.admission.recognise_owner(request.headers, request.address, gateway.hub.clock())
    if isinstance(owner, Denial):
        return owner

    async def answer() -> Response | Denial:
        try:
            return json_answer({"code": await gateway.invite(*owner)})
        except McppError:
            return _OUT_OF_REACH

    return gateway.loop.create_task(answer())


def _prompt(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Compute what a participant's model would be shown (H-40)."""
    found = gateway.recognise(request, has_joined=True)
    if isinstance(found, Denial):
        return found
    pod, participant = found

    async def answer() -> Response | Denial:
        try:
            body = await gateway.prompts.answer(gateway.pods[pod], participant, request.query)
        except PromptError as error:
            return Denial(error.status, error.reason)
        return response(200, "application/json", body, {"Cache-Control": "no-store"})

    return gateway.loop.create_task(answer())


def _mcp(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Let the process that serves MCP clients answer a participant's request (G-70)."""
    service = gateway.mcp
    if service is None:
        return Denial(404, "not found")
    if not service.is_installed:
        return Denial(501, "MCP clients need mcpp mcp: pip install 'mcpp-pods[mcp]'")
    found = gateway.recognise(request)
    if isinstance(found, Denial):
        return found
    length = content_length(request.headers)
    if length is None:
        return Denial(400, "not a valid HTTP request")
    if length > MAX_MCP_BODY_BYTES:
        # The process would end the connection while the body comes, and its answer would be lost.
        return Denial(413, f"a request has at most {MAX_MCP_BODY_BYTES} bytes")
    return RelayRequest("/".join(found))


def _health(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Report whether the gateway admits participants (G-43)."""
    if gateway.draining:
        return plain(503, "draining")
    if not gateway.is_log_reachable:
        return plain(503, "the cluster's log is out of reach")
    return plain(200, "ok") if gateway.has_space else plain(503, "no space left for the log")


def _metrics(gateway: "Gateway", request: HttpRequest) -> Answer:
    """Return the metrics in Prometheus' text format (G-44)."""
    denial = gateway.admission.check_metrics(request.headers, request.address, gateway.hub.clock())
    if denial is not None:
        return denial
    try:
        from mcpp_gateway.edge.web.metrics import CONTENT_TYPE, render
    except ModuleNotFoundError:
        return Denial(501, "metrics need prometheus_client: pip install 'mcpp-pods[gateway]'")
    return response(200, CONTENT_TYPE, render(gateway))


_ROUTES: Final[Mapping[str, Callable[["Gateway", HttpRequest], Answer]]] = {
    "/ws": _join,
    "/session": _sign_in,
    "/invitation": _invite,
    "/prompt": _prompt,
    "/healthz": _health,
    "/metrics": _metrics,
}
