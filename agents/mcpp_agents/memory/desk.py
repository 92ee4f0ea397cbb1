"""The tools over the bus: `mcp/request:tools/call:NAME` in, a response out.

Like the listener it does no I/O. The principal of every call is the pod, because everyone in it
sees the answer; the participant that asked is the author of what it stores.
"""

import logging
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcpp import Envelope, Kind, __version__, kinds

from .access import Principal
from .errors import MemoryFault
from .fitting import fit
from .pack import ContextPack
from .store import MemoryStore
from .tools import TOOLS, Tool, call

_log = logging.getLogger(__name__)

# What a gateway allows unless it says otherwise, and what an envelope takes around its payload.
MAX_MESSAGE_BYTES: Final = 1_048_576
_ENVELOPE_BYTES: Final = 4_096
_RESULT_BYTES: Final = 256

_INVALID_REQUEST: Final = -32600
_METHOD_NOT_FOUND: Final = -32601
_INTERNAL_ERROR: Final = -32603
_MCP_VERSION: Final = "2025-06-18"


@dataclass(frozen=True)
class Answer:
    """A response to send, correlated to its request."""

    kind: str
    payload: dict[str, Any]
    to: tuple[str, ...]
    correlation_id: str
    context: str | None


class Desk:
    """Answers one pod's requests to the participant that memory is there."""

    def __init__(
        self,
        store: MemoryStore,
        pod: Principal,
        *,
        participant: str,
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._store = store
        self._pod = pod
        self._participant = participant
        self._max_bytes = max(0, max_bytes - _ENVELOPE_BYTES)

    def serves(self, envelope: Envelope) -> bool:
        """Whether it is a request that is addressed to us alone."""
        return Kind.parse(envelope.kind).family == kinds.REQUEST and envelope.to == (
            self._participant,
        )

    def answer(self, envelope: Envelope) -> Answer | None:
        """The answer to a request that is addressed to us alone, else None."""
        if not self.serves(envelope):
            return None
        kind = Kind.parse(envelope.kind)
        try:
            body = self._respond(kind, envelope)
        except Exception:
            _log.exception("%s of %s failed", envelope.kind, envelope.sender)
            body = _error(_INTERNAL_ERROR, "Internal error")
        if len(msgspec.json.encode(body)) > self._max_bytes:
            body = _error(_INTERNAL_ERROR, "The answer is larger than a message may be")
        return Answer(
            kind=str(Kind(kinds.RESPONSE, kind.method, kind.name)),
            payload={"jsonrpc": "2.0", "id": envelope.id, **body},
            to=(envelope.sender,),
            correlation_id=envelope.id,
            context=envelope.context.id if envelope.context else None,
        )

    def _respond(self, kind: Kind, envelope: Envelope) -> dict[str, Any]:
        payload = envelope.payload
        params = payload.get("params", {}) if isinstance(payload, dict) else None
        if not isinstance(params, dict) or payload.get("method") != kind.method:
            return _error(_INVALID_REQUEST, "The kind and the payload name different methods")
        match kind.method:
            case "initialize":
                return _result(
                    protocolVersion=_MCP_VERSION,
                    capabilities={"tools": {}},
                    serverInfo={"name": "mcpp-memory", "version": __version__},
                )
            case "ping":
                return _result()
            case "tools/list":
                return _result(tools=[_listed(tool) for tool in TOOLS])
            case "tools/call":
                # Capabilities were checked on the kind, so the payload may not say otherwise.
                if kind.name is None or params.get("name") != kind.name:
                    return _error(_INVALID_REQUEST, "The kind and the payload name different tools")
                return self._call(kind.name, params.get("arguments") or {}, envelope.sender)
        return _error(_METHOD_NOT_FOUND, f"Unknown method: {kind.method}")

    def _call(self, name: str, arguments: Any, sender: str) -> dict[str, Any]:
        store = self._store.acting_as(self._pod, author=sender, origin="bus")
        try:
            answer = call(store, name, arguments)
        except MemoryFault as fault:
            return _result(content=[_text(str(fault))], isError=True)
        if "markdown" not in answer:
            return _result(content=[_text(answer["id"])], structuredContent=answer)
        pack = fit(msgspec.convert(answer, ContextPack), self._max_bytes - _RESULT_BYTES)
        if pack is None:
            return _result(content=[_text("The pack does not fit in a message")], isError=True)
        # Markdown for models, the structure for programs.
        structure = msgspec.to_builtins(pack)
        return _result(content=[_text(pack.markdown)], structuredContent=structure)


def _listed(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
    }


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _result(**members: Any) -> dict[str, Any]:
    return {"result": members}


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}
