"""Memory's tools on the bus: the methods `initialize`, `tools/list` and `tools/call`.

The principal of every call is the pod, because every participant sees the response; the calling
participant is the author of what it stores. What only the caller sees may be of its diary (M-56).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from mcpp import Participant, ToolCall, ToolResult, __version__
from mcpp.agent.shares import FairLimiter
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.memory.access import Principal
from mcpp_agents.memory.auditing import NOWHERE, LogPlace
from mcpp_agents.memory.bus.erasures import PodErasures
from mcpp_agents.memory.errors import InvalidMemory, MemoryStoreError
from mcpp_agents.memory.pack import ContextPack
from mcpp_agents.memory.serving.fitting import fit
from mcpp_agents.memory.serving.tools import TOOLS, MemoryTool, text_of
from mcpp_agents.memory.store import MemoryStore

# A gateway's default limit, and the size of a response without the pack.
MAX_MESSAGE_BYTES: Final = 1_048_576
_AROUND_BYTES: Final = 4_352

# Calls at once, of which one requester gets half: a few keep the processor and the disk busy, and
# the next requester waits for one of them, not for a queue (M-39).
_CONCURRENT_CALLS: Final = 4

# With the caller's `agent_id`, their results are private. That of `remember` is not by itself: its
# text has been heard by all, unless the call is private.
_READING: Final = tuple(tool.name for tool in TOOLS if tool.reads_only)

_MCP_VERSION: Final = "2025-06-18"


class MemoryToolHandlers:
    """Serves memory's tools in one pod. The SDK has checked the request itself."""

    def __init__(
        self, store: MemoryStore, pod: Principal, *, max_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self._store = store
        self._pod = pod
        self._max_bytes = max(0, max_bytes - _AROUND_BYTES)

    def call(
        self,
        name: str,
        arguments: Any,
        sender: str,
        *,
        is_private: bool = False,
        place: LogPlace = NOWHERE,
    ) -> ToolResult:
        """Call a tool for a participant of the pod.

        Args:
            name, arguments: of the tool; not checked yet.
            sender: the participant.
            is_private: only the participant receives the result, which may contain its diary.
            place: the call's place in the log.

        Raises Failure for invalid arguments (P-17); other errors become a result.
        """
        # What `forget` answers is the id that all have heard.
        has_diary = is_private or name == "forget"
        principal = replace(self._pod, diarist=sender) if has_diary else self._pod
        store = self._store.acting_as(principal, author=sender, origin="bus", place=place)
        try:
            answer = store.call(name, arguments)
        except InvalidMemory as error:
            raise Failure(rpc.INVALID_PARAMS, str(error)) from error
        except MemoryStoreError as error:
            return ToolResult([_text(str(error))], is_error=True)
        if is_private or not isinstance(answer, ContextPack):
            return ToolResult([_text(text_of(answer))], msgspec.to_builtins(answer))
        pack = fit(answer, self._max_bytes)
        if pack is None:
            return ToolResult([_text("The pack does not fit in a message")], is_error=True)
        # Markdown for models, the structure for programs.
        return ToolResult([_text(pack.markdown)], msgspec.to_builtins(pack))


def register_tools(
    agent: Participant, current: Callable[[], tuple[MemoryToolHandlers, PodErasures]]
) -> None:
    """Serve memory's tools as this agent; `current` returns those of the current pod."""

    limiter = FairLimiter(_CONCURRENT_CALLS)

    async def call_tool(params: dict[str, Any], request: ToolCall) -> Any:
        name, arguments = params.get("name", ""), params.get("arguments", {})
        is_asked = name in _READING and isinstance(arguments, dict)
        reads_own_diary = is_asked and arguments.get("agent_id") == request.sender
        handlers, erasures = current()
        context = request.envelope.context
        place = erasures.place(None if context is None else context.id)
        call = partial(
            handlers.call,
            name,
            arguments,
            request.sender,
            is_private=request.is_private or reads_own_diary,
            place=place,
        )
        async with limiter.place(request.sender):
            # In a thread, since the database may wait for a lock or the disk.
            result = await erasures.store(call, after=place.last_erasure)
        if reads_own_diary and not result.is_error:
            # A refusal has nothing of a diary, and a private one would take room.
            request.keep_private()
        return result.to_json()

    agent.method("initialize")(_initialize)
    agent.method("tools/list")(_list_tools)
    agent.method(rpc.TOOLS_CALL)(call_tool)


async def _initialize(params: dict[str, Any], request: ToolCall) -> Any:
    return {
        "protocolVersion": _MCP_VERSION,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "mcpp-memory", "version": __version__},
    }


async def _list_tools(params: dict[str, Any], request: ToolCall) -> Any:
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
