"""Agents of other frameworks as participants: LangGraph, OpenAI Agents SDK, PydanticAI.

from mcpp_agents import adapters

await adapters.pydantic_ai(agent).join("helper")

The adapters import only `mcpp` and the framework itself, which your program has installed.
"""

from collections.abc import Mapping
from typing import Any

from mcpp_agents.adapters.framework_agent import FrameworkAgent

__all__ = [
    "FrameworkAgent",
    "collapse_capability",
    "collapse_filter",
    "collapse_middleware",
    "langgraph",
    "openai_agents",
    "pydantic_ai",
]


def langgraph(graph: Any) -> FrameworkAgent:
    """Adapt a LangGraph graph or a LangChain agent.

    Args:
        graph: a compiled graph with `messages` in its state; or a function that gets the pod's
            tools and returns one, if the agent should be offered them:
            `lambda tools: create_agent(model, tools)`.
    """
    from mcpp_agents.adapters.langgraph_agent import LangGraphAgent

    return LangGraphAgent(graph)


def openai_agents(agent: Any, *, run_config: Any = None) -> FrameworkAgent:
    """Adapt an agent of the OpenAI Agents SDK; `run_config` is for its runs."""
    from mcpp_agents.adapters.openai_agent import OpenAIAgent

    return OpenAIAgent(agent, run_config)


def pydantic_ai(agent: Any, *, deps: Any = None) -> FrameworkAgent:
    """Adapt a PydanticAI agent; `deps` are its dependencies."""
    from mcpp_agents.adapters.pydantic_agent import PydanticAgent

    return PydanticAgent(agent, deps)


def collapse_middleware(pairs: Mapping[str, str] | None = None) -> Any:
    """Return middleware for LangChain's `create_agent` that collapses consumed tool results.

    Args:
        pairs: which tool's large results are consumed by a call of which tool. Results of a pod's
            or an MCP server's tools may be marked already, and need none.
    """
    from mcpp_agents.adapters.langgraph_agent import CollapseMiddleware

    return CollapseMiddleware(pairs or {})


def collapse_filter(pairs: Mapping[str, str] | None = None) -> Any:
    """Return a `call_model_input_filter` for a RunConfig of the OpenAI Agents SDK.

    The argument is that of `collapse_middleware`.
    """
    from mcpp_agents.adapters.openai_agent import collapse_filter

    return collapse_filter(pairs or {}, {})


def collapse_capability(pairs: Mapping[str, str] | None = None) -> Any:
    """Return a capability for a PydanticAI agent that collapses consumed tool results.

    The argument is that of `collapse_middleware`.
    """
    from mcpp_agents.adapters.pydantic_agent import CollapseCapability

    return CollapseCapability(pairs or {}, {})
