"""The OpenAI Agents SDK with a fake model."""

import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
)

from mcpp_agents import adapters
from tests.agents.adapters.scripts import Framework, ModelScript, Step
from tests.agents.adapters.scripts import search as search_records
from tests.agents.adapters.scripts import store as store_records


class ScriptedModel(Model):
    """A model that follows a script."""

    def __init__(self, script: ModelScript) -> None:
        self._script = script

    def _reply(self, input: Any, tools: Any) -> tuple[Step, list[Any]]:
        step = self._script.next(str(input), [tool.name for tool in tools])
        number = len(self._script.shown)
        output: list[Any] = []
        if step.text:
            text = ResponseOutputText(text=step.text, type="output_text", annotations=[])
            message = ResponseOutputMessage(
                id=f"m{number}",
                content=[text],
                role="assistant",
                status="completed",
                type="message",
            )
            output.append(message)
        if step.tool is not None:
            call = ResponseFunctionToolCall(
                call_id=f"call-{number}",
                name=step.tool,
                arguments=json.dumps(step.arguments),
                type="function_call",
            )
            output.append(call)
        return step, output

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,
        model_settings: Any,
        tools: Any,
        *rest: Any,
        **more: Any,
    ) -> ModelResponse:
        _, output = self._reply(input, tools)
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    async def stream_response(
        self,
        system_instructions: Any,
        input: Any,
        model_settings: Any,
        tools: Any,
        *rest: Any,
        **more: Any,
    ) -> AsyncIterator[Any]:
        step, output = self._reply(input, tools)
        for number, word in enumerate(step.text.split(" ") if step.text else ()):
            yield ResponseTextDeltaEvent(
                content_index=0,
                delta=f"{word} ",
                item_id="m",
                logprobs=[],
                output_index=0,
                sequence_number=number,
                type="response.output_text.delta",
            )
        response = Response(
            id="r",
            created_at=0,
            model="fake",
            object="response",
            output=output,
            parallel_tool_calls=False,
            tool_choice="auto",
            tools=[],
        )
        yield ResponseCompletedEvent(
            response=response, sequence_number=99, type="response.completed"
        )


def adapt(script: ModelScript, shredded: list[str]) -> adapters.FrameworkAgent:
    @function_tool(needs_approval=True)
    def shred(path: str) -> str:
        """Shred a file."""
        shredded.append(path)
        return f"shredded {path}"

    agent = Agent(name="helper", model=ScriptedModel(script), tools=[shred])
    return adapters.openai_agents(agent, run_config=RunConfig(tracing_disabled=True))


async def ask(script: ModelScript, question: str) -> str:
    tools = [function_tool(search_records), function_tool(store_records)]
    agent = Agent(name="helper", model=ScriptedModel(script), tools=tools)
    config = RunConfig(
        tracing_disabled=True,
        call_model_input_filter=adapters.collapse_filter({"search": "store"}),
    )
    return str((await Runner.run(agent, question, run_config=config)).final_output)


FRAMEWORK = Framework(adapt, ask)
