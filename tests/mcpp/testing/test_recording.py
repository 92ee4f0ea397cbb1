"""Recordings: an agent is run against a recorded log, and differences are reported."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpp
from mcpp import Envelope, encode, new_context, new_envelope
from mcpp.testing import DivergedError, Divergence, MemoryPod, Recording, RecordingError
from mcpp.testing.comparison import IdMap, are_alike, shape
from mcpp.testing.strategies import envelopes, json_values

pytestmark = pytest.mark.anyio
pytest_plugins = ["mcpp.testing.plugin"]


def clerk(answer: str = "done", *, steps: int = 2, tool: str = "find", twice: bool = False) -> Any:
    """Return an agent that reasons in a context, calls a tool, and answers with what it found."""
    agent = mcpp.Participant("clerk")

    @agent.on("chat")
    async def work(message: mcpp.Message) -> None:
        if message.to != ("clerk",):
            return
        async with message.pod.context("reasoning", asked_by=message.sender) as thinking:
            for _ in range(steps):
                await thinking.send("reflection", {"thought": "hm"})
            found = await thinking.call("files", tool, name=message.text, timeout=1)
            await thinking.conclude({"text": found.text})
        for _ in range(1 + twice):
            await message.reply(f"{answer}: {found.text}")

    @agent.tool
    def count(words: list[str]) -> int:
        return len(words)

    return agent


def files() -> mcpp.Participant:
    agent = mcpp.Participant("files")

    @agent.tool
    async def find(name: str, call: mcpp.ToolCall) -> str:
        await call.progress(1, 2, "looking")
        return f"{name} is here"

    return agent


async def incident(pod: MemoryPod) -> list[mcpp.HistoryMessage]:
    """Return the log of two questions to the clerk, and a call of its tool."""
    async with (
        pod.connect("boss") as boss,
        pod.run(files()),
        pod.run(clerk()),
    ):
        with anyio.fail_after(10):
            for name in ("invoice", "letter"):
                asked = await boss.send("chat", {"text": name}, to=["clerk"])
                async for message in boss:
                    if message.correlation_id == asked.id and message.kind == "chat":
                        break
            assert (await boss.call("clerk", "count", words=["a", "b"])).value == 2
        return await boss.history().all()


@pytest.mark.rule("P-39")
@pytest.mark.parametrize("compare", ["kind", "structure", "exact", lambda one, other: True])
async def test_an_unchanged_agent_says_what_it_said(pod: MemoryPod, compare: Any) -> None:
    recording = Recording(await incident(pod))
    await recording.check(clerk(), compare=compare)
    await recording.check(clerk(), compare=compare)  # a recording can be used again


@pytest.mark.rule("P-39")
async def test_every_participant_of_a_recording_can_be_the_one_under_test(pod: MemoryPod) -> None:
    recording = Recording(await incident(pod))
    await recording.check(files(), compare="exact")


@pytest.mark.rule("P-39")
async def test_a_changed_text_is_a_difference_only_if_texts_are_compared(pod: MemoryPod) -> None:
    recording = Recording(await incident(pod))
    await recording.check(clerk("finished"))
    with pytest.raises(DivergedError) as diverged:
        await recording.check(clerk("finished"), compare="exact", seconds=0.2)
    found = diverged.value.divergences
    assert [(one.reason, one.recorded and one.recorded.kind) for one in found] == [
        ("different", "chat"),
        ("different", "chat"),
    ]
    assert '-    "text": "done: invoice is here"' in found[0].diff
    assert '+    "text": "finished: invoice is here"' in found[0].diff
    log = {entry.envelope.id: entry.position for entry in recording.entries}
    assert all(one.recorded and one.position == log[one.recorded.id] for one in found)
    assert str(diverged.value).startswith("2 divergences from the recording\n\nat position ")


@pytest.mark.rule("P-39")
@pytest.mark.parametrize(
    ("agent", "reasons"),
    [
        (lambda: clerk(steps=1), {"missing reflection"}),
        (lambda: clerk(steps=3), {"unexpected reflection"}),
        (lambda: clerk(twice=True), {"unexpected chat"}),
        (lambda: mcpp.Participant("clerk"), {"missing reflection", "missing chat"}),
    ],
)
async def test_what_is_missing_and_what_is_new_is_reported(
    pod: MemoryPod, agent: Callable[[], mcpp.Participant], reasons: set[str]
) -> None:
    recording = Recording(await incident(pod))
    found = await recording.replay(agent(), seconds=0.3)
    seen = {f"{one.reason} {kind_of(one)}" for one in found}
    assert reasons <= seen
    assert all(str(one) for one in found)


def kind_of(divergence: Divergence) -> str:
    shown = divergence.recorded or divergence.said
    return "" if shown is None else shown.kind


@pytest.mark.rule("P-39")
async def test_a_predicate_decides(pod: MemoryPod) -> None:
    recording = Recording(await incident(pod))

    def is_shorter(recorded: Envelope, said: Envelope) -> bool:
        return len(said.raw_payload) <= len(recorded.raw_payload)

    await recording.check(clerk("ok"), compare=is_shorter)
    assert await recording.replay(clerk("verbosely"), compare=is_shorter, seconds=0.2)


@pytest.mark.rule("P-39")
async def test_an_exception_of_the_agent_fails_the_test(pod: MemoryPod) -> None:
    recording = Recording(await incident(pod))
    broken = mcpp.Participant("clerk")

    @broken.on("chat")
    async def fail(message: mcpp.Message) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await recording.check(broken)


@pytest.mark.rule("P-39")
async def test_capabilities_and_presence_are_those_of_the_recording(pod: MemoryPod) -> None:
    pod.add("intern", [{"kind": "chat"}, {"kind": "mcp/proposal:*"}, {"kind": "mcp/withdraw"}])

    def intern() -> mcpp.Participant:
        agent = mcpp.Participant("intern")

        @agent.on("chat")
        async def work(message: mcpp.Message) -> None:
            try:
                await message.pod.call("files", "find", name=message.text)
            except mcpp.Refused:
                proposal = await message.pod.propose("files", "find", name=message.text)
                found = await proposal.result(5)
                present = ", ".join(sorted(message.pod.participants))
                await message.reply(f"{found.text}, with {present}")

        return agent

    async with pod.run(files()), pod.run(intern()), pod.connect("boss") as boss:
        async with pod.connect("visitor") as visitor:
            await visitor.send("reflection", {"thought": "hello and goodbye"})
        await boss.send("chat", {"text": "map"}, to=["intern"])
        async for message in boss:
            if message.kind.startswith("mcp/proposal"):
                await boss.approve(message)
            if message.kind == "chat":
                break
        log = await boss.history().all()
    await Recording(log).check(intern(), compare="exact")


@pytest.mark.rule("P-39")
async def test_what_is_ignored_is_answered_all_the_same(pod: MemoryPod) -> None:
    def asking(times: int) -> mcpp.Participant:
        agent = mcpp.Participant("asking")

        @agent.on("chat")
        async def ask(message: mcpp.Message) -> None:
            for _ in range(times):
                found = await message.pod.request("files", "tools/list", timeout=5)
            await message.reply(found["tools"][0]["name"])

        return agent

    async with pod.run(files()), pod.run(asking(1)), pod.connect("boss") as boss:
        await boss.send("chat", {"text": "which?"}, to=["asking"])
        async for message in boss:
            if message.kind == "chat":
                break
        log = await boss.history().all()
    await Recording(log).check(asking(1), compare="exact")
    everything = await Recording(log).replay(asking(1), ignore=mcpp.filters.parse({"any": []}))
    assert everything == []
    (missing,) = await Recording(log).replay(asking(2), seconds=0.2)
    assert (missing.reason, kind_of(missing)) == ("missing", "chat")


@pytest.mark.rule("P-39")
async def test_a_recording_may_begin_in_the_middle(pod: MemoryPod) -> None:
    log = await incident(pod)
    start = next(i for i, one in enumerate(log) if one.text == "letter")
    await Recording(log[start:]).check(clerk(), compare="exact")


@pytest.fixture
def log() -> list[Envelope]:
    context = new_context("reasoning", id="c")
    return [
        new_envelope("chat", {"text": "two\nlines\u2028"}, sender="boss", to=["clerk"]),
        new_envelope("reflection", {"thought": "hm"}, sender="clerk", context=context),
    ]


def exported(log: list[Envelope]) -> Iterator[bytes]:
    yield b'{"format":"mcpp-log","version":1,"pod":"p","epoch":"e","start":40}'
    yield b'{"state":[1,2],"time":1.5}'
    for position, envelope in enumerate(log, 40):
        line = {"position": position, "time": 1.5, "term": 0, "index": 1, "id": envelope.id}
        yield json.dumps(line | {"text": encode(envelope).decode()}).encode()


@pytest.mark.rule("P-39")
async def test_recordings_are_read_in_every_form(log: list[Envelope], tmp_path: Path) -> None:
    saved, export = tmp_path / "saved.jsonl", tmp_path / "export.jsonl"
    Recording(log).save(saved)
    export.write_bytes(b"\n".join(exported(log)) + b"\n")
    assert len(saved.read_text(encoding="utf-8").split("\n")) == 3
    assert Recording(saved).envelopes == Recording(str(saved)).envelopes == log
    assert Recording(export).envelopes == log
    assert [entry.position for entry in Recording(export).entries] == [40, 41]
    found = [{"position": 7, "time": 1.5, "envelope": json.loads(encode(one))} for one in log]
    assert Recording(map(json.dumps, found)).envelopes == log


@pytest.mark.rule("P-39")
@pytest.mark.parametrize("name", ["stopped", "crashed"])
async def test_an_exported_log_is_a_recording(name: str) -> None:
    path = Path(__file__).parents[2] / "gateway" / "storage" / "vectors" / "v1" / f"{name}.jsonl"
    recording = Recording(path)
    assert len(recording.entries) > 10
    positions = [entry.position for entry in recording.entries]
    assert positions == sorted(set(positions))


@pytest.mark.parametrize(
    "line", ["nonsense", "{}", "[]", '{"position": 1, "text": "{}"}', "\ud800", '{"protocol": 1}']
)
async def test_a_line_that_is_not_of_a_recording_is_named(log: list[Envelope], line: str) -> None:
    with pytest.raises(RecordingError, match="line 3"):
        Recording([*log, line])


async def test_a_fixture_reads_recordings_beside_the_test(
    recording: Callable[[str], Recording], log: list[Envelope]
) -> None:
    file = Path(__file__).parent / "incident.jsonl"
    with pytest.raises(FileNotFoundError, match=r"incident\.jsonl"):
        recording("incident.jsonl")
    assert recording("../../incident.jsonl").envelopes
    assert not file.exists()


async def test_what_the_pod_refuses_is_reported(log: list[Envelope]) -> None:
    own = next(one for one in log if one.sender == "clerk")
    twice = [log[0], new_envelope("chat", {}, sender="eve", id=log[0].id), own]
    with pytest.raises(RecordingError, match="the pod refuses what eve said"):
        await Recording(twice).check(mcpp.Participant("clerk"))


@given(json_values())
def test_a_value_has_its_own_shape(value: Any) -> None:
    assert shape(value) == shape(json.loads(json.dumps(value)))


@given(envelopes(), st.text(max_size=5))
def test_an_envelope_is_like_itself_under_new_ids(envelope: Envelope, suffix: str) -> None:
    own = set() if envelope.context is None else {envelope.context.id}
    ids = IdMap({"old": "new"})
    assert are_alike(ids.with_pair(envelope, envelope, own).translate(envelope), envelope, "kind")
    assert IdMap().translate(envelope) is envelope


async def test_a_check_that_would_compare_nothing_is_refused(log: list[Envelope]) -> None:
    with pytest.raises(RecordingError, match="no envelope of 'clark' to compare"):
        await Recording(log).check(mcpp.Participant("clark"))
    with pytest.raises(RecordingError, match="no envelope of 'clerk'"):
        await Recording([]).check(clerk())
    with pytest.raises(ValueError, match="compare must be one of"):
        await Recording(log).check(clerk(), compare="bogus")  # type: ignore[arg-type]
