"""`GET /prompt`: what a participant's model would be shown, computed beside the gateway."""

import asyncio
import http.client
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import anyio
import pytest

from mcpp import filters
from mcpp.model_prompts import ModelPrompt
from mcpp.protocol.codec import decode
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.history.pages import MemorySource
from mcpp_gateway.core.journal import MemoryJournal
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.prompts import service
from mcpp_gateway.prompts.reading import PromptReading, UnknownEnvelopeError
from mcpp_gateway.prompts.service import PromptError, PromptService
from mcpp_gateway.prompts.task import Task
from mcpp_gateway.prompts.worker import compute
from tests.gateway.harness import text
from tests.gateway.sockets import config_text, joined, receive_until, running, token

pytestmark = pytest.mark.anyio
FREE: dict[str, Any] = {"messages_per_second": 0, "context_messages_per_second": 0}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "file"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found = config_text(None, **FREE)
    if request.param == "file":
        found += f'\n[log]\nkind = "file"\npath = "{tmp_path}"\n'
    return found


async def get(gateway: Gateway, bearer: str = "", **options: Any) -> tuple[int, Any]:
    def request() -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=20)
        headers = {"Authorization": f"Bearer {bearer or token('bob')}"}
        connection.request("GET", f"/prompt?{urlencode(options)}", headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, body

    status, body = await anyio.to_thread.run_sync(request)
    return status, json.loads(body) if status == 200 else body.decode()


@pytest.mark.rule("H-40")
async def test_a_prompt_is_that_of_the_log_up_to_an_envelope(config: str) -> None:
    async with running(config) as gateway, joined(gateway, "alice") as alice:
        said = [text(f"m{n}", "alice", payload={"text": f"step {n}"}) for n in range(700)]
        for each in said:
            await alice.send(each.decode())
        await receive_until(alice, "m699")
        status, found = await get(gateway, viewer="bob", at="m650")
        assert status == 200
        log = [decode(each) for each in said[:651]]
        expected = ModelPrompt("bob", log).build()
        assert found["digest"] == expected.digest
        assert found["tokens"] == expected.report.tokens_after
        shown = json.dumps(found["messages"])
        assert "step 650" in shown
        assert "step 651" not in shown
        status, found = await get(gateway, viewer="alice", budget=300)
        assert status == 200
        assert found["tokens"] <= 300 < found["tokens_before"]
        assert "step 699" in json.dumps(found["messages"])
        assert sum(found["left_out"].values()) > 600


@pytest.mark.rule("H-40")
async def test_a_request_for_a_prompt_that_cannot_be_served_says_why(config: str) -> None:
    async with running(config) as gateway:
        assert (await get(gateway, "wrong", viewer="bob"))[0] == 401
        assert await get(gateway, viewer="bob", at="nowhere") == (
            404,
            "at: not an envelope of the log that you may read\n",
        )
        for wrong in ({}, {"viewer": "a b"}, {"viewer": "bob", "budget": "0"}):
            assert (await get(gateway, **wrong))[0] == 400
        assert (await get(gateway, viewer="bob", budget="9" * 5000))[0] == 400
        status, found = await get(gateway, viewer="nobody")
        assert status == 200
        assert [message["role"] for message in found["messages"]] == ["user"]


@pytest.mark.rule("H-40")
async def test_a_prompt_whose_process_cannot_be_started_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with running(config_text(None, **FREE)) as gateway:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        assert await get(gateway, viewer="bob") == (503, "the prompt cannot be computed now\n")


@pytest.mark.rule("H-40")
async def test_what_the_asker_may_not_hear_is_not_in_the_prompt() -> None:
    async with running(config_text(None, **FREE)) as gateway, joined(gateway, "alice") as alice:
        for number, to in enumerate((["bob"], None, ["carol"])):
            each = text(f"m{number}", "alice", payload={"text": f"step {number}"}, to=to)
            await alice.send(each.decode())
        await receive_until(alice, "m2")
        (pod,) = gateway.pods.values()
        assert isinstance(pod.journal, MemoryJournal)
        source = MemorySource(pod.journal)
        deaf = filters.parse({"any": []})
        chats = [Rights("bob", deaf), Rights("alice", filters.everything)]
        reading = PromptReading(chats, None)
        reading.read_all(source)
        ids = [decode(each).id for each in reading.texts if decode(each).kind == "chat"]
        assert ids == ["m0"]
        with pytest.raises(UnknownEnvelopeError):
            PromptReading(chats, "m2").read_all(source)


@pytest.mark.rule("H-40")
async def test_prompts_wait_in_a_bounded_queue_and_end_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(config_text(None, **FREE)) as gateway:
        (pod,) = gateway.pods.values()
        asked = [get(gateway, viewer="bob") for _ in range(9)]
        statuses = [status for status, _ in await asyncio.gather(*asked)]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) == 4, "one asker gets half of the places"
        monkeypatch.setattr(service, "PROMPT_SECONDS", 0.01)
        with pytest.raises(PromptError, match="too long"):
            await PromptService(lambda: None).answer(pod, "bob", "viewer=bob")


@pytest.mark.rule("H-40")
async def test_one_who_asks_often_does_not_delay_the_others() -> None:
    """Before, four requests of one participant made the gateway refuse those of all others."""
    async with running(config_text(None, **FREE)) as gateway:
        (pod,) = gateway.pods.values()
        served: list[str] = []

        async def ask(name: str) -> None:
            await gateway.prompts.answer(pod, name, "viewer=bob")
            served.append(name)

        often = [asyncio.create_task(ask("alice")) for _ in range(4)]
        await asyncio.sleep(0)  # they are in the queue
        await ask("bob")
        assert served.count("alice") <= 2
        for each in often:
            each.cancel()
        await asyncio.gather(*often, return_exceptions=True)
        await ask("alice")  # what was cancelled holds no place and no turn


@pytest.mark.rule("H-40")
def test_a_budget_that_is_too_small_is_a_problem_and_not_a_prompt() -> None:
    said = [text("m0", "alice", payload={"text": "word " * 500})]
    assert "does not fit" in compute(Task(viewer="bob", texts=said, token_budget=1))["problem"]
