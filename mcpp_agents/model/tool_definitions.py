"""Tools as the models' APIs accept them: valid schemas, within the APIs' limits."""

import math
import re
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import msgspec

from mcpp_agents.model.providers import Tools
from mcpp_agents.tool_schemas import is_valid_schema
from mcpp_agents.toolbox import RemoteTool

# The share of a prompt that tools may take, and the share of one tool in it.
_MAX_TOOLS_BYTES: Final = 200_000
_MAX_SCHEMA_BYTES: Final = 20_000
_LEAST_TOOL_BYTES: Final = 50

_ANY_OBJECT: Final = {"type": "object"}
_NOT_AT_TOP_LEVEL: Final = ("oneOf", "anyOf", "allOf")  # Anthropic refuses them there
_is_property_name = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


def select_tools(
    tools: Tools, define: Callable[[RemoteTool], dict[str, Any]], limit: float = math.inf
) -> list[dict[str, Any]]:
    """Return the definitions of as many tools as fit, at most `limit`, in their order.

    Tools are taken from the participants in turn: one that offers thousands does not crowd out the
    others.
    """
    rank: Counter[str] = Counter()
    turns = []
    for place, tool in enumerate(tools):
        turns.append((rank[tool.participant], place, tool))
        rank[tool.participant] += 1
    selected: dict[int, dict[str, Any]] = {}
    left = _MAX_TOOLS_BYTES
    for _, place, tool in sorted(turns, key=itemgetter(0, 1)):
        if len(selected) >= limit or left < _LEAST_TOOL_BYTES:
            break
        definition = define(tool)
        size = len(msgspec.json.encode(definition))
        if size <= left:
            selected[place] = definition
            left -= size
    return [selected[place] for place in sorted(selected)]


def description_of(tool: RemoteTool, max_characters: int) -> str:
    """Return a tool's description with its participant's name, truncated."""
    given = tool.definition.get("description")
    text = f"{given if isinstance(given, str) else ''} (@{tool.participant})".strip()
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"


def schema_of(tool: RemoteTool) -> dict[str, Any]:
    """Return the schema of a tool's arguments in a form that every API accepts.

    The APIs refuse a whole request because of one invalid schema, so an invalid one is replaced by
    a schema that allows any object.
    """
    schema = tool.definition.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return dict(_ANY_OBJECT)
    if len(msgspec.json.encode(schema)) > _MAX_SCHEMA_BYTES:
        return dict(_ANY_OBJECT)
    allowed = {name: part for name, part in schema.items() if name not in _NOT_AT_TOP_LEVEL}
    properties = allowed.get("properties", {})
    if not is_valid_schema(allowed) or not all(map(_is_property_name, properties)):
        return dict(_ANY_OBJECT)
    return allowed
