"""Server side of transient results: marks, summaries, workflows, scratch."""

import json
from typing import Any

import pytest

from mcpp.transient import (
    Hint,
    Mark,
    Scratch,
    TransientRule,
    Workflow,
    consumed,
    mark_by_rule,
    read_hints,
    read_mark,
    summarize,
    transient,
    with_context_hints,
)
from tests.mcpp.prompts.logs import png, text_result


def records(count: int, first: int = 72, **around: Any) -> dict[str, Any]:
    rows = [{"id": first + n, "title": f"activity {n}"} for n in range(count)]
    value = {"records": rows, **around}
    return {"content": [{"type": "text", "text": json.dumps(value)}], "structuredContent": value}


def embedded(text: str | None) -> dict[str, Any]:
    content = {"blob": ""} if text is None else {"text": text}
    return {"type": "resource", "resource": {"uri": "file:///report", **content}}


LINKS = [{"type": "resource_link", "uri": "file:///a", "name": "a"}] * 2


@pytest.mark.rule("T-01")
def test_marks_are_written_under_both_names() -> None:
    meta = transient(text_result("x"), "short")["_meta"]
    assert meta["context"] == {"lifecycle": "transient", "summary": "short"}
    assert meta["mcpp/context"] == meta["context"]
    hints = with_context_hints(text_result("x"), [Hint("a", "b", 2)])["_meta"]
    assert hints["contextHints"] == [
        {"step": 2, "tool": "a", "lifecycle": "transient", "consumedBy": "b"}
    ]
    assert hints["mcpp/contextHints"] == hints["contextHints"]


@pytest.mark.rule("T-01")
def test_the_prefixed_mark_is_read_first() -> None:
    meta = {"context": {"consumed": True}, "mcpp/context": {"lifecycle": "transient"}}
    assert read_mark({"_meta": meta}) == Mark(transient=True)
    pairs = {"mcpp/contextHints": [Hint("a", "b").to_json()], "contextHints": "another's"}
    assert read_hints({"_meta": pairs}) == [Hint("a", "b")]


@pytest.mark.rule("T-01")
def test_marking_keeps_other_metadata_and_the_given_result() -> None:
    result = text_result("x", _meta={"theirs": 1})
    marked = consumed(transient(result, "s"), ["id"])
    assert marked["_meta"]["theirs"] == 1
    assert read_mark(marked) == Mark(True, "s", True, ("id",))
    assert result["_meta"] == {"theirs": 1}


@pytest.mark.rule("T-02")
def test_the_summary_has_the_source_protocols_format() -> None:
    text = summarize(records(15, page=1, pages=9), noun="activity")
    assert text == "15 activity records (page 1/9, IDs: 72, 73, 74…)"


@pytest.mark.rule("T-02")
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (text_result('[{"id": 1}]'), "1 record (IDs: 1)"),
        ({"structuredContent": {"activities": [{"name": "a"}]}}, "1 activities (IDs: a)"),
        (text_result("hello"), "5 characters of text: hello"),
        ({"content": []}, "nothing"),
        ({"content": [{"type": "image"}]}, "1 image"),
        ({"content": [embedded("# Report")]}, "8 characters of text: # Report"),
        ({"content": [embedded("id,a\n7,x\n8,y")]}, "2 records (IDs: 7, 8)"),
        ({"content": [{"type": "audio"}, embedded(None), *LINKS]}, "1 recording, 1 file, 2 links"),
        ({"structuredContent": {"rows": [1], "pagination": {"page": 4}}}, "1 record (page 4)"),
    ],
)
def test_any_result_can_be_summarized(result: dict[str, Any], expected: str) -> None:
    assert summarize(result).replace("rows", "records") == expected


@pytest.mark.rule("T-03")
def test_five_records_are_marked_and_four_are_not() -> None:
    assert read_mark(mark_by_rule(records(5), "activity")).summary == (
        "5 activity records (IDs: 72, 73, 74…)"
    )
    assert not read_mark(mark_by_rule(records(4))).transient
    assert read_mark(mark_by_rule(records(4), TransientRule(min_records=4))).transient


@pytest.mark.rule("T-03")
def test_a_long_text_is_marked_for_the_tokens_it_saves() -> None:
    long = text_result("a sentence about something " * 200)
    assert read_mark(mark_by_rule(long)).transient
    assert not read_mark(mark_by_rule(long, TransientRule(min_saved_tokens=9999))).transient


@pytest.mark.rule("T-03")
def test_a_large_image_or_embedded_file_is_marked_for_the_tokens_it_saves() -> None:
    def is_marked(block: dict[str, Any]) -> bool:
        return read_mark(mark_by_rule({"content": [block]})).transient

    for text, count in (("short", False), ("a sentence about something " * 200, True)):
        assert is_marked(embedded(text)) == count
    for side, count in ((16, False), (1000, True)):
        image = {"type": "image", "data": png(side, side), "mimeType": "image/png"}
        assert is_marked(image) == count
    assert not is_marked({"type": "image", "data": None})


@pytest.mark.rule("T-03")
def test_the_rule_does_not_mark_errors_or_results_already_marked_or_opted_out() -> None:
    assert "_meta" not in mark_by_rule({**records(50), "isError": True})
    assert "_meta" not in mark_by_rule(records(50), rule=False)
    by_hand = transient(records(50), "mine")
    assert mark_by_rule(by_hand) == by_hand


@pytest.mark.rule("T-03")
def test_a_large_result_that_has_consumed_others_is_transient_too() -> None:
    assert read_mark(mark_by_rule(consumed(records(50), ["c1"]))) == Mark(
        True, summarize(records(50)), True, ("c1",)
    )
    assert not read_mark(mark_by_rule(consumed(records(4)))).transient


SOURCE_STEPS: list[Any] = [
    {"order": 1, "title": "Look around"},
    {
        "order": 2,
        "title": "Fetch activities",
        "tool": "search_records",
        "loopGroup": "fetch-analyze",
        "contextHint": {"lifecycle": "transient", "consumedBy": "store_analysis_memory"},
    },
    {"order": 3, "title": "Store", "tool": "store_analysis_memory", "loopGroup": "fetch-analyze"},
]


@pytest.mark.rule("T-04")
@pytest.mark.parametrize("order", [2, 3])
def test_a_loops_steps_are_returned_together_with_their_hints(order: int) -> None:
    result = Workflow(SOURCE_STEPS).get_workflow_step(order)
    assert result["content"][0]["text"].startswith("## Steps 2–3 — loop")
    assert read_hints(result) == [Hint("search_records", "store_analysis_memory", 2)]


@pytest.mark.rule("T-04")
def test_a_step_outside_a_loop_is_returned_alone_and_an_unknown_one_is_an_error() -> None:
    workflow = Workflow(SOURCE_STEPS)
    assert workflow.get_workflow_step(1) == text_result("## Step 1\n1. **Look around**")
    assert workflow.get_workflow_step(9)["isError"]


def test_a_workflow_refuses_a_duplicate_order() -> None:
    with pytest.raises(ValueError, match="order 1"):
        Workflow([{"order": 1, "title": "a"}, {"order": 1, "title": "b"}])


@pytest.mark.rule("T-20")
def test_scratch_returns_a_reference_that_another_call_redeems() -> None:
    scratch = Scratch()
    lean = scratch.keep(records(15, page=1, pages=9))
    assert "activity 3" not in json.dumps(lean)
    ref = lean["structuredContent"]["scratch_ref"]
    assert ref in lean["content"][0]["text"]
    assert scratch.redeem({"scratch_ref": ref}) == records(15, page=1, pages=9)
    assert scratch.keep(records(15, page=1, pages=9)) == lean


@pytest.mark.rule("T-20")
def test_a_stored_result_cannot_be_modified() -> None:
    scratch = Scratch()
    given = records(5)
    ref = scratch.keep(given)["structuredContent"]["scratch_ref"]
    given["content"].clear()
    scratch.redeem(ref)["structuredContent"].clear()
    assert scratch.redeem(ref) == records(5)


@pytest.mark.rule("T-20")
def test_scratch_evicts_the_oldest_first_and_reports_it() -> None:
    scratch = Scratch(max_results=2)
    refs = [scratch.keep(records(n))["structuredContent"]["scratch_ref"] for n in (5, 6, 7)]
    assert [bool(scratch.redeem(ref).get("isError")) for ref in refs] == [True, False, False]
    assert scratch.redeem({})["isError"]
    failed = text_result("no", isError=True)
    assert scratch.keep(failed) == failed


@pytest.mark.rule("T-01")
def test_another_vendors_value_under_the_bare_name_stays() -> None:
    marked = transient({"content": [], "_meta": {"context": "theirs"}}, "a page")
    assert marked["_meta"]["context"] == "theirs"
    assert read_mark(marked).transient


@pytest.mark.rule("T-20")
def test_marks_of_a_call_are_on_the_answer_and_those_of_its_data_stay_with_it() -> None:
    scratch = Scratch()
    hints = [Hint("search", "store")]
    data = transient(records(15) | {"_meta": {"vendor": 1}}, "15 records")
    answer = scratch.keep(with_context_hints(consumed(data, ["c1"]), hints))
    assert read_mark(answer) == Mark(consumed=True, consumes=("c1",))
    assert read_hints(answer) == hints
    assert scratch.redeem(answer["structuredContent"]) == data
    plain = scratch.keep(consumed(records(5)))
    assert read_mark(plain) == Mark(consumed=True)
    assert scratch.redeem(plain["structuredContent"]) == records(5)


@pytest.mark.rule("T-25")
def test_invalid_unicode_is_replaced_wherever_a_result_is_encoded() -> None:
    half = {"content": [], "structuredContent": {"text": "\ud800 " * 3000}}
    assert read_mark(mark_by_rule(half)).transient
    scratch = Scratch()
    kept = scratch.keep(half)["structuredContent"]
    assert scratch.redeem(kept)["structuredContent"] == {"text": "\ufffd " * 3000}
