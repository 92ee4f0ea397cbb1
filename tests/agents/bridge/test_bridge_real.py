"""The bridge with third-party MCP servers, which `make setup-mcp` installs."""

import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import DEVNULL

import anyio
import pytest

import mcpp
from mcpp import Progress
from mcpp.client.tasks import background
from mcpp.errors import RemoteError, ToolError
from mcpp.testing import MemoryPod
from mcpp_agents.bridge.agent import bridge
from mcpp_agents.bridge.openers import Open, over_http, over_stdio
from mcpp_agents.bridge.upstream import Upstream
from tests.agents import conformance
from tests.agents.processes import BOUND

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
SERVERS = Path(__file__).parents[3] / ".mcp-servers"


def installed(name: str) -> str:
    for folder in ("node_modules/.bin", "venv/bin"):
        if (SERVERS / folder / name).exists():
            return str(SERVERS / folder / name)
    pytest.skip(f"{name} is not installed: run `make setup-mcp`")


@asynccontextmanager
async def bridged(pod: MemoryPod, name: str, open: Open) -> AsyncIterator[mcpp.Pod]:
    upstream = Upstream(open, name=name)
    with anyio.fail_after(3 * BOUND):
        async with background() as tasks:
            await tasks.start(upstream.keep_running)
            async with pod.run(bridge(name, upstream)), pod.connect("alice") as alice:
                yield alice


async def test_everything_over_stdio(pod: MemoryPod) -> None:
    command = [installed("mcp-server-everything")]
    async with bridged(pod, "everything", over_stdio(command)) as alice:
        assert (await alice.call("everything", "get-sum", a=2, b=3)).text.endswith("is 5.")
        with pytest.raises((RemoteError, ToolError), match="message"):
            await alice.call("everything", "echo", message=7)
        reports: list[Progress] = []
        await alice.call(
            "everything", "trigger-long-running-operation", duration=0.3, steps=3,
            on_progress=reports.append,
        )  # fmt: skip
        assert [(progress.progress, progress.total) for progress in reports] == [
            (1, 3),
            (2, 3),
            (3, 3),
        ]
        resources = (await alice.request("everything", "resources/list"))["resources"]
        read = await alice.request("everything", "resources/read", {"uri": resources[0]["uri"]})
        assert read["contents"][0]["uri"] == resources[0]["uri"]
        prompt = {"name": "args-prompt", "arguments": {"city": "Oslo"}}
        messages = (await alice.request("everything", "prompts/get", prompt))["messages"]
        assert "Oslo" in messages[0]["content"]["text"]
        image = (await alice.call("everything", "get-tiny-image")).content
        assert {part["type"] for part in image} == {"text", "image"}


@asynccontextmanager
async def listening(*command: str) -> AsyncIterator[int]:
    """Run a server that listens on the port in its environment; yield the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    process = await anyio.open_process(
        command, env=os.environ | {"PORT": str(port)}, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        yield port
    finally:
        process.kill()
        await process.aclose()


@pytest.mark.parametrize(("transport", "path"), [("streamableHttp", "mcp"), ("sse", "sse")])
async def test_everything_over_http(pod: MemoryPod, transport: str, path: str) -> None:
    async with listening(installed("mcp-server-everything"), transport) as port:
        opening = over_http(f"http://127.0.0.1:{port}/{path}")
        async with bridged(pod, "everything", opening) as alice:
            assert (await alice.call("everything", "echo", message="hi")).text == "Echo: hi"
            reports: list[Progress] = []
            await alice.call(
                "everything", "trigger-long-running-operation", duration=0.2, steps=2,
                on_progress=reports.append,
            )  # fmt: skip
            assert len(reports) == 2


async def test_arguments_that_a_server_wants_as_headers_are_sent_as_headers(
    pod: MemoryPod,
) -> None:
    fixture = Path(conformance.__file__).with_name("fixture_server.py")
    async with listening(sys.executable, str(fixture), "--http") as port:
        opening = over_http(f"http://127.0.0.1:{port}/mcp")
        async with bridged(pod, "fixture", opening) as alice:
            arguments = {"region": "Österreich", "query": "q"}
            result = await alice.call("fixture", "test_custom_header", arguments)
            assert json.loads(result.text) == arguments


async def test_filesystem(pod: MemoryPod, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("a thought")
    command = [installed("mcp-server-filesystem"), str(tmp_path)]
    async with bridged(pod, "files", over_stdio(command)) as alice:
        path = str(tmp_path / "notes.md")
        assert (await alice.call("files", "read_text_file", path=path)).text == "a thought"
        await alice.call("files", "write_file", path=str(tmp_path / "new.md"), content="more")
        with pytest.raises(ToolError, match="outside allowed"):
            await alice.call("files", "read_text_file", path="/etc/hostname")
    assert (tmp_path / "new.md").read_text() == "more"


async def test_memory(pod: MemoryPod, tmp_path: Path) -> None:
    env = os.environ | {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    async with bridged(
        pod, "graph", over_stdio([installed("mcp-server-memory")], ["MEMORY_FILE_PATH"], env)
    ) as alice:
        entity = {"name": "Ada", "entityType": "person", "observations": ["wrote notes"]}
        await alice.call("graph", "create_entities", entities=[entity])
        found = await alice.call("graph", "search_nodes", query="notes")
        assert found.value["entities"] == [entity]


async def test_time_of_the_newest_revision(pod: MemoryPod) -> None:
    command = [installed("mcp-server-time"), "--local-timezone", "UTC"]
    async with bridged(pod, "time", over_stdio(command)) as alice:
        result = await alice.call(
            "time", "convert_time",
            source_timezone="UTC", time="12:00", target_timezone="Asia/Tokyo",
        )  # fmt: skip
        assert "21:00" in result.text
