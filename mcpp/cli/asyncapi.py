"""The AsyncAPI document of the wire, generated from the structs of the protocol.

One channel, `/ws`, in both directions: every message is an envelope, and each family of kinds with
a payload of its own is a message of the document.
"""

from typing import Any, Final

import msgspec

from mcpp.payloads import BY_FAMILY
from mcpp.protocol import schema
from mcpp.protocol.envelope import PROTOCOL

VERSION: Final = "3.1.0"


def generate() -> dict[str, Any]:
    """Return the document."""
    envelope = schema.generate()
    definitions = envelope.pop("$defs")
    definitions.pop("message")
    del envelope["$schema"], envelope["$id"]
    schemas = _relocated({"envelope": envelope, **definitions})
    messages = {_name(family): _message(family, payload) for family, payload in BY_FAMILY.items()}
    messages["other"] = {
        "name": "other",
        "title": "An envelope of any other kind",
        "contentType": "application/json",
        "payload": {"$ref": "#/components/schemas/envelope"},
    }
    reference = {name: {"$ref": f"#/components/messages/{name}"} for name in messages}
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "MCPP",
            "version": PROTOCOL.rpartition("/")[2],
            "description": "Participants of a pod and its gateway exchange envelopes.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "gateway": {
                "host": "127.0.0.1:8787",
                "protocol": "ws",
                "security": [{"$ref": "#/components/securitySchemes/token"}],
            }
        },
        "channels": {
            "pod": {
                "address": "/ws",
                "title": "One pod",
                "messages": reference,
                "bindings": {"ws": {"method": "GET", "query": _QUERY, "bindingVersion": "0.1.0"}},
            }
        },
        "operations": {
            "send": _operation("receive", "A participant sends envelopes.", _sent(messages)),
            "deliver": _operation("send", "The gateway delivers envelopes.", list(messages)),
        },
        "components": {
            "messages": messages,
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def render() -> str:
    """Return the document as the text of `spec/schema/asyncapi.json`."""
    return msgspec.json.format(msgspec.json.encode(generate()), indent=2).decode() + "\n"


_QUERY: Final = {
    "type": "object",
    "properties": {
        "pod": {"type": "string", "description": "the pod; needed if the token is for several"},
        "after": {"type": "string", "description": "resume after this envelope"},
        "last": {"type": "integer", "description": "replay so many envelopes first"},
        "filter": {"type": "string", "description": "a filter as JSON"},
    },
}


def _message(family: str, payload: type) -> dict[str, Any]:
    body = {"$ref": f"#/components/schemas/{payload.__name__}"}
    kind = {"type": "string", "pattern": f"^{family}(?::|$)"}
    return {
        "name": family,
        "title": f"An envelope of kind {family}",
        "contentType": "application/json",
        "payload": {
            "allOf": [
                {"$ref": "#/components/schemas/envelope"},
                {"type": "object", "properties": {"kind": kind, "payload": body}},
            ]
        },
    }


def _sent(messages: dict[str, Any]) -> list[str]:
    """Return the messages that participants may send: those of the gateway are reserved (G-25)."""
    return [name for name in messages if not name.startswith("system_")]


def _operation(action: str, summary: str, messages: list[str]) -> dict[str, Any]:
    return {
        "action": action,
        "channel": {"$ref": "#/channels/pod"},
        "summary": summary,
        "messages": [{"$ref": f"#/channels/pod/messages/{name}"} for name in messages],
    }


def _name(family: str) -> str:
    return family.replace("/", "_").replace("-", "_")


def _relocated(value: Any) -> Any:
    """Return schemas whose references lead to the document's components."""
    if isinstance(value, dict):
        return {
            name: part.replace("#/$defs/", "#/components/schemas/")
            if name == "$ref"
            else _relocated(part)
            for name, part in value.items()
        }
    return [_relocated(part) for part in value] if isinstance(value, list) else value
