"""Tool calls read from a log: each request with the one response that counts.

A response counts if it names the request's id, comes from whom the request was addressed to, and is
the first to do so (T-10, T-13). Everything else that claims to be one is somebody's claim.
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
    """A call and, once it has come, its result. `index` and `answered_at` are places in the log."""

    request: Envelope
    index: int
    tool: str
    arguments: Mapping[str, Any]
    response: Envelope | None = None
    answered_at: int = -1
    _result: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        """The request's id, which is the call's."""
        return self.request.id

    @property
    def caller(self) -> str:
        """Who made the call."""
        return self.request.sender

    @property
    def context_id(self) -> str | None:
        """The context in which the call was made, None for the main one."""
        return None if self.request.context is None else self.request.context.id

    @property
    def server(self) -> str | None:
        """Who was asked; None if nobody or several were."""
        to = self.request.to
        return to[0] if to is not None and len(to) == 1 else None

    @property
    def result(self) -> Mapping[str, Any]:
        """The MCP result as a model sees it: structured content only where there is no text.

        A JSON-RPC error or a broken response reads as a failed call. The rest is in `original`.
        """
        if self._result is None:
            self._result = {} if self.response is None else _read_visible(self.response)
        return self._result

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""
        return bool(self.result.get("isError"))

    def original(self) -> dict[str, Any]:
        """Return the result parsed anew from the response's bytes, for the caller to keep."""
        if self.response is None:
            return {}
        return read_result(msgspec.json.decode(self.response.raw_payload))

    def same_question(self) -> tuple[object, ...]:
        """Return what two calls share that ask the same of the same one in the same place."""
        asked = msgspec.json.encode(self.arguments, order="sorted")
        return (self.caller, self.context_id, self.server, self.tool, asked)


class LoggedCalls:
    """Pairs requests and responses as they come. Owns the calls it has seen."""

    def __init__(self) -> None:
        self.by_id: dict[str, LoggedCall] = {}

    def add(self, envelope: Envelope, index: int) -> LoggedCall | None:
        """Return the call that this envelope makes or settles, or None."""
        kind = envelope.kind
        if kind.startswith("mcp/re"):  # most of a log is talk: one test for it
            if kind == _REQUEST or kind.startswith(_REQUEST + ":"):
                return self._ask(envelope, index)
            if kind == _RESPONSE or kind.startswith(_RESPONSE + ":"):
                return self._answer(envelope, index)
        return None

    def _ask(self, envelope: Envelope, index: int) -> LoggedCall | None:
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

    def _answer(self, envelope: Envelope, index: int) -> LoggedCall | None:
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
    # A page of records comes twice, as text and structured; parsing and keeping both would be
    # most of what a log with many pages costs.
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
    """Return the tool result in a response's payload; anything else reads as a failed call."""
    if isinstance(payload, dict):
        error = payload.get("error")
        if error is not None:
            message = error.get("message") if isinstance(error, dict) else error
            return failure(message if isinstance(message, str) else json.dumps(error))
        result = payload.get("result")
        if isinstance(result, dict):
            return result
    return failure("The response is not a tool result.")


def failure(text: str) -> dict[str, Any]:
    """Return a tool result that says what went wrong."""
    return {"content": [{"type": "text", "text": text or "The call failed."}], "isError": True}
