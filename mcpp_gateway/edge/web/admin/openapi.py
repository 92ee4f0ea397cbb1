"""The OpenAPI document of the admin's interface, from the structs that it uses."""

from functools import cache
from typing import Any, Final

import msgspec

import mcpp
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.edge.web.admin import actions as acting
from mcpp_gateway.edge.web.admin import views

_POD: Final = {
    "name": "pod",
    "in": "query",
    "description": "of this pod only",
    "schema": {"type": "string"},
}
_PARTICIPANT: Final = {
    "name": "participant",
    "in": "query",
    "description": "of this participant only",
    "schema": {"type": "string"},
}
_ERRORS: Final = {
    "400": "the request is not valid",
    "401": "no token, or a wrong one",
    "403": "the token is not an admin's, or is not for that pod or for all, "
    "or `Host` or `Origin` are not allowed",
    "404": "the admin's interface is off, or no token of the name to revoke is known",
    "405": "another method",
    "429": "too many wrong tokens",
    "500": "a revocation is in force and not stored, or the gateway has failed; its log says why",
    "503": "the keys of the token's issuer are not known yet",
    "507": "no room for more revocations",
}


@cache
def document() -> dict[str, Any]:
    """Return the document."""
    lists = {
        "pods": (views.PodStatus, "The pods of this gateway", [_POD]),
        "participants": (views.ParticipantStatus, "Participants that are known", [_POD]),
        "connections": (views.ConnectionStatus, "Open connections", [_POD, _PARTICIPANT]),
    }
    actions = {
        "kick": (acting.KickRequest, "Close connections; their clients may come back"),
        "revoke": (acting.RevokeRequest, "Revoke signed tokens and close their connections"),
        "drain": (acting.DrainRequest, "Stop the gateway: clients resume elsewhere, or later"),
    }
    structs: list[type] = [
        views.GatewayStatus,
        PodLimits,
        acting.Done,
        *(struct for struct, *_ in lists.values()),
        *(struct for struct, _ in actions.values()),
    ]
    found, components = msgspec.json.schema_components(
        structs, ref_template="#/components/schemas/{name}"
    )
    schema = dict(zip(structs, found, strict=True))
    paths: dict[str, Any] = {
        "/admin/status": {
            "get": _read("State of the gateway", schema[views.GatewayStatus], [_POD])
        },
        "/admin/limits": {
            "get": _read("Limits that are in force", schema[PodLimits], [_POD, _PARTICIPANT])
        },
        "/admin/openapi.json": {"get": _read("This document", {"type": "object"})},
    }
    for name, (struct, summary, parameters) in lists.items():
        items = {"type": "array", "items": schema[struct]}
        paths[f"/admin/{name}"] = {"get": _read(summary, items, parameters)}
    for name, (struct, summary) in actions.items():
        body = {"required": True, "content": {"application/json": {"schema": schema[struct]}}}
        action = {**_read(summary, schema[acting.Done]), "requestBody": body}
        paths[f"/admin/{name}"] = {"post": action}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "MCPP gateway, admin's interface",
            "version": mcpp.__version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _read(summary: str, schema: Any, parameters: list[Any] | None = None) -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    errors = {status: {"description": why, "content": text} for status, why in _ERRORS.items()}
    right = {"description": summary, "content": {"application/json": {"schema": schema}}}
    return {
        "summary": summary,
        "parameters": parameters or [],
        "responses": {"200": right} | errors,
    }
