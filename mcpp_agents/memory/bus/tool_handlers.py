"""The tools over the bus, for the SDK's server: what `tools/list` and `tools/call` answer.

The principal of every call is the pod, because everyone in it sees the answer; the participant
that asked is the author of what it stores.
"""

from collections.abc import Mapping
from typing import Any, Final

import anyio.to_thread
import msgspec

from mcpp import __version__
from mcpp.agent.request_server import Method
from mcpp.agent.tools import ToolCall
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure, ToolResult
from mcpp_agents.memory.access import Principal
from mcpp_agents.memory.errors import InvalidMemory, MemoryStoreError
from mcpp_agents.memory.pack import ContextPack
from mcpp_agents.memory.serving.fitting import fit
from mcpp_agents.memory.serving.tools import TOOLS, MemoryTool, call
from mcpp_agents.memory.store import MemoryStore

# What a gateway allows unless it says otherwise, and what an answer takes around a pack.
MAX_MESSAGE_BYTES: Final = 1_048_576
_AROUND_BYTES: Final = 4_352

_MCP_VERSION: Final = "2025-06-18"


class MemoryToolHandlers:
    """Answers for memory in one pod. Who may ask, and how, the SDK's server has seen to."""

    def __init__(
        self, store: MemoryStore, pod: Principal, *, max_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self._store = store
        self._pod = pod
        self._max_bytes = max(0, max_bytes - _AROUND_BYTES)

    @property
    def methods(self) -> Mapping[str, Method]:
        """What is served, by its name."""
        return {
            "initialize": _initialize,
            "ping": _ping,
            "tools/list": _list_tools,
            rpc.TOOLS_CALL: self._call_tool,
        }

    def call(self, name: str, arguments: Any, sender: str) -> ToolResult:
        """Call a tool for a participant of the pod.

        Raises Failure for arguments that do not fit (P-17); any other refusal is a result.
        """
        store = self._store.acting_as(self._pod, author=sender, origin="bus")
        try:
            answer = call(store, name, arguments)
        except InvalidMemory as fault:
            raise Failure(rpc.INVALID_PARAMS, str(fault)) from fault
        except MemoryStoreError as fault:
            return ToolResult([_text(str(fault))], is_error=True)
        if not isinstance(answer, ContextPack):
            return ToolResult([_text(answer.id)], msgspec.to_builtins(answer))
        pack = fit(answer, self._max_bytes)
        if pack is None:
            return ToolResult([_text("The pack does not fit in a message")], is_error=True)
        # Markdown for models, the structure for programs.
        return ToolResult([_text(pack.markdown)], msgspec.to_builtins(pack))

    async def _call_tool(self, params: dict[str, Any], asked: ToolCall) -> Any:
        name, arguments = params.get("name", ""), params.get("arguments", {})
        # The database may wait for a lock or the disk; the connection must not.
        result = await anyio.to_thread.run_sync(self.call, name, arguments, asked.sender)
        return result.to_json()


async def _initialize(params: dict[str, Any], asked: ToolCall) -> Any:
    return {
        "protocolVersion": _MCP_VERSION,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "mcpp-memory", "version": __version__},
    }


async def _ping(params: dict[str, Any], asked: ToolCall) -> Any:
    return {}


async def _list_tools(params: dict[str, Any], asked: ToolCall) -> Any:
    return {"tools": [_listed(tool) for tool in TOOLS]}


def _listed(tool: MemoryTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": tool.output_schema,
    }


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}
