"""MCP content that no envelope can hold: by reference through the pod, unchanged at both ends."""

import base64
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

import mcpp
from mcpp import Participant, ToolResult
from mcpp.agent.tools import ToolCall
from mcpp.errors import RemoteError
from mcpp.prompts.attached import MARKS, find_empty
from mcpp.testing import MemoryPod
from mcpp_agents.bridge.openers import over_stdio
from tests.agents.bridge.test_bridge_real import bridged, installed
from tests.agents.mcp_server.test_mcp_server import served
from tests.agents.processes import BOUND

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PNG = b"\x89PNG\r\n\x1a\n" + os.urandom(3_000_000)
PAGE = "<!doctype html>" + "<p>ü</p>" * 500_000


@pytest.fixture
def limits() -> dict[str, Any]:
    return {}


@pytest.mark.rule("A-12")
async def test_a_picture_of_a_real_server_reaches_a_real_client(
    pod: MemoryPod, tmp_path: Path
) -> None:
    (tmp_path / "shot.png").write_bytes(PNG)
    command = [installed("mcp-server-filesystem"), str(tmp_path)]
    async with bridged(pod, "files", over_stdio(command)) as alice, served(pod) as client:
        path = str(tmp_path / "shot.png")
        result = await client.call_tool("files__read_media_file", {"path": path})
        (image,) = (part for part in result.content if part.type == "image")
        assert base64.b64decode(image.data) == PNG
        assert result.meta is None or MARKS not in result.meta
        with anyio.fail_after(BOUND):
            while not (message := await anext(alice)).attachments:
                pass
        (reference,) = message.attachments
        assert (reference.media_type, reference.size) == ("image/png", len(PNG))
        assert await message.fetch(reference) == PNG
        assert message.envelope.size_bytes < 5_000


def gallery() -> Participant:
    agent = Participant("gallery")

    @agent.tool
    async def page(call: ToolCall) -> ToolResult:
        resource = {"uri": "ui://page", "mimeType": "text/html;profile=mcp-app", "text": PAGE}
        return ToolResult([{"type": "resource", "resource": resource}], meta={"mine": 1})

    @agent.tool
    async def odd(call: ToolCall) -> ToolResult:
        # Base64 in lines is another spelling of the same bytes.
        lines = base64.encodebytes(PNG[:300_000]).decode()
        small = {"type": "image", "mimeType": "image/png", "data": "iVBORw=="}
        return ToolResult([small, {"type": "image", "mimeType": "image/png", "data": lines}])

    @agent.tool
    async def long(call: ToolCall) -> str:
        return "x" * 200_000

    @agent.resource("shot://now", mime_type="image/png")
    async def shot() -> bytes:
        return PNG

    return agent


@pytest.mark.rule("A-12")
async def test_pages_resources_and_odd_spellings_come_back_exactly(pod: MemoryPod) -> None:
    async with pod.run(gallery()), pod.connect("alice") as alice, served(pod) as client:
        shown = await alice.call("gallery", "page")
        assert shown.content[0]["resource"]["text"] == PAGE
        assert shown.meta == {"mine": 1}
        small, lines = (await alice.call("gallery", "odd")).content
        assert small["data"] == "iVBORw=="
        assert lines["data"] == base64.encodebytes(PNG[:300_000]).decode()
        read = await client.read_resource("shot://now")
        assert base64.b64decode(read.contents[0].blob) == PNG  # type: ignore[union-attr]
        # A long text that fits stays in the log, where it can be searched.
        before = len(await attached(alice))
        assert len((await alice.call("gallery", "long")).text) == 200_000
        assert len(await attached(alice)) == before
        proposal = await alice.propose("gallery", "page")
        async with pod.connect("bob") as bob:
            await bob.approve(proposal.envelope)
            with anyio.fail_after(BOUND):
                decided: ToolResult = await proposal.result()
        assert decided.content[0]["resource"]["text"] == PAGE


async def attached(pod: mcpp.Pod) -> list[mcpp.Attachment]:
    return [each async for message in pod.history() for each in message.envelope.attachments]


@pytest.mark.rule("A-12")
async def test_what_cannot_be_attached_is_an_error_that_says_so() -> None:
    pod = MemoryPod(limits={"max_blob_bytes": 1_000_000})
    async with pod.run(gallery()), pod.connect("alice") as alice:
        with pytest.raises(RemoteError, match="at most 1000000 bytes"):
            await alice.call("gallery", "page", timeout=BOUND)


@pytest.mark.rule("A-12")
async def test_a_mark_that_the_envelope_does_not_name_stays_as_it_is(pod: MemoryPod) -> None:
    agent = Participant("forger")
    marks = [
        {"pointer": "/content/0/data", "hash": "0" * 64, "encoding": "base64"},
        {"pointer": "/content/1/text", "hash": "0" * 64},
        {"pointer": "/content/9/text", "hash": "0" * 64},
        {"pointer": "", "hash": "0" * 64},
    ]

    @agent.tool
    async def forge(call: ToolCall) -> ToolResult:
        image = {"type": "image", "mimeType": "a/b", "data": ""}
        return ToolResult([image, {"type": "text", "text": "x"}], meta={MARKS: marks})

    @agent.tool
    async def name(call: ToolCall) -> ToolResult:
        return ToolResult([{"type": "text", "text": "x"}], meta={MARKS: [1]})

    async with pod.run(agent), pod.connect("alice") as alice:
        assert (await alice.call("forger", "forge")).meta == {MARKS: marks}
        assert (await alice.call("forger", "name")).text == "x"


@pytest.mark.rule("A-12")
def test_marks_point_at_empty_strings_only() -> None:
    result = {"a/b": ["", {"~": "x"}], "": ""}
    assert find_empty(result, "/a~1b/0") == (result["a/b"], 0)
    assert find_empty(result, "/") == (result, "")
    for pointer in ("/a~1b/1/~0", "/a~1b/2", "/a~1b/-1", "/a~1b", "", "x", "/a~1b/0/0", "/a~1b/²"):
        assert find_empty(result, pointer) is None, pointer
