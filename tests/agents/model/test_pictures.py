"""Pictures in a model's prompts: of messages and of results, fetched within bounds."""

import base64
import json

import msgspec
import pytest

from mcpp import Participant
from mcpp.protocol.rpc import ToolResult
from mcpp.testing import MemoryPod
from mcpp_agents.pictures import fetch_pictures
from tests.agents.model.model_server import Scripted
from tests.agents.model.test_model import APIS, ask, joined
from tests.mcpp.prompts.logs import png

pytestmark = pytest.mark.anyio
PICTURE = png(40, 30, 3000)
SHOT = png(50, 20, 3000)


def camera() -> Participant:
    agent = Participant("camera")

    @agent.tool
    async def shoot() -> ToolResult:
        """Take a picture."""
        return ToolResult([{"type": "image", "data": SHOT, "mimeType": "image/png"}])

    return agent


@APIS
async def test_a_model_sees_attached_pictures_and_those_of_its_calls(
    pod: MemoryPod, api: str
) -> None:
    script = [Scripted("A look.", [("camera__shoot", {})]), Scripted("Two pictures.")]
    async with pod.run(camera()), joined(pod, api, script) as (alice, server):
        plan = await alice.attach(base64.b64decode(PICTURE), name="plan.png")
        await alice.send("chat", "the plan", attachments=[plan])
        await ask(alice, "What do you see?")
        first, second = map(json.dumps, server.requests)
        assert (first.count(PICTURE), first.count(SHOT)) == (1, 0)
        assert (second.count(PICTURE), second.count(SHOT)) == (1, 1)


async def test_a_picture_that_cannot_be_fetched_is_left_out(
    pod: MemoryPod, caplog: pytest.LogCaptureFixture
) -> None:
    async with pod.connect("alice") as alice:
        plan = await alice.attach(base64.b64decode(PICTURE), name="plan.png")
        absent = msgspec.structs.replace(plan, hash="0" * 64)
        false = msgspec.structs.replace(plan, size=plan.size - 1)
        assert await fetch_pictures(alice, [absent, false]) == {}
        assert caplog.text.count("cannot fetch the picture") == 2
        assert list(await fetch_pictures(alice, [absent, plan])) == [plan.hash]


async def test_fetching_pictures_ends_in_time(pod: MemoryPod) -> None:
    async with pod.connect("alice") as alice:
        plan = await alice.attach(base64.b64decode(PICTURE), name="plan.png")
        assert await fetch_pictures(alice, [plan], seconds=0) == {}
        contents = await fetch_pictures(alice, [plan])
        assert base64.b64encode(contents[plan.hash]).decode() == PICTURE
        assert await fetch_pictures(alice, [plan], contents, seconds=0) == contents
