"""`make test-coinstall`: import other agent frameworks beside mcpp, and use a pod.

The pod is a real one, `mcpp up` in a temporary folder: whatever version of websockets was resolved
has to work with the gateway and with the SDK.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import anyio

import mcpp
from mcpp.transient import decorators

# Distribution → import name, where they differ.
IMPORT_NAMES = {"openai-agents": "agents", "pydantic-ai": "pydantic_ai"}
# Our modules with the most requirements in common with the frameworks.
OURS = (
    "mcpp_agents.a2a.joining.joined_agent",
    "mcpp_agents.a2a.serving.server",
    "mcpp_agents.adapters.langgraph_agent",
    "mcpp_agents.adapters.openai_agent",
    "mcpp_agents.adapters.pydantic_agent",
    "mcpp_agents.bridge.upstream",
    "mcpp_agents.mcp_server.server",
    "mcpp_agents.memory.serving.mcp_server",
    "mcpp_agents.model.apis.anthropic_messages",
    "mcpp_agents.model.apis.openai_chat",
    "mcpp_gateway.edge.server",
)


TIMEOUT_SECONDS = 30


@contextmanager
def running_pod() -> Iterator[None]:
    """Run `mcpp up` in a temporary folder, which is the current one in the block."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    before = Path.cwd()
    command = [str(Path(sys.executable).with_name("mcpp")), "up", "--port", port]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as gateway:
            try:
                assert gateway.stdout is not None
                assert any("Stop with Ctrl-C" in line for line in gateway.stdout), (
                    "it did not start"
                )
                yield
            finally:
                gateway.terminate()
                os.chdir(before)
    assert gateway.returncode == 0, gateway.returncode


async def round_trip() -> None:
    """Call a tool of an agent through the pod of this folder, and receive its answer."""
    agent = mcpp.Participant("counter")

    @agent.tool
    async def count_words(text: str) -> int:
        return len(text.split())

    with anyio.fail_after(TIMEOUT_SECONDS):
        async with (
            agent.run_in_background(mcpp.connect(name="counter")),
            mcpp.connect(name="alice") as alice,
        ):
            result = await alice.call("counter", "count_words", text="one two three")
            assert result.text == "3", result


async def marked_tool() -> None:
    """Call a decorated tool of a FastMCP server: its mark reaches the client."""
    fastmcp = import_module("fastmcp")
    server = fastmcp.FastMCP("records")

    @server.tool  # type: ignore[untyped-decorator]
    @decorators.transient("activity")
    def search_records() -> list[dict[str, int]]:
        return [{"id": number} for number in range(15)]

    async with fastmcp.Client(server) as client:
        result = await client.call_tool("search_records", {})
    assert result.meta["context"]["summary"] == "15 activity records (IDs: 0, 1, 2…)", result


def main(frameworks: list[str]) -> None:
    """Import everything, then do one round trip."""
    for name in frameworks:
        import_module(IMPORT_NAMES.get(name, name))
    for name in OURS:
        import_module(name)
    if "fastmcp" in frameworks:
        anyio.run(marked_tool)
    with running_pod():
        anyio.run(round_trip)
    installed = [f"{name} {version(name)}" for name in ("mcpp-pods", "websockets", *frameworks)]
    sys.stdout.write(f"Works together: {', '.join(installed)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
