"""LangChain and LangGraph with LangChain's own fake model."""

import json
from collections.abc import Iterator
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import FakeMessagesListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.checkpoint.memory import InMemorySaver

from mcpp_agents import adapters
from tests.agents.adapters.scripts import Framework, ModelScript, Step, search, store


class ScriptedChat(GenericFakeChatModel):
    """A chat model that follows a script; its own one loses calls when it streams."""

    script: Any
    tools: Any = ()

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        names = [
            tool["function"]["name"] if isinstance(tool, dict) else tool.name for tool in tools
        ]
        return self.model_copy(update={"tools": names})

    def _next(self, messages: Any) -> tuple[Step, list[dict[str, Any]]]:
        shown = str([message.content for message in messages])  # not their artifacts
        step = self.script.next(shown, list(self.tools))
        if step.tool is None:
            return step, []
        id = f"call-{len(self.script.shown)}"
        return step, [{"name": step.tool, "args": step.arguments, "id": id}]

    def _generate(self, messages: Any, *rest: Any, **more: Any) -> ChatResult:
        step, calls = self._next(messages)
        message = AIMessage(step.text, tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _stream(self, messages: Any, *rest: Any, **more: Any) -> Iterator[ChatGenerationChunk]:
        step, calls = self._next(messages)
        for word in step.text.split(" ") if step.text else ():
            yield ChatGenerationChunk(message=AIMessageChunk(f"{word} "))
        chunks: Any = [
            {"name": each["name"], "args": json.dumps(each["args"]), "id": each["id"], "index": 0}
            for each in calls
        ]
        yield ChatGenerationChunk(message=AIMessageChunk("", tool_call_chunks=chunks))


class RepeatingChat(FakeMessagesListChatModel):
    """LangChain's fake model that does not stream, with tools."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def adapt(script: ModelScript, shredded: list[str]) -> adapters.FrameworkAgent:
    return _adapt(ScriptedChat(messages=iter(()), script=script), shredded)


def adapt_replies(*replies: AIMessage) -> adapters.FrameworkAgent:
    """Return an agent whose model gives these replies at once."""
    return _adapt(RepeatingChat(responses=list(replies)), [])


def _adapt(model: Any, shredded: list[str]) -> adapters.FrameworkAgent:
    def shred(path: str) -> str:
        """Shred a file."""
        shredded.append(path)
        return f"shredded {path}"

    memory = InMemorySaver()
    human = HumanInTheLoopMiddleware(interrupt_on={"shred": True})
    return adapters.langgraph(
        lambda tools: create_agent(
            model,
            [shred, *tools],
            middleware=[human, adapters.collapse_middleware()],
            checkpointer=memory,
        )
    )


async def ask(script: ModelScript, question: str) -> str:
    model = ScriptedChat(messages=iter(()), script=script)
    collapse = adapters.collapse_middleware({"search": "store"})
    agent = create_agent(model, [search, store], middleware=[collapse])
    state = await agent.ainvoke({"messages": [("user", question)]})
    return str(state["messages"][-1].text)


FRAMEWORK = Framework(adapt, ask)
