"""Markdown of a pack within a token budget (M-45).

Each item has three forms: complete, its passages about the goal, and its title with the reason. The
budget is filled with the form that adds most value per token, again and again, so that a long text
of little relevance does not displace short ones. The best item comes first, with its passages if
they fit: many bare titles tell less. Nothing is cut in the middle.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final, NamedTuple

from mcpp.tokens import estimate
from mcpp_agents.memory.markdown import ItemRenderer, render
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
    markdown: str
    value: float
    tokens: int
    is_complete: bool


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
    renderers = {item.id: ItemRenderer(item) for section in sections for item in section.items}
    complete = {id: renderer.complete() for id, renderer in renderers.items()}
    markdown = _render(goal, sections, usage_hint, complete)
    if count_tokens(markdown) <= budget:
        return markdown
    items = [item for section in sections for item in section.items]
    room = budget - count_tokens(render(goal, [], usage_hint)) - _NOTE_TOKENS
    room -= _HEADING_TOKENS * len(sections)
    forms = [_forms(item, renderers[item.id], complete[item.id], terms) for item in items]
    chosen = _fill(forms, room)
    shown = {
        item.id: form.markdown for item, form in zip(items, chosen, strict=True) if form is not None
    }
    whole = sum(form is not None and form.is_complete for form in chosen)
    note = (
        f"Within {budget} tokens: {whole} of {len(items)} items are complete,"
        f" {len(shown) - whole} in part, {len(items) - len(shown)} left out;"
        " a larger `markdown_token_budget` shows more."
    )
    return _render(goal, sections, f"{usage_hint} {note}", shown)


def _render(
    goal: str, sections: Sequence[PackSection], usage_hint: str, shown: Mapping[str, str]
) -> str:
    """Return the Markdown of the items that are shown."""
    fitted = [
        (section.title, own)
        for section in sections
        if (own := [shown[item.id] for item in section.items if item.id in shown])
    ]
    return render(goal, fitted, usage_hint)


def _forms(
    item: PackItem, renderer: ItemRenderer, complete: str, terms: Sequence[str]
) -> list[_Form]:
    """Return the forms of an item, the shortest first."""
    title = renderer.shortened("")
    passages = renderer.shortened(best_passages(item.content, terms, PASSAGE_CHARS))
    forms = [(title, _TITLE_VALUE), (passages, _PASSAGE_VALUE), (complete, 1.0)]
    return [
        _Form(markdown, worth * max(item.score, 0.01), count_tokens(markdown) + 2, worth == 1)
        for markdown, worth in forms
    ]


def _fill(items: Sequence[Sequence[_Form]], room: int) -> list[_Form | None]:
    """Return the chosen form of each item; None leaves it out."""
    chosen: list[_Form | None] = [None] * len(items)
    steps: list[tuple[float, int, int, int, int]] = []  # −worth, item, from, to, tokens

    def offer(index: int, current: int) -> None:
        value, tokens = (0.0, 0) if current < 0 else items[index][current][1:3]
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
