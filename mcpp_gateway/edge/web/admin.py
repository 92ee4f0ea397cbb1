"""The admin's interface at `/admin/*`: the state of the gateway, and a few actions (O-01).

Everything is JSON. Reading is GET; what changes something is POST with a JSON object.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import msgspec
from websockets.http11 import Response

from mcpp.errors import McppError
from mcpp_gateway.config import ConfigError
from mcpp_gateway.core.effects import KICKED
from mcpp_gateway.edge.admission import Denial
from mcpp_gateway.edge.session_log import log_session
from mcpp_gateway.edge.web import admin_views as views
from mcpp_gateway.edge.web.openapi import document
from mcpp_gateway.edge.web.requests import HttpRequest
from mcpp_gateway.edge.web.responses import response

if TYPE_CHECKING:
    from mcpp_gateway.edge.connection import ServerConnection
    from mcpp_gateway.edge.server import Gateway

PREFIX: Final = "/admin/"


class KickRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which connections to close: one by its id, or those of a participant."""

    connection: str | None = None
    pod: str | None = None
    participant: str | None = None


class RevokeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which signed tokens to revoke: one by its id, or all of a participant."""

    name: str


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stop the gateway in order."""


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many connections an action has closed, and what else there is to know."""

    closed: int
    note: str = ""


_NOT_KEPT: Final = "until the gateway restarts: without [tokens] revocations are not stored"
_CONFIGURED: Final = "its token in the configuration stays valid: change it there, and reload"


class _BadRequestError(Exception):
    pass


def handle(
    gateway: "Gateway", request: HttpRequest
) -> "Response | Denial | asyncio.Task[Response | Denial]":
    """Answer a request to the admin's interface, if it is on and the token is an admin's."""
    admission, now = gateway.admission, gateway.hub.clock()
    if not admission.has_admin:
        return Denial(404, "not found")
    name = request.path.removeprefix(PREFIX)
    if request.method not in ("GET", "POST"):
        return Denial(405, "not supported", allowed="POST" if name in _ACTIONS else "GET")
    denial = admission.check_admin(request.headers, request.address, now)
    if denial is not None:
        return denial
    try:
        if name in _ACTIONS:
            if request.method != "POST":
                return Denial(405, "use POST", allowed="POST")
            kind, act = _ACTIONS[name]
            done = act(gateway, _decode(request.body, kind))
            return _json(done) if isinstance(done, Done) else gateway.loop.create_task(done)
        if name in _VIEWS:
            if request.method != "GET":
                return Denial(405, "use GET", allowed="GET")
            return _json(_VIEWS[name](gateway, _query(gateway, request.query)))
    except _BadRequestError as error:
        return Denial(400, str(error))
    return Denial(404, "not found")


# --- views ----------------------------------------------------------------------------------------

_Query = Mapping[str, str]


def _pods(gateway: "Gateway", query: _Query) -> Iterable[Any]:
    wanted = query.get("pod")
    return [pod for name, pod in gateway.pods.items() if wanted in (None, name)]


def _participants(gateway: "Gateway", query: _Query) -> list[views.ParticipantStatus]:
    return [each for pod in _pods(gateway, query) for each in views.participants(pod)]


def _connections(gateway: "Gateway", query: _Query) -> list[views.ConnectionStatus]:
    found = [
        views.connection_status(gateway, each)
        for each in gateway.connections
        if each.peer is not None and not each.peer.closed
    ]
    return [
        each
        for each in found
        if query.get("pod", each.pod) == each.pod
        and query.get("participant", each.participant) == each.participant
    ]


def _limits(gateway: "Gateway", query: _Query) -> Any:
    participant = query.get("participant")
    if "pod" not in query:
        if participant is not None:
            raise _BadRequestError("name the pod of the participant, too")
        return gateway.config.limits
    if participant is not None and participant not in gateway.pods[query["pod"]].members.known():
        raise _BadRequestError("no such participant in this pod")
    return views.limits_of(gateway, query["pod"], participant)


_VIEWS: Final[Mapping[str, Callable[["Gateway", _Query], Any]]] = {
    "status": lambda gateway, query: views.gateway_status(gateway),
    "pods": lambda gateway, query: [views.pod_status(pod) for pod in _pods(gateway, query)],
    "participants": _participants,
    "connections": _connections,
    "limits": _limits,
    "openapi.json": lambda gateway, query: document(),
}


# --- actions --------------------------------------------------------------------------------------


def _kick(gateway: "Gateway", wanted: KickRequest) -> Done:
    if wanted.connection is None and wanted.participant is None:
        raise _BadRequestError("name a connection or a participant")

    def is_meant(connection: "ServerConnection") -> bool:
        peer = connection.peer
        return (
            peer is not None
            and not peer.closed
            and wanted.connection in (None, connection.request)
            and wanted.pod in (None, peer.pod.name)
            and wanted.participant in (None, peer.session.member.settings.id)
        )

    closed = [connection for connection in gateway.connections if is_meant(connection)]
    for connection in closed:
        log_session("kicked", connection)
        connection.close(KICKED, "closed by the operator")
    return Done(len(closed))


async def _revoke(gateway: "Gateway", wanted: RevokeRequest) -> Response | Denial:
    try:
        closed = await gateway.revoke(wanted.name)
        is_kept = gateway.cluster is not None or gateway.config.token_folder is not None
        notes = [] if is_kept else [_NOT_KEPT]
        if any(pod.members.is_configured(wanted.name) for pod in gateway.pods.values()):
            notes.append(_CONFIGURED)
        return _json(Done(closed, "; ".join(notes)))
    except ConfigError as error:
        return Denial(400, str(error))
    except McppError as error:
        return Denial(503, str(error), retry_after_seconds=5)


def _drain(gateway: "Gateway", wanted: DrainRequest) -> Done:
    gateway.on_drain_request()
    return Done(len(gateway.connections))


_ACTIONS: Final[Mapping[str, tuple[Any, Callable[["Gateway", Any], Any]]]] = {
    "kick": (KickRequest, _kick),
    "revoke": (RevokeRequest, _revoke),
    "drain": (DrainRequest, _drain),
}


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _BadRequestError(f"not a valid request: {error}") from None


def _query(gateway: "Gateway", text: str) -> _Query:
    try:
        query = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=8))
    except ValueError as error:
        raise _BadRequestError(str(error)) from None
    unknown = query.keys() - {"pod", "participant"}
    if unknown:
        raise _BadRequestError(f"unknown: {sorted(unknown)[0][:40]!a}")
    if query.get("pod", next(iter(gateway.pods), "")) not in gateway.pods:
        raise _BadRequestError("no such pod")
    return query


def _json(value: Any) -> Response:
    return response(200, "application/json", msgspec.json.encode(value))
