"""What participants offer, as an MCP client may be shown it: valid, named uniquely, in pages."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from mcp import MCPError
from mcp_types.methods import validate_server_result
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcpp.protocol import rpc
from mcpp_agents.cli.display import one_line
from mcpp_agents.tool_schemas import is_valid_schema

# A page of a list (P-45).
_PAGE_OFFERS: Final = 200
_PAGE_BYTES: Final = 512 * 1024

# Members that the newest revision of MCP requires in a result, and in one that may be cached.
_RESULT: Final = {"resultType": "complete"}
_CACHEABLE: Final = _RESULT | {"ttlMs": 0, "cacheScope": "private"}

# The member of a list's result that contains the list.
MEMBERS: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}

_CACHED_METHODS: Final = (*MEMBERS, "resources/read")

logger = logging.getLogger("mcpp.mcp_server")


class Sized(Protocol):
    """An entry of a list, with the size of its definition."""

    @property
    def size_bytes(self) -> int:
        """The length of the definition as JSON."""


SizedT = TypeVar("SizedT", bound=Sized)


def complete_result(method: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result with the members that every result of its method must have."""
    if rpc.needs_input(result):
        return dict(result)
    return {**(_CACHEABLE if method in _CACHED_METHODS else _RESULT), **result}


def is_valid_definition(method: str, definition: Any) -> bool:
    """Return whether a list with this entry can be sent to clients of every revision.

    The SDK refuses to send a list that contains one invalid entry, which would hide all others.
    """
    try:
        for version in KNOWN_PROTOCOL_VERSIONS:
            result = complete_result(method, {MEMBERS[method]: [definition]})
            validate_server_result(method, version, result)
    except ValidationError as error:
        reason = one_line(str(error), 200)
    except KeyError:
        return True
    else:
        if method != "tools/list" or is_valid_schema(definition.get("inputSchema")):
            return True
        reason = "its inputSchema is not a JSON Schema"
    shown = one_line(str(definition), 80)
    logger.warning("an entry of %s is invalid and not listed: %s: %s", method, reason, shown)
    return False


def page_of(offers: Sequence[SizedT], cursor: str | None) -> tuple[Sequence[SizedT], str | None]:
    """Return a page of a list and the cursor of the next one. Raises MCPError."""
    start = _read_cursor(cursor)
    end = min(start + _PAGE_OFFERS, len(offers))
    left_bytes = _PAGE_BYTES
    for place in range(start, end):
        left_bytes -= offers[place].size_bytes
        if left_bytes < 0 and place > start:
            end = place
            break
    return offers[start:end], str(end) if end < len(offers) else None


def _read_cursor(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
        raise MCPError(rpc.INVALID_PARAMS, "unknown cursor")
    return int(cursor)
