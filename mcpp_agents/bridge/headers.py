"""Headers and `_meta` members of requests to servers of the newer revisions of MCP.

Such a server may ask that some arguments are repeated as HTTP headers (`x-mcp-header` in a tool's
schema). The SDK's client does so for tools that it has listed, and tools with invalid annotations
must not be offered. It also stamps every request with the capabilities of the client; those of the
participant that made the call count more, since that one will get the server's questions.
"""

import logging
from typing import Any, Final, Self

from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp.shared.message import SessionMessage
from mcp_types import CLIENT_CAPABILITIES_META_KEY, JSONRPCRequest

from mcpp_agents.bridge.request_spans import RequestSpans

# Where the caller's capabilities are while the SDK writes its own.
_CALLER: Final = "mcpp/capabilities"

logger = logging.getLogger("mcpp.bridge")


def drop_invalid_tools(result: dict[str, Any]) -> dict[str, Any]:
    """Return a list of tools without those whose annotations of headers are invalid."""
    tools = result.get("tools")
    if not isinstance(tools, list):
        return result
    kept = []
    for tool in tools:
        schema = tool.get("inputSchema") if isinstance(tool, dict) else None
        reason = find_invalid_x_mcp_header(schema)
        if reason is None:
            kept.append(tool)
        else:
            logger.warning("tool %s is not offered: x-mcp-header %s", tool.get("name"), reason)
    return result | {"tools": kept}


def keep_capabilities(params: dict[str, Any]) -> dict[str, Any]:
    """Return params whose `_meta` keeps the caller's capabilities apart from the SDK's."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or CLIENT_CAPABILITIES_META_KEY not in meta:
        return params
    return params | {"_meta": meta | {_CALLER: meta[CLIENT_CAPABILITIES_META_KEY]}}


class CapabilityWriter:
    """A stream of messages to a server that puts the caller's capabilities in their place."""

    def __init__(self, stream: Any, spans: RequestSpans) -> None:
        self._stream = stream
        self._spans = spans

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        params = None
        if isinstance(item.message, JSONRPCRequest):
            params = item.message.params
            self._spans.ask(item.message)
        meta = params.get("_meta") if params else None
        if params and isinstance(meta, dict) and _CALLER in meta:
            kept = {name: value for name, value in meta.items() if name != _CALLER}
            params["_meta"] = kept | {CLIENT_CAPABILITIES_META_KEY: meta[_CALLER]}
        await self._stream.send(item)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> bool | None:
        result: bool | None = await self._stream.__aexit__(*details)
        return result
