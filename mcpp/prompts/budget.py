"""The ladder down which a prompt goes until it fits its budget.

Consumed results collapse first, then superseded ones, then transient ones that no tool is known to
consume; then concluded contexts fold, from the inside out; then what is long is cut to a preview;
then the oldest turns go, and after them what is kept by number. What the viewer's model has not
seen comes last: it is cut, and says so. Of its results none ever goes; of what others say the
oldest does if even the previews are too many, the newest never. Errors and pins outlive all else.

Each rung takes the oldest first and in steps of an eighth of the budget. A step takes a little more
than is needed, and then holds for a while: if every call took just enough, every call would change
the beginning of the prompt and no cache would ever hold.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from mcpp.errors import McppError
from mcpp.prompts.blocks import Block, ResultBlock, TextBlock
from mcpp.prompts.draft import PromptDraft
from mcpp.prompts.entries import PREVIEW_CHARS, Episode, PromptEntry
from mcpp.prompts.folding import members_of
from mcpp.transient.tracker import State, Tracker

STEPS_PER_BUDGET: Final = 8
_OUTLINE_TOKENS: Final = 40


class BudgetError(McppError, ValueError):
    """A budget that nothing can meet: what the model has yet to read needs more."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(needed, budget)
        self.needed = needed
        self.budget = budget

    def __str__(self) -> str:
        return f"the prompt needs {self.needed} tokens, the budget is {self.budget}"


class Kept(NamedTuple):
    """Places that a rung may not touch, each for its reason."""

    pins: frozenset[int]
    errors: frozenset[int]
    unseen: frozenset[int]  # results of the viewer's own calls that it has not seen
    unread: frozenset[int]  # what others have said since it was called
    last: frozenset[int]

    def all(self) -> frozenset[int]:
        """Return every kept place."""
        return self.pins | self.errors | self.unseen | self.unread | self.last


class _Move(NamedTuple):
    saved: int
    apply: Callable[[], None]


def fit(
    draft: PromptDraft,
    allowed: int,
    *,
    fixed: int,
    kept: Kept,
    tracker: Tracker,
    episodes: Iterable[Episode],
) -> None:
    """Bring a draft and what is fixed beside it down to a budget, or raise BudgetError."""
    budget = allowed - fixed
    viewer = draft.entries[0].viewer if draft.entries else ""
    every = kept.all()
    news = kept.unseen | kept.unread
    newest = kept.unseen | frozenset(sorted(kept.unread)[-1:])
    step = max(1, budget // STEPS_PER_BUDGET)

    def collapses(state: State, *, paired: bool | None = None) -> list[_Move]:
        return [
            _replacing(draft, entry, entry.collapsed(), state if paired is None else "unpaired")
            for entry in draft.entries
            if entry.tracked is not None
            and entry.tracked.state == state
            and entry.at not in every
            and draft.is_intact(entry)
            and tracker.is_shown(entry.index, viewer)
            and (paired is None or tracker.is_paired(entry.tracked) is paired)
        ]

    rungs: list[Callable[[], Iterable[_Move]]] = [
        lambda: collapses("consumed"),
        lambda: collapses("superseded"),
        lambda: collapses("pending", paired=False),
    ]
    for depth in sorted({episode.depth for episode in episodes}, reverse=True):
        level = [episode for episode in episodes if episode.depth == depth]
        rungs.append(partial(_folds, draft, level, every))
    rungs += [
        lambda: _previews(draft, every),
        lambda: _drops(draft, every),
        lambda: _drops(draft, kept.pins | kept.errors | news),
        lambda: _cuts(draft, news - kept.last, budget, at_least=PREVIEW_CHARS),
        lambda: _drops(draft, kept.pins | kept.errors | newest | kept.last),
        lambda: _cuts(draft, news, budget, at_least=PREVIEW_CHARS),
        lambda: _drops(draft, kept.pins | kept.errors | newest),
        lambda: _cuts(draft, newest, budget),
        lambda: _drops(draft, kept.pins | newest),
        lambda: _drops(draft, newest),
    ]
    for rung in rungs:
        over = draft.total - budget
        if over <= 0:
            return
        # Up to the next whole step; an exact multiple stays.
        _take(rung(), -(-over // step) * step)
    if draft.total > budget:
        raise BudgetError(fixed + draft.total, allowed)


def _take(moves: Iterable[_Move], need: int) -> None:
    for move in moves:
        if need <= 0:
            return
        if move.saved > 0:
            move.apply()
            need -= move.saved


def _replacing(draft: PromptDraft, entry: PromptEntry, block: Block, reason: str) -> _Move:
    return _Move(draft.saving(entry, block), partial(draft.replace, entry, block, reason))


def _folds(
    draft: PromptDraft, episodes: Iterable[Episode], kept: frozenset[int]
) -> Iterator[_Move]:
    for episode in episodes:
        end = episode.conclusion
        if end is None or not draft.is_intact(end):
            continue
        members = members_of(episode)
        hidden = [one for one in members if one is not end and one.at not in kept]
        # The note costs about what the conclusion does and a line more.
        saved = sum(draft.costs[one.at] for one in hidden) - _OUTLINE_TOKENS
        yield _Move(saved, partial(draft.fold, episode, members, kept))


def _previews(draft: PromptDraft, kept: frozenset[int]) -> list[_Move]:
    return [
        _replacing(draft, entry, entry.preview(), "preview")
        for entry in draft.entries
        if entry.sort in ("hear", "result")
        and entry.at not in kept
        and draft.is_intact(entry)
        and draft.costs[entry.at] > PREVIEW_CHARS // 3
    ]


def _drops(draft: PromptDraft, kept: frozenset[int]) -> Iterator[_Move]:
    for entry in draft.entries:
        if entry.sort == "result" or entry.at in kept or draft.is_hidden(entry):
            continue
        saved = draft.costs[entry.at]
        if entry.partner is not None:
            saved += draft.costs[entry.partner.at]
        yield _Move(saved, partial(draft.remove, entry, "oldest"))


def _cuts(
    draft: PromptDraft, places: frozenset[int], budget: int, *, at_least: int = 0
) -> list[_Move]:
    entries = [
        entry
        for at in sorted(places)
        if (entry := draft.entries[at]).sort != "call" and not draft.is_hidden(entry)
    ]
    costs = [draft.costs[entry.at] for entry in entries]
    share = _share(costs, budget - (draft.total - sum(costs)))
    moves = []
    for entry, cost in zip(entries, costs, strict=True):
        shown = draft.block(entry)
        if cost <= share or (isinstance(shown, TextBlock) and len(shown.text) <= at_least):
            continue
        chars = max(at_least, _length(shown) * share // cost)
        block = entry.preview(chars)
        while chars > at_least and cost - draft.saving(entry, block) > share:
            chars = max(at_least, chars * 3 // 4)
            block = entry.preview(chars)
        moves.append(_replacing(draft, entry, block, "preview of what has not been seen"))
    return moves


def _share(costs: Iterable[int], budget: int) -> int:
    """Return what each may cost at most so that all together fit; the small ones leave theirs."""
    left, share = sorted(costs, reverse=True), 0
    while left:
        share = max(0, budget) // len(left)
        if left[-1] > share:
            break
        budget -= left.pop()
    return share


def _length(block: Block | None) -> int:
    if isinstance(block, TextBlock):
        return len(block.text)
    parts = block.content if isinstance(block, ResultBlock) else ()
    return sum(len(part.text) for part in parts if isinstance(part, TextBlock))
