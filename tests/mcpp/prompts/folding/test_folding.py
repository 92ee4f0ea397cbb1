"""Sub-contexts in a prompt: included, excluded, only conclusions, or folded."""

from typing import Any

import pytest

from mcpp import filters, new_context
from mcpp.prompts import Prompt, PromptBuilder
from mcpp.prompts.builder import ContextMode
from mcpp.protocol.envelope import Context
from mcpp.transient import consumed, transient
from tests.mcpp.prompts.formats import check_all
from tests.mcpp.prompts.logs import LogBuilder, text_result

OUTER = new_context("reasoning", id="outer")
INNER = new_context("detail", id="inner", parent="outer")


def sample() -> LogBuilder:
    log = LogBuilder()
    log.chat("boss", "main one")
    log.reflect("b", "outer one", OUTER)
    log.reflect("b", "inner one", INNER)
    log.run("look", {}, text_result("inner data"), sender="b", context=INNER)
    log.conclude("b", "inner done", INNER)
    log.reflect("b", "outer two", OUTER)
    log.chat("boss", "main two")
    return log


def build(log: LogBuilder, contexts: ContextMode = "fold", **more: int) -> Prompt:
    builder = PromptBuilder("analyst", contexts=contexts, token_budget=more.get("budget"))
    prompt = builder.build(log.envelopes)
    check_all(prompt)
    return prompt


def test_exclude_shows_only_the_main_context() -> None:
    page = build(sample(), "exclude").markdown()
    assert "main one" in page
    assert "outer" not in page


def test_conclusions_shows_conclusions_and_the_main_context() -> None:
    page = build(sample(), "conclusions").markdown()
    assert "main two" in page
    assert "inner done" in page
    assert "inner one" not in page


@pytest.mark.parametrize("mode", ["include", "exclude", "conclusions", "fold"])
def test_an_answer_to_a_context_names_the_context(mode: ContextMode) -> None:
    log = sample()
    denied = {"error": "Operation denied after security analysis"}
    log.send("mcp/response:tools/call", denied, "b", correlation_id="outer")
    log.chat("boss", "Good.", correlation_id="outer")
    page = build(log, mode).markdown()
    assert '@b (mcp/response:tools/call on reasoning):\n> {"error":"Operation denied' in page
    assert "@boss (on reasoning):\n> Good." in page


@pytest.mark.parametrize("mode", ["include", "conclusions", "fold"])
def test_all_of_a_conclusion_is_shown(mode: ContextMode) -> None:
    log = LogBuilder()
    log.send("conclusion", {"decision": "Deny", "risk": "high"}, "b", context=OUTER)
    assert '> Deny\n> {"risk":"high"}' in build(log, mode).markdown()


def test_a_concluded_context_folds_to_its_conclusion_and_an_outline() -> None:
    page = build(sample()).markdown()
    assert "inner one" not in page
    assert "inner data" not in page
    assert (
        "detail inner: 4 messages from b, crm; calls of look. @b concludes:\n> inner done" in page
    )
    assert "outer one" in page
    assert "outer two" in page


def test_an_outer_context_folds_its_inner_contexts_too() -> None:
    log = sample()
    log.conclude("b", "all done", OUTER)
    prompt = build(log)
    page = prompt.markdown()
    assert page.count("[folded") == 2  # the system text explains it once
    assert "inner done" not in page
    assert "7 messages from b, crm; calls of look; 1 inner contexts" in page
    assert "> all done" in page


def test_a_folded_context_expands_to_its_envelopes() -> None:
    log = sample()
    prompt = build(log)
    (change,) = prompt.report.changed
    originals = prompt.originals(change.handle)
    assert [one.id for one in originals] == [one.id for one in log.envelopes[2:6]]
    assert "> " in prompt.expand(change.handle)["content"][0]["text"]


def test_only_the_creator_concludes_a_context() -> None:
    log = LogBuilder()
    log.reflect("b", "a thought", OUTER)
    log.conclude("mallory", "replaced", OUTER)
    page = build(log).markdown()
    assert "a thought" in page
    assert "[folded; handle" not in page.partition("# 0")[2]


def test_messages_after_a_conclusion_are_shown() -> None:
    log = sample()
    log.reflect("b", "one more thing", INNER)
    assert "one more thing" in build(log).markdown()


def test_an_id_reused_after_expiry_is_another_context() -> None:
    log = LogBuilder()
    log.reflect("b", "first life", Context(id="k"))
    log.conclude("b", "first end", Context(id="k"))
    log.send("system/context", {"event": "expired", "context": {"id": "k"}}, "system:gateway")
    log.reflect("c", "second life", Context(id="k"))
    log.conclude("b", "not the creator now", Context(id="k"))
    page = build(log).markdown()
    assert "first life" not in page
    assert "second life" in page
    assert "first end" in page


def test_the_viewers_own_calls_fold_with_their_results_once_seen() -> None:
    log = LogBuilder()
    log.reflect("b", "thinking", OUTER)
    log.run("look", {}, text_result("seen data"), context=OUTER)
    log.chat("analyst", "I see.", context=OUTER)
    log.run("look", {"again": 1}, text_result("new data"), context=OUTER)
    log.conclude("b", "done", OUTER)
    page = build(log).markdown()
    assert "seen data" not in page
    assert "new data" in page


def test_a_late_result_folds_with_its_call() -> None:
    log = LogBuilder()
    log.reflect("b", "thinking", OUTER)
    call = log.call("look", context=OUTER)
    log.conclude("b", "done", OUTER)
    log.answer(call, text_result("late data"), context=None)
    log.chat("analyst", "Seen.")
    page = build(log).markdown()
    assert "late data" not in page
    assert "calls** `crm__look" not in page


@pytest.mark.parametrize(
    ("strategy", "shown"),
    [
        (filters.everything, {"main one", "outer one", "inner one", "inner done"}),
        (filters.main_only, {"main one"}),
        (filters.with_types("reasoning"), {"main one", "outer one"}),
        (filters.conclusions, {"inner done"}),
        (filters.in_context("inner"), {"inner one", "inner done"}),
    ],
)
def test_the_five_strategies_are_filters(strategy: filters.Filter, shown: set[str]) -> None:
    page = PromptBuilder("analyst", filter=strategy).build(sample().envelopes).markdown()
    assert {
        text for text in ("main one", "outer one", "inner one", "inner done") if text in page
    } == shown


@pytest.mark.parametrize(
    "pins",
    [
        ["e1"],
        ["e2"],
        lambda envelope: envelope.kind.startswith("mcp/request"),
        lambda envelope: envelope.kind.startswith("mcp/response"),
    ],
)
def test_a_pinned_call_or_result_keeps_both_out_of_the_fold(pins: Any) -> None:
    log = LogBuilder()
    log.reflect("analyst", "let me see", "k1")
    log.run("calc", {}, text_result("THE-ANSWER"), context="k1")
    log.conclude("analyst", "done", "k1")
    page = PromptBuilder("analyst", contexts="fold", pins=pins).build(log.envelopes).markdown()
    assert "let me see" not in page
    assert "THE-ANSWER" in page
    assert "No result was received" not in page


@pytest.mark.parametrize("first", [INNER, Context(id="inner")], ids=["unused", "unnamed"])
def test_an_inner_context_folds_with_a_parent_that_appears_later(first: Context) -> None:
    log = LogBuilder()
    log.reflect("b", "inner one", first)
    log.reflect("b", "outer one", OUTER)
    log.reflect("b", "inner two", INNER)
    log.conclude("b", "all done", OUTER)
    page = build(log).markdown()
    assert "4 messages from b; 1 inner contexts" in page
    assert "inner one" not in page


def test_contexts_with_cyclic_parents_still_fold() -> None:
    log = LogBuilder()
    for one, other in ("ab", "bc", "ca"):
        log.reflect("b", f"in {one}", Context(id=one, parent=other))
    log.conclude("b", "done", Context(id="c"))
    assert "4 messages from b; 2 inner contexts" in build(log).markdown()


def test_a_type_set_later_changes_no_earlier_message() -> None:
    log = LogBuilder()
    builder = PromptBuilder("analyst")
    log.chat("b", "one", context="k")
    builder.add(log.envelopes[-1])
    early = builder.build()
    log.chat("b", "two", context=new_context("reasoning", id="k"))
    builder.add(log.envelopes[-1])
    fresh = PromptBuilder("analyst").build(log.envelopes, previous=early)
    assert fresh.report.first_changed is None
    assert builder.build().anthropic() == fresh.anthropic()
    assert "@b (in k):\n> one\n\n@b (in reasoning):\n> two" in fresh.markdown()


def test_folded_envelopes_are_not_decoded() -> None:
    """Decoding them would take a third of the time to build a prompt from a long log."""
    log = LogBuilder()
    for n in range(3):
        log.send("demo/step", {"number": n}, "b", context="k")
    log.conclude("b", "over", "k")
    prompt = PromptBuilder("analyst", contexts="fold").build(log.envelopes)
    assert "> over" in prompt.markdown()
    assert not any("payload" in vars(envelope) for envelope in log.envelopes)
    PromptBuilder("analyst").build(log.envelopes)
    assert any("payload" in vars(envelope) for envelope in log.envelopes)


@pytest.mark.rule("T-26")
def test_an_expanded_context_keeps_consumed_pages_collapsed() -> None:
    log = LogBuilder()
    log.reflect("analyst", "begin", OUTER)
    for number in range(5):
        page = transient(text_result(f"page {number} " + "data " * 1000), f"summary {number}")
        log.run("search", {"page": number}, page, sender="analyst", context=OUTER)
        if number < 4:
            stored = consumed(text_result("stored"))
            log.run("store", {"page": number}, stored, sender="analyst", context=OUTER)
    log.conclude("analyst", "done", OUTER)
    log.chat("analyst", "Finished.")
    prompt = build(log)
    (change,) = prompt.report.changed
    expanded = prompt.expand(change.handle)["content"][0]["text"]
    assert expanded.count("data data") < 2000  # one page, which nothing has consumed
    assert "page 4 data" in expanded
    handle = expanded.partition("[collapsed; handle ")[2].partition("]")[0]
    assert prompt.expand(handle)["content"][0]["text"].startswith("page 0 data")
    assert len(prompt.originals(change.handle)) == 20


@pytest.mark.rule("C-19")
@pytest.mark.parametrize(
    ("outcome", "words"),
    [("failed", "reports that it failed"), ("cancelled", "reports that it was cancelled")],
)
def test_a_folded_context_shows_its_title_and_how_it_ended(outcome: str, words: str) -> None:
    log = LogBuilder()
    titled = new_context("task", id="k", metadata={"title": "Book\nParis"})
    log.send("reflection", {"thought": "hm"}, "b", context=titled)
    log.send("conclusion", {"outcome": outcome}, "b", context="k")
    text = PromptBuilder("analyst", contexts="fold").build(log.envelopes).markdown()
    assert f"@b {words}:\n> Book Paris\n> {outcome}" in text
