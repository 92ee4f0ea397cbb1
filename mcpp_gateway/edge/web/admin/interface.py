"""Answers requests to the admin's interface, and logs what admins do (O-01, O-02, O-09).

Everything is JSON. Reading is GET; what changes something is POST with a JSON object.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from websockets.http11 import Response

from mcpp_gateway.edge.admission import Denial
from mcpp_gateway.edge.admission.admins import Admin
from mcpp_gateway.edge.web.admin.actions import ACTIONS, Done
from mcpp_gateway.edge.web.admin.openapi import document
from mcpp_gateway.edge.web.admin.scope import BadRequestError, NotAllowedError, Scope
from mcpp_gateway.edge.web.admin.views import VIEWS
from mcpp_gateway.edge.web.requests import HttpRequest
from mcpp_gateway.edge.web.responses import response

if TYPE_CHECKING:
    from mcpp_gateway.edge.server import Gateway

logger = logging.getLogger("mcpp.gateway.audit")
_gateway_logger = logging.getLogger("mcpp.gateway")

PREFIX: Final = "/admin/"
_DOCUMENT: Final = "openapi.json"
# Of values in the audit that come from tokens and requests, and of results.
_MAX_VALUE: Final = 128
_MAX_RESULT: Final = 400


def handle(
    gateway: "Gateway", request: HttpRequest
) -> "Response | Denial | asyncio.Task[Response | Denial]":
    """Answer a request to the admin's interface, if it is on and the token is an admin's."""
    admission = gateway.admission
    if not admission.has_admin:
        return Denial(404, "not found")
    name = request.path.removeprefix(PREFIX)
    admin = admission.recognise_admin(request.headers, request.address, gateway.hub.clock())
    if isinstance(admin, Denial):
        return admin  # of a token that is not known: the connection logs it
    attempt = _Attempt(admin, request, name)
    if admin.refusal is not None:
        return attempt.refuse(403, admin.refusal)
    is_action = name in ACTIONS
    allowed = "POST" if is_action else "GET"
    if request.method != allowed:
        return replace(attempt.refuse(405, f"use {allowed}"), allowed=allowed)
    if is_action:
        return _act(Scope(gateway, admin), attempt)
    if name in VIEWS or name == _DOCUMENT:
        return _show(Scope(gateway, admin), attempt)
    return attempt.refuse(404, "not found")


class _Attempt(NamedTuple):
    """A request of an admin, for the audit."""

    admin: Admin
    request: HttpRequest
    name: str

    def log(self, status: int, result: str, target: Mapping[str, str] | None = None) -> None:
        """Log what came of it. Without the role, it is a participant's line, and limited (G-67)."""
        who = "admin" if self.admin.refusal is None else "participant"
        facts = {
            "request": self.request.id,
            "address": self.request.address,
            who: _cut(self.admin.name or "admin token"),
            "issuer": self.admin.issuer or "-",
            "token": _cut(self.admin.token_id or "-"),
            "action": self.name[:40],
            "target": {name: _cut(value) for name, value in (target or {}).items()},
            "status": status,
            "result": _cut(result, _MAX_RESULT),
        }
        logger.info("admin action", extra=facts)

    def refuse(self, status: int, reason: str, target: Mapping[str, str] | None = None) -> Denial:
        """Log that it was refused, and return the answer."""
        self.log(status, reason, target)
        return Denial(status, reason)

    def fail(self, target: Mapping[str, str]) -> Denial:
        """Log the exception that is being handled, and return the answer."""
        _gateway_logger.exception("an action of an admin has failed")
        return self.refuse(500, "the gateway has failed; its log says why", target)


def _cut(text: str, limit: int = _MAX_VALUE) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _show(scope: Scope, attempt: _Attempt) -> Response | Denial:
    """Answer what reads; only what is refused is logged, as monitoring reads often."""
    if attempt.name == _DOCUMENT:
        return _json(document())
    query: Mapping[str, str] = {}
    try:
        query = _query(attempt.request.query)
        if "pod" in query:
            scope.check_pod(query["pod"])
        return _json(VIEWS[attempt.name](scope, query))
    except NotAllowedError as error:
        return attempt.refuse(403, str(error), query)
    except BadRequestError as error:
        return attempt.refuse(400, str(error), query)


def _act(scope: Scope, attempt: _Attempt) -> "Response | Denial | asyncio.Task[Response | Denial]":
    kind, act = ACTIONS[attempt.name]
    target: dict[str, str] = {}
    try:
        wanted = _decode(attempt.request.body, kind)
        target = {name: value for name, value in msgspec.to_builtins(wanted).items() if value}
        done = act(scope, wanted)
    except NotAllowedError as error:
        return attempt.refuse(403, str(error), target)
    except BadRequestError as error:
        return attempt.refuse(400, str(error), target)
    except Exception:
        return attempt.fail(target)
    if isinstance(done, Done):
        return _done(done, attempt, target)

    async def wait() -> Response | Denial:
        try:
            found = await done
        except asyncio.CancelledError:
            attempt.log(499, "unknown: the client left before the answer", target)
            raise
        except Exception:
            return attempt.fail(target)
        if isinstance(found, Denial):
            attempt.log(found.status, found.reason, target)
            return found
        return _done(found, attempt, target)

    return scope.gateway.loop.create_task(wait())


def _done(done: Done, attempt: _Attempt, target: Mapping[str, str]) -> Response:
    note = f"; {done.note}" if done.note else ""
    attempt.log(200, f"connections closed: {done.closed}{note}", target)
    return _json(done)


def _decode(body: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"not a valid request: {error}") from None


def _query(text: str) -> Mapping[str, str]:
    try:
        query = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=8))
    except ValueError as error:
        raise BadRequestError(str(error)) from None
    unknown = query.keys() - {"pod", "participant"}
    if unknown:
        raise BadRequestError(f"unknown: {sorted(unknown)[0][:40]!a}")
    return query


def _json(value: Any) -> Response:
    return response(200, "application/json", msgspec.json.encode(value))
