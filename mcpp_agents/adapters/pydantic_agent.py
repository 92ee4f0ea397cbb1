"""PydanticAI agents."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic_ai import messages as wire
from pydantic_ai.capabilities import AbstractCapability, HandleDeferredToolCalls
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, Tool, ToolDenied
from pydantic_ai.toolsets import FunctionToolset

from mcpp_agents.adapters.collapsing import CallMade, Part, ResultSeen, TextSaid, collapsed_texts
from mcpp_agents.adapters.framework_agent import FrameworkAgent
from mcpp_agents.adapters.turn import FrameworkTurn, PodTool


class PydanticAgent(FrameworkAgent):
    """Runs a PydanticAI agent."""

    def __init__(self, agent: Any, deps: Any) -> None:
        super().__init__()
        self._agent = agent
        self._deps = deps

    async def run(self, turn: FrameworkTurn) -> str:
        """Run the agent, with the history of the conversation."""
        result = await self._agent.run(
            turn.text,
            deps=self._deps,
            message_history=turn.talk.history,
            toolsets=[FunctionToolset([_tool(turn, each) for each in turn.tools])],
            event_stream_handler=partial(_follow, turn),
            capabilities=[
                HandleDeferredToolCalls(partial(_approve, turn)),
                CollapseCapability({}, turn.talk.marked),
            ],
        )
        turn.talk.history = result.all_messages()
        return str(result.output)


def _tool(turn: FrameworkTurn, tool: PodTool) -> Any:
    async def call(context: Any, **arguments: Any) -> str:
        result = await tool.call(arguments)
        turn.talk.mark(context.tool_call_id, result.to_json())
        return result.text

    return Tool.from_schema(call, tool.name, tool.description, tool.schema, takes_ctx=True)


async def _follow(turn: FrameworkTurn, context: Any, events: Any) -> None:
    async for event in events:
        match event:
            case wire.PartStartEvent(part=wire.TextPart(content=text)):
                await turn.write(text)
            case wire.PartDeltaEvent(delta=wire.TextPartDelta(content_delta=text)):
                await turn.write(text)
            case wire.PartEndEvent(part=wire.ThinkingPart(content=thought)):
                await turn.think(thought)
            case wire.FunctionToolCallEvent(part=part):
                await turn.called(part.tool_name, part.args_as_dict())
            case wire.FunctionToolResultEvent(part=part):
                await turn.returned(part.tool_name or "", part.model_response_str())


async def _approve(
    turn: FrameworkTurn, context: Any, requests: DeferredToolRequests
) -> DeferredToolResults:
    results = DeferredToolResults()
    for call in requests.approvals:
        approval = await turn.approve(call.tool_name, call.args_as_dict())
        denied = ToolDenied(f"The call was not approved: {approval.reason}")
        results.approvals[call.tool_call_id] = True if approval.is_approved else denied
    return results


class CollapseCapability(AbstractCapability[Any]):
    """Collapses consumed results in requests to the model; the history keeps them."""

    def __init__(self, pairs: Mapping[str, str], marked: Mapping[str, Mapping[str, Any]]) -> None:
        self._pairs = pairs
        self._marked = marked

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        """Replace the messages of a request by shorter ones."""
        parts = [
            read
            for message in request_context.messages
            for part in message.parts
            if (read := _read(part, self._marked)) is not None
        ]
        texts = collapsed_texts(parts, self._pairs)
        if texts:
            request_context.messages = [_shown(each, texts) for each in request_context.messages]
        return request_context


def _read(part: Any, marked: Mapping[str, Mapping[str, Any]]) -> Part | None:
    match part:
        case wire.ToolCallPart(tool_name=tool, tool_call_id=id):
            return CallMade(id, tool, part.args_as_json_str())
        case wire.ToolReturnPart(tool_name=tool, tool_call_id=id):
            return ResultSeen(id, tool, part.model_response_str(), marked.get(id))
        case wire.TextPart(content=text):
            return TextSaid(text, True)
        case wire.UserPromptPart(content=str(text)):
            return TextSaid(text, False)
        case _:
            return None


def _shown(message: Any, texts: Mapping[str, str]) -> Any:
    if not any(getattr(part, "tool_call_id", None) in texts for part in message.parts):
        return message
    return replace(message, parts=[_replaced(part, texts) for part in message.parts])


def _replaced(part: Any, texts: Mapping[str, str]) -> Any:
    if isinstance(part, wire.ToolReturnPart) and part.tool_call_id in texts:
        return replace(part, content=texts[part.tool_call_id])
    return part
