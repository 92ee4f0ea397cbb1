"""Model calls that are recorded and replayed, together with the log around them."""

from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp.testing import DivergedError, MemoryPod, Recording, RecordingError
from mcpp_agents.model import ModelAgent, ModelLimits, Provider, ProviderError, Reply, ToolUse
from mcpp_agents.testing import RecordedModel
from tests.agents.processes import BOUND
from tests.agents.prompt.test_prompt import NotedPrompts, books

pytestmark = pytest.mark.anyio
SEARCH = Reply("I look it up.", (ToolUse("books__find", {"title": "Dune"}),))


def mind(provider: Provider, system: str = "") -> mcpp.Participant:
    # Alice never answers the request for her tools, so wait only briefly for her.
    limits = ModelLimits(grace_seconds=0.2)
    return ModelAgent("mind", provider, system=system, limits=limits).participant


async def record(pod: MemoryPod, folder: Path) -> tuple[Recording, Path]:
    """Record a question to a model, its calls and its answer."""
    path = folder / "incident.model.jsonl"
    model = RecordedModel(path, NotedPrompts(SEARCH, Reply("In 1965.")))
    async with (
        pod.run(books()),
        pod.connect("alice") as alice,
        pod.run(mind(model)),
    ):
        question = await alice.send("chat", {"text": "When was Dune written?"}, to=["mind"])
        with anyio.fail_after(BOUND):
            async for message in alice:
                if message.kind == "chat" and message.correlation_id == question.id:
                    break
        return Recording(await alice.history().all()), path


@pytest.mark.rule("P-39")
async def test_an_incident_with_a_model_becomes_a_test_without_one(
    pod: MemoryPod, tmp_path: Path
) -> None:
    recording, path = await record(pod, tmp_path)
    assert len(path.read_bytes().splitlines()) == 2
    with RecordedModel(path) as model:
        await recording.check(mind(model))


@pytest.mark.rule("P-39")
async def test_a_changed_prompt_is_reported_with_a_diff(pod: MemoryPod, tmp_path: Path) -> None:
    recording, path = await record(pod, tmp_path)
    model = RecordedModel(path)
    await recording.check(mind(model, system="Be brief."))
    with pytest.raises(DivergedError, match=r"2 divergences from .*incident.model.jsonl"):
        model.check()
    assert "+Be brief." in model.divergences[0].diff
    tolerant = RecordedModel(path, compare_prompts=False)
    await recording.check(mind(tolerant, system="Be brief."))
    tolerant.check()


@pytest.mark.rule("P-39")
async def test_missing_and_further_calls_are_reported(pod: MemoryPod, tmp_path: Path) -> None:
    _, path = await record(pod, tmp_path)
    with pytest.raises(DivergedError) as diverged, RecordedModel(path):
        pass
    assert [one.reason for one in diverged.value.divergences] == ["missing", "missing"]
    with pytest.raises(ZeroDivisionError), RecordedModel(path):
        raise ZeroDivisionError
    one, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(one)
    model = RecordedModel(path)
    async with pod.run(mind(model)), pod.run(books()), pod.connect("alice") as alice:
        await alice.send("chat", {"text": "When was Dune written?"}, to=["mind"])
        with anyio.fail_after(BOUND):
            async for message in alice:
                if message.kind == "chat":
                    break
    assert "no more calls of the model" in message.text
    assert model.divergences[-1].reason == "unexpected"


class _Busy:
    async def reply(self, *arguments: object) -> Reply:
        raise ProviderError("too many requests", 0.01)


async def test_errors_of_a_model_are_recorded_too(pod: MemoryPod, tmp_path: Path) -> None:
    path = tmp_path / "busy.jsonl"
    for provider in (_Busy(), None):
        model = RecordedModel(path, provider)
        pod = MemoryPod()
        async with pod.run(mind(model)), pod.connect("alice") as alice:
            await alice.send("chat", {"text": "hello"}, to=["mind"])
            with anyio.fail_after(BOUND):
                async for message in alice:
                    if message.kind == "chat":
                        break
        assert "still unavailable after several attempts" in message.text
    model.check()


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"reply": {}}\n', b"\xff\n"])
def test_a_line_that_is_no_call_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "calls.jsonl"
    path.write_bytes(b'{"prompt":"","error":"x"}\n' + line)
    with pytest.raises(RecordingError, match="line 2"):
        RecordedModel(path)
