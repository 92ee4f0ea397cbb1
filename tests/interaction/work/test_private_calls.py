"""Private calls: arguments and results that no third participant can read."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpp
from mcpp.conversation import private_content
from mcpp.errors import AttachmentError, RemoteError, ToolError
from mcpp.prompts.attached import read_marks
from mcpp.protocol import rpc
from mcpp.testing.strategies import json_values
from tests.interaction.conftest import AnyPod, SocketPod

pytestmark = [pytest.mark.anyio, pytest.mark.rule("A-14")]

SECRET = "hunter2"


def vault() -> mcpp.Participant:
    agent = mcpp.Participant("vault")

    @agent.tool
    async def keep(text: str, times: int = 1) -> dict[str, Any]:
        return {"kept": text * times}

    @agent.tool
    async def spell(text: str) -> AsyncIterator[str]:
        for letter in text:
            yield letter
        yield mcpp.Progress(1, 1, text)  # type: ignore[misc]

    @agent.tool
    async def reveal(call: mcpp.ToolCall) -> str:
        call.keep_private()
        return SECRET

    return agent


async def heard(pod: mcpp.Pod) -> list[mcpp.Envelope]:
    return [message.envelope for message in await pod.history().all()]


async def readable(pod: mcpp.Pod, envelopes: list[mcpp.Envelope]) -> list[bytes]:
    """Return the content of all attachments that a participant may fetch."""
    found = []
    for each in (each for envelope in envelopes for each in envelope.attachments):
        try:
            found.append(await pod.fetch(each))
        except AttachmentError:
            continue
    return found


async def test_no_third_participant_reads_arguments_or_result(harness: AnyPod) -> None:
    async with (
        harness.run(vault()) as owner,
        harness.connect("ada") as ada,
        harness.connect("eve") as eve,
    ):
        await ada.wait_for_presence("vault", 10)
        result = await ada.call("vault", "keep", text=SECRET, times=2, private=True)
        assert result.value == {"kept": SECRET * 2}
        assert (await ada.call("vault", "reveal")).text == SECRET
        log = await heard(eve)
        assert SECRET not in msgspec.json.encode([each.payload for each in log]).decode()
        assert [each.private for said in log for each in said.attachments] == [True] * 3
        assert await readable(eve, log) == []
        assert len(await readable(ada, log)) == len(await readable(owner, log)) == 3
        request, response = (each for each in log if each.kind.endswith(":keep"))
        assert request.payload["params"]["arguments"] == {}
        shown = rpc.ToolResult.from_json(response.payload["result"])
        assert shown.text == "The result is attached, for ada only."
        assert (shown.structured, shown.is_error) == (None, False)


async def test_pieces_progress_and_errors_of_a_private_call_are_not_heard(harness: AnyPod) -> None:
    async with (
        harness.run(vault()),
        harness.connect("ada") as ada,
        harness.connect("eve", last=0) as eve,
    ):
        await ada.wait_for_presence("vault", 10)
        result = await ada.call("vault", "spell", text=SECRET, private=True)
        assert result.text == SECRET
        with pytest.raises(ToolError, match=SECRET):
            await ada.call("vault", "keep", {SECRET: 1}, text="x", private=True)
        await ada.send("chat", "done")
        said = []
        async for message in eve:
            said.append(message)
            if message.kind == "chat":
                break
        assert not [each for each in said if each.kind.startswith("live/")]
        assert SECRET not in json.dumps([each.payload for each in said])
        assert "isError" not in json.dumps([each.payload for each in said])


async def test_a_proposer_gets_nothing_private_of_the_one_that_approves(harness: AnyPod) -> None:
    async with (
        harness.run(vault()),
        harness.connect("ada") as ada,
        harness.connect("eve") as eve,
    ):
        await eve.wait_for_presence("vault", 10)
        proposal = await eve.propose("vault", "reveal")
        with pytest.raises(RemoteError, match="only for its requester"):
            await ada.fulfil(proposal.envelope)
        with pytest.raises(RemoteError, match="only for its requester"):
            await proposal.result(10)
        assert not any(each.attachments for each in await heard(eve))


@pytest.mark.rule("A-04")
async def test_more_calls_at_once_than_the_gateway_allows_transfers(sockets: SocketPod) -> None:
    async with sockets.run(vault()), sockets.connect("ada") as ada:
        await ada.wait_for_presence("vault", 10)
        kept = []

        async def keep(number: int) -> None:
            result = await ada.call("vault", "keep", text=str(number), private=True)
            kept.append(result.value["kept"])

        async with anyio.create_task_group() as tasks:
            for number in range(40):
                tasks.start_soon(keep, number)
        assert sorted(map(int, kept)) == list(range(40))


async def sealed(pod: mcpp.Pod, value: Any, **members: Any) -> Any:
    """Call `keep` with private arguments in a request of any form."""
    content = private_content.seal(msgspec.Raw(msgspec.json.encode(value)))
    reference = await pod.attach(content, private=True)
    meta = private_content.mark(reference, private_content.ARGUMENTS)
    correlation = members.pop("correlation_id", None)
    params = {"name": "keep", "arguments": {}, "_meta": meta} | members
    result = await pod.request(
        "vault", "tools/call", params, attachments=[reference], correlation_id=correlation
    )
    return rpc.ToolResult.from_json(result)


async def test_private_arguments_stand_alone_and_fulfil_no_proposal(harness: AnyPod) -> None:
    async with harness.run(vault()), harness.connect("ada") as ada:
        await ada.wait_for_presence("vault", 10)
        assert (await sealed(ada, {"text": "x"})).value == {"kept": "x"}
        besides = await sealed(ada, {"text": "x"}, arguments={"times": 3})
        assert (besides.is_error, besides.text) == (
            True,
            "there are arguments besides the private ones",
        )
        proposal = await ada.propose("vault", "keep")
        approved = await sealed(ada, {"text": "x"}, correlation_id=proposal.id)
        assert approved.text == "private arguments do not fulfil a proposal"
        values: list[Any] = [{"text": "x" * 1_048_576}, [], 5]
        for value in values:
            assert (await sealed(ada, value)).is_error


@given(json_values())
def test_sealed_content_is_unsealed_and_tells_little_by_its_hash_and_size(value: Any) -> None:
    raw = msgspec.Raw(msgspec.json.encode(value))
    first, second = private_content.seal(raw), private_content.seal(raw)
    assert private_content.unseal(first) == private_content.unseal(second) == value
    assert first != second
    assert len(first) >= 16_384
    assert len(first).bit_count() == 1


@given(st.binary() | json_values().map(msgspec.json.encode))
def test_only_an_attachment_error_comes_of_invalid_content(content: bytes) -> None:
    with pytest.raises(AttachmentError):
        private_content.unseal(content)
    with pytest.raises(AttachmentError):
        private_content.unseal(b"[" * 100_000)


def test_a_mark_on_what_is_not_private_is_ignored() -> None:
    public = mcpp.Attachment("a" * 64, 5, "application/json")
    value = {"_meta": private_content.mark(public, private_content.RESULT)}
    assert len(read_marks(value)) == 1
    assert private_content.marked(value, private_content.RESULT, [public]) is None
    private = msgspec.structs.replace(public, private=True)
    assert private_content.marked(value, private_content.RESULT, [private]) == private
    assert private_content.marked(value, private_content.ARGUMENTS, [private]) is None
