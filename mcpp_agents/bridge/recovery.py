"""Recovery of answers from server output that the MCP SDK cannot parse.

Without it, the requests would wait until their timeout. An earlier revision of MCP had batches:
several messages in a JSON list. An invalid answer may still carry the id of its request. And
Python's parser accepts more than the SDK's: lone surrogates, where a server has truncated a text
within a character, and deep nesting. Of what no parser accepts, the id is looked for where servers
write it: at the beginning or at the end.
"""

from typing import Any

from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from mcpp_agents.lines import find_id, parse_line


def read_line(line: bytes) -> list[SessionMessage]:
    """Return the messages of a line: one, several in a batch, or none if it is not JSON-RPC."""
    if line.lstrip()[:1] not in (b"{", b"["):
        return []
    text = line.decode(errors="replace")
    try:
        return [SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))]
    except ValidationError as error:
        found = [each for each in recover_answers(error) if isinstance(each, SessionMessage)]
    except RecursionError:
        found = []
    return found or refuse_line(line)


def refuse_line(line: bytes) -> list[SessionMessage]:
    """Return an error for the request that a line seems to answer, which cannot be read."""
    id = find_id(line)
    return [] if id is None else [_unreadable(id)]


def recover_answers(item: SessionMessage | Exception) -> list[SessionMessage | Exception]:
    """Return the item, or for a parse error the answers that can be recovered from its input."""
    if not isinstance(item, ValidationError):
        return [item]
    value = _input_of(item)
    parts = value if isinstance(value, list) else [value]
    found: list[SessionMessage | Exception] = [
        message for part in parts if (message := _read_message(part)) is not None
    ]
    return found or [item]


def admit_task(item: SessionMessage | Exception) -> SessionMessage | Exception:
    """Return an answer that creates a task (MCP 2025-11-25) so that the SDK takes it.

    The SDK refuses a result of a call without content; `without_placeholder` removes it again.
    """
    answer = item.message if isinstance(item, SessionMessage) else None
    result = answer.result if isinstance(answer, JSONRPCResponse) else {}
    if isinstance(result.get("task"), dict):
        result.setdefault("content", [])
    return item


def without_placeholder(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without the content that `admit_task` has added."""
    if result.get("content") == [] and isinstance(result.get("task"), dict):
        del result["content"]
    return result


def _input_of(error: ValidationError) -> Any:
    """Return the JSON value that failed validation, as far as the error contains it."""
    for detail in error.errors(include_url=False, include_context=False):
        if detail["type"] in ("model_type", "missing"):
            return detail["input"]
        if detail["type"] == "json_invalid":
            return parse_line(detail["input"])
    return None


def _read_message(value: Any) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_python(value, by_name=False))
    except ValidationError:
        pass
    id = value.get("id") if isinstance(value, dict) and "method" not in value else None
    if not isinstance(id, int | str) or isinstance(id, bool):
        return None
    return _unreadable(id)


def _unreadable(id: int | str) -> SessionMessage:
    reason = "the MCP server's answer is not valid JSON-RPC, or too long or too deeply nested"
    error = ErrorData(code=PARSE_ERROR, message=reason)
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=id, error=error))
