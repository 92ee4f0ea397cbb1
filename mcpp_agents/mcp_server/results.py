"""Answers of participants, as an MCP client may be given them: valid, with the names listed."""

from typing import Any

from mcp import MCPError
from mcp_types.methods import validate_server_result

from mcpp.prompts import tool_name
from mcpp.protocol import rpc
from mcpp.transient import Hint, read_hints, with_context_hints
from mcpp_agents.mcp_server.definitions import complete_result
from mcpp_agents.toolbox import RemoteTool


def checked_result(answer: Any, method: str, version: str, participant: str) -> dict[str, Any]:
    """Return an answer that is valid in the client's revision. Raises MCPError for others.

    For a call of a tool it is an error result instead, which a model sees.
    """
    reason = f"{participant}'s answer is not a valid result in MCP {version}"
    try:
        complete = complete_result(method, answer)
        validate_server_result(method, version, complete)
    except KeyError:
        return dict(answer)
    except (ValueError, TypeError):
        if method == rpc.TOOLS_CALL:
            return failed(reason)
        raise MCPError(rpc.INTERNAL_ERROR, reason) from None
    return complete


def listed_definition(tool: RemoteTool) -> dict[str, Any]:
    """Return the definition of a participant's tool under the name that is listed."""
    given = tool.definition.get("description")
    prefix = f"{given} " if isinstance(given, str) and given else ""
    text = f"{prefix}(tool {tool.tool} of {tool.participant})"
    return {**tool.definition, "name": tool.name, "description": text}


def with_listed_names(result: dict[str, Any], participant: str) -> dict[str, Any]:
    """Return a result whose hints name tools as they are listed here."""
    hints = read_hints(result)
    if not hints:
        return result
    return with_context_hints(
        result,
        [
            Hint(
                tool_name(participant, hint.tool),
                tool_name(participant, hint.consumed_by),
                hint.step,
            )
            for hint in hints
        ],
    )


def failed(text: str) -> dict[str, Any]:
    """Return the result of a call that failed, for a model to read."""
    failure = {"content": [{"type": "text", "text": text}], "isError": True}
    return complete_result(rpc.TOOLS_CALL, failure)
