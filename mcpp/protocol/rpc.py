"""JSON-RPC as it travels in envelopes: requests, answers, and the results of tools."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

import msgspec

from mcpp import kinds
from mcpp.errors import DecodeError, RemoteError
from mcpp.kinds import Kind
from mcpp.payloads import Proposal, Request, Response
from mcpp.protocol.codec import decode_unambiguous
from mcpp.protocol.envelope import Envelope

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CLOSED_PROPOSAL: Final = -32001
RESOURCE_NOT_FOUND: Final = -32002
BUSY: Final = -32003


TOOLS_CALL: Final = "tools/call"
# Marks a structured result that is `{"result": value}` only because MCP wants an object there.
WRAPPED: Final = "mcpp/wrapped"
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
CANCELLED_KIND: Final = str(Kind(kinds.NOTIFICATION, CANCELLED))


class Failure(Exception):  # noqa: N818  (an answer on its way, never seen by callers)
    """A JSON-RPC error to answer with."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.data = data

    def to_json(self) -> dict[str, Any]:
        """Return JSON-RPC's error object."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        return error if self.data is None else error | {"data": self.data}


def request(id: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's payload; JSON-RPC's id is the envelope's."""
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def notification(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a notification's payload."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def response(id: str, outcome: Any) -> dict[str, Any]:
    """Return a response's payload: a result, or an error for a Failure."""
    if isinstance(outcome, Failure):
        return {"jsonrpc": "2.0", "id": id, "error": outcome.to_json()}
    return {"jsonrpc": "2.0", "id": id, "result": outcome}


def read_request(envelope: Envelope) -> Request:
    """Return the request that an envelope holds.

    Raises Failure where kind and payload disagree: capabilities were checked on the kind (P-15).
    """
    try:
        decode_unambiguous(envelope.raw_payload, "$.payload")
        asked = envelope.payload_as(Request)
    except DecodeError as error:
        raise Failure(INVALID_REQUEST, str(error)) from None
    kind = Kind.parse(envelope.kind)
    if asked.method != kind.method:
        raise Failure(INVALID_REQUEST, f"the kind says {kind.method}, the payload {asked.method}")
    if asked.params.get("name") != kind.name:
        raise Failure(INVALID_REQUEST, "the kind's name is not params.name")
    if asked.id != envelope.id:
        raise Failure(INVALID_REQUEST, "the payload's id is not the envelope's")
    return asked


def read_proposal(envelope: Envelope) -> Proposal:
    """Return what an envelope proposes.

    Raises DecodeError where kind and payload disagree, or it is not for one participant: whoever
    judges it by its kind would make a request for something else.
    """
    kind = Kind.parse(envelope.kind)
    if kind.family != kinds.PROPOSAL:
        raise DecodeError("$.kind", "is no proposal's")
    if envelope.to is None or len(envelope.to) != 1:
        raise DecodeError("$.to", "must name the one participant that is to be asked")
    decode_unambiguous(envelope.raw_payload, "$.payload")
    proposed = envelope.payload_as(Proposal)
    if proposed.method != kind.method:
        raise DecodeError("$.payload.method", f"the kind says {kind.method}")
    if proposed.params.get("name") != kind.name:
        raise DecodeError("$.payload.params.name", "is not the kind's name")
    return proposed


def read_response(envelope: Envelope, method: str) -> Any:
    """Return the result that an envelope holds.

    Raises RemoteError for an error, or for something that is no response.
    """
    try:
        answer = envelope.payload_as(Response)
    except DecodeError as error:
        raise RemoteError(
            envelope.sender, method, code=INVALID_REQUEST, message=f"answered nonsense, {error}"
        ) from None
    if answer.error is not None:
        wrong = answer.error
        raise RemoteError(
            envelope.sender, method, code=wrong.code, message=wrong.message, data=wrong.data
        )
    return None if answer.result is msgspec.UNSET else answer.result


def fulfils(envelope: Envelope, proposal: Envelope) -> bool:
    """Tell whether an envelope is a request for exactly what was proposed, to whom it was."""
    kind, proposed = Kind.parse(envelope.kind), Kind.parse(proposal.kind)
    if kind.family != kinds.REQUEST or kind[1:] != proposed[1:] or envelope.to != proposal.to:
        return False
    asked = gist(envelope)
    return asked is not None and asked == gist(proposal)


def gist(envelope: Envelope) -> bytes | None:
    """Return a digest of what a request or a proposal asks for, and of whom; None for nonsense.

    A request fulfils a proposal if theirs are the same.
    """
    kind = Kind.parse(envelope.kind)
    try:
        # What its owner would refuse as a request must not use the proposal up.
        asked: Request | Proposal = (
            read_request(envelope)
            if kind.family == kinds.REQUEST
            else envelope.payload_as(Proposal)
        )
    except (DecodeError, Failure):
        return None
    params = {name: value for name, value in asked.params.items() if name != "_meta"}
    facts = (envelope.to, kind[1:], asked.method, with_plain_numbers(params))
    return sha256(msgspec.json.encode(facts, order="sorted")).digest()


def with_plain_numbers(value: Any) -> Any:
    """Return a value in which equal numbers are the same: not every language keeps 1.0 apart."""
    match value:
        case dict():
            return {name: with_plain_numbers(part) for name, part in value.items()}
        case list():
            return [with_plain_numbers(part) for part in value]
        case float() if value.is_integer():
            return int(value)
    return value


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered, in MCP's shape."""

    content: list[dict[str, Any]] = field(default_factory=list)
    structured: Any = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text parts of the content, one to a line."""
        texts = (part.get("text") for part in self.content if part.get("type") == "text")
        return "\n".join(text for text in texts if isinstance(text, str))

    @property
    def value(self) -> Any:
        """The result as a value: the structured one where there is one, else the text."""
        if self.structured is None:
            return self.text
        wrapped = self.meta.get(WRAPPED) is True and isinstance(self.structured, dict)
        return self.structured.get("result") if wrapped else self.structured

    @classmethod
    def from_json(cls, value: Any) -> "ToolResult":
        """Read a `tools/call` result; whatever does not fit counts as text."""
        try:
            wire = msgspec.convert(value, _Wire)
        except msgspec.ValidationError:
            return cls([{"type": "text", "text": msgspec.json.encode(value).decode()}], value)
        return cls(wire.content, wire.structured, wire.is_error, wire.meta)

    def to_json(self) -> dict[str, Any]:
        """Return the result as it travels."""
        value: dict[str, Any] = {"content": self.content}
        if self.structured is not None:
            value["structuredContent"] = self.structured
        if self.is_error:
            value["isError"] = True
        if self.meta:
            value["_meta"] = dict(self.meta)
        return value


class _Wire(msgspec.Struct, kw_only=True):
    content: list[dict[str, Any]] = []
    structured: Any = msgspec.field(default=None, name="structuredContent")
    is_error: bool = msgspec.field(default=False, name="isError")
    meta: dict[str, Any] = msgspec.field(default={}, name="_meta")
