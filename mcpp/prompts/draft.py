"""Draft of a prompt: the block that shows each entry, or none.

All changes go through `replace`, `remove`, `fold` and `summarize`, so the draft knows the token
count and can report every change with its reason.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from mcpp.prompts.blocks import CALL_OVERHEAD, ShownBlock, TextBlock, block_tokens
from mcpp.prompts.entries import NO_RESULT, LoggedContext, PromptEntry
from mcpp.prompts.folding import (
    ContextSummary,
    fold_handle,
    fold_note,
    is_summarized,
    summarized_members,
    summary_handle,
    summary_note,
)
from mcpp.tokens import Counter

_IMAGES: Final = "images"
_FOLDED: Final = "folded"
SUMMARIZED: Final = "summary"


class Changed(msgspec.Struct, frozen=True, gc=False):
    """An envelope shown in a reduced form, and the reason; `handle` retrieves the original."""

    id: str
    handle: str
    reason: str


class LeftOut(msgspec.Struct, frozen=True, gc=False):
    """An envelope that is not shown, and the reason."""

    id: str
    reason: str


class SummaryPlan(NamedTuple):
    """Which entries a summary replaces, with the tokens that it saves."""

    hidden: Sequence[PromptEntry]
    note: TextBlock
    handle: str
    saved: int


class PromptDraft:
    """Which block shows each entry of a prompt. Owns that choice, but not the entries."""

    def __init__(self, entries: Sequence[PromptEntry], count: Counter) -> None:
        self.entries: Final = entries
        self.count: Final = count
        # By position. Entries not in here are shown in full, and rendered only on demand.
        self._blocks: dict[int, ShownBlock | None] = {}
        self.changed: dict[str, Changed] = {}
        self.left_out: dict[str, LeftOut] = {}
        self.originals: dict[str, tuple[PromptEntry, ...]] = {}
        # Settled results inside folded contexts, whose handles `expand` of the context shows.
        self.folded_results: dict[str, tuple[PromptEntry, ...]] = {}
        self.dropped = 0
        self._costs: list[int] | None = None
        self._no_result_tokens = block_tokens(NO_RESULT, count) + CALL_OVERHEAD

    @property
    def total(self) -> int:
        """Tokens of all entries as currently shown."""
        return sum(self.costs)

    @property
    def costs(self) -> list[int]:
        """Tokens of each entry as currently shown; an unanswered call includes its error result."""
        if self._costs is None:
            self._costs = list(map(self._cost, self.entries))
        return self._costs

    def shown(self) -> Iterator[tuple[PromptEntry, ShownBlock]]:
        """Yield the entries that are shown, each with its block."""
        blocks = self._blocks
        for position, entry in enumerate(self.entries):
            block = blocks[position] if position in blocks else entry.full_block()
            if block is not None:
                yield entry, block

    def block(self, entry: PromptEntry) -> ShownBlock | None:
        """Return the block that shows an entry, or None if it is not shown."""
        if entry.position in self._blocks:
            return self._blocks[entry.position]
        return entry.full_block()

    def is_hidden(self, entry: PromptEntry) -> bool:
        """Return whether an entry is not shown."""
        return entry.position in self._blocks and self._blocks[entry.position] is None

    def saving(self, entry: PromptEntry, block: ShownBlock) -> int:
        """Return the tokens saved by showing an entry as this block."""
        return self.costs[entry.position] - block_tokens(block, self.count)

    def is_intact(self, entry: PromptEntry) -> bool:
        """Return whether an entry is shown in full, apart from images."""
        if entry.position not in self._blocks:
            return True
        change = self.changed.get(entry.envelope.id)
        return change is not None and change.reason == _IMAGES

    def describe_images(self, entry: PromptEntry, count: int) -> None:
        """Replace the first `count` images of an entry by their descriptions."""
        self.replace(entry, entry.without_images(count), _IMAGES)

    def replace(self, entry: PromptEntry, block: ShownBlock, reason: str) -> None:
        """Show an entry as another block; its handle retrieves the original."""
        self._put(entry, block)
        self.changed[entry.envelope.id] = Changed(entry.envelope.id, entry.handle, reason)
        self._remember(entry.handle, [entry])

    def remove(self, entry: PromptEntry, reason: str) -> None:
        """Stop showing an entry and its partner."""
        for one in (entry, entry.partner):
            if one is not None and not self.is_hidden(one):
                self._put(one, None)
                self._forget(one)
                self.left_out[one.envelope.id] = LeftOut(one.envelope.id, reason)
                self.dropped += 1

    def fold(
        self, context: LoggedContext, members: Sequence[PromptEntry], protected: frozenset[int]
    ) -> None:
        """Replace a concluded context by its conclusion and an outline; keep protected entries."""
        end = context.conclusion
        assert end is not None
        for entry in members:
            if entry is not end and entry.position not in protected:
                self._hide(entry, _FOLDED)
        handle = fold_handle(context)
        self._show_note(end, fold_note(context, members, handle), handle, _FOLDED)
        self._remember(handle, members)

    def plan_summary(
        self, context: LoggedContext, summary: ContextSummary, protected: frozenset[int]
    ) -> SummaryPlan | None:
        """Return how a summary would replace messages of an open context, if it can."""
        hidden = [
            entry
            for entry in summarized_members(context, summary)
            if entry.position not in protected and not self.is_hidden(entry)
        ]
        if not any(is_summarized(entry.envelope) for entry in hidden):
            return None
        note = summary_note(context, hidden, summary)
        saved = sum(map(self._cost, hidden)) - block_tokens(note, self.count)
        return SummaryPlan(hidden, note, summary_handle(summary), saved)

    def summarize(self, plan: SummaryPlan) -> None:
        """Replace messages of an open context by their summary."""
        for entry in plan.hidden:
            self._hide(entry, SUMMARIZED)
        last = next(entry for entry in reversed(plan.hidden) if is_summarized(entry.envelope))
        del self.left_out[last.envelope.id]
        self._show_note(last, plan.note, plan.handle, SUMMARIZED)
        self._remember(plan.handle, plan.hidden)

    def _hide(self, entry: PromptEntry, reason: str) -> None:
        if entry.is_settled:
            same = self.folded_results.get(entry.handle, ())
            self.folded_results[entry.handle] = tuple(dict.fromkeys((*same, entry)))
        if not self.is_hidden(entry):
            self._put(entry, None)
            self._forget(entry)
            self.left_out[entry.envelope.id] = LeftOut(entry.envelope.id, reason)

    def _show_note(self, entry: PromptEntry, note: TextBlock, handle: str, reason: str) -> None:
        self._put(entry, note)
        self.changed[entry.envelope.id] = Changed(entry.envelope.id, handle, reason)

    def _remember(self, handle: str, entries: Sequence[PromptEntry]) -> None:
        # T-16: handles are short and derived from ids that senders choose. If two entries share a
        # handle, it retrieves both, so that neither hides the other.
        both = dict.fromkeys((*self.originals.get(handle, ()), *entries))
        self.originals[handle] = tuple(both)

    def _forget(self, entry: PromptEntry) -> None:
        change = self.changed.pop(entry.envelope.id, None)
        if change is not None:
            left = [one for one in self.originals[change.handle] if one is not entry]
            self.originals[change.handle] = tuple(left)

    def _put(self, entry: PromptEntry, block: ShownBlock | None) -> None:
        self._blocks[entry.position] = block
        if self._costs is not None:
            self._costs[entry.position] = self._cost(entry)

    def _cost(self, entry: PromptEntry) -> int:
        if entry.position in self._blocks:
            block = self._blocks[entry.position]
            return 0 if block is None else block_tokens(block, self.count)
        cost = entry.tokens(self.count)
        is_unanswered = entry.kind == "call" and not entry.partner
        return cost + self._no_result_tokens if is_unanswered else cost


def omission(dropped: int) -> TextBlock | None:
    """Return the note that replaces messages dropped from the beginning."""
    return TextBlock(f"[{dropped} earlier messages are left out.]") if dropped else None
