"""A prompt in the making: each entry with the block that shows it, or none.

Everything that changes what is shown goes through `replace`, `remove` and `fold`, so the draft
knows what the prompt costs and what has been done to it, and why.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from mcpp.prompts.blocks import CALL_OVERHEAD, Block, TextBlock, price
from mcpp.prompts.entries import NO_RESULT, Episode, PromptEntry
from mcpp.prompts.folding import fold_handle, fold_note
from mcpp.tokens import Counter

_IMAGES: Final = "images"  # why an entry is changed whose pictures are named
_FOLDED: Final = "folded"


class Changed(msgspec.Struct, frozen=True, gc=False):
    """An envelope that is shown in another form, and why; `handle` gives it back."""

    id: str
    handle: str
    reason: str


class LeftOut(msgspec.Struct, frozen=True, gc=False):
    """An envelope that is not shown, and why."""

    id: str
    reason: str


class PromptDraft:
    """What a prompt shows of its entries. Owns the choice, never the entries."""

    def __init__(self, entries: Sequence[PromptEntry], count: Counter) -> None:
        self.entries: Final = entries
        self.count: Final = count
        # By place; where none stands the whole entry is shown, read only when it is asked for.
        self._blocks: dict[int, Block | None] = {}
        self.changed: dict[str, Changed] = {}
        self.left_out: dict[str, LeftOut] = {}
        self.originals: dict[str, tuple[PromptEntry, ...]] = {}
        self.dropped = 0
        self._costs: list[int] | None = None
        self._missing = price(NO_RESULT, count) + CALL_OVERHEAD

    @property
    def total(self) -> int:
        """What the entries cost as they are shown now."""
        return sum(self.costs)

    @property
    def costs(self) -> list[int]:
        """What each entry costs as it is shown now; a call without a result pays for its error."""
        if self._costs is None:
            self._costs = list(map(self._cost, self.entries))
        return self._costs

    def shown(self) -> Iterator[tuple[PromptEntry, Block]]:
        """Yield the entries that are shown, each with its block."""
        blocks = self._blocks
        for at, entry in enumerate(self.entries):
            block = blocks[at] if at in blocks else entry.whole()
            if block is not None:
                yield entry, block

    def block(self, entry: PromptEntry) -> Block | None:
        """Return what an entry is shown by, None if it is not."""
        return self._blocks[entry.at] if entry.at in self._blocks else entry.whole()

    def is_hidden(self, entry: PromptEntry) -> bool:
        """Tell whether an entry is not shown."""
        return entry.at in self._blocks and self._blocks[entry.at] is None

    def saving(self, entry: PromptEntry, block: Block) -> int:
        """Return what it would save to show an entry by this block."""
        return self.costs[entry.at] - price(block, self.count)

    def is_intact(self, entry: PromptEntry) -> bool:
        """Tell whether an entry is shown as it came, but perhaps for pictures."""
        if entry.at not in self._blocks:
            return True
        change = self.changed.get(entry.envelope.id)
        return change is not None and change.reason == _IMAGES

    def name_images(self, entry: PromptEntry, count: int) -> None:
        """Show a result with its first so many pictures named."""
        self.replace(entry, entry.without_images(count), _IMAGES)

    def replace(self, entry: PromptEntry, block: Block, reason: str) -> None:
        """Show an entry in another form; its original stays under its handle."""
        self._put(entry, block)
        self.changed[entry.envelope.id] = Changed(entry.envelope.id, entry.handle, reason)
        self._remember(entry.handle, [entry])

    def remove(self, entry: PromptEntry, reason: str) -> None:
        """Show an entry no more, nor the other half of its pair."""
        for one in (entry, entry.partner):
            if one is not None and not self.is_hidden(one):
                self._put(one, None)
                self._forget(one)
                self.left_out[one.envelope.id] = LeftOut(one.envelope.id, reason)
                self.dropped += 1

    def fold(self, episode: Episode, members: Sequence[PromptEntry], kept: frozenset[int]) -> None:
        """Show a concluded context by its conclusion and an outline, but for the places kept."""
        end = episode.conclusion
        assert end is not None
        for entry in members:
            if entry is not end and entry.at not in kept and not self.is_hidden(entry):
                self._put(entry, None)
                self._forget(entry)
                self.left_out[entry.envelope.id] = LeftOut(entry.envelope.id, _FOLDED)
        handle = fold_handle(episode)
        self._put(end, fold_note(episode, members, handle))
        self.changed[end.envelope.id] = Changed(end.envelope.id, handle, _FOLDED)
        self._remember(handle, members)

    def _remember(self, handle: str, entries: Sequence[PromptEntry]) -> None:
        # T-16: handles are short, and senders choose the ids they are made from. Where two fall
        # on one handle it stands for both, so that neither hides the other.
        both = dict.fromkeys((*self.originals.get(handle, ()), *entries))
        self.originals[handle] = tuple(both)

    def _forget(self, entry: PromptEntry) -> None:
        change = self.changed.pop(entry.envelope.id, None)
        if change is not None:
            left = [one for one in self.originals[change.handle] if one is not entry]
            self.originals[change.handle] = tuple(left)

    def _put(self, entry: PromptEntry, block: Block | None) -> None:
        self._blocks[entry.at] = block
        if self._costs is not None:
            self._costs[entry.at] = self._cost(entry)

    def _cost(self, entry: PromptEntry) -> int:
        if entry.at in self._blocks:
            block = self._blocks[entry.at]
            return 0 if block is None else price(block, self.count)
        cost = entry.tokens(self.count)
        return cost + self._missing if entry.sort == "call" and not entry.partner else cost


def omission(dropped: int) -> TextBlock | None:
    """Return the word that stands for messages left out at the beginning."""
    return TextBlock(f"[{dropped} earlier messages are left out.]") if dropped else None
