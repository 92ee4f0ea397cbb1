"""Agents of the OpenAI Agents SDK."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from agents import FunctionTool, RunConfig, Runner
from agents.run_config import CallModelData, ModelInputData

from mcpp_agents.adapters.collapsing import CallMade, Part, ResultSeen, TextSaid, collapsed_texts
from mcpp_agents.adapters.framework_agent import FrameworkAgent
from mcpp_agents.adapters.turn import FrameworkTurn, PodTool


class OpenAIAgent(FrameworkAgent):
    """Runs an agent of the OpenAI Agents SDK."""

    def __init__(self, agent: Any, run_config: Any) -> None:
        super().__init__()
        self._agent = agent
        self._config = RunConfig() if run_config is None else run_config

    async def run(self, turn: FrameworkTurn) -> str:
        """Run the agent, with the history of the conversation."""
        agent = self._agent.clone(
            tools=[*self._agent.tools, *(_tool(turn, each) for each in turn.tools)]
        )
        config = self._config
        if config.call_model_input_filter is None:
            filter = collapse_filter({}, turn.talk.marked)
            config = replace(config, call_model_input_filter=filter)
        given: Any = [*(turn.talk.history or ()), {"role": "user", "content": turn.text}]
        names: dict[str, str] = {}  # of the called tools, by call
        while True:
            result = Runner.run_streamed(agent, given, run_config=config)
            async for event in result.stream_events():
                await _tell(turn, event, names)
            if not result.interruptions:
                break
            given = result.to_state()
            for item in result.interruptions:
                names[item.call_id or ""] = item.name or ""
                approval = await turn.approve(item.name or "", _arguments(item.arguments))
                if approval.is_approved:
                    given.approve(item)
                else:
                    reason = f"The call was not approved: {approval.reason}"
                    given.reject(item, rejection_message=reason)
        turn.talk.history = result.to_input_list()
        return str(result.final_output)


def _tool(turn: FrameworkTurn, tool: PodTool) -> Any:
    async def invoke(context: Any, arguments: str) -> str:
        result = await tool.call(_arguments(arguments))
        turn.talk.mark(context.tool_call_id, result.to_json())
        return result.text

    return FunctionTool(tool.name, tool.description, tool.schema, invoke, strict_json_schema=False)


async def _tell(turn: FrameworkTurn, event: Any, names: dict[str, str]) -> None:
    if event.type == "raw_response_event":
        if event.data.type == "response.output_text.delta":
            await turn.write(event.data.delta)
    elif event.type == "run_item_stream_event":
        item = event.item
        match event.name:
            case "tool_called":
                name = names[item.raw_item.call_id] = item.raw_item.name
                await turn.called(name, item.raw_item.arguments)
            case "tool_output":
                await turn.returned(names.get(item.raw_item["call_id"], ""), str(item.output))
            case "reasoning_item_created":
                for summary in item.raw_item.summary:
                    await turn.think(summary.text)


def collapse_filter(
    pairs: Mapping[str, str], marked: Mapping[str, Mapping[str, Any]]
) -> Callable[[CallModelData[Any]], Awaitable[ModelInputData]]:
    """Return an input filter that collapses consumed results; the history keeps them."""

    async def collapse(data: CallModelData[Any]) -> ModelInputData:
        items: list[Any] = data.model_data.input
        names = {each.get("call_id"): each["name"] for each in items if "arguments" in each}
        parts = [part for each in items if (part := _read(each, names, marked)) is not None]
        texts = collapsed_texts(parts, pairs)
        shown = [_shown(each, texts) for each in items] if texts else items
        return ModelInputData(input=shown, instructions=data.model_data.instructions)

    return collapse


def _read(
    item: Mapping[str, Any], names: Mapping[Any, str], marked: Mapping[str, Mapping[str, Any]]
) -> Part | None:
    match item:
        case {"type": "function_call", "call_id": id, "name": name, "arguments": arguments}:
            return CallMade(id, name, arguments)
        case {"type": "function_call_output", "call_id": id, "output": output}:
            text = output if isinstance(output, str) else json.dumps(output, default=str)
            return ResultSeen(id, names.get(id, ""), text, marked.get(id))
        case {"role": role, "content": content}:
            return TextSaid(str(content), role == "assistant")
        case _:
            return None


def _shown(item: Any, texts: Mapping[str, str]) -> Any:
    if item.get("type") == "function_call_output" and item["call_id"] in texts:
        return {**item, "output": texts[item["call_id"]]}
    return item


def _arguments(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
