"""Token budget: the order of reductions, and that the prompt fits."""

import pytest

from mcpp import Context, new_envelope, tokens
from mcpp.prompts import BudgetError, CachePolicy, Prompt, PromptBuilder
from mcpp.transient import Hint, consumed, transient, with_context_hints
from tests.mcpp.prompts.formats import check_all
from tests.mcpp.prompts.logs import LogBuilder, png, text_result

NEVER = CachePolicy(further_calls=0)
UNSEEN = "preview of what has not been seen"
PAGE = "some data in a row " * 60


def reducible_log() -> LogBuilder:
    """Return a log with something for every reduction."""
    log = LogBuilder()
    log.chat("boss", "oldest words " * 40)
    hints = with_context_hints(text_result("steps"), [Hint("fetch", "store")])
    log.run("get_workflow_step", {}, hints)
    log.run("fetch", {"page": 1}, transient(text_result("consumed " + PAGE), "page 1"))
    log.run("store", {}, consumed(text_result("stored")))
    log.run("fetch", {"page": 2}, transient(text_result("superseded " + PAGE), "page 2"))
    log.run("fetch", {"page": 2}, transient(text_result("pending " + PAGE), "page 2"))
    log.run("other", {}, transient(text_result("unpaired " + PAGE), "other"))
    for n in range(8):
        log.reflect("b", f"context thought {n} " * 10, "k")
    log.conclude("b", "context over", "k")
    log.run("plain", {}, text_result("preview " + PAGE * 2))
    log.fail(log.call("broken"), "error " + PAGE)
    log.chat("boss", "pinned words " * 40)
    for n in range(30):
        log.chat("boss", f"talk {n} " * 12)
    log.chat("analyst", "I have read it all.")
    log.chat("boss", "Go on.")
    return log


PIN = next(one.id for one in reducible_log().envelopes if b"pinned" in bytes(one.raw_payload))


def build(budget: int | None, keep_last: int = 0) -> Prompt:
    builder = PromptBuilder(
        "analyst", token_budget=budget, cache=NEVER, pins=[PIN], keep_last=keep_last
    )
    prompt = builder.build(reducible_log().envelopes)
    check_all(prompt)
    if budget is not None:
        assert prompt.tokens <= budget
    return prompt


def reasons(prompt: Prompt) -> set[str]:
    changed = {change.reason for change in prompt.report.changed}
    return changed | {left.reason for left in prompt.report.left_out}


def test_reductions_are_applied_in_order() -> None:
    whole = build(None).tokens
    order: list[str] = []
    for budget in range(whole, 600, -40):
        order += sorted(reasons(build(budget)) - set(order))
    assert order == ["consumed", "superseded", "unpaired", "folded", "preview", "oldest"]


def test_pins_and_errors_are_kept_longest() -> None:
    prompt = build(1500)
    page = prompt.markdown()
    assert "oldest" in reasons(prompt)
    assert "pinned words" in page
    assert "error some data" in page
    assert "talk 3" not in page


def test_errors_are_dropped_before_pins() -> None:
    page = build(520).markdown()
    assert "error some data" not in page
    assert "pinned words" in page
    assert "pinned words" not in build(210).markdown()


def test_keep_last_protects_the_last_messages() -> None:
    log = LogBuilder()
    for n in range(20):
        log.chat("boss", f"talk {n} " * 12)
    log.chat("boss", "the long last word " * 60)
    budget = PromptBuilder("analyst").build(log.envelopes).tokens - 20
    for keep_last, reason in ((0, UNSEEN), (1, "oldest")):
        builder = PromptBuilder("analyst", token_budget=budget, keep_last=keep_last)
        prompt = builder.build(log.envelopes)
        assert prompt.tokens <= budget
        assert reasons(prompt) == {reason}


def test_a_budget_that_cannot_be_met_is_an_error() -> None:
    with pytest.raises(BudgetError) as raised:
        build(50)
    assert raised.value.needed > raised.value.budget == 50
    assert "the budget is 50" in str(raised.value)


def test_a_note_counts_dropped_messages() -> None:
    assert "earlier messages are left out.]" in build(800).markdown()


@pytest.mark.rule("T-06")
def test_an_unseen_result_is_cut_last_and_never_collapsed() -> None:
    log = LogBuilder()
    log.chat("boss", "Fetch it.")
    call = log.call("fetch")
    log.answer(call, transient(text_result("row of data\n" * 3000), "a summary"))
    prompt = PromptBuilder("analyst", token_budget=1000).build(log.envelopes)
    check_all(prompt)
    assert prompt.tokens <= 1100
    assert reasons(prompt) >= {UNSEEN}
    page = prompt.markdown()
    assert "a summary" not in page
    assert page.count("row of data") > 50


@pytest.mark.rule("T-06")
def test_a_result_is_not_collapsed_while_a_parallel_call_is_unanswered() -> None:
    log = LogBuilder()
    fetch = log.call("fetch")
    log.call("slow")
    log.answer(fetch, transient(text_result("row of data\n" * 600), "a summary"))
    log.send("reflection", {"thought": "No answer from crm in 60 s."}, "analyst")
    prompt = PromptBuilder("analyst", token_budget=800).build(log.envelopes)
    check_all(prompt)
    assert reasons(prompt) == {UNSEEN, "oldest"}
    assert "a summary" not in prompt.markdown()


def test_a_message_shown_completely_has_no_character_count() -> None:
    context = Context(id="c1", type="reasoning")
    log = [
        new_envelope("reflection", {"thought": "hm"}, sender="bob", context=context),
        new_envelope("conclusion", {"text": "w " * 300}, sender="bob", context=context),
    ]
    for budget in range(280, 310):
        builder = PromptBuilder("me", contexts="fold", token_budget=budget, cache=None)
        assert "600 of 600" not in builder.build(log).markdown(), budget


def test_the_newest_message_of_others_is_cut_but_never_dropped() -> None:
    log = LogBuilder()
    log.chat("boss", "hello")
    log.chat("analyst", "yes?")
    log.run("fetch", {}, text_result("word " * 3000))
    log.chat("boss", "IMPORTANT: do not delete anything.")
    page = PromptBuilder("analyst", token_budget=600).build(log.envelopes).markdown()
    assert "IMPORTANT: do not delete anything." in page
    assert "[cut; " in page
    log = LogBuilder()
    log.chat("boss", "Please do: " + "word " * 3000)
    prompt = PromptBuilder("analyst", token_budget=260).build(log.envelopes)
    assert "> Please do: word" in prompt.markdown()
    assert reasons(prompt) == {UNSEEN}


def test_a_silent_observer_sees_the_newest_messages() -> None:
    log = LogBuilder()
    for n in range(300):
        log.chat("boss", f"talk {n} " * 12)
    prompt = PromptBuilder("analyst", token_budget=600).build(log.envelopes)
    assert prompt.tokens <= 600
    assert "talk 299" in prompt.markdown()
    assert "earlier messages are left out.]" in prompt.markdown()


def test_the_budget_holds_by_the_chosen_counter() -> None:
    count = tokens.exact()
    builder = PromptBuilder("analyst", token_budget=1200, counter=count)
    prompt = builder.build(reducible_log().envelopes)
    rendered = prompt.anthropic()
    texts = [rendered["system"]]
    for message in rendered["messages"]:
        for block in message["content"]:
            parts = block["content"] if block["type"] == "tool_result" else [block]
            texts += [part.get("text") or str(part.get("input")) for part in parts]
    assert sum(map(count, texts)) <= 1200


def test_the_beginning_rarely_changes_while_the_log_grows() -> None:
    """A step frees more than is needed, so that the cache is not lost at every call."""
    log = LogBuilder()
    changes = 0
    previous = None
    builder = PromptBuilder("analyst", token_budget=1000)
    for n in range(200):
        log.chat("boss", f"message number {n} with some words")
        builder.add(log.envelopes[-1])
        prompt = builder.build(previous=previous)
        changes += previous is not None and prompt.report.first_changed is not None
        previous = prompt
    assert 5 < changes < 40


def test_an_image_is_priced_by_its_pixels() -> None:
    log = LogBuilder()
    data = png(1500, 600, padding=300_000)
    image = {"type": "image", "data": data, "mimeType": "image/png"}
    log.run("draw", {}, {"content": [image]})
    prompt = PromptBuilder("analyst").build(log.envelopes)
    assert prompt.anthropic()["messages"][-1]["content"][0]["content"][0]["type"] == "image"
    assert 1200 < prompt.tokens < 1500


def test_short_messages_are_not_tried_as_previews() -> None:
    """Every text is counted only once."""
    asked = []

    def count(text: str) -> int:
        asked.append(text)
        return len(text)

    log = LogBuilder()
    for n in range(100):
        log.chat("boss", f"talk {n} " * 12)
    PromptBuilder("analyst", token_budget=2000, counter=count).build(log.envelopes)
    assert len(asked) < 110
