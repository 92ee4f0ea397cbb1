"""Properties of prompts: valid messages, nothing collapsed unseen, every original retrievable."""

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.transient import busy_log
from mcpp import Envelope, filters
from mcpp.prompts import BudgetError, CachePolicy, Prompt, PromptBuilder, TextBlock
from tests.mcpp.prompts.formats import check_all
from tests.properties.random_logs import LOGS

NARROW = [filters.main_only, ~filters.sender("b"), filters.conclusions]
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "contexts": st.sampled_from(["include", "exclude", "conclusions", "fold"]),
        "token_budget": st.integers(120, 3000),
        "keep_last": st.integers(0, 6),
        "pins": st.sets(st.integers(0, 40).map(lambda n: f"e{n}"), max_size=3),
        "exclude_tools": st.sampled_from([(), (), (), ("plain",), ("plain", "fetch")]),
        "cache": st.sampled_from([None, CachePolicy(further_calls=1), CachePolicy()]),
        "filter": st.sampled_from([filters.everything] * 5 + NARROW),
    },
)
MODEL_WROTE = ("chat", "conclusion", "mcp/request")
COLLAPSED = {"consumed", "superseded", "unpaired"}
GENERATED = re.compile(
    r"> .*|@[^\s]+( to @[^\s]+)?( \([^()]*\))?:|@\S+ (answers|fails) @\S+'s \S+:"
    r"|@\S+ calls \S+( of @\S+(, @\S+)*)?:|\[(collapsed|cut); [^\[\]]*\]"
    r"|\[folded; handle \w+\] [^>]*|\[\d+ earlier messages are left out\.\]"
    r"|\[The log begins here\.\]|\[Nothing new has been said\.\]"
)


NOTE = re.compile(  # a generated block that represents no envelope
    r"TextBlock\(text='\[(The log begins|Nothing new|\d+ earlier)"
    r"|ResultBlock\(.*No result was received\."
)


def fuzz(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def check(log: list[Envelope], options: dict[str, Any]) -> None:
    builder = PromptBuilder("analyst", **options)
    try:
        prompt = builder.build(log)
    except BudgetError:
        return
    check_all(prompt)
    prompt.markdown()
    check_budget(prompt, options.get("token_budget"))
    check_changes(prompt, log, set(options.get("pins", ())))
    check_account(prompt, log)
    check_quoting(prompt)
    for envelope in log:
        builder.add(envelope)
        if envelope.sender == "analyst":  # around a call of its model
            with contextlib.suppress(BudgetError):
                builder.build()
    assert json.dumps(builder.build().anthropic()) == json.dumps(prompt.anthropic())


def check_budget(prompt: Prompt, budget: int | None) -> None:
    if budget is not None:
        assert prompt.tokens <= budget


def check_changes(prompt: Prompt, log: list[Envelope], pins: set[str]) -> None:
    """Check the reductions against a naive implementation of the rules."""
    places = {envelope.id: place for place, envelope in enumerate(log)}
    report = prompt.report
    assert report.tokens_after == prompt.tokens
    for change in report.changed:
        originals = prompt.originals(change.handle)
        assert change.id in {one.id for one in originals}
        for original in originals:
            assert original.raw_payload == log[places[original.id]].raw_payload
        failed = any(b'"isError":true' in bytes(one.raw_payload) for one in originals)
        assert failed or not prompt.expand(change.handle).get("isError")
        if change.reason not in COLLAPSED:
            continue
        place = places[change.id]
        result = log[place].payload["result"]
        assert not result.get("isError")
        assert result["_meta"]["context"]["lifecycle"] == "transient"
        assert any(
            later.sender == "analyst" and later.kind.startswith(MODEL_WROTE)
            for later in log[place + 1 :]
        ), "collapsed before it was shown"
        assert change.id not in pins
    shown = {change.id for change in report.changed}
    assert shown.isdisjoint(left.id for left in report.left_out)


def check_account(prompt: Prompt, log: list[Envelope]) -> None:
    """Every envelope is either shown by one block or left out for a reason."""
    blocks = [block for message in prompt.messages for block in message.blocks]
    shown = [block for block in blocks if not NOTE.match(str(block))]
    left = [one.id for one in prompt.report.left_out]
    assert len(set(left)) == len(left)
    assert len(shown) + len(left) == len(log)


def check_quoting(prompt: Prompt) -> None:
    """Every line of a user message is generated or quoted."""
    for message in prompt.messages:
        if message.role == "user":
            for block in message.blocks:
                if isinstance(block, TextBlock):
                    for line in block.text.splitlines():
                        assert GENERATED.fullmatch(line), line


@fuzz(400)
@given(LOGS, OPTIONS)
def test_a_prompt_is_valid_and_consistent_for_every_log(
    log: list[Envelope], options: dict[str, Any]
) -> None:
    check(log, options)


@pytest.mark.torture
@fuzz(4000)
@given(LOGS, OPTIONS)
def test_a_prompt_is_valid_and_consistent_for_thousands_of_logs(
    log: list[Envelope], options: dict[str, Any]
) -> None:
    check(log, options)


@pytest.mark.slow
def test_adding_an_envelope_costs_the_same_in_a_long_log() -> None:
    """Measures work by the number of texts counted, not by time."""
    asked = 0

    def count(text: str) -> int:
        nonlocal asked
        asked += 1
        return len(text)

    log = busy_log(4000)
    builder = PromptBuilder("analyst", counter=count)
    work = []
    for envelope in log:
        before = asked
        builder.add(envelope)
        work.append(asked - before)
    assert max(work[2000:]) <= max(work[:2000])
    assert sum(work[2000:]) <= sum(work[:2000]) * 1.2
