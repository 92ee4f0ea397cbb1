"""Image limits: the newest images are shown, older ones are described."""

import base64
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest

from mcpp import Attachment, new_envelope
from mcpp.model_prompts import PictureChoice
from mcpp.prompts import CachePolicy, ImageBlock, Prompt, PromptBuilder, ResultBlock, TextBlock
from mcpp.prompts.attached import MARKS
from mcpp.prompts.budget import MAX_IMAGES, MAX_IMAGES_CHARS
from mcpp.transient import transient
from tests.mcpp.prompts.formats import check_all
from tests.mcpp.prompts.logs import LogBuilder, png

NEVER = CachePolicy(further_calls=0)


def shots(*sides: int, padding: int = 60) -> dict[str, Any]:
    return {
        "content": [
            {"type": "image", "data": png(side, 1, padding), "mimeType": "image/png"}
            for side in sides
        ]
    }


def shown(prompt: Prompt) -> list[ImageBlock]:
    return [
        part
        for message in prompt.messages
        for block in message.blocks
        for part in (block.content if isinstance(block, ResultBlock) else (block,))
        if isinstance(part, ImageBlock)
    ]


def build(log: LogBuilder, **options: Any) -> Prompt:
    prompt = PromptBuilder("analyst", **options).build(log.envelopes)
    check_all(prompt)
    return prompt


def test_the_newest_images_stay_and_the_report_lists_the_rest() -> None:
    log = LogBuilder()
    responses = [log.run("shot", {"n": n}, shots(n)) for n in range(1, 131)]
    prompt = build(log)
    sizes = [image.data for image in shown(prompt)]
    assert sizes == [png(n, 1) for n in range(111, 131)]
    changed = [(change.id, change.reason) for change in prompt.report.changed]
    assert changed == [(response, "images") for response in responses[:110]]


def test_a_described_image_is_returned_by_its_handle() -> None:
    log = LogBuilder()
    first = log.run("shot", {}, shots(1, 2))
    for n in range(3, MAX_IMAGES + 2):
        log.run("shot", {"n": n}, shots(n))
    prompt = build(log)
    handle = prompt.report.changed[0].handle
    assert f"[cut; image/png; handle {handle}]" in prompt.markdown()
    assert [one.id for one in prompt.originals(handle)] == [first]
    assert prompt.expand(handle)["content"] == shots(1, 2)["content"]


def test_the_last_images_of_one_result_stay() -> None:
    log = LogBuilder()
    log.run("film", {}, shots(*range(1, 31)))
    assert [image.data for image in shown(build(log))] == [png(n, 1) for n in range(11, 31)]


def test_images_are_removed_in_steps_so_that_the_beginning_rarely_changes() -> None:
    log = LogBuilder()
    numbers = []
    for n in range(1, 41):
        log.run("shot", {"n": n}, shots(n))
        numbers.append(len(shown(build(log))))
    assert max(numbers) == MAX_IMAGES
    assert min(numbers[MAX_IMAGES:]) == MAX_IMAGES - 4
    assert sum(one > two for one, two in pairwise(numbers)) == 4


def test_all_images_together_fit_a_request() -> None:
    log = LogBuilder()
    for n in range(1, 13):
        log.run("shot", {"n": n}, shots(n, padding=3_600_000))
    images = shown(build(log))
    assert images[-1].data == png(12, 1, 3_600_000)
    assert MAX_IMAGES_CHARS / 2 < sum(len(image.data) for image in images) <= MAX_IMAGES_CHARS


def test_a_result_with_described_images_still_collapses_under_a_budget() -> None:
    log = LogBuilder()
    content = [{"type": "text", "text": "many words " * 200}, *shots(*range(1, 31))["content"]]
    log.run("film", {}, transient({"content": content}, "a film"))
    log.chat("analyst", "I have seen it.")
    assert {one.reason for one in build(log, cache=NEVER).report.changed} == {"images"}
    prompt = build(log, cache=NEVER, token_budget=500)
    assert [one.reason for one in prompt.report.changed] == ["unpaired"]
    assert shown(prompt) == []


def test_attached_pictures_are_shown_where_their_bytes_are_given_and_named_otherwise() -> None:
    picture = base64.b64decode(png(9, 1))
    hash = sha256(picture).hexdigest()
    reference = Attachment(hash, len(picture), "image/png", "shot.png")
    log = LogBuilder()
    by_reference = {
        "content": [{"type": "image", "data": "", "mimeType": "image/png"}],
        "_meta": {MARKS: [{"pointer": "/content/0/data", "hash": hash, "encoding": "base64"}]},
    }
    response = log.run("shot", {"n": 1}, by_reference)
    envelopes = [
        new_envelope(
            one.kind,
            one.payload,
            sender=one.sender,
            to=one.to,
            id=one.id,
            correlation_id=one.correlation_id,
            attachments=[reference],
        )
        if one.id == response
        else one
        for one in log.envelopes
    ]
    envelopes.append(new_envelope("chat", {"text": "see"}, sender="bob", attachments=[reference]))
    given = PromptBuilder("analyst", contents={hash: picture}).build(envelopes)
    check_all(given)
    assert [image.data for image in shown(given)] == [png(9, 1)] * 2
    named = PromptBuilder("analyst", contents={"0" * 64: b"other"}).build(envelopes)
    check_all(named)
    assert shown(named) == []
    text = named.markdown()
    assert text.count(f"[attached: {reference}]") == 2


def pictured(side: int, *, sender: str = "bob", data: bytes | None = None) -> tuple[Any, bytes]:
    picture = base64.b64decode(png(side, 1)) if data is None else data
    hash = sha256(picture).hexdigest()
    reference = Attachment(hash, len(picture), "image/png", f"{side}.png")
    message = new_envelope("chat", {"text": f"see {side}"}, sender=sender, attachments=[reference])
    return message, picture


def test_pictures_of_messages_follow_their_text_in_every_api() -> None:
    message, picture = pictured(9)
    own, _ = pictured(9, sender="analyst")
    broken, garbage = pictured(7, data=b"no picture")
    contents = {sha256(one).hexdigest(): one for one in (picture, garbage)}
    prompt = PromptBuilder("analyst", contents=contents).build([message, own, broken])
    check_all(prompt)
    text, image = prompt.messages[0].blocks
    assert isinstance(text, TextBlock)
    assert "[attached: 9.png" in text.text
    assert image == ImageBlock(png(9, 1), "image/png")
    assert len(shown(prompt)) == 1  # neither the viewer's own, nor what is no picture
    [asked, *_] = prompt.openai_responses()["input"]
    assert [part["type"] for part in asked["content"]] == ["input_text", "input_image"]
    assert prompt.tokens > PromptBuilder("analyst").build([message, own, broken]).tokens


def test_older_pictures_of_messages_are_described_and_returned_by_their_handles() -> None:
    sent = [pictured(side) for side in range(1, MAX_IMAGES + 2)]
    contents = {sha256(picture).hexdigest(): picture for _, picture in sent}
    prompt = PromptBuilder("analyst", contents=contents).build([message for message, _ in sent])
    check_all(prompt)
    assert len(shown(prompt)) <= MAX_IMAGES
    change = prompt.report.changed[0]
    assert (change.id, change.reason) == (sent[0][0].id, "images")
    assert f"handle {change.handle}" in prompt.markdown()
    content = prompt.expand(change.handle)["content"]
    assert content[1] == {"type": "image", "data": png(1, 1), "mimeType": "image/png"}


def test_pictures_are_chosen_by_the_log_alone_and_within_bounds() -> None:
    log = [pictured(side)[0] for side in range(1, 31)]
    result, _ = pictured(40)
    for_others = new_envelope(
        "mcp/response:tools/call:[shot]", {}, sender="cam", to=["bob"],
        correlation_id="x", attachments=result.attachments,
    )  # fmt: skip
    choice = PictureChoice("analyst")
    chosen = choice.begin([*log, for_others], None)
    assert [one.name for one in chosen] == [f"{side}.png" for side in range(30, 10, -1)]
    later = [one for side in range(20, 90) for one in choice.add(pictured(side)[0])]
    assert [one.name for one in later] == [f"{side}.png" for side in range(31, 71)]
    large = Attachment("0" * 64, 3_750_001, "image/png", None)
    fitting = Attachment("1" * 64, 3_750_000, "image/png", None)
    both = new_envelope("chat", {"text": "x"}, sender="bob", attachments=[large, fitting])
    assert PictureChoice("analyst").add(both) == [fitting]


@pytest.mark.rule("A-13")
def test_a_private_picture_for_others_is_not_chosen() -> None:
    private = Attachment("1" * 64, 5, "image/png", None, private=True)
    said = new_envelope("chat", {"text": "x"}, sender="bob", to=["carol"], attachments=[private])
    assert PictureChoice("analyst").add(said) == []
    assert PictureChoice("carol").add(said) == [private]
