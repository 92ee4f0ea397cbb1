"""Tool calls in a log: each request paired with its valid response.

A response is valid if it refers to the request's id, its sender is a recipient of the request, and
it is the first such response (T-10, T-13).
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mcpp import kinds
from mcpp.protocol.envelope import Envelope

_REQUEST: Final = kinds.REQUEST + ":tools/call"
_RESPONSE: Final = kinds.RESPONSE + ":tools/call"


class LoggedCall(msgspec.Struct, eq=False):
    """A call and, once it has arrived, its response. `index` and `answered_at` are log indexes."""

    request: Envelope
    index: int
    tool: str
    arguments: Mapping[str, Any]
    response: Envelope | None = None
    answered_at: int = -1
    _result: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """The id of the call, which is the request's."""
        return self.request.id

    @property
    def caller(self) -> str:
        """The participant that made the call."""
        return self.request.sender

    @property
    def context_id(self) -> str | None:
        """The id of the context in which the call was made, None for the main context."""
        return None if self.request.context is None else self.request.context.id

    @property
    def server(self) -> str:
        """The participant that answered, one of the recipients; empty before that (T-10)."""
        return "" if self.response is None else self.response.sender

    @property
    def response_id(self) -> str:
        """The id of the response; empty before it has arrived."""
        return "" if self.response is None else self.response.id

    @property
    def result(self) -> Mapping[str, Any]:
        """The MCP result as a model sees it: structured content only if there is no text.

        A JSON-RPC error or an invalid response becomes a failed call. `original` returns all of it.
        """
        if self._result is None:
            self._result = {} if self.response is None else _read_visible(self.response)
        return self._result

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""
        return bool(self.result.get("isError"))

    def original(self) -> dict[str, Any]:
        """Return a new copy of the complete result, parsed from the response's bytes."""
        if self.response is None:
            return {}
        return read_result(msgspec.json.decode(self.response.raw_payload))

    def deduplication_key(self) -> tuple[object, ...]:
        """Return a key shared by calls with equal caller, context, server, tool and arguments."""
        arguments = msgspec.json.encode(self.arguments, order="sorted")
        return (self.caller, self.context_id, self.server, self.tool, arguments)


class LoggedCalls:
    """Pairs requests with their responses. Owns the calls of the log."""

    def __init__(self) -> None:
        self.by_id: dict[str, LoggedCall] = {}

    def add(self, envelope: Envelope, index: int) -> LoggedCall | None:
        """Return the call that this envelope makes or answers, or None."""
        kind = envelope.kind
        if kind.startswith("mcp/re"):  # most of a log is chat: one test rules it out
            if kind == _REQUEST or kind.startswith(_REQUEST + ":"):
                return self._add_request(envelope, index)
            if kind == _RESPONSE or kind.startswith(_RESPONSE + ":"):
                return self._add_response(envelope, index)
        return None

    def _add_request(self, envelope: Envelope, index: int) -> LoggedCall | None:
        if envelope.id in self.by_id:
            return None
        name = envelope.kind[len(_REQUEST) + 1 :]
        payload = msgspec.json.decode(envelope.raw_payload)
        params = payload.get("params") if isinstance(payload, dict) else None
        params = params if isinstance(params, dict) else {}
        stated = params.get("name")
        arguments = params.get("arguments")
        call = LoggedCall(
            request=envelope,
            index=index,
            tool=name or (stated if isinstance(stated, str) else ""),
            arguments=arguments if isinstance(arguments, dict) else {},
        )
        self.by_id[envelope.id] = call
        return call

    def _add_response(self, envelope: Envelope, index: int) -> LoggedCall | None:
        call = self.by_id.get(envelope.correlation_id or "")
        if call is None or call.response is not None:
            return None
        if envelope.sender not in (call.request.to or ()):
            return None
        call.response = envelope
        call.answered_at = index
        return call


class _Response(msgspec.Struct):
    result: dict[str, msgspec.Raw]
    error: None = None


_read_members = msgspec.json.Decoder(_Response).decode


def _read_visible(response: Envelope) -> dict[str, Any]:
    # Records are often sent twice, as text and as structured content. Parsing and keeping both
    # would dominate the cost of a log with many results.
    try:
        members = _read_members(response.raw_payload).result
    except msgspec.MsgspecError:
        return read_result(response.payload)
    structured = members.pop("structuredContent", None)
    result = {name: msgspec.json.decode(member) for name, member in members.items()}
    if structured is not None and not _has_text(result.get("content")):
        result["structuredContent"] = msgspec.json.decode(structured)
    return result


def _has_text(content: Any) -> bool:
    blocks = content if isinstance(content, list) else ()
    texts = (block.get("text") for block in blocks if isinstance(block, dict))
    return any(isinstance(text, str) and text.strip() for text in texts)


def read_result(payload: Any) -> dict[str, Any]:
    """Return the tool result in a response's payload; anything else becomes a failed call."""
    if isinstance(payload, dict):
        error = payload.get("error")
        if error is not None:
            message = error.get("message") if isinstance(error, dict) else error
            return failure(message if isinstance(message, str) else json.dumps(error))
        result = payload.get("result")
        if isinstance(result, dict):
            return result
    return failure("The response does not contain a tool result.")


def failure(text: str) -> dict[str, Any]:
    """Return a failed call's tool result."""
    return {"content": [{"type": "text", "text": text or "The call failed."}], "isError": True}
