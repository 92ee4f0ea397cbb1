"""Markdown of a pack within a token budget (M-45).

Each item has three forms: complete, its passages about the goal, and its title with the reason. The
budget is filled with the form that adds most value per token, again and again, so that a long text
of little relevance does not displace short ones. The best item comes first, with its passages if
they fit: many bare titles tell less. Nothing is cut in the middle.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import repeat
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
# For the heading of a section.
_HEADING_TOKENS: Final = 8
# For what joins a form's parts and the items, and for rounding.
_JOINT_TOKENS: Final = 4
_MIN_SCORE: Final = 0.01

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
    sections: Sequence[PackSection],
    usage_hint: str,
    *,
    terms: Sequence[str],
    budget: int,
) -> str:
    """Return a pack's Markdown within a number of tokens, with a note on what is shortened."""
    items = [item for section in sections for item in section.items]
    renderers = [ItemRenderer(item) for item in items]
    # Each text is counted once: a form has the tokens of the item without content and of its own.
    bare = [count_tokens(renderer.around("")) for renderer in renderers]
    complete = list(map(_complete_form, items, renderers, bare))
    room = budget - count_tokens(render([], usage_hint))
    if sum(form.tokens for form in complete) + _HEADING_TOKENS * len(sections) <= room:
        chosen: Sequence[_Form | None] = complete
    else:
        shorter = map(_shorter_forms, items, renderers, bare, repeat(terms))
        forms = [[*some, form] for some, form in zip(shorter, complete, strict=True)]
        places = [place for place, section in enumerate(sections) for _ in section.items]
        longest = _note(budget, len(items), len(items), 2 * len(items))
        chosen = _fill(forms, places, room - count_tokens(longest) - _JOINT_TOKENS)
        whole = sum(form is not None and form.is_complete for form in chosen)
        shown = sum(form is not None for form in chosen)
        usage_hint += _note(budget, len(items), whole, shown)
    markdown = {
        item.id: form.markdown for item, form in zip(items, chosen, strict=True) if form is not None
    }
    return _render(sections, usage_hint, markdown)


def _note(budget: int, items: int, whole: int, shown: int) -> str:
    """Return the sentence on what is shortened."""
    return (
        f" Within {budget} tokens: {whole} of {items} items are complete,"
        f" {shown - whole} in part, {items - shown} left out;"
        " a larger `markdown_token_budget` shows more."
    )


def _render(sections: Sequence[PackSection], usage_hint: str, shown: Mapping[str, str]) -> str:
    """Return the Markdown of the items that are shown."""
    fitted = [
        (section.title, own)
        for section in sections
        if (own := [shown[item.id] for item in section.items if item.id in shown])
    ]
    return render(fitted, usage_hint)


def _complete_form(item: PackItem, renderer: ItemRenderer, bare: int) -> _Form:
    """Return an item with all of its content."""
    quoted, relations = renderer.quoted(item.content), renderer.relations()
    markdown = renderer.around(quoted) + relations
    tokens = bare + count_tokens(quoted + relations) + _JOINT_TOKENS
    return _Form(markdown, max(item.score, _MIN_SCORE), tokens, is_complete=True)


def _shorter_forms(
    item: PackItem, renderer: ItemRenderer, bare: int, terms: Sequence[str]
) -> list[_Form]:
    """Return an item without its content, and with its passages about the goal."""
    quoted = renderer.quoted(best_passages(item.content, terms, PASSAGE_CHARS))
    value, tokens = max(item.score, _MIN_SCORE), bare + _JOINT_TOKENS
    return [
        _Form(renderer.around(""), _TITLE_VALUE * value, tokens, is_complete=False),
        _Form(
            renderer.around(quoted),
            _PASSAGE_VALUE * value,
            tokens + count_tokens(quoted),
            is_complete=False,
        ),
    ]


def _fill(
    items: Sequence[Sequence[_Form]], sections: Sequence[int], room: int
) -> list[_Form | None]:
    """Return the chosen form of each item; None leaves it out.

    The first item of a section, whose number is given for each, takes the room of the heading too.
    """
    chosen: list[_Form | None] = [None] * len(items)
    steps: list[tuple[float, int, int, int, int]] = []  # −worth, item, from, to, tokens

    def offer(index: int, current: int) -> None:
        value, tokens = (0.0, 0) if current < 0 else items[index][current][1:3]
        for number in range(current + 1, len(items[index])):
            form = items[index][number]
            more = form.tokens - tokens
            heappush(steps, (-(form.value - value) / max(more, 1), index, current, number, more))

    def choose(index: int, number: int, tokens: int) -> bool:
        nonlocal room
        heading = 0 if sections[index] in headed else _HEADING_TOKENS
        if tokens + heading > room:
            return False
        headed.add(sections[index])
        states[index], chosen[index] = number, items[index][number]
        room -= tokens + heading
        return True

    states, headed = [-1] * len(items), set[int]()
    best = max(range(len(items)), key=lambda index: items[index][_PASSAGES].value, default=-1)
    if best >= 0:
        choose(best, _PASSAGES, items[best][_PASSAGES].tokens)
    for index in range(len(items)):
        offer(index, states[index])
    while steps:
        _, index, before, number, tokens = heappop(steps)
        # The room only shrinks, so a step that does not fit now hardly will later.
        if states[index] == before and choose(index, number, tokens):
            offer(index, number)
    return chosen
