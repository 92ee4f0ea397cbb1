"""JSON-RPC in envelopes: requests, responses, proposals and tool results."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import msgspec

from mcpp import kinds
from mcpp.errors import DecodeError, RemoteError
from mcpp.kinds import Kind
from mcpp.payloads import Proposal, Request, Response
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.jsontext import decode_unambiguous

__all__ = [
    "BUSY",
    "CALL",
    "CANCELLED",
    "CANCELLED_KIND",
    "CLOSED_PROPOSAL",
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "PROGRESS",
    "REASON",
    "RESOURCE_NOT_FOUND",
    "TOOLS_CALL",
    "TOOLS_LIST",
    "TRACE_CONTEXT",
    "Failure",
    "ToolResult",
    "fulfils",
    "needs_input",
    "notification",
    "progress_token",
    "read_proposal",
    "read_request",
    "read_response",
    "request",
    "request_id",
    "response",
    "with_meta",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CLOSED_PROPOSAL: Final = -32001
RESOURCE_NOT_FOUND: Final = -32002
BUSY: Final = -32003


TOOLS_CALL: Final = "tools/call"
TOOLS_LIST: Final = "tools/list"
# Marks a structured result that is `{"result": value}` only because MCP requires an object.
WRAPPED: Final = "mcpp/wrapped"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
CANCELLED_KIND: Final = str(Kind(kinds.NOTIFICATION, CANCELLED))
# Members of `_meta`: the id of the call because of which a question is asked, and why a question
# was declined.
CALL: Final = "mcpp/call"
REASON: Final = "mcpp/reason"
# Members of `_meta` that MCP reserves for the trace that a request belongs to (O-06).
TRACE_CONTEXT: Final = frozenset(("traceparent", "tracestate", "baggage"))


class Failure(Exception):  # noqa: N818  (becomes an answer; callers see RemoteError)
    """A JSON-RPC error to answer with."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.data = data

    def to_json(self) -> dict[str, Any]:
        """Return the JSON-RPC error object."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        return error if self.data is None else error | {"data": self.data}


def request(id: str | int, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of a request."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def notification(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of a notification."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def response(id: str | int, outcome: Any) -> dict[str, Any]:
    """Return the payload of a response: a result, or an error for a Failure."""
    if isinstance(outcome, Failure):
        return {"jsonrpc": "2.0", "id": id, "error": outcome.to_json()}
    return {"jsonrpc": "2.0", "id": id, "result": outcome}


def progress_token(envelope: Envelope) -> str | int:
    """Return the token for progress on a request (P-65): the requester's, or the envelope's id."""
    payload = envelope.payload
    params = payload.get("params") if isinstance(payload, dict) else None
    meta = params.get("_meta") if isinstance(params, dict) else None
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    return token if isinstance(token, str | int) else envelope.id


def with_meta(params: Mapping[str, Any], members: Mapping[str, Any]) -> dict[str, Any]:
    """Return params with further members in `_meta`."""
    meta = params.get("_meta")
    return {**params, "_meta": {**(meta if isinstance(meta, dict) else {}), **members}}


def needs_input(result: Any) -> bool:
    """Return whether a result is none yet: the participant asks for input first (MCP)."""
    return isinstance(result, dict) and result.get("resultType") == "input_required"


def read_request(envelope: Envelope) -> Request:
    """Return the request in an envelope.

    Raises Failure if kind and payload disagree: capabilities were checked on the kind (P-15).
    """
    try:
        decode_unambiguous(envelope.raw_payload, "$.payload")
        parsed = envelope.payload_as(Request)
    except DecodeError as error:
        raise Failure(INVALID_REQUEST, str(error)) from None
    kind = Kind.parse(envelope.kind)
    if parsed.method != kind.method:
        raise Failure(INVALID_REQUEST, f"the kind says {kind.method}, the payload {parsed.method}")
    if parsed.params.get("name") != kind.name:
        raise Failure(INVALID_REQUEST, "the kind's name is not params.name")
    return parsed


def request_id(envelope: Envelope) -> str | int:
    """Return the JSON-RPC id to answer a request with (P-64): its own, or else the envelope's."""
    payload = envelope.payload
    id = payload.get("id") if isinstance(payload, dict) else None
    return id if isinstance(id, str | int) and not isinstance(id, bool) else envelope.id


def read_proposal(envelope: Envelope) -> Proposal:
    """Return the proposal in an envelope.

    Raises DecodeError if kind and payload disagree, because an approver who decides by the kind
    would request something else, or if it is not addressed to exactly one participant.
    """
    kind = Kind.parse(envelope.kind)
    if kind.family != kinds.PROPOSAL:
        raise DecodeError("$.kind", "is not a proposal's kind")
    if envelope.to is None or len(envelope.to) != 1:
        raise DecodeError("$.to", "must name exactly one participant")
    decode_unambiguous(envelope.raw_payload, "$.payload")
    proposed = envelope.payload_as(Proposal)
    if proposed.method != kind.method:
        raise DecodeError("$.payload.method", f"the kind says {kind.method}")
    if proposed.params.get("name") != kind.name:
        raise DecodeError("$.payload.params.name", "is not the kind's name")
    return proposed


def read_response(envelope: Envelope, method: str) -> Any:
    """Return the result in an envelope.

    Raises RemoteError for an error and for an invalid response.
    """
    try:
        answer = envelope.payload_as(Response)
    except DecodeError as error:
        raise RemoteError(
            envelope.sender, method, code=INVALID_REQUEST, message=f"invalid response, {error}"
        ) from None
    if answer.error is not None:
        details = answer.error
        raise RemoteError(
            envelope.sender, method, code=details.code, message=details.message, data=details.data
        )
    return None if answer.result is msgspec.UNSET else answer.result


def fulfils(envelope: Envelope, proposal: Envelope) -> bool:
    """Return whether an envelope requests exactly what was proposed, from the same participant."""
    kind, proposed = Kind.parse(envelope.kind), Kind.parse(proposal.kind)
    if kind.family != kinds.REQUEST or kind[1:] != proposed[1:] or envelope.to != proposal.to:
        return False
    digest = request_digest(envelope)
    return digest is not None and digest == request_digest(proposal)


def request_digest(envelope: Envelope) -> bytes | None:
    """Return a digest of what a request or a proposal asks for; None if it is invalid.

    A request fulfils a proposal if both have the same digest. It is computed once: any participant
    may send many requests that name the same long proposal.
    """
    kept = envelope.__dict__
    if "_digest" not in kept:
        kept["_digest"] = _request_digest(envelope)
    digest: bytes | None = kept["_digest"]
    return digest


def _request_digest(envelope: Envelope) -> bytes | None:
    kind = Kind.parse(envelope.kind)
    try:
        # A request that its recipient would refuse must not close the proposal.
        parsed: Request | Proposal = (
            read_request(envelope)
            if kind.family == kinds.REQUEST
            else envelope.payload_as(Proposal)
        )
    except (DecodeError, Failure):
        return None
    params = {name: value for name, value in parsed.params.items() if name != "_meta"}
    facts = (envelope.to, kind[1:], parsed.method, _comparable_numbers(params))
    return sha256(msgspec.json.encode(facts, order="sorted")).digest()


# Beyond this, a double no longer stands for one integer only.
_MAX_EXACT: Final = 2**53


def with_integers(value: Any) -> Any:
    """Return a value with whole floats as integers: not every language distinguishes 1.0 from 1.

    Larger floats than a double can count to stay floats (P-41): `1e300` has 301 digits.
    """
    kind = type(value)
    if kind is float:
        whole = -_MAX_EXACT <= value <= _MAX_EXACT and value.is_integer()
        return int(value) if whole else value
    if kind is list:
        return [with_integers(part) for part in value]
    if kind is dict:
        return {name: with_integers(part) for name, part in value.items()}
    return value


def _comparable_numbers(value: Any) -> Any:
    """Return a value in which equal numbers have one form, and none is longer than its text (P-41).

    Integers beyond 2^53 become floats if they are equal to one: `100000000000000000000` is `1e20`.
    """
    kind = type(value)
    if kind is int:
        if -_MAX_EXACT <= value <= _MAX_EXACT:
            return value
        rounded = float(value)  # E-14: a number has at most 64 characters
        return rounded if rounded == value else value
    if kind is list:
        return [_comparable_numbers(part) for part in value]
    if kind is dict:
        return {name: _comparable_numbers(part) for name, part in value.items()}
    return with_integers(value)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call, as MCP defines it."""

    content: list[dict[str, Any]] = field(default_factory=list)
    structured: Any = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text parts of the content, joined by line breaks."""
        texts = (part.get("text") for part in self.content if part.get("type") == "text")
        return "\n".join(text for text in texts if isinstance(text, str))

    @property
    def value(self) -> Any:
        """The result as a value: the structured content if there is any, else the text."""
        if self.structured is None:
            return self.text
        wrapped = self.meta.get(WRAPPED) is True and isinstance(self.structured, dict)
        return self.structured.get("result") if wrapped else self.structured

    @classmethod
    def from_json(cls, value: Any) -> "ToolResult":
        """Parse a `tools/call` result; an invalid one becomes a text.

        A result that asks for input is an error: there is nothing yet (P-60).
        """
        if needs_input(value):
            return cls([{"type": "text", "text": _questions(value)}], is_error=True)
        try:
            wire = msgspec.convert(value, _Wire)
        except msgspec.ValidationError:
            return cls([{"type": "text", "text": msgspec.json.encode(value).decode()}], value)
        return cls(wire.content, wire.structured, wire.is_error, wire.meta)

    def to_json(self) -> dict[str, Any]:
        """Return the result as MCP's JSON value."""
        value: dict[str, Any] = {"content": self.content}
        if self.structured is not None:
            value["structuredContent"] = self.structured
        if self.is_error:
            value["isError"] = True
        if self.meta:
            value["_meta"] = dict(self.meta)
        return value


def _questions(result: Mapping[str, Any]) -> str:
    """Return what a result asks for, for a caller that cannot answer."""
    requests = result.get("inputRequests")
    asked = []
    for request in requests.values() if isinstance(requests, dict) else ():
        params = request.get("params") if isinstance(request, dict) else None
        message = params.get("message") if isinstance(params, dict) else None
        method = request.get("method") if isinstance(request, dict) else None
        asked.append(message if isinstance(message, str) else str(method))
    details = f": {'; '.join(asked)}" if asked else ""
    return f"the tool asks for input, which this caller cannot give{details}"


class _Wire(msgspec.Struct, kw_only=True):
    content: list[dict[str, Any]] = []
    structured: Any = msgspec.field(default=None, name="structuredContent")
    is_error: bool = msgspec.field(default=False, name="isError")
    meta: dict[str, Any] = msgspec.field(default={}, name="_meta")
