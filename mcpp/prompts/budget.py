"""Limits of a prompt: its token budget, and how many images an API accepts.

`fit` applies reductions, in this order, until the prompt fits its token budget:

1. Collapse consumed results, then superseded ones, then transient ones without a known consumer.
2. Fold concluded contexts, the innermost first.
3. Show summaries of open contexts, where they are given, instead of the messages.
4. Cut long messages to previews.
5. Drop the oldest messages, then those that `keep_last` protects.
6. Cut messages that the viewer's model has not seen yet, and mark them as cut.

Unseen results of the viewer's own calls are never dropped. Unread messages of others are dropped,
oldest first, only if even their previews do not fit; the newest one stays. Errors and pins go last.

Every stage starts with the oldest entry and frees tokens in steps of an eighth of the budget. A
step frees more than is needed, so that the following calls need no reduction: removing only what
is needed would change the beginning of the prompt, and invalidate the prompt cache, at every call.
Images are limited in steps for the same reason.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from mcpp.errors import McppError
from mcpp.prompts.blocks import QuotedBlock, ResultBlock, ShownBlock, TextBlock
from mcpp.prompts.draft import PromptDraft
from mcpp.prompts.entries import PREVIEW_CHARS, LoggedContext, PromptEntry
from mcpp.prompts.folding import ContextSummary, members_of
from mcpp.transient.collapsing.lifecycle import TransientState
from mcpp.transient.tracker import TransientTracker

STEPS_PER_BUDGET: Final = 8

MAX_IMAGES: Final = 20
"""Anthropic accepts 100, but more than 20 only if none exceeds 2,000 pixels a side."""

MAX_IMAGES_CHARS: Final = 20_000_000
"""Base64 characters of all images: a request to Anthropic is limited to 32 MB, text included."""

IMAGE_STEPS: Final = 4

_OUTLINE_TOKENS: Final = 40

_Stage = Callable[[], Iterable["_Reduction"]]


class BudgetError(McppError, ValueError):
    """The token budget is smaller than what the model has yet to read."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(needed, budget)
        self.needed = needed
        self.budget = budget

    def __str__(self) -> str:
        return f"the prompt needs {self.needed} tokens, the budget is {self.budget}"


class Protected(NamedTuple):
    """Positions of entries that reductions must leave alone, by reason."""

    pins: frozenset[int]
    errors: frozenset[int]
    unseen: frozenset[int]  # results of the viewer's own calls that it has not seen
    unread: frozenset[int]  # messages of others since the viewer's model was last called
    last: frozenset[int]

    def all(self) -> frozenset[int]:
        """Return every protected position."""
        return self.pins | self.errors | self.unseen | self.unread | self.last


class _Reduction(NamedTuple):
    saved: int
    apply: Callable[[], None]


def fit(
    draft: PromptDraft,
    allowed: int,
    *,
    fixed: int,
    protected: Protected,
    tracker: TransientTracker,
    concluded: Iterable[LoggedContext],
    summaries: Iterable[tuple[LoggedContext, ContextSummary]] = (),
) -> None:
    """Reduce a draft until it fits, together with `fixed` other tokens, or raise BudgetError."""
    budget = allowed - fixed
    step = max(1, budget // STEPS_PER_BUDGET)
    stages: tuple[_Stage, ...] = (
        *_collapse_stages(draft, protected.all(), tracker),
        *_fold_stages(draft, protected.all(), concluded),
        # Unread messages, too: they would be cut or dropped instead.
        partial(_summaries, draft, summaries, protected._replace(unread=frozenset()).all()),
        *_removal_stages(draft, protected, budget),
    )
    for stage in stages:
        excess = draft.total - budget
        if excess <= 0:
            return
        # Up to the next whole step; an exact multiple stays.
        _apply(stage(), -(-excess // step) * step)
    if draft.total > budget:
        raise BudgetError(fixed + draft.total, allowed)


def limit_images(draft: PromptDraft) -> None:
    """Replace the oldest images of a draft by their descriptions until every API accepts it."""
    shown = [
        (entry, len(image.data))
        for entry in draft.entries
        if (entry.kind == "result" or entry.pictures) and draft.is_intact(entry)
        for image in entry.images()
    ]
    number = _image_excess(len(shown), MAX_IMAGES)
    chars = _image_excess(sum(length for _, length in shown), MAX_IMAGES_CHARS)
    described: Counter[PromptEntry] = Counter()
    for entry, length in shown:
        if number <= 0 and chars <= 0:
            break
        described[entry] += 1
        number -= 1
        chars -= length
    for entry, count in described.items():
        draft.describe_images(entry, count)


def _image_excess(found: int, limit: int) -> int:
    step = limit // IMAGE_STEPS
    return -(-max(0, found - limit) // step) * step


def _collapse_stages(
    draft: PromptDraft, protected: frozenset[int], tracker: TransientTracker
) -> Iterator[_Stage]:
    viewer = draft.entries[0].viewer if draft.entries else ""

    def collapse(state: TransientState, *, paired: bool | None = None) -> list[_Reduction]:
        return [
            _replacement(draft, entry, entry.collapsed(), state if paired is None else "unpaired")
            for entry in draft.entries
            if entry.tracked is not None
            and entry.tracked.state == state
            and entry.position not in protected
            and draft.is_intact(entry)
            and tracker.is_shown(entry.index, viewer)
            and (paired is None or tracker.is_paired(entry.tracked) is paired)
        ]

    yield lambda: collapse("consumed")
    yield lambda: collapse("superseded")
    yield lambda: collapse("pending", paired=False)


def _fold_stages(
    draft: PromptDraft, protected: frozenset[int], concluded: Iterable[LoggedContext]
) -> Iterator[_Stage]:
    for depth in sorted({context.depth for context in concluded}, reverse=True):
        level = [context for context in concluded if context.depth == depth]
        yield partial(_folds, draft, level, protected)


def _removal_stages(draft: PromptDraft, protected: Protected, budget: int) -> Iterator[_Stage]:
    pins, errors, unseen, unread, last = protected
    every = protected.all()
    new = unseen | unread
    newest = unseen | frozenset(sorted(unread)[-1:])
    yield lambda: _previews(draft, every)
    yield lambda: _drops(draft, every)
    yield lambda: _drops(draft, pins | errors | new)
    yield lambda: _cuts(draft, new - last, budget, min_chars=PREVIEW_CHARS)
    yield lambda: _drops(draft, pins | errors | newest | last)
    yield lambda: _cuts(draft, new, budget, min_chars=PREVIEW_CHARS)
    yield lambda: _drops(draft, pins | errors | newest)
    yield lambda: _cuts(draft, newest, budget)
    yield lambda: _drops(draft, pins | newest)
    yield lambda: _drops(draft, newest)


def _apply(reductions: Iterable[_Reduction], needed: int) -> None:
    for reduction in reductions:
        if needed <= 0:
            return
        if reduction.saved > 0:
            reduction.apply()
            needed -= reduction.saved


def _replacement(
    draft: PromptDraft, entry: PromptEntry, block: ShownBlock, reason: str
) -> _Reduction:
    return _Reduction(draft.saving(entry, block), partial(draft.replace, entry, block, reason))


def _folds(
    draft: PromptDraft, contexts: Iterable[LoggedContext], protected: frozenset[int]
) -> Iterator[_Reduction]:
    for context in contexts:
        end = context.conclusion
        if end is None or not draft.is_intact(end):
            continue
        members = members_of(context)
        hidden = [one for one in members if one is not end and one.position not in protected]
        # The note costs about as much as the conclusion plus one line.
        saved = sum(draft.costs[one.position] for one in hidden) - _OUTLINE_TOKENS
        yield _Reduction(saved, partial(draft.fold, context, members, protected))


def _summaries(
    draft: PromptDraft,
    summaries: Iterable[tuple[LoggedContext, ContextSummary]],
    protected: frozenset[int],
) -> Iterator[_Reduction]:
    for context, summary in summaries:
        if plan := draft.plan_summary(context, summary, protected):
            yield _Reduction(plan.saved, partial(draft.summarize, plan))


def _previews(draft: PromptDraft, protected: frozenset[int]) -> list[_Reduction]:
    return [
        _replacement(draft, entry, entry.preview(), "preview")
        for entry in draft.entries
        if entry.kind in ("other", "result")
        and entry.position not in protected
        and draft.is_intact(entry)
        and draft.costs[entry.position] > PREVIEW_CHARS // 3
    ]


def _drops(draft: PromptDraft, protected: frozenset[int]) -> Iterator[_Reduction]:
    for entry in draft.entries:
        if entry.kind == "result" or entry.position in protected or draft.is_hidden(entry):
            continue
        saved = draft.costs[entry.position]
        if entry.partner is not None:
            saved += draft.costs[entry.partner.position]
        yield _Reduction(saved, partial(draft.remove, entry, "oldest"))


def _cuts(
    draft: PromptDraft, positions: frozenset[int], budget: int, *, min_chars: int = 0
) -> list[_Reduction]:
    entries = [
        entry
        for position in sorted(positions)
        if (entry := draft.entries[position]).kind != "call" and not draft.is_hidden(entry)
    ]
    costs = [draft.costs[entry.position] for entry in entries]
    share = _fair_share(costs, budget - (draft.total - sum(costs)))
    reductions = []
    for entry, cost in zip(entries, costs, strict=True):
        shown = draft.block(entry)
        if cost <= share or (isinstance(shown, TextBlock) and len(shown.text) <= min_chars):
            continue
        chars = max(min_chars, _length(shown) * share // cost)
        block = entry.preview(chars)
        while chars > min_chars and cost - draft.saving(entry, block) > share:
            chars = max(min_chars, chars * 3 // 4)
            block = entry.preview(chars)
        reductions.append(_replacement(draft, entry, block, "preview of what has not been seen"))
    return reductions


def _fair_share(costs: Iterable[int], budget: int) -> int:
    """Return the cost limit per entry (max-min fairness): small entries leave more for others."""
    left, share = sorted(costs, reverse=True), 0
    while left:
        share = max(0, budget) // len(left)
        if left[-1] > share:
            break
        budget -= left.pop()
    return share


def _length(block: ShownBlock | None) -> int:
    if isinstance(block, TextBlock):
        return len(block.text)
    parts = block.content if isinstance(block, ResultBlock | QuotedBlock) else ()
    return sum(len(part.text) for part in parts if isinstance(part, TextBlock))
