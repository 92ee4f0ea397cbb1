"""Markdown of a pack within a token budget (M-45).

Each item has three forms: complete, its passages about the goal, and its title with the reason. The
budget is filled with the form that adds most value per token, again and again, so that a long text
of little relevance does not displace short ones. The best item comes first, with its passages if
they fit: many bare titles tell less. Nothing is cut in the middle.
"""

from collections.abc import Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final, NamedTuple

import msgspec

from mcpp.tokens import estimate
from mcpp_agents.memory.markdown import render, render_item
from mcpp_agents.memory.pack import PackItem, PackSection
from mcpp_agents.memory.packing.passages import best_passages

PASSAGE_CHARS: Final = 480
# What a form is worth, relative to the complete item.
_PASSAGE_VALUE: Final = 0.7
_TITLE_VALUE: Final = 0.25
_PASSAGES: Final = 1  # the place of that form
# For the headings of sections and the note on what is missing.
_NOTE_TOKENS: Final = 60
_HEADING_TOKENS: Final = 8

_MAX_BUDGET: Final = 200_000

count_tokens = lru_cache(maxsize=512)(estimate)


class _Form(NamedTuple):
    item: PackItem
    value: float
    tokens: int


def clamped_budget(tokens: float) -> int:
    """Return a requested budget as an integer, within the upper bound."""
    return int(min(tokens, _MAX_BUDGET))


def render_within(
    goal: str,
    sections: Sequence[PackSection],
    usage_hint: str,
    *,
    terms: Sequence[str],
    budget: int,
) -> str:
    """Return a pack's Markdown within a number of tokens, with a note on what is shortened."""
    complete = render(goal, sections, usage_hint)
    if count_tokens(complete) <= budget:
        return complete
    items = [item for section in sections for item in section.items]
    room = budget - count_tokens(render(goal, [], usage_hint)) - _NOTE_TOKENS
    room -= _HEADING_TOKENS * len(sections)
    chosen = _fill([_forms(item, terms) for item in items], room)
    shown = {form.item.id: form.item for form in chosen if form is not None}
    fitted = [
        msgspec.structs.replace(section, items=own)
        for section in sections
        if (own := [shown[item.id] for item in section.items if item.id in shown])
    ]
    complete_ids = {item.id for item in items if shown.get(item.id) is item}
    note = (
        f"Within {budget} tokens: {len(complete_ids)} of {len(items)} items are complete,"
        f" {len(shown) - len(complete_ids)} in part, {len(items) - len(shown)} left out;"
        " a larger `markdown_token_budget` shows more."
    )
    return render(goal, fitted, f"{usage_hint} {note}")


def _forms(item: PackItem, terms: Sequence[str]) -> list[_Form]:
    """Return the forms of an item, the shortest first."""
    replace = msgspec.structs.replace
    title = replace(item, content="", related=[])
    passages = replace(title, content=best_passages(item.content, terms, PASSAGE_CHARS))
    forms = [(title, _TITLE_VALUE), (passages, _PASSAGE_VALUE), (item, 1.0)]
    return [
        _Form(form, worth * max(item.score, 0.01), count_tokens(render_item(form)) + 2)
        for form, worth in forms
    ]


def _fill(items: Sequence[Sequence[_Form]], room: int) -> list[_Form | None]:
    """Return the chosen form of each item; None leaves it out."""
    chosen: list[_Form | None] = [None] * len(items)
    steps: list[tuple[float, int, int, int, int]] = []  # −worth, item, from, to, tokens

    def offer(index: int, current: int) -> None:
        value, tokens = (0.0, 0) if current < 0 else items[index][current][1:]
        for number in range(current + 1, len(items[index])):
            form = items[index][number]
            more = form.tokens - tokens
            heappush(steps, (-(form.value - value) / max(more, 1), index, current, number, more))

    states = [-1] * len(items)
    best = max(range(len(items)), key=lambda index: items[index][_PASSAGES].value, default=-1)
    if best >= 0 and items[best][_PASSAGES].tokens <= room:
        states[best], chosen[best] = _PASSAGES, items[best][_PASSAGES]
        room -= items[best][_PASSAGES].tokens
    for index in range(len(items)):
        offer(index, states[index])
    while steps:
        _, index, before, number, tokens = heappop(steps)
        # The room only shrinks, so a step that does not fit now never will.
        if states[index] == before and tokens <= room:
            states[index], chosen[index] = number, items[index][number]
            room -= tokens
            offer(index, number)
    return chosen
