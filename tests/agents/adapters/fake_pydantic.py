"""PydanticAI with its own fake model."""

import json
from collections.abc import AsyncIterator
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from mcpp_agents import adapters
from tests.agents.adapters.scripts import Framework, ModelScript, search, store


def model(script: ModelScript) -> FunctionModel:
    async def stream(messages: list[Any], info: AgentInfo) -> AsyncIterator[Any]:
        step = script.next(str(messages), [tool.name for tool in info.function_tools])
        for word in step.text.split(" ") if step.text else ():
            yield f"{word} "
        if step.tool is not None:
            id = f"call-{len(script.shown)}"
            call = DeltaToolCall(step.tool, json.dumps(step.arguments), tool_call_id=id)
            yield {0: call}

    return FunctionModel(stream_function=stream)


def adapt(script: ModelScript, shredded: list[str]) -> adapters.FrameworkAgent:
    agent = Agent(model(script))

    @agent.tool_plain(requires_approval=True)
    def shred(path: str) -> str:
        """Shred a file."""
        shredded.append(path)
        return f"shredded {path}"

    return adapters.pydantic_ai(agent)


async def ask(script: ModelScript, question: str) -> str:
    collapse = adapters.collapse_capability({"search": "store"})
    agent = Agent(model(script), tools=[search, store], capabilities=[collapse])
    async with agent.run_stream(question) as result:
        return str(await result.get_output())


FRAMEWORK = Framework(adapt, ask)
