"""Answers in what a server wrote and the SDK cannot read, so that nobody waits for them in vain.

A revision of MCP had batches: several messages in a JSON list. An answer that is none still says
whom it is for. And Python reads more than the SDK does: half of an emoji, where a server has cut a
text in the middle, and what nests deep.
"""

import json
from typing import Any

from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter
from pydantic import ValidationError


def salvaged(item: SessionMessage | Exception) -> list[SessionMessage | Exception]:
    """Return what came over a line; where it could not be read, the answers that are in it."""
    if not isinstance(item, ValidationError):
        return [item]
    written = _written(item)
    parts = written if isinstance(written, list) else [written]
    found: list[SessionMessage | Exception] = [
        message for part in parts if (message := _read(part)) is not None
    ]
    return found or [item]


def _written(error: ValidationError) -> Any:
    """Return the JSON value that is no message, as far as the error tells it."""
    for detail in error.errors(include_url=False, include_context=False):
        if detail["type"] in ("model_type", "missing"):
            return detail["input"]
        if detail["type"] == "json_invalid":
            return _parse(detail["input"])
    return None


def _parse(line: str | bytes) -> Any:
    """Return the JSON value of a line; what is half of a character there is U+FFFD here."""
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        return None


def _read(written: Any) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_python(written, by_name=False))
    except ValidationError:
        pass
    id = written.get("id") if isinstance(written, dict) and "method" not in written else None
    if type(id) not in (int, str):
        return None
    error = ErrorData(code=PARSE_ERROR, message="the MCP server's answer is no JSON-RPC")
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=error))
