"""The ladder: what goes first, what goes last, and that the budget is kept."""

import pytest

from mcpp import Context, new_envelope, tokens
from mcpp.prompts import BudgetError, CachePolicy, Prompt, PromptBuilder
from mcpp.transient import Hint, consumed, transient, with_context_hints
from tests.mcpp.prompts.formats import check_all
from tests.mcpp.prompts.logs import Log, png, text_result

NEVER = CachePolicy(further_calls=0)
UNSEEN = "preview of what has not been seen"
PAGE = "some data in a row " * 60


def ladder_log() -> Log:
    """One of everything that a rung can take."""
    log = Log()
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


PIN = next(one.id for one in ladder_log().envelopes if b"pinned" in bytes(one.raw_payload))


def build(budget: int | None, keep_last: int = 0) -> Prompt:
    builder = PromptBuilder(
        "analyst", token_budget=budget, cache=NEVER, pins=[PIN], keep_last=keep_last
    )
    prompt = builder.build(ladder_log().envelopes)
    check_all(prompt)
    if budget is not None:
        assert prompt.tokens <= budget
    return prompt


def reasons(prompt: Prompt) -> set[str]:
    changed = {change.reason for change in prompt.report.changed}
    return changed | {left.reason for left in prompt.report.left_out}


def test_the_rungs_come_in_order() -> None:
    whole = build(None).tokens
    order: list[str] = []
    for budget in range(whole, 600, -40):
        order += sorted(reasons(build(budget)) - set(order))
    assert order == ["consumed", "superseded", "unpaired", "folded", "preview", "oldest"]


def test_a_pin_and_an_error_outlive_everything_else() -> None:
    prompt = build(1500)
    page = prompt.markdown()
    assert "oldest" in reasons(prompt)
    assert "pinned words" in page
    assert "error some data" in page
    assert "talk 3" not in page


def test_at_the_end_of_the_ladder_errors_go_before_pins() -> None:
    page = build(520).markdown()
    assert "error some data" not in page
    assert "pinned words" in page
    assert "pinned words" not in build(210).markdown()


def test_the_last_ones_stay_whole_if_asked_for() -> None:
    log = Log()
    for n in range(20):
        log.chat("boss", f"talk {n} " * 12)
    log.chat("boss", "the long last word " * 60)
    budget = PromptBuilder("analyst").build(log.envelopes).tokens - 20
    for keep_last, reason in ((0, UNSEEN), (1, "oldest")):
        builder = PromptBuilder("analyst", token_budget=budget, keep_last=keep_last)
        prompt = builder.build(log.envelopes)
        assert prompt.tokens <= budget
        assert reasons(prompt) == {reason}


def test_a_budget_that_nothing_meets_is_an_error() -> None:
    with pytest.raises(BudgetError) as raised:
        build(50)
    assert raised.value.needed > raised.value.budget == 50
    assert "the budget is 50" in str(raised.value)


def test_dropping_says_how_much_is_missing() -> None:
    assert "earlier messages are left out.]" in build(800).markdown()


@pytest.mark.rule("T-06")
def test_an_unseen_result_is_cut_at_the_very_end_and_never_collapsed() -> None:
    log = Log()
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
def test_a_result_stays_whole_while_another_call_of_its_turn_is_late() -> None:
    log = Log()
    fetch = log.call("fetch")
    log.call("slow")
    log.answer(fetch, transient(text_result("row of data\n" * 600), "a summary"))
    log.send("reflection", {"thought": "No answer from crm in 60 s."}, "analyst")
    prompt = PromptBuilder("analyst", token_budget=800).build(log.envelopes)
    check_all(prompt)
    assert reasons(prompt) == {UNSEEN, "oldest"}
    assert "a summary" not in prompt.markdown()


def test_what_is_shown_to_its_end_is_not_counted_as_a_part() -> None:
    context = Context(id="c1", type="reasoning")
    log = [
        new_envelope("reflection", {"thought": "hm"}, sender="bob", context=context),
        new_envelope("conclusion", {"text": "w " * 300}, sender="bob", context=context),
    ]
    for budget in range(280, 310):
        builder = PromptBuilder("me", contexts="fold", token_budget=budget, cache=None)
        assert "600 of 600" not in builder.build(log).markdown(), budget


def test_what_others_have_just_said_is_cut_but_never_dropped() -> None:
    log = Log()
    log.chat("boss", "hello")
    log.chat("analyst", "yes?")
    log.run("fetch", {}, text_result("word " * 3000))
    log.chat("boss", "IMPORTANT: do not delete anything.")
    page = PromptBuilder("analyst", token_budget=600).build(log.envelopes).markdown()
    assert "IMPORTANT: do not delete anything." in page
    assert "[cut; " in page
    log = Log()
    log.chat("boss", "Please do: " + "word " * 3000)
    prompt = PromptBuilder("analyst", token_budget=260).build(log.envelopes)
    assert "> Please do: word" in prompt.markdown()
    assert reasons(prompt) == {UNSEEN}


def test_an_observer_who_never_speaks_still_gets_the_newest() -> None:
    log = Log()
    for n in range(300):
        log.chat("boss", f"talk {n} " * 12)
    prompt = PromptBuilder("analyst", token_budget=600).build(log.envelopes)
    assert prompt.tokens <= 600
    assert "talk 299" in prompt.markdown()
    assert "earlier messages are left out.]" in prompt.markdown()


def test_the_budget_is_kept_by_the_counter_that_was_chosen() -> None:
    count = tokens.exact()
    builder = PromptBuilder("analyst", token_budget=1200, counter=count)
    prompt = builder.build(ladder_log().envelopes)
    rendered = prompt.anthropic()
    texts = [rendered["system"]]
    for message in rendered["messages"]:
        for block in message["content"]:
            parts = block["content"] if block["type"] == "tool_result" else [block]
            texts += [part.get("text") or str(part.get("input")) for part in parts]
    assert sum(map(count, texts)) <= 1200


def test_the_beginning_holds_still_while_the_log_grows() -> None:
    """A step takes more than is needed, so that the cache is not lost at every call."""
    log = Log()
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


def test_an_image_costs_what_an_image_costs() -> None:
    log = Log()
    data = png(1500, 600, padding=300_000)
    image = {"type": "image", "data": data, "mimeType": "image/png"}
    log.run("draw", {}, {"content": [image]})
    prompt = PromptBuilder("analyst").build(log.envelopes)
    assert prompt.anthropic()["messages"][-1]["content"][0]["content"][0]["type"] == "image"
    assert 1200 < prompt.tokens < 1500


def test_what_is_short_is_not_tried_as_a_preview() -> None:
    """Every text is counted once, however the budget is met."""
    asked = []

    def count(text: str) -> int:
        asked.append(text)
        return len(text)

    log = Log()
    for n in range(100):
        log.chat("boss", f"talk {n} " * 12)
    PromptBuilder("analyst", token_budget=2000, counter=count).build(log.envelopes)
    assert len(asked) < 110
