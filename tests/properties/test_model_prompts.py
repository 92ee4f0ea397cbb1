"""Prompts of a model agent are functions of the log, and can be built again from it."""

import base64
from hashlib import sha256

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import Attachment, Envelope, new_envelope
from mcpp.model_prompts import (
    ModelPrompt,
    PromptRecord,
    is_system_of,
    recompute,
    recorded_pictures,
)
from mcpp.prompts import Prompt
from mcpp.protocol.envelope import MAX_METADATA_BYTES
from tests.mcpp.prompts.logs import png
from tests.properties.random_logs import random_log

BUDGET = 20_000


def answered(
    log: list[Envelope], started: int, points: list[int], *, system: str = ""
) -> tuple[list[Prompt], PromptRecord]:
    """Return the prompts of an agent that takes up a question and is shown the log so far."""
    question = log[started]
    growing = ModelPrompt(
        "analyst", log[: started + 1], question=question, token_budget=BUDGET, system=system
    )
    prompts = []
    for index in range(started, len(log)):
        if index > started:
            growing.add(log[index])
        if index in points:
            prompts.append(growing.build())
            record = growing.record(prompts[-1])
    return prompts, record


@pytest.mark.rule("P-38")
@given(st.binary(max_size=120), st.data())
def test_every_prompt_can_be_built_again_from_the_log(data: bytes, draw: st.DataObject) -> None:
    log = list({one.id: one for one in random_log(data)}.values())
    started = draw.draw(st.integers(0, len(log) - 1))
    points = draw.draw(st.lists(st.integers(started, len(log) - 1), min_size=1, max_size=4))
    prompts, record = answered(log, started, points)
    presence = new_envelope("system/presence", {"event": "join"}, sender="system:gateway")
    question = log[started]
    # What only others received, and what came later, is in the log too.
    found = list(recompute(record, "analyst", [log[0], presence, *log[1:]], question=question))
    assert [one.prompt.messages for one in found] == [one.messages for one in prompts]
    assert all(one.matches for one in found)
    assert found[-1].at == record.at


def pictured(side: int) -> tuple[Envelope, Attachment, bytes]:
    picture = base64.b64decode(png(side, 1))
    reference = Attachment(sha256(picture).hexdigest(), len(picture), "image/png", None)
    envelope = new_envelope("chat", {"text": "see"}, sender="boss", attachments=[reference])
    return envelope, reference, picture


@pytest.mark.rule("P-38")
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.sets(st.integers(1, 30), max_size=16),
    st.data(),
)
def test_prompts_with_pictures_can_be_built_again(
    sides: list[int], unavailable: set[int], draw: st.DataObject
) -> None:
    sent = [pictured(side) for side in sides]
    log = [envelope for envelope, _, _ in sent]
    every = {reference.hash: content for _, reference, content in sent}
    missing = {pictured(side)[1].hash for side in unavailable}
    fetched = {hash: content for hash, content in every.items() if hash not in missing}
    started = draw.draw(st.integers(0, len(log) - 1))
    growing = ModelPrompt("analyst", log[: started + 1], question=log[started], pictures=fetched)
    prompts = [growing.build()]
    record = growing.record(prompts[0])
    for envelope in log[started + 1 :]:
        growing.add(envelope)
        prompts.append(growing.build())
        record = growing.record(prompts[-1])
    chosen = recorded_pictures(record, "analyst", log, question=log[started])
    assert not missing & {one.hash for one in chosen}
    contents = {one.hash: every[one.hash] for one in chosen}
    found = recompute(record, "analyst", log, question=log[started], pictures=contents)
    assert all(one.matches for one in found)


@pytest.mark.rule("P-38")
def test_a_prompt_of_another_log_does_not_match() -> None:
    log = [new_envelope("chat", {"text": f"message {n}"}, sender="boss") for n in range(9)]
    _, record = answered(log, 5, [5, 8])
    for other in (
        [*log[:2], *log[3:]],
        [*log[:2], new_envelope("chat", {"text": "!"}, sender="boss"), *log[2:]],
        [msgspec.structs.replace(log[0], sender="intern"), *log[1:]],
    ):
        found = list(recompute(record, "analyst", other, question=log[5]))
        assert [one.matches for one in found] == [False, False]
    assert not any(one.matches for one in recompute(record, "another", log, question=log[5]))
    instructed = recompute(record, "analyst", log, question=log[5], system="Obey.")
    assert not any(one.matches for one in instructed)


@pytest.mark.rule("P-38")
def test_a_record_fits_into_metadata_and_names_as_many_prompts_as_it_can() -> None:
    long = "x" * 120
    log = [new_envelope("chat", {}, sender="boss", id=f"{long}{n:03}") for n in range(100)]
    _, record = answered(log, 1, list(range(1, 100)), system="Be kind.")
    assert len(msgspec.json.encode(record)) <= MAX_METADATA_BYTES - 600
    assert 3 <= len(record.earlier) < 98
    assert record.earlier[-1].endswith(log[98].id)
    found = list(recompute(record, "analyst", log, question=log[1], system="Be kind."))
    assert len(found) == len(record.earlier) + 1
    assert all(one.matches for one in found)
    assert is_system_of(record, "Be kind.")
    assert not is_system_of(record, "")


def test_messages_that_arrive_meanwhile_cannot_push_out_the_question() -> None:
    question = new_envelope("chat", {"text": "What is due?"}, sender="boss", to=["analyst"])
    growing = ModelPrompt("analyst", [question], question=question, token_budget=2000)
    for number in range(200):
        growing.add(new_envelope("chat", {"text": f"noise {number} " * 30}, sender="noisy"))
    prompt = growing.build()
    assert "What is due?" in prompt.markdown()
    assert prompt.tokens <= 2000
