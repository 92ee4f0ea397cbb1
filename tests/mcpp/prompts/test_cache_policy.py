"""Cache policy: when results collapse, and what the report says about it."""

import sys
from collections.abc import Iterable
from types import FrameType
from typing import Any

import pytest

from mcpp import Envelope
from mcpp.prompts import CachePolicy, Prompt, PromptBuilder
from mcpp.transient import Hint, consumed, transient, with_context_hints
from tests.mcpp.prompts.logs import LogBuilder, text_result


def start() -> LogBuilder:
    log = LogBuilder()
    log.run("step", {}, with_context_hints(text_result("steps"), [Hint("fetch", "store")]))
    return log


def fetch(log: LogBuilder, page: int, words: int = 400) -> str:
    data = transient(text_result("data " * words), f"page {page}")
    return log.run("fetch", {"page": page}, data)


def store(log: LogBuilder) -> str:
    return log.run("store", {}, consumed(text_result("stored")))


def collapsed(log: LogBuilder, cache: CachePolicy | None = CachePolicy()) -> list[str]:  # noqa: B008
    report = PromptBuilder("analyst", cache=cache).build(log.envelopes).report
    return [change.id for change in report.changed]


def test_a_page_collapses_as_soon_as_it_is_stored() -> None:
    log = start()
    page = fetch(log, 1)
    store(log)
    assert collapsed(log) == [page]


def test_a_small_page_far_back_does_not_collapse() -> None:
    log = start()
    page = fetch(log, 1, words=60)
    for _ in range(20):
        log.chat("boss", "something else " * 10)
    store(log)
    assert collapsed(log) == []
    assert collapsed(log, CachePolicy(further_calls=200)) == [page]
    assert collapsed(log, None) == [page]


def test_several_pages_share_the_cost_of_one_rewrite() -> None:
    log = start()
    pages = [fetch(log, number) for number in range(6)]
    found = []
    for _ in pages:
        store(log)
        found.append(len(collapsed(log)))
    assert found[0] == 0
    assert found[-1] == 6
    assert len(set(found)) < 5


def test_a_collapse_is_never_reversed() -> None:
    log = start()
    page = fetch(log, 1)
    store(log)
    for _ in range(50):
        log.chat("boss", "something else " * 20)
    assert collapsed(log) == [page]


def test_a_summary_longer_than_its_page_saves_nothing() -> None:
    log = start()
    log.run("fetch", {}, transient(text_result("tiny"), "a much longer summary than the page"))
    store(log)
    assert collapsed(log, None) == []


def test_a_pinned_result_does_not_collapse() -> None:
    log = start()
    page = fetch(log, 1)
    store(log)
    report = PromptBuilder("analyst", pins=[page]).build(log.envelopes).report
    assert report.changed == ()


def test_an_observer_sees_the_page_until_it_has_sent_something() -> None:
    log = start()
    page = fetch(log, 1)
    store(log)

    def seen() -> list[str]:
        report = PromptBuilder("observer", cache=None).build(log.envelopes).report
        return [change.id for change in report.changed]

    assert seen() == []
    log.chat("observer", "I see.")
    assert seen() == [page]


def test_the_report_counts_saved_and_invalidated_tokens() -> None:
    log = start()
    fetch(log, 1)
    log.call("store")
    builder = PromptBuilder("analyst")
    before: Prompt = builder.build(log.envelopes)
    log.answer(log.envelopes[-1].id, consumed(text_result("stored")))
    after = builder.build(log.envelopes, previous=before)
    report = after.report
    assert report.tokens_before - report.tokens_after > 300
    assert report.tokens_after == after.tokens
    assert report.first_changed == 4
    assert 0 < report.cache_lost <= before.tokens
    log.chat("boss")
    assert builder.build(log.envelopes, previous=after).report.first_changed is None


def test_a_changed_system_text_invalidates_the_whole_cache() -> None:
    log = start()
    before = PromptBuilder("analyst", system="A").build(log.envelopes)
    report = PromptBuilder("analyst", system="B").build(log.envelopes, previous=before).report
    assert (report.first_changed, report.cache_lost) == (0, before.tokens)


def test_a_collapsed_result_expands_to_the_original() -> None:
    log = start()
    page = fetch(log, 1)
    store(log)
    prompt = PromptBuilder("analyst").build(log.envelopes)
    (handle,) = prompt.handles
    assert f"[collapsed; handle {handle}]" in prompt.markdown()
    (original,) = prompt.originals(handle)
    assert original.id == page
    assert prompt.expand(handle)["content"] == [{"type": "text", "text": "data " * 400}]
    assert prompt.expand("other")["isError"]


def test_an_expanded_result_can_be_published_and_is_shown_again() -> None:
    log = start()
    fetch(log, 1)
    store(log)
    builder = PromptBuilder("analyst")
    prompt = builder.build(log.envelopes)
    (handle,) = prompt.handles
    call = log.call("expand", {"handle": handle}, server="analyst")
    log.answer(call, prompt.expand(handle))
    again = builder.build(log.envelopes).anthropic()["messages"]
    assert again[-2]["content"][0]["name"] == "expand"
    assert again[-1]["content"][0]["content"][0]["text"] == "data " * 400


def lines_run(builder: PromptBuilder, envelopes: Iterable[Envelope]) -> int:
    """Return the number of lines executed to add envelopes: a deterministic measure of work."""
    lines = 0

    def trace(_: FrameType, event: str, __: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for envelope in envelopes:
            builder.add(envelope)
    finally:
        sys.settrace(before)
    return lines


def stuck_log() -> LogBuilder:
    """Return a log with an early candidate that is never worth a rewrite."""
    log = start()
    call = log.call("tiny")
    log.answer(call, transient(text_result("w " * 60), "t"))
    for _ in range(60):
        log.chat("boss", "hello " * 50)
    log.run("zap", {}, consumed(text_result("ok"), [call]))
    return log


@pytest.mark.parametrize("case", ["silent observer", "old candidate", "many pairs"])
def test_adding_costs_the_same_whatever_the_log_holds(case: str) -> None:
    viewer = "observer" if case == "silent observer" else "analyst"
    log = stuck_log() if case == "old candidate" else start()
    for n in range(400):
        if case == "many pairs":
            hints = [Hint(f"fetch{n}", f"store{n}")]
            log.run("step", {}, with_context_hints(text_result("steps"), hints))
            log.run(f"fetch{n}", {}, transient(text_result("data " * 50), "page"))
            log.run(f"store{n}", {}, consumed(text_result("stored")))
        else:
            fetch(log, n, words=100)
            store(log)
    builder = PromptBuilder(viewer)
    part = len(log.envelopes) // 4
    for envelope in log.envelopes[:part]:
        builder.add(envelope)
    early = lines_run(builder, log.envelopes[part : part + 60])
    for envelope in log.envelopes[part + 60 : -60]:
        builder.add(envelope)
    late = lines_run(builder, log.envelopes[-60:])
    assert late < early * 1.3
