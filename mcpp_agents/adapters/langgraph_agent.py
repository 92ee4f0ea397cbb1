"""LangGraph graphs and LangChain agents."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.types import Command

from mcpp_agents.adapters.collapsing import CallMade, Part, ResultSeen, TextSaid, collapsed_texts
from mcpp_agents.adapters.framework_agent import FrameworkAgent
from mcpp_agents.adapters.turn import FrameworkTurn, PodTool


class LangGraphAgent(FrameworkAgent):
    """Runs a graph whose state has `messages`."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self._graph = graph

    async def run(self, turn: FrameworkTurn) -> str:
        """Run the graph, with the history of the conversation.

        A graph with a checkpointer keeps the history itself. Without one it cannot be interrupted
        for an approval.
        """
        graph = self._graph
        if not hasattr(graph, "astream"):
            graph = graph([_tool(each) for each in turn.tools])
        config = {"configurable": {"thread_id": turn.talk.id}}
        has_memory = bool(graph.checkpointer)
        before = [] if has_memory else turn.talk.history or []
        given: Any = {"messages": [*before, HumanMessage(turn.text)]}
        messages: list[Any] = []
        told: set[str] = set()
        while True:
            interrupts: list[Any] = []
            modes = ["messages", "updates", "values"]
            async for mode, chunk in graph.astream(given, config, stream_mode=modes):
                if mode == "messages":
                    await _write(turn, chunk[0])
                elif mode == "values":
                    messages = chunk.get("messages", messages)
                elif "__interrupt__" in chunk:
                    interrupts += chunk["__interrupt__"]
                else:
                    await _tell(turn, chunk, told)
            if not interrupts:
                break
            given = Command(
                resume={each.id: await _decide(turn, each.value) for each in interrupts}
            )
        turn.talk.history = None if has_memory else messages
        return str(messages[-1].text) if messages else ""


def _tool(tool: PodTool) -> Any:
    async def call(**arguments: Any) -> tuple[str, dict[str, Any]]:
        result = await tool.call(arguments)
        return result.text, result.to_json()  # the second is the message's artifact

    return StructuredTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.schema,
        coroutine=call,
        response_format="content_and_artifact",
    )


async def _write(turn: FrameworkTurn, message: Any) -> None:
    if isinstance(message, AIMessageChunk):
        await turn.write(str(message.text))


async def _tell(turn: FrameworkTurn, update: Mapping[str, Any], told: set[str]) -> None:
    """Tell the thoughts, calls and results in what the nodes of a graph have added.

    `told` are the ids of the model's messages so far: middleware may return one once more.
    """
    for change in update.values():
        for message in change.get("messages", ()) if isinstance(change, dict) else ():
            if isinstance(message, ToolMessage):
                await turn.returned(message.name or "", str(message.text))
            elif isinstance(message, AIMessage) and message.id not in told:
                told.update([message.id] if message.id else ())
                await _tell_message(turn, message)


async def _tell_message(turn: FrameworkTurn, message: AIMessage) -> None:
    for block in message.content_blocks:
        if block["type"] == "reasoning":
            await turn.think(block.get("reasoning", ""))
    if message.tool_calls and not turn.out.text:  # of a model that does not stream
        await turn.think(str(message.text))
    for call in message.tool_calls:
        await turn.called(call["name"], call["args"])


async def _decide(turn: FrameworkTurn, asked: Any) -> Any:
    """Propose the calls for which LangChain's human-in-the-loop middleware has interrupted."""
    requests = asked.get("action_requests") if isinstance(asked, dict) else None
    if not isinstance(requests, list):
        raise TypeError("the graph was interrupted for something other than approvals")
    decisions: list[dict[str, str]] = []
    for request in requests:
        approval = await turn.approve(request["name"], request["args"])
        if approval.is_approved:
            decisions.append({"type": "approve"})
        else:
            message = f"The call was not approved: {approval.reason}"
            decisions.append({"type": "reject", "message": message})
    return {"decisions": decisions}


class CollapseMiddleware(AgentMiddleware):
    """Collapses consumed results in requests to the model; the state keeps them."""

    def __init__(self, pairs: Mapping[str, str]) -> None:
        super().__init__()
        self._pairs = pairs

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Make a request with collapsed messages."""
        return handler(self._collapsed(request))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Make a request with collapsed messages."""
        return await handler(self._collapsed(request))

    def _collapsed(self, request: Any) -> Any:
        parts = [part for message in request.messages for part in _read(message)]
        texts = collapsed_texts(parts, self._pairs)
        if not texts:
            return request
        return request.override(messages=[_shown(each, texts) for each in request.messages])


def _read(message: Any) -> list[Part]:
    match message:
        case ToolMessage():
            marked = message.artifact if isinstance(message.artifact, dict) else None
            marked = marked if marked and "content" in marked else None
            id = message.tool_call_id
            return [ResultSeen(id, message.name or "", str(message.text), marked)]
        case AIMessage():
            calls: list[Part] = [
                CallMade(call["id"] or "", call["name"], call["args"])
                for call in message.tool_calls
            ]
            said: list[Part] = [TextSaid(str(message.text), True)] if message.text else []
            return said + calls
        case _:
            return [TextSaid(str(message.text), False)]


def _shown(message: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(message, ToolMessage) and message.tool_call_id in texts:
        return message.model_copy(update={"content": texts[message.tool_call_id]})
    return message
