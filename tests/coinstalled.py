"""`make test-coinstall`: import other agent frameworks beside mcpp, and use a pod in memory."""

import sys
from importlib import import_module
from importlib.metadata import version

import anyio

import mcpp
from mcpp.testing import MemoryPod

# Distribution → import name, where they differ.
IMPORT_NAMES = {"openai-agents": "agents", "pydantic-ai": "pydantic_ai"}
# Our modules with the most requirements in common with the frameworks.
OURS = (
    "mcpp_agents.bridge.upstream",
    "mcpp_agents.mcp_server.server",
    "mcpp_agents.memory.serving.mcp_server",
    "mcpp_agents.model.anthropic_messages",
    "mcpp_agents.model.openai_chat",
    "mcpp_gateway.edge.server",
)


async def round_trip() -> None:
    """Call a tool of an agent and receive its answer."""
    agent = mcpp.Participant("counter")

    @agent.tool
    async def count_words(text: str) -> int:
        return len(text.split())

    pod = MemoryPod()
    async with pod.run(agent), pod.connect("alice") as alice:
        result = await alice.call("counter", "count_words", text="one two three")
        assert result.text == "3", result


def main(frameworks: list[str]) -> None:
    """Import everything, then do one round trip."""
    for name in frameworks:
        import_module(IMPORT_NAMES.get(name, name))
    for name in OURS:
        import_module(name)
    anyio.run(round_trip)
    installed = [f"{name} {version(name)}" for name in ("mcpp-pods", "websockets", *frameworks)]
    sys.stdout.write(f"Works together: {', '.join(installed)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
