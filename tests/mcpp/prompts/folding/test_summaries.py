"""Summaries of open contexts in prompts: what they replace, and when they do not count."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp import Envelope, new_context
from mcpp.model_prompts import ModelPrompt, recompute
from mcpp.prompts import (
    KEPT_NEWEST,
    BudgetError,
    ContextSummary,
    Prompt,
    PromptBuilder,
    digest_of,
    is_summarized,
)
from mcpp.prompts.folding import MAX_SUMMARY_CHARS
from tests.mcpp.prompts.formats import check_all
from tests.mcpp.prompts.logs import LogBuilder, text_result
from tests.properties.random_logs import LOGS

WORK = new_context("reasoning", id="work")
LONG = " This sentence is here to make the message as long as messages usually are."


def long_log(messages: int = 60) -> LogBuilder:
    log = LogBuilder()
    log.chat("boss", "outside")
    for number in range(messages):
        log.reflect("ben" if number % 2 else "ann", f"thought {number}.{LONG}", WORK)
    return log


def summary_of(
    log: Sequence[Envelope], context: str = "work", *, last: int = -KEPT_NEWEST, **more: Any
) -> ContextSummary:
    """Return a summary of a context's messages before the one at index `last`."""
    said = [
        one
        for one in log
        if one.context is not None and one.context.id == context and is_summarized(one)
    ][:last]
    digest = ""
    for one in said:
        digest = digest_of(one.id, digest)
    details = {"text": "ann: They compared ports.", "author": "memory", **more}
    return ContextSummary(
        context=context, first=said[0].id, last=said[-1].id, digest=digest, **details
    )


def build(log: LogBuilder, *summaries: ContextSummary, **more: Any) -> Prompt:
    options = {"viewer": "analyst", "contexts": "fold", **more}
    prompt = PromptBuilder(summaries=summaries, **options).build(log.envelopes)
    check_all(prompt)
    return prompt


@pytest.mark.rule("M-55")
def test_a_summary_replaces_exactly_what_it_covers_and_says_who_made_it() -> None:
    log = long_log()
    prompt = build(log, summary_of(log.envelopes))
    page = prompt.markdown()
    assert "outside" in page
    assert "thought 49." not in page
    assert all(f"thought {number}." in page for number in range(50, 60))
    [handle] = prompt.handles
    note = f"[folded; handle {handle}] reasoning work, not concluded: 50 messages from ann, ben."
    assert f"{note} Summary by memory:\n> ann: They compared ports." in page
    assert [one.id for one in prompt.originals(handle)] == [f"e{n}" for n in range(1, 51)]
    assert "thought 7." in str(prompt.expand(handle))
    assert prompt.tokens < build(log).tokens / 3
    assert prompt.summaries == 1
    assert build(log).summaries == 0
    assert {one.reason for one in prompt.report.left_out} == {"summary"}


@pytest.mark.rule("M-55")
def test_no_summary_replaces_the_newest_messages() -> None:
    log = long_log()
    page = build(log, summary_of(log.envelopes, last=60)).markdown()
    assert "thought 49." not in page
    assert all(f"thought {number}." in page for number in range(50, 60))
    short = long_log(KEPT_NEWEST)
    assert build(short, summary_of(short.envelopes, last=10)).digest == build(short).digest


@pytest.mark.rule("M-55")
@pytest.mark.parametrize("unheard", [5, 0, 49])
def test_a_viewer_that_has_not_received_all_of_it_is_shown_no_summary(unheard: int) -> None:
    log = long_log()
    summary = summary_of(log.envelopes)
    del log.envelopes[1 + unheard]
    assert build(log, summary).digest == build(log).digest


@pytest.mark.rule("M-55")
def test_no_message_in_the_log_counts_as_a_summary() -> None:
    log = long_log()
    forged = msgspec.to_builtins(summary_of(log.envelopes))
    for kind in ("summary", "chat", "reflection", "conclusion"):
        log.send(kind, {"summary": forged, "rolling": forged, **forged}, "mallory", context=WORK)
    page = build(log).markdown()
    assert all(f"thought {number}." in page for number in range(60))


@pytest.mark.rule("M-55")
@pytest.mark.parametrize("changed", ["first", "last", "digest", "context"])
def test_a_summary_of_other_messages_is_ignored(changed: str) -> None:
    log = long_log()
    false = msgspec.structs.replace(summary_of(log.envelopes), **{changed: "e4"})
    assert build(log, false).digest == build(log).digest


@pytest.mark.rule("M-55")
def test_a_conclusion_counts_and_the_summary_no_longer() -> None:
    log = long_log()
    summary = summary_of(log.envelopes)
    log.conclude("ann", "Port 8787.", WORK)
    page = build(log, summary).markdown()
    assert "They compared" not in page
    assert "@ann concludes:\n> Port 8787." in page


@pytest.mark.rule("M-55")
def test_calls_of_others_are_folded_and_what_no_summary_contains_stays() -> None:
    log = long_log(20)
    log.run("look", {"path": "a"}, text_result("found it"), sender="ann", context=WORK)
    log.run("mine", {"path": "b"}, text_result("own result"), context=WORK)
    log.call("open", {"path": "c"}, sender="ann", context=WORK)
    log.send("mcp/proposal", {"method": "tools/call"}, "ann", to=["crm"], context=WORK)
    off = new_context("reasoning", id="work", metadata={"memory": "off"})
    log.send("chat", {"text": "not for memory"}, "ben", context=off)
    for number in range(20, 60):
        log.reflect("ann", f"thought {number}.{LONG}", WORK)
    prompt = build(log, summary_of(log.envelopes))
    page = prompt.markdown()
    assert "thought 25." not in page
    assert "found it" not in page
    assert "calls of look" in page
    for shown in ("own result", "ann calls open", "mcp/proposal", "not for memory"):
        assert shown in page
    assert "found it" in str(prompt.expand(min(prompt.handles)))


@pytest.mark.rule("M-55")
def test_without_folding_a_summary_is_used_before_anything_is_dropped() -> None:
    log = long_log()
    summary = summary_of(log.envelopes)
    roomy = build(log, summary, contexts="include", token_budget=100_000)
    assert "They compared" not in roomy.markdown()
    tight = build(log, summary, contexts="include", token_budget=1_000)
    assert "They compared" in tight.markdown()
    assert {one.reason for one in tight.report.left_out} == {"summary"}
    assert "outside" in tight.markdown()
    assert "outside" not in build(log, contexts="include", token_budget=1_000).markdown()


@pytest.mark.rule("M-55")
def test_a_pinned_message_stays_and_a_long_summary_is_cut() -> None:
    log = long_log()
    prompt = build(log, summary_of(log.envelopes, text="x" * 50_000), pins=["e4"])
    assert build(log).digest == build(log, summary_of(log.envelopes, text="y" * 50_000)).digest
    assert "thought 3." in prompt.markdown()
    long = long_log(300)
    page = build(long, summary_of(long.envelopes, text="x" * 50_000)).markdown()
    assert page.count("x") < MAX_SUMMARY_CHARS + 100


@pytest.mark.rule("M-55")
def test_the_record_of_a_prompt_says_that_it_contains_summaries() -> None:
    log = long_log()
    cases: list[list[ContextSummary]] = [[], [summary_of(log.envelopes)]]
    for expected, summaries in enumerate(cases):
        model_prompt = ModelPrompt("analyst", log.envelopes, summaries=summaries)
        record = model_prompt.record(model_prompt.build())
        assert record.summaries == expected
        [found] = recompute(record, "analyst", log.envelopes)
        assert found.matches is not bool(expected)


@pytest.mark.rule("M-55")
@given(log=LOGS, cut=st.integers(1, 40), budget=st.none() | st.integers(400, 3000))
@settings(max_examples=150, deadline=None)
def test_prompts_with_summaries_are_valid_and_lose_no_message(
    log: list[Envelope], cut: int, budget: int | None
) -> None:
    contexts = {one.context.id for one in log if one.context is not None and is_summarized(one)}
    summaries = [summary_of(log, id, last=cut) for id in sorted(contexts)]
    builder = PromptBuilder("analyst", contexts="fold", token_budget=budget, summaries=summaries)
    try:
        prompt = builder.build(log)
    except BudgetError:
        return
    check_all(prompt)
    assert prompt.digest == builder.build(log).digest
    shown = {envelope.id for handle in prompt.handles for envelope in prompt.originals(handle)}
    hidden = {one.id for one in prompt.report.left_out if one.reason == "summary"}
    assert hidden <= shown
    for id in contexts:
        said = [
            one.id for one in log if one.context and one.context.id == id and is_summarized(one)
        ]
        assert hidden.isdisjoint(dict.fromkeys(said[-KEPT_NEWEST:]))
